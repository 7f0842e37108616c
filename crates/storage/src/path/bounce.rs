//! `bounce`: a queue over a queue plus a copy. Payload is read into a ring of staging buffers and copied to its
//! destination while further reads are in flight; writes do the reverse.
//!
//! The staging buffers are pinned for the GPU and registered with the ring, so that neither stage pins pages for each
//! I/O.

use super::{About, Beside, DataPath, Ends, Layer, QueueFactory, Refusal, WorkerContext};
use crate::source::Target;
use forebay_io::{
    monotonic_now, Arena, Check, CheckState, Copier, Done, Fault, Full, Geometry, Io, Mem, Op, Queue,
    Reactor, Verdicts, Via,
};
use forebay_model::job::{Engine, JobSpec, PathKind};
use forebay_model::Error;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

pub(crate) struct Bounce;

impl DataPath for Bounce {
    fn about(&self) -> &'static About {
        &About {
            kind: PathKind::Bounce,
            name: "bounce",
            what: "storage to reused pinned host buffers to the GPU, reads and copies overlapped",
            needs: "libcuda; with no GPU the destination is host memory, and the record says so",
            serves: "every source",
            ends: Ends::GpuIfAny,
            may_go_direct: false,
        }
    }

    fn examined(&self, verdicts: &Verdicts) -> Check {
        let check = |state, found: &str| Check::of_path(self.name(), state, found);
        match &verdicts.bounce.because {
            None => check(CheckState::Works, "storage to pinned host memory to the GPU"),
            Some(because) => check(CheckState::Limited, "its destination is host memory, and records say so")
                .why(because.clone()),
        }
    }

    fn refuses(&self, job: &JobSpec) -> Result<Option<Refusal>, Error> {
        Ok(job.require_direct.then_some((
            "‹require_direct› with ‹path› bounce",
            "bounce stages every byte in host memory",
            "‹path› host, or no ‹require_direct›",
        )))
    }

    fn beside(&self, slots: u32, slot_bytes: u64, _: bool) -> Option<Beside> {
        Some(Beside { count: slots, bytes_each: slot_bytes })
    }

    fn brings_together(&self, _: &JobSpec) -> &'static str {
        "what was read together is copied together: by one kernel launch if it is short or lies apart, else by one copy"
    }

    fn copies_on(&self) -> bool {
        true
    }

    /// Returns whether rows are copied out of a mapping.
    fn takes_rows(&self, target: &Target) -> bool {
        target.is_file() && target.files().iter().all(|(_, engine)| *engine == Engine::Map)
    }

    fn equip(&self, _: &WorkerContext, _: &mut Reactor) -> Result<Box<dyn QueueFactory>, Error> {
        Ok(Box::new(Bouncing))
    }
}

struct Bouncing;

impl QueueFactory for Bouncing {
    fn ran(&self) -> &'static str {
        Bounce.name()
    }

    fn queue(
        &self,
        target: &Target,
        layer: Layer,
        context: &WorkerContext,
        reactor: &mut Reactor,
    ) -> Result<Box<dyn Queue>, Error> {
        let staging = context.beside.expect("it asked for slots of its own");
        let inner = layer(target.queue(context.needs.then_copied(), reactor)?);
        let inline = target.is_inline() && !context.layered;
        let bounce = BounceQueue::new(inner, inline, context.copiers.next_from_slots()?, staging);
        let bounce = if context.job.batch.is_some() { bounce.sending_whole() } else { bounce };
        Ok(Box::new(bounce.with_below_max(context.at_work)))
    }
}

/// Copies from an inline source are issued together up to this many bytes: with fewer, the device idles between them;
/// with more, it waits for the first.
const SEND_BYTES: usize = 4 << 20;
/// Smaller copies take the device as long as one of this size.
const SEND_BYTES_MIN: usize = 64 << 10;
/// Short reads of an inline source are issued in small groups, so that their data is still in the L1 or L2 cache.
const HANDFUL_BYTES: usize = 64 << 10;
/// While reads are in flight that will wake the worker, completed copies may wait this long to be noticed.
const PATIENCE: Duration = Duration::from_micros(30);

#[derive(Clone, Copy)]
struct Pending {
    io: Io,
    moved: u32,
    copy_from: Option<Instant>,
    copy_ns: u32,
}

