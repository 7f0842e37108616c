//! One thread of the server: it receives, lets commands run, answers, and sleeps when nothing is due.
//!
//! A round takes all that has come on any connection, hands it to the sources together, and answers all that is
//! done with one `sendmsg` for each connection; what the ring was given is handed over by the call that waits.

mod timers;

use super::arena::Pool;
use super::connection::Connection;
use super::inbox::{Inbox, Message, NewConnection, Way};
use super::link::Link;
use super::log::Level;
use super::rdma::{Cards, Rdma};
use super::shared::{ConnectionId, TargetShared, Volumes};
use super::thread_pool::{self, PoolWorker};
use crate::namespace::lane::Finished;
use crate::namespace::lane::Lane;
use forebay_io::clock;
use forebay_io::reactor::{memlock, Completion, Reactor, RingOptions};
use forebay_io::stream::{self, Stream};
use forebay_io::threads;
use forebay_model::Error;
use forebay_nvme::transport::rdma::connect::Offer;
use forebay_nvme::transport::tcp::target::{self, TargetEnd};
use forebay_nvme::transport::tcp::Handle;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::sync::atomic::Ordering;
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
    pub(super) shared: Arc<TargetShared>,
    pub(super) number: usize,
    inbox: Arc<Inbox>,
    pub(super) reactor: Reactor,
    token: u32,
    pub(super) pool: Pool,
    cards: Cards,
    pub(super) connections: Vec<Option<Box<Connection>>>,
    vacant: Vec<u32>,
    serial: u64,
    pub(super) lanes: Vec<Option<Lane>>,
    /// By subsystem and namespace.
    pub(super) lane_of: Vec<BTreeMap<u32, u32>>,
    pub(super) views: Vec<Arc<Volumes>>,
    generation: u64,
    touched: Vec<u32>,
    dirty: Vec<u32>,
    /// Connections whose commands wait for memory, in turn.
    pub(super) turns: VecDeque<u32>,
    /// Memory was given back since turns were last taken.
    pub(super) freed: bool,
    timers: BinaryHeap<Reverse<(Instant, u32, u64)>>,
    /// When to look for connections that make no progress.
    sweep_at: Option<Instant>,
    pub(super) now: Instant,
    pub(super) draining: bool,
    stop_by: Option<Instant>,
    completions: Vec<Completion>,
    finished: Vec<Finished>,
    pub(super) released: Vec<Handle>,
}

impl PoolWorker for Worker {
    type Message = Message;

    fn inbox(&self) -> Arc<Inbox<Message>> {
        self.inbox.clone()
    }

    fn run(mut self) {
        loop {
            self.now = clock::now();
            self.collect();
            self.read_messages();
            self.follow_changes();
            self.run_timers();
            let more = self.work();
            let failed = self.shared.failure.heed(&self.reactor);
            if self.stop_by.is_some_and(|by| failed || self.is_empty() || self.now >= by) {
                break;
            }
            let until = if more || self.inbox.has_messages() { self.now } else { self.due() };
            if !more {
                self.spin(until);
            }
            self.reactor.wait(1, until, Duration::ZERO);
        }
        self.flush_all();
        self.let_go();
    }
}

impl Worker {
    /// Must be made by the thread that runs it.
    pub(super) fn new(shared: Arc<TargetShared>, number: usize) -> Result<Worker, Error> {
        // Modelled drives and rates are kept to the microsecond.
        threads::settle_in(thread_pool::cpu_of(&shared.cpus, number), None)?;
        let options = RingOptions { depth: RING_DEPTH, ..RingOptions::default() };
        let mut reactor = Reactor::with_ring(options).map_err(|e| {
            let next = "forebay doctor for the reason (sysctl kernel.io_uring_disabled)";
            memlock::refusal("forebay serve", &e, next)
        })?;
        if shared.config.spin_us.is_none() {
            reactor.poll_where_it_pays();
        }
        if let Some(why) = memlock::short(&reactor).filter(|_| number == 0) {
            shared.log.say(Level::Info, "short rings", &[("why", why.into())]);
        }
        let pool =
            Pool::new(shared.config.buffers.0 / shared.threads as u64, shared.config.max_transfer.0 as u32)?;
        let inbox = Arc::new(Inbox::new(reactor.waker()?));
        let subsystems = shared.subsystems.len();
        Ok(Worker {
            token: reactor.token(),
            views: shared.subsystems.iter().map(|s| s.state().volumes.clone()).collect(),
            generation: shared.generation.load(Ordering::Acquire),
            shared,
            number,
            inbox,
            reactor,
            pool,
            cards: Cards::default(),
            connections: Vec::new(),
            vacant: Vec::new(),
            serial: 0,
            lanes: Vec::new(),
            lane_of: vec![BTreeMap::new(); subsystems],
            touched: Vec::new(),
            dirty: Vec::new(),
            turns: VecDeque::new(),
            freed: false,
            timers: BinaryHeap::new(),
            sweep_at: None,
            now: clock::now(),
            draining: false,
            stop_by: None,
            completions: Vec::new(),
            finished: Vec::new(),
            released: Vec::new(),
        })
    }

