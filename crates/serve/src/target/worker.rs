//! One thread of the server: it receives, lets commands run, answers, and sleeps when nothing is due.
//!
//! A round takes all that has come on any connection, hands it to the sources together, and answers all that is
//! done with one `sendmsg` for each connection; what the ring was given is handed over by the call that waits.

use super::arena::Pool;
use super::connection::Connection;
use super::connections::Connections;
use super::controller::ControllerEntry;
use super::ids::ConnectionId;
use super::inbox::Inbox;
use super::link::Link;
use super::log::Level;
use super::memory::CommandMemory;
use super::message::{HostTransport, Message, NewConnection, Report};
use super::namespace_queues::NamespaceQueues;
use super::rdma::{Cards, Rdma};
use super::ready::Ready;
use super::resources::ThreadResources;
use super::shared::TargetShared;
use super::thread_pool::{self, PoolWorker};
use super::timers::Timers;
use crate::namespace::namespace_queue::{Finished, Owner};
use forebay_io::{
    memlock_refusal, memlock_shortage, monotonic_now, settle_thread_in, stream_index, Reactor,
    RingCompletion, RingOptions, Stream, StreamOptions,
};
use forebay_model::Error;
use forebay_nvme::transport::rdma::connect::Offer;
use forebay_nvme::transport::tcp::target::{self, TargetEnd};
use forebay_nvme::transport::tcp::Handle;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Passes over what moves by itself before the ring is asked again: it hands over what is to be sent.
const ROUNDS_MAX: u32 = 3;
/// Bytes of a connection's own buffer: many capsules come with one receive.
const BULK: usize = 16 << 10;
/// Places in the ring for what is in flight.
const RING_DEPTH: u32 = 4096;
/// With nothing due, a thread looks up this often.
const FOREVER: Duration = Duration::from_secs(24 * 3600);
/// Time for I/Os to come back when the server stops.
pub(super) const STOP: Duration = Duration::from_secs(5);
/// An owner that is no command: the flush when the server stops.
const NOBODY: u32 = u32::MAX;

pub(super) struct Worker {
    inbox: Arc<Inbox<Message>>,
    /// The thread's number at the reactor.
    token: u32,
    cards: Cards,
    connections: Connections,
    /// All else that a connection uses.
    thread: ThreadResources,
    stop_by: Option<Instant>,
    // Empty between uses.
    completions: Vec<RingCompletion>,
    finished: Vec<Finished>,
    indices: Vec<u32>,
}

impl PoolWorker for Worker {
    type Message = Message;

    fn inbox(&self) -> Arc<Inbox<Message>> {
        self.inbox.clone()
    }

    fn run(mut self) {
        loop {
            self.thread.now = monotonic_now();
            self.collect();
            self.read_messages();
            self.thread.queues.follow_changes();
            self.run_timers();
            let more = self.work();
            let failed = self.thread.shared.failure.heed(&self.thread.reactor);
            if self.stop_by.is_some_and(|by| failed || self.is_empty() || self.thread.now >= by) {
                break;
            }
            let until = if more || self.inbox.has_messages() { self.thread.now } else { self.due() };
            if !more {
                self.spin(until);
            }
            self.thread.reactor.wait(1, until, Duration::ZERO);
        }
        self.flush_all();
        self.let_go();
    }
}

impl Worker {
    /// Must be made by the thread that runs it.
    pub(super) fn new(shared: Arc<TargetShared>, number: usize) -> Result<Worker, Error> {
        // Modelled drives and rates are kept to the microsecond.
        settle_thread_in(thread_pool::cpu_of(&shared.cpus, number), None)?;
        let options = RingOptions { depth: RING_DEPTH, ..RingOptions::default() };
        let mut reactor = Reactor::with_ring(options).map_err(|e| {
            let next = "forebay doctor for the reason (sysctl kernel.io_uring_disabled)";
            memlock_refusal("forebay serve", &e, next)
        })?;
        let config = &shared.config;
        if config.spin_us.is_none() {
            reactor.poll_where_it_pays();
        }
        if let Some(why) = memlock_shortage(&reactor).filter(|_| number == 0) {
            shared.log.say(Level::Info, "short rings", &[("why", why.into())]);
        }
        let pool = Pool::new(config.buffers.0 / shared.threads as u64, config.max_transfer.0 as u32)?;
        Ok(Worker {
            inbox: Arc::new(Inbox::new(reactor.waker()?)),
            token: reactor.token(),
            cards: Cards::default(),
            connections: Connections::new(number),
            thread: ThreadResources {
                reactor,
                memory: CommandMemory::new(pool),
                queues: NamespaceQueues::new(shared.clone(), number),
                ready: Ready::default(),
                timers: Timers::new(Duration::from_secs_f64(config.stall_s)),
                now: monotonic_now(),
                draining: false,
                released: Vec::new(),
                shared,
            },
            stop_by: None,
            completions: Vec::new(),
            finished: Vec::new(),
            indices: Vec::new(),
        })
    }

