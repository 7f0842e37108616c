//! A controller's part on one worker: the queues that the worker owns, and what it knows of the host's memory.

mod io;

use super::command::Owner;
use super::controller_shared::{ControllerEvent, ControllerShared, View, POLL_AWAKE, POLL_EVERY};
use super::dma::Map;
use super::handover::state::QueueKept;
use super::io_queue::{IoQueue, Taken};
use super::resources::ThreadResources;
use super::stats::QueueStats;
use crate::namespace::namespace_queue::{Finished, NamespaceQueue};
use crate::namespace::queues::QueueTable;
use crate::namespace::steps::FLUSH;
use crate::target::log::Level;
use forebay_io::{Fault, Reactor};
use forebay_nvme::feature::Coalescing;
use forebay_nvme::status::{Code, Status};
use forebay_nvme::transport::pcie::queue::{
    CompletionQueue, Fetched, Interrupt, QueueFault, SubmissionQueue,
};
use forebay_nvme::transport::pcie::shadow::Shadow;
use io::IoCommand;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Commands that one completion queue's submission queues may bring in a round, before others have their turn; fewer,
/// where the host's Arbitration Burst says so.
const BATCH: u32 = 64;
/// Payload of files after which a round hands on what it has, where that is seven eighths of what waited, and after which
/// it does so anyway. A processor copies what lies in the page cache while the source takes it: where a round did that for
/// all that a host had asked for, the host slept meanwhile, and the thread slept while the host asked for more. Where it
/// did so for little of much, interrupts cost a tenth of the rate.
const COPIED: u64 = 1 << 20;
const COPIED_MOST: u64 = 8 << 20;

/// What its controller's thread asks for is reported by a `ControllerEvent` once it is so: `report_quiet` sees to that after
/// each thing that was done.
pub(super) struct ControllerQueues {
    pub shared: Arc<ControllerShared>,
    /// Among its worker's.
    number: u32,
    map: Arc<Map>,
    map_generation: u64,
    view: Arc<View>,
    view_generation: u64,
    /// The number of each namespace's queue that it uses, by nsid, ascending.
    namespace_queues: Vec<(u32, u32)>,
    /// Their places stay as long as commands name them.
    queues: Vec<IoQueue>,
    /// Its queues go, once nothing is in flight.
    closing: bool,
    suspending: bool,
    suspended: bool,
    /// Another process takes it over: its doorbells aren't heard.
    held: bool,
    /// It is looked at in every round.
    awake: bool,
    active_at: Instant,
    /// Flushes that its shutdown waits for.
    flushes: u32,
    /// The kernel watches the eventfd that the client rings.
    kick_armed: bool,
    /// By that eventfd, since it was last looked at.
    kicked: bool,
    page_bytes: u32,
}

impl ControllerQueues {
    pub(super) fn new(shared: Arc<ControllerShared>, number: u32, now: Instant) -> ControllerQueues {
        ControllerQueues {
            shared,
            number,
            map: Arc::default(),
            map_generation: 0,
            view: Arc::default(),
            view_generation: 0,
            namespace_queues: Vec::new(),
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
        }
    }

    fn owner(&self, queue: usize, slot: u16) -> Owner {
        Owner { controller: self.number, queue: queue as u32, slot }
    }

    // A round.

    /// Takes up mappings and namespaces that changed meanwhile. True: namespaces did.
    pub(super) fn follow(&mut self, queues: &QueueTable<Owner>) -> bool {
        self.follow_memory();
        let generation = self.shared.view_generation();
        if self.view_generation == generation {
            return false;
        }
        self.view_generation = generation;
        self.view = self.shared.view();
        let view = &self.view;
        self.namespace_queues.retain(|(nsid, number)| {
            let there = view.iter().find(|(other, _)| other == nsid).map(|(_, shown)| &shown.volume);
            let queue = queues.get(*number);
            there.zip(queue).is_some_and(|(volume, queue)| Arc::ptr_eq(volume, &queue.volume))
        });
        true
    }

    /// Takes up mappings that changed meanwhile: what a host maps before it rings must be there once its ringing was seen.
    fn follow_memory(&mut self) {
        let generation = self.shared.dma.generation();
        if self.map_generation != generation {
            self.map_generation = generation;
            // A controller without queues holds on to nothing.
            self.map = if self.queues.is_empty() { Arc::default() } else { self.shared.dma.map_now() };
        }
    }

