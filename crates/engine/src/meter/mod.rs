//! What a run costs, and why its numbers may be worth less than they look.
//!
//! Every meter has two states: it says a value, or it says why it can't. The second is
//! never 0: it travels to the record as null, with the reason under `missing`.
//! Reading the CPU, noise and disk meters at both ends of a run takes well under a
//! millisecond; the power meters that talk to a board or a network have threads of
//! their own.

pub mod cache;
pub mod cpu;
pub mod disk;
pub mod noise;
pub mod power;

/// Why a value can't be had, in words for the record's `missing`.
pub type Reason = String;

/// Fields that stay null, by their name within their section, each with its reason.
pub type Missing = Vec<(&'static str, Reason)>;
