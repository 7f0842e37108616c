//! Moves bytes between storage, memory and GPUs, and measures what that took.

pub mod doctor;
pub mod files;
pub mod meter;

pub use forebay_model::{Error, Kind};