    /// Looks again and again for a while before it sleeps, where the configuration asks for that: a wake-up costs
    /// several microseconds. A thread without connections sleeps at once.
    fn spin(&mut self, until: Instant) {
        let spin = Duration::from_micros(self.shared.config.spin_us.unwrap_or(0).into());
        if !spin.is_zero() && self.connections.len() > self.vacant.len() {
            self.reactor.look(spin, until);
        }
    }

    fn collect(&mut self) {
        self.reactor.take(self.token, &mut self.completions);
        let mut completions = std::mem::take(&mut self.completions);
        for c in completions.drain(..) {
            let index = stream::index_of(c);
            if let Some(Some(connection)) = self.connections.get_mut(index) {
                connection.link.completed(c);
                self.touch(index as u32);
                self.soil(index as u32);
            }
        }
        self.completions = completions;
    }

    /// Everything that moves by itself. True: there is more.
    fn work(&mut self) -> bool {
        for _ in 0..ROUNDS_MAX {
            for index in std::mem::take(&mut self.touched) {
                self.with(index, |worker, c| {
                    c.touched = false;
                    worker.read(c);
                });
            }
            self.run_lanes();
            for index in std::mem::take(&mut self.dirty) {
                self.with(index, |worker, c| {
                    c.dirty = false;
                    worker.write(c);
                });
            }
            if std::mem::take(&mut self.freed) {
                self.take_turns();
            }
            let lanes_wait = self.lanes.iter().flatten().any(Lane::is_pushed);
            if self.touched.is_empty() && self.dirty.is_empty() && !lanes_wait && !self.freed {
                let (number, now) = (self.number, self.now);
                self.lanes.iter_mut().flatten().for_each(|lane| lane.publish(number, now));
                return false;
            }
        }
        true
    }

    /// Takes a connection out while it is worked on; it goes if it is over.
    pub(super) fn with(&mut self, index: u32, work: impl FnOnce(&mut Worker, &mut Connection)) {
        let Some(mut c) = self.connections.get_mut(index as usize).and_then(Option::take) else { return };
        work(self, &mut c);
        if c.closing && c.running == 0 && c.link.is_quiet() {
            self.bury(*c);
        } else {
            self.connections[index as usize] = Some(c);
        }
    }

    pub(super) fn touch(&mut self, index: u32) {
        if let Some(Some(c)) = self.connections.get_mut(index as usize) {
            if !std::mem::replace(&mut c.touched, true) {
                self.touched.push(index);
            }
        }
    }

    fn soil(&mut self, index: u32) {
        if let Some(Some(c)) = self.connections.get_mut(index as usize) {
            if !std::mem::replace(&mut c.dirty, true) {
                self.dirty.push(index);
            }
        }
    }

    /// `touch` and `soil` of one that is taken out.
    pub(super) fn touch_this(&mut self, c: &mut Connection) {
        if !std::mem::replace(&mut c.touched, true) {
            self.touched.push(c.id.index);
        }
    }

    pub(super) fn soil_this(&mut self, c: &mut Connection) {
        if !std::mem::replace(&mut c.dirty, true) {
            self.dirty.push(c.id.index);
        }
    }

    fn run_lanes(&mut self) {
        for at in 0..self.lanes.len() {
            let Some(lane) = &mut self.lanes[at] else { continue };
            lane.turn(&mut self.reactor, &mut self.finished);
            if lane.retired && lane.is_idle() && !self.is_used(at as u32) {
                let lane = self.lanes[at].take().expect("it was just looked at");
                lane.end(self.number);
            }
        }
        let mut finished = std::mem::take(&mut self.finished);
        if !finished.is_empty() {
            // What a source did at once took its time, too.
            self.now = clock::now();
        }
        for Finished { owner, result, .. } in finished.drain(..) {
            self.with(owner.connection, |worker, c| worker.moved(c, owner.command, result));
        }
        self.finished = finished;
    }

    /// Commands of some connection are between two steps on this lane.
    fn is_used(&self, lane: u32) -> bool {
        let holds = |c: &Connection| c.commands.iter().any(|c| c.io.request.is_some() && c.io.lane == lane);
        self.connections.iter().flatten().any(|c| holds(c))
    }

