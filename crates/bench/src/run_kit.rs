//! What runs have in common, whatever they measure: their own thread, worker threads, observers and meters.

mod gate;
mod meters;
mod observer;
mod ran;
pub(crate) mod run_thread;
mod standstill;
mod tally;
mod team;
mod threads;
mod workers;

pub(crate) use gate::Gate;
pub use meters::{Meters, Readings};
pub use observer::{Observer, Phase, Progress, TargetRate, WorkerRate};
pub use ran::Ran;
pub(crate) use standstill::{Standstills, STANDSTILL, STANDSTILL_EXACT, STANDSTILL_MIN};
pub(crate) use tally::Snapshot;
pub(crate) use tally::{DirectionTally, Moved, Timed};
pub use tally::{Tally, READ, WRITE};
pub(crate) use team::Lead;
pub use team::{Stop, Team};
pub use threads::{guarded, Threads};
pub use workers::{Resources, Shared, WorkerSpec};
