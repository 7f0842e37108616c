//! A queue whose I/Os the worker does itself, in `submit`: for what ends without
//! waiting, or where a thread between would cost more than it saves.

use crate::arena::Mem;
use crate::queue::{Done, Full, Geometry, Io, Queue};
use crate::reactor::Reactor;

/// As far ahead as takes memory to answer while short rows are copied.
const AHEAD: usize = 8;

/// How one I/O is done.
pub(crate) trait AtOnce {
    fn perform(&mut self, io: &Io) -> Done;

    /// Said of an I/O a few before its turn.
    fn ahead(&mut self, _io: &Io) {}

    /// Said of each I/O as it is taken.
    fn taken(&mut self, _io: &Io) {}

    /// `Queue::lend`.
    fn lend(&mut self, _offset: u64, _len: u32) -> Option<Mem> {
        None
    }
}

pub(crate) struct AtOnceQueue<W> {
    work: W,
    geometry: Geometry,
    pushed: Vec<Io>,
    ready: Vec<Done>,
}

impl<W: AtOnce> AtOnceQueue<W> {
    pub fn new(work: W, geometry: Geometry) -> Self {
        let room = geometry.depth as usize;
        AtOnceQueue { work, geometry, pushed: Vec::with_capacity(room), ready: Vec::with_capacity(room) }
    }
}

impl<W: AtOnce> Queue for AtOnceQueue<W> {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn in_flight(&self) -> u32 {
        (self.pushed.len() + self.ready.len()) as u32
    }

    fn lend(&mut self, offset: u64, len: u32) -> Option<Mem> {
        self.work.lend(offset, len)
    }

    fn push(&mut self, io: Io, _reactor: &mut Reactor) -> Result<(), Full> {
        if self.in_flight() == self.geometry.depth {
            return Err(Full(io));
        }
        self.work.taken(&io);
        self.pushed.push(io);
        Ok(())
    }

    fn submit(&mut self, _reactor: &mut Reactor) {
        for (i, io) in self.pushed.iter().enumerate() {
            if let Some(later) = self.pushed.get(i + AHEAD) {
                self.work.ahead(later);
            }
            self.ready.push(self.work.perform(io));
        }
        self.pushed.clear();
    }

    fn reap(&mut self, _reactor: &mut Reactor, done: &mut Vec<Done>) {
        done.append(&mut self.ready);
    }

    /// Nothing is under way between two calls.
    fn abandon(&mut self, _tag: u32, _reactor: &mut Reactor) {}
}
