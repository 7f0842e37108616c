//! Long reads past the page cache on their way to GPUs, many of them under way at a time, each into a slot of its own: a device
//! that lies behind a network, or is shared, may answer late, and then gives the more the more it is asked for.

#![allow(unsafe_code, reason = "reads into slots, and copies to addresses that Python lends")]

use super::copies::{copy_failed, Copies, From};
use super::{end_part, in_turn};
use crate::kept::KeptMemory;
use crate::layout::{add, choose, direct, failed, short, Manner};
use crate::load::{self, Load};
use crate::opened::Opened;
use crate::place::{Address, Range};
use crate::processors;
use crate::request::{Request, Source};
use crate::{queued_bytes_max, SLOT_BYTES};
use forebay_io::{is_nothing_yet, CudaDevice, CudaStream, PerProcess, RegisteredMemory};
use forebay_model::{job, Error};
use io_uring::{opcode, types, IoUring};
use std::io::Error as IoError;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Slots that are pinned at once, as more of them are needed.
const SLOTS_AT_ONCE: usize = 4;
/// Interval at which completions are polled on a ring that the kernel refuses to enter.
const LOOK: Duration = Duration::from_millis(1);

/// What the queues of this process have pinned. Once the system refuses to pin more, what one has is missing elsewhere: none is
/// made any more, and whoever has none waits for those of others to go back before it pins what it can't do without.
#[derive(Default)]
struct Pinned {
    slots: AtomicUsize,
    is_scarce: AtomicBool,
}

impl Pinned {
    fn is_all_lent(&self) -> bool {
        self.is_scarce.load(Ordering::Relaxed) && self.slots.load(Ordering::Acquire) > 0
    }
}

static PINNED: PerProcess<Pinned> = PerProcess::new();

/// A read under way, and where its bytes go from the slot.
struct Read {
    request: Arc<Request>,
    index: usize,
    /// Holds the file open.
    source: Arc<Source>,
    piece: Range,
    /// Bytes of its first page that lie before the piece.
    head: usize,
    load: Load,
    outlet: usize,
    stream: Arc<Mutex<CudaStream>>,
}

/// Slots in one piece of memory. The registration goes first.
struct Slots {
    pinned: RegisteredMemory,
    arena: KeptMemory,
}

/// Reads of one worker and their slots.
#[derive(Default)]
pub(super) struct Queue {
    ring: Option<IoUring>,
    /// The system forbids rings, or forbids this one from some moment on.
    is_refused: bool,
    memory: Vec<Slots>,
    free: Vec<usize>,
    most: usize,
    /// By the number of their slot.
    reads: Vec<Option<Read>>,
    /// A GPU may still read some slot: its context failed.
    are_lost: bool,
}

impl Queue {
    /// It has slots, or reads under way.
    pub(super) fn is_used(&self) -> bool {
        !self.memory.is_empty()
    }

    fn under_way(&self) -> bool {
        self.reads.iter().any(Option::is_some)
    }

    fn slot_at(&self, slot: usize) -> *mut u8 {
        self.memory[slot / SLOTS_AT_ONCE].arena.slot(slot % SLOTS_AT_ONCE).host_ptr()
    }

    /// Makes more slots, as many as one of so many workers may have; false where there are no more to be had.
    fn grow(&mut self, device: &Arc<CudaDevice>, workers: usize) -> bool {
        let count = self.reads.len();
        if self.ring.is_none() && !self.is_refused {
            self.most = (queued_bytes_max() / SLOT_BYTES / workers.max(1)).next_multiple_of(SLOTS_AT_ONCE);
            // Of a ring that defers completions none is told of without a call that waits.
            self.ring = IoUring::new(self.most as u32).ok();
            self.is_refused = self.ring.is_none();
        }
        if count >= self.most || self.is_refused || self.are_lost || PINNED.is_scarce.load(Ordering::Relaxed)
        {
            return false;
        }
        let made = KeptMemory::slots(SLOTS_AT_ONCE, SLOT_BYTES, job::Pages::Thp).ok().and_then(|arena| {
            let (at, bytes) = arena.whole();
            // SAFETY: the arena goes after its registration, by the order of the fields of `Slots`.
            let pinned = unsafe { device.register(at.as_ptr(), bytes, false) }.ok()?;
            Some(Slots { pinned, arena })
        });
        let Some(made) = made else {
            PINNED.is_scarce.store(true, Ordering::Relaxed);
            return false;
        };
        self.memory.push(made);
        PINNED.slots.fetch_add(SLOTS_AT_ONCE, Ordering::AcqRel);
        self.free.extend((count..count + SLOTS_AT_ONCE).rev());
        self.reads.resize_with(count + SLOTS_AT_ONCE, || None);
        true
    }

