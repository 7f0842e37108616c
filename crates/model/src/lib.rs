//! What Forebay says about a run, and nothing that touches the world: the job
//! that was asked for, the record of what happened, latency histograms, and
//! models of drives. No clock, no thread, no file, no socket: time and bytes
//! come in as arguments, so that every line here can be tested by arithmetic.

#![forbid(unsafe_code)]

pub mod cached;
pub mod checkpoint;
pub mod content;
mod cpu;
pub mod crc32c;
pub mod device;
mod error;
pub mod files;
pub mod fio_blocks;
pub mod histogram;
pub mod job;
pub mod merge;
pub mod pattern;
pub mod random;
pub mod record;
pub mod safetensors;
pub mod simulate;
mod soonest;
pub mod stats;
pub mod training;
pub mod units;
pub mod warnings;
pub mod wording;

pub use error::{Error, Kind};
pub use histogram::Latency;
pub use job::JobSpec;
pub use record::RunRecord;
