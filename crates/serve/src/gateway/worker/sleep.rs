//! When a thread of the gateway waits, and for what.

use super::Worker;
use super::FOREVER;
use super::POLL_EVERY;
use super::ROUNDS;
use crate::namespace::lane::Lane;
use std::time::Duration;
use std::time::Instant;

impl Worker {
    pub(super) fn wait(&mut self) {
        let controllers = || self.controllers.iter().flatten();
        let polled = controllers().any(|f| f.is_polled(self.now));
        let spins = self.now < self.busy_until && controllers().any(|f| f.awake);
        let more = self.lanes.iter().flatten().any(Lane::is_pushed) || self.inbox.has_messages();
        if more || spins || polled {
            self.rounds += 1;
            let waits = self.lanes.iter().flatten().any(|lane| !lane.is_idle());
            if waits || self.rounds >= ROUNDS {
                self.rounds = 0;
                self.reactor.flush();
            }
            return;
        }
        if self.fall_asleep() {
            self.rounds = 0;
            let until = self.due();
            self.reactor.wait(1, until, Duration::ZERO);
        }
    }

    /// Asks the hosts to ring. False: somebody was faster.
    pub(super) fn fall_asleep(&mut self) -> bool {
        let mut asleep = true;
        for f in self.controllers.iter_mut().flatten() {
            if std::mem::take(&mut f.awake) && !f.suspending && !f.closing {
                f.awake = !f.sleep();
                asleep &= !f.awake;
            }
        }
        asleep
    }

    /// When to wake though nothing comes.
    pub(super) fn due(&self) -> Instant {
        let lanes = self.lanes.iter().flatten().filter_map(Lane::next_due);
        let controllers = self.controllers.iter().flatten();
        let interrupts = controllers.clone().flat_map(|f| &f.queues).filter_map(|q| q.interrupt_at);
        let interrupts = interrupts.map(|us| self.gateway.began + Duration::from_micros(us));
        let polls = controllers
            .clone()
            .filter(|f| f.shared.is_polled() && !f.queues.is_empty())
            .map(|_| self.now + POLL_EVERY);
        let held = controllers.clone().flat_map(|f| &f.queues).filter_map(|q| q.lines.due());
        let held = held.map(|ns| self.gateway.began + Duration::from_nanos(ns));
        let all = lanes.chain(interrupts).chain(held).chain(polls).chain(self.stop_by);
        all.min().unwrap_or(self.now + FOREVER)
    }
}
