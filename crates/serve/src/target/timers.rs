//! Times at which a thread looks at its connections though nothing comes.
//!
//! Each connection has one timer, armed for the earliest of what it waits for. All of a thread share one sweep, which
//! finds peers that neither take what is sent nor send what they announced. Nothing here reads a clock.

use super::ids::ConnectionId;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

/// A connection's timer: when it rings, if it is armed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Timer(Option<Instant>);

impl Timer {
    /// True: it was armed for that time, and isn't any more. An entry of `Timers` may be older than that.
    pub(super) fn rings(&mut self, at: Instant) -> bool {
        self.0.take_if(|armed| *armed == at).is_some()
    }
}

pub(super) struct Timers {
    /// The earliest first. One that was armed again for an earlier time stands here twice.
    armed: BinaryHeap<Reverse<(Instant, ConnectionId)>>,
    /// When to sweep. None: no connection waits for its peer.
    sweep_at: Option<Instant>,
    /// Time that a peer has to make progress.
    stall: Duration,
}

impl Timers {
    pub(super) fn new(stall: Duration) -> Timers {
        Timers { armed: BinaryHeap::new(), sweep_at: None, stall }
    }

    /// Has the connection looked at then, or before.
    pub(super) fn arm(&mut self, id: ConnectionId, timer: &mut Timer, at: Instant) {
        if timer.0.is_none_or(|armed| at < armed) {
            timer.0 = Some(at);
            self.armed.push(Reverse((at, id)));
        }
    }

    /// Takes out one whose time has come: the connection's `Timer` says whether it still holds.
    pub(super) fn next_due(&mut self, now: Instant) -> Option<(Instant, ConnectionId)> {
        let Reverse((at, _)) = self.armed.peek()?;
        (*at <= now).then(|| self.armed.pop().expect("it was just looked at").0)
    }

    /// A peer is waited for: within one and a half times its time it is looked at.
    pub(super) fn want_sweep(&mut self, now: Instant) {
        if self.sweep_at.is_none() {
            self.sweep_at = Some(now + self.stall / 2);
        }
    }

    /// True: it is time to sweep. Whoever still waits then wants another.
    pub(super) fn take_sweep(&mut self, now: Instant) -> bool {
        self.sweep_at.take_if(|at| *at <= now).is_some()
    }

    /// A peer that has made no progress since then has used up its time.
    pub(super) fn is_late(&self, since: Instant, now: Instant) -> bool {
        now.saturating_duration_since(since) > self.stall
    }

    /// When the first of all is due.
    pub(super) fn earliest(&self) -> Option<Instant> {
        let timer = self.armed.peek().map(|Reverse((at, _))| *at);
        timer.into_iter().chain(self.sweep_at).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_io::monotonic_now;

    const STALL: Duration = Duration::from_secs(30);

    fn id(serial: u64) -> ConnectionId {
        ConnectionId { thread: 0, index: 0, serial }
    }

    #[test]
    fn a_timer_rings_once_at_the_earliest_time_that_it_was_armed_for() {
        let (now, s) = (monotonic_now(), Duration::from_secs);
        let (mut timers, mut timer) = (Timers::new(STALL), Timer::default());
        for at in [5, 2, 9] {
            timers.arm(id(1), &mut timer, now + s(at));
        }
        assert_eq!(timers.earliest(), Some(now + s(2)));
        assert_eq!(timers.next_due(now + s(1)), None);
        assert_eq!(timers.next_due(now + s(6)), Some((now + s(2), id(1))));
        assert!(timer.rings(now + s(2)));
        assert_eq!(timers.next_due(now + s(6)), Some((now + s(5), id(1))), "an older entry");
        assert!(!timer.rings(now + s(5)), "which the timer knows no more");
        assert_eq!(timers.next_due(now + s(60)), None);
    }

    #[test]
    fn a_sweep_comes_once_when_it_was_wanted() {
        let now = monotonic_now();
        let mut timers = Timers::new(STALL);
        assert!(!timers.take_sweep(now + STALL));
        timers.want_sweep(now);
        timers.want_sweep(now + STALL / 4);
        assert_eq!(timers.earliest(), Some(now + STALL / 2));
        assert!(
            !timers.take_sweep(now) && timers.take_sweep(now + STALL / 2) && !timers.take_sweep(now + STALL)
        );
    }
}
