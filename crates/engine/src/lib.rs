//! Moves bytes between storage, memory and GPUs, and measures what that took.

pub mod arena;
pub mod checksum;
pub mod clock;
pub mod copy;
pub mod doctor;
pub mod driver;
pub mod emulate;
pub mod feed;
pub mod files;
pub mod format;
pub mod generate;
pub mod gpu;
mod identity;
pub mod meter;
pub mod path;
pub mod queue;
pub mod reactor;
pub mod source;

pub use forebay_model::{Error, Kind};
