//! One thread of the gateway: it owns I/O queues of controllers, and its own queues of their namespaces.
//!
//! A round looks at what was rung, hands the commands to the sources together, writes completions, and interrupts once
//! for each completion queue. Before it sleeps it asks hosts to ring (EventIdx), looks once more, and waits for
//! whatever comes first: a doorbell, an I/O, a message.

mod ends;
mod sleep;

use super::controller_queues::{report_fault, ControllerQueues, Taken};
use super::controller_shared::ControllerShared;
use super::handover::state::QueueKept;
use super::io::Pages;
use super::stats::QueueStats;
use crate::namespace::lane::{Finished, Lane};
use crate::target::inbox::Inbox;
use crate::target::log::{Level, Log};
use crate::target::stats::NamespaceStats;
use crate::target::thread_pool::{self, Failure, PoolWorker};
use forebay_io::clock;
use forebay_io::reactor::{memlock, Completion, Reactor, RingOptions};
use forebay_io::threads;
use forebay_model::Error;
use forebay_nvme::transport::pcie::queue::{
    Coalescing, CompletionQueue, Interrupt, QueueFault, SubmissionQueue,
};
use forebay_nvme::transport::pcie::shadow::Shadow;
use std::fs::File;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::sync::mpsc::SyncSender;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Places in the ring for what is in flight.
const RING_DEPTH: u32 = 4096;
/// Commands that one completion queue's submission queues may bring in a round, before others have their turn; fewer,
/// where the host's Arbitration Burst says so.
const BATCH: u32 = 64;
/// Payload of files after which a round hands on what it has, where that is seven eighths of what waited, and after which
/// it does so anyway. A processor copies what lies in the page cache while the source takes it: where a round did that for
/// all that a host had asked for, the host slept meanwhile, and the thread slept while the host asked for more. Where it
/// did so for little of much, interrupts cost a tenth of the rate.
const COPIED: u64 = 1 << 20;
const COPIED_MOST: u64 = 8 << 20;
/// Rounds between two calls of the kernel while nothing is under way.
const ROUNDS: u32 = 16;
/// With nothing due, a thread looks up this often.
const FOREVER: Duration = Duration::from_secs(24 * 3600);
/// A polled controller that was idle for this long is polled less often: once in `POLL_EVERY`, which adds at most that
/// to the latency of its next command, and saves most of a core.
pub(super) const POLL_AWAKE: Duration = Duration::from_secs(1);
pub(super) const POLL_EVERY: Duration = Duration::from_micros(100);
/// Time for I/Os to come back when the gateway stops.
pub(super) const STOP: Duration = Duration::from_secs(5);
/// Zeros that Write Zeroes writes at a time, where a source has no such command.
const BLANK_BYTES: usize = 1 << 20;

/// State that a gateway's threads share.
pub(super) struct GatewayShared {
    pub threads: usize,
    /// CPUs that they stay on, in turn; none: anywhere.
    pub cpus: Vec<u32>,
    pub spin: Duration,
    pub log: Log,
    pub began: Instant,
    /// File by which a keeper waits for the end of all rings.
    pub life: Option<Arc<File>>,
    pub failure: Failure,
}

/// A command in flight, as lanes name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Owner {
    pub controller: u32,
    pub queue: u32,
    pub slot: u16,
}

impl Owner {
    /// The flush of a shutdown: no command.
    pub(super) const SHUTDOWN: u16 = u16::MAX;
}

/// For one worker. A controller is named by its `ControllerShared::id`.
pub(super) enum WorkerMessage {
    /// A controller is there.
    Attach(Arc<ControllerShared>),
    /// It is gone; nothing of it is under way.
    Detach(u64),
    OpenCompletion(u64, CompletionQueue),
    OpenSubmission {
        controller: u64,
        cqid: u16,
        queue: SubmissionQueue,
    },
    CloseSubmission {
        controller: u64,
        cqid: u16,
        sqid: u16,
    },
    CloseCompletion {
        controller: u64,
        cqid: u16,
    },
    CloseQueues(u64),
    Abort {
        controller: u64,
        cqid: u16,
        sqid: u16,
        cid: u16,
    },
    Shadow(u64, Shadow),
    Coalescing(u64, Coalescing),
    Suspend(u64),
    Resume(u64),
    /// Another process takes it over: fetch nothing, hear no doorbell, begin nothing that waits.
    Hold(u64),
    /// Give up on what may be begun anew.
    Withdraw(u64),
    /// It stays here after all.
    Release(u64),
    /// Its queues as they are, held.
    Keep(u64, SyncSender<Vec<QueueKept>>),
    /// A queue of another process's.
    TakeUp(u64, Box<Taken>),
    /// Give up on what is in flight, and complete it so.
    Relinquish(u64),
    /// Make durable what was written.
    Flush(u64),
    /// Its memory, its namespaces or their limits changed.
    Look,
    Report(SyncSender<Report>),
    Stop,
}

