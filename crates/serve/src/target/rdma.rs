//! A host's connection over RDMA: capsules come as messages, and the card reads and writes the host's memory for us.
//!
//! A thread's slots are registered with a card when the first connection on it comes, for our own posts alone: no peer
//! reaches them, whatever key it names. What lies elsewhere (an Identify page, say) is registered for its command.

#![allow(unsafe_code, reason = "calls into libibverbs and librdmacm, and memory that a network card reaches")]

use super::arena::Pool;
use forebay_io::{
    Mem, RdmaBuffer, RdmaChannel, RdmaCompleted, RdmaCompletionQueue, RdmaDomain, RdmaDomains, RdmaHappened,
    RdmaId, RdmaPost, RdmaRegion, RdmaRoom, RdmaSend, RdmaSge, RdmaTerms, RdmaWatched, RdmaWatches, Reactor,
    RingCompletion, StreamReceived,
};
use forebay_nvme::command::{Cqe, Sqe};
use forebay_nvme::transport::rdma::connect::{answer, Offer, Refusal};
use forebay_nvme::transport::rdma::target::{pieces, Event as Came, Op, TargetEnd};
use forebay_nvme::transport::tcp::target::Event;
use forebay_nvme::transport::tcp::{Fatal, Handle, PayloadPlace};
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use zerocopy::IntoBytes;

const COMMAND: usize = size_of::<Sqe>();
const RESPONSE: usize = size_of::<Cqe>();
/// Posts for sending that a command may have under way besides one of its response: enough for the longest list.
const SLACK: u32 = 17;
/// Posts that are handed to the card together.
const POSTS: usize = 64;
/// Tags of completions, above the number of a receive or a command.
const RECEIVE: u64 = 1 << 32;
const FETCH: u64 = 2 << 32;
const ANSWER: u64 = 3 << 32;

/// A connection that a host asks for.
pub(crate) struct Asked {
    pub id: RdmaId,
    /// Private data that it sent along.
    pub private: Vec<u8>,
}

/// The cards that a thread's connections are on, each with the thread's slots.
#[derive(Default)]
pub(super) struct Cards {
    domains: Option<Arc<RdmaDomains>>,
    slots: Vec<(Arc<RdmaDomain>, Arc<RdmaRegion>)>,
}

impl Cards {
    /// The card that a connection is on.
    fn card_of(&mut self, id: &RdmaId, pool: &Pool) -> io::Result<(Arc<RdmaDomain>, Arc<RdmaRegion>)> {
        let domains = self.domains.get_or_insert_with(|| RdmaDomains::new(id.channel().library));
        let domain = domains.domain_of(id)?;
        if let Some(known) = self.slots.iter().find(|(known, _)| Arc::ptr_eq(known, &domain)) {
            return Ok(known.clone());
        }
        let (at, bytes) = pool.whole();
        // SAFETY: the pool goes after the cards, and its slots are looked at once what receives into them completed.
        let region = unsafe { RdmaRegion::register_own(&domain, at, bytes) }?;
        self.slots.push((domain, Arc::new(region)));
        Ok(self.slots[self.slots.len() - 1].clone())
    }
}

/// Requests of a command that are under way.
#[derive(Default)]
struct Posted {
    posts: u32,
    /// Memory that was registered for it alone.
    _own: Option<RdmaRegion>,
}

pub(super) struct Rdma {
    pub end: TargetEnd,
    // Goes before what it reads and writes.
    id: Option<RdmaId>,
    posted: Vec<Posted>,
    queue: Arc<RdmaCompletionQueue>,
    channel: Arc<RdmaChannel>,
    domain: Arc<RdmaDomain>,
    slots: Arc<RdmaRegion>,
    /// Capsules, by receive; then responses, by command.
    buffer: RdmaBuffer,
    commands: u16,
    capsule_bytes: usize,
    /// Posts for sending that there is room for.
    room: u32,
    watches: RdmaWatches,
    closed: bool,
    error: Option<io::Error>,
    completions: Vec<RdmaCompleted>,
    posts: Vec<RdmaPost>,
    receives: Vec<u16>,
}

/// Why a connection that was asked for isn't made.
pub(super) struct Refused(pub String);

