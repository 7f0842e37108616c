//! One thread of the gateway: it owns I/O queues of controllers, and its own queues of their namespaces.
//!
//! A round looks at what was rung, hands the commands to the sources together, writes completions, and interrupts once
//! for each completion queue. Before it sleeps it asks hosts to ring (EventIdx), looks once more, and waits for
//! whatever comes first: a doorbell, an I/O, a message.

use super::command::{Owner, Pages};
use super::controller_queues::ControllerQueues;
use super::controller_shared::ControllerShared;
use super::gateway_shared::GatewayShared;
use super::handover::state::QueueKept;
use super::io_queue::Taken;
use super::resources::ThreadResources;
use super::stats::QueueStats;
use crate::namespace::namespace_queue::Finished;
use crate::namespace::queues::QueueTable;
use crate::target::inbox::Inbox;
use crate::target::log::Level;
use crate::target::stats::NamespaceStats;
use crate::target::thread_pool::{self, PoolWorker};
use forebay_io::{
    memlock_refusal, memlock_shortage, monotonic_now, settle_thread_in, Reactor, RingCompletion, RingOptions,
};
use forebay_model::Error;
use forebay_nvme::feature::Coalescing;
use forebay_nvme::transport::pcie::queue::{CompletionQueue, SubmissionQueue};
use forebay_nvme::transport::pcie::shadow::Shadow;
use std::sync::mpsc::SyncSender;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Places in the ring for what is in flight.
const RING_DEPTH: u32 = 4096;
/// Rounds between two calls of the kernel while nothing is under way.
const ROUNDS: u32 = 16;
/// With nothing due, a thread looks up this often.
const FOREVER: Duration = Duration::from_secs(24 * 3600);
/// Time for I/Os to come back when the gateway stops.
pub(super) const STOP: Duration = Duration::from_secs(5);
/// Zeros that Write Zeroes writes at a time, where a source has no such command.
const BLANK_BYTES: usize = 1 << 20;

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
    Recheck,
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
    inbox: Arc<Inbox<WorkerMessage>>,
    /// By number.
    controllers: Vec<Option<Box<ControllerQueues>>>,
    /// All else that a controller uses.
    thread: ThreadResources,
    stop_by: Option<Instant>,
    /// Queues of namespaces may be used by nobody.
    views_changed: bool,
    /// Rounds since the kernel was last called.
    rounds: u32,
    // Empty between uses.
    completions: Vec<RingCompletion>,
    finished: Vec<Finished<Owner>>,
}

impl PoolWorker for Worker {
    type Message = WorkerMessage;

    fn inbox(&self) -> Arc<Inbox<WorkerMessage>> {
        self.inbox.clone()
    }