/// Counters of one worker.
#[derive(Debug, Default)]
pub(super) struct Report {
    /// By the volume's address, which tells volumes apart.
    pub namespaces: Vec<(usize, NamespaceStats)>,
    /// By the controller's `ControllerShared::id`.
    pub queues: Vec<(u64, QueueStats)>,
}

pub(super) struct Worker {
    pub gateway: Arc<GatewayShared>,
    pub number: usize,
    inbox: Arc<Inbox<WorkerMessage>>,
    pub reactor: Reactor,
    token: u32,
    pub controllers: Vec<Option<Box<ControllerQueues>>>,
    pub lanes: Vec<Option<Lane<Owner>>>,
    /// Zeros to write from.
    pub blank: Pages,
    pub now: Instant,
    stop_by: Option<Instant>,
    /// Something was done lately: no sleep before this.
    busy_until: Instant,
    views_changed: bool,
    completions: Vec<Completion>,
    finished: Vec<Finished<Owner>>,
    /// Rounds since the kernel was last called.
    rounds: u32,
}

impl PoolWorker for Worker {
    type Message = WorkerMessage;

    fn inbox(&self) -> Arc<Inbox<WorkerMessage>> {
        self.inbox.clone()
    }

    fn run(mut self) {
        loop {
            self.now = clock::now();
            self.collect();
            self.read_messages();
            self.run_controllers();
            self.run_lanes();
            self.interrupt_all();
            self.retire_lanes();
            let quiet = || self.lanes.iter().flatten().all(Lane::is_idle);
            let failed = self.gateway.failure.heed(&self.reactor);
            if self.stop_by.is_some_and(|by| failed || self.now >= by || quiet()) {
                break;
            }
            self.wait();
        }
        self.let_go();
    }
}

impl Worker {
    /// Must be made by the thread that runs it.
    pub(super) fn new(gateway: Arc<GatewayShared>, number: usize) -> Result<Worker, Error> {
        threads::settle_in(thread_pool::cpu_of(&gateway.cpus, number), None)?;
        let options = RingOptions { depth: RING_DEPTH, ..RingOptions::default() };
        let mut reactor = Reactor::with_ring(options).map_err(|e| {
            let next = "forebay doctor for the reason (sysctl kernel.io_uring_disabled)";
            memlock::refusal("the gateway", &e, next)
        })?;
        if let Some(why) = memlock::short(&reactor).filter(|_| number == 0) {
            gateway.log.say(Level::Info, "short rings", &[("why", why.into())]);
        }
        if let Some(life) = &gateway.life {
            reactor.register_file(life);
        }
        let now = clock::now();
        Ok(Worker {
            inbox: Arc::new(Inbox::new(reactor.waker()?)),
            token: reactor.token(),
            gateway,
            number,
            reactor,
            controllers: Vec::new(),
            lanes: Vec::new(),
            blank: Pages::new(BLANK_BYTES),
            now,
            stop_by: None,
            busy_until: now,
            views_changed: false,
            completions: Vec::new(),
            finished: Vec::new(),
            rounds: 0,
        })
    }

    /// Kicks that came through the ring.
    fn collect(&mut self) {
        self.reactor.take(self.token, &mut self.completions);
        let mut completions = std::mem::take(&mut self.completions);
        for c in completions.drain(..) {
            if let Some(Some(f)) = self.controllers.get_mut(c.tag as usize) {
                f.kick_armed = false;
                f.kicked = true;
                f.awake = true;
            }
        }
        self.completions = completions;
    }

    fn run_controllers(&mut self) {
        for at in 0..self.controllers.len() {
            let Some(mut f) = self.controllers[at].take() else { continue };
            f.awake |= f.shared.rung[self.number].swap(false, Ordering::AcqRel) || f.shared.is_polled();
            self.views_changed |= f.follow(&self.lanes);
            self.arm_kick(&mut f, at as u32);
            if !f.held {
                self.let_through(&mut f, at as u32);
            }
            if f.awake && !f.suspending {
                self.look(&mut f, at as u32);
            }
            f.settle();
            self.controllers[at] = Some(f);
        }
    }

    /// Has the kernel watch the eventfd that the client rings.
    fn arm_kick(&mut self, f: &mut ControllerQueues, at: u32) {
        if f.kick_armed || f.held || f.queues.is_empty() {
            return;
        }
        self.reactor.hear(self.token, at, f.shared.kicks[self.number].as_fd());
        f.kick_armed = true;
    }

