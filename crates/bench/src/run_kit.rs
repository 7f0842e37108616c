//! What runs have in common, whatever they measure: their own thread, observers and meters.

mod meters;
mod observer;
pub mod run_thread;

pub use meters::{Meters, Readings};
pub use observer::{Observer, Phase, Progress, TargetRate, WorkerRate};
