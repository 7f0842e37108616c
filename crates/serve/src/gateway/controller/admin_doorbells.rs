//! Doorbells of queue 0 that a client writes to in memory, which wakes nobody: they are looked at.

use crate::gateway::controller_shared::{POLL_AWAKE, POLL_EVERY};
use crate::gateway::shm::Doorbells;
use forebay_nvme::transport::pcie::registers::Doorbell;
use std::time::{Duration, Instant};

/// Interval at which they are looked at where the client may ring in memory and hasn't for a while.
const POLL_RARELY: Duration = Duration::from_millis(1);

pub(super) struct AdminDoorbells {
    /// As they were last seen: completion, submission.
    seen: [u32; 2],
    /// The last message of the client, or doorbell.
    stirred_at: Instant,
}

impl AdminDoorbells {
    pub(super) const BOTH: [Doorbell; 2] = [Doorbell::Completion(0), Doorbell::Submission(0)];

    pub(super) fn new(now: Instant) -> AdminDoorbells {
        AdminDoorbells { seen: [0; 2], stirred_at: now }
    }

    /// The client did something.
    pub(super) fn stir(&mut self, now: Instant) {
        self.stirred_at = now;
    }

    /// All doorbells are 0.
    pub(super) fn cleared(&mut self) {
        self.seen = [0; 2];
    }

    /// The value of one of `BOTH`, if it is another than when it was last looked at.
    pub(super) fn news(&mut self, doorbell: Doorbell, doorbells: &Doorbells, now: Instant) -> Option<u32> {
        let seen = &mut self.seen[usize::from(doorbell == Doorbell::Submission(0))];
        let value = doorbells.get(doorbell);
        if std::mem::replace(seen, value) == value {
            return None;
        }
        self.stir(now);
        Some(value)
    }

    /// How long the thread may sleep without looking.
    pub(super) fn pause(&self, now: Instant) -> Duration {
        let lately = now.saturating_duration_since(self.stirred_at) < POLL_AWAKE;
        if lately {
            POLL_EVERY
        } else {
            POLL_RARELY
        }
    }
}
