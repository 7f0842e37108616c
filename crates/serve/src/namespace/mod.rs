//! What a namespace is, whoever it is served to: its limits, and the commands that wait for them.

pub mod hold;
pub mod qos;
