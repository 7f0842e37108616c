//! The admin queue pair: there while the controller is enabled.

use super::registers::Registers;
use super::Admin;
use crate::command::Cqe;
use crate::transport::pcie::memory::HostMemory;
use crate::transport::pcie::queue::{
    CompletionQueue, Entry, Fetched, Interrupt, InvalidDoorbell, QueueFault, QueueState, SubmissionQueue,
};
use crate::transport::pcie::registers::Doorbell;

/// The queue pair, what its commands came to, and whether the host may hear of them.
#[derive(Debug, Default)]
pub(super) struct AdminQueue {
    /// None: the host has not enabled the controller, or has reset it.
    queue: Option<CompletionQueue>,
    completed: u64,
    failed: u64,
    /// Completions wait for `publish`.
    holds_back: bool,
}

impl AdminQueue {
    /// The controller is enabled.
    pub fn open(&mut self, registers: &Registers) {
        let attributes = registers.admin_attributes;
        let (submission, completion) = (attributes.submission_entries(), attributes.completion_entries());
        let mut queue = CompletionQueue::new(0, registers.admin_completion, completion, Some(0));
        queue.open_plain(SubmissionQueue::new(0, registers.admin_submission, submission));
        if self.holds_back {
            queue.hold_back();
        }
        self.queue = Some(queue);
    }

    /// The controller is reset: commands in it get no completion.
    pub fn close(&mut self) {
        self.queue = None;
    }

    pub fn figures(&self) -> Admin {
        let queue = self.queue.as_ref();
        Admin {
            entries: queue.and_then(|q| q.submissions().next()).map_or(0, SubmissionQueue::entries),
            in_flight: queue.map_or(0, CompletionQueue::in_flight),
            completed: self.completed,
            failed: self.failed,
        }
    }

    /// From here on the host hears of completions by `publish` alone.
    pub fn hold_back(&mut self) {
        self.holds_back = true;
        self.queue.iter_mut().for_each(CompletionQueue::hold_back);
    }

    /// Completions that the host is to hear of.
    pub fn held_back(&self) -> &[Entry] {
        self.queue.as_ref().map(CompletionQueue::held_back).unwrap_or_default()
    }

    /// Writes the completions that were held back.
    pub fn publish<M: HostMemory + ?Sized>(&mut self, memory: &M) -> Result<(), QueueFault> {
        self.queue.as_mut().map_or(Ok(()), |queue| queue.publish(memory))
    }

    /// The next command.
    pub fn fetch<M: HostMemory + ?Sized>(&mut self, memory: &M) -> Result<Option<Fetched>, QueueFault> {
        self.queue.as_mut().map_or(Ok(None), |queue| queue.fetch(memory))
    }

    /// Completes a command, and counts it.
    pub fn complete<M: HostMemory + ?Sized>(
        &mut self,
        memory: &M,
        slot: u16,
        cqe: &Cqe,
    ) -> Result<(), QueueFault> {
        let Some(queue) = &mut self.queue else { return Ok(()) };
        match cqe.status().is_success() {
            true => self.completed += 1,
            false => self.failed += 1,
        }
        queue.complete(memory, slot, cqe.status(), cqe.result.get())
    }

    /// A doorbell register of it was written. None: it isn't there.
    pub fn ring(&mut self, doorbell: Doorbell, value: u32) -> Option<Result<(), InvalidDoorbell>> {
        self.queue.as_mut().map(|queue| queue.ring(doorbell, value))
    }

    /// The vector to signal for completions, those that are held back aside.
    pub fn interrupt(&mut self) -> Option<u16> {
        if self.holds_back {
            None
        } else {
            self.signal()
        }
    }

    /// The vector to signal for completions, once they are published.
    pub fn signal(&mut self) -> Option<u16> {
        match self.queue.as_mut()?.interrupt(0) {
            Interrupt::Now(vector) => Some(vector),
            _ => None,
        }
    }

    pub fn state(&self) -> Option<QueueState> {
        self.queue.as_ref().map(CompletionQueue::state)
    }

    /// The queue as another process left it.
    ///
    /// # Errors
    /// What can't be.
    pub fn restore(
        state: Option<&QueueState>,
        held_back: &[Entry],
        completed: u64,
        failed: u64,
    ) -> Result<AdminQueue, &'static str> {
        let mut queue = state.map(restore_queue).transpose()?;
        queue.as_mut().map(|queue| queue.hold_again(held_back)).transpose()?;
        Ok(AdminQueue { queue, completed, failed, holds_back: false })
    }
}

fn restore_queue(state: &QueueState) -> Result<CompletionQueue, &'static str> {
    if state.id() != 0 || state.vector() != Some(0) || !state.submissions().eq([0]) {
        return Err("an admin queue that is none");
    }
    CompletionQueue::restore(state)
}
