//! One queue's RDMA connection. A command is one SEND of its capsule, its
//! response another; in between the controller reads and writes the command's
//! memory by itself, under the key that the capsule names. Nothing is staged:
//! memory that was lent (`Remote::lend`) is registered once, other memory for as
//! long as its command is out.

#![allow(unsafe_code, reason = "calls into libibverbs and librdmacm, and memory that a network card reaches")]

use super::report::{Broken, Report, Unsent};
use forebay_io::{
    Fault, Mem, RdmaBuffer, RdmaChannel, RdmaCompleted, RdmaCompletionQueue, RdmaDomain, RdmaDomains,
    RdmaEvent, RdmaHappened, RdmaId, RdmaPost, RdmaRegion, RdmaRoom, RdmaSend, RdmaSge, RdmaSpan, RdmaTerms,
    RdmaWatched, RdmaWatches, Reactor, RingCompletion,
};
use forebay_nvme::command::{Cqe, Sgl, Sqe};
use forebay_nvme::transport::rdma::connect::{accepted, rejected, Request, ADMIN_ENTRIES_MAX};
use forebay_nvme::transport::rdma::data::{put_in_capsule, put_keyed, Keyed};
use forebay_nvme::transport::rdma::host::{self, HostEnd};
use forebay_nvme::transport::tcp::host::Data;
use forebay_nvme::transport::tcp::Handle;
use std::io;
use std::net::SocketAddr;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;
use zerocopy::IntoBytes;

/// Longest time of each step of finding the way.
const RESOLVE_WITHIN: Duration = Duration::from_secs(2);
/// Length of a capsule here: the command, and data so short that a copy costs less than a key.
const CAPSULE: usize = 256;
const SHORT: u32 = (CAPSULE - size_of::<Sqe>()) as u32;
const RESPONSE: usize = size_of::<Cqe>();
/// Marks receives among what completes.
const RECEIVE: u64 = 1 << 32;
/// A rejection that came from the peer's program, which says why; and one since nobody listens (enum ib_cm_rej_reason).
const REJECTED_BY_PEER: i32 = 28;
const REJECTED_UNKNOWN: i32 = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Connecting,
    Ready,
    Closed,
}

/// State of a connection once the way is known.
struct Standing {
    queue: Arc<RdmaCompletionQueue>,
    domain: Arc<RdmaDomain>,
    /// Capsules, then responses.
    buffer: RdmaBuffer,
}

pub(super) struct Rdma {
    // Goes first: with it the controller's way to the memory below.
    id: Option<RdmaId>,
    /// Memory that was registered for a command alone, by its handle.
    own: Vec<Option<RdmaRegion>>,
    standing: Option<Standing>,
    channel: Arc<RdmaChannel>,
    domains: Arc<RdmaDomains>,
    request: Request,
    entries: u16,
    in_capsule_max: u32,
    phase: Phase,
    end: HostEnd,
    queued: Vec<RdmaPost>,
    watches: RdmaWatches,
    spans: Vec<RdmaSpan>,
    version: u64,
    completions: Vec<RdmaCompleted>,
}

impl Rdma {
    /// `port`: token and number at the reactor.
    pub(crate) fn open(
        to: SocketAddr,
        qid: u16,
        depth: u16,
        domains: &Arc<RdmaDomains>,
        port: (u32, u32),
        reactor: &mut Reactor,
    ) -> io::Result<Rdma> {
        let most = if qid == 0 { ADMIN_ENTRIES_MAX } else { u16::MAX };
        let entries = depth.saturating_add(1).clamp(2, most);
        let channel = RdmaChannel::open(domains.library())?;
        let id = RdmaId::new(&channel)?;
        id.resolve(to, RESOLVE_WITHIN)?;
        let mut rdma = Rdma {
            id: Some(id),
            own: Vec::new(),
            standing: None,
            channel,
            domains: domains.clone(),
            request: Request::new(qid, entries),
            entries,
            in_capsule_max: 0,
            phase: Phase::Connecting,
            end: HostEnd::new(0),
            queued: Vec::new(),
            watches: RdmaWatches::new(port),
            spans: Vec::new(),
            version: 0,
            completions: Vec::new(),
        };
        rdma.watches.watch(RdmaWatched::Manager, rdma.channel.fd(), reactor);
        Ok(rdma)
    }

