//! A function's controller as plain data, with which another process goes on.

use super::{Completion, Device, Settings, Shadow, Submission};
use crate::controller::state::ControllerState;
use crate::controller::subsystem::Subsystem;
use crate::fabrics::{Cc, Csts};
use crate::transport::pcie::memory::HostMemory;
use crate::transport::pcie::queue::{CompletionQueue, Entry, QueueState};
use crate::transport::pcie::registers::Aqa;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Registers and the admin queue. I/O queues have states of their own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceState {
    cc: u32,
    csts: u32,
    aqa: u32,
    asq: u64,
    acq: u64,
    interrupt_mask: u32,
    admin: Option<QueueState>,
    /// Completions in it that the host may not have been told of.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    held_back: Vec<Entry>,
    /// Addresses of both buffers of Doorbell Buffer Config, and bytes of each.
    shadow: Option<(u64, u64, u32)>,
    completed: u64,
    failed: u64,
    controller: ControllerState,
}

impl Device {
    /// Nothing is under way that somebody else has yet to answer: `state` is all there is. It becomes so by itself where no
    /// more commands are fetched.
    pub fn is_calm(&self) -> bool {
        let deleted = self.submissions.values().any(|queue| queue.deletion.is_some())
            || self.completions.values().any(|queue| queue.deletion.is_some());
        let busy = self.closing.is_some() || self.status.shutdown() == 1 || !self.effects.is_empty();
        !deleted && !busy && self.aborts.is_empty() && self.late.is_empty()
    }

    /// Answers what is over, and fetches nothing.
    pub fn settle<M: HostMemory + ?Sized>(&mut self, memory: &M) {
        self.answer_parked(memory);
        self.interrupt();
    }

    /// To be asked for after `settle`, and while it is calm.
    pub fn state(&self) -> DeviceState {
        DeviceState {
            cc: self.configuration.0,
            csts: self.status.0,
            aqa: self.admin_attributes.0,
            asq: self.admin_submission,
            acq: self.admin_completion,
            interrupt_mask: self.interrupt_mask,
            admin: self.admin.as_ref().map(CompletionQueue::state),
            held_back: self.admin.as_ref().map(|admin| admin.held_back().to_vec()).unwrap_or_default(),
            shadow: self.shadow.map(|shadow| (shadow.doorbells, shadow.event_indices, shadow.page_bytes)),
            completed: self.admin_completed,
            failed: self.admin_failed,
            controller: self.controller.state(),
        }
    }

    /// The function as `state` has it, with these I/O queues, which others own. `settings` and `subsystem` are what they
    /// were. Err: what can't be of it.
    pub fn restore(
        subsystem: Arc<Subsystem>,
        settings: Settings,
        state: &DeviceState,
        queues: &[QueueState],
    ) -> Result<Device, &'static str> {
        let mut device = Device::new(subsystem, settings, 0);
        device.configuration = Cc(state.cc);
        device.status = Csts(state.csts);
        device.admin_attributes = Aqa(state.aqa & 0x0fff_0fff);
        (device.admin_submission, device.admin_completion) = (state.asq & !0xfff, state.acq & !0xfff);
        device.interrupt_mask = state.interrupt_mask;
        (device.admin_completed, device.admin_failed) = (state.completed, state.failed);
        device.admin = state.admin.as_ref().map(restore_admin).transpose()?;
        let told_again = device.admin.as_mut().map(|admin| admin.hold_again(&state.held_back)).transpose();
        told_again?;
        device.shadow = state.shadow.map(|places| device.shadow_at(places)).transpose()?;
        device.controller.restore(&state.controller, state.admin.as_ref())?;
        queues.iter().try_for_each(|queue| device.adopt(queue))?;
        device.note_queues();
        Ok(device)
    }

    fn shadow_at(
        &self,
        (doorbells, event_indices, page_bytes): (u64, u64, u32),
    ) -> Result<Shadow, &'static str> {
        let beyond = |at: u64| at.checked_add(page_bytes.into()).is_none();
        if beyond(doorbells) || beyond(event_indices) {
            return Err("shadow doorbells beyond all addresses");
        }
        Ok(Shadow { doorbells, event_indices, stride: self.settings.stride, page_bytes })
    }

    /// Knows of an I/O queue that somebody else has.
    fn adopt(&mut self, queue: &QueueState) -> Result<(), &'static str> {
        let cqid = queue.id();
        if !self.may_be_queue(cqid) || self.completions.contains_key(&cqid) {
            return Err("a completion queue that cannot be, or is there twice");
        }
        if queue.vector().is_some_and(|vector| vector >= self.settings.vectors.max(1)) {
            return Err("an interrupt vector that is not there");
        }
        for sqid in queue.submissions() {
            if !self.may_be_queue(sqid) || self.submissions.contains_key(&sqid) {
                return Err("a submission queue that cannot be, or is there twice");
            }
            self.submissions.insert(sqid, Submission { cqid, deletion: None });
        }
        let submissions: BTreeSet<u16> = queue.submissions().collect();
        self.completions.insert(cqid, Completion { submissions, deletion: None });
        Ok(())
    }
}

fn restore_admin(state: &QueueState) -> Result<CompletionQueue, &'static str> {
    if state.id() != 0 || state.vector() != Some(0) || !state.submissions().eq([0]) {
        return Err("an admin queue that is none");
    }
    CompletionQueue::restore(state)
}
