//! A fault queue whose test knows when nothing more comes of it by itself, so that
//! it need not conclude that from silence, which a busy machine keeps as well.

use forebay_io::{Done, Full, Geometry, Io, Queue, Reactor};
use forebay_storage::{FaultPlan, FaultQueue};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Instant;

/// I/Os that fault queues are yet to report without being asked to abandon them.
pub type Awaited = Rc<Cell<u32>>;

pub struct Watched {
    queue: FaultQueue,
    /// Wait of this queue and all others that share the count.
    awaited: Awaited,
}

impl Watched {
    pub fn boxed(inner: Box<dyn Queue>, plan: FaultPlan, worker: u32, awaited: &Awaited) -> Box<dyn Queue> {
        Box::new(Watched { queue: FaultQueue::new(inner, plan, worker), awaited: awaited.clone() })
    }

    /// Calls the queue, and books by how much that changed the count.
    fn booked<T>(&mut self, call: impl FnOnce(&mut FaultQueue) -> T) -> T {
        let own = |queue: &FaultQueue| queue.in_flight() - queue.stalled();
        let before = own(&self.queue);
        let answer = call(&mut self.queue);
        self.awaited.set(self.awaited.get() - before + own(&self.queue));
        answer
    }
}

impl Queue for Watched {
    fn geometry(&self) -> Geometry {
        self.queue.geometry()
    }

    fn in_flight(&self) -> u32 {
        self.queue.in_flight()
    }

    fn push(&mut self, io: Io, reactor: &mut Reactor) -> Result<(), Full> {
        self.booked(|queue| queue.push(io, reactor))
    }

    fn submit(&mut self, reactor: &mut Reactor) {
        self.booked(|queue| queue.submit(reactor));
    }

    fn reap(&mut self, reactor: &mut Reactor, done: &mut Vec<Done>) {
        self.booked(|queue| queue.reap(reactor, done));
    }

    fn abandon(&mut self, tag: u32, reactor: &mut Reactor) {
        self.booked(|queue| queue.abandon(tag, reactor));
    }

    fn next_due(&self) -> Option<Instant> {
        self.queue.next_due()
    }

    fn wakes_at_first(&self) -> bool {
        self.queue.wakes_at_first()
    }

    fn close(&mut self, reactor: &mut Reactor) {
        self.booked(|queue| queue.close(reactor));
    }
}
