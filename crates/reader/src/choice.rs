//! Choice of the copier of cached data for a file that was opened with `auto`: its CPUs, through pinned memory, or the
//! GPU, which reads registered pages. The GPU's way costs next to no CPU time; registering costs once, so it has to be
//! worth that.
//!
//! Arithmetic alone: times come in as arguments, so that the choice can be tested without a GPU.

use forebay_model::job::Prefer;
use forebay_model::units::BYTES_PER_GIB;
use forebay_model::Error;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use std::time::Instant;

/// Reads what Python's callers may ask `auto` to favour.
pub fn preference(text: &str) -> Result<Prefer, Error> {
    let named = Prefer::NAMES.iter().find(|(name, _)| *name == text);
    named.map(|(_, prefer)| *prefer).ok_or_else(|| {
        let known: Vec<&str> = Prefer::NAMES.iter().map(|(name, _)| *name).collect();
        Error::request(format!("prefer={text:?}"), "auto has no such preference", known.join(", "))
    })
}

/// Estimates for what hasn't been measured yet, from an H100 with 16 cores: nanoseconds of one CPU for a row, and for each of
/// its bytes; rows that a GPU fetches a second; bytes that its link carries a second; pages registered a second (in the
/// background, beside copies). Measured times replace all but the last.
const CPU_ROW_NS: f64 = 110.0;
const CPU_BYTE_NS: f64 = 0.33;
const GPU_ROWS_S: f64 = 30e6;
const LINK_BYTES_S: f64 = 47.0 * BYTES_PER_GIB;
const REGISTER_BYTES_S: f64 = 25.0 * BYTES_PER_GIB;
/// Least time of a request by either way.
const REQUEST_S: f64 = 30e-6;

/// Share of the other way's rate at which the GPU still brings what is read ahead, of that without.
const AHEAD_SHARE: f64 = 0.7;

/// Weight of a longer time than one that was measured earlier: what disturbs a request only makes it longer.
const LONGER_WEIGHT: f64 = 0.1;
/// Multiple of an estimate that counts as spent at most.
const COUNTS_MOST: f64 = 8.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Carrier {
    /// Copied out of the mapping, or read, by CPUs.
    Cpus,
    /// Fetched out of registered pages.
    Gpu,
}

/// Rows of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Load {
    pub rows: usize,
    pub row_bytes: usize,
    /// Its consumer asks long before it needs them: time is only worth what CPU time it takes, as long as the rate is enough.
    pub ahead: bool,
}

impl Load {
    /// Requests whose times per row are comparable: rows within a fifth of each other's size, counts within a factor of four.
    fn class(self) -> (u32, u32) {
        let bytes = self.row_bytes.max(4);
        let octave = bytes.ilog2();
        (octave * 4 + (bytes >> (octave - 2)) as u32 % 4, self.rows.max(1).ilog2() / 2)
    }

    fn bytes(self) -> f64 {
        self.rows as f64 * self.row_bytes as f64
    }

    fn estimate_s(self, by: Carrier, cpus: usize) -> f64 {
        let rows = self.rows as f64;
        let busy = match by {
            Carrier::Cpus => {
                rows * (CPU_ROW_NS + CPU_BYTE_NS * self.row_bytes as f64) / 1e9 / cpus.max(1) as f64
            }
            Carrier::Gpu => rows / GPU_ROWS_S,
        };
        let request = if self.ahead { 0.0 } else { REQUEST_S };
        request + busy.max(self.bytes() / LINK_BYTES_S)
    }
}

/// A request whose time is to be noted when it ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Noted {
    pub gpu: u32,
    pub load: Load,
    pub by: Carrier,
    /// Registering would have spared it.
    pub counts: bool,
    /// Nothing else is done on its way: no page tables are filled, nothing is registered.
    pub settled: bool,
}

/// The times of a file's requests, and what follows from them.
#[derive(Default)]
pub(super) struct Choice(Mutex<Times>);

#[derive(Default)]
struct Times {
    /// Seconds a row, by class and carrier.
    row_s: HashMap<((u32, u32), Carrier), f64>,
    /// Spent on requests that the GPU would bring, were the file registered.
    spent_s: f64,
    ended: Option<Instant>,
}

impl Times {
    fn seconds(&self, load: Load, by: Carrier, cpus: usize) -> f64 {
        let known = self.row_s.get(&(load.class(), by));
        known.map_or_else(|| load.estimate_s(by, cpus), |row_s| row_s * load.rows as f64)
    }
}

