//! `model:` in real time: I/Os complete when the modelled drive would complete
//! them, over content from another source or none.

use super::nil::inside;
use crate::arena::Mem;
use crate::clock;
use crate::queue::{Done, Fault, Full, Geometry, Io, Op, Queue, Via};
use crate::reactor::Reactor;
use forebay_model::device::{DriveModel, Timeline};
use forebay_model::job;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A modelled drive that several workers use at once: its channels and its bandwidth are shared.
#[derive(Clone, Debug)]
pub struct SharedDrive {
    timeline: Arc<Mutex<Timeline>>,
    began: Instant,
    random: bool,
}

impl SharedDrive {
    /// `random`: the job draws its offsets, and the drive serves it at its random rates.
    pub fn new(model: &DriveModel, seed: u64, random: bool) -> SharedDrive {
        SharedDrive {
            timeline: Arc::new(Mutex::new(Timeline::new(model, seed))),
            began: clock::now(),
            random,
        }
    }

    /// When a read that begins now would be done.
    pub fn ready_at(&self, offset: u64, bytes: u64) -> Instant {
        let op = if self.random { job::Op::RandRead } else { job::Op::Read };
        let mut timeline = self.timeline.lock().expect("no thread panics while it holds the timeline");
        self.began + Duration::from_nanos(timeline.complete_at(self.since(), op, offset, bytes))
    }

    fn since(&self) -> u64 {
        clock::now().duration_since(self.began).as_nanos() as u64
    }

    fn complete_at(&self, io: &Io) -> u64 {
        let op = match (io.op, self.random) {
            (Op::Read, false) => job::Op::Read,
            (Op::Read, true) => job::Op::RandRead,
            (_, false) => job::Op::Write,
            (_, true) => job::Op::RandWrite,
        };
        let mut timeline = self.timeline.lock().expect("no thread panics while it holds the timeline");
        timeline.complete_at(self.since(), op, io.offset, u64::from(io.len))
    }
}

pub struct ModelQueue {
    inner: Option<Box<dyn Queue>>,
    geometry: Geometry,
    drive: SharedDrive,
    /// (due in ns since the drive began, tag).
    due: BinaryHeap<Reverse<(u64, u32)>>,
    due_of: Vec<u64>,
    /// Finished below; due later.
    waiting: Vec<Option<Done>>,
    in_flight: u32,
    scratch: Vec<Done>,
}

impl ModelQueue {
    pub fn new(drive: SharedDrive, inner: Option<Box<dyn Queue>>, bytes: u64, depth: u32) -> Self {
        let alone = Geometry { bytes, align: 1, mem_align: 1, io_bytes_max: 1 << 30, depth };
        ModelQueue {
            geometry: inner.as_ref().map_or(alone, |q| q.geometry()),
            inner,
            drive,
            due: BinaryHeap::new(),
            due_of: vec![0; depth as usize],
            waiting: vec![None; depth as usize],
            in_flight: 0,
            scratch: Vec::new(),
        }
    }
}

impl Queue for ModelQueue {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn in_flight(&self) -> u32 {
        self.in_flight
    }

    fn lend(&mut self, offset: u64, len: u32) -> Option<Mem> {
        self.inner.as_mut()?.lend(offset, len)
    }

    fn push(&mut self, io: Io, reactor: &mut Reactor) -> Result<(), Full> {
        if self.in_flight == self.geometry.depth {
            return Err(Full(io));
        }
        let tag = io.tag as usize;
        match &mut self.inner {
            Some(inner) => {
                inner.push(io, reactor)?;
                self.due_of[tag] = self.drive.complete_at(&io);
            }
            None => {
                let moved = inside(&io, self.geometry.bytes);
                self.waiting[tag] =
                    Some(Done { tag: io.tag, result: Ok(moved), via: Via::Nothing, copy_ns: 0 });
                self.due.push(Reverse((self.drive.complete_at(&io), io.tag)));
            }
        }
        self.in_flight += 1;
        Ok(())
    }

    fn submit(&mut self, reactor: &mut Reactor) {
        if let Some(inner) = &mut self.inner {
            inner.submit(reactor);
        }
    }

    fn reap(&mut self, reactor: &mut Reactor, done: &mut Vec<Done>) {
        if let Some(inner) = &mut self.inner {
            inner.reap(reactor, &mut self.scratch);
            for d in self.scratch.drain(..) {
                let tag = d.tag as usize;
                self.due.push(Reverse((self.due_of[tag], d.tag)));
                self.waiting[tag] = Some(d);
            }
        }
        let now = self.drive.since();
        while let Some(Reverse((_, tag))) = self.due.peek().filter(|d| d.0 .0 <= now).copied() {
            self.due.pop();
            self.in_flight -= 1;
            done.push(self.waiting[tag as usize].take().expect("what is due finished below"));
        }
    }

    fn abandon(&mut self, tag: u32, reactor: &mut Reactor) {
        let at = tag as usize;
        if let Some(done) = &mut self.waiting[at] {
            // Only the clock still holds it.
            done.result = Err(Fault::errno(libc::ECANCELED));
            self.due.retain(|Reverse((_, other))| *other != tag);
            self.due.push(Reverse((0, tag)));
        } else if let Some(inner) = &mut self.inner {
            self.due_of[at] = 0;
            inner.abandon(tag, reactor);
        }
    }

    fn next_due(&self) -> Option<Instant> {
        let own = self.due.peek().map(|d| self.drive.began + Duration::from_nanos(d.0 .0));
        [own, self.inner.as_ref().and_then(|q| q.next_due())].into_iter().flatten().min()
    }

    fn wakes_at_first(&self) -> bool {
        self.inner.as_ref().is_some_and(|q| q.wakes_at_first())
    }

    fn close(&mut self, reactor: &mut Reactor) {
        if let Some(inner) = &mut self.inner {
            inner.close(reactor);
        }
    }
}
