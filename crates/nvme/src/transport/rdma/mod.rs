//! NVMe/RDMA as bytes: what both ends say while they connect, where a command's data are, and each end of a
//! connection. Drivers own verbs, the connection manager and memory.
//!
//! A queue is a reliable connection. Its ends agree on sizes in the private data of
//! the connection manager's messages (`connect`). Then each command is one SEND, each
//! response another; data lie behind the command in its capsule, or in memory of the
//! host's that keyed SGL descriptors name, which the controller reads and writes by
//! RDMA (`data`; `target` says when, `host` what is over).

pub mod connect;
pub mod data;
pub mod host;
pub mod target;
