//! Drives queues on behalf of callers that issue I/Os: keeps I/Os that a full queue returned, continues short
//! transfers, retries on EINTR and EAGAIN, cancels I/Os that take too long, and drains. `bench`, checkpoints, the
//! emulator, targets and gateways all use it; the caller's data for an I/O travels with it as its owner, `O`.
//!
//! An I/O has a tag, and its slot of memory, from `begin` until `release`. In between it belongs to the caller (after
//! `begin`, and again once it is over) or to the client (from `push` until `complete` reports that it is over).

mod free;
mod overdue;

pub(crate) use free::FreeSlots;

use crate::arena::Mem;
use crate::clock;
use crate::queue::{Done, Fault, Full, Io, Op, Queue, Via};
use crate::reactor::Reactor;
use std::time::{Duration, Instant};

/// Time that a cancelled I/O may take to complete before its memory is abandoned to the kernel.
pub const CLIENT_GRACE: Duration = Duration::from_secs(2);

/// A requested I/O.
#[derive(Clone, Copy, Debug)]
pub struct Submission<O> {
    /// Number of the queue, as returned by `add`.
    pub queue: u32,
    pub op: Op,
    pub offset: u64,
    /// Bytes requested, and how many of them suffice: a file may end within its last block.
    pub len: u32,
    pub want: u32,
    pub owner: O,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IoState {
    /// Free slot.
    Free,
    /// The caller has it.
    Held,
    /// Slot whose content is made or checked, which counts as under way.
    Verifying,
    /// No queue had room for it, or what a short one left is to go on.
    Again,
    Pushed,
    /// Cancelled and not completed: its memory may still be written to.
    Lost,
}

/// An I/O, or the rest of it after a short transfer.
#[derive(Clone, Copy, Debug)]
pub struct InFlight<O> {
    pub submission: Submission<O>,
    pub mem: Mem,
    /// Bytes that were moved.
    pub moved: u32,
    /// The time-out counts from here.
    pub issued: Instant,
    state: IoState,
    abandoned: bool,
    /// It is of rows, whose offsets aren't kept: nothing of it can be asked for again.
    rows: bool,
}

impl<O> InFlight<O> {
    /// It was cancelled before it was over.
    pub fn is_abandoned(&self) -> bool {
        self.abandoned
    }
}

/// Outcome of an I/O.
#[derive(Debug)]
pub enum End {
    /// Everything requested was moved.
    Whole,
    /// The data ended before it.
    Early,
    Failed(Fault),
    /// It completed after it was cancelled, without all its bytes.
    GivenUp(Fault),
}

/// An I/O that is over: the caller has it, until `release`.
#[derive(Debug)]
pub struct Completion {
    pub tag: u32,
    pub end: End,
    pub via: Via,
    pub copy_ns: u32,
}

/// The outcome of an I/O that took too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Late {
    /// Its queue was asked to cancel it.
    TimedOut,
    /// No queue had it: its tag is the caller's.
    NeverTaken,
    /// It didn't complete. Until it does, its memory belongs to the kernel and its tag is unused.
    Lost,
}

/// Policy for I/Os that can't be executed for the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// They are retried until their time-out.
    UntilGivenUp,
    /// They fail, so that the remote caller can retry them: interrupted I/Os, and those that an empty queue doesn't
    /// accept.
    None,
}

struct Entry {
    queue: Option<Box<dyn Queue>>,
    in_flight: u32,
    /// It stands in `busy`.
    listed: bool,
}

/// Doesn't own the memory, which must outlive the I/Os in flight and the lost ones.
pub struct Client<O> {
    entries: Vec<Entry>,
    /// Queues with something in flight, and some that just ran dry.
    busy: Vec<u32>,
    ios: Vec<InFlight<O>>,
    free: FreeSlots,
    /// I/Os that a full queue returned, and rests of short transfers.
    again: Vec<u32>,
    in_flight: u32,
    patience: Patience,
    /// A short transfer goes on from a multiple of this.
    unit: u32,
    done: Vec<Done>,
    /// I/Os that failed before a queue accepted them.
    refused: Vec<u32>,
    pub short: u64,
    pub retried: u64,
    lost: u32,
}

