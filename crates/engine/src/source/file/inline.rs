//! A file read and written by the worker itself, in `submit`: for data that is
//! in memory already, where a ring or a thread would only add a detour.

use super::{sync, FileTarget};
use crate::queue::{Done, Full, Geometry, Io, Queue};
use crate::reactor::Reactor;

pub struct InlineQueue {
    target: FileTarget,
    geometry: Geometry,
    pushed: Vec<Io>,
    ready: Vec<Done>,
}

impl InlineQueue {
    pub fn new(target: FileTarget, depth: u32) -> Self {
        let room = depth as usize;
        InlineQueue {
            geometry: target.geometry(depth),
            target,
            pushed: Vec::with_capacity(room),
            ready: Vec::with_capacity(room),
        }
    }
}

impl Queue for InlineQueue {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn in_flight(&self) -> u32 {
        (self.pushed.len() + self.ready.len()) as u32
    }

    fn push(&mut self, io: Io, _reactor: &mut Reactor) -> Result<(), Full> {
        if self.in_flight() == self.geometry.depth {
            return Err(Full(io));
        }
        self.pushed.push(io);
        Ok(())
    }

    fn submit(&mut self, _reactor: &mut Reactor) {
        for io in self.pushed.drain(..) {
            self.ready.push(sync::perform(&self.target, &io));
        }
    }

    fn reap(&mut self, _reactor: &mut Reactor, done: &mut Vec<Done>) {
        done.append(&mut self.ready);
    }

    fn abandon(&mut self, _tag: u32, _reactor: &mut Reactor) {}
}
