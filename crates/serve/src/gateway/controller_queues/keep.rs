//! Queues that are held while another process takes them over, and queues that were taken over.

use super::{ControllerQueues, Queue};
use crate::gateway::handover::state::QueueKept;
use crate::gateway::worker::{Owner, Worker};
use crate::namespace::steps::is_repeatable;
use forebay_nvme::transport::pcie::queue::CompletionQueue;

/// A queue as it came from another process.
pub(crate) struct Taken {
    pub cq: CompletionQueue,
    pub kept: QueueKept,
}

impl Queue {
    /// Takes away commands that wait for their limits, or to begin anew.
    pub(crate) fn take_waiting(&mut self, chosen: impl Fn(u16) -> bool) -> Vec<u16> {
        let mut gone = self.lines.remove(&chosen);
        gone.extend(self.parked.iter().copied().filter(|slot| chosen(*slot)));
        self.parked.retain(|slot| !chosen(*slot));
        gone
    }

    /// Nothing of it is in a source.
    pub(crate) fn is_idle(&self) -> bool {
        usize::from(self.cq.in_flight()) == self.parked.len()
    }

    /// A command that a source gave up on while its queue is held: it begins anew.
    pub(crate) fn park(&mut self, slot: u16) {
        self.commands[usize::from(slot)].memory.release();
        self.parked.push(slot);
    }

    fn keep(&self) -> QueueKept {
        QueueKept {
            queue: self.cq.state(),
            interrupts: self.interrupts,
            head_seen: self.head_seen,
            tails_seen: self.tails_seen.clone(),
            tallies: self.tallies.clone(),
        }
    }

    fn taken(taken: Taken) -> Queue {
        let Taken { cq, kept } = taken;
        Queue {
            parked: cq.in_flight_slots().collect(),
            tallies: kept.tallies,
            interrupts: kept.interrupts,
            head_seen: kept.head_seen,
            tails_seen: kept.tails_seen,
            ..Queue::new(cq)
        }
    }
}

impl ControllerQueues {
    /// Its queues, none of which has anything in a source. None: it isn't held, or something has.
    pub(crate) fn keep(&self) -> Option<Vec<QueueKept>> {
        (self.held && self.suspended).then(|| self.keep_all())
    }

    fn keep_all(&self) -> Vec<QueueKept> {
        self.queues.iter().filter(|q| !q.broken).map(Queue::keep).collect()
    }
}

impl Worker {
    /// Fetches nothing, hears no doorbell, begins nothing that waits; `ControllerEvent::Quiet` follows.
    pub(crate) fn hold(&mut self, f: &mut ControllerQueues, at: u32) {
        f.held = true;
        f.suspend(true);
        for q in &mut f.queues {
            let waiting = q.lines.remove(|_| true);
            q.parked.extend(waiting);
        }
        if f.kick_armed {
            self.forget_kick(at);
        }
    }

    /// Asks the sources to give up on what may be repeated.
    pub(crate) fn withdraw(&mut self, f: &mut ControllerQueues, at: u32) {
        let mut chosen = Vec::new();
        for (queue, q) in (0..).zip(&f.queues) {
            let whole = (0..).zip(&q.commands).filter(|(slot, _)| q.cq.command(*slot).is_some());
            let repeatable = whole.filter(|(_, c)| c.io.request.as_ref().is_some_and(is_repeatable));
            chosen.extend(repeatable.map(|(slot, _)| Owner { controller: at, queue, slot }));
        }
        self.give_up(f, |owner| chosen.contains(owner));
    }

    /// It goes on here: what was put off begins.
    pub(crate) fn release(&mut self, f: &mut ControllerQueues, at: u32) {
        f.held = false;
        for queue in 0..f.queues.len() {
            for slot in std::mem::take(&mut f.queues[queue].parked) {
                if let Some(fetched) = f.queues[queue].cq.command(slot) {
                    self.begin(f, at, queue as u32, fetched);
                }
            }
        }
    }

    /// A queue of another process's is this thread's from now on.
    pub(crate) fn take_up(&mut self, f: &mut ControllerQueues, at: u32, taken: Taken) {
        f.know_memory();
        f.queues.push(Queue::taken(taken));
        self.release(f, at);
    }
}
