//! A job becomes a record: plan, prepare, run as often as requested, and report; and what a machine can do for it.

#![deny(unsafe_code)]
#![warn(unreachable_pub)]

mod batches;
mod calibration;
pub mod checksum;
pub mod doctor;
pub mod files;
mod fleet;
mod flow;
mod host_capacity;
mod io_list;
mod io_log;
mod minimum_rate;
mod pause;
mod prediction;
mod purpose;
pub mod record;
mod replay;
pub mod requirements;
mod run;
pub mod run_kit;
mod schedule;
mod series;
mod share;
pub mod verify;
pub mod virtual_time;
pub mod warnings;
mod watchdog;
mod worker;
pub mod worker_setup;

pub use forebay_model::{Error, Kind};
pub use record::Outcome;
pub use run::{check, plan, run, Plan, PlannedTarget};
pub use run_kit::{Observer, Phase, Progress, TargetRate, WorkerRate};