    fn know_memory(&mut self) {
        self.map = self.shared.dma.map_now();
        self.page_bytes = self.shared.page_bytes.load(Ordering::Relaxed);
    }

    /// Takes new commands, if its client rang or is looked at anyway, and those whose time has come.
    pub(super) fn run(&mut self, thread: &mut ThreadResources) {
        let rung = &self.shared.rung[thread.number];
        self.awake |= rung.swap(false, Ordering::AcqRel) || self.shared.is_polled();
        self.arm_kick(thread);
        if !self.held {
            self.let_through(thread);
        }
        if self.awake && !self.suspending {
            self.fetch_all(thread);
        }
        self.report_quiet();
    }

    /// Has the kernel watch the eventfd that the client rings.
    fn arm_kick(&mut self, thread: &mut ThreadResources) {
        if self.kick_armed || self.held || self.queues.is_empty() {
            return;
        }
        let kick = self.shared.kicks[thread.number].as_fd();
        thread.reactor.hear(thread.token, self.number, kick);
        self.kick_armed = true;
    }

    /// The client rang by that eventfd, or the kernel watches it no longer.
    pub(super) fn hear_kick(&mut self) {
        (self.kick_armed, self.kicked, self.awake) = (false, true, true);
    }

    /// The kernel watches its eventfd no longer, once that completes.
    fn forget_kick(&self, reactor: &mut Reactor, token: u32) {
        if self.kick_armed {
            reactor.cancel(token, self.number);
        }
    }

    /// Carries out commands whose namespaces' limits let them through now.
    fn let_through(&mut self, thread: &mut ThreadResources) {
        let now_ns = thread.now_ns();
        for queue in 0..self.queues.len() {
            while let Some(slot) = self.queues[queue].lines.next(now_ns) {
                let Some(Fetched { sqe, .. }) = self.queues[queue].cq.command(slot) else { continue };
                let owner = self.owner(queue, slot);
                IoCommand { c: self, thread, owner }.carry_out(&sqe);
                self.awake = true;
            }
        }
    }

    /// Takes new commands from all queues.
    fn fetch_all(&mut self, thread: &mut ThreadResources) {
        for queue in 0..self.queues.len() {
            let mut taken = 0;
            if let Err(fault) = self.look_at(thread, queue, &mut taken) {
                self.report_fault(queue, fault);
            }
            if taken > 0 {
                self.active_at = thread.now;
                thread.mark_busy();
            }
        }
        self.kicked = false;
    }

    fn look_at(
        &mut self,
        thread: &mut ThreadResources,
        queue: usize,
        taken: &mut u32,
    ) -> Result<(), QueueFault> {
        let q = &mut self.queues[queue];
        if q.broken || self.closing {
            return Ok(());
        }
        q.read_doorbells(&self.shared)?;
        q.cq.poll(&*self.map)?;
        self.follow_memory();
        let mut copied = 0;
        let share = self.queues[queue].cq.waits() * 7 / 8;
        let batch = self.shared.burst.load(Ordering::Relaxed).min(BATCH);
        while *taken < batch && (copied < COPIED || *taken < share && copied < COPIED_MOST) {
            let Some(fetched) = self.queues[queue].cq.fetch(&*self.map)? else { break };
            *taken += 1;
            if self.kicked && *taken == 1 {
                self.shared.rang(fetched.sqid);
            }
            let owner = self.owner(queue, fetched.slot);
            let mut command = IoCommand { c: self, thread, owner };
            command.begin(&fetched.sqe);
            copied += command.copied_bytes();
        }
        Ok(())
    }

    /// The source is done with a step of a command, or of a shutdown.
    pub(super) fn finished(&mut self, thread: &mut ThreadResources, step: Finished<Owner>) {
        (self.awake, self.active_at) = (true, thread.now);
        let staged_bytes = step.staged_bytes();
        let Finished { owner, result, .. } = step;
        if owner.slot == Owner::SHUTDOWN {
            self.flushed();
        } else {
            if let Some(q) = self.queues.get_mut(owner.queue as usize).filter(|_| staged_bytes > 0) {
                q.count_staged(owner.slot, staged_bytes);
            }
            IoCommand { c: self, thread, owner }.moved(result);
        }
        self.report_quiet();
    }

