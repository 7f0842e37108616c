//! Time-outs of a worker's I/Os: looked for now and then, without the time in which the process stood still.

use super::Issued;
use crate::run_kit::{Standstills, STANDSTILL};
use forebay_io::{Client, LateIo, Reactor};
use std::time::{Duration, Instant};

/// Interval of looks while nothing completes, whatever the reporting interval: stop requests are seen then, too.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// Time to the next look where a beat is to come first.
const POLL_SOON: Duration = Duration::from_millis(10);

/// Whether I/Os are late.
pub(super) enum Lateness {
    AllInTime,
    /// Something took long, and the process may have stood still meanwhile.
    Unsure,
    /// Something took long. It may be done already: while this thread didn't run, nothing was collected.
    Late,
}

pub(super) struct Timeouts {
    pub timeout: Duration,
    every: Duration,
    pub next_look: Instant,
    /// Standstills that no I/O under way is blamed for any more.
    forgiven: Duration,
    /// Kept, so that it is allocated once.
    late: Vec<(u32, LateIo)>,
}

impl Timeouts {
    pub(super) fn new(timeout: Duration, interval: Duration, now: Instant) -> Timeouts {
        let every = POLL_INTERVAL.min(interval);
        Timeouts { timeout, every, next_look: now, forgiven: Duration::ZERO, late: Vec::new() }
    }

    /// Looks for I/Os that are late, in a run that began at `begin`.
    pub(super) fn find_late(
        &mut self,
        now: Instant,
        begin: Instant,
        standstills: &Standstills,
        client: &mut Client<Issued>,
    ) -> Lateness {
        let late = now.saturating_duration_since(self.next_look);
        self.next_look = now + self.every;
        self.forgive(if late > STANDSTILL { late } else { Duration::ZERO }, begin, standstills, client);
        if !client.any_late(now, self.timeout) {
            return Lateness::AllInTime;
        }
        if !standstills.are_known_at(now) {
            self.next_look = now + POLL_SOON;
            return Lateness::Unsure;
        }
        Lateness::Late
    }

    /// Excludes standstills from the time-outs: `seen` is what this thread saw of one itself, and may be told by a beat as
    /// well.
    fn forgive(
        &mut self,
        seen: Duration,
        begin: Instant,
        standstills: &Standstills,
        client: &mut Client<Issued>,
    ) {
        let known = standstills.since(begin).unwrap_or_default();
        let news = known.saturating_sub(self.forgiven).max(seen);
        if !news.is_zero() {
            client.forgive(news);
            self.forgiven += news;
        }
    }

    /// Gives up what is late: each I/O, and how. `spare` gives the list back.
    pub(super) fn give_up(
        &mut self,
        now: Instant,
        client: &mut Client<Issued>,
        reactor: &mut Reactor,
    ) -> Vec<(u32, LateIo)> {
        let mut late = std::mem::take(&mut self.late);
        client.give_up_late(now, self.timeout, reactor, &mut late);
        late
    }

    pub(super) fn spare(&mut self, mut late: Vec<(u32, LateIo)>) {
        late.clear();
        self.late = late;
    }
}
