//! A worker's part, for tests of sources: a queue, its reactor, its slots, and what was done.

use forebay_io::{stream_digest, Arena, Done, Io, Op, Queue, Reactor, RingOptions};
use forebay_model::job::Pages;
use forebay_model::Error;
use forebay_storage::QueueNeeds;
use std::any::Any;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// A busy machine is slow, not wrong: only what hangs takes this long.
pub const LONG: Duration = Duration::from_secs(60);

pub struct Rig {
    pub queue: Box<dyn Queue>,
    pub reactor: Reactor,
    /// Mapping of the slots, where the source has them. Before what it maps.
    lent: Option<Box<dyn Any>>,
    pub arena: Arena,
    pub done: Vec<Done>,
}

impl Rig {
    /// `depth` slots of `slot_bytes`, which another process can map where they are `shared`; `lend` lends them to the
    /// source, `open` opens its queue.
    pub fn open<M: Any>(
        (depth, slot_bytes, shared): (u32, usize, bool),
        lend: impl FnOnce(&Arena) -> Option<M>,
        open: impl FnOnce(QueueNeeds, &mut Reactor) -> Result<Box<dyn Queue>, Error>,
    ) -> Rig {
        let mut reactor = Reactor::with_ring(RingOptions { depth: 64, ..RingOptions::default() }).unwrap();
        let arena = match shared {
            true => Arena::shared(depth as usize, slot_bytes, Pages::Small).unwrap(),
            false => Arena::new(depth as usize, slot_bytes, Pages::Small).unwrap(),
        };
        let lent = lend(&arena).map(|mapping| Box::new(mapping) as Box<dyn Any>);
        assert_eq!(lent.is_some(), shared);
        let needs = QueueNeeds::new(depth, slot_bytes as u64);
        let queue = open(needs, &mut reactor).unwrap();
        Rig { queue, reactor, lent, arena, done: Vec::new() }
    }

    pub fn push(&mut self, tag: u32, op: Op, offset: u64, len: u32) {
        let mem = self.arena.slot(tag as usize);
        self.queue.push(Io { tag, op, offset, len, mem }, &mut self.reactor).unwrap();
    }

    /// Waits until all that is in flight is done, or that time has passed.
    pub fn finish(&mut self, within: Duration) -> Vec<Done> {
        let until = Instant::now() + within;
        self.queue.submit(&mut self.reactor);
        while self.queue.in_flight() > 0 && Instant::now() < until {
            self.turn();
        }
        std::mem::take(&mut self.done)
    }

    /// Turns until that holds.
    #[allow(dead_code, reason = "not every source has something to wait for")]
    pub fn finish_when(&mut self, holds: impl Fn() -> bool) -> Vec<Done> {
        let until = Instant::now() + LONG;
        self.queue.submit(&mut self.reactor);
        while !holds() {
            assert!(Instant::now() < until, "it never holds");
            self.turn();
        }
        std::mem::take(&mut self.done)
    }

    pub fn turn(&mut self) {
        let look = Instant::now() + Duration::from_millis(100);
        let due = self.queue.next_due().unwrap_or(look).min(look);
        self.reactor.wait(1, due, Duration::ZERO);
        self.queue.reap(&mut self.reactor, &mut self.done);
    }

    pub fn one(&mut self, op: Op, offset: u64, len: u32) -> Done {
        self.push(0, op, offset, len);
        let done = self.finish(LONG);
        assert_eq!(done.len(), 1, "{op:?} at {offset} is still under way");
        done.into_iter().next().unwrap()
    }

    pub fn crc(&self, tag: u32, len: u32) -> u32 {
        stream_digest(0, self.arena.slot(tag as usize), len)
    }

    pub fn close(mut self) {
        self.queue.close(&mut self.reactor);
        drop(self.queue);
        drop(self.lent);
    }
}

/// Bytes of which no block is like another within 512 KiB, after which they repeat.
pub fn content(bytes: usize) -> Vec<u8> {
    static PERIOD: LazyLock<Vec<u8>> =
        LazyLock::new(|| (0..512u32 << 10).map(|i| (i.wrapping_mul(2_654_435_761) >> 11) as u8).collect());
    let mut content = PERIOD.repeat(bytes.div_ceil(PERIOD.len()));
    content.truncate(bytes);
    content
}
