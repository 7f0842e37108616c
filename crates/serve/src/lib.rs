//! Storage for other machines and guests: an NVMe over Fabrics target, a gateway of emulated drives, and Linux block devices.

#![deny(unsafe_code)]
#![warn(unreachable_pub)]

pub mod gateway;
pub(crate) mod namespace;
pub mod target;
pub mod ublk;

pub use forebay_model::{Error, Kind};