    fn read_messages(&mut self) {
        for message in self.inbox.take() {
            match message {
                Message::Adopt(new) => self.adopt(new),
                Message::Close(id, why) => self.with_id(id, |worker, c| worker.end(c, why)),
                Message::Effects(id) => self.with_id(id, |worker, c| worker.apply_effects(c)),
                Message::Abort { id, entry, cid, tag } => self.abort_at(id, &entry, cid, tag),
                Message::Report(to) => {
                    let _ = to.send(self.report());
                }
                Message::Changed => self.reactor.forget_files(),
                Message::Drain => {
                    self.draining = true;
                    for index in 0..self.connections.len() as u32 {
                        self.with(index, |worker, c| worker.leave_if_idle(c));
                    }
                }
                Message::Stop => {
                    self.stop_by = Some(self.now + STOP);
                    for index in 0..self.connections.len() as u32 {
                        self.with(index, |worker, c| worker.end(c, "the server stops"));
                    }
                }
            }
        }
    }

    /// The connection of that identity, if it is still there.
    pub(super) fn with_id(&mut self, id: ConnectionId, work: impl FnOnce(&mut Worker, &mut Connection)) {
        self.with(id.index, |worker, c| {
            if c.id == id && !c.closing {
                work(worker, c);
            }
        });
    }

    fn adopt(&mut self, new: NewConnection) {
        let NewConnection { way, peer, local, client } = new;
        let index = self.vacant.pop().unwrap_or_else(|| {
            self.connections.push(None);
            (self.connections.len() - 1) as u32
        });
        let made = self.link(way, index);
        if let Err(why) = &made {
            let fields = [("peer", peer.to_string().into()), ("why", why.as_str().into())];
            self.shared.log.say(Level::Warning, "connection refused", &fields);
        }
        let (Ok(link), None) = (made, self.stop_by) else {
            self.vacant.push(index);
            self.inbox.leave(&self.shared.totals);
            return;
        };
        self.serial += 1;
        let id = ConnectionId { thread: self.number, index, serial: self.serial };
        let mut c = Box::new(Connection::new(id, link, peer, local, self.now));
        c.client = client;
        self.arm(&mut c, self.now + Duration::from_secs_f64(self.shared.config.handshake_s));
        self.connections[index as usize] = Some(c);
        self.touch(index);
        self.soil(index);
    }

    /// Or why there is none.
    fn link(&mut self, way: Way, index: u32) -> Result<Link, String> {
        let config = &self.shared.config;
        let in_capsule = config.in_capsule.0 as u32;
        match way {
            Way::Tcp(socket) => {
                let end = TargetEnd::new(target::Options {
                    header_digest: config.header_digest,
                    data_digest: config.data_digest,
                    in_capsule_max: in_capsule,
                    max_h2c: config.max_transfer.0 as u32,
                    max_c2h: config.max_transfer.0 as u32,
                    bulk: BULK,
                });
                let made = Stream::new(socket, end, self.token, index, stream::Options::default());
                made.map(Link::Tcp).map_err(|e| e.to_string())
            }
            Way::Rdma(asked) => {
                let offer = Offer { queues: config.queues, entries: config.queue_depth };
                let port = (self.token, index);
                let made =
                    Rdma::accept(*asked, &offer, in_capsule as usize, &mut self.cards, &self.pool, port);
                made.map(|rdma| Link::Rdma(Box::new(rdma))).map_err(|refused| refused.0)
            }
        }
    }

    /// Nothing points to it any more.
    fn bury(&mut self, mut c: Connection) {
        for at in 0..c.commands.len() {
            self.free(&mut c, Handle(at as u16));
        }
        if let Some(entry) = c.role.entry() {
            entry.host.past().add(&c.counts);
        }
        self.vacant.push(c.id.index);
        self.inbox.leave(&self.shared.totals);
    }

    /// Namespaces came or went: lanes of those that are gone finish what they have.
    fn follow_changes(&mut self) {
        let generation = self.shared.generation.load(Ordering::Acquire);
        if std::mem::replace(&mut self.generation, generation) == generation {
            return;
        }
        for (at, subsystem) in self.shared.subsystems.iter().enumerate() {
            let view = subsystem.state().volumes.clone();
            let lanes = &mut self.lanes;
            self.lane_of[at].retain(|nsid, lane| {
                let Some(lane) = &mut lanes[*lane as usize] else { return false };
                let same = view.get(nsid).is_some_and(|volume| Arc::ptr_eq(volume, &lane.volume));
                lane.retired = !same;
                same
            });
            self.views[at] = view;
        }
    }

    fn is_empty(&self) -> bool {
        self.connections.iter().all(Option::is_none) && self.lanes.iter().flatten().all(Lane::is_idle)
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
