//! How commands travel.

mod flow;
pub mod pcie;
pub mod rdma;
pub mod tcp;
