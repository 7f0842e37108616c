//! One I/O queue pair as a worker has it: commands go in, completions come out,
//! and the device is told by whatever costs least: nothing where it looks at the
//! shadow doorbells by itself, an eventfd or a message where it sleeps.

use super::client::{Line, Posted};
use super::shm::Shared;
use super::uring::{self, Interrupt};
use super::wire::REGION_BAR0;
use crate::source::nvme::{Connected, Traffic};
use forebay_io::{monotonic_now, Glance, Reactor, RingCompletion};
use forebay_nvme::command::{Cqe, Sqe};
use forebay_nvme::transport::pcie::host::{point, HostQueue, Rung};
use forebay_nvme::transport::pcie::HostMemory;
use rustix::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// No command has this identifier.
const NONE: u32 = u32::MAX;
/// Time after which a doorbell is rung again for which the socket had no room.
const AGAIN: Duration = Duration::from_micros(200);
/// Kinds of a pair's completions on the ring.
const KINDS: u32 = 2;
const INTERRUPT: u32 = 0;
const BELL: u32 = 1;

/// Way of ringing a doorbell.
#[derive(Clone, Debug)]
pub(super) enum Bell {
    /// It carries no value: the shadow doorbell does.
    Descriptor(Arc<OwnedFd>),
    Line(Arc<Line>),
}

/// A queue pair before a worker has it.
#[derive(Debug)]
pub(super) struct PairParts {
    pub queue: HostQueue,
    pub memory: Arc<Shared>,
    pub interrupt: Arc<OwnedFd>,
    /// Bells of the submission queue, and of the completion queue.
    pub bells: [Bell; 2],
    /// Pages for lists of addresses.
    pub lists: Vec<u64>,
}

/// Place of the next completion.
struct NextCompletion {
    memory: Arc<Shared>,
    /// Address of the entry's last dword.
    at: AtomicU64,
    /// Expected phase bit.
    phase: AtomicU32,
    /// Something is in flight.
    on: AtomicBool,
    closed: AtomicBool,
}

/// Phase tag in the last dword of an entry (base, figure 90).
const PHASE: u32 = 1 << 16;

impl Glance for NextCompletion {
    fn is_ready(&self) -> bool {
        self.on.load(Ordering::Relaxed) && {
            let word = self.memory.load(self.at.load(Ordering::Relaxed));
            word.is_ok_and(|word| word & PHASE == self.phase.load(Ordering::Relaxed))
        }
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }
}

/// Place of a command's payload.
#[derive(Clone, Copy, Debug)]
pub(super) enum Payload<'a> {
    None,
    /// `bytes` that the device has at this address.
    At(u64, u32),
    /// A few bytes to the device, which go where lists of addresses do.
    Inline(&'a [u8]),
}

pub(super) struct QueuePair {
    /// Names its completions on the ring; no pair before had it.
    id: u32,
    pub qid: u16,
    pub traffic: Arc<Traffic>,
    up: Option<Connected>,
    pub parts: PairParts,
    sgl: bool,
    next: Arc<NextCompletion>,
    interrupt: Interrupt,
    /// By command identifier: whose it is, and its list.
    out: Vec<(u32, Option<u64>)>,
    in_flight: u32,
    /// The submission queue has commands that weren't published.
    filled: bool,
    /// Doorbells for which the socket had no room.
    owed: [Option<Rung>; 2],
    retry_at: Option<Instant>,
    /// Completions, or a submission into an empty queue, last happened.
    active: Instant,
    pub broken: Option<String>,
}

