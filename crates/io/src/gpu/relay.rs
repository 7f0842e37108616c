//! Copies to a GPU that are queued before their bytes are there.
//!
//! While the driver registers memory, every other call of it waits. A thread that reads a block and then has it copied
//! would spend most of its time there. In a relay the stream itself waits, for a word in memory; then it copies a buffer, and
//! sets another word. Whoever owns the relay queues that for several blocks at a time, between two registrations. A thread of the
//! relay fills the buffers and sets the first word, and looks at the second one before it fills a buffer again. It calls the driver
//! never: some of its calls wait for all that is queued, and with it for this thread.

use super::cuda::{Cuda, CudaError, Device, Registered, Stream};
use crate::arena::Arena;
use crate::process;
use forebay_model::job::Pages;
use forebay_model::Error;
use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::panic::resume_unwind;
use std::sync::atomic::{fence, AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, Builder, JoinHandle, ScopedJoinHandle, Thread};
use std::time::Duration;

/// One is filled while another is copied and a third waits its turn.
const SLOTS: u32 = 3;
/// Blocks that are queued and not filled: as many as a relay fills while the longest window is registered, and more.
const AHEAD: u32 = 10;
impl Relay {
    /// Least number of them that are queued together.
    pub const TOGETHER: u32 = 2;
}
/// More relays than this don't fill what registering leaves of a link any better; each has so many processors.
const RELAYS_MAX: usize = 3;
const PROCESSORS_PER_RELAY: usize = 4;
/// Each word has a cache line of its own.
const WORD_BYTES: usize = 64;
/// Time for which the thread sleeps before it checks whether a copy has ended: a fraction of what copying 4 MiB takes
/// at first.
const NAP: Duration = Duration::from_micros(40);
const NAP_MAX: Duration = Duration::from_micros(500);

/// Fills a buffer; what fails in it, it tells those who wait for the block.
pub type Fill = Box<dyn FnOnce(&mut [u8]) + Send>;

pub struct Relay {
    stream: Arc<Mutex<Stream>>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// Blocks so far, cyclically.
    queued: u32,
    /// A call failed halfway.
    broken: bool,
}

/// A block's number is that of its words' values, and modulo `SLOTS` that of its buffer.
struct Shared {
    // Fields in the order in which they must go.
    pinned: ManuallyDrop<Vec<Registered>>,
    slots: ManuallyDrop<Arena>,
    words: ManuallyDrop<Arena>,
    todo: Mutex<Todo>,
    more: Condvar,
    /// The last block that was filled.
    filled: AtomicU32,
    /// The device copies no more.
    given_up: AtomicBool,
    /// Thread that queues blocks.
    owner: Mutex<Thread>,
}

#[derive(Default)]
struct Todo {
    /// Each with the bytes that are to be filled.
    blocks: VecDeque<(u32, usize, Fill)>,
    ending: bool,
}

// SAFETY: the arenas' memory is reached through atomics and by the one thread that fills it.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Relay {
    /// Relays that are worth having on this machine, beside one thread that has the driver register memory.
    pub fn useful() -> usize {
        let processors = thread::available_parallelism().map_or(1, |n| n.get());
        (processors / PROCESSORS_PER_RELAY).clamp(1, RELAYS_MAX)
    }
}

/// `a` is `b` or comes after it.
fn reached(a: u32, b: u32) -> bool {
    a.wrapping_sub(b) as i32 >= 0
}

/// The buffers and words of a relay. Getting them takes the system longer than the driver takes to open the relay: 16 ms for
/// 12 MiB were seen in a guest whose memory grows as it is used.
pub struct Memory {
    slots: Arena,
    words: Arena,
}

impl Memory {
    pub fn new(slot_bytes: usize) -> Result<Memory, Error> {
        let slots = Arena::new(SLOTS as usize, slot_bytes, Pages::Thp)?;
        let words = Arena::new(1, 2 * SLOTS as usize * WORD_BYTES, Pages::Thp)?;
        Ok(Memory { slots, words })
    }

