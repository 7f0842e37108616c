//! One thread's queue of one namespace, and what it counts there.

use super::stats::{Counters, Counts, Histogram, NamespaceStats};
use super::steps::{Bounds, Step};
use super::volume::{Volume, NAMESPACE_QUEUE_DEPTH};
use forebay_io::{
    monotonic_now, Client, ClientCompletion, CompletionEnd, Fault, Mem, Patience, Reactor, Submission,
    Travelled, Via,
};
use forebay_model::Error;
use forebay_nvme::controller::subsystem::AnaState;
use forebay_nvme::nvm::Geometry;
use forebay_nvme::transport::tcp::Handle;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

/// The number of a queue's queue at its client.
const QUEUE: u32 = 0;

/// A command of one of the thread's connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub connection: u32,
    pub command: Handle,
}

/// A step that is over.
#[derive(Debug)]
pub(crate) struct Finished<O = Owner> {
    pub owner: O,
    /// Bytes moved.
    pub result: Result<u32, Fault>,
    pub via: Via,
}

impl<O> Finished<O> {
    /// Returns the bytes that a CPU copied in memory between the source and the requester.
    pub(crate) fn staged_bytes(&self) -> u64 {
        match (&self.result, self.via) {
            (Ok(bytes), Via::Staged | Via::Compat) => (*bytes).into(),
            _ => 0,
        }
    }
}

/// `O`: how the thread names the command that a step belongs to.
pub(crate) struct NamespaceQueue<O = Owner> {
    pub volume: Arc<Volume>,
    pub counts: Counts,
    published: Counts,
    pub read_latency: Histogram,
    pub write_latency: Histogram,
    /// The namespace is gone: what is in flight finishes, then the queue goes.
    pub retired: bool,
    pub geometry: Geometry,
    /// I/Os that failed.
    faults: u64,
    /// Way of a completed command's payload.
    pub travelled: Travelled,
    /// Its connections want to be heard though no I/O is in flight.
    attentive: bool,
    /// Its source stands on files, among others.
    pub over_files: bool,
    /// Its source takes payload at multiples of so many bytes, in pieces that are multiples of so many.
    takes: (u32, u32),
    /// Longest piece of Write Zeroes and Deallocate.
    pub piece_max: u32,
    /// Client of one queue. A host tries again what can't be carried out now.
    client: Client<Option<O>>,
    /// Steps that no tag was free for, or that came after those.
    full: VecDeque<(O, Step)>,
    pushed: bool,
    /// Nothing here has a time-out, so that this will do for all of them.
    opened: Instant,
}

impl<O: Copy> NamespaceQueue<O> {
    pub(crate) fn open(
        volume: Arc<Volume>,
        io_bytes_max: u32,
        thread: u32,
        reactor: &mut Reactor,
    ) -> Result<NamespaceQueue<O>, Error> {
        let queue = volume.queue(io_bytes_max, thread, reactor)?;
        let takes = (queue.geometry().mem_align, queue.geometry().align);
        let depth = queue.geometry().depth.min(NAMESPACE_QUEUE_DEPTH);
        let mut client = Client::new(depth, false, None, |_| Mem::None).with_patience(Patience::None);
        client.add(queue);
        let plain = volume.target.is_file();
        Ok(NamespaceQueue {
            over_files: !volume.target.files().is_empty(),
            takes,
            attentive: volume.target.needs_ring(),
            geometry: Geometry::new(&volume.as_namespace(), AnaState::Optimized, Some(io_bytes_max)),
            faults: 0,
            travelled: Travelled::default(),
            piece_max: if plain { 1 << 30 } else { io_bytes_max },
            volume,
            client,
            full: VecDeque::new(),
            pushed: false,
            opened: monotonic_now(),
            retired: false,
            counts: Counts::default(),
            published: Counts::default(),
            read_latency: Histogram::default(),
            write_latency: Histogram::default(),
        })
    }

    /// Returns whether the source can move `len` bytes to or from where they lie.
    pub(crate) fn takes(&self, mem: Mem, len: usize) -> bool {
        let (at, of) = (self.takes.0 as usize, self.takes.1 as usize);
        at <= 1 || mem.each(len).all(|piece| piece.at.as_ptr() as usize % at == 0 && piece.len % of == 0)
    }

    /// Returns the place of these bytes, if they lie in memory already.
    pub(crate) fn lend(&mut self, offset: u64, len: u32) -> Option<Mem> {
        self.client.queue(QUEUE).lend(offset, len)
    }

    /// Hands a step to the source, or keeps it until there is room.
    pub(crate) fn start(&mut self, owner: O, step: Step, reactor: &mut Reactor) {
        if !self.full.is_empty() || self.client.is_owed() || !self.push(owner, step, reactor) {
            self.full.push_back((owner, step));
        }
    }

