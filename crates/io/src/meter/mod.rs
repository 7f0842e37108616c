//! Costs of a run, and reasons to doubt its numbers.
//!
//! Every meter has two states: it says a value, or it says why it can't. The second is
//! never 0: it travels to the record as null, with the reason under `missing`.
//! Reading the CPU, noise and disk meters at both ends of a run takes well under a
//! millisecond; the power meters that talk to a board or a network have threads of
//! their own.

#![allow(unsafe_code, reason = "system calls that rustix lacks")]

use std::time::Duration;

pub(crate) mod cache;
pub(crate) mod cpu;
pub(crate) mod disk;
pub(crate) mod limit;
pub(crate) mod noise;
pub(crate) mod power;
pub(crate) mod waits;

/// A reading stands for the run's time only where its own differs by no more than this share of it.
const ASTRAY_SHARE: f64 = 0.02;
/// Lateness that a busy machine may show: two ticks of the kernel's.
const LATE: Duration = Duration::from_millis(20);

/// Returns whether a reading whose own time is `off` from the time that it should cover is useless for that.
pub fn is_astray(off: Duration, covers: Duration) -> bool {
    off > covers.mul_f64(ASTRAY_SHARE).max(LATE)
}

/// Why a value can't be had, in words for the record's `missing`.
pub(crate) type Reason = String;

/// Fields that stay null, by their name within their section, each with its reason.
pub(crate) type Missing = Vec<(&'static str, Reason)>;
