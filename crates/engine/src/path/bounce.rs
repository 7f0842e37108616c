//! `bounce`: a queue over a queue plus a copy. Payload is read into a ring of
//! staging slots and copied on to its destination while further reads are under
//! way; writes go the other way round.
//!
//! The staging slots are pinned for the GPU and registered with the ring, so
//! that neither stage pins a page per I/O.

use crate::arena::{Arena, Mem};
use crate::clock;
use crate::queue::{Done, Fault, Full, Geometry, Io, Op, Queue, Via};
use crate::reactor::Reactor;
use std::collections::VecDeque;
use std::time::Instant;

/// Moves payload between staging slots and the destination. Never blocks on a device: what
/// isn't finished at once is reaped later, and wakes the reactor.
pub trait Copier {
    /// Starts a copy of `bytes`, named by `tag`.
    fn start(&mut self, tag: u32, from: Mem, to: Mem, bytes: usize);

    /// Appends the tags of finished copies, each with its fault if it failed.
    fn reap(&mut self, done: &mut Vec<(u32, Option<Fault>)>);

    /// Copies that the worker should start before it looks after its reads again: one, where it copies
    /// with its own hands.
    fn at_once(&self) -> usize;
}

/// The destination is host memory: one memcpy by the worker.
#[derive(Default)]
pub struct HostCopier(Vec<u32>);

impl Copier for HostCopier {
    fn start(&mut self, tag: u32, from: Mem, to: Mem, bytes: usize) {
        // SAFETY: both are slots of at least `bytes`, of different arenas, and belong to this I/O until it is reaped.
        unsafe { std::ptr::copy_nonoverlapping(from.host_ptr(), to.host_ptr(), bytes) };
        self.0.push(tag);
    }

    fn reap(&mut self, done: &mut Vec<(u32, Option<Fault>)>) {
        done.extend(self.0.drain(..).map(|tag| (tag, None)));
    }

    fn at_once(&self) -> usize {
        1
    }
}

#[derive(Clone, Copy)]
struct Pending {
    io: Io,
    moved: u32,
    copy_from: Option<Instant>,
    copy_ns: u32,
}

pub struct BounceQueue {
    inner: Box<dyn Queue>,
    copier: Box<dyn Copier>,
    staging: Vec<Mem>,
    pending: Vec<Option<Pending>>,
    /// Writes that are staged and wait for room below.
    staged: Vec<Io>,
    /// Read into staging and not yet copied on, in the order of arrival.
    landed: VecDeque<Done>,
    finished: Vec<Done>,
    copies: Vec<(u32, Option<Fault>)>,
    done: Vec<Done>,
    in_flight: u32,
}

impl BounceQueue {
    /// `staging` has a slot for each of the inner queue's tags.
    pub fn new(inner: Box<dyn Queue>, copier: Box<dyn Copier>, staging: &Arena) -> Self {
        let depth = inner.geometry().depth as usize;
        assert!(staging.count() >= depth, "a staging slot for each I/O");
        BounceQueue {
            inner,
            copier,
            staging: (0..depth).map(|i| staging.slot(i)).collect(),
            pending: vec![None; depth],
            staged: Vec::new(),
            landed: VecDeque::with_capacity(depth),
            finished: Vec::new(),
            copies: Vec::new(),
            done: Vec::new(),
            in_flight: 0,
        }
    }

    fn through_staging(&self, io: &Io) -> Io {
        Io { mem: self.staging[io.tag as usize], ..*io }
    }

    fn start_copy(&mut self, tag: u32, bytes: u32) {
        let pending = self.pending[tag as usize].as_mut().expect("a tag in flight");
        pending.moved = bytes;
        pending.copy_from = Some(clock::now());
        let (staging, outside) = (self.staging[tag as usize], pending.io.mem);
        match pending.io.op {
            Op::Read => self.copier.start(tag, staging, outside, bytes as usize),
            _ => self.copier.start(tag, outside, staging, bytes as usize),
        }
    }

    fn finish(&mut self, tag: u32, result: Result<u32, Fault>) {
        let pending = self.pending[tag as usize].take().expect("a tag in flight");
        self.in_flight -= 1;
        let via = if result.is_ok() && pending.moved > 0 { Via::Staged } else { Via::Nothing };
        self.done.push(Done { tag, result, via, copy_ns: pending.copy_ns });
    }

    fn below_done(&mut self, d: Done) {
        let reads = self.pending[d.tag as usize].is_some_and(|p| p.io.op == Op::Read);
        match d.result {
            Ok(bytes) if reads && bytes > 0 => self.start_copy(d.tag, bytes),
            result => self.finish(d.tag, result),
        }
    }

    fn copy_done(&mut self, tag: u32, fault: Option<Fault>) {
        let pending = self.pending[tag as usize].as_mut().expect("a tag in flight");
        let took = pending.copy_from.map_or(0, |t| t.elapsed().as_nanos());
        pending.copy_ns = took.min(u128::from(u32::MAX)) as u32;
        let pending = *pending;
        match fault {
            Some(fault) => self.finish(tag, Err(fault)),
            None if pending.io.op == Op::Read => self.finish(tag, Ok(pending.moved)),
            None => self.staged.push(self.through_staging(&pending.io)),
        }
    }

    fn reap_copies(&mut self) {
        let mut copies = std::mem::take(&mut self.copies);
        self.copier.reap(&mut copies);
        copies.drain(..).for_each(|(tag, fault)| self.copy_done(tag, fault));
        self.copies = copies;
    }

    fn push_staged(&mut self, reactor: &mut Reactor) {
        while let Some(io) = self.staged.pop() {
            if let Err(Full(io)) = self.inner.push(io, reactor) {
                self.staged.push(io);
                break;
            }
        }
    }
}

impl Queue for BounceQueue {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn in_flight(&self) -> u32 {
        self.in_flight
    }

    fn push(&mut self, io: Io, reactor: &mut Reactor) -> Result<(), Full> {
        if self.in_flight == self.geometry().depth {
            return Err(Full(io));
        }
        self.pending[io.tag as usize] = Some(Pending { io, moved: 0, copy_from: None, copy_ns: 0 });
        if let Op::Write { .. } = io.op {
            self.start_copy(io.tag, io.len);
        } else if self.inner.push(self.through_staging(&io), reactor).is_err() {
            self.pending[io.tag as usize] = None;
            return Err(Full(io));
        }
        self.in_flight += 1;
        Ok(())
    }

    fn submit(&mut self, reactor: &mut Reactor) {
        self.reap_copies();
        self.push_staged(reactor);
        self.inner.submit(reactor);
    }

    fn reap(&mut self, reactor: &mut Reactor, done: &mut Vec<Done>) {
        let mut finished = std::mem::take(&mut self.finished);
        self.inner.reap(reactor, &mut finished);
        self.landed.extend(finished.drain(..));
        self.finished = finished;
        // A slot that was copied on should be reading again before the next one is copied.
        for _ in 0..self.copier.at_once().min(self.landed.len()) {
            if let Some(d) = self.landed.pop_front() {
                self.below_done(d);
            }
        }
        self.reap_copies();
        if !self.staged.is_empty() {
            self.push_staged(reactor);
            self.inner.submit(reactor);
        }
        done.append(&mut self.done);
    }

    fn abandon(&mut self, tag: u32, reactor: &mut Reactor) {
        self.inner.abandon(tag, reactor);
    }

    fn next_due(&self) -> Option<Instant> {
        if self.landed.is_empty() {
            self.inner.next_due()
        } else {
            Some(clock::now())
        }
    }
}
