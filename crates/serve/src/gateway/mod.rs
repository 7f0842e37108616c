//! The gateway: drives that look local and stand on any source.

pub mod config;
mod controller;
mod controller_queues;
mod controller_shared;
pub(crate) mod dma;
pub(crate) mod handed;
pub(crate) mod handle;
pub mod handover;
mod hold;
mod io;
pub mod keeper;
pub(crate) mod metrics;
pub mod rpc;
pub mod service;
mod shm;
pub(crate) mod socket;
pub mod stats;
pub mod vfio_user;
mod worker;

pub use config::Config;
pub use handle::Gateway;

#[cfg(test)]
mod tests;