    /// Takes new commands from all queues of a controller.
    fn look(&mut self, f: &mut ControllerQueues, at: u32) {
        for queue in 0..f.queues.len() {
            let mut taken = 0;
            if let Err(fault) = self.look_at(f, at, queue as u32, &mut taken) {
                report_fault(f, queue, fault);
            }
            if taken > 0 {
                f.active_at = self.now;
                self.busy_until = self.now + self.gateway.spin;
            }
        }
        f.kicked = false;
    }

    fn look_at(
        &mut self,
        f: &mut ControllerQueues,
        at: u32,
        queue: u32,
        taken: &mut u32,
    ) -> Result<(), QueueFault> {
        let q = &mut f.queues[queue as usize];
        if q.broken || f.closing {
            return Ok(());
        }
        q.read_doorbells(&f.shared)?;
        q.cq.poll(&*f.map)?;
        f.follow_memory();
        let mut copied = 0;
        let share = f.queues[queue as usize].cq.waits() * 7 / 8;
        let batch = f.shared.burst.load(Ordering::Relaxed).min(BATCH);
        while *taken < batch && (copied < COPIED || *taken < share && copied < COPIED_MOST) {
            let Some(fetched) = f.queues[queue as usize].cq.fetch(&*f.map)? else { break };
            *taken += 1;
            if f.kicked && *taken == 1 {
                f.shared.rang(fetched.sqid);
            }
            let slot = fetched.slot;
            self.begin(f, at, queue, fetched);
            copied += self.copied(f, queue, slot);
        }
        Ok(())
    }

    /// Returns the bytes of a command that the source may copy at once.
    fn copied(&self, f: &ControllerQueues, queue: u32, slot: u16) -> u64 {
        let command = &f.queues[queue as usize].commands[usize::from(slot)];
        let lane = self.lanes.get(command.io.lane as usize).and_then(Option::as_ref);
        let over_files = lane.is_some_and(|lane| lane.over_files);
        command.io.request.filter(|_| over_files).map_or(0, |request| request.transfer.bytes().into())
    }

    fn run_lanes(&mut self) {
        // What finishes at once (nil, pages in the cache) is answered in the same round.
        for _ in 0..2 {
            for lane in self.lanes.iter_mut().flatten() {
                lane.turn(&mut self.reactor, &mut self.finished);
            }
            if self.finished.is_empty() {
                break;
            }
            self.now = clock::now();
            let mut finished = std::mem::take(&mut self.finished);
            finished.drain(..).for_each(|step| self.finish_step(step));
            self.finished = finished;
            self.busy_until = self.now + self.gateway.spin;
            let (number, now) = (self.number, self.now);
            self.lanes.iter_mut().flatten().for_each(|lane| lane.publish(number, now));
        }
    }

    fn finish_step(&mut self, step: Finished<Owner>) {
        let staged_bytes = step.staged_bytes();
        let Finished { owner, result, .. } = step;
        let at = owner.controller as usize;
        let Some(mut f) = self.controllers.get_mut(at).and_then(Option::take) else { return };
        (f.awake, f.active_at) = (true, self.now);
        if owner.slot == Owner::SHUTDOWN {
            f.flushed();
        } else {
            f.staged(owner, staged_bytes);
            self.moved(&mut f, owner, result);
        }
        f.settle();
        self.controllers[at] = Some(f);
    }

    fn interrupt_all(&mut self) {
        let now_us = self.now.saturating_duration_since(self.gateway.began).as_micros() as u64;
        for f in self.controllers.iter_mut().flatten() {
            for q in f.queues.iter_mut().filter(|q| !q.broken) {
                q.interrupt_at = match q.cq.interrupt(now_us) {
                    Interrupt::Now(vector) => {
                        q.interrupts += 1;
                        f.shared.vectors.signal(vector);
                        None
                    }
                    Interrupt::At(us) => Some(us),
                    Interrupt::None => None,
                };
            }
        }
    }

