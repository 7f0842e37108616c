//! What runs have in common, whatever they measure: their own thread, worker threads, observers and meters.

mod gate;
mod meters;
mod observer;
mod ran;
pub mod run_thread;
mod standstill;
mod tally;
mod team;
mod threads;
mod workers;

pub use gate::Gate;
pub use meters::{Meters, Readings};
pub use observer::{Observer, Phase, Progress, TargetRate, WorkerRate};
pub use ran::Ran;
pub use standstill::{Standstills, STANDSTILL, STANDSTILL_EXACT, STANDSTILL_MIN};
pub(crate) use tally::Snapshot;
pub use tally::{DirectionTally, Moved, Tally, Timed, READ, WRITE};
pub use team::{Lead, Stop, Team};
pub use threads::{guarded, Threads};
pub use workers::{Resources, Shared, WorkerSpec};
