//! Tests of the crate's public interface: one program, since each takes seconds to compile and link.

mod content;
mod fleet;
mod fleet_checkpoint;
mod fleets;
mod histogram;
mod pattern;
mod simulate;
mod trace;
mod training_simulate;
mod utilisation;