impl Rdma {
    /// Gives the host its queue, or says why not. `port`: token and number at the reactor.
    pub(super) fn accept(
        asked: Asked,
        offer: &Offer,
        in_capsule: usize,
        cards: &mut Cards,
        pool: &Pool,
        port: (u32, u32),
    ) -> Result<Rdma, Refused> {
        let Asked { mut id, private } = asked;
        let refuse = |id: &RdmaId, refusal: Refusal, why: String| {
            // Where that fails the connection's end says it.
            let _ = id.reject(refusal.reject().as_bytes());
            Refused(why)
        };
        let (agreed, accept) = match answer(&private, offer) {
            Ok(agreed) => agreed,
            Err(refusal) => return Err(refuse(&id, refusal, refusal.to_string())),
        };
        let made = Rdma::make(&mut id, agreed.commands, in_capsule, cards, pool, port);
        let mut rdma = match made {
            Ok(rdma) => rdma,
            Err(e) => return Err(refuse(&id, Refusal::Resources, e)),
        };
        let terms = RdmaTerms { private: accept.as_bytes(), serves_reads: false };
        let accepted = id.accept(terms);
        // Goes before what it stands on, wherever this ends.
        rdma.id = Some(id);
        accepted.map_err(|e| Refused(format!("the connection can't be accepted: {e}")))?;
        Ok(rdma)
    }

    fn make(
        id: &mut RdmaId,
        commands: u16,
        in_capsule: usize,
        cards: &mut Cards,
        pool: &Pool,
        port: (u32, u32),
    ) -> Result<Rdma, String> {
        let lock =
            |e: io::Error| format!("buffers can't be registered with the card: {e} (ulimit -l unlimited)");
        let (domain, slots) = cards.card_of(id, pool).map_err(lock)?;
        let (receives, sends) = (u32::from(commands), 2 * u32::from(commands) + SLACK);
        let on = |what: &str, e: io::Error| format!("{what} of {}: {e}", domain.device);
        let queue =
            RdmaCompletionQueue::new(&domain, sends + receives).map_err(|e| on("a completion queue", e))?;
        let queue = Arc::new(queue);
        let capsule_bytes = COMMAND + in_capsule;
        let responses = 2 * usize::from(commands);
        let bytes = usize::from(commands) * capsule_bytes + responses * RESPONSE;
        let buffer = RdmaBuffer::new(&domain, bytes).map_err(lock)?;
        let room = RdmaRoom { sends, receives, stretches: 1 };
        id.create_pair(&domain, &queue, room).map_err(|e| on("a queue pair", e))?;
        let rdma = Rdma {
            end: TargetEnd::new(commands),
            id: None,
            posted: std::iter::repeat_with(Posted::default).take(responses).collect(),
            queue,
            channel: id.channel().clone(),
            domain: domain.clone(),
            slots,
            buffer,
            commands,
            capsule_bytes,
            room: sends,
            watches: RdmaWatches::new(port),
            closed: false,
            error: None,
            completions: Vec::new(),
            posts: Vec::new(),
            receives: Vec::new(),
        };
        for receive in 0..commands {
            id.receive(RECEIVE | u64::from(receive), rdma.capsule(receive)).map_err(|e| on("receives", e))?;
        }
        Ok(rdma)
    }

    fn capsule(&self, receive: u16) -> RdmaSge {
        self.buffer.stretch(usize::from(receive) * self.capsule_bytes, self.capsule_bytes)
    }

    pub(super) fn completed(&mut self, completion: RingCompletion) {
        self.watches.completed(completion);
    }

    /// Takes what the card and the manager have to tell.
    pub(super) fn receive(&mut self, reactor: &mut Reactor) -> io::Result<StreamReceived> {
        if self.closed {
            return Ok(StreamReceived::Ended);
        }
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        // What came before the connection ended is of no use: the answers find no way.
        if self.has_ended(reactor)? {
            return Ok(StreamReceived::Ended);
        }
        self.collect(reactor)?;
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        Ok(if self.end.has_news() { StreamReceived::Some } else { StreamReceived::Later })
    }

