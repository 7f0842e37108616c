//! The gateway: drives that look local and stand on any source.

mod command;
pub mod config;
mod controller;
mod controller_queues;
mod controller_shared;
pub(crate) mod dma;
mod gateway_shared;
pub(crate) mod handed;
pub(crate) mod handle;
pub mod handover;
mod io_queue;
pub mod keeper;
pub(crate) mod metrics;
mod resources;
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
