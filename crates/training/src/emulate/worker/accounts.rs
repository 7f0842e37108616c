//! A worker's figures: latencies of what it read, and how its thread spent its time.

use super::super::run_state::{add, Counters, ACCOUNT_NS};
use super::super::Shared;
use forebay_model::Latency;
use std::sync::atomic::Ordering;
use std::sync::Arc;

/// Latencies of a worker.
#[derive(Default)]
pub(crate) struct Latencies {
    pub read: Latency,
    pub sample: Latency,
}

pub(super) struct Accounts {
    shared: Arc<Shared>,
    index: usize,
    pub(super) latencies: Latencies,
    /// When the thread's times were written down last.
    accounted: u64,
}

impl Accounts {
    pub(super) fn new(shared: Arc<Shared>, index: usize) -> Accounts {
        Accounts { shared, index, latencies: Latencies::default(), accounted: 0 }
    }

    /// Counters that the run reads while it goes on.
    pub(super) fn counters(&self) -> &Counters {
        &self.shared.run_state.counters[self.index]
    }

    /// The thread has slept, while reads were under way or with nothing to do.
    pub(super) fn slept(&self, ns: u64, reads_under_way: bool) {
        let counters = self.counters();
        add(if reads_under_way { &counters.waited_ns } else { &counters.idle_ns }, ns);
    }

    /// Writes down the thread's times, once in a while.
    pub(super) fn account_if_due(&mut self, now: u64) {
        if now - self.accounted >= ACCOUNT_NS {
            self.account(now);
        }
    }

    /// Writes down how long this thread was on a processor, and how long it waited for one.
    pub(super) fn account(&mut self, now: u64) {
        self.accounted = now;
        let Ok(text) = std::fs::read_to_string("/proc/thread-self/schedstat") else { return };
        let mut words = text.split_ascii_whitespace().filter_map(|w| w.parse::<u64>().ok());
        if let (Some(cpu), Some(queued)) = (words.next(), words.next()) {
            let counters = self.counters();
            counters.cpu_ns.store(cpu, Ordering::Relaxed);
            counters.queued_ns.store(queued, Ordering::Relaxed);
        }
    }
}
