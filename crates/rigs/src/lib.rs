//! What tests of several crates stand on. Only ever a dev-dependency.

#![deny(unsafe_code)]

pub mod drive;
pub mod fake;
pub mod gpu;
pub mod leaks;
pub mod seccomp;
pub mod signals;
pub mod worker;
