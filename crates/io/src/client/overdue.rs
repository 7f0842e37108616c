//! I/Os that time out, are cancelled, or are lost.

use super::queue_of;
use super::Client;
use super::InFlight;
use super::IoState;
use super::Late;
use super::CLIENT_GRACE;
use crate::clock;
use crate::reactor::Reactor;
use std::time::Duration;
use std::time::Instant;

impl<O: Copy> Client<O> {
    /// Number of I/Os that were cancelled and haven't completed.
    pub fn lost(&self) -> u32 {
        self.lost
    }

    /// The caller's work on it takes time, and may time out: it counts as in flight until `unhold`.
    pub fn hold(&mut self, tag: u32) {
        let pending = &mut self.ios[tag as usize];
        (pending.state, pending.issued) = (IoState::Verifying, clock::monotonic_now());
        self.in_flight += 1;
    }

    /// False where it had been given up as lost: its tag is free.
    pub fn unhold(&mut self, tag: u32) -> bool {
        if self.is_found_again(tag) {
            return false;
        }
        self.ios[tag as usize].state = IoState::Held;
        self.in_flight -= 1;
        true
    }

    /// It was given up as lost and has completed after all: its memory can be used again.
    pub(super) fn is_found_again(&mut self, tag: u32) -> bool {
        let pending = &mut self.ios[tag as usize];
        let found = pending.state == IoState::Lost;
        if found {
            pending.state = IoState::Held;
            self.lost -= 1;
            self.release(tag);
        }
        found
    }

    /// Some I/O has been under way for longer than that.
    pub fn any_late(&self, now: Instant, timeout: Duration) -> bool {
        self.ios.iter().any(|t| is_under_way(t) && now.saturating_duration_since(t.issued) > timeout)
    }

    /// Excludes a period from all time-outs, because whatever executes the I/Os may have been suspended, too.
    pub fn forgive(&mut self, stood_still: Duration) {
        self.ios.iter_mut().filter(|t| is_under_way(t)).for_each(|t| t.issued += stood_still);
    }

    /// Cancels I/Os that took longer than `timeout`; one that doesn't complete within `GRACE` even then is abandoned
    /// to the kernel, with its memory. The outcome of each is added to `late`.
    pub fn give_up_late(
        &mut self,
        now: Instant,
        timeout: Duration,
        reactor: &mut Reactor,
        late: &mut Vec<(u32, Late)>,
    ) {
        for tag in 0..self.ios.len() as u32 {
            let pending = &self.ios[tag as usize];
            let age = now.saturating_duration_since(pending.issued);
            if !is_under_way(pending) || age <= timeout {
                continue;
            }
            if !pending.abandoned {
                self.abandon(tag, reactor);
                late.push((tag, Late::TimedOut));
            } else if pending.state == IoState::Again {
                self.again.retain(|again| *again != tag);
                self.ios[tag as usize].state = IoState::Held;
                late.push((tag, Late::NeverTaken));
            } else if age > timeout + CLIENT_GRACE {
                self.lose(tag);
                late.push((tag, Late::Lost));
            }
        }
    }

    /// Nothing that is under way is ever heard of (`Reactor::refused`): what a queue has is left to the kernel, memory and
    /// all. What each came to.
    pub fn give_up_all(&mut self) -> Vec<(u32, Late)> {
        let owed = self.take_owed(|_| true).into_iter();
        let mut late: Vec<_> = owed.map(|tag| (tag, Late::NeverTaken)).collect();
        for tag in 0..self.ios.len() as u32 {
            if self.ios[tag as usize].state == IoState::Pushed {
                self.lose(tag);
                late.push((tag, Late::Lost));
            }
        }
        late
    }

    fn lose(&mut self, tag: u32) {
        self.ios[tag as usize].state = IoState::Lost;
        (self.lost, self.in_flight) = (self.lost + 1, self.in_flight - 1);
    }

    /// Asks the queue of an I/O to cancel it.
    pub fn abandon(&mut self, tag: u32, reactor: &mut Reactor) {
        let pending = &mut self.ios[tag as usize];
        pending.abandoned = true;
        if pending.state == IoState::Pushed {
            queue_of(&mut self.entries, pending.submission.queue).abandon(tag, reactor);
        }
    }

    /// I/Os that no queue has: they are over and belong to the caller.
    pub fn take_owed(&mut self, whose: impl Fn(&O) -> bool) -> Vec<u32> {
        let ios = &self.ios;
        let (gone, kept): (Vec<u32>, Vec<u32>) = std::mem::take(&mut self.again)
            .into_iter()
            .partition(|t| whose(&ios[*t as usize].submission.owner));
        self.again = kept;
        gone.iter().for_each(|tag| self.ios[*tag as usize].state = IoState::Held);
        gone
    }
}

pub(super) fn is_under_way<O>(pending: &InFlight<O>) -> bool {
    matches!(pending.state, IoState::Again | IoState::Pushed | IoState::Verifying)
}
