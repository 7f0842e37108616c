//! Training runs without accelerators: what is read in which order, when each step
//! may start, and what utilisation the published rules make of it.
//!
//! A workload says how many samples make a batch and how long an accelerator computes
//! on one. An emulated accelerator takes batch after batch, waits as long as the real
//! one would compute, and meets the others at a barrier after every step. All of that
//! is arithmetic on times that come in as arguments, so that a run on storage and a
//! simulation on a modelled drive share every line of it.

mod lockstep;
pub mod record;
pub mod rules;
mod scheduler;
pub mod simulate;
mod spec;
mod trace;

pub use lockstep::Lockstep;
pub use record::Training;
pub use scheduler::{Grant, Lengths, Plan, RankStreams, Scheduler};
pub use spec::{EmulateSpec, Level, Loader, OnError, RuleSet, Workload};
pub use trace::{Stream, Streams, Trace};