    /// False: all tags are taken.
    fn push(&mut self, owner: O, step: Step, reactor: &mut Reactor) -> bool {
        let Step { op, offset, len, mem } = step;
        let submission = Submission { queue: QUEUE, op, offset, len, want: len, owner: Some(owner) };
        let Some(tag) = self.client.begin(submission, self.opened) else { return false };
        self.client.set_mem(tag, mem);
        #[cfg(test)]
        self.volume.recorded.begin(tag, op);
        self.client.push(tag, reactor);
        self.pushed = true;
        true
    }

    /// Starts what was pushed, and appends what is done.
    pub(crate) fn turn(&mut self, reactor: &mut Reactor, finished: &mut Vec<Finished<O>>) {
        if std::mem::take(&mut self.pushed) {
            self.client.submit(reactor);
        }
        match self.attentive {
            true => self.client.collect_all(reactor),
            false => self.client.collect(reactor),
        }
        let mut done = self.client.take_done();
        for done in done.drain(..) {
            if let Some(over) = self.client.complete(done) {
                finished.push(self.finish(over));
            }
        }
        self.client.spare(done);
        self.offer(reactor);
        while let Some(over) = self.client.take_refused() {
            finished.push(self.finish(over));
        }
    }

    /// Hands over what waits, as far as there is room.
    fn offer(&mut self, reactor: &mut Reactor) {
        let before = self.client.in_flight();
        self.client.push_again(reactor);
        self.pushed |= self.client.in_flight() > before;
        while let Some((owner, step)) = self.full.front().copied() {
            if self.client.is_owed() || !self.push(owner, step, reactor) {
                return;
            }
            self.full.pop_front();
        }
    }

    fn finish(&mut self, over: ClientCompletion) -> Finished<O> {
        let pending = self.client.io(over.tag);
        let moved = pending.moved;
        let owner = pending.submission.owner.expect("a step has an owner");
        let result = match over.end {
            CompletionEnd::Whole | CompletionEnd::Early => Ok(moved),
            CompletionEnd::Failed(fault) | CompletionEnd::GivenUp(fault) => Err(fault),
        };
        self.travelled.add(over.via, result.as_ref().map_or(0, |bytes| (*bytes).into()));
        #[cfg(test)]
        self.volume.recorded.end(over.tag);
        self.client.release(over.tag);
        Finished { owner, result, via: over.via }
    }

    pub(crate) fn bounds(&self) -> Bounds<'_> {
        let (geometry, write_cache) = (&self.geometry, self.volume.write_cache);
        Bounds { geometry, piece_max: self.piece_max, write_cache }
    }

    pub(crate) fn counters(&mut self) -> Counters<'_> {
        Counters {
            counts: &mut self.counts,
            read_latency: &mut self.read_latency,
            write_latency: &mut self.write_latency,
        }
    }

    /// An I/O failed. Some: it is to be told, as the so-and-so-many-th. Each time twice as many: a source that fails
    /// for good doesn't fill the log.
    pub(crate) fn fault(&mut self) -> Option<u64> {
        self.faults += 1;
        self.faults.is_power_of_two().then_some(self.faults)
    }

    /// Something was pushed that isn't started.
    pub(crate) fn is_pushed(&self) -> bool {
        self.pushed
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.client.in_flight() == 0 && !self.client.is_owed() && self.full.is_empty()
    }

    /// Asks the source to give up on all that `whose` names. Returns those that it hadn't got yet: they are over.
    pub(crate) fn abandon(&mut self, whose: impl Fn(&O) -> bool, reactor: &mut Reactor) -> Vec<O> {
        let named = |owner: &Option<O>| owner.as_ref().is_some_and(&whose);
        let mut over: Vec<O> = Vec::new();
        for tag in self.client.take_owed(named) {
            over.extend(self.client.io(tag).submission.owner);
            self.client.release(tag);
        }
        let tags: Vec<u32> =
            self.client.tags().filter(|tag| named(&self.client.io(*tag).submission.owner)).collect();
        tags.into_iter().for_each(|tag| self.client.abandon(tag, reactor));
        let (gone, kept): (VecDeque<_>, _) =
            std::mem::take(&mut self.full).into_iter().partition(|(owner, _)| whose(owner));
        self.full = kept;
        over.extend(gone.into_iter().map(|(owner, _)| owner));
        over
    }

    /// Shows other threads what was counted here, up to `now`.
    pub(crate) fn publish(&mut self, thread: usize, now: Instant) {
        if self.counts != self.published {
            self.published = self.counts;
            self.volume.busy.note(now);
            self.volume.live(thread).set(&self.counts);
        }
    }

    /// The queue goes: what it counted stays with its volume.
    pub(crate) fn end(&self, thread: usize) {
        let mut past = self.volume.past();
        self.add_to(&mut past);
        self.volume.live(thread).set(&Counts::default());
    }

    /// Adds what was counted here to a snapshot.
    pub(crate) fn add_to(&self, stats: &mut NamespaceStats) {
        stats.counts.add(&self.counts);
        self.read_latency.add_to(&mut stats.read_latency);
        self.write_latency.add_to(&mut stats.write_latency);
    }

    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.client.due_of(QUEUE)
    }
}
