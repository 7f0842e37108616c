//! Emulated training: data sets and their formats, runs that read them as accelerators would, checkpoints, and key-value caches.

#![deny(unsafe_code)]
#![warn(unreachable_pub)]

pub mod checkpoint;
pub mod emulate;
pub mod format;
pub mod generate;
pub mod kvcache;
mod opened;

pub use forebay_model::{Error, Kind};

/// Barrier for the hosts of a run: of a cache before its first request, of ranks before each checkpoint.
pub trait Barrier: Send {
    /// Returns once all are there: false where one has ended the run instead.
    fn pass(&mut self) -> Result<bool, Error>;
}
