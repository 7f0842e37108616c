//! Moves bytes between storage, memory and GPUs, and measures the time, CPU and energy that this takes.

pub mod arena;
pub mod auth;
pub mod checkpoint;
pub mod checksum;
mod client;
pub mod clock;
pub mod copy;
mod crc;
pub mod doctor;
pub mod driver;
pub mod emulate;
pub mod feed;
pub mod files;
pub mod format;
pub mod front;
pub mod generate;
pub mod gpu;
mod identity;
pub mod inspect;
mod machine;
pub mod meter;
mod multicast;
mod opening;
mod outputs;
pub mod path;
mod process;
pub mod queue;
pub mod rate;
pub mod rdma;
pub mod reactor;
pub mod serve;
pub mod source;
pub mod stream;
pub mod tls;

pub use forebay_model::{Error, Kind};
pub use machine::environment;
