//! Moves a file's bytes between a writer (or a parser) and a queue, slot by slot.
//!
//! A slot is filled, summed and handed to the device while it lies in L2.

use crate::arena::Arena;
use crate::clock;
use crate::format::write::{FileShape, Writer};
use crate::format::{Damage, Parser};
use crate::queue::{Done, Fault, Io, Op, Queue};
use crate::reactor::Reactor;
use forebay_model::job::Pages;
use forebay_model::Error;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// A device that says nothing for so long is broken.
const SILENCE: Duration = Duration::from_secs(60);
/// How often somebody who waits looks whether to go on.
const LOOK: Duration = Duration::from_millis(50);

/// Why a file wasn't moved.
#[derive(Debug)]
pub enum Halt {
    Stopped,
    Io { offset: u64, fault: Fault },
    Damaged(Damage),
}

/// What all threads look at.
#[derive(Default)]
pub struct Shared {
    pub stop: AtomicBool,
    pub bytes: AtomicU64,
}

/// One thread's slots.
pub struct Pump {
    arena: Arena,
    pub reactor: Reactor,
    done: Vec<Done>,
    /// Slots that no I/O has.
    free: Vec<u32>,
    /// By slot: what its I/O has to move, and where.
    asked: Vec<(u64, u32)>,
}

impl Pump {
    pub fn new(reactor: Reactor, depth: u32, io_bytes: u64) -> Result<Pump, Error> {
        Ok(Pump {
            arena: Arena::new(depth as usize, io_bytes as usize, Pages::Thp)?,
            reactor,
            done: Vec::new(),
            free: (0..depth).rev().collect(),
            asked: vec![(0, 0); depth as usize],
        })
    }

    /// Writes a file at `base`, its last block filled up with zeroes to a multiple of `align`.
    pub fn write(
        &mut self,
        writer: &mut Writer,
        shape: FileShape,
        queue: &mut dyn Queue,
        base: u64,
        align: u32,
        shared: &Shared,
    ) -> Result<(), Halt> {
        writer.begin(shape);
        let mut left = writer.file_bytes(shape);
        let mut at = base;
        let mut written = Ok(());
        while left > 0 && written.is_ok() && !shared.stop.load(Ordering::Relaxed) {
            let Some(slot) = self.free.pop() else {
                written = self.wait(queue, shared);
                continue;
            };
            let memory = self.arena.slot_bytes_mut(slot as usize);
            let filled = writer.fill(memory);
            let len = filled.next_multiple_of(align as usize);
            memory[filled..len].fill(0);
            self.push(queue, slot, Op::Write { durable: false }, at, len as u32);
            at += len as u64;
            left -= filled as u64;
            shared.bytes.fetch_add(filled as u64, Ordering::Relaxed);
        }
        let drained = self.drain(queue, shared);
        written.and(drained)
    }

    /// Reads the `bytes` of a file at `base`, in order, and has them parsed.
    pub fn check(
        &mut self,
        parser: &mut dyn Parser,
        queue: &mut dyn Queue,
        base: u64,
        bytes: u64,
        align: u32,
        shared: &Shared,
    ) -> Result<(), Halt> {
        parser.begin(bytes);
        let slot_bytes = self.arena.slot_bytes() as u64;
        let mut at = 0;
        while at < bytes {
            let used = slot_bytes.min(bytes - at) as usize;
            let len = used.next_multiple_of(align as usize);
            // One after another: threads do the rest.
            self.alone(queue, Op::Read, base + at, len as u32, shared)?;
            let memory = self.arena.slot_bytes_mut(0);
            parser.take(&memory[..used]).map_err(Halt::Damaged)?;
            at += used as u64;
            shared.bytes.fetch_add(used as u64, Ordering::Relaxed);
        }
        parser.end().map_err(Halt::Damaged)
    }

    /// Writes bytes at offset 0; their length is a multiple of any block.
    pub fn put(&mut self, bytes: &[u8], queue: &mut dyn Queue, shared: &Shared) -> Result<(), Halt> {
        let slot_bytes = self.arena.slot_bytes();
        for (index, piece) in bytes.chunks(slot_bytes).enumerate() {
            self.arena.slot_bytes_mut(0)[..piece.len()].copy_from_slice(piece);
            self.alone(
                queue,
                Op::Write { durable: false },
                (index * slot_bytes) as u64,
                piece.len() as u32,
                shared,
            )?;
        }
        Ok(())
    }

    /// What was written is durable.
    pub fn flush(&mut self, queue: &mut dyn Queue, shared: &Shared) -> Result<(), Halt> {
        self.alone(queue, Op::Flush, 0, 0, shared)
    }

    /// One I/O with the first slot, and nothing beside it.
    fn alone(
        &mut self,
        queue: &mut dyn Queue,
        op: Op,
        offset: u64,
        len: u32,
        shared: &Shared,
    ) -> Result<(), Halt> {
        self.free.retain(|free| *free != 0);
        self.push(queue, 0, op, offset, len);
        self.drain(queue, shared)
    }

    fn push(&mut self, queue: &mut dyn Queue, slot: u32, op: Op, offset: u64, len: u32) {
        self.asked[slot as usize] = (offset, len);
        let io = Io { tag: slot, op, offset, len, mem: self.arena.slot(slot as usize) };
        // As many slots as the queue is deep.
        let taken = queue.push(io, &mut self.reactor);
        assert!(taken.is_ok(), "a queue as deep as its slots takes an I/O of a free one");
        queue.submit(&mut self.reactor);
        self.reactor.submit();
    }

    /// Until an I/O is done. A first fault is told once all are done.
    fn wait(&mut self, queue: &mut dyn Queue, shared: &Shared) -> Result<(), Halt> {
        let silent_at = clock::now() + SILENCE;
        loop {
            queue.reap(&mut self.reactor, &mut self.done);
            if !self.done.is_empty() {
                return self.take_back();
            }
            let now = clock::now();
            if now >= silent_at {
                (0..self.asked.len() as u32)
                    .filter(|slot| !self.free.contains(slot))
                    .for_each(|slot| queue.abandon(slot, &mut self.reactor));
            }
            if shared.stop.load(Ordering::Relaxed) && queue.in_flight() == 0 {
                return Err(Halt::Stopped);
            }
            let until = queue.next_due().unwrap_or(now + LOOK).min(now + LOOK);
            self.reactor.wait(1, until, Duration::ZERO);
        }
    }

    fn take_back(&mut self) -> Result<(), Halt> {
        let mut first = Ok(());
        for done in self.done.drain(..) {
            self.free.push(done.tag);
            let (offset, len) = self.asked[done.tag as usize];
            let fault = match done.result {
                Ok(moved) if moved == len => continue,
                Ok(moved) => Fault::note(libc::EIO, format!("{moved} of {len} bytes were moved")),
                Err(fault) => fault,
            };
            if first.is_ok() {
                first = Err(Halt::Io { offset, fault });
            }
        }
        first
    }

    /// Until nothing is under way.
    fn drain(&mut self, queue: &mut dyn Queue, shared: &Shared) -> Result<(), Halt> {
        let mut first = Ok(());
        while queue.in_flight() > 0 {
            first = first.and(self.wait(queue, shared));
        }
        match first {
            Ok(()) if shared.stop.load(Ordering::Relaxed) => Err(Halt::Stopped),
            other => other,
        }
    }
}