    /// Looks again and again for a while before it sleeps, where the configuration asks for that: a wake-up costs
    /// several microseconds. A thread without connections sleeps at once.
    fn spin(&mut self, until: Instant) {
        let spin = Duration::from_micros(self.thread.shared.config.spin_us.unwrap_or(0).into());
        if !spin.is_zero() && !self.connections.is_empty() {
            self.thread.reactor.poll_for(spin, until);
        }
    }

    /// Gives connections what the ring has of theirs.
    fn collect(&mut self) {
        self.thread.reactor.take(self.token, &mut self.completions);
        for completion in self.completions.drain(..) {
            if let Some(c) = self.connections.get_mut(stream_index(completion) as u32) {
                c.link.completed(completion);
                self.thread.ready.mark_readable(c.id.index, &mut c.marks);
                self.thread.ready.mark_dirty(c.id.index, &mut c.marks);
            }
        }
    }

    /// Everything that moves by itself. True: there is more.
    fn work(&mut self) -> bool {
        for _ in 0..ROUNDS_MAX {
            let mut indices = std::mem::take(&mut self.indices);
            self.thread.ready.take_readable(&mut indices);
            for index in indices.drain(..) {
                self.with(index, |c, thread| {
                    c.marks.readable = false;
                    c.read(thread);
                });
            }
            self.run_queues();
            self.thread.ready.take_dirty(&mut indices);
            for index in indices.drain(..) {
                self.with(index, |c, thread| {
                    c.marks.dirty = false;
                    c.write(thread);
                });
            }
            self.indices = indices;
            if self.thread.memory.take_changed() {
                self.take_turns();
            }
            let ThreadResources { ready, queues, memory, now, .. } = &mut self.thread;
            if ready.is_empty() && !queues.is_pushed() && !memory.has_changed() {
                queues.publish(*now);
                return false;
            }
        }
        true
    }

    /// Lets a connection do something. It goes if it is over.
    #[inline]
    fn with(&mut self, index: u32, work: impl FnOnce(&mut Connection, &mut ThreadResources)) {
        let Some(c) = self.connections.get_mut(index) else { return };
        work(c, &mut self.thread);
        if c.is_over() {
            self.close(index);
        }
    }

    /// The connection of that identity, if it is still there.
    fn with_id(&mut self, id: ConnectionId, work: impl FnOnce(&mut Connection, &mut ThreadResources)) {
        self.with(id.index, |c, thread| {
            if c.id == id && !c.closing {
                work(c, thread);
            }
        });
    }

    fn with_each(&mut self, mut work: impl FnMut(&mut Connection, &mut ThreadResources)) {
        for index in self.connections.indices() {
            self.with(index, &mut work);
        }
    }

    fn run_queues(&mut self) {
        let Worker { thread, connections, finished, .. } = self;
        thread.queues.turn(&mut thread.reactor, finished, |number| connections.use_queue(number));
        if self.finished.is_empty() {
            return;
        }
        // What a source did at once took its time, too.
        self.thread.now = monotonic_now();
        let mut finished = std::mem::take(&mut self.finished);
        for Finished { owner, result, .. } in finished.drain(..) {
            self.with(owner.connection, |c, thread| c.moved(thread, owner.command, result));
        }
        self.finished = finished;
    }

    /// Lets waiting commands begin, one of each connection in turn, while there is memory.
    fn take_turns(&mut self) {
        let mut refused = 0;
        while let Some(index) = self.thread.memory.next_in_line() {
            let mut went = true;
            self.with(index, |c, thread| went = c.has_its_turn(thread));
            refused = if went { 0 } else { refused + 1 };
            if refused > self.thread.memory.line_len() {
                break;
            }
        }
    }

    // Messages.

    fn read_messages(&mut self) {
        for message in self.inbox.take() {
            match message {
                Message::Adopt(new) => self.adopt(new),
                Message::Close(id, why) => self.with_id(id, |c, thread| c.end(thread, why)),
                Message::Effects(id) => self.with_id(id, Connection::apply_effects),
                Message::Abort { id, entry, cid, tag } => self.abort(id, &entry, cid, tag),
                Message::Report(to) => {
                    let _ = to.send(self.report());
                }
                Message::Changed => self.thread.reactor.forget_files(),
                Message::Drain => {
                    self.thread.draining = true;
                    self.with_each(Connection::leave_if_idle);
                }
                Message::Stop => {
                    self.stop_by = Some(self.thread.now + STOP);
                    self.with_each(|c, thread| c.end(thread, "the server stops"));
                }
            }
        }
    }

    fn abort(&mut self, id: ConnectionId, entry: &ControllerEntry, cid: u16, tag: u16) {
        let mut found = false;
        self.with_id(id, |c, thread| found = c.abort(thread, cid, tag));
        if !found {
            self.thread.shared.aborted(entry, tag, false);
        }
    }

    fn report(&self) -> Report {
        let mut report = Report::default();
        self.thread.queues.add_to(&mut report);
        self.connections.add_to(&mut report);
        report
    }

