//! A worker's reads: of many files into its slots, or directly into a GPU by a queue of each stream's own; held back to a
//! rate or to a modelled drive. It knows files and bytes, and nothing of what they hold.

use super::super::dataset::place_of;
use super::super::direct_file::DirectFile;
use super::super::reading::{Opened, BLOCK};
use super::super::run_state::ResourceFacts;
use super::super::supply::Delays;
use super::super::uring::{Files, Reading as OpenFiles, Slots};
use super::super::Shared;
use super::stream::ActiveStream;
use forebay_io::{
    memlock_refusal, monotonic_now, Client, ClientCompletion, CompletionEnd, Mem, Op, PinnedMemory, Reactor,
    RingOptions, Submission, Waker,
};
use forebay_model::Error;
use forebay_storage::{DirectQueues, MemoryRegistration, Paths, QueueNeeds};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest time for reads under way to come back when the run ends.
const GRACE: Duration = Duration::from_secs(2);

/// The number of the queue that fills slots, at the client.
const SLOTS: u32 = 0;

/// Manner in which slots are filled.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SlotsFilled {
    /// By the worker itself: what is in memory.
    Inline,
    ByRing,
    /// From one address space that holds all files.
    FromWhole {
        align: u32,
    },
}

/// A read, until its bytes were parsed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Flight {
    /// Offset in the file; and how many bytes before the wanted ones a block begins.
    pub(super) offset: u64,
    pub(super) head: u32,
    pub(super) want: u32,
    pub(super) got: u32,
    pub(super) began: u64,
    /// It may not be seen before; 0: it may.
    due: u64,
    pub(super) landed: bool,
    pub(super) errno: i32,
    /// Memory in which its bytes stay, and the samples that are whole once they are there.
    pub(super) to: Option<Mem>,
    pub(super) copied: bool,
    pub(super) whole: u32,
}

/// Why a file isn't open.
pub(super) enum Unopened {
    Io(std::io::Error),
    /// It can't go directly.
    Refused(Error),
}

pub(super) struct Reads {
    shared: Arc<Shared>,
    index: usize,
    // Field order is drop order: queues go before the files and resources that they stand on, and what points to the slots
    // before these.
    client: Client<()>,
    direct_queues: Option<Box<dyn DirectQueues>>,
    filled: SlotsFilled,
    /// By tag: the file that a read is of.
    files: OpenFiles,
    reactor: Reactor,
    _pin: Option<PinnedMemory>,
    /// The slots, as emulated drives have them mapped.
    _lent: Vec<MemoryRegistration>,
    slots: Slots,
    delays: Delays,
    flights: Vec<Flight>,
    /// Why reads failed, in words, by tag.
    notes: Vec<(u32, Box<str>)>,
    /// Reads whose bytes weren't parsed yet.
    under_way: u32,
}

impl Reads {
    /// Those of worker number `index`.
    pub(super) fn open(shared: &Arc<Shared>, index: usize) -> Result<Reads, Error> {
        let io_mode = &shared.io_mode;
        let delays = Delays::new(shared);
        let destination = shared.run_state.destination.as_ref();
        let feeds_gpu = destination.is_some_and(|to| to.feeds_gpu());
        // What is read inline is parsed before anything else is: one slot, which stays in the cache.
        let depth = if io_mode.is_inline && !delays.any() && !feeds_gpu { 1 } else { io_mode.depth };
        let mut reactor = ring(shared, depth)?;
        let (slots, lent) = slots(shared, depth, &mut reactor)?;
        let files: OpenFiles = Rc::new(RefCell::new(vec![None; depth as usize]));
        // O_DIRECT goes on from a block.
        let mut client =
            Client::new(depth, false, (), |slot| slots.mem(slot)).with_unit(io_mode.align.max(1));
        let filled = add_slots_queue(shared, &files, depth, &mut client, &mut reactor)?;
        let pin = destination.map_or(Ok(None), |to| to.pin(slots.arena()))?;
        let direct_queues = direct_queues(shared, slots.count(), &mut reactor)?;
        Ok(Reads {
            shared: shared.clone(),
            index,
            client,
            direct_queues,
            filled,
            files,
            reactor,
            _pin: pin,
            _lent: lent,
            delays,
            flights: vec![Flight::default(); slots.count() as usize],
            slots,
            notes: Vec::new(),
            under_way: 0,
        })
    }

