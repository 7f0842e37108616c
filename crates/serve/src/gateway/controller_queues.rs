//! A controller's part on one worker: the queues that the worker owns, and what it knows of the host's memory.

mod keep;

pub(super) use keep::Taken;

use super::controller_shared::{ControllerEvent, ControllerShared, View};
use super::dma::Map;
use super::io::Command;
use super::stats::{Ends, QueueStats};
use super::worker::{Owner, POLL_AWAKE};
use crate::namespace::executor::Counters;
use crate::namespace::hold::Lines;
use crate::namespace::lane::Lane;
use crate::namespace::stats::Histogram;
use crate::target::stats::Counts;
use forebay_nvme::transport::pcie::queue::{CompletionQueue, QueueFault, SubmissionQueue};
use forebay_nvme::transport::pcie::registers::Doorbell;
use serde::{Deserialize, Serialize};
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Instant;

/// Counters of one submission queue.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tally {
    pub sqid: u16,
    pub counts: Counts,
    pub read_latency: Histogram,
    pub write_latency: Histogram,
    pub staged_bytes: u64,
}

impl Tally {
    pub(super) fn counters(&mut self) -> Counters<'_> {
        Counters {
            counts: &mut self.counts,
            read_latency: &mut self.read_latency,
            write_latency: &mut self.write_latency,
        }
    }
}

