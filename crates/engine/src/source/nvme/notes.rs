//! What a record is told: what changed, and what each I/O queue carried.

use super::lock;
use crate::clock;
use forebay_model::record::{FabricEvent, FabricQueue};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Changes that are kept for the record.
const NOTES_MAX: usize = 64;

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

/// What one I/O queue of one path carried.
#[derive(Debug, Default)]
pub struct Traffic {
    pub path: usize,
    pub qid: u16,
    pub commands: AtomicU64,
    pub retries: AtomicU64,
    /// From submission to completion.
    pub ns: AtomicU64,
    pub ns_max: AtomicU64,
}

impl Default for Notes {
    fn default() -> Notes {
        Notes { began: clock::now(), inner: Mutex::default() }
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

    /// What changed, and when since it was opened; how many changes weren't kept.
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

    pub fn all_traffic(&self) -> Vec<Arc<Traffic>> {
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
            }
        };
        self.all_traffic().iter().map(queue).filter(|q| q.commands > 0).collect()
    }
}

impl Traffic {
    /// Books how long a command took.
    pub fn took(&self, time: Duration) {
        let ns = time.as_nanos() as u64;
        self.commands.fetch_add(1, Ordering::Relaxed);
        self.ns.fetch_add(ns, Ordering::Relaxed);
        self.ns_max.fetch_max(ns, Ordering::Relaxed);
    }
}