    pub(super) fn resources(&self) -> ResourceFacts {
        ResourceFacts {
            pages: self.slots.pages(),
            slot_bytes: self.shared.io_mode.io_bytes * u64::from(self.slots.count()),
            features: self.reactor.features().to_vec(),
        }
    }

    pub(super) fn waker(&mut self) -> Result<Arc<Waker>, Error> {
        self.reactor.waker()
    }

    pub(super) fn slot_count(&self) -> u32 {
        self.slots.count()
    }

    pub(super) fn has_free(&self) -> bool {
        self.client.has_free()
    }

    /// Reads whose bytes weren't parsed yet.
    pub(super) fn are_under_way(&self) -> bool {
        self.under_way > 0
    }

    /// Opens a file whose turn has come, and has it known where it is to go directly.
    pub(super) fn open_file(&self, file: u32, rank: u32) -> Result<Opened, Unopened> {
        let shared = &self.shared;
        let open = || shared.data.open_file(file, shared.io_mode.direct).map_err(Unopened::Io);
        let Some(direct_reads) = &shared.direct_reads else { return open() };
        if let Some(held) = direct_reads.kept(file) {
            let (bytes, base) = (held.target.bytes, place_of(file));
            let open = Some(held.target.file.clone());
            return Ok(Opened { file: open, held: Some(held), base, bytes, index: None });
        }
        let mut opened = open()?;
        let (Some(file_of), Some(to)) = (&opened.file, &shared.run_state.destination) else {
            return Ok(opened);
        };
        if opened.bytes > 0 {
            let path = shared.data.name(file).into();
            let held = direct_reads.hold(file, path, file_of, opened.bytes, to.turn_of(rank));
            opened.held = held.map_err(Unopened::Refused)?;
        }
        Ok(opened)
    }

    /// A queue of its own for a stream whose file goes directly to GPU number `turn`; None: it goes through the slots.
    pub(super) fn add_direct_queue(
        &mut self,
        held: Option<&DirectFile>,
        turn: usize,
    ) -> Result<Option<u32>, Error> {
        let (Some(direct_queues), Some(held)) = (&self.direct_queues, held) else { return Ok(None) };
        let queue = direct_queues.queue(&held.target, turn, &mut self.reactor)?;
        Ok(Some(self.client.add(queue)))
    }

    /// The stream's queue goes: whoever reads it next has one of its own.
    pub(super) fn remove_direct_queue(&mut self, queue: u32) {
        drop(self.client.remove(queue));
    }

    /// Asks again for what no queue had room for. True: there was something.
    pub(super) fn push_again(&mut self) -> bool {
        let any = self.client.is_owed();
        self.client.push_again(&mut self.reactor);
        any
    }

    /// Asks for the stream's next bytes: into a slot, or `to` a place at their destination.
    pub(super) fn push(&mut self, active: &mut ActiveStream, to: Option<Mem>, now: u64) {
        let io_mode = &self.shared.io_mode;
        let (begins, left) = active.reading.place(active.pushed);
        let most = match &self.shared.direct_reads {
            Some(direct_reads) if to.is_some() => direct_reads.io_bytes_max(begins).min(io_mode.io_bytes),
            _ => io_mode.io_bytes - begins % BLOCK,
        };
        let bytes = (active.goal - active.pushed).min(left).min(most) as u32;
        active.pushed += u64::from(bytes);
        // What goes directly begins anywhere.
        let align = if to.is_some() { 1 } else { u64::from(io_mode.align) };
        let head = (begins % align) as u32;
        let (offset, want) = (begins - u64::from(head), head + bytes);
        let at = active.reading.base + offset;
        let due = if self.delays.any() { self.delays.visible_at(&self.shared, now, at, want) } else { 0 };
        let (queue, offset_there, len) = match (active.direct_queue, self.filled) {
            (Some(queue), _) => (queue, offset, want),
            (None, SlotsFilled::FromWhole { align }) => (SLOTS, at, want.next_multiple_of(align)),
            (None, _) => (SLOTS, offset, io_mode.ask(want)),
        };
        let submission = Submission { queue, op: Op::Read, offset: offset_there, len, want, owner: () };
        let tag = self.client.begin(submission, monotonic_now()).expect("a slot is free");
        active.slots.push_back(tag);
        let mem = to.unwrap_or_else(|| self.slots.lend(tag));
        self.client.set_mem(tag, mem);
        self.flights[tag as usize] = Flight { offset, head, want, began: now, due, to, ..Flight::default() };
        self.under_way += 1;
        self.notes.retain(|(of, _)| *of != tag);
        self.files.borrow_mut()[tag as usize].clone_from(&active.reading.file);
        self.client.push(tag, &mut self.reactor);
    }