impl QueuePair {
    pub(crate) fn new(
        id: u32,
        qid: u16,
        parts: PairParts,
        sgl: bool,
        traffic: Arc<Traffic>,
        reactor: &mut Reactor,
    ) -> QueuePair {
        let next = Arc::new(NextCompletion {
            memory: parts.memory.clone(),
            at: AtomicU64::new(0),
            phase: AtomicU32::new(0),
            on: AtomicBool::new(false),
            closed: AtomicBool::new(false),
        });
        reactor.look_at(next.clone());
        let pair = QueuePair {
            id,
            qid,
            up: Some(Connected::new(&traffic)),
            traffic,
            sgl,
            next,
            interrupt: Interrupt::new(parts.interrupt.clone()),
            out: vec![(NONE, None); usize::from(parts.queue.depth())],
            parts,
            in_flight: 0,
            filled: false,
            owed: [None; 2],
            retry_at: None,
            active: monotonic_now(),
            broken: None,
        };
        pair.expect_next();
        pair
    }

    /// A command can go in; `inline`: one whose few bytes go where lists of addresses do.
    pub(crate) fn has_room(&self, inline: bool) -> bool {
        let listed = self.sgl && !inline || !self.parts.lists.is_empty();
        self.broken.is_none() && self.parts.queue.room() > 0 && listed
    }

    /// Puts a command into the queue; `publish` shows it to the device.
    pub(crate) fn put(&mut self, command: u32, sqe: Sqe, payload: Payload, now: Instant) {
        let memory = &*self.parts.memory;
        let listed = match payload {
            Payload::None => false,
            Payload::At(..) => !self.sgl,
            Payload::Inline(_) => true,
        };
        let list = if listed { self.parts.lists.pop() } else { None };
        let at = list.unwrap_or(0);
        let pointed = match payload {
            Payload::None => Ok(sqe),
            Payload::At(address, bytes) => point(memory, sqe, address, bytes, self.sgl, at),
            Payload::Inline(data) => {
                memory.write(at, data).and_then(|()| point(memory, sqe, at, data.len() as u32, self.sgl, at))
            }
        };
        match pointed.and_then(|sqe| self.parts.queue.push(memory, sqe)) {
            Ok(Some(cid)) => {
                self.traffic.sends();
                self.out[usize::from(cid)] = (command, list);
                if self.in_flight == 0 {
                    self.active = now;
                }
                self.in_flight += 1;
                self.filled = true;
                self.next.on.store(true, Ordering::Relaxed);
            }
            Ok(None) => self.fail("its queue was full"),
            Err(unmapped) => self.fail(&unmapped.to_string()),
        }
    }

    /// Shows the device what was put in.
    pub(crate) fn publish(&mut self, reactor: &mut Reactor, token: u32) {
        if !std::mem::take(&mut self.filled) {
            return;
        }
        match self.parts.queue.ring(&*self.parts.memory) {
            Ok(None) => {}
            Ok(Some(bell)) => self.ring(0, bell, reactor, token),
            Err(unmapped) => self.fail(&unmapped.to_string()),
        }
    }

    fn ring(&mut self, which: usize, bell: Rung, reactor: &mut Reactor, token: u32) {
        match &self.parts.bells[which] {
            Bell::Descriptor(fd) => uring::signal(fd, reactor, token, self.tag(BELL)),
            Bell::Line(line) => match line.post(REGION_BAR0, bell.offset, bell.value) {
                Posted::Sent => self.owed[which] = None,
                Posted::Later => {
                    self.owed[which] = Some(bell);
                    self.retry_at = Some(monotonic_now() + AGAIN);
                }
                Posted::Gone => self.fail("its socket takes no doorbell"),
            },
        }
    }

    /// Rings what the socket had no room for.
    pub(crate) fn ring_again(&mut self, now: Instant, reactor: &mut Reactor, token: u32) {
        if self.retry_at.is_none_or(|at| now < at) {
            return;
        }
        self.retry_at = None;
        for which in 0..2 {
            if let Some(bell) = self.owed[which].take() {
                self.ring(which, bell, reactor, token);
            }
        }
    }

