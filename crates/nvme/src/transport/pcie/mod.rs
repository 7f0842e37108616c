//! NVMe over PCIe: registers, queues in the host's memory, and the two ends of them ("pcie": NVMe over PCIe Transport
//! 1.0).
//!
//! `device` is the controller of a function: BAR0 and the admin queue. Its I/O queues are values of their own
//! (`queue::CompletionQueue`, with the submission queues that use it), each owned by whoever carries its commands out.
//! `host` is the driver's side. Memory is reached through `memory::HostMemory`, which checks every address.

pub mod data;
pub mod device;
pub mod host;
pub mod memory;
mod merged;
mod prp;
pub mod queue;
pub mod registers;
pub mod ring;
mod sgl;
pub mod shadow;

pub use memory::{HostMemory, Unmapped};