    /// Begins a read into its slot; what it is again where the ring doesn't take it.
    fn begin(&mut self, slot: usize, read: Read) -> Option<Read> {
        let Some(ring) = self.ring.as_mut().filter(|_| !self.is_refused) else { return Some(read) };
        let Load { fd, at, ask, offset, .. } = read.load;
        let entry = opcode::Read::new(types::Fd(fd), at, ask as u32).offset(offset).build();
        // SAFETY: the slot is the read's until its completion is reaped; the ring has an entry for each slot.
        unsafe { ring.submission().push(&entry.user_data(slot as u64)) }.expect("an entry for each");
        loop {
            match ring.submit().map_err(|why| why.raw_os_error()) {
                Ok(_) => break,
                Err(Some(errno)) if is_nothing_yet(errno) => std::thread::yield_now(),
                // A filter of system calls may come at any time. What isn't begun by then never is: the ring isn't entered again.
                Err(_) => {
                    self.is_refused = true;
                    return Some(read);
                }
            }
        }
        self.reads[slot] = Some(read);
        None
    }

    /// Reads that have ended since it was asked last, by slots, with what the system says of them; at least one where it
    /// `waits` and one is under way.
    fn ended(&mut self, waits: bool) -> Vec<(usize, i32)> {
        let waits = waits && self.under_way();
        let Some(ring) = &mut self.ring else { return Vec::new() };
        loop {
            let ended: Vec<_> =
                ring.completion().map(|done| (done.user_data() as usize, done.result())).collect();
            if !waits || !ended.is_empty() {
                return ended;
            }
            if self.is_refused {
                // The kernel completes what it has all the same.
                std::thread::sleep(LOOK);
                continue;
            }
            match ring.submit_and_wait(1).map_err(|why| why.raw_os_error()) {
                Ok(_) => {}
                Err(Some(errno)) if is_nothing_yet(errno) => std::thread::yield_now(),
                Err(_) => self.is_refused = true,
            }
        }
    }

    /// Gives its slots back; memory that a GPU may still read stays where it is. Nothing is under way.
    fn give_back(&mut self) {
        for Slots { pinned, arena } in self.memory.drain(..) {
            drop(pinned);
            if self.are_lost {
                std::mem::forget(arena);
            }
            PINNED.slots.fetch_sub(SLOTS_AT_ONCE, Ordering::AcqRel);
        }
        self.ring = None;
        self.free.clear();
        self.reads.clear();
        self.are_lost = false;
    }

    /// Begins to read a part whose pieces are to come past the page cache. False where it is to be read another way: it is cached,
    /// or no slot is to be had.
    pub(super) fn begin_part(
        &mut self,
        copies: &mut Copies,
        request: &Arc<Request>,
        source: &Arc<Source>,
        index: usize,
    ) -> Result<bool, Error> {
        let [piece] = request.part(index) else { return Ok(false) };
        let Some(gpu) = piece.to.gpu() else { return Ok(false) };
        let Manner::Direct(fd, _) = choose(source, piece, &mut Opened::default())? else { return Ok(false) };
        let (outlet, stream) = copies.outlet_after(request, gpu)?;
        let workers = request.workers_max().min(processors::all_threads());
        let Some(slot) = self.slot(copies, outlet, workers) else { return Ok(false) };
        let (load, head) = direct(fd, piece, self.slot_at(slot), index);
        let (request, source, piece) = (request.clone(), source.clone(), *piece);
        let read = Read { request, index, source, piece, head, load, outlet, stream };
        let refused = self.begin(slot, read).is_some();
        if refused {
            self.free.push(slot);
        }
        Ok(!refused)
    }