    /// Interrupts its host once for each completion queue that has news, or finds out when it will.
    pub(super) fn interrupt(&mut self, now_us: u64) {
        for q in self.queues.iter_mut().filter(|q| !q.broken) {
            q.interrupt_at = match q.cq.interrupt(now_us) {
                Interrupt::Now(vector) => {
                    q.interrupts += 1;
                    self.shared.vectors.signal(vector);
                    None
                }
                Interrupt::At(us) => Some(us),
                Interrupt::None => None,
            };
        }
    }

    /// Tells the controller's thread what it waits for, once nothing is in the way any more.
    pub(super) fn report_quiet(&mut self) {
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
        let idle = || self.queues.iter().all(IoQueue::is_idle);
        if self.suspending && !self.suspended && !(self.held && self.kick_armed) && idle() {
            self.suspended = true;
            self.shared.say(ControllerEvent::Quiet);
        }
    }

    /// Tells the controller's thread. Where the queue is out of reach nothing more is done with it.
    fn report_fault(&mut self, queue: usize, fault: QueueFault) {
        let fatal = matches!(fault, QueueFault::Memory(_));
        if fatal && std::mem::replace(&mut self.queues[queue].broken, true) {
            return;
        }
        if fatal || !self.shared.faulted.swap(true, Ordering::AcqRel) {
            self.shared.say(ControllerEvent::Fault(fault));
        }
    }

    // Sleep.

    pub(super) fn is_awake(&self) -> bool {
        self.awake
    }

    pub(super) fn wake(&mut self) {
        self.awake = true;
    }

    /// It is looked at without a pause.
    pub(super) fn is_polled(&self, now: Instant) -> bool {
        let lately = now.saturating_duration_since(self.active_at) < POLL_AWAKE;
        self.shared.is_polled() && !self.queues.is_empty() && !self.suspending && lately
    }

    /// Asks the host to ring, where it was awake. False: it was faster.
    pub(super) fn fall_asleep(&mut self) -> bool {
        if !std::mem::take(&mut self.awake) || self.suspending || self.closing {
            return true;
        }
        let mut quiet = true;
        self.each_queue(|q, map| {
            quiet &= q.broken || q.cq.sleep(map)?;
            Ok(())
        });
        self.awake = !quiet;
        quiet
    }

    /// When to wake for it though nothing comes. `began`: when the gateway did.
    pub(super) fn next_due(&self, began: Instant, now: Instant) -> Option<Instant> {
        let interrupts = self.queues.iter().filter_map(|q| q.interrupt_at).map(Duration::from_micros);
        let lines = self.queues.iter().filter_map(|q| q.lines.due()).map(Duration::from_nanos);
        let poll = self.shared.is_polled() && !self.queues.is_empty();
        let poll = poll.then(|| now + POLL_EVERY);
        interrupts.chain(lines).map(|since| began + since).chain(poll).min()
    }

    // Queues come and go.

    fn find(&self, cqid: u16) -> Option<usize> {
        self.queues.iter().position(|q| q.cq.id() == cqid)
    }

    pub(super) fn open_completion(&mut self, cq: CompletionQueue) {
        self.know_memory();
        // In the place of one that was deleted: commands name a queue by its place.
        match self.find(cq.id()) {
            Some(at) => self.queues[at] = IoQueue::new(cq),
            None => self.queues.push(IoQueue::new(cq)),
        }
    }

    pub(super) fn open_submission(&mut self, cqid: u16, queue: SubmissionQueue) {
        let Some(at) = self.find(cqid) else { return };
        self.shared.forget_rings(queue.id());
        if let Err(fault) = self.queues[at].open(&self.map, queue) {
            self.report_fault(at, fault);
        }
    }

    /// A completion queue without submission queues goes; its place is kept for the next of its number.
    pub(super) fn close_completion(&mut self, cqid: u16) {
        if let Some(at) = self.find(cqid) {
            self.queues[at].broken = true;
        }
        self.shared.say(ControllerEvent::CompletionClosed(cqid));
    }

    /// Stops fetching from a submission queue that is deleted, and asks sources to give up on what it has.
    pub(super) fn close_submission(&mut self, thread: &mut ThreadResources, cqid: u16, sqid: u16) {
        let Some(at) = self.find(cqid) else {
            return self.shared.say(ControllerEvent::SubmissionClosed(sqid));
        };
        let slots = self.queues[at].close(sqid);
        let here = (self.number, at as u32);
        let whose = |owner: &Owner| (owner.controller, owner.queue) == here && slots.contains(&owner.slot);
        self.turn_away(thread, whose);
        self.give_up(thread, whose);
    }

