//! A function's controller as plain data, with which another process goes on.

use crate::controller::state::ControllerState;
use crate::transport::pcie::queue::{Entry, QueueState};
use serde::{Deserialize, Serialize};

/// Registers and the admin queue. I/O queues have states of their own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceState {
    pub(super) cc: u32,
    pub(super) csts: u32,
    pub(super) aqa: u32,
    pub(super) asq: u64,
    pub(super) acq: u64,
    pub(super) interrupt_mask: u32,
    pub(super) admin: Option<QueueState>,
    /// Completions in it that the host may not have been told of.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) held_back: Vec<Entry>,
    /// Addresses of both buffers of Doorbell Buffer Config, and bytes of each.
    pub(super) shadow: Option<(u64, u64, u32)>,
    pub(super) completed: u64,
    pub(super) failed: u64,
    pub(super) controller: ControllerState,
}