    fn adopt(&mut self, new: NewConnection) {
        let NewConnection { way, peer, local, client } = new;
        let id = self.connections.reserve();
        let made = self.link(way, id.index);
        if let Err(why) = &made {
            let fields = [("peer", peer.to_string().into()), ("why", why.as_str().into())];
            self.thread.shared.log.say(Level::Warning, "connection refused", &fields);
        }
        let (Ok(link), None) = (made, self.stop_by) else {
            self.connections.remove(id.index);
            self.thread.shared.left(&self.inbox);
            return;
        };
        let thread = &mut self.thread;
        let c = Connection::new(id, link, (peer, local), client, thread.now);
        let c = self.connections.insert(c);
        c.arm(thread, thread.now + Duration::from_secs_f64(thread.shared.config.handshake_s));
        thread.ready.mark_readable(c.id.index, &mut c.marks);
        thread.ready.mark_dirty(c.id.index, &mut c.marks);
    }

    /// Or why there is none.
    fn link(&mut self, way: HostTransport, index: u32) -> Result<Link, String> {
        let config = &self.thread.shared.config;
        let in_capsule = config.in_capsule.0 as u32;
        match way {
            HostTransport::Tcp(socket) => {
                let end = TargetEnd::new(target::Options {
                    header_digest: config.header_digest,
                    data_digest: config.data_digest,
                    in_capsule_max: in_capsule,
                    max_h2c: config.max_transfer.0 as u32,
                    max_c2h: config.max_transfer.0 as u32,
                    bulk: BULK,
                });
                let made = Stream::new(socket, end, self.token, index, StreamOptions::default());
                made.map(Link::Tcp).map_err(|e| e.to_string())
            }
            HostTransport::Rdma(asked) => {
                let offer = Offer { queues: config.queues, entries: config.queue_depth };
                let (port, pool) = ((self.token, index), &self.thread.memory.pool);
                let made = Rdma::accept(*asked, &offer, in_capsule as usize, &mut self.cards, pool, port);
                made.map(|rdma| Link::Rdma(Box::new(rdma))).map_err(|refused| refused.0)
            }
        }
    }

    /// Nothing points to it any more.
    fn close(&mut self, index: u32) {
        if let Some(c) = self.connections.remove(index) {
            c.close(&mut self.thread);
            self.thread.shared.left(&self.inbox);
        }
    }

    // Time.

    fn run_timers(&mut self) {
        while let Some((at, id)) = self.thread.timers.next_due(self.thread.now) {
            self.with(id.index, |c, thread| {
                if c.id == id && c.timer.rings(at) {
                    c.timer_rings(thread);
                }
            });
        }
        if self.thread.timers.take_sweep(self.thread.now) {
            self.with_each(Connection::sweep);
        }
    }

    /// When to wake though nothing comes.
    fn due(&self) -> Instant {
        let all = [self.thread.timers.earliest(), self.thread.queues.next_due(), self.stop_by];
        all.into_iter().flatten().min().unwrap_or(self.thread.now + FOREVER)
    }

    // The end.

    fn is_empty(&self) -> bool {
        self.connections.is_empty() && self.thread.queues.is_idle()
    }

    /// Makes hosts' writes durable before the server is gone.
    fn flush_all(&mut self) {
        if self.thread.reactor.refused().is_some() {
            return;
        }
        let owner = Owner { connection: NOBODY, command: Handle(0) };
        self.thread.queues.flush_idle(owner, &mut self.thread.reactor);
        let by = monotonic_now() + STOP;
        loop {
            self.run_queues();
            if self.thread.queues.is_idle() || monotonic_now() >= by {
                return;
            }
            let due = self.thread.queues.next_due();
            self.thread.reactor.wait(1, due.map_or(by, |d| d.min(by)), Duration::ZERO);
        }
    }

    /// Memory that the kernel or a device may still write to is left to it.
    fn let_go(self) {
        let quiet = self.is_empty();
        self.thread.queues.end();
        let Worker { connections, thread, cards, .. } = self;
        let ThreadResources { queues, reactor, memory, .. } = thread;
        drop((connections, cards));
        if quiet {
            drop((queues, reactor, memory));
        } else {
            std::mem::forget((queues, memory));
            drop(reactor);
        }
    }
}

/// A host that is gone without a word, and whose controller has no keep-alive timer, is noticed by the kernel.
pub(super) fn keep_alive(socket: &std::net::TcpStream) {
    use rustix::net::sockopt;
    const IDLE: Duration = Duration::from_secs(60);
    const EVERY: Duration = Duration::from_secs(10);
    // A socket that takes none of it is merely noticed later.
    let _ = sockopt::set_socket_keepalive(socket, true);
    let _ = sockopt::set_tcp_keepidle(socket, IDLE);
    let _ = sockopt::set_tcp_keepintvl(socket, EVERY);
    let _ = sockopt::set_tcp_keepcnt(socket, 3);
}
