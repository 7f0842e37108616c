//! A client's connection as another process takes it over.

use crate::gateway::handed::{Bytes, Fd};
use serde::{Deserialize, Serialize};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VectorState {
    /// The client's eventfd.
    pub bell: Option<Fd>,
    pub masked: bool,
    pub pending: bool,
}

/// A client's connection, and the parts of messages that are on their way.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerState {
    pub client: Fd,
    pub greeted: bool,
    /// Received part of the message that has not come whole.
    pub received: Bytes,
    pub received_fds: Vec<Fd>,
    pub too_many: bool,
    /// Answers that it has not taken.
    pub unsent: Vec<(Bytes, Vec<Fd>)>,
}
