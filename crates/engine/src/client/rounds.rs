//! Whole rounds, for whoever has nothing else to do meanwhile.

use super::Client;
use super::Over;
use crate::clock;
use crate::reactor::Reactor;
use std::time::Duration;
use std::time::Instant;

impl<O: Copy> Client<O> {
    /// The same of all queues: one may have something to do though no I/O of ours is under way.
    pub fn collect_all(&mut self, reactor: &mut Reactor) {
        let Client { lanes, done, .. } = self;
        lanes.iter_mut().filter_map(|lane| lane.queue.as_mut()).for_each(|queue| queue.reap(reactor, done));
    }

    /// Carries on until nothing is under way, or `until`, or the ring is refused; true where nothing is left. What is over
    /// goes to `each`.
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

    /// One round: offers, starts and gathers, and hands what is over to `each`.
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
    #[cfg(test)]
    pub fn came(&mut self, done: crate::queue::Done) {
        self.done.push(done);
    }

    #[cfg(test)]
    pub fn free_tags(&mut self) -> Vec<u32> {
        std::iter::from_fn(|| self.free.take()).collect()
    }

    /// Has the queues take back what the ring still holds; with nothing in flight.
    pub fn close(&mut self, reactor: &mut Reactor) {
        self.lanes.iter_mut().filter_map(|lane| lane.queue.as_mut()).for_each(|queue| queue.close(reactor));
    }
}