impl<O: Copy> Client<O> {
    /// A client for this many concurrent I/Os, each with the memory that `slot` returns for its tag. `in_turn`: see
    /// `FreeSlots`.
    pub fn new(depth: u32, in_turn: bool, idle: O, slot: impl Fn(usize) -> Mem) -> Client<O> {
        let (queue, op) = (0, Op::Read);
        let submission = Submission { queue, op, offset: 0, len: 0, want: 0, owner: idle };
        let now = clock::monotonic_now();
        let pending = |n| InFlight {
            submission,
            mem: slot(n),
            moved: 0,
            issued: now,
            state: IoState::Free,
            abandoned: false,
            rows: false,
        };
        Client {
            entries: Vec::new(),
            busy: Vec::new(),
            ios: (0..depth as usize).map(pending).collect(),
            free: FreeSlots::new(depth, in_turn),
            again: Vec::new(),
            in_flight: 0,
            patience: Patience::UntilGivenUp,
            unit: 1,
            done: Vec::with_capacity(depth as usize),
            refused: Vec::new(),
            short: 0,
            retried: 0,
            lost: 0,
        }
    }

    pub fn with_patience(self, patience: Patience) -> Client<O> {
        Client { patience, ..self }
    }

    pub fn with_unit(self, unit: u32) -> Client<O> {
        Client { unit, ..self }
    }

    /// Adds a queue and returns its number.
    pub fn add(&mut self, queue: Box<dyn Queue>) -> u32 {
        let at =
            self.entries.iter().position(|l| l.queue.is_none() && !l.listed).unwrap_or(self.entries.len());
        if at == self.entries.len() {
            self.entries.push(Entry { queue: None, in_flight: 0, listed: false });
        }
        self.entries[at].queue = Some(queue);
        at as u32
    }

    /// Removes a queue. Those of its I/Os that were lost won't be found again.
    pub fn remove(&mut self, queue: u32) -> Box<dyn Queue> {
        let entry = &mut self.entries[queue as usize];
        entry.in_flight = 0;
        if std::mem::take(&mut entry.listed) {
            self.busy.retain(|busy| *busy != queue);
        }
        entry.queue.take().expect("its number names it until it is removed")
    }

    pub fn queue_count(&self) -> u32 {
        self.entries.iter().filter(|entry| entry.queue.is_some()).count() as u32
    }

    #[inline]
    pub fn queue(&mut self, number: u32) -> &mut dyn Queue {
        queue_of(&mut self.entries, number)
    }

    /// The next time at which the queue has something to do, whether it holds an I/O or not.
    pub fn due_of(&self, number: u32) -> Option<Instant> {
        self.entries[number as usize].queue.as_ref()?.next_due()
    }

    #[inline]
    pub fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    #[inline]
    pub fn free_count(&self) -> usize {
        self.free.len()
    }

    #[inline]
    pub fn io(&self, tag: u32) -> &InFlight<O> {
        &self.ios[tag as usize]
    }

    #[inline]
    pub fn submission(&mut self, tag: u32) -> &mut Submission<O> {
        &mut self.ios[tag as usize].submission
    }

    /// I/Os that are under way: their queues have them, or the caller said so by `hold`.
    #[inline]
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Rests and I/Os that no queue has taken.
    #[inline]
    pub fn is_owed(&self) -> bool {
        !self.again.is_empty()
    }

    #[inline]
    pub fn has_done(&self) -> bool {
        !self.done.is_empty() || !self.refused.is_empty()
    }