    /// A slot that nothing is read to or copied from.
    fn slot(&mut self, copies: &mut Copies, outlet: usize, workers: usize) -> Option<usize> {
        loop {
            if let Some(slot) = self.free.pop() {
                return Some(slot);
            }
            let device = copies.device(outlet).clone();
            if self.grow(&device, workers) {
                continue;
            }
            if self.under_way() || copies.any() {
                self.turn(copies, true);
            } else if self.memory.is_empty() && PINNED.is_all_lent() {
                std::thread::sleep(LOOK);
            } else {
                return None;
            }
        }
    }

    /// Hands on what was read, and lets go of what was copied. `waits`: until something was.
    pub(super) fn turn(&mut self, copies: &mut Copies, waits: bool) {
        // A copy that is under way ends sooner than any read.
        let copied = waits && copies.any();
        copies.reap(copied);
        while let Some((slot, failure)) = copies.take_landed() {
            match failure {
                None => self.free.push(slot as usize),
                Some(_) => self.are_lost = true,
            }
        }
        for (slot, result) in self.ended(waits && !copied) {
            let read = self.reads[slot].take().expect("a read is in its slot");
            let (request, index) = (read.request.clone(), read.index);
            let done = self.hand_on(copies, slot, read, result);
            end_part(copies, &request, index, done);
        }
    }

    /// Gives its slots back where nothing is under way; else waits for some of it.
    pub(super) fn turn_or_give_back(&mut self, copies: &mut Copies) {
        if copies.any() || self.under_way() {
            self.turn(copies, true);
        } else {
            self.give_back();
        }
    }

    /// Queues the copy of what was read; the stream that has it, where it is still wanted.
    fn hand_on(
        &mut self,
        copies: &mut Copies,
        slot: usize,
        mut read: Read,
        result: i32,
    ) -> Result<Option<Arc<Mutex<CudaStream>>>, Error> {
        let arrived = match result {
            got if got >= 0 => {
                read.load.got = got as usize;
                Ok(())
            }
            // The waiting read does it anew.
            errno if matches!(-errno, libc::EAGAIN | libc::EINTR) => Ok(()),
            errno => Err(IoError::from_raw_os_error(-errno)),
        };
        // SAFETY: the slot has room for what was asked for.
        let arrived = arrived.and_then(|()| unsafe { load::finish(&mut read.load) });
        let Read { request, index, source, piece, head, load, outlet, stream } = read;
        let arrived = match arrived {
            Err(why) => Err(failed(&source, &piece, &why)),
            Ok(()) if load.got < load.want => Err(short(&source, &piece, load.offset + load.got as u64)),
            Ok(()) => Ok(!request.is_dropped()),
        };
        let Ok(true) = arrived else {
            self.free.push(slot);
            return arrived.map(|_| None);
        };
        let Address::Device { gpu, at: to } = piece.to else { unreachable!("it goes to a GPU") };
        add(&request.counts.uncached, piece.bytes);
        add(&request.counts.staged, piece.bytes);
        let from = self.slot_at(slot).wrapping_add(head);
        let queued = in_turn(&source, || {
            copies.queue(outlet, |stream| {
                // SAFETY: the piece lies in the slot, which stays taken until the event has passed; the destination is its
                // owner's promise.
                unsafe { stream.copy_to_device(to, from, piece.bytes) }
            })
        });
        match queued {
            Ok(event) => {
                copies.fly(outlet, From::Lent(slot as u32), piece.bytes, event);
                copies.ends_with_the_last(&request, index);
                Ok(Some(stream))
            }
            Err(why) => {
                copies.wait_for(outlet);
                self.are_lost = true;
                Err(copy_failed(gpu, &why))
            }
        }
    }
}

impl Drop for Queue {
    /// What is read is written to slots.
    fn drop(&mut self) {
        while self.under_way() {
            for (slot, _) in self.ended(true) {
                self.reads[slot] = None;
            }
        }
        self.give_back();
    }
}