    /// Allocates the memory of several relays at the same time.
    pub fn allocate(count: usize, slot_bytes: usize) -> Result<Vec<Memory>, Error> {
        thread::scope(|scope| {
            let start = |_| Builder::new().spawn_scoped(scope, move || Memory::new(slot_bytes)).ok();
            let others: Vec<_> = (1..count).map(start).collect();
            let first = (count > 0).then(|| Memory::new(slot_bytes));
            let join = |other: Option<ScopedJoinHandle<'_, _>>| match other {
                Some(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
                None => Memory::new(slot_bytes),
            };
            first.into_iter().chain(others.into_iter().map(join)).collect()
        })
    }
}

impl Relay {
    /// A relay for the calling thread, which is woken when there is room.
    ///
    /// # Errors
    /// The driver knows no such waits, or no memory can be pinned, or there can be no thread.
    pub fn open(device: &Arc<Device>, memory: Memory) -> Result<Relay, Error> {
        let failed = |why: CudaError| {
            Error::machine(
                format!("copies to GPU {} that wait for their bytes", device.index()),
                why.to_string(),
                "forebay doctor",
            )
        };
        if !device.awaits_values() {
            return Err(failed(CudaError::new("the driver or the GPU knows no waits for values")));
        }
        let stream = Stream::on(device).map_err(failed)?;
        let Memory { slots, words } = memory;
        let mut pinned = Vec::new();
        for arena in [&slots, &words] {
            let (at, bytes) = arena.whole();
            // SAFETY: the arena goes after its registration, in `Shared`'s drop.
            pinned.push(unsafe { device.register(at.as_ptr(), bytes, false) }.map_err(failed)?);
        }
        let shared = Arc::new(Shared {
            pinned: ManuallyDrop::new(pinned),
            slots: ManuallyDrop::new(slots),
            words: ManuallyDrop::new(words),
            todo: Mutex::default(),
            more: Condvar::new(),
            filled: AtomicU32::new(0),
            given_up: AtomicBool::new(false),
            owner: Mutex::new(thread::current()),
        });
        // Some drivers have the calls and refuse them.
        // SAFETY: the words stay until the stream has ended, which it has here; this one is 0 already.
        unsafe {
            stream.await_value(shared.is_filled(0), 0).map_err(failed)?;
            stream.write_value(shared.is_copied(0), 0).map_err(failed)?;
        }
        stream.synchronize().map_err(failed)?;
        let mut relay = Relay {
            stream: Arc::new(Mutex::new(stream)),
            shared: shared.clone(),
            thread: None,
            queued: 0,
            broken: false,
        };
        let started = Builder::new().name("forebay-relay".into()).spawn(move || shared.work());
        relay.thread =
            Some(started.map_err(|why| {
                Error::machine("one more thread to read with", why.to_string(), "ulimit -u")
            })?);
        Ok(relay)
    }

    /// From now on the calling thread is woken when there is room.
    pub fn belongs_here(&self) {
        *self.shared.owner.lock().expect("no holder panics") = thread::current();
    }

    pub fn stream(&self) -> &Arc<Mutex<Stream>> {
        &self.stream
    }

    /// Blocks that may be queued now.
    pub fn room(&self) -> u32 {
        AHEAD - self.queued.wrapping_sub(self.shared.filled.load(Ordering::Acquire))
    }

    /// The last block that was queued.
    pub fn last(&self) -> u32 {
        self.queued
    }

    /// Returns whether nothing is read for this block any more.
    pub fn has_filled(&self, block: u32) -> bool {
        reached(self.shared.filled.load(Ordering::Acquire), block)
    }

    pub fn has_copied(&self, block: u32) -> bool {
        reached(self.shared.is_copied(block).load(Ordering::Acquire), block)
    }

    /// Returns whether its copy has ended, too, or won't come.
    pub fn is_over(&self, block: u32) -> bool {
        self.has_filled(block) && (self.has_copied(block) || self.broken)
    }

    /// A failure left it useless.
    pub fn is_broken(&self) -> bool {
        self.broken
    }

