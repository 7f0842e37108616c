//! Transports: TCP, RDMA and PCIe.

mod flow;
pub mod pcie;
pub mod rdma;
pub mod tcp;