    /// The controller is reset: nothing is fetched or completed any more.
    pub(super) fn close_all(&mut self, thread: &mut ThreadResources) {
        self.closing = true;
        self.turn_away(thread, |_| true);
        self.relinquish(thread);
    }

    pub(super) fn set_shadow(&mut self, shadow: Shadow) {
        self.each_queue(|q, map| q.cq.set_shadow(map, shadow));
    }

    pub(super) fn set_coalescing(&mut self, coalescing: &Coalescing) {
        self.queues.iter_mut().for_each(|q| q.cq.set_coalescing(coalescing.clone()));
    }

    fn each_queue(&mut self, mut work: impl FnMut(&mut IoQueue, &Map) -> Result<(), QueueFault>) {
        for at in 0..self.queues.len() {
            if let Err(fault) = work(&mut self.queues[at], &self.map) {
                self.report_fault(at, fault);
            }
        }
    }

    /// It goes: nothing of it is under way.
    pub(super) fn detach(self, thread: &mut ThreadResources) {
        // The kick's completion finds nobody, or wakes somebody for nothing.
        self.forget_kick(&mut thread.reactor, thread.token);
    }

    // Commands are given up.

    pub(super) fn abort(&mut self, thread: &mut ThreadResources, cqid: u16, sqid: u16, cid: u16) {
        let found = self.find(cqid).and_then(|at| self.queues[at].cq.find(sqid, cid).map(|slot| (at, slot)));
        let Some((at, slot)) = found else {
            return self.shared.say(ControllerEvent::Aborted { sqid, cid, aborted: false });
        };
        self.queues[at].commands[usize::from(slot)].abort = true;
        let owner = self.owner(at, slot);
        self.turn_away(thread, |other| *other == owner);
        self.give_up(thread, |other| *other == owner);
    }

    /// Gives up on all that is in a source, and completes it so.
    pub(super) fn relinquish(&mut self, thread: &mut ThreadResources) {
        let number = self.number;
        self.give_up(thread, |owner| owner.controller == number && owner.slot != Owner::SHUTDOWN);
    }

    /// Asks the sources to give up on commands; those that they hadn't got are over.
    fn give_up(&mut self, thread: &mut ThreadResources, whose: impl Fn(&Owner) -> bool) {
        for owner in thread.queues.abandon(whose, &mut thread.reactor) {
            IoCommand { c: self, thread, owner }.moved(Err(Fault::errno(libc::ECANCELED)));
        }
    }

    /// Ends commands that are in no source: they wait.
    fn turn_away(&mut self, thread: &mut ThreadResources, whose: impl Fn(&Owner) -> bool) {
        for queue in 0..self.queues.len() {
            let owner = |slot| Owner { controller: self.number, queue: queue as u32, slot };
            for slot in self.queues[queue].take_waiting(|slot| whose(&owner(slot))) {
                let q = &mut self.queues[queue];
                let Some(Fetched { sqid, .. }) = q.cq.command(slot) else { continue };
                if self.closing {
                    q.cq.forget(slot);
                    continue;
                }
                let deleted = q.closing.contains(&sqid);
                let code = if deleted { Code::ABORTED_SQ_DELETION } else { Code::ABORT_REQUESTED };
                let owner = self.owner(queue, slot);
                IoCommand { c: self, thread, owner }.finish(Status::again(code));
            }
        }
    }

    // Namespaces.

    /// The number of the thread's queue of a namespace, which is opened if it isn't. None: there is no such namespace.
    fn open_namespace(&mut self, thread: &mut ThreadResources, nsid: u32) -> Result<Option<u32>, Status> {
        let here = self.namespace_queues.binary_search_by_key(&nsid, |(nsid, _)| *nsid);
        let place = match here {
            Ok(at) => return Ok(Some(self.namespace_queues[at].1)),
            Err(place) => place,
        };
        let Ok(at) = self.view.binary_search_by_key(&nsid, |(nsid, _)| *nsid) else { return Ok(None) };
        let volume = self.view[at].1.volume.clone();
        let number = match thread.queues.number_of(&volume) {
            Some(number) => number,
            None => {
                let opened = thread.queues.open(volume, self.shared.transfer_bytes_max, &mut thread.reactor);
                opened.map_err(|e| {
                    thread.say(Level::Error, "source not opened", &self.shared.name, e.to_string());
                    Status::again(Code::NAMESPACE_NOT_READY)
                })?
            }
        };
        if let Some(queue) = thread.queues.get_mut(number) {
            queue.retired = false;
        }
        self.namespace_queues.insert(place, (nsid, number));
        Ok(Some(number))
    }

