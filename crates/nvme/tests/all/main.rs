//! Tests of the crate's public interface: one program, since each takes seconds to compile and link.

mod any_command;
mod auth;
mod controller;
mod golden;
mod hostile;
mod link;
mod pair;
mod rdma;
mod session;
mod whole;
