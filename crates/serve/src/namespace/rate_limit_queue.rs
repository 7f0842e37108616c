//! Commands that wait for their namespace's limits: in one line for each namespace of a queue, so that they hold up
//! neither other queues nor commands for other namespaces. They hold on to nothing of the host's memory meanwhile.

use super::qos::{enter, Limiter, Share};
use std::collections::VecDeque;
use std::sync::Arc;

/// A queue's commands for one namespace.
#[derive(Debug)]
struct Line {
    nsid: u32,
    share: Share,
    /// Slots, with the bytes that each moves.
    waiting: VecDeque<(u16, u64)>,
}

/// Commands of one queue that wait for their limits.
#[derive(Debug, Default)]
pub(crate) struct RateLimitQueue {
    lines: Vec<Line>,
    /// When to look again, ns.
    until: Option<u64>,
}

impl RateLimitQueue {
    /// True: the command may go now. Else it waits.
    pub(crate) fn ask(
        &mut self,
        (nsid, limiter): (u32, &Arc<Limiter>),
        slot: u16,
        bytes: u64,
        now_ns: u64,
    ) -> bool {
        if self.lines.is_empty() && limiter.is_open() {
            return true;
        }
        let line = self.line(nsid, limiter);
        let mut until = now_ns;
        if line.waiting.is_empty() {
            match enter(&mut [&mut line.share], bytes, now_ns) {
                Ok(()) => return true,
                Err(later) => until = later,
            }
        }
        line.waiting.push_back((slot, bytes));
        limiter.held_back();
        self.until = Some(self.until.map_or(until, |other| other.min(until)));
        false
    }

    fn line(&mut self, nsid: u32, limiter: &Arc<Limiter>) -> &mut Line {
        let at = self.lines.iter().position(|line| line.nsid == nsid).unwrap_or_else(|| {
            self.lines.push(Line { nsid, share: limiter.share(), waiting: VecDeque::new() });
            self.lines.len() - 1
        });
        let line = &mut self.lines[at];
        // Another namespace of that number.
        if !line.share.is_of(limiter) {
            line.share = limiter.share();
        }
        line
    }

    /// A slot whose time has come.
    pub(crate) fn next(&mut self, now_ns: u64) -> Option<u16> {
        self.until.filter(|until| *until <= now_ns)?;
        let mut next: Option<u64> = None;
        for line in &mut self.lines {
            let Some((slot, bytes)) = line.waiting.front().copied() else { continue };
            match enter(&mut [&mut line.share], bytes, now_ns) {
                Ok(()) => {
                    line.waiting.pop_front();
                    return Some(slot);
                }
                Err(until) => next = Some(next.map_or(until, |other| other.min(until))),
            }
        }
        self.until = next;
        None
    }

    /// Returns the number of waiting commands.
    pub(crate) fn len(&self) -> usize {
        self.lines.iter().map(|line| line.waiting.len()).sum()
    }

    /// When to look again, ns.
    pub(crate) fn due(&self) -> Option<u64> {
        self.until
    }

    /// Limits may have changed.
    pub(crate) fn look_again(&mut self) {
        self.until = self.until.map(|_| 0);
    }

    /// Takes those away that it chooses.
    pub(crate) fn remove(&mut self, chosen: impl Fn(u16) -> bool) -> Vec<u16> {
        let mut gone = Vec::new();
        for line in &mut self.lines {
            gone.extend(line.waiting.iter().map(|(slot, _)| *slot).filter(|slot| chosen(*slot)));
            line.waiting.retain(|(slot, _)| !chosen(*slot));
        }
        gone
    }
}
