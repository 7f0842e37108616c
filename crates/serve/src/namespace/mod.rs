//! What a namespace is, whoever it is served to: its limits and the commands that wait for them, a thread's queue of
//! it, and the executor that takes a command there step by step.

mod claim;
pub(crate) mod config;
pub(crate) mod executor;
mod fault;
pub(crate) mod health;
pub(crate) mod namespace_queue;
pub(crate) mod qos;
pub(crate) mod queues;
pub(crate) mod rate_limit_queue;
#[cfg(test)]
pub(crate) mod recorded;
pub(crate) mod stats;
pub(crate) mod steps;
pub(crate) mod volume;