    fn read_messages(&mut self) {
        for message in self.inbox.take() {
            self.busy_until = self.now + self.gateway.spin;
            match message {
                WorkerMessage::Attach(shared) => self.attach(shared),
                WorkerMessage::Detach(id) => self.detach(id),
                WorkerMessage::Look => self.controllers.iter_mut().flatten().for_each(|f| {
                    f.awake = true;
                    f.queues.iter_mut().for_each(|q| q.lines.look_again());
                }),
                WorkerMessage::Report(to) => {
                    let _ = to.send(self.report());
                }
                WorkerMessage::Stop => self.stop_by = Some(self.now + STOP),
                WorkerMessage::OpenCompletion(id, cq) => self.with_controller(id, |_, f, _| f.adopt(cq)),
                WorkerMessage::OpenSubmission { controller, cqid, queue } => {
                    self.with_controller(controller, |_, f, _| f.open(cqid, queue));
                }
                WorkerMessage::CloseSubmission { controller, cqid, sqid } => {
                    self.with_controller(controller, |worker, f, at| {
                        worker.close_submission(f, at, cqid, sqid)
                    });
                }
                WorkerMessage::CloseCompletion { controller, cqid } => {
                    self.with_controller(controller, |_, f, _| f.remove(cqid))
                }
                WorkerMessage::CloseQueues(id) => self.with_controller(id, Worker::close_queues),
                WorkerMessage::Abort { controller, cqid, sqid, cid } => {
                    self.with_controller(controller, |worker, f, at| worker.abort(f, at, cqid, sqid, cid));
                }
                WorkerMessage::Shadow(id, shadow) => self.with_controller(id, |_, f, _| {
                    f.each_queue(|q, map| q.cq.set_shadow(map, shadow));
                }),
                WorkerMessage::Coalescing(id, coalescing) => self.with_controller(id, |_, f, _| {
                    f.queues.iter_mut().for_each(|q| q.cq.set_coalescing(coalescing.clone()));
                }),
                WorkerMessage::Suspend(id) => self.with_controller(id, |_, f, _| f.suspend(true)),
                WorkerMessage::Resume(id) => self.with_controller(id, |_, f, _| f.suspend(false)),
                WorkerMessage::Hold(id) => self.with_controller(id, Worker::hold),
                WorkerMessage::Withdraw(id) => self.with_controller(id, Worker::withdraw),
                WorkerMessage::Release(id) => self.with_controller(id, Worker::release),
                WorkerMessage::Keep(id, to) => self.with_controller(id, |_, f, _| {
                    let _ = f.keep().map(|queues| to.send(queues));
                }),
                WorkerMessage::TakeUp(id, taken) => {
                    self.with_controller(id, |worker, f, at| worker.take_up(f, at, *taken));
                }
                WorkerMessage::Relinquish(id) => self.with_controller(id, |worker, f, at| {
                    worker.give_up(f, |owner| owner.controller == at && owner.slot != Owner::SHUTDOWN);
                }),
                WorkerMessage::Flush(id) => self.with_controller(id, Worker::flush),
            }
        }
    }

    /// Works on the controller with that name, if it is there.
    fn with_controller(&mut self, id: u64, work: impl FnOnce(&mut Worker, &mut ControllerQueues, u32)) {
        let is = |f: &Option<Box<ControllerQueues>>| f.as_ref().is_some_and(|f| f.shared.id == id);
        let Some(at) = self.controllers.iter().position(is) else { return };
        let mut f = self.controllers[at].take().expect("it was just found");
        self.views_changed |= f.follow(&self.lanes);
        work(self, &mut f, at as u32);
        f.awake = true;
        f.settle();
        self.controllers[at] = Some(f);
    }

    fn attach(&mut self, shared: Arc<ControllerShared>) {
        let queues = Some(Box::new(ControllerQueues::new(shared, self.now)));
        match self.controllers.iter().position(Option::is_none) {
            Some(at) => self.controllers[at] = queues,
            None => self.controllers.push(queues),
        }
        self.views_changed = true;
    }

    fn detach(&mut self, id: u64) {
        let is = |f: &Option<Box<ControllerQueues>>| f.as_ref().is_some_and(|f| f.shared.id == id);
        let Some(at) = self.controllers.iter().position(is) else { return };
        let f = self.controllers[at].take().expect("it was just found");
        if f.kick_armed {
            // Its completion finds nobody, or wakes somebody for nothing.
            self.forget_kick(at as u32);
        }
        self.views_changed = true;
    }

    fn report(&mut self) -> Report {
        let mut report = Report::default();
        for lane in self.lanes.iter().flatten() {
            let mut stats = NamespaceStats { nsid: lane.volume.nsid, ..NamespaceStats::default() };
            lane.add_to(&mut stats);
            report.namespaces.push((Arc::as_ptr(&lane.volume) as usize, stats));
        }
        for f in self.controllers.iter().flatten() {
            let all = f.queues.iter().filter(|q| !q.broken).flat_map(|q| q.stats(&f.shared, self.number));
            report.queues.extend(all.map(|one| (f.shared.id, one)));
        }
        report
    }

    pub(super) fn now_ns(&self) -> u64 {
        self.now.saturating_duration_since(self.gateway.began).as_nanos() as u64
    }

    pub(super) fn say(&self, level: Level, what: &'static str, f: &ControllerQueues, why: String) {
        let fields = [("controller", f.shared.name.clone().into()), ("why", why.into())];
        self.gateway.log.say(level, what, &fields);
    }
}
