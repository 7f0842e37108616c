//! Retries of a host to reach a controller: the wait before the next attempt, and the time to give up.

use super::Notes;
use std::time::{Duration, Instant};

/// The first wait after an attempt that failed; each one is twice as long as the one before.
const RETRY_FIRST: Duration = Duration::from_millis(100);

/// Commands of a path, over all of its I/O queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Commands {
    pub sent: u64,
    pub completed: u64,
}

/// An association from when it was up.
#[derive(Debug)]
pub(crate) struct Episode {
    since: Instant,
    before: Commands,
    now: Commands,
    /// When a command was last seen to have completed.
    completed: Option<Instant>,
}

impl Episode {
    /// Begins an episode of a path that was asked for so much before.
    pub(crate) fn new(before: Commands, now: Instant) -> Episode {
        Episode { since: now, before, now: before, completed: None }
    }

    pub(crate) fn note(&mut self, commands: Commands, now: Instant) {
        if commands.completed != self.now.completed {
            self.completed = Some(now);
        }
        self.now = commands;
    }

    /// Nothing was asked of it.
    fn is_idle(&self) -> bool {
        self.now.sent == self.before.sent
    }
}

/// The attempts to reach one controller. An association that ended before its time, or without any of the I/O that
/// was asked of it, is one that failed.
#[derive(Debug)]
pub(crate) struct Attempts {
    failures: u32,
    /// When it last worked, or was first wanted.
    worked: Instant,
}

impl Attempts {
    pub(crate) fn new(now: Instant) -> Attempts {
        Attempts { failures: 0, worked: now }
    }

    /// An attempt is over. `episode`: it led to an association. `longest`: the wait between two attempts.
    pub(crate) fn ended(&mut self, episode: Option<Episode>, longest: Duration, now: Instant) {
        let Some(episode) = episode else { return };
        let steady = now.saturating_duration_since(episode.since) >= longest;
        let worked = episode.completed.or((steady && episode.is_idle()).then_some(now));
        if let Some(at) = worked {
            self.worked = at;
            self.failures = if steady { 0 } else { self.failures };
        }
    }

    /// Returns whether it hasn't worked for so long; None: it may take for ever.
    pub(crate) fn too_late(&self, most: Option<Duration>, now: Instant) -> bool {
        most.is_some_and(|most| now.saturating_duration_since(self.worked) >= most)
    }

    /// Returns the number of failures one after the other.
    pub(crate) fn failures(&self) -> u32 {
        self.failures
    }

    /// Returns the wait before the next attempt: none after the first failure.
    pub(crate) fn wait(&mut self, longest: Duration) -> Duration {
        self.failures = self.failures.saturating_add(1);
        match self.failures {
            1 => Duration::ZERO,
            n => RETRY_FIRST.saturating_mul(1 << (n - 2).min(16)).min(longest),
        }
    }
}

impl Notes {
    /// Returns the commands on a path so far, and their outcomes.
    pub fn commands(&self, path: usize) -> Commands {
        self.all_traffic().iter().filter(|t| t.path == path).fold(Commands::default(), |sum, t| {
            let (sent, completed) = t.commands();
            Commands { sent: sum.sent + sent, completed: sum.completed + completed }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST: Duration = Duration::from_secs(2);

    /// An association of so long, in which so many commands were sent and completed.
    fn after(
        attempts: &mut Attempts,
        now: &mut Instant,
        lasts: Duration,
        sent: u64,
        completed: u64,
    ) -> Duration {
        let mut episode = Episode::new(Commands { sent: 7, completed: 7 }, *now);
        *now += lasts;
        episode.note(Commands { sent: 7 + sent, completed: 7 + completed }, *now);
        attempts.ended(Some(episode), LONGEST, *now);
        attempts.wait(LONGEST)
    }

    // promise: RHO-3
    #[test]
    fn associations_that_do_not_last_are_waited_for_ever_longer() {
        let mut now = Instant::now();
        let mut attempts = Attempts::new(now);
        let waits = [0, 100, 200, 400, 800, 1600, 2000, 2000].map(Duration::from_millis);
        // Whether they bring anything or not, or aren't even asked.
        for (n, wait) in waits.into_iter().enumerate() {
            let (sent, completed) = [(1, 0), (3, 2), (0, 0)][n % 3];
            let got = after(&mut attempts, &mut now, Duration::from_millis(5), sent, completed);
            assert_eq!(got, wait, "after association {n}");
        }
        // One that lasts and brings nothing is no better.
        assert_eq!(after(&mut attempts, &mut now, 20 * LONGEST, 1, 0), LONGEST);
        for (sent, completed) in [(4, 3), (0, 0)] {
            assert_eq!(after(&mut attempts, &mut now, LONGEST, sent, completed), Duration::ZERO, "it worked");
            assert_eq!(attempts.wait(LONGEST), RETRY_FIRST, "and the next one wasn't reached");
        }
    }

    // promise: RHO-3
    #[test]
    fn time_runs_out_from_the_last_command_that_completed() {
        let mut now = Instant::now();
        let (mut attempts, most) = (Attempts::new(now), Some(Duration::from_secs(5)));
        for _ in 0..4 {
            after(&mut attempts, &mut now, Duration::from_secs(1), 1, 0);
            assert!(!attempts.too_late(most, now));
        }
        after(&mut attempts, &mut now, Duration::from_secs(1), 2, 1);
        assert!(!attempts.too_late(most, now + Duration::from_secs(4)));
        assert!(attempts.too_late(most, now + Duration::from_secs(5)));
        assert!(!attempts.too_late(None, now + Duration::from_secs(5000)));
        after(&mut attempts, &mut now, Duration::from_secs(9), 1, 0);
        assert!(attempts.too_late(most, now), "an association without I/O doesn't count");
        after(&mut attempts, &mut now, Duration::from_secs(9), 0, 0);
        assert!(!attempts.too_late(most, now), "but where none was wanted");
    }
}
