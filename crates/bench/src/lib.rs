//! A job becomes a record: plan, prepare, run as often as requested, and report; and what a machine can do for it.

#![deny(unsafe_code)]
#![warn(unreachable_pub)]

mod batches;
mod calibration;
pub mod checksum;
pub mod doctor;
pub mod files;
pub mod fleet;
mod flow;
mod host_capacity;
pub mod measure;
mod minimum_rate;
mod pause;
mod prediction;
mod purpose;
pub mod record;
pub mod requirements;
mod run;
pub mod run_thread;
mod schedule;
mod series;
mod share;
pub mod tally;
pub mod verify;
pub mod virtual_time;
pub mod warnings;
mod watchdog;
pub mod worker;
pub mod worker_setup;

pub use forebay_model::{Error, Kind};
pub use forebay_storage::opening::run_beside_others;
pub use run::{
    check, plan, run, Observer, Outcome, Phase, Plan, PlannedTarget, Progress, TargetRate, WorkerRate,
};