    fn has_ended(&mut self, reactor: &mut Reactor) -> io::Result<bool> {
        if self.watches.on(RdmaWatched::Manager) {
            return Ok(false);
        }
        while let Some(event) = self.channel.next()? {
            match event.what {
                RdmaHappened::Disconnected | RdmaHappened::Rejected => return Ok(true),
                RdmaHappened::Unreachable => return Err(io::Error::from_raw_os_error(event.status.abs())),
                RdmaHappened::DeviceRemoved => return Err(io::Error::other("the RDMA device was removed")),
                _ => {}
            }
        }
        self.watches.watch(RdmaWatched::Manager, self.channel.fd(), reactor);
        Ok(false)
    }

    fn collect(&mut self, reactor: &mut Reactor) -> io::Result<()> {
        if !self.watches.on(RdmaWatched::Queue) {
            self.queue.arm()?;
            self.watches.watch(RdmaWatched::Queue, self.queue.fd(), reactor);
        }
        let mut completions = std::mem::take(&mut self.completions);
        let mut more = true;
        while more {
            more = self.queue.poll(&mut completions)?;
            for completed in completions.drain(..) {
                self.book(completed)?;
            }
        }
        self.completions = completions;
        Ok(())
    }

    fn book(&mut self, completed: RdmaCompleted) -> io::Result<()> {
        if let Some(status) = completed.failed {
            let words = self.channel.library.status_words(status);
            return Err(io::Error::other(match completed.is_flushed() {
                true => "the connection broke".to_owned(),
                false => format!("the connection broke: {words}"),
            }));
        }
        let number = completed.id as u16;
        match completed.id & !0xffff_ffff {
            RECEIVE => {
                let bytes = (completed.bytes as usize).min(self.capsule_bytes);
                let at = usize::from(number) * self.capsule_bytes;
                let came = self.end.came(number, self.buffer.bytes(at, bytes));
                came.map_err(|fatal| io::Error::other(fatal.what))
            }
            kind => {
                let posted = std::mem::take(&mut self.posted[usize::from(number)]);
                self.room += posted.posts;
                match kind {
                    FETCH => self.end.fetched(Handle(number)),
                    _ => self.end.sent(Handle(number)),
                }
                Ok(())
            }
        }
    }

    /// Something was released, or there is room again for what waits.
    pub(super) fn is_owed(&self) -> bool {
        self.end.has_released() || !self.end.is_sent()
    }

