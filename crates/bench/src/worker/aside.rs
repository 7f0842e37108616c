//! Latencies that a standstill of the process may be part of: told once it is known, without it.

use super::Worker;
use crate::run_kit::{Timed, STANDSTILL_EXACT, STANDSTILL_MIN};
use forebay_io::queue::Via;
use forebay_model::pattern::Next;
use std::time::{Duration, Instant};

/// Time between two looks for the beat that the end waits for.
const SOON: Duration = Duration::from_millis(1);

/// Something that ended while no beat told what its time was.
pub(super) struct Aside {
    what: Timed,
    /// Line of the log.
    logged: Option<Next>,
    started: Instant,
    ended: Instant,
    /// When the worker had booked something last.
    ran: Instant,
    measured: bool,
}

impl Worker {
    /// Books I/Os that were one and took long: what they moved now, and their latency.
    #[cold]
    pub(super) fn book_long(
        &mut self,
        io: &Next,
        count: u64,
        (went, copy_ns): ((Via, u64), u32),
        started: Instant,
        ended: Instant,
    ) {
        self.tally.move_rows(io, count, went, copy_ns);
        let measured = self.tally.is_measuring();
        let logged = (self.log.is_some() && measured).then_some(*io);
        let what = Timed::Ios { is_read: io.is_read, count };
        self.tell(Aside { what, logged, started, ended, ran: self.ran, measured });
    }

    /// Books the latency of what is counted already.
    pub(super) fn book_time(&mut self, what: Timed, started: Instant, ended: Instant, took: Duration) {
        let measured = self.tally.is_measuring();
        if took < STANDSTILL_MIN {
            return self.tally.time(what, took, measured);
        }
        self.tell(Aside { what, logged: None, started, ended, ran: self.ran, measured });
    }

    /// Books the latency of several I/Os together, a batch or a query.
    pub(super) fn book_whole(&mut self, what: Timed, ended: Instant, took: Duration) {
        self.book_time(what, ended.checked_sub(took).unwrap_or(ended), ended, took);
    }

    fn tell(&mut self, one: Aside) {
        if !self.shared.standstills.are_known_at(one.ended) {
            return self.asides.push(one);
        }
        let stood_still = self.shared.standstills.while_under_way(one.started, one.ended, one.ran);
        let took = one.ended.saturating_duration_since(one.started).saturating_sub(stood_still);
        if let (Some(io), Timed::Ios { count, .. }) = (&one.logged, one.what) {
            (0..count).for_each(|_| self.log_one(io, took, one.ended));
        }
        // When a standstill began is known to a beat: what little is left of such an I/O is nobody's latency.
        if stood_still.is_zero() || took >= STANDSTILL_EXACT {
            self.tally.time(one.what, took, one.measured);
        }
    }

    pub(super) fn settle_asides(&mut self) {
        // Where the oldest isn't known, none is.
        if self.asides.first().is_some_and(|one| !self.shared.standstills.are_known_at(one.ended)) {
            return;
        }
        std::mem::take(&mut self.asides).into_iter().for_each(|one| self.tell(one));
    }

    /// Waits at the end for the beat that tells what is left to be told.
    pub(super) fn await_beats(&mut self) {
        self.settle_asides();
        while !self.asides.is_empty() {
            std::thread::sleep(SOON);
            self.settle_asides();
        }
    }
}
