//! The ground that data moves over: memory that is lent, rings, streams, GPUs; and clocks and meters, which say what that took.

#![deny(unsafe_code)]
#![warn(unreachable_pub)]

pub mod arena;
pub mod auth;
pub mod build;
pub mod client;
pub mod clock;
pub mod copy;
pub mod crc;
pub mod gpu;
pub mod identity;
pub mod machine;
pub mod meter;
pub mod multicast;
pub mod process;
pub mod queue;
pub mod rate;
pub mod rdma;
pub mod reactor;
pub mod scarce;
pub mod stream;
pub mod threads;
pub mod tls;

pub use forebay_model::{Error, Kind};
pub use machine::environment;