    /// Tags whose I/Os are the client's.
    pub fn tags(&self) -> impl Iterator<Item = u32> + '_ {
        let busy = |(_, t): &(usize, &InFlight<O>)| matches!(t.state, IoState::Again | IoState::Pushed);
        self.ios.iter().enumerate().filter(busy).map(|(tag, _)| tag as u32)
    }

    /// Assigns a tag to this I/O, which belongs to the caller until it is pushed. None: all are in use.
    #[inline]
    pub fn begin(&mut self, submission: Submission<O>, now: Instant) -> Option<u32> {
        let tag = self.free.take()?;
        // Field by field: its memory stays as it is, and a copy of all by way of the stack would wait for its stores.
        let pending = &mut self.ios[tag as usize];
        pending.submission = submission;
        pending.moved = 0;
        pending.issued = now;
        (pending.state, pending.abandoned, pending.rows) = (IoState::Held, false, false);
        Some(tag)
    }

    /// Sets the memory of an I/O that the caller holds.
    pub fn set_mem(&mut self, tag: u32, mem: Mem) {
        self.ios[tag as usize].mem = mem;
    }

    /// The tag is free; or was lost, and stays so.
    #[inline]
    pub fn release(&mut self, tag: u32) {
        debug_assert_eq!(self.ios[tag as usize].state, IoState::Held);
        self.ios[tag as usize].state = IoState::Free;
        self.free.give(tag);
    }

    /// Pushes the I/O, or the rest of it, to its queue; if that is full, it is kept for `push_again`.
    #[inline]
    pub fn push(&mut self, tag: u32, reactor: &mut Reactor) {
        let pending = &mut self.ios[tag as usize];
        let (Submission { queue, op, offset, len, .. }, moved) = (&pending.submission, pending.moved);
        let io = Io {
            tag,
            op: *op,
            offset: offset + u64::from(moved),
            len: len - moved,
            mem: pending.mem.after(moved as usize),
        };
        let number = *queue;
        match queue_of(&mut self.entries, number).push(io, reactor) {
            Ok(()) => self.is_pushed(tag, number),
            Err(Full(_)) => {
                pending.state = IoState::Again;
                self.again.push(tag);
            }
        }
    }

    /// `push`, of reads that are one I/O (`Queue::push_rows`). It ends whole or failed. False where its queue has no room
    /// for it: the caller has it still.
    #[inline]
    pub fn push_rows(&mut self, tag: u32, rows: &[u64], reactor: &mut Reactor) -> bool {
        let pending = &mut self.ios[tag as usize];
        pending.rows = true;
        let Submission { queue, op, len, .. } = pending.submission;
        let io = Io { tag, op, offset: 0, len, mem: pending.mem };
        let taken = queue_of(&mut self.entries, queue).push_rows(io, rows, reactor).is_ok();
        if taken {
            self.is_pushed(tag, queue);
        }
        taken
    }

    #[inline]
    fn is_pushed(&mut self, tag: u32, number: u32) {
        self.ios[tag as usize].state = IoState::Pushed;
        self.in_flight += 1;
        let entry = &mut self.entries[number as usize];
        entry.in_flight += 1;
        if !entry.listed {
            entry.listed = true;
            self.busy.push(number);
        }
    }

    /// Pushes again the I/Os for which a queue had no room, and rests of short transfers.
    #[inline]
    pub fn push_again(&mut self, reactor: &mut Reactor) {
        if self.again.is_empty() {
            return;
        }
        for tag in std::mem::take(&mut self.again) {
            self.push(tag, reactor);
        }
        if self.patience == Patience::None {
            self.refuse();
        }
    }

    /// Ends an I/O that is owed to a queue that accepts nothing although it holds nothing.
    fn refuse(&mut self) {
        let Client { again, entries, ios, refused, .. } = self;
        again.retain(|tag| {
            let pending = &mut ios[*tag as usize];
            let never = queue_of(entries, pending.submission.queue).in_flight() == 0;
            if never {
                pending.state = IoState::Held;
                refused.push(*tag);
            }
            !never
        });
    }

    /// Starts what was pushed.
    #[inline]
    pub fn submit(&mut self, reactor: &mut Reactor) {
        for queue in &self.busy {
            queue_of(&mut self.entries, *queue).submit(reactor);
        }
    }

    /// Collects completions, to be taken by `next_done` or `complete`.
    #[inline]
    pub fn collect(&mut self, reactor: &mut Reactor) {
        let mut i = 0;
        while i < self.busy.len() {
            let number = self.busy[i];
            let entry = &mut self.entries[number as usize];
            if entry.in_flight == 0 {
                entry.listed = false;
                self.busy.swap_remove(i);
            } else {
                queue_of(&mut self.entries, number).reap(reactor, &mut self.done);
                i += 1;
            }
        }
    }

    /// Takes the completions collected so far; `spare` gives the buffer back, so that it is allocated once.
    #[inline]
    pub fn take_done(&mut self) -> Vec<Done> {
        std::mem::take(&mut self.done)
    }

    #[inline]
    pub fn spare(&mut self, done: Vec<Done>) {
        if self.done.is_empty() {
            self.done = done;
        }
    }

    /// I/Os that no queue would ever accept.
    pub fn take_refused(&mut self) -> Option<Completion> {
        let tag = self.refused.pop()?;
        let end = End::Failed(Fault::errno(libc::EINVAL));
        Some(Completion { tag, end, via: Via::Nothing, copy_ns: 0 })
    }

    /// Processes a completion. None: the I/O continues, or its lost tag was found again.
    #[inline]
    pub fn complete(&mut self, done: Done) -> Option<Completion> {
        let Done { tag, result, via, copy_ns } = done;
        let pending = &mut self.ios[tag as usize];
        self.entries[pending.submission.queue as usize].in_flight -= 1;
        if pending.state == IoState::Lost {
            self.is_found_again(tag);
            return None;
        }
        self.in_flight -= 1;
        pending.state = IoState::Held;
        let left = pending.submission.want - pending.moved;
        let end = match result {
            Ok(moved) if moved >= left => {
                pending.moved += moved;
                End::Whole
            }
            Ok(moved) => return self.go_on(tag, moved).map(|end| Completion { tag, end, via, copy_ns }),
            Err(fault) if pending.abandoned => End::GivenUp(fault),
            Err(fault) if self.patience != Patience::None && is_passing(&fault) && !pending.rows => {
                self.retried += 1;
                pending.state = IoState::Again;
                self.again.push(tag);
                return None;
            }
            Err(fault) => End::Failed(fault),
        };
        Some(Completion { tag, end, via, copy_ns })
    }

    /// After a short transfer: the rest is asked for, from a whole unit on. Where that leads no further, the data has ended.
    #[cold]
    fn go_on(&mut self, tag: u32, moved: u32) -> Option<End> {
        let pending = &mut self.ios[tag as usize];
        let before = pending.moved;
        let reached = before + moved;
        let whole = reached - reached % self.unit;
        if moved == 0 || whole <= before || pending.rows {
            pending.moved = reached;
            return Some(End::Early);
        }
        if pending.abandoned {
            return Some(End::GivenUp(Fault::errno(libc::ECANCELED)));
        }
        pending.moved = whole;
        self.short += 1;
        pending.state = IoState::Again;
        self.again.push(tag);
        None
    }

    /// The next time at which something is due although no external event will wake the reactor.
    pub fn next_due(&self) -> Option<Instant> {
        self.busy_queues().filter_map(|queue| queue.next_due()).min()
    }

    /// A wait for several completions at once would wait for nothing.
    #[inline]
    pub fn wakes_at_first(&self) -> bool {
        self.busy_queues().any(|queue| queue.wakes_at_first())
    }

    /// The same for all queues: one may have something to do although none of our I/Os is in flight.
    pub fn collect_all(&mut self, reactor: &mut Reactor) {
        let Client { entries, done, .. } = self;
        entries
            .iter_mut()
            .filter_map(|entry| entry.queue.as_mut())
            .for_each(|queue| queue.reap(reactor, done));
    }

    /// Continues until nothing is in flight, or `until`, or the ring is refused; returns true if nothing is left. Passes I/Os that are
    /// over to `each`.
    pub fn drain(
        &mut self,
        reactor: &mut Reactor,
        until: Instant,
        mut each: impl FnMut(&mut Self, Completion),
    ) -> bool {
        loop {
            self.turn(reactor, &mut each);
            if self.in_flight == 0 && self.again.is_empty() {
                return true;
            }
            let now = clock::monotonic_now();
            if now >= until || reactor.refused().is_some() {
                return false;
            }
            let due = self.next_due().map_or(until, |due| due.min(until));
            reactor.wait(1, due, Duration::ZERO);
        }
    }

    /// One round: pushes, submits and reaps, and passes completed I/Os to `each`.
    pub fn turn(&mut self, reactor: &mut Reactor, each: &mut impl FnMut(&mut Self, Completion)) {
        self.push_again(reactor);
        self.submit(reactor);
        self.collect(reactor);
        let mut done = self.take_done();
        for done in done.drain(..) {
            if let Some(over) = self.complete(done) {
                each(self, over);
            }
        }
        self.spare(done);
        while let Some(over) = self.take_refused() {
            each(self, over);
        }
    }

    /// Lets `done` be reaped next, as if a queue had completed it: for tests of what happens then.
    pub fn came(&mut self, done: Done) {
        self.done.push(done);
    }

    /// Takes every free slot, and says which they were: for tests of what is given back.
    pub fn free_tags(&mut self) -> Vec<u32> {
        std::iter::from_fn(|| self.free.take()).collect()
    }

    /// Makes the queues take back everything that the ring still holds; nothing may be in flight.
    pub fn close(&mut self, reactor: &mut Reactor) {
        self.entries
            .iter_mut()
            .filter_map(|entry| entry.queue.as_mut())
            .for_each(|queue| queue.close(reactor));
    }

    #[inline]
    fn busy_queues(&self) -> impl Iterator<Item = &dyn Queue> {
        self.busy.iter().filter_map(|queue| self.entries[*queue as usize].queue.as_deref())
    }
}

#[inline]
fn queue_of(entries: &mut [Entry], number: u32) -> &mut dyn Queue {
    entries[number as usize].queue.as_deref_mut().expect("its number names it until it is removed")
}

fn is_passing(fault: &Fault) -> bool {
    matches!(fault.errno, libc::EAGAIN | libc::EINTR)
}
