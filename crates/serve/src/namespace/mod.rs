//! What a namespace is, whoever it is served to: its limits and the commands that wait for them, a thread's queue of
//! it, and the executor that takes a command there step by step.

pub(crate) mod executor;
mod fault;
pub(crate) mod hold;
pub(crate) mod lane;
pub(crate) mod qos;
pub(crate) mod steps;
