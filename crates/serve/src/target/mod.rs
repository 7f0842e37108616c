//! `forebay serve`: an NVMe/TCP and NVMe/RDMA target over any source.
//!
//! A few threads, each with its own reactor, slots and source queues; a connection belongs to one of them from
//! accept to close. What an I/O needs is never shared between threads; admin commands take a lock.
//!
//! A `Worker` is one thread's loop. It has `Connections`, and lends each the `ThreadResources` for what it does: queues of
//! namespaces, memory, timers. A `Connection` has what concerns it alone; its commands are carried out by `IoCommand` and
//! `AdminQueue`. Threads share `TargetShared`, and through it a `SubsystemEntry` each with its `ControllerEntry`s and `Host`s;
//! they tell each other by `Message`s.

mod aborts;
pub(crate) mod accept;
mod accept_rdma;
mod access;
pub(crate) mod arena;
mod auth;
mod command;
pub(crate) mod config;
mod connect;
mod connection;
mod connections;
pub(crate) mod controller;
mod discovery;
mod host;
mod ids;
pub(crate) mod inbox;
mod link;
pub(crate) mod log;
mod mdns;
mod memory;
mod message;
pub(crate) mod metrics;
mod namespace_queues;
mod nsid;
mod rdma;
mod ready;
mod refusals;
pub(crate) mod reload;
mod resources;
mod server;
pub(crate) mod shared;
pub(crate) mod stats;
pub(crate) mod subsystem;
pub(crate) mod thread_pool;
mod timers;
mod tls;
mod worker;

pub use config::Config;
pub use server::Server;
pub use stats::Stats;

#[cfg(test)]
mod tests;
