//! A function's controller as plain data: its host's settings, outstanding requests and pending events.

use super::errors::Errors;
use super::events::Events;
use super::features::{Timestamp, Values};
use super::log::AnaCounts;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ControllerState {
    pub(super) csts: u32,
    /// I/O queues that the host may have, and entries of each.
    pub(super) queues: u16,
    pub(super) queue_entries: u16,
    pub(super) features: Values,
    pub(super) timestamp: Timestamp,
    pub(super) events: Events,
    pub(super) errors: Errors,
    pub(super) ana: AnaCounts,
    pub(super) changed: BTreeSet<u32>,
}