impl Choice {
    fn times(&self) -> MutexGuard<'_, Times> {
        self.0.lock().expect("no holder panics")
    }

    /// Returns whether the GPU is to bring such rows, once it may read the file.
    pub(crate) fn is_for_gpu(&self, load: Load, cpus: usize, prefer: Prefer) -> bool {
        let times = self.times();
        let seconds = |by| times.seconds(load, by, cpus);
        let share = prefer.rate_share_min(1.0) * if load.ahead { AHEAD_SHARE } else { 1.0 };
        seconds(Carrier::Gpu) * share <= seconds(Carrier::Cpus)
    }

    /// Returns whether registering a file of so many bytes is due: CPUs have spent as much on it as that takes. Counts
    /// anew from then on.
    pub(crate) fn is_due(&self, file_bytes: u64) -> bool {
        let mut times = self.times();
        let due = times.spent_s >= file_bytes as f64 / REGISTER_BYTES_S;
        if due {
            times.spent_s = 0.0;
        }
        due
    }

    /// Notes a request that was begun at `began` and has ended `now`. One that waited for others took what passed since
    /// they ended.
    pub(crate) fn note(&self, noted: Noted, cpus: usize, began: Instant, now: Instant) {
        let mut times = self.times();
        let from = times.ended.map_or(began, |ended| ended.max(began));
        times.ended = Some(now);
        let took_s = now.saturating_duration_since(from).as_secs_f64();
        let estimate_s = noted.load.estimate_s(noted.by, cpus);
        if noted.counts {
            // The first request in a process starts threads and compiles kernels, which registering wouldn't spare.
            times.spent_s += took_s.min(estimate_s * COUNTS_MOST);
        }
        if noted.settled && noted.load.rows > 0 && took_s > 0.0 {
            let rows = noted.load.rows as f64;
            let known = times.row_s.entry((noted.load.class(), noted.by)).or_insert(estimate_s / rows);
            let row_s = took_s / rows;
            *known = if row_s < *known { row_s } else { *known + LONGER_WEIGHT * (row_s - *known) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const FILE: u64 = 12 << 30;
    const CPUS: usize = 16;

    fn million(row_bytes: usize) -> Load {
        Load { rows: 1_000_000, row_bytes, ahead: false }
    }

    /// One request after the other, each as long as told.
    struct Clock {
        choice: Choice,
        now: Instant,
    }

    impl Clock {
        fn new() -> Clock {
            Clock { choice: Choice::default(), now: Instant::now() }
        }

        fn pass(&mut self, load: Load, by: Carrier, rows_s: f64, settled: bool) {
            let began = self.now;
            self.now += Duration::from_secs_f64(load.rows as f64 / rows_s);
            self.choice.note(
                Noted { gpu: 0, load, by, counts: by == Carrier::Cpus, settled },
                CPUS,
                began,
                self.now,
            );
        }
    }

    #[test]
    fn before_anything_was_measured_short_rows_are_copied_by_many_cpus_and_long_ones_fetched() {
        let choice = Choice::default();
        let of = |bytes, cpus, prefer| choice.is_for_gpu(million(bytes), cpus, prefer);
        for (bytes, balance, rate) in [
            (128, false, false),
            (512, false, false),
            (912, true, false),
            (4096, true, true),
            (65536, true, true),
        ] {
            assert_eq!(of(bytes, 16, Prefer::Balance), balance, "{bytes}");
            assert_eq!(of(bytes, 16, Prefer::Rate), rate, "{bytes}");
            assert!(of(bytes, 16, Prefer::Cpu) && of(bytes, 2, Prefer::Balance), "{bytes}");
        }
    }

    // promise: PYT-23
    #[test]
    fn what_was_measured_replaces_the_estimate_for_rows_like_it() {
        let mut clock = Clock::new();
        clock.pass(million(912), Carrier::Cpus, 60e6, true);
        assert!(!clock.choice.is_for_gpu(million(912), 16, Prefer::Balance), "30 of 60 million is half");
        assert!(clock.choice.is_for_gpu(million(4096), 16, Prefer::Balance));
        clock.pass(million(912), Carrier::Gpu, 45e6, true);
        assert!(clock.choice.is_for_gpu(million(912), 16, Prefer::Balance), "45 of 60 million is enough");
        assert!(!clock.choice.is_for_gpu(million(912), 16, Prefer::Rate));
        // A disturbed request among fast ones, and one that filled page tables.
        clock.pass(million(912), Carrier::Gpu, 30e6, true);
        clock.pass(million(912), Carrier::Gpu, 1e6, false);
        assert!(clock.choice.is_for_gpu(million(912), 16, Prefer::Balance));
    }

    // promise: PYT-23
    #[test]
    fn registering_is_due_once_cpus_spent_what_it_takes() {
        let mut clock = Clock::new();
        let mut calls = 0;
        while !clock.choice.is_due(FILE) {
            clock.pass(million(912), Carrier::Cpus, 37e6, true);
            calls += 1;
        }
        // 12 GiB at 25 GiB/s take 480 ms, a call 27.
        assert_eq!(calls, 18);
        assert!(!clock.choice.is_due(FILE), "it counts anew");
    }

    #[test]
    fn requests_under_way_together_share_the_time_that_passes() {
        let clock = Clock::new();
        let (choice, began) = (&clock.choice, clock.now);
        for n in 1..=4 {
            let noted = Noted { gpu: 0, load: million(912), by: Carrier::Cpus, counts: true, settled: true };
            choice.note(noted, CPUS, began, began + Duration::from_millis(20 * n));
        }
        assert!((choice.times().spent_s - 0.08).abs() < 1e-9);
        let row_s = choice.times().seconds(million(912), Carrier::Cpus, CPUS) / 1e6;
        assert!((row_s - 20e-9).abs() < 1e-12);
    }

    #[test]
    fn a_slower_way_than_estimated_is_believed_by_and_by_and_a_slow_start_hardly_counts() {
        let mut clock = Clock::new();
        clock.pass(million(912), Carrier::Cpus, 1e6, true);
        assert!(clock.choice.times().spent_s < 0.25, "a second passed");
        clock.pass(million(912), Carrier::Gpu, 24e6, true);
        let mut calls = 0;
        while clock.choice.is_for_gpu(million(912), CPUS, Prefer::Balance) && calls < 1000 {
            clock.pass(million(912), Carrier::Cpus, 38e6, true);
            clock.pass(million(912), Carrier::Gpu, 24e6, true);
            calls += 1;
        }
        assert!((3..30).contains(&calls), "24 of 38 million is less than two thirds: {calls}");
    }

    #[test]
    fn a_preference_that_does_not_exist_is_refused_with_those_that_do() {
        assert_eq!(preference("rate").unwrap(), Prefer::Rate);
        let refused = preference("speed").unwrap_err();
        assert!(refused.next.contains("balance, rate, cpu"));
    }
}
