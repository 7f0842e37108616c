//! A real /dev/ublkbN over any source, on the machine itself: Linux's ublk driver hands a block device's requests to
//! this process through io_uring.
//!
//! One thread per hardware queue, each with its reactor and its queue of the source, so that hardware queues and
//! fabric queues go in pairs. Requests come as completions of commands on the character device; the driver copies
//! what is written into the request's slot before, and what was read out of it after: one copy for each byte, and
//! none of ours. What the driver calls things is in `uapi`; docs/decisions says why no library stands between.

mod arena;
mod control;
mod device;
mod inbox;
mod list;
mod map;
mod options;
mod port;
mod request;
mod stats;
#[cfg(test)]
mod tests;
mod uapi;
mod uring;
mod worker;

pub(crate) use control::identity;
pub(crate) use device::available;
pub use device::{delete_ublk, Ublk};
pub use list::ublk_devices;
pub(crate) use list::waiting;
pub use options::Options;
pub(crate) use options::{Attach, OnDeath};
pub(crate) use stats::{DeviceState, Stats};
pub(crate) use worker::Throttle;
