//! Moves bytes between storage, memory and GPUs, and measures the time, CPU and energy that this takes.

pub mod checkpoint;
pub mod emulate;
pub mod feed;
pub mod format;
pub mod generate;

pub use forebay_model::{Error, Kind};
