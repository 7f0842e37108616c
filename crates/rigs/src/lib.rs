//! What tests of several crates stand on. Only ever a dev-dependency.

pub mod seccomp;