    pub(crate) fn set_in_capsule_max(&mut self, bytes: u32) {
        self.in_capsule_max = bytes;
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.phase == Phase::Ready
    }

    pub(crate) fn completed(&mut self, completion: RingCompletion) {
        self.watches.completed(completion);
    }

    /// Takes all that has come.
    pub(crate) fn drive(&mut self, reactor: &mut Reactor, reports: &mut Vec<Report>) -> Result<(), Broken> {
        if self.phase == Phase::Closed {
            return Ok(());
        }
        let managed = self.manage(reactor, reports);
        // What was answered before the connection ended is reported before that.
        let collected = self.collect(reactor, reports);
        managed?;
        collected?;
        self.send();
        Ok(())
    }

    fn manage(&mut self, reactor: &mut Reactor, reports: &mut Vec<Report>) -> Result<(), Broken> {
        if self.watches.on(RdmaWatched::Manager) {
            return Ok(());
        }
        while let Some(event) = self.channel.next()? {
            self.happened(&event, reports)?;
        }
        self.watches.watch(RdmaWatched::Manager, self.channel.fd(), reactor);
        Ok(())
    }

    fn happened(&mut self, event: &RdmaEvent, reports: &mut Vec<Report>) -> Result<(), Broken> {
        let Some(id) = &self.id else { return Ok(()) };
        match event.what {
            RdmaHappened::AddressResolved => Ok(id.route(RESOLVE_WITHIN)?),
            RdmaHappened::RouteResolved => self.connect(),
            RdmaHappened::Established if self.phase == Phase::Connecting => {
                let Some(commands) = accepted(&self.request, &event.private) else {
                    return Err(Broken(
                        "the peer that accepted the connection is not an NVMe/RDMA controller".into(),
                    ));
                };
                self.end = HostEnd::new(commands.min(self.entries - 1));
                self.phase = Phase::Ready;
                reports.push(Report::Ready);
                Ok(())
            }
            RdmaHappened::Rejected => Err(Broken(why_rejected(event))),
            RdmaHappened::Unreachable => {
                let error = io::Error::from_raw_os_error(event.status.abs());
                Err(Broken(format!("not reachable by RDMA: {error}")))
            }
            RdmaHappened::Disconnected => Err(Broken("the controller closed the connection".into())),
            RdmaHappened::DeviceRemoved => Err(Broken("the RDMA device was removed".into())),
            RdmaHappened::Established | RdmaHappened::Request | RdmaHappened::Other => Ok(()),
        }
    }

    /// The device is known: makes what the connection needs of it, and asks the controller for a queue.
    fn connect(&mut self) -> Result<(), Broken> {
        let Some(id) = &mut self.id else { return Ok(()) };
        let entries = u32::from(self.entries);
        let domain = self.domains.domain_of(id).map_err(|e| Broken(format!("the device's memory: {e}")))?;
        let on = |what: &str, e: io::Error| Broken(format!("{what} of {}: {e}", domain.device));
        let queue =
            RdmaCompletionQueue::new(&domain, 2 * entries).map_err(|e| on("a completion queue", e))?;
        let queue = Arc::new(queue);
        let bytes = usize::from(self.entries) * (CAPSULE + RESPONSE);
        let buffer = RdmaBuffer::new(&domain, bytes).map_err(|e| on("capsules in the memory", e))?;
        let room = RdmaRoom { sends: entries, receives: entries, stretches: 2 };
        id.create_pair(&domain, &queue, room).map_err(|e| on("a queue pair", e))?;
        self.own.resize_with(usize::from(self.entries), || None);
        for index in 0..self.entries {
            id.receive(RECEIVE | u64::from(index), response(&buffer, self.entries, index))?;
        }
        id.connect(RdmaTerms { private: self.request.as_bytes(), serves_reads: true })?;
        self.standing = Some(Standing { queue, domain, buffer });
        Ok(())
    }

    /// Takes what completed on the queue pair.
    fn collect(&mut self, reactor: &mut Reactor, reports: &mut Vec<Report>) -> Result<(), Broken> {
        let Some(standing) = &self.standing else { return Ok(()) };
        let queue = standing.queue.clone();
        if !self.watches.on(RdmaWatched::Queue) {
            queue.arm()?;
            self.watches.watch(RdmaWatched::Queue, queue.fd(), reactor);
        }
        let mut completions = std::mem::take(&mut self.completions);
        let mut result = Ok(());
        loop {
            let more = queue.poll(&mut completions)?;
            for completed in completions.drain(..) {
                result = result.and(self.book(completed, reports));
            }
            if !more || result.is_err() {
                break;
            }
        }
        self.completions = completions;
        result
    }