pub(crate) struct BounceQueue {
    inner: Box<dyn Queue>,
    /// The inner queue reads synchronously, in `submit`.
    inline: bool,
    /// Reads that wait for `submit`, so that each is copied on while the next is being read.
    held: Vec<Io>,
    copier: Box<dyn Copier>,
    staging: Vec<Mem>,
    /// Rows were pushed and aren't read yet.
    rows_held: bool,
    /// Half of the staging buffers, within bounds: one half is being filled while the other is being copied.
    send_bytes: usize,
    /// I/Os in the inner queue, and its limit. The remaining slots are being copied.
    below: u32,
    below_max: u32,
    pending: Vec<Option<Pending>>,
    /// Staged writes that wait for room in the inner queue.
    staged: Vec<Io>,
    /// Data in staging buffers that isn't copied yet, in the order of arrival.
    landed: VecDeque<Done>,
    finished: Vec<Done>,
    copies: Vec<(u32, Option<Fault>)>,
    done: Vec<Done>,
    in_flight: u32,
}

impl BounceQueue {
    /// `staging` has a slot for each of the inner queue's tags. `inline`: the inner queue finishes in `submit`.
    pub(crate) fn new(inner: Box<dyn Queue>, inline: bool, copier: Box<dyn Copier>, staging: &Arena) -> Self {
        let depth = inner.geometry().depth as usize;
        assert!(staging.count() >= depth, "a staging slot for each I/O");
        let half = depth * staging.slot_bytes() / 2;
        BounceQueue {
            send_bytes: half.clamp(SEND_BYTES_MIN, SEND_BYTES),
            below: 0,
            below_max: depth as u32,
            inner,
            inline,
            held: Vec::new(),
            rows_held: false,
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

    /// Limits the inner queue to this many I/Os, so that the additional slots hold data that is being copied while
    /// the source keeps the requested depth.
    pub(crate) fn with_below_max(self, below_max: u32) -> Self {
        BounceQueue { below_max, ..self }
    }

    /// Everything pushed before a `submit` is copied together.
    pub(crate) fn sending_whole(self) -> Self {
        BounceQueue { send_bytes: usize::MAX, ..self }
    }

    fn through_staging(&self, io: &Io) -> Io {
        Io { mem: self.staging[io.tag as usize], ..*io }
    }

    fn start_copy(&mut self, tag: u32, bytes: u32, now: Instant) {
        let pending = self.pending[tag as usize].as_mut().expect("a tag in flight");
        pending.moved = bytes;
        pending.copy_from = Some(now);
        let (staging, outside) = (self.staging[tag as usize], pending.io.mem);
        match pending.io.op {
            _ if outside.is_scattered() => self.copies.push((tag, Some(super::scattered()))),
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

    fn below_done(&mut self, d: Done, now: Instant) {
        let reads = self.pending[d.tag as usize].is_some_and(|p| p.io.op == Op::Read);
        match d.result {
            Ok(bytes) if reads && bytes > 0 => self.start_copy(d.tag, bytes, now),
            result => self.finish(d.tag, result),
        }
    }

    fn copy_done(&mut self, tag: u32, fault: Option<Fault>, now: Instant) {
        let pending = self.pending[tag as usize].as_mut().expect("a tag in flight");
        let took = pending.copy_from.map_or(0, |from| now.duration_since(from).as_nanos());
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
        if !copies.is_empty() {
            let now = monotonic_now();
            copies.drain(..).for_each(|(tag, fault)| self.copy_done(tag, fault, now));
        }
        self.copies = copies;
    }

    /// Reads a few at a time, and issues the copies of one group while the next is being read.
    fn read_held(&mut self, reactor: &mut Reactor) {
        let mut held = std::mem::take(&mut self.held);
        let (mut unread, mut unsent) = (0, 0);
        for io in held.drain(..) {
            if self.inner.push(io, reactor).is_err() {
                self.finish(io.tag, Err(Fault::note(libc::EAGAIN, "the source had no room")));
                continue;
            }
            self.below += 1;
            unread += io.len as usize;
            if unread < HANDFUL_BYTES {
                continue;
            }
            unsent += std::mem::take(&mut unread);
            self.read_handful(reactor);
            if unsent >= self.send_bytes {
                self.copier.submit();
                unsent = 0;
            }
        }
        if unread > 0 {
            self.read_handful(reactor);
        }
        self.held = held;
    }

    fn read_handful(&mut self, reactor: &mut Reactor) {
        self.inner.submit(reactor);
        self.take_landed(reactor);
        self.copy_landed(usize::MAX);
    }

    fn take_landed(&mut self, reactor: &mut Reactor) {
        let mut finished = std::mem::take(&mut self.finished);
        self.inner.reap(reactor, &mut finished);
        self.below -= finished.len() as u32;
        self.landed.extend(finished.drain(..));
        self.finished = finished;
    }

    fn copy_landed(&mut self, at_most: usize) {
        if self.landed.is_empty() {
            return;
        }
        let now = monotonic_now();
        for _ in 0..at_most.min(self.landed.len()) {
            if let Some(d) = self.landed.pop_front() {
                self.below_done(d, now);
            }
        }
    }

    fn push_staged(&mut self, reactor: &mut Reactor) {
        while self.below < self.below_max {
            let Some(io) = self.staged.pop() else { break };
            if let Err(Full(io)) = self.inner.push(io, reactor) {
                self.staged.push(io);
                break;
            }
            self.below += 1;
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

    fn takes_more(&self) -> bool {
        self.below < self.below_max
    }

    fn push(&mut self, io: Io, reactor: &mut Reactor) -> Result<(), Full> {
        let reads = io.op == Op::Read;
        if self.in_flight == self.pending.len() as u32 || (reads && self.below >= self.below_max) {
            return Err(Full(io));
        }
        self.pending[io.tag as usize] = Some(Pending { io, moved: 0, copy_from: None, copy_ns: 0 });
        if let Op::Write { .. } = io.op {
            self.start_copy(io.tag, io.len, monotonic_now());
        } else if self.inline {
            self.held.push(self.through_staging(&io));
        } else if self.inner.push(self.through_staging(&io), reactor).is_err() {
            self.pending[io.tag as usize] = None;
            return Err(Full(io));
        } else {
            self.below += 1;
        }
        self.in_flight += 1;
        Ok(())
    }

    fn takes_rows(&self) -> bool {
        self.inline && self.inner.takes_rows()
    }

    fn push_rows(&mut self, io: Io, rows: &[u64], reactor: &mut Reactor) -> Result<(), Full> {
        if self.in_flight == self.pending.len() as u32 || self.below >= self.below_max || !self.takes_rows() {
            return Err(Full(io));
        }
        if self.inner.push_rows(self.through_staging(&io), rows, reactor).is_err() {
            return Err(Full(io));
        }
        self.pending[io.tag as usize] = Some(Pending { io, moved: 0, copy_from: None, copy_ns: 0 });
        self.rows_held = true;
        self.below += 1;
        self.in_flight += 1;
        Ok(())
    }

    fn submit(&mut self, reactor: &mut Reactor) {
        self.reap_copies();
        self.push_staged(reactor);
        self.inner.submit(reactor);
        if std::mem::take(&mut self.rows_held) {
            // They are read: their copy runs while the next are being read.
            self.take_landed(reactor);
            self.copy_landed(usize::MAX);
        }
        self.read_held(reactor);
        self.copier.submit();
    }

    fn reap(&mut self, reactor: &mut Reactor, done: &mut Vec<Done>) {
        self.take_landed(reactor);
        // A slot that was copied on should be reading again before the next one is copied.
        self.copy_landed(self.copier.at_once());
        self.copier.submit();
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

    fn wakes_at_first(&self) -> bool {
        self.inner.wakes_at_first()
    }

    fn close(&mut self, reactor: &mut Reactor) {
        self.inner.close(reactor);
    }

    fn next_due(&self) -> Option<Instant> {
        if !self.landed.is_empty() {
            return Some(monotonic_now());
        }
        // With every read under way that may be, a slot gained by looking early would only lie idle.
        let busy_below = !self.inline && self.below == self.below_max;
        let copied = self.copier.next_due().map(|due| if busy_below { due + PATIENCE } else { due });
        [self.inner.next_due(), copied].into_iter().flatten().min()
    }
}
