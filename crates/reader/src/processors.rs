//! Threads that read: as many as processors, up to what a link takes.

use std::sync::OnceLock;

/// More workers than this don't fill a link faster, and compete for the caches; only where each row is copied by a CPU,
/// all CPUs take part, up to `ALL_MAX`.
pub(super) const WORKERS_MAX: usize = 8;
pub(super) const ALL_MAX: usize = 64;

/// As many copy rows from the page cache to host memory at nearly one's processor time a byte, and at three times its rate:
/// of four on, they wait for each other's lines of memory (`bench/rows_host.py`).
const TO_HOST_MAX: usize = 3;

/// Threads that the thread pool has, or will have, for most requests.
pub fn threads() -> usize {
    all_threads().min(WORKERS_MAX)
}

/// Processors that this process may use.
pub(super) fn all_threads() -> usize {
    static COUNT: OnceLock<usize> = OnceLock::new();
    *COUNT.get_or_init(|| std::thread::available_parallelism().map_or(2, |n| n.get()).min(ALL_MAX))
}

/// Threads that copy rows from the page cache to host memory, the caller among them: half of the processors at most, since
/// where two are all, a second one costs more processor time a row than `numpy.take` does.
pub(super) fn to_host() -> usize {
    (all_threads() / 2).clamp(1, TO_HOST_MAX)
}