    fn book(&mut self, completed: RdmaCompleted, reports: &mut Vec<Report>) -> Result<(), Broken> {
        if let Some(status) = completed.failed {
            let words = self.domains.library().status_words(status);
            return Err(Broken(match completed.is_flushed() {
                true => "the connection broke".into(),
                false => format!("the connection broke: {words}"),
            }));
        }
        let over = match completed.id & RECEIVE {
            0 => self.end.sent(Handle(completed.id as u16)),
            _ => self.answered(completed)?,
        };
        if let Some(host::Completed { command, cqe, received }) = over {
            self.own[usize::from(command.0)] = None;
            reports.push(Report::Completed { command, cqe, received, copied: false });
        }
        Ok(())
    }

    /// A response came: what is over with it.
    fn answered(&mut self, completed: RdmaCompleted) -> Result<Option<host::Completed>, Broken> {
        let (Some(standing), Some(id)) = (&self.standing, &self.id) else {
            return Err(Broken("the connection is closed".into()));
        };
        let index = completed.id as u16;
        let place = response(&standing.buffer, self.entries, index);
        let bytes: [u8; RESPONSE] = standing.buffer.read(response_at(self.entries, index));
        id.receive(completed.id, place)?;
        let came = &bytes[..RESPONSE.min(completed.bytes as usize)];
        self.end.came(came).map_err(|fatal| Broken(format!("the controller broke the rules: {}", fatal.what)))
    }

    pub(crate) fn submit(&mut self, sqe: Sqe, data: Data, mem: Mem) -> Result<Handle, Unsent> {
        if self.phase != Phase::Ready {
            return Err(Unsent::Busy);
        }
        let wanted = if let Data::In { len } = data { len } else { 0 };
        let command = self.end.take(wanted).ok_or(Unsent::Busy)?;
        match self.queue(command.0, sqe, data, mem) {
            Ok(()) => Ok(command),
            Err(fault) => {
                self.end.give_back(command);
                Err(Unsent::Unfit(fault))
            }
        }
    }

    fn queue(&mut self, cid: u16, mut sqe: Sqe, data: Data, mem: Mem) -> Result<(), Fault> {
        sqe.cid = cid.into();
        let mut capsule = Vec::with_capacity(CAPSULE);
        let (mut behind, mut own) = (None, None);
        match data {
            Data::None => put_keyed(sqe, &[Keyed::default()], &mut capsule),
            Data::Out { len } if len <= self.in_capsule_max.min(SHORT) && matches!(mem, Mem::Host { .. }) => {
                put_in_capsule(sqe, &copied(mem, len)?, &mut capsule);
            }
            Data::Out { len } if len <= self.in_capsule_max => {
                let (span, region) = self.reach(mem, len, true)?;
                sqe.flags = sqe.flags & 0x3f | 1 << 6;
                sqe.sgl = Sgl::in_capsule(len);
                capsule.extend_from_slice(sqe.as_bytes());
                behind = Some(RdmaSge { addr: address_of(mem), length: len, lkey: span.local_key });
                own = region;
            }
            Data::Out { len } | Data::In { len } => {
                let out = matches!(data, Data::Out { .. });
                let (span, region) = self.reach(mem, len, out)?;
                let address = address_of(mem);
                let keyed = Keyed { address, bytes: len, key: span.remote_key, invalidate: false };
                put_keyed(sqe, &[keyed], &mut capsule);
                own = region;
            }
        }
        let Some(standing) = &mut self.standing else { return Err(Fault::errno(libc::ENOTCONN)) };
        let at = usize::from(cid) * CAPSULE;
        standing.buffer.write(at, &capsule);
        let stretches = [standing.buffer.stretch(at, capsule.len()), behind.unwrap_or_default()];
        let count = 1 + usize::from(behind.is_some());
        self.own[usize::from(cid)] = own;
        self.queued.push(RdmaPost {
            id: cid.into(),
            what: RdmaSend::Message,
            stretches,
            count,
            signaled: true,
        });
        Ok(())
    }

