//! Notes for a record: changes, and the traffic of each I/O queue.

use super::lock;
use forebay_io::monotonic_now;
use forebay_model::record::{FabricEvent, FabricQueue};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Changes that are kept for the record.
const NOTES_MAX: usize = 64;
/// Up to 1 µs, 2 µs, 4 µs … 2147 s.
const BUCKETS: usize = 32;

pub struct Notes {
    pub began: Instant,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    /// (since it was opened, what changed).
    kept: VecDeque<(Duration, String)>,
    dropped: u64,
    queues: Vec<Arc<Traffic>>,
}

/// Traffic of one I/O queue of one path.
#[derive(Debug, Default)]
pub struct Traffic {
    pub path: usize,
    pub qid: u16,
    sent: AtomicU64,
    pub commands: AtomicU64,
    pub retries: AtomicU64,
    /// From submission to completion.
    pub ns: AtomicU64,
    pub ns_max: AtomicU64,
    /// By powers of two of a microsecond: commands that took longer than the one before, and no longer than this.
    buckets: [AtomicU64; BUCKETS],
    connected: AtomicU32,
}

/// An I/O queue is connected as long as this lives.
pub(crate) struct Connected(Arc<Traffic>);

impl Default for Notes {
    fn default() -> Notes {
        Notes { began: monotonic_now(), inner: Mutex::default() }
    }
}

impl Notes {
    pub fn note(&self, text: String) {
        let mut inner = lock(&self.inner);
        if inner.kept.len() == NOTES_MAX {
            inner.kept.pop_front();
            inner.dropped += 1;
        }
        inner.kept.push_back((self.began.elapsed(), text));
    }

    /// Returns the changes with their times since it was opened, and the number of those that weren't kept.
    pub fn kept(&self) -> (Vec<(Duration, String)>, u64) {
        let inner = lock(&self.inner);
        (inner.kept.iter().cloned().collect(), inner.dropped)
    }

    /// The counts of one queue of one path, which go on when it is connected again.
    pub fn traffic(&self, path: usize, qid: u16) -> Arc<Traffic> {
        let mut inner = lock(&self.inner);
        if let Some(known) = inner.queues.iter().find(|t| (t.path, t.qid) == (path, qid)) {
            return known.clone();
        }
        let traffic = Arc::new(Traffic { path, qid, ..Traffic::default() });
        inner.queues.push(traffic.clone());
        traffic
    }

    pub(crate) fn all_traffic(&self) -> Vec<Arc<Traffic>> {
        lock(&self.inner).queues.clone()
    }

    /// `kept`, for a record.
    pub fn events(&self) -> (Vec<FabricEvent>, u64) {
        let (kept, dropped) = self.kept();
        let event = |(at, text): (Duration, String)| FabricEvent { at_s: at.as_secs_f64(), text };
        (kept.into_iter().map(event).collect(), dropped)
    }

    /// The queues that carried anything, for a record. `address`: of a path, by its number.
    pub fn queues(&self, address: impl Fn(usize) -> String) -> Vec<FabricQueue> {
        let queue = |t: &Arc<Traffic>| {
            let get = |n: &AtomicU64| n.load(Ordering::Relaxed);
            let commands = get(&t.commands);
            FabricQueue {
                address: address(t.path),
                qid: t.qid,
                commands,
                retries: get(&t.retries),
                mean_us: get(&t.ns) as f64 / 1e3 / commands.max(1) as f64,
                max_us: get(&t.ns_max) as f64 / 1e3,
                latencies: t.latencies(),
            }
        };
        self.all_traffic().iter().map(queue).filter(|q| q.commands > 0).collect()
    }
}

impl Connected {
    pub(crate) fn new(traffic: &Arc<Traffic>) -> Connected {
        traffic.connected.fetch_add(1, Ordering::Relaxed);
        Connected(traffic.clone())
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.0.connected.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Traffic {
    /// 1 while it is.
    pub fn connected(&self) -> u32 {
        self.connected.load(Ordering::Relaxed)
    }

    /// Books that a command was sent. Only the queue's worker calls it, and nobody else changes the count.
    pub fn sends(&self) {
        self.sent.store(self.sent.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Commands that were sent, and that completed.
    pub fn commands(&self) -> (u64, u64) {
        (self.sent.load(Ordering::Relaxed), self.commands.load(Ordering::Relaxed))
    }

    /// Books how long a command took.
    pub fn took(&self, time: Duration) {
        let ns = time.as_nanos() as u64;
        self.commands.fetch_add(1, Ordering::Relaxed);
        self.ns.fetch_add(ns, Ordering::Relaxed);
        self.ns_max.fetch_max(ns, Ordering::Relaxed);
        self.buckets[bucket(ns)].fetch_add(1, Ordering::Relaxed);
    }

    /// (upper bound in µs, how many took no longer), up to the first that is all.
    fn latencies(&self) -> Vec<(f64, u64)> {
        let counts = self.buckets.each_ref().map(|n| n.load(Ordering::Relaxed));
        let last = counts.iter().rposition(|n| *n > 0).map_or(0, |at| at + 1);
        let so_far = |below: &mut u64, (at, count): (usize, &u64)| {
            *below += count;
            Some(((1u64 << at) as f64, *below))
        };
        counts[..last].iter().enumerate().scan(0, so_far).collect()
    }
}

/// The first bound that is no less: 2 to the power of this, in microseconds.
fn bucket(ns: u64) -> usize {
    let us = ns.div_ceil(1000).max(1);
    (us - 1).checked_ilog2().map_or(0, |log| log as usize + 1).min(BUCKETS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise: SRV-12
    #[test]
    fn each_queue_has_its_latencies_by_powers_of_two() {
        let notes = Notes::default();
        notes.traffic(0, 2);
        let queue = notes.traffic(1, 1);
        [1, 1000, 1001, 3000, 4000, 4001].into_iter().for_each(|ns| queue.took(Duration::from_nanos(ns)));
        let reported = notes.queues(|path| path.to_string());
        assert_eq!(reported.len(), 1, "what carried nothing isn't told of");
        assert_eq!((&*reported[0].address, reported[0].qid, reported[0].commands), ("1", 1, 6));
        assert_eq!(reported[0].latencies, [(1.0, 2), (2.0, 3), (4.0, 5), (8.0, 6)]);
        queue.took(Duration::from_secs(1 << 40));
        assert_eq!(
            notes.queues(|_| String::new())[0].latencies.len(),
            BUCKETS,
            "the last holds what is longer"
        );
    }
}
