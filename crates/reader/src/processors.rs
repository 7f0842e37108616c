//! Threads that read: as many as processors, up to what a link takes.

use forebay_io::last_level_cache_bytes;
use std::sync::OnceLock;

/// More workers than this don't fill a link faster, and compete for the caches; only where each row is copied by a CPU,
/// all CPUs take part, up to `ALL_MAX`.
pub(super) const WORKERS_MAX: usize = 8;
pub(super) const ALL_MAX: usize = 64;

/// Of copies to pages of a GPU, which a launch fetches from their slots, as few carried as much as eight on an H200's host, for a
/// twentieth less of the processors' time; no command compares these two. `bench/kv_blocks.py --gpu --only bounce` sets what seven
/// take beside `bench/pinned_floor.c`, copies alone by six, seven and eight threads.
pub(super) const TO_PAGES_MAX: usize = 7;

/// As many copy rows from the page cache to host memory at nearly one's processor time a byte, and at three times its rate:
/// of four on, they wait for each other's lines of memory (`bench/rows_host.py`).
const TO_HOST_MAX: usize = 3;

/// As many fill a link of 50 GiB/s with copies out of the page cache, of at least so many processors: on fewer the driver
/// registers pages no slower than those copy them.
const FULL_RATE_WORKERS: usize = 10;
const FULL_RATE_PROCESSORS_MIN: usize = 12;

/// Threads that the thread pool has, or will have, for most requests.
pub fn threads() -> usize {
    all_threads().min(WORKERS_MAX)
}

/// Processors that this process may use.
pub(super) fn all_threads() -> usize {
    static COUNT: OnceLock<usize> = OnceLock::new();
    *COUNT.get_or_init(|| std::thread::available_parallelism().map_or(2, |n| n.get()).min(ALL_MAX))
}

/// Bytes of the cache that processors share.
pub(super) fn cache_bytes() -> usize {
    static BYTES: OnceLock<usize> = OnceLock::new();
    *BYTES.get_or_init(|| last_level_cache_bytes() as usize)
}

/// Threads that copy rows from the page cache to host memory, the caller among them: half of the processors at most, since
/// where two are all, a second one costs more processor time a row than `numpy.take` does.
pub(super) fn to_host() -> usize {
    (all_threads() / 2).clamp(1, TO_HOST_MAX)
}

/// As `to_host`, of what is read ahead, where nobody waits while a second thread is woken, and whoever uses it leaves the processors
/// to them where it waits; and of what is to come at the highest rate.
pub(super) fn to_host_soonest() -> usize {
    all_threads().clamp(1, TO_HOST_MAX)
}

/// Threads whose copies bring what is read once faster than the GPU would read it by itself, if there are enough.
pub(super) fn for_full_rate(processors: usize) -> Option<usize> {
    (processors >= FULL_RATE_PROCESSORS_MIN).then_some(FULL_RATE_WORKERS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_once_is_copied_where_processors_outrun_the_driver() {
        assert_eq!([2, 8, 11].map(for_full_rate), [None; 3]);
        assert_eq!([12, 16, 64].map(for_full_rate), [Some(FULL_RATE_WORKERS); 3]);
    }
}
