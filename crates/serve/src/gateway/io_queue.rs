//! A completion queue with its submission queues, as its worker has it: the commands in flight, and what was counted.

use super::command::Command;
use super::controller_shared::ControllerShared;
use super::dma::Map;
use super::handover::state::QueueKept;
use super::stats::{Ends, QueueStats, SubmissionTally};
use crate::namespace::rate_limit_queue::RateLimitQueue;
use crate::namespace::steps::is_repeatable;
use forebay_nvme::transport::pcie::queue::{CompletionQueue, QueueFault, SubmissionQueue};
use forebay_nvme::transport::pcie::registers::Doorbell;

/// A queue as it came from another process.
pub(super) struct Taken {
    pub cq: CompletionQueue,
    pub kept: QueueKept,
}

/// Commands are named by their slot in the completion queue. One that isn't in a source waits for its namespace's limits, or is
/// parked.
pub(super) struct IoQueue {
    pub cq: CompletionQueue,
    /// By slot.
    pub commands: Vec<Command>,
    /// Counters of its submission queues.
    pub tallies: Vec<SubmissionTally>,
    /// MSI-X vectors that were raised.
    pub interrupts: u64,
    /// Commands that wait for their namespace's limits.
    pub lines: RateLimitQueue,
    /// Commands that begin anew once it is held no more, here or in another process.
    parked: Vec<u16>,
    /// Submission queues that are being deleted.
    pub closing: Vec<u16>,
    /// Its memory is out of reach: it does nothing more.
    pub broken: bool,
    /// When to ask again about an interrupt.
    pub interrupt_at: Option<u64>,
    /// Values of doorbells that were acted on: its own, and of each of its submission queues.
    head_seen: u32,
    tails_seen: Vec<(u16, u32)>,
}

impl IoQueue {
    pub(super) fn new(cq: CompletionQueue) -> IoQueue {
        IoQueue {
            commands: (0..cq.slots()).map(|_| Command::default()).collect(),
            cq,
            tallies: Vec::new(),
            interrupts: 0,
            lines: RateLimitQueue::default(),
            parked: Vec::new(),
            closing: Vec::new(),
            broken: false,
            interrupt_at: None,
            head_seen: 0,
            tails_seen: Vec::new(),
        }
    }

