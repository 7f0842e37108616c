//! I/Os that are one request: they start together once there are slots for all of them, and the request ends with the
//! last.

use std::time::{Duration, Instant};

/// The batch number of an I/O that belongs to no batch.
pub(crate) const NONE: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Group {
    started: Instant,
    /// I/Os that were started and haven't ended.
    under_way: u32,
    /// None of them failed, and none is missing.
    whole: bool,
}

/// The batches of a worker.
pub(crate) struct Batches {
    size: u32,
    groups: Vec<Group>,
    free: Vec<u32>,
    /// The one that is being started, and how many of its I/Os are still to come.
    open: Option<(u32, u32)>,
}

impl Batches {
    /// `size`: I/Os of each. None where each I/O stands for itself.
    pub(crate) fn sized(size: Option<u32>) -> Option<Batches> {
        size.map(|size| Batches { size, groups: Vec::new(), free: Vec::new(), open: None })
    }

    /// Returns whether an I/O may start with so many free slots: one of a batch that has begun, or the first of the
    /// next.
    pub(crate) fn may_start(&self, slots: usize) -> bool {
        self.open.is_some() || slots >= self.size as usize
    }

    /// No batch lacks I/Os that are still to be started.
    pub(crate) fn is_between(&self) -> bool {
        self.open.is_none()
    }

    /// When the batch began that is being started.
    pub(crate) fn began(&self) -> Option<Instant> {
        self.open.map(|(group, _)| self.groups[group as usize].started)
    }

    /// The batch of an I/O that starts now.
    pub(crate) fn start(&mut self, now: Instant) -> u32 {
        let (group, left) = self.open.take().unwrap_or_else(|| (self.begin(now), self.size));
        self.groups[group as usize].under_way += 1;
        self.open = (left > 1).then_some((group, left - 1));
        group
    }

    fn begin(&mut self, started: Instant) -> u32 {
        let group = Group { started, under_way: 0, whole: true };
        match self.free.pop() {
            Some(at) => {
                self.groups[at as usize] = group;
                at
            }
            None => {
                self.groups.push(group);
                (self.groups.len() - 1) as u32
            }
        }
    }

    /// An I/O has ended; how long its batch took, if it was the last and all of them came.
    pub(crate) fn end(&mut self, group: u32, now: Instant, came: bool) -> Option<Duration> {
        let at = &mut self.groups[group as usize];
        at.under_way -= 1;
        at.whole &= came;
        let is_open = self.open.is_some_and(|(open, _)| open == group);
        if at.under_way > 0 || is_open {
            return None;
        }
        let took = at.whole.then(|| now.saturating_duration_since(at.started));
        self.free.push(group);
        took
    }

    /// No more I/Os come: what has begun stays short of some, and isn't counted.
    pub(crate) fn cut(&mut self) {
        let Some((group, _)) = self.open.take() else { return };
        let at = &mut self.groups[group as usize];
        at.whole = false;
        if at.under_way == 0 {
            self.free.push(group);
        }
    }
}

/// Queries of a worker, each so many batches that follow on each other.
pub(crate) struct Queries {
    hops: u32,
    /// Rounds of the current one that have ended, and when it began.
    ended: u32,
    began: Instant,
}

impl Queries {
    pub(crate) fn new(hops: u32, now: Instant) -> Queries {
        Queries { hops, ended: 0, began: now }
    }

    /// A round begins.
    pub(crate) fn begin_round(&mut self, now: Instant) {
        if self.ended == 0 {
            self.began = now;
        }
    }

    /// A round has ended; how long its query took, if that was its last. `whole`: all of it came.
    pub(crate) fn end_round(&mut self, now: Instant, whole: bool) -> Option<Duration> {
        self.ended = if whole { self.ended + 1 } else { 0 };
        if self.ended < self.hops {
            return None;
        }
        self.ended = 0;
        Some(now.saturating_duration_since(self.began))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise: BEN-54
    #[test]
    fn a_query_is_so_many_whole_rounds_and_begins_anew_where_one_is_not() {
        let (start, after) = (Instant::now(), |ms| Duration::from_millis(ms));
        let mut queries = Queries::new(2, start);
        queries.begin_round(start + after(1));
        assert_eq!(queries.end_round(start + after(3), true), None);
        queries.begin_round(start + after(4));
        assert_eq!(queries.end_round(start + after(9), true), Some(after(8)));
        queries.begin_round(start + after(10));
        assert_eq!(queries.end_round(start + after(11), true), None);
        queries.begin_round(start + after(12));
        assert_eq!(queries.end_round(start + after(13), false), None, "a read of it failed");
        queries.begin_round(start + after(14));
        assert_eq!(queries.end_round(start + after(15), true), None);
        queries.begin_round(start + after(16));
        assert_eq!(queries.end_round(start + after(17), true), Some(after(3)));
    }

    // promise: BEN-25
    #[test]
    fn a_batch_begins_with_room_for_all_and_ends_with_the_last() {
        let mut batches = Batches::sized(Some(3)).unwrap();
        let (start, after) = (Instant::now(), |ms| Duration::from_millis(ms));
        assert!(!batches.may_start(2) && batches.may_start(3));
        let first = batches.start(start);
        assert!(batches.may_start(0), "it has begun");
        assert_eq!((batches.start(start + after(1)), batches.start(start)), (first, first));
        assert_eq!(batches.began(), None);
        let second = batches.start(start + after(5));
        assert_ne!(first, second);
        assert_eq!(batches.end(first, start + after(9), true), None);
        assert_eq!(batches.end(second, start + after(9), true), None, "two of it are still to come");
        assert_eq!(batches.end(first, start + after(9), true), None);
        assert_eq!(batches.end(first, start + after(10), true), Some(after(10)));
        assert_eq!(batches.start(start), second);
        batches.cut();
        assert_eq!(batches.end(second, start + after(12), true), None, "it was cut short");
        let third = batches.start(start);
        batches.start(start);
        batches.start(start);
        assert_eq!(batches.end(third, start, true), None);
        assert_eq!(batches.end(third, start, false), None);
        assert_eq!(batches.end(third, start, true), None, "one of it failed");
    }
}
