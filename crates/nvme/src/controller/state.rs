//! A function's controller as plain data: its host's settings, outstanding requests and pending events.

use super::errors::Errors;
use super::events::Events;
use super::features::{Features, Timestamp};
use super::log::AnaCounts;
use super::Controller;
use crate::fabrics::Csts;
use crate::transport::pcie::queue::QueueState;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ControllerState {
    csts: u32,
    /// I/O queues that the host may have, and entries of each.
    queues: u16,
    queue_entries: u16,
    features: Features,
    timestamp: Timestamp,
    events: Events,
    errors: Errors,
    ana: AnaCounts,
    changed: BTreeSet<u32>,
}

impl Controller {
    pub(crate) fn state(&self) -> ControllerState {
        ControllerState {
            csts: self.status.0,
            queues: self.queues,
            queue_entries: self.queue_entries,
            features: self.features.clone(),
            timestamp: self.timestamp.clone(),
            events: self.events.clone(),
            errors: self.errors.clone(),
            ana: self.ana.clone(),
            changed: self.changed.clone(),
        }
    }

    /// `admin`: the queue that parked requests wait in. Err: what can't be.
    pub(crate) fn restore(
        &mut self,
        state: &ControllerState,
        admin: Option<&QueueState>,
    ) -> Result<(), &'static str> {
        let mut waiting: BTreeSet<(u16, u16)> = admin.iter().flat_map(|queue| queue.pending()).collect();
        if !state.events.parked().all(|one| waiting.remove(&one)) || !waiting.is_empty() {
            return Err("event requests that are not those of the admin queue");
        }
        self.status = Csts(state.csts);
        (self.queues, self.queue_entries) = (state.queues, state.queue_entries);
        self.features = state.features.clone();
        self.timestamp = state.timestamp.clone();
        self.events = state.events.clone();
        self.errors = state.errors.clone();
        self.ana = state.ana.clone();
        self.changed = state.changed.clone();
        Ok(())
    }
}
