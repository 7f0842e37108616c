//! The memory that a user may lock (RLIMIT_MEMLOCK), which rings and registered buffers have to share.
//!
//! Where the limit applies, the kernel charges it to the user: what one process locks, all others of that user lack.
//! Every kernel charges registered buffers, a huge page as a whole; some charge rings, too. A ring's memory is given
//! back a little after its end.

use crate::clock;
use forebay_model::units::readable_bytes;
use forebay_model::Error;
use rustix::process::{getrlimit, Resource};
use rustix::thread::{capabilities, CapabilitySet};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// One ring takes at most this part of the limit.
const RING_SHARE: u64 = 128;
/// By the size of its submission queue: 64 bytes, an index, and two completions.
const ENTRY_BYTES: u64 = 64 + 4 + 2 * 16;
/// Among a ring's features: it has fewer entries than would do best.
pub(super) const SHORT: &str = "short_ring";
/// Two pages, as the smallest ring has.
pub(super) const ENTRIES_MIN: u32 = 64;
/// Longest time for a ring that ended to give its memory back.
const PATIENCE: Duration = Duration::from_secs(1);
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Rings that are tried at a time: each takes a descriptor, which others of the process may need.
pub(super) const TRIED_MAX: u32 = 64;
/// Bytes of a limit that registered buffers leave to rings, and to this user's other processes.
pub const MEMLOCK_LEFT_BYTES: u64 = 8 << 20;
/// At most this part of a limit that is hardly more, or less.
const BUFFERS_SHARE: u64 = 8;

/// Registered by this process, where a limit applies.
static REGISTERED_BYTES: AtomicU64 = AtomicU64::new(0);

/// Bytes that this user may lock; None: unlimited.
pub fn memlock_limit() -> Option<u64> {
    let unbound = capabilities(None).is_ok_and(|c| c.effective.contains(CapabilitySet::IPC_LOCK));
    getrlimit(Resource::Memlock).current.filter(|_| !unbound)
}

/// Entries of a ring for which `wanted` (a power of two) would do best: many rings must fit below the limit.
pub(super) fn entries(wanted: u32, limit: Option<u64>) -> u32 {
    let fit = |limit: u64| (limit / RING_SHARE / ENTRY_BYTES).clamp(ENTRIES_MIN.into(), 1 << 16) as u32;
    limit.map_or(wanted, |limit| wanted.min(1 << fit(limit).ilog2()))
}

/// A ring, for which others of this user's that have ended may still have to give theirs back.
pub fn retry_for_memlock<T>(ring: impl Fn() -> io::Result<T>) -> io::Result<T> {
    let until = clock::monotonic_now() + PATIENCE;
    loop {
        match ring() {
            Err(e)
                if e.raw_os_error() == Some(libc::ENOMEM)
                    && memlock_limit().is_some()
                    && clock::monotonic_now() < until =>
            {
                std::thread::sleep(POLL_INTERVAL);
            }
            reported => return reported,
        }
    }
}

/// Bytes that are registered by leave of the limit, until this is dropped.
#[derive(Debug)]
pub(super) struct Registered(u64);

impl Registered {
    /// # Errors
    /// In words: buffers would take what rings need.
    pub(crate) fn take(bytes: u64, limit: Option<u64>) -> io::Result<Registered> {
        let Some(limit) = limit else { return Ok(Registered(0)) };
        let most = most_registered(limit);
        let added = |now: u64| now.checked_add(bytes).filter(|sum| *sum <= most);
        match REGISTERED_BYTES.fetch_update(Ordering::AcqRel, Ordering::Acquire, added) {
            Ok(_) => Ok(Registered(bytes)),
            Err(_) => {
                let (limit, most) = (readable_bytes(limit), readable_bytes(most));
                let why = format!("of the {limit} that may be locked, buffers of this process get {most}");
                Err(io::Error::new(io::ErrorKind::OutOfMemory, why))
            }
        }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        REGISTERED_BYTES.fetch_sub(self.0, Ordering::AcqRel);
    }
}

fn most_registered(limit: u64) -> u64 {
    limit.saturating_sub(MEMLOCK_LEFT_BYTES).max(limit / BUFFERS_SHARE)
}

/// Returns a message for the log if the ring is shorter than its thread would have it.
pub fn memlock_shortage(reactor: &super::Reactor) -> Option<String> {
    let limit = memlock_limit().filter(|_| reactor.features().contains(&SHORT))?;
    Some(format!("only {} may be locked (ulimit -l, LimitMEMLOCK=)", readable_bytes(limit)))
}

/// Returns the error of a request that needs a ring and is refused one. `otherwise`: what to type if locked memory
/// isn't the reason.
pub fn memlock_refusal(asked: impl Into<String>, e: &io::Error, otherwise: &str) -> Error {
    refusal_below(memlock_limit(), asked, e, otherwise)
}

fn refusal_below(limit: Option<u64>, asked: impl Into<String>, e: &io::Error, otherwise: &str) -> Error {
    let found = format!("needs io_uring, which the kernel refuses: {e}");
    match limit.filter(|_| e.raw_os_error() == Some(libc::ENOMEM)) {
        None => Error::machine(asked, found, otherwise),
        Some(limit) => {
            let limit = readable_bytes(limit);
            let why = format!("; the {limit} of memory that this user may lock (ulimit -l) are in use");
            let raise = "ulimit -l unlimited, as root or after a line in /etc/security/limits.d (USER - memlock unlimited); in a systemd unit LimitMEMLOCK=infinity";
            Error::machine(asked, found + &why, raise)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise: FLT-7
    #[test]
    fn rings_are_as_long_as_wanted_or_as_many_of_them_fit_below_the_limit() {
        let all = |wanted| {
            [None, Some(1 << 40), Some(8 << 20), Some(64 << 10), Some(0)].map(|l| entries(wanted, l))
        };
        assert_eq!(all(4096), [4096, 4096, 512, 64, 64]);
        assert_eq!(all(8), [8; 5], "never longer than wanted");
    }

    // promise: FLT-7
    #[test]
    fn registered_buffers_leave_room_for_rings_and_give_theirs_back() {
        // The counter is the whole process's: other tests may have registered something.
        let most = most_registered(1 << 40);
        assert_eq!([64 << 10, 8 << 20, 136 << 20].map(most_registered), [8 << 10, 1 << 20, 128 << 20]);
        for _ in 0..3 {
            let first = Registered::take(most / 2, Some(1 << 40)).unwrap();
            let refused = Registered::take(most / 2 + 1, Some(1 << 40)).unwrap_err().to_string();
            assert!(refused.contains("1 TiB that may be locked"), "{refused}");
            drop(first);
        }
        assert!(
            Registered::take(u64::MAX, Some(1 << 40)).is_err() && Registered::take(u64::MAX, None).is_ok()
        );
    }

    // promise: FLT-7
    #[test]
    fn a_refusal_names_the_limit_only_where_that_is_the_reason() {
        let of = |limit, errno| {
            refusal_below(limit, "it", &io::Error::from_raw_os_error(errno), "forebay doctor").to_string()
        };
        let short = of(Some(8 << 20), libc::ENOMEM);
        for part in ["8 MiB", "ulimit -l unlimited", "LimitMEMLOCK=infinity"] {
            assert!(short.contains(part), "{part}: {short}");
        }
        for other in [of(None, libc::ENOMEM), of(Some(8 << 20), libc::EPERM)] {
            assert!(other.contains("forebay doctor") && !other.contains("ulimit"), "{other}");
        }
    }
}