    pub(super) fn next(&mut self) -> Result<Option<Event<'_>>, Fatal> {
        let event = self.end.next();
        self.post_receives();
        let Some(event) = event? else { return Ok(None) };
        Ok(Some(match event {
            Came::Command { command, sqe, in_capsule } => Event::Command { command, sqe, in_capsule },
            Came::Copy { place, receive, range } => {
                let at = usize::from(receive) * self.capsule_bytes + range.start;
                Event::Copy { place, bytes: self.buffer.bytes(at, range.len()) }
            }
            Came::Placed(place) => Event::Placed(place),
            Came::DataComplete { command } => Event::DataComplete { command },
        }))
    }

    fn post_receives(&mut self) {
        self.end.take_receives(&mut self.receives);
        let Some(id) = &self.id else { return };
        for receive in self.receives.drain(..) {
            let at = usize::from(receive) * self.capsule_bytes;
            let capsule = self.buffer.stretch(at, self.capsule_bytes);
            if let Err(e) = id.receive(RECEIVE | u64::from(receive), capsule) {
                self.error.get_or_insert(e);
            }
        }
    }

    /// Posts what there is, as far as there is room.
    pub(super) fn send(&mut self, at: &impl Fn(PayloadPlace) -> Mem) {
        let Some(id) = &self.id else { return };
        let mut posts = std::mem::take(&mut self.posts);
        let responses = usize::from(self.commands) * self.capsule_bytes;
        while let Some(op) = self.end.next_op(self.room as usize) {
            let count = op.posts() as u32;
            let (command, own) = match op {
                Op::Fetch { command, bytes, from } => {
                    let mem = at(PayloadPlace { command, offset: 0, len: bytes });
                    let (key, own) = match reach(&self.slots, &self.domain, mem, bytes) {
                        Ok(reached) => reached,
                        Err(e) => {
                            self.error.get_or_insert(e);
                            break;
                        }
                    };
                    let read = |address, key| RdmaSend::Read { address, key };
                    put(&mut posts, FETCH | u64::from(command.0), (mem, key), pieces(from, bytes), read);
                    (command, own)
                }
                Op::Answer { command, bytes, to, response, invalidate } => {
                    let mem = at(PayloadPlace { command, offset: 0, len: bytes });
                    let reached = match bytes {
                        0 => Ok((0, None)),
                        _ => reach(&self.slots, &self.domain, mem, bytes),
                    };
                    let (key, own) = match reached {
                        Ok(reached) => reached,
                        Err(e) => {
                            self.error.get_or_insert(e);
                            break;
                        }
                    };
                    let tag = ANSWER | u64::from(command.0);
                    let write = |address, key| RdmaSend::Write { address, key };
                    put(&mut posts, tag, (mem, key), pieces(to, bytes), write);
                    let place = responses + usize::from(command.0) * RESPONSE;
                    self.buffer.write(place, response.as_bytes());
                    let what = invalidate.map_or(RdmaSend::Message, RdmaSend::MessageInvalidating);
                    posts.push(post(tag, what, self.buffer.stretch(place, RESPONSE)));
                    (command, own)
                }
            };
            if let Some(last) = posts.last_mut() {
                last.signaled = true;
            }
            self.room -= count;
            self.posted[usize::from(command.0)] = Posted { posts: count, _own: own };
            if posts.len() >= POSTS {
                hand_over(id, &mut posts, &mut self.error);
            }
        }
        hand_over(id, &mut posts, &mut self.error);
        if self.error.is_some() {
            // The manager tells of it, and then the error is.
            id.disconnect();
        }
        self.posts = posts;
    }

    pub(super) fn close(&mut self, reactor: &mut Reactor) {
        if std::mem::replace(&mut self.closed, true) {
            return;
        }
        // With the pair goes the card's hold on memory.
        self.id = None;
        self.posted.clear();
        self.watches.cancel(reactor);
    }

    /// The reactor has let go of both descriptors.
    pub(super) fn is_quiet(&self) -> bool {
        self.closed && self.watches.are_over()
    }
}

fn hand_over(id: &RdmaId, posts: &mut Vec<RdmaPost>, error: &mut Option<io::Error>) {
    if !posts.is_empty() {
        if let Err(e) = id.send(posts) {
            error.get_or_insert(e);
        }
        posts.clear();
    }
}

fn post(id: u64, what: RdmaSend, stretch: RdmaSge) -> RdmaPost {
    RdmaPost { id, what, stretches: [stretch, RdmaSge::default()], count: 1, signaled: false }
}

/// A post for each stretch of the host's memory.
fn put(
    posts: &mut Vec<RdmaPost>,
    id: u64,
    (mem, key): (Mem, u32),
    stretches: impl Iterator<Item = (u32, forebay_nvme::transport::rdma::data::Keyed)>,
    what: impl Fn(u64, u32) -> RdmaSend,
) {
    for (offset, keyed) in stretches {
        let addr = mem.after(offset as usize).host_ptr() as u64;
        let stretch = RdmaSge { addr, length: keyed.bytes, lkey: key };
        posts.push(post(id, what(keyed.address, keyed.key), stretch));
    }
}

/// The key of a command's memory: of a slot, or as it is registered for this command alone.
fn reach(
    slots: &RdmaRegion,
    domain: &Arc<RdmaDomain>,
    mem: Mem,
    bytes: u32,
) -> io::Result<(u32, Option<RdmaRegion>)> {
    let at =
        NonNull::new(mem.host_ptr()).ok_or_else(|| io::Error::other("a command's data have no place"))?;
    if slots.covers(at.as_ptr() as u64, bytes.into()) {
        return Ok((slots.local_key, None));
    }
    // SAFETY: a command's memory stays until its response is acknowledged or its connection closed, and the region goes
    // before either.
    let region = unsafe { RdmaRegion::register_own(domain, at, bytes as usize) }?;
    Ok((region.local_key, Some(region)))
}
