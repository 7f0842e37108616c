//! The gateway: drives that look local and stand on any source.
//!
//! A drive has a `ControllerThread`, for its client, its registers and its admin queue. Its I/O queues belong to workers:
//! a `Worker` is one thread's loop, and lends the `ThreadResources` to the `ControllerQueues` that it has of each
//! controller; those have an `IoQueue` for each completion queue, and carry out commands by `IoCommand`. `ControllerShared` is
//! what a drive's threads share, `GatewayShared` what all do. `Gateway`, the handle, makes and changes all of it, and gives
//! it to the next process (`handover`, `supervisor`).

mod command;
pub(crate) mod config;
mod controller;
mod controller_queues;
mod controller_shared;
pub(crate) mod dma;
mod gateway_shared;
pub(crate) mod handed;
pub(crate) mod handle;
pub(crate) mod handover;
mod io_queue;
pub(crate) mod metrics;
mod resources;
pub(crate) mod rpc;
pub(crate) mod service;
mod shm;
pub(crate) mod socket;
pub(crate) mod stats;
pub(crate) mod supervisor;
pub(crate) mod vfio_user;
mod worker;

pub use handle::Gateway;

#[cfg(test)]
mod tests;