    /// Returns the statistics of its submission queues.
    pub(super) fn stats<'a>(
        &'a self,
        shared: &'a ControllerShared,
        thread: usize,
    ) -> impl Iterator<Item = QueueStats> + 'a {
        let of = |sqid: u16| self.tallies.iter().find(|tally| tally.sqid == sqid);
        let both = self.cq.submissions().filter_map(move |queue| Some((queue, of(queue.id())?)));
        both.map(move |(queue, tally)| {
            let mut stats = QueueStats {
                qid: tally.sqid,
                thread: Some(thread as u32),
                entries: queue.entries(),
                in_flight: queue.in_flight().into(),
                doorbells: shared.rings(tally.sqid),
                shadow: queue.has_shadow(),
                interrupts: self.interrupts,
                staged_bytes: tally.staged_bytes,
                counts: tally.counts,
                ends: Some(self.ends(queue)),
                ..QueueStats::default()
            };
            tally.read_latency.add_to(&mut stats.read_latency);
            tally.write_latency.add_to(&mut stats.write_latency);
            stats
        })
    }

    fn ends(&self, queue: &SubmissionQueue) -> Ends {
        let ((sq_head, sq_tail), (cq_head, cq_tail)) = (queue.ends(), self.cq.ends());
        Ends {
            sq_head,
            sq_tail,
            cqid: self.cq.id(),
            cq_entries: self.cq.entries(),
            cq_head,
            cq_tail,
            vector: self.cq.vector(),
            held_back: self.lines.len() as u32,
        }
    }

    fn tally(&mut self, sqid: u16) -> Option<&mut SubmissionTally> {
        self.tallies.iter_mut().find(|tally| tally.sqid == sqid)
    }

    /// A submission queue is deleted: what its doorbell says from now on is nobody's.
    fn forget_doorbell(&mut self, sqid: u16) {
        self.tails_seen.retain(|(known, _)| *known != sqid);
    }

    /// Reads what was written to doorbell registers, or to the page that stands for them.
    pub(super) fn read_doorbells(&mut self, shared: &ControllerShared) -> Result<(), QueueFault> {
        let own = Doorbell::Completion(self.cq.id());
        let value = shared.doorbells.get(own);
        if value != self.head_seen {
            self.head_seen = value;
            self.cq.ring(own, value).map_err(QueueFault::Doorbell)?;
        }
        for (sqid, seen) in &mut self.tails_seen {
            let doorbell = Doorbell::Submission(*sqid);
            let value = shared.doorbells.get(doorbell);
            if value != *seen {
                *seen = value;
                self.cq.ring(doorbell, value).map_err(QueueFault::Doorbell)?;
            }
        }
        Ok(())
    }

    /// Another submission queue of its own, from the host's memory.
    pub(super) fn open(&mut self, map: &Map, queue: SubmissionQueue) -> Result<(), QueueFault> {
        let sqid = queue.id();
        self.forget_doorbell(sqid);
        self.tails_seen.push((sqid, 0));
        self.tallies.retain(|tally| tally.sqid != sqid);
        self.tallies.push(SubmissionTally { sqid, ..SubmissionTally::default() });
        self.cq.open(map, queue)
    }

    /// A submission queue is deleted: nothing more is fetched from it. Returns its commands in flight.
    pub(super) fn close(&mut self, sqid: u16) -> Vec<u16> {
        self.cq.close(sqid);
        self.forget_doorbell(sqid);
        self.closing.push(sqid);
        self.cq.in_flight_of(sqid).collect()
    }

    /// A command that is in the source took this many bytes through memory of ours.
    pub(super) fn count_staged(&mut self, slot: u16, bytes: u64) {
        let Some(fetched) = self.cq.command(slot) else { return };
        if let Some(tally) = self.tally(fetched.sqid) {
            tally.staged_bytes += bytes;
        }
    }

    // Commands that are in no source.

    /// Nothing of it is in a source.
    pub(super) fn is_idle(&self) -> bool {
        usize::from(self.cq.in_flight()) == self.parked.len()
    }

    /// Takes away commands that wait for their limits, or to begin anew.
    pub(super) fn take_waiting(&mut self, chosen: impl Fn(u16) -> bool) -> Vec<u16> {
        let mut gone = self.lines.remove(&chosen);
        gone.extend(self.parked.iter().copied().filter(|slot| chosen(*slot)));
        self.parked.retain(|slot| !chosen(*slot));
        gone
    }

    /// A command that a source gave up on while its queue is held: it begins anew.
    pub(super) fn park(&mut self, slot: u16) {
        self.commands[usize::from(slot)].memory.release();
        self.parked.push(slot);
    }

    /// Commands that wait for their limits begin anew, too.
    pub(super) fn park_waiting(&mut self) {
        let waiting = self.lines.remove(|_| true);
        self.parked.extend(waiting);
    }

    pub(super) fn take_parked(&mut self) -> Vec<u16> {
        std::mem::take(&mut self.parked)
    }

    /// Commands in flight that a source may be asked to give up on, and that may begin anew.
    pub(super) fn repeatable(&self) -> impl Iterator<Item = u16> + '_ {
        let whole = (0..).zip(&self.commands).filter(|(slot, _)| self.cq.command(*slot).is_some());
        whole.filter(|(_, c)| c.io.request.as_ref().is_some_and(is_repeatable)).map(|(slot, _)| slot)
    }

    // In another process.

    pub(super) fn keep(&self) -> QueueKept {
        QueueKept {
            queue: self.cq.state(),
            interrupts: self.interrupts,
            head_seen: self.head_seen,
            tails_seen: self.tails_seen.clone(),
            tallies: self.tallies.clone(),
        }
    }

    /// All its commands are parked.
    pub(super) fn taken(taken: Taken) -> IoQueue {
        let Taken { cq, kept } = taken;
        IoQueue {
            parked: cq.in_flight_slots().collect(),
            tallies: kept.tallies,
            interrupts: kept.interrupts,
            head_seen: kept.head_seen,
            tails_seen: kept.tails_seen,
            ..IoQueue::new(cq)
        }
    }
}
