//! Complete rounds of push, submit and reap, for callers that have nothing else to do in the meantime.

use super::Client;
use super::Over;
use crate::clock;
use crate::reactor::Reactor;
use std::time::Duration;
use std::time::Instant;

impl<O: Copy> Client<O> {
    /// The same for all queues: one may have something to do although none of our I/Os is in flight.
    pub fn collect_all(&mut self, reactor: &mut Reactor) {
        let Client { lanes, done, .. } = self;
        lanes.iter_mut().filter_map(|lane| lane.queue.as_mut()).for_each(|queue| queue.reap(reactor, done));
    }

    /// Continues until nothing is in flight, or `until`, or the ring is refused; returns true if nothing is left. Passes over
    /// I/Os to
    /// `each`.
    pub fn drain(
        &mut self,
        reactor: &mut Reactor,
        until: Instant,
        mut each: impl FnMut(&mut Self, Over),
    ) -> bool {
        loop {
            self.turn(reactor, &mut each);
            if self.in_flight == 0 && self.again.is_empty() {
                return true;
            }
            let now = clock::now();
            if now >= until || reactor.refused().is_some() {
                return false;
            }
            let due = self.next_due().map_or(until, |due| due.min(until));
            reactor.wait(1, due, Duration::ZERO);
        }
    }

    /// One round: pushes, submits and reaps, and passes completed I/Os to `each`.
    pub fn turn(&mut self, reactor: &mut Reactor, each: &mut impl FnMut(&mut Self, Over)) {
        self.push_again(reactor);
        self.submit(reactor);
        self.collect(reactor);
        let mut done = self.take_done();
        for done in done.drain(..) {
            if let Some(over) = self.settle(done) {
                each(self, over);
            }
        }
        self.spare(done);
        while let Some(over) = self.take_refused() {
            each(self, over);
        }
    }

    /// As a queue would say it.
    /// Lets `done` be reaped next, as if a queue had completed it: for tests of what happens then.
    pub fn came(&mut self, done: crate::queue::Done) {
        self.done.push(done);
    }

    /// Takes every free slot, and says which they were: for tests of what is given back.
    pub fn free_tags(&mut self) -> Vec<u32> {
        std::iter::from_fn(|| self.free.take()).collect()
    }

    /// Makes the queues take back everything that the ring still holds; nothing may be in flight.
    pub fn close(&mut self, reactor: &mut Reactor) {
        self.lanes.iter_mut().filter_map(|lane| lane.queue.as_mut()).for_each(|queue| queue.close(reactor));
    }
}