    /// The key of a command's memory: of what was lent, or registered for this command alone. `out`: it is only read.
    fn reach(&mut self, mem: Mem, len: u32, out: bool) -> Result<(RdmaSpan, Option<RdmaRegion>), Fault> {
        let Some(standing) = &self.standing else { return Err(Fault::errno(libc::ENOTCONN)) };
        let host = match mem {
            Mem::Host { at, .. } => Some(at),
            Mem::Device { .. } => None,
            Mem::Pieces { .. } => {
                let text = "the payload lies in several places, and one key names one";
                return Err(Fault::note(libc::EFAULT, text));
            }
            Mem::None => return Err(Fault::note(libc::EFAULT, "the payload has no memory")),
        };
        if self.version != self.domains.version() {
            self.version = self.domains.version();
            self.spans = self.domains.spans(&standing.domain);
        }
        let address = address_of(mem);
        if let Some(span) = self.spans.iter().find(|span| span.covers(address, len.into())) {
            return Ok((*span, None));
        }
        let Some(at) = host else {
            return Err(Fault::note(
                libc::EFAULT,
                "the payload lies in GPU memory that the card doesn't know",
            ));
        };
        let region = register(&standing.domain, at, len as usize, out)?;
        let (local_key, remote_key) = (region.local_key, region.remote_key);
        Ok((RdmaSpan { at: address, bytes: len.into(), local_key, remote_key }, Some(region)))
    }

    /// Posts what was queued.
    pub(crate) fn send(&mut self) {
        if self.queued.is_empty() {
            return;
        }
        let posted = self.id.as_ref().map(|id| id.send(&mut self.queued));
        self.queued.clear();
        if let Some(Err(_)) = posted {
            // A pair that takes no posts is in error: the manager tells of it.
            self.id.iter().for_each(RdmaId::disconnect);
        }
    }

    pub(crate) fn close(&mut self, reactor: &mut Reactor) {
        if std::mem::replace(&mut self.phase, Phase::Closed) == Phase::Closed {
            return;
        }
        self.queued.clear();
        // With the pair goes the controller's hold on memory.
        self.id = None;
        self.own.clear();
        self.watches.cancel(reactor);
    }

    /// The reactor has let go of both descriptors.
    pub(crate) fn is_quiet(&self) -> bool {
        self.phase == Phase::Closed && self.watches.are_over()
    }
}

/// Returns the address under which a card looks for it: of a GPU, the one that its dma-buf was registered with.
fn address_of(mem: Mem) -> u64 {
    match mem {
        Mem::Device { at, .. } => at,
        _ => mem.host_ptr() as u64,
    }
}

/// Registers a command's memory for itself.
fn register(domain: &Arc<RdmaDomain>, at: NonNull<u8>, bytes: usize, out: bool) -> Result<RdmaRegion, Fault> {
    // SAFETY: a command's memory is its queue's until the command is reported, or its connection was closed; the region
    // goes before either.
    let made = unsafe {
        match out {
            true => RdmaRegion::register_to_be_read(domain, at, bytes),
            false => RdmaRegion::register(domain, at, bytes),
        }
    };
    made.map_err(|e| {
        let errno = e.raw_os_error().unwrap_or(libc::EFAULT);
        let device = &domain.device;
        Fault::note(
            errno,
            format!("{bytes} bytes can't be registered with {device}: {e} (ulimit -l unlimited)"),
        )
    })
}

/// A few bytes that go with a command.
fn copied(mem: Mem, len: u32) -> Result<Vec<u8>, Fault> {
    let Mem::Host { at, .. } = mem else {
        return Err(Fault::note(libc::EFAULT, "the payload has no host memory"));
    };
    // SAFETY: a command's memory holds its data, and is the queue's.
    Ok(unsafe { std::slice::from_raw_parts(at.as_ptr(), len as usize) }.to_vec())
}

fn response_at(entries: u16, index: u16) -> usize {
    usize::from(entries) * CAPSULE + usize::from(index) * RESPONSE
}

fn response(buffer: &RdmaBuffer, entries: u16, index: u16) -> RdmaSge {
    buffer.stretch(response_at(entries, index), RESPONSE)
}

fn why_rejected(event: &RdmaEvent) -> String {
    match (event.status, rejected(&event.private)) {
        (REJECTED_BY_PEER, Some(refusal)) => format!("the controller refuses the queue: {refusal}"),
        (REJECTED_UNKNOWN, _) => "nothing is listening there for RDMA".into(),
        (status, _) => format!("the connection was rejected, for reason {status}"),
    }
}