/// A completion queue and its commands.
pub(super) struct Queue {
    pub cq: CompletionQueue,
    /// By slot.
    pub commands: Vec<Command>,
    /// Counters of its submission queues.
    pub tallies: Vec<Tally>,
    /// MSI-X vectors that were raised.
    pub interrupts: u64,
    /// Commands that wait for their namespace's limits.
    pub lines: Lines,
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

pub(super) struct ControllerQueues {
    pub shared: Arc<ControllerShared>,
    pub map: Arc<Map>,
    map_generation: u64,
    pub view: Arc<View>,
    view_generation: u64,
    /// Lanes of its namespaces, ascending.
    pub lanes: Vec<(u32, u32)>,
    /// Their places stay as long as commands name them.
    pub queues: Vec<Queue>,
    /// Its queues go, once nothing is in flight.
    pub closing: bool,
    pub suspending: bool,
    suspended: bool,
    /// Another process takes it over: its doorbells aren't heard.
    pub held: bool,
    /// It is looked at in every round.
    pub awake: bool,
    pub active_at: Instant,
    /// Flushes that its shutdown waits for.
    pub flushes: u32,
    /// The kernel watches the eventfd that the client rings.
    pub kick_armed: bool,
    /// By that eventfd, since it was last looked at.
    pub kicked: bool,
    pub page_bytes: u32,
}

impl Queue {
    fn new(cq: CompletionQueue) -> Queue {
        Queue {
            commands: (0..cq.slots()).map(|_| Command::default()).collect(),
            cq,
            tallies: Vec::new(),
            interrupts: 0,
            lines: Lines::default(),
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

    pub(super) fn tally(&mut self, sqid: u16) -> Option<&mut Tally> {
        self.tallies.iter_mut().find(|tally| tally.sqid == sqid)
    }

    /// A submission queue is deleted: what its doorbell says from now on is nobody's.
    pub(super) fn forget_doorbell(&mut self, sqid: u16) {
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
}

impl ControllerQueues {
    pub(super) fn new(shared: Arc<ControllerShared>, now: Instant) -> ControllerQueues {
        ControllerQueues {
            map: Arc::default(),
            map_generation: 0,
            view: Arc::default(),
            view_generation: 0,
            lanes: Vec::new(),
            queues: Vec::new(),
            closing: false,
            suspending: false,
            suspended: false,
            held: false,
            awake: false,
            active_at: now,
            flushes: 0,
            kick_armed: false,
            kicked: false,
            page_bytes: 4096,
            shared,
        }
    }

    /// Takes up mappings and namespaces that changed meanwhile. True: namespaces did.
    pub(super) fn follow(&mut self, lanes: &[Option<Lane<Owner>>]) -> bool {
        self.follow_memory();
        let generation = self.shared.view_generation();
        if self.view_generation == generation {
            return false;
        }
        self.view_generation = generation;
        self.view = self.shared.view();
        let view = &self.view;
        self.lanes.retain(|(nsid, lane)| {
            let there = view.iter().find(|(other, _)| other == nsid).map(|(_, shown)| &shown.volume);
            let lane = lanes.get(*lane as usize).and_then(Option::as_ref);
            there.zip(lane).is_some_and(|(volume, lane)| Arc::ptr_eq(volume, &lane.volume))
        });
        true
    }

    /// Tells the controller's thread what it waits for, once nothing is in the way any more.
    pub(super) fn settle(&mut self) {
        if self.closing && self.queues.iter().all(|q| q.cq.in_flight() == 0) {
            self.closing = false;
            self.queues.clear();
            self.map = Arc::default();
            self.shared.say(ControllerEvent::QueuesClosed);
        }
        for q in &mut self.queues {
            let (cq, shared) = (&mut q.cq, &self.shared);
            q.closing.retain(|sqid| {
                let gone = cq.remove(*sqid);
                if gone {
                    shared.say(ControllerEvent::SubmissionClosed(*sqid));
                }
                !gone
            });
        }
        let idle = || self.queues.iter().all(Queue::is_idle);
        if self.suspending && !self.suspended && !(self.held && self.kick_armed) && idle() {
            self.suspended = true;
            self.shared.say(ControllerEvent::Quiet);
        }
    }

    /// Takes up mappings that changed meanwhile: what a host maps before it rings must be there once its ringing was seen.
    pub(super) fn follow_memory(&mut self) {
        let generation = self.shared.dma.generation();
        if self.map_generation != generation {
            self.map_generation = generation;
            // A controller without queues holds on to nothing.
            self.map = if self.queues.is_empty() { Arc::default() } else { self.shared.dma.map_now() };
        }
    }

    /// A step of a command took this way.
    pub(super) fn staged(&mut self, owner: Owner, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let Some(q) = self.queues.get_mut(owner.queue as usize) else { return };
        let Some(fetched) = q.cq.command(owner.slot) else { return };
        if let Some(tally) = q.tally(fetched.sqid) {
            tally.staged_bytes += bytes;
        }
    }

    pub(super) fn suspend(&mut self, suspending: bool) {
        (self.suspending, self.suspended) = (suspending, false);
    }

    pub(super) fn is_polled(&self, now: Instant) -> bool {
        let lately = now.saturating_duration_since(self.active_at) < POLL_AWAKE;
        self.shared.is_polled() && !self.queues.is_empty() && !self.suspending && lately
    }

    /// Asks the host to ring. False: it was faster.
    pub(super) fn sleep(&mut self) -> bool {
        let mut quiet = true;
        self.each_queue(|q, map| {
            quiet &= q.broken || q.cq.sleep(map)?;
            Ok(())
        });
        quiet
    }

    /// One of its shutdown's flushes is done.
    pub(super) fn flushed(&mut self) {
        self.flushes -= 1;
        if self.flushes == 0 {
            self.shared.say(ControllerEvent::Flushed);
        }
    }

    fn know_memory(&mut self) {
        self.map = self.shared.dma.map_now();
        self.page_bytes = self.shared.page_bytes.load(Ordering::Relaxed);
    }

    pub(super) fn adopt(&mut self, cq: CompletionQueue) {
        self.know_memory();
        // In the place of one that was deleted: commands name a queue by its place.
        match self.queues.iter().position(|q| q.cq.id() == cq.id()) {
            Some(at) => self.queues[at] = Queue::new(cq),
            None => self.queues.push(Queue::new(cq)),
        }
    }

    pub(super) fn open(&mut self, cqid: u16, queue: SubmissionQueue) {
        let sqid = queue.id();
        let Some(at) = self.queues.iter().position(|q| q.cq.id() == cqid) else { return };
        let q = &mut self.queues[at];
        q.forget_doorbell(sqid);
        q.tails_seen.push((sqid, 0));
        q.tallies.retain(|tally| tally.sqid != sqid);
        q.tallies.push(Tally { sqid, ..Tally::default() });
        self.shared.forget_rings(sqid);
        if let Err(fault) = q.cq.open(&*self.map, queue) {
            report_fault(self, at, fault);
        }
    }

    /// A completion queue without submission queues goes; its place is kept for the next of its number.
    pub(super) fn remove(&mut self, cqid: u16) {
        if let Some(q) = self.queues.iter_mut().find(|q| q.cq.id() == cqid) {
            q.broken = true;
        }
        self.shared.say(ControllerEvent::CompletionClosed(cqid));
    }

    pub(super) fn each_queue(&mut self, mut work: impl FnMut(&mut Queue, &Map) -> Result<(), QueueFault>) {
        for at in 0..self.queues.len() {
            if let Err(fault) = work(&mut self.queues[at], &self.map) {
                report_fault(self, at, fault);
            }
        }
    }
}

/// Tells the controller's thread. Where the queue is out of reach nothing more is done with it.
pub(super) fn report_fault(f: &mut ControllerQueues, queue: usize, fault: QueueFault) {
    let fatal = matches!(fault, QueueFault::Memory(_));
    if fatal && std::mem::replace(&mut f.queues[queue].broken, true) {
        return;
    }
    if fatal || !f.shared.faulted.swap(true, Ordering::AcqRel) {
        f.shared.say(ControllerEvent::Fault(fault));
    }
}