    /// Starts what was asked for. True: slots are filled now, by this thread, and the time is reading's.
    pub(super) fn submit(&mut self, any: bool) -> bool {
        self.client.submit(&mut self.reactor);
        let is_inline = self.filled == SlotsFilled::Inline;
        if any && !is_inline {
            self.reactor.submit();
        }
        any && is_inline
    }

    /// Takes what arrived, and lets through what is due.
    pub(super) fn collect(&mut self, now: impl Fn() -> u64) -> bool {
        self.client.collect(&mut self.reactor);
        let mut any = self.client.has_done();
        let mut done = self.client.take_done();
        for done in done.drain(..) {
            if let Some(over) = self.client.complete(done) {
                self.arrive(over);
            }
        }
        self.client.spare(done);
        if self.delays.any() {
            let now = now();
            while let Some(tag) = self.delays.next(now) {
                self.flights[tag as usize].landed = true;
                any = true;
            }
        }
        any
    }

    fn arrive(&mut self, over: ClientCompletion) {
        let ClientCompletion { tag, end, via, .. } = over;
        let moved = self.client.io(tag).moved;
        let flight = &mut self.flights[tag as usize];
        flight.got = moved.min(flight.want);
        match end {
            CompletionEnd::Whole => {}
            CompletionEnd::Early => flight.errno = libc::ENODATA,
            CompletionEnd::Failed(fault) | CompletionEnd::GivenUp(fault) => {
                flight.errno = fault.errno;
                self.notes.extend(fault.note.map(|note| (tag, note)));
            }
        }
        if flight.to.is_some() {
            // It counts from here on, by the way that it took.
            self.shared.run_state.counters[self.index].ways.add(via, flight.got.into());
        } else {
            self.slots.is_back(tag);
        }
        if flight.due > 0 {
            self.delays.add(flight.due, tag);
        } else {
            flight.landed = true;
        }
    }

    pub(super) fn flight(&mut self, tag: u32) -> &mut Flight {
        &mut self.flights[tag as usize]
    }

    /// A read that has landed is parsed from now on.
    pub(super) fn land(&mut self, tag: u32) -> Flight {
        self.under_way -= 1;
        self.flights[tag as usize]
    }

    /// The wanted bytes of a read that has landed in its slot.
    pub(super) fn bytes(&self, tag: u32) -> &[u8] {
        let flight = &self.flights[tag as usize];
        &self.slots.bytes(tag)[flight.head as usize..flight.want as usize]
    }

    /// Why the read failed, in words.
    pub(super) fn note_of(&mut self, tag: u32) -> Option<Box<str>> {
        let at = self.notes.iter().position(|(of, _)| *of == tag)?;
        Some(self.notes.swap_remove(at).1)
    }

    /// Lends the slot to a copy of its wanted bytes, until it `is_copied`.
    pub(super) fn lend(&mut self, tag: u32) -> Mem {
        self.slots.lend(tag).after(self.flights[tag as usize].head as usize)
    }

    /// Returns how many bytes it was.
    pub(super) fn is_copied(&mut self, tag: u32) -> u32 {
        let flight = &mut self.flights[tag as usize];
        flight.copied = true;
        self.slots.is_back(tag);
        flight.want - flight.head
    }

    /// The slot is free.
    pub(super) fn release(&mut self, tag: u32) {
        self.client.release(tag);
    }

    /// When something is due that doesn't wake the ring: an instant, and a time of the run.
    pub(super) fn next_due(&self) -> (Option<Instant>, Option<u64>) {
        (self.client.next_due(), self.delays.due())
    }

