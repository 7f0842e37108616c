//! Tests of the crate's public interface that share a process: one program, since each takes seconds to compile and link.

mod gateway;
mod interface;
mod remote;
mod remote_auth;
mod serve;
mod serve_auth;
