//! Moves a file's bytes between a writer (or a parser) and a queue, slot by slot.
//!
//! A slot is filled, summed and handed to the device while it lies in L2.

use crate::format::write::{FileShape, Writer};
use crate::format::{Damage, Parser};
use forebay_bench::TeamStop;
use forebay_io::{
    monotonic_now, Arena, Client, CompletionEnd, Fault, LateIo, Op, Queue, Reactor, Submission,
};
use forebay_model::job::Pages;
use forebay_model::Error;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A device that says nothing for so long is broken.
const SILENCE: Duration = Duration::from_secs(60);
/// Interval at which a waiting thread checks whether to go on.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Why a file wasn't moved.
#[derive(Debug)]
pub(crate) enum Halt {
    Stopped,
    Io {
        offset: u64,
        fault: Fault,
    },
    Damaged(Damage),
    /// The kernel takes no calls for the ring any more (`Reactor::refused`).
    Refused(std::io::Error),
}

/// State that all threads share.
#[derive(Default)]
pub(crate) struct Shared {
    pub stop: TeamStop,
    pub bytes: AtomicU64,
}

/// The number of the pump's queue at its client.
const QUEUE: u32 = 0;

/// One thread's slots.
pub(crate) struct Pump {
    // Field order is drop order: the queue, then the ring, then the memory that both point to.
    client: Client<()>,
    pub reactor: Reactor,
    arena: Option<Arena>,
}

impl Pump {
    pub(crate) fn new(reactor: Reactor, depth: u32, io_bytes: u64) -> Result<Pump, Error> {
        let arena = Arena::new(depth as usize, io_bytes as usize, Pages::Thp)?;
        let client = Client::new(depth, false, (), |slot| arena.slot(slot));
        Ok(Pump { client, reactor, arena: Some(arena) })
    }

    /// Sets the queue that bytes go to and come from.
    pub(crate) fn take_on(&mut self, queue: Box<dyn Queue>) {
        let number = self.client.add(queue);
        debug_assert_eq!(number, QUEUE);
    }

    fn arena(&mut self) -> &mut Arena {
        self.arena.as_mut().expect("it goes with the pump")
    }

    pub(crate) fn let_go(&mut self) {
        if self.client.lost() > 0 {
            return;
        }
        self.client.close(&mut self.reactor);
        self.client.remove(QUEUE);
    }

    /// Writes a file at `base`, its last block filled up with zeroes to a multiple of `align`.
    pub(crate) fn write(
        &mut self,
        writer: &mut Writer,
        shape: FileShape,
        base: u64,
        align: u32,
        shared: &Shared,
    ) -> Result<(), Halt> {
        writer.begin(shape);
        let mut left = writer.file_bytes(shape);
        let mut at = base;
        let mut written = Ok(());
        while left > 0 && written.is_ok() && !shared.stop.is_set() {
            let Some(tag) = self.begin(Op::Write { durable: false }, at, 0) else {
                written = self.wait(shared);
                continue;
            };
            let memory = self.arena().slot_bytes_mut(tag as usize);
            let filled = writer.fill(memory);
            let len = filled.next_multiple_of(align as usize);
            memory[filled..len].fill(0);
            let submission = self.client.submission(tag);
            (submission.len, submission.want) = (len as u32, len as u32);
            self.push(tag);
            at += len as u64;
            left -= filled as u64;
            shared.bytes.fetch_add(filled as u64, Ordering::Relaxed);
        }
        let drained = self.drain(shared);
        written.and(drained)
    }

    /// Reads the `bytes` of a file at `base`, in order, and has them parsed.
    pub(crate) fn check(
        &mut self,
        parser: &mut dyn Parser,
        base: u64,
        bytes: u64,
        align: u32,
        shared: &Shared,
    ) -> Result<(), Halt> {
        parser.begin(bytes);
        let slot_bytes = self.arena().slot_bytes() as u64;
        let mut at = 0;
        while at < bytes {
            let used = slot_bytes.min(bytes - at) as usize;
            let len = used.next_multiple_of(align as usize);
            // One after another: threads do the rest.
            let tag = self.begin(Op::Read, base + at, len as u32).expect("nothing is under way");
            self.push(tag);
            self.drain(shared)?;
            let memory = self.arena().slot_bytes_mut(tag as usize);
            parser.take(&memory[..used]).map_err(Halt::Damaged)?;
            at += used as u64;
            shared.bytes.fetch_add(used as u64, Ordering::Relaxed);
        }
        parser.end().map_err(Halt::Damaged)
    }

