//! A job becomes a record: plan, prepare, run as often as requested, and report; and what a machine can do for it.

#![deny(unsafe_code)]
#![warn(unreachable_pub)]

mod batches;
mod calibration;
mod checksum;
mod doctor;
mod files;
mod fleet;
mod flow;
mod host_capacity;
mod io_list;
mod io_log;
mod minimum_rate;
mod pause;
mod prediction;
mod purpose;
mod record;
mod replay;
mod requirements;
mod run;
mod run_kit;
mod schedule;
mod series;
mod share;
mod verify;
mod virtual_time;
mod warnings;
mod watchdog;
mod worker;
mod worker_setup;

pub use forebay_model::{Error, Kind};

// Runs of a job, and what is told of them meanwhile.
pub use record::{compose_record, staged_reason, Context as RecordContext, Outcome};
pub use requirements::{all_direct, requirements_of_job, requirements_of_record};
pub use run::{check_job, plan_job, run_job, Plan, PlannedTarget};
pub use virtual_time::VirtualRun;
pub use warnings::session_warnings;

// The kit that other runs are made of: threads, what they count, and what they set up.
pub use run_kit::run_thread::with_run_thread;
pub use run_kit::{
    guarded, Meters, Observer, Phase, Progress, Ran as RanWindow, Readings, Resources, Shared,
    Stop as TeamStop, Tally, TargetRate, Team, Threads, WorkerRate, WorkerSpec, READ as TALLY_READ,
    WRITE as TALLY_WRITE,
};
pub use verify::{Contents, Ended as VerifyEnded, NameOf, Part as VerifyPart, VerifyTask};
pub use worker_setup::{check_memory, reactor_for, Memory as WorkerMemory};

// Checksums, operations on many files, and doctor.
pub use checksum::{checksum_bytes, checksum_device_memory, run_checksum, ChecksumRecord, ChecksumSpec};
pub use doctor::{ask_cufile, examine_machine, gds_verdict};
pub use files::{run_files, Progress as FilesProgress};