    /// Queues a copy of what `fill` will put into so many bytes, at most a buffer's. There is room. The device memory at `to`
    /// is the caller's until the copy has ended, as for `Copier::start`.
    pub fn queue(&mut self, fill: Fill, to: u64, bytes: usize) -> Cuda<()> {
        assert!(bytes <= self.shared.slots.slot_bytes(), "a block fits a buffer");
        debug_assert!(self.room() > 0);
        let stream = self.stream.lock().expect("no holder panics");
        let block = self.queued.wrapping_add(1);
        let from = self.shared.slot(block);
        // SAFETY: the words stay until the stream has ended; the relay's thread sets this one, and calls no driver.
        let waits = unsafe { stream.await_value(self.shared.is_filled(block), block) };
        if waits.is_err() {
            self.broken = true;
            return waits;
        }
        self.queued = block;
        self.shared.todo.lock().expect("no holder panics").blocks.push_back((block, bytes, fill));
        self.shared.more.notify_one();
        // SAFETY: the buffer is filled anew only once the copy's end was written; the destination is the caller's promise.
        let rest = unsafe {
            stream
                .copy_to_device(to, from, bytes)
                .and_then(|()| stream.write_value(self.shared.is_copied(block), block))
        };
        self.broken |= rest.is_err();
        rest
    }

    /// Waits until nothing that was queued is under way.
    pub fn drain(&mut self) {
        if self.stream.lock().expect("no holder panics").synchronize().is_err() {
            self.broken = true;
        }
        if self.broken {
            self.shared.given_up.store(true, Ordering::Release);
        }
        while !self.has_filled(self.queued) {
            thread::park_timeout(NAP_MAX);
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.drain();
        }
        self.shared.todo.lock().expect("no holder panics").ending = true;
        self.shared.more.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn slot(&self, block: u32) -> *mut u8 {
        self.slots.slot((block % SLOTS) as usize).host_ptr()
    }

    fn word(&self, number: u32) -> &AtomicU32 {
        let at = self.words.slot(0).host_ptr();
        // SAFETY: the arena has as many words, zeroed and aligned, that are only reached as atomics.
        unsafe { &*at.add(number as usize * WORD_BYTES).cast() }
    }

    fn is_filled(&self, block: u32) -> &AtomicU32 {
        self.word(block % SLOTS)
    }

    fn is_copied(&self, block: u32) -> &AtomicU32 {
        self.word(SLOTS + block % SLOTS)
    }

    fn work(&self) {
        process::settle_in_process();
        while let Some((block, bytes, fill)) = self.next() {
            self.await_slot(block);
            // SAFETY: the buffer holds as much, and nobody reads it before its word is set below.
            let buffer = unsafe { std::slice::from_raw_parts_mut(self.slot(block), bytes) };
            // It lets go of what it holds, too, before anybody hears that the block is filled.
            fill(buffer);
            fence(Ordering::SeqCst);
            self.is_filled(block).store(block, Ordering::Release);
            self.filled.store(block, Ordering::Release);
            self.owner.lock().expect("no holder panics").unpark();
        }
    }

    fn next(&self) -> Option<(u32, usize, Fill)> {
        let mut todo = self.todo.lock().expect("no holder panics");
        loop {
            if let Some(block) = todo.blocks.pop_front() {
                return Some(block);
            }
            if todo.ending {
                return None;
            }
            todo = self.more.wait(todo).expect("no holder panics");
        }
    }

    /// Waits until what the block's buffer held before has been copied.
    fn await_slot(&self, block: u32) {
        let before = block.wrapping_sub(SLOTS);
        let mut nap = NAP;
        while !reached(self.is_copied(block).load(Ordering::Acquire), before)
            && !self.given_up.load(Ordering::Acquire)
        {
            thread::sleep(nap);
            nap = (nap + nap / 4).min(NAP_MAX);
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: each is dropped here, and only here.
        unsafe {
            ManuallyDrop::drop(&mut self.pinned);
            // Memory that the device may still read stays where it is.
            if !*self.given_up.get_mut() {
                ManuallyDrop::drop(&mut self.slots);
                ManuallyDrop::drop(&mut self.words);
            }
        }
    }
}
