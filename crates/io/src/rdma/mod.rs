//! RDMA through libibverbs and librdmacm: a connection manager's channel and its
//! connections (`manager`), a device's protection domain with the memory that it
//! may reach, and completion queues (`verbs`). Nothing here waits: both kinds of
//! event come through descriptors that a reactor watches.
//!
//! A device reads and writes registered memory by itself, so registering is the
//! one act that needs a promise (`Region::register`). Posting names memory by
//! address and key, which the device checks against what is registered.

#![allow(unsafe_code, reason = "calls into libibverbs and librdmacm, and memory that a network card reaches")]

mod dma_buf;
mod layout;
mod library;
mod manager;
mod memory;
mod verbs;
mod watches;

pub use dma_buf::DmaBuf;
pub use layout::Sge;
pub use library::{rdma_library, require_rdma, RDMA_INSTALL, RDMA_MAKE_DEVICE, RDMA_SHOW_DEVICE};
pub use manager::{Channel, Event, Happened, Id, Room, Terms};
pub use memory::{Domains, Lent, Span};
pub use verbs::{Buffer, Completed, CompletionQueue, Domain, Post, Region, Send};
pub use watches::{Watched, Watches};