    /// Writes bytes at offset 0; their length is a multiple of any block.
    pub(crate) fn put(&mut self, bytes: &[u8], shared: &Shared) -> Result<(), Halt> {
        let slot_bytes = self.arena().slot_bytes();
        for (index, piece) in bytes.chunks(slot_bytes).enumerate() {
            let (op, at) = (Op::Write { durable: false }, (index * slot_bytes) as u64);
            let tag = self.begin(op, at, piece.len() as u32).expect("nothing is under way");
            self.arena().slot_bytes_mut(tag as usize)[..piece.len()].copy_from_slice(piece);
            self.push(tag);
            self.drain(shared)?;
        }
        Ok(())
    }

    /// Writes bytes that fit a slot, durably; their length and place are multiples of any block.
    pub(crate) fn put_at(&mut self, offset: u64, bytes: &[u8], shared: &Shared) -> Result<(), Halt> {
        let tag = self
            .begin(Op::Write { durable: true }, offset, bytes.len() as u32)
            .expect("nothing is under way");
        self.arena().slot_bytes_mut(tag as usize)[..bytes.len()].copy_from_slice(bytes);
        self.push(tag);
        self.drain(shared)
    }

    /// Reads bytes that fit a slot; their length and place are multiples of any block.
    pub(crate) fn get_at(&mut self, offset: u64, bytes: usize, shared: &Shared) -> Result<Vec<u8>, Halt> {
        let tag = self.begin(Op::Read, offset, bytes as u32).expect("nothing is under way");
        self.push(tag);
        self.drain(shared)?;
        Ok(self.arena().slot_bytes_mut(tag as usize)[..bytes].to_vec())
    }

    /// Makes what was written durable.
    pub(crate) fn flush(&mut self, shared: &Shared) -> Result<(), Halt> {
        let tag = self.begin(Op::Flush, 0, 0).expect("nothing is under way");
        self.push(tag);
        self.drain(shared)
    }

    fn begin(&mut self, op: Op, offset: u64, len: u32) -> Option<u32> {
        self.client.begin(Submission { queue: QUEUE, op, offset, len, want: len, owner: () }, monotonic_now())
    }

    fn push(&mut self, tag: u32) {
        self.client.push(tag, &mut self.reactor);
        self.client.submit(&mut self.reactor);
        self.reactor.submit();
    }

    /// Until an I/O is done. A first fault is told once all are done.
    fn wait(&mut self, shared: &Shared) -> Result<(), Halt> {
        loop {
            let (mut over, mut first) = (false, Ok(()));
            self.client.turn(&mut self.reactor, &mut |client, ended| {
                over = true;
                let pending = client.io(ended.tag);
                let Submission { offset, len, .. } = pending.submission;
                let fault = match ended.end {
                    CompletionEnd::Whole => None,
                    CompletionEnd::Early => {
                        let found = format!("{} of {len} bytes were moved", pending.moved);
                        Some(Fault::note(libc::EIO, found))
                    }
                    CompletionEnd::Failed(fault) | CompletionEnd::GivenUp(fault) => Some(fault),
                };
                if let (Some(fault), Ok(())) = (fault, &first) {
                    first = Err(Halt::Io { offset, fault });
                }
                client.release(ended.tag);
            });
            if let Some(why) = self.reactor.refused() {
                self.give_up_all();
                return first.and(Err(Halt::Refused(why)));
            }
            if over {
                return first;
            }
            if shared.stop.is_set() && self.client.in_flight() == 0 {
                return Err(Halt::Stopped);
            }
            let now = monotonic_now();
            if self.client.any_late(now, SILENCE) {
                let late: Vec<u32> = self.client.tags().collect();
                late.into_iter().for_each(|tag| self.client.abandon(tag, &mut self.reactor));
            }
            let until = self.client.next_due().unwrap_or(now + POLL_INTERVAL).min(now + POLL_INTERVAL);
            self.reactor.wait(1, until, Duration::ZERO);
        }
    }

    /// Nothing that is under way is ever heard of.
    fn give_up_all(&mut self) {
        for (tag, what) in self.client.give_up_all() {
            if what == LateIo::NeverTaken {
                self.client.release(tag);
            }
        }
    }

    /// Waits until no I/O is in flight.
    fn drain(&mut self, shared: &Shared) -> Result<(), Halt> {
        let mut first = Ok(());
        while self.client.in_flight() > 0 || self.client.is_owed() {
            first = first.and(self.wait(shared));
        }
        match first {
            Ok(()) if shared.stop.is_set() => Err(Halt::Stopped),
            other => other,
        }
    }
}

impl Drop for Pump {
    /// Keeps memory that the kernel may still write to: of I/Os under way, after a panic, or given up.
    fn drop(&mut self) {
        if self.client.in_flight() > 0 || self.client.lost() > 0 {
            std::mem::forget(self.arena.take());
        }
    }
}
