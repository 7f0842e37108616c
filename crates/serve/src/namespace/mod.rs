//! What a namespace is, whoever it is served to: its limits, and the commands that wait for them.

pub(crate) mod hold;
pub(crate) mod qos;