    /// The next command that is done.
    pub(crate) fn take(&mut self) -> Option<(u32, Cqe)> {
        if self.in_flight == 0 || self.broken.is_some() {
            return None;
        }
        match self.parts.queue.reap(&*self.parts.memory) {
            Ok(None) => None,
            Err(unmapped) => {
                self.fail(&unmapped.to_string());
                None
            }
            Ok(Some(cqe)) => {
                let place = self.out.get_mut(usize::from(cqe.cid.get()));
                let Some((command, list)) =
                    place.map(|p| std::mem::replace(p, (NONE, None))).filter(|p| p.0 != NONE)
                else {
                    let cid = cqe.cid.get();
                    self.fail(&format!("it completed command {cid}, which isn't out"));
                    return None;
                };
                self.parts.lists.extend(list);
                self.in_flight -= 1;
                Some((command, cqe))
            }
        }
    }

    /// After `take` gave the last: tells the device that there is room for completions again.
    pub(crate) fn release(&mut self, now: Instant, reactor: &mut Reactor, token: u32) {
        self.active = now;
        self.next.on.store(self.in_flight > 0, Ordering::Relaxed);
        self.expect_next();
        match self.parts.queue.release(&*self.parts.memory) {
            Ok(None) => {}
            Ok(Some(bell)) => self.ring(1, bell, reactor, token),
            Err(unmapped) => self.fail(&unmapped.to_string()),
        }
    }

    fn expect_next(&self) {
        let (at, phase) = self.parts.queue.next_completion();
        self.next.at.store(at, Ordering::Relaxed);
        self.next.phase.store(if phase { PHASE } else { 0 }, Ordering::Relaxed);
    }

    /// Has the ring wait for the interrupt once nothing came for `spin`.
    pub(crate) fn doze(&mut self, now: Instant, spin: Duration, reactor: &mut Reactor, token: u32) {
        let quiet = spin.is_zero() || now >= self.active + spin;
        if self.in_flight > 0 && quiet {
            let tag = self.tag(INTERRUPT);
            self.interrupt.arm(reactor, token, tag);
        }
    }

    /// When it wants to be looked at though nothing came.
    pub(crate) fn due(&self, spin: Duration) -> Option<Instant> {
        let awake = self.in_flight > 0 && !self.interrupt.is_armed();
        let dozes = awake.then(|| self.active + spin);
        dozes.into_iter().chain(self.retry_at).min()
    }

    /// Something of it completed on the ring.
    pub(crate) fn completed(&mut self, completion: RingCompletion) {
        match completion.tag % KINDS {
            INTERRUPT => self.interrupt.fired(),
            _ if completion.result < 0 => self.fail("its doorbell can't be rung"),
            _ => {}
        }
    }

    fn tag(&self, kind: u32) -> u32 {
        self.id.wrapping_mul(KINDS) | kind
    }

    pub(crate) fn owns(&self, completion: RingCompletion) -> bool {
        completion.tag / KINDS == self.id
    }

    pub(crate) fn fail(&mut self, why: &str) {
        self.broken.get_or_insert_with(|| why.into());
    }

    /// The identifier under which a command is out.
    pub(crate) fn cid_of(&self, command: u32) -> Option<u16> {
        self.out.iter().position(|(c, _)| *c == command).map(|cid| cid as u16)
    }

    /// Commands that are out; they are nobody's from now on.
    pub(crate) fn close(&mut self, into: &mut Vec<u32>) {
        into.extend(self.out.iter_mut().map(|p| std::mem::replace(p, (NONE, None)).0).filter(|c| *c != NONE));
        (self.in_flight, self.up) = (0, None);
        self.next.on.store(false, Ordering::Relaxed);
        self.next.closed.store(true, Ordering::Relaxed);
    }

    pub(crate) fn cancel(&mut self, reactor: &mut Reactor, token: u32) {
        let tag = self.tag(INTERRUPT);
        self.interrupt.cancel(reactor, token, tag);
    }

    /// For another worker; None where something of it is still out.
    pub(crate) fn into_parts(self) -> Option<(u16, PairParts)> {
        self.next.closed.store(true, Ordering::Relaxed);
        let idle = self.in_flight == 0 && self.broken.is_none() && !self.interrupt.is_armed();
        idle.then_some((self.qid, self.parts))
    }

    pub(crate) fn is_armed(&self) -> bool {
        self.interrupt.is_armed()
    }
}