    pub(super) fn wait(&mut self, until: Instant) {
        self.reactor.wait(1, until, Duration::ZERO);
    }

    pub(super) fn flush(&mut self) {
        self.reactor.flush();
    }

    /// Why the kernel takes no calls for the ring any more.
    pub(super) fn refused(&self) -> Option<std::io::Error> {
        self.reactor.refused()
    }

    /// Waits for what the kernel still writes to. False: it won't let go of some of it.
    pub(super) fn drain(&mut self) -> bool {
        let under_way: Vec<u32> = self.client.tags().collect();
        under_way.into_iter().for_each(|tag| self.client.abandon(tag, &mut self.reactor));
        for tag in self.client.take_owed(|_| true) {
            self.slots.is_back(tag);
        }
        let Reads { client, reactor, slots, flights, shared, index, .. } = self;
        let ways = &shared.run_state.counters[*index].ways;
        let is_back = client.drain(reactor, monotonic_now() + GRACE, |client, over| {
            let flight = &flights[over.tag as usize];
            match flight.to {
                // It got to the GPU, whoever waits for it.
                Some(_) => ways.add(over.via, client.io(over.tag).moved.min(flight.want).into()),
                None => slots.is_back(over.tag),
            }
        });
        is_back && !self.slots.any_lent()
    }

    /// Makes the queues take back what the ring still holds, after `drain`.
    pub(super) fn close(&mut self) {
        self.client.close(&mut self.reactor);
    }
}

/// Returns the direct queues that the worker's streams share; None if everything goes through the slots.
fn direct_queues(
    shared: &Shared,
    depth: u32,
    reactor: &mut Reactor,
) -> Result<Option<Box<dyn DirectQueues>>, Error> {
    let (Some(direct_reads), Some(to)) = (&shared.direct_reads, &shared.run_state.destination) else {
        return Ok(None);
    };
    Ok(Some(direct_reads.queues(to, &shared.io_mode, depth, reactor)?))
}

/// Without io_uring where nothing is read through it.
fn ring(shared: &Shared, depth: u32) -> Result<Reactor, Error> {
    if shared.io_mode.is_inline || !shared.io_mode.has_ring {
        return Ok(Reactor::without_ring());
    }
    let options = RingOptions { depth: depth.saturating_mul(2), one_by_one: true, ..RingOptions::default() };
    Reactor::with_ring(options).map_err(|e| memlock_refusal("a worker of this run", &e, "‹engine› inline"))
}

/// Slots, and what emulated drives were lent of them.
fn slots(
    shared: &Shared,
    depth: u32,
    reactor: &mut Reactor,
) -> Result<(Slots, Vec<MemoryRegistration>), Error> {
    let target = shared.data.target();
    let bytes = match Paths::by_kind(shared.route.path).pins() {
        true => shared.io_mode.io_bytes as usize + 2 * BLOCK as usize,
        // Nothing goes through them.
        false => BLOCK as usize,
    };
    let mapped = target.is_some_and(|target| target.maps_slots());
    let mut slots = Slots::new(depth, bytes, mapped)?;
    let lent = target.map_or(Ok(Vec::new()), |target| target.lend(slots.arena()))?;
    if reactor.has_ring() && target.is_none() {
        // Where it is refused, each read pins its own pages.
        let _ = reactor.register_arena(slots.arena_mut());
    }
    Ok((slots, lent))
}

/// Gives the client the queue that fills slots.
fn add_slots_queue(
    shared: &Shared,
    files: &OpenFiles,
    depth: u32,
    client: &mut Client<()>,
    reactor: &mut Reactor,
) -> Result<SlotsFilled, Error> {
    let io_mode = &shared.io_mode;
    if let Some(target) = shared.data.target() {
        let needs = QueueNeeds::new(depth, io_mode.io_bytes).then_copied();
        let queue = target.queue(needs, reactor)?;
        let align = queue.geometry().align.max(1);
        client.add(queue);
        return Ok(SlotsFilled::FromWhole { align });
    }
    let by_ring = !io_mode.is_inline && io_mode.has_ring;
    client.add(Box::new(Files::new(files.clone(), by_ring.then_some(reactor))));
    Ok(if by_ring { SlotsFilled::ByRing } else { SlotsFilled::Inline })
}