    /// It uses the namespace's queue of that number.
    pub(super) fn uses(&self, number: u32) -> bool {
        self.namespace_queues.iter().any(|(_, used)| *used == number)
    }

    /// Limits may be others now.
    pub(super) fn look_again(&mut self) {
        self.awake = true;
        self.queues.iter_mut().for_each(|q| q.lines.look_again());
    }

    /// Everything that was written to its namespaces is made durable; `ControllerEvent::Flushed` follows.
    pub(super) fn flush(&mut self, thread: &mut ThreadResources) {
        let view = self.view.clone();
        let owner = self.owner(0, Owner::SHUTDOWN);
        for (nsid, _) in view.iter().filter(|(_, shown)| shown.volume.write_cache) {
            if let Ok(Some(number)) = self.open_namespace(thread, *nsid) {
                let queue: &mut NamespaceQueue<Owner> =
                    thread.queues.get_mut(number).expect("it was just found");
                queue.start(owner, FLUSH, &mut thread.reactor);
                self.flushes += 1;
            }
        }
        if self.flushes == 0 {
            self.shared.say(ControllerEvent::Flushed);
        }
    }

    fn flushed(&mut self) {
        self.flushes -= 1;
        if self.flushes == 0 {
            self.shared.say(ControllerEvent::Flushed);
        }
    }

    // Stood still, and taken over by another process.

    /// Fetches nothing; `ControllerEvent::Quiet` follows once nothing is in a source.
    pub(super) fn suspend(&mut self, suspending: bool) {
        (self.suspending, self.suspended) = (suspending, false);
    }

    /// Fetches nothing, hears no doorbell, begins nothing that waits; `ControllerEvent::Quiet` follows.
    pub(super) fn hold(&mut self, thread: &mut ThreadResources) {
        self.held = true;
        self.suspend(true);
        self.queues.iter_mut().for_each(IoQueue::park_waiting);
        self.forget_kick(&mut thread.reactor, thread.token);
    }

    /// Asks the sources to give up on what may be repeated.
    pub(super) fn withdraw(&mut self, thread: &mut ThreadResources) {
        let here = &*self;
        let of =
            |(at, q): (usize, &IoQueue)| q.repeatable().map(|slot| here.owner(at, slot)).collect::<Vec<_>>();
        let chosen: Vec<Owner> = here.queues.iter().enumerate().flat_map(of).collect();
        self.give_up(thread, |owner| chosen.contains(owner));
    }

    /// It goes on here: what was put off begins.
    pub(super) fn release(&mut self, thread: &mut ThreadResources) {
        self.held = false;
        for queue in 0..self.queues.len() {
            for slot in self.queues[queue].take_parked() {
                if let Some(Fetched { sqe, .. }) = self.queues[queue].cq.command(slot) {
                    let owner = self.owner(queue, slot);
                    IoCommand { c: self, thread, owner }.begin(&sqe);
                }
            }
        }
    }

    /// Its queues, none of which has anything in a source. None: it isn't held, or something has.
    pub(super) fn keep(&self) -> Option<Vec<QueueKept>> {
        let whole = self.queues.iter().filter(|q| !q.broken);
        (self.held && self.suspended).then(|| whole.map(IoQueue::keep).collect())
    }

    /// A queue of another process's is this thread's from now on.
    pub(super) fn take_up(&mut self, thread: &mut ThreadResources, taken: Taken) {
        self.know_memory();
        self.queues.push(IoQueue::taken(taken));
        self.release(thread);
    }

    /// Statistics of its submission queues at this thread.
    pub(super) fn stats(&self, thread: usize) -> impl Iterator<Item = QueueStats> + '_ {
        let whole = self.queues.iter().filter(|q| !q.broken);
        whole.flat_map(move |q| q.stats(&self.shared, thread))
    }
}