    fn run(mut self) {
        loop {
            self.thread.now = monotonic_now();
            self.collect();
            self.read_messages();
            self.run_controllers();
            self.run_queues();
            let now_us = self.thread.now_us();
            self.controllers.iter_mut().flatten().for_each(|c| c.interrupt(now_us));
            self.retire_queues();
            let failed = self.thread.gateway.failure.heed(&self.thread.reactor);
            let over = |by| failed || self.thread.now >= by || self.thread.queues.is_idle();
            if self.stop_by.is_some_and(over) {
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
        settle_thread_in(thread_pool::cpu_of(&gateway.cpus, number), None)?;
        let options = RingOptions { depth: RING_DEPTH, ..RingOptions::default() };
        let mut reactor = Reactor::with_ring(options).map_err(|e| {
            let next = "forebay doctor for the reason (sysctl kernel.io_uring_disabled)";
            memlock_refusal("the gateway", &e, next)
        })?;
        if let Some(why) = memlock_shortage(&reactor).filter(|_| number == 0) {
            gateway.log.say(Level::Info, "short rings", &[("why", why.into())]);
        }
        if let Some(life) = &gateway.life {
            reactor.register_file(life);
        }
        let now = monotonic_now();
        Ok(Worker {
            inbox: Arc::new(Inbox::new(reactor.waker()?)),
            controllers: Vec::new(),
            thread: ThreadResources {
                token: reactor.token(),
                gateway,
                number,
                reactor,
                queues: QueueTable::new(number),
                blank: Pages::new(BLANK_BYTES),
                now,
                busy_until: now,
            },
            stop_by: None,
            views_changed: false,
            rounds: 0,
            completions: Vec::new(),
            finished: Vec::new(),
        })
    }

    // A round.

    /// Kicks that came through the ring.
    fn collect(&mut self) {
        self.thread.reactor.take(self.thread.token, &mut self.completions);
        for completion in self.completions.drain(..) {
            if let Some(Some(c)) = self.controllers.get_mut(completion.tag as usize) {
                c.hear_kick();
            }
        }
    }

    fn run_controllers(&mut self) {
        for c in self.controllers.iter_mut().flatten() {
            self.views_changed |= c.follow(&self.thread.queues);
            c.run(&mut self.thread);
        }
    }

    fn run_queues(&mut self) {
        let Worker { thread, controllers, finished, .. } = self;
        // What finishes at once (nil, pages in the cache) is answered in the same round.
        for _ in 0..2 {
            thread.queues.turn(&mut thread.reactor, finished);
            if finished.is_empty() {
                break;
            }
            thread.now = monotonic_now();
            for step in finished.drain(..) {
                if let Some(Some(c)) = controllers.get_mut(step.owner.controller as usize) {
                    c.finished(thread, step);
                }
            }
            thread.mark_busy();
            thread.queues.publish(thread.now);
        }
    }

    /// Queues of namespaces that no controller shows any more finish what they have, and go.
    fn retire_queues(&mut self) {
        if !std::mem::take(&mut self.views_changed) && !self.thread.queues.has_retired() {
            return;
        }
        let controllers = || self.controllers.iter().flatten();
        self.thread.queues.retire(|number| controllers().any(|c| c.uses(number)));
        if self.thread.queues.end_retired(|_| false) {
            self.thread.reactor.forget_files();
        }
    }

    // Messages.

    fn read_messages(&mut self) {
        for message in self.inbox.take() {
            self.thread.mark_busy();
            match message {
                WorkerMessage::Attach(shared) => self.attach(shared),
                WorkerMessage::Detach(id) => self.detach(id),
                WorkerMessage::Recheck => {
                    self.controllers.iter_mut().flatten().for_each(|c| c.look_again());
                }
                WorkerMessage::Report(to) => {
                    let _ = to.send(self.report());
                }
                WorkerMessage::Stop => self.stop_by = Some(self.thread.now + STOP),
                WorkerMessage::OpenCompletion(id, cq) => self.with(id, |c, _| c.open_completion(cq)),
                WorkerMessage::OpenSubmission { controller, cqid, queue } => {
                    self.with(controller, |c, _| c.open_submission(cqid, queue));
                }
                WorkerMessage::CloseSubmission { controller, cqid, sqid } => {
                    self.with(controller, |c, thread| c.close_submission(thread, cqid, sqid));
                }
                WorkerMessage::CloseCompletion { controller, cqid } => {
                    self.with(controller, |c, _| c.close_completion(cqid));
                }
                WorkerMessage::CloseQueues(id) => self.with(id, ControllerQueues::close_all),
                WorkerMessage::Abort { controller, cqid, sqid, cid } => {
                    self.with(controller, |c, thread| c.abort(thread, cqid, sqid, cid));
                }
                WorkerMessage::Shadow(id, shadow) => self.with(id, |c, _| c.set_shadow(shadow)),
                WorkerMessage::Coalescing(id, settings) => self.with(id, |c, _| c.set_coalescing(&settings)),
                WorkerMessage::Suspend(id) => self.with(id, |c, _| c.suspend(true)),
                WorkerMessage::Resume(id) => self.with(id, |c, _| c.suspend(false)),
                WorkerMessage::Hold(id) => self.with(id, ControllerQueues::hold),
                WorkerMessage::Withdraw(id) => self.with(id, ControllerQueues::withdraw),
                WorkerMessage::Release(id) => self.with(id, ControllerQueues::release),
                WorkerMessage::Keep(id, to) => self.with(id, |c, _| {
                    let _ = c.keep().map(|queues| to.send(queues));
                }),
                WorkerMessage::TakeUp(id, taken) => self.with(id, |c, thread| c.take_up(thread, *taken)),
                WorkerMessage::Relinquish(id) => self.with(id, ControllerQueues::relinquish),
                WorkerMessage::Flush(id) => self.with(id, ControllerQueues::flush),
            }
        }
    }

    fn find(&self, id: u64) -> Option<usize> {
        self.controllers.iter().position(|c| c.as_ref().is_some_and(|c| c.shared.id == id))
    }

    /// Lets the controller of that name do something, if it is there.
    fn with(&mut self, id: u64, work: impl FnOnce(&mut ControllerQueues, &mut ThreadResources)) {
        let Some(c) = self.find(id).and_then(|at| self.controllers[at].as_deref_mut()) else { return };
        self.views_changed |= c.follow(&self.thread.queues);
        work(c, &mut self.thread);
        c.wake();
        c.report_quiet();
    }

    fn attach(&mut self, shared: Arc<ControllerShared>) {
        let number = self.controllers.iter().position(Option::is_none).unwrap_or_else(|| {
            self.controllers.push(None);
            self.controllers.len() - 1
        });
        let c = ControllerQueues::new(shared, number as u32, self.thread.now);
        self.controllers[number] = Some(Box::new(c));
        self.views_changed = true;
    }

    fn detach(&mut self, id: u64) {
        let Some(c) = self.find(id).and_then(|at| self.controllers[at].take()) else { return };
        c.detach(&mut self.thread);
        self.views_changed = true;
    }

    fn report(&self) -> Report {
        let mut report = Report::default();
        for queue in self.thread.queues.iter() {
            let mut stats = NamespaceStats { nsid: queue.volume.nsid, ..NamespaceStats::default() };
            queue.add_to(&mut stats);
            report.namespaces.push((Arc::as_ptr(&queue.volume) as usize, stats));
        }
        for c in self.controllers.iter().flatten() {
            report.queues.extend(c.stats(self.thread.number).map(|one| (c.shared.id, one)));
        }
        report
    }

    // Sleep.

    /// Waits for whatever comes first, or returns at once where there is more to do or it pays to look again.
    fn wait(&mut self) {
        let (thread, controllers) = (&self.thread, || self.controllers.iter().flatten());
        let polled = controllers().any(|c| c.is_polled(thread.now));
        let spins = thread.now < thread.busy_until && controllers().any(|c| c.is_awake());
        let more = thread.queues.is_pushed() || self.inbox.has_messages();
        if more || spins || polled {
            self.rounds += 1;
            if !thread.queues.is_idle() || self.rounds >= ROUNDS {
                self.rounds = 0;
                self.thread.reactor.flush();
            }
            return;
        }
        if self.fall_asleep() {
            self.rounds = 0;
            let until = self.due();
            self.thread.reactor.wait(1, until, Duration::ZERO);
        }
    }

    /// Asks the hosts to ring. False: somebody was faster.
    fn fall_asleep(&mut self) -> bool {
        let mut asleep = true;
        for c in self.controllers.iter_mut().flatten() {
            asleep &= c.fall_asleep();
        }
        asleep
    }

    /// When to wake though nothing comes.
    fn due(&self) -> Instant {
        let (began, now) = (self.thread.gateway.began, self.thread.now);
        let controllers = self.controllers.iter().flatten().filter_map(|c| c.next_due(began, now));
        let all = controllers.chain(self.thread.queues.next_due()).chain(self.stop_by);
        all.min().unwrap_or(now + FOREVER)
    }

    /// Memory that the kernel or a device may still write to is left to it.
    fn let_go(self) {
        let quiet = self.thread.queues.is_idle();
        self.thread.queues.end();
        let Worker { thread, controllers, .. } = self;
        let ThreadResources { queues, reactor, blank, .. } = thread;
        if quiet {
            drop((queues, reactor));
            drop((controllers, blank));
        } else {
            std::mem::forget((queues, controllers, blank));
            drop(reactor);
        }
    }
}
