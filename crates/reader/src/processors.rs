//! Threads that read: as many as processors, up to what a link takes.

use std::sync::OnceLock;

/// More workers than this don't fill a link faster, and compete for the caches; only where each row is copied by a CPU,
/// all CPUs take part, up to `HANDS_ALL_MAX`.
pub(super) const WORKERS_MAX: usize = 8;
const HANDS_ALL_MAX: usize = 64;

/// Threads that the thread pool has, or will have, for most requests.
pub fn threads() -> usize {
    all_threads().min(WORKERS_MAX)
}

/// Processors that this process may use.
pub(super) fn all_threads() -> usize {
    static COUNT: OnceLock<usize> = OnceLock::new();
    *COUNT.get_or_init(|| std::thread::available_parallelism().map_or(2, |n| n.get()).min(HANDS_ALL_MAX))
}
