//! The vfio-user protocol, from the side of the device: what a client sends, and what of a PCI function it sees.

pub(crate) mod config_space;
pub(crate) mod interrupts;
pub(crate) mod message;
pub(crate) mod socket;
pub(crate) mod state;
mod uring;
