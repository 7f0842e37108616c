//! `nil:` — completes at once and moves nothing: the cost of our own loop.

use crate::queue::{Done, Full, Geometry, Io, Queue, Via};
use crate::reactor::Reactor;

pub struct NilQueue {
    geometry: Geometry,
    pushed: Vec<Done>,
    started: usize,
}

impl NilQueue {
    pub fn new(bytes: u64, depth: u32) -> Self {
        let geometry = Geometry { bytes, align: 1, mem_align: 1, io_bytes_max: 1 << 30, depth };
        NilQueue { geometry, pushed: Vec::with_capacity(depth as usize), started: 0 }
    }
}

/// Bytes of an I/O that lie inside an address space of `bytes`.
pub(super) fn inside(io: &Io, bytes: u64) -> u32 {
    u64::from(io.len).min(bytes.saturating_sub(io.offset)) as u32
}

impl Queue for NilQueue {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn in_flight(&self) -> u32 {
        self.pushed.len() as u32
    }

    fn push(&mut self, io: Io, _reactor: &mut Reactor) -> Result<(), Full> {
        if self.pushed.len() == self.geometry.depth as usize {
            return Err(Full(io));
        }
        self.pushed.push(Done {
            tag: io.tag,
            result: Ok(inside(&io, self.geometry.bytes)),
            via: Via::Nothing,
            copy_ns: 0,
        });
        Ok(())
    }

    fn submit(&mut self, _reactor: &mut Reactor) {
        self.started = self.pushed.len();
    }

    fn reap(&mut self, _reactor: &mut Reactor, done: &mut Vec<Done>) {
        if self.started == self.pushed.len() {
            done.append(&mut self.pushed);
        } else {
            done.extend(self.pushed.drain(..self.started));
        }
        self.started = 0;
    }

    fn abandon(&mut self, _tag: u32, _reactor: &mut Reactor) {}
}
