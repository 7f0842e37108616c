//! Signalling an eventfd that somebody else owns, and may have made to block.
//!
//! Whether a write waits for room in a counter that is full, its owner decides at any time: the flag belongs to the
//! description that both ends share. The kernel's own signal never waits, and a ring gives it for each completion.

use crate::reactor::memlock;
use io_uring::{opcode, IoUring};
use std::os::fd::{AsRawFd, OwnedFd};

/// A ring of nothing but no-ops, whose completions signal the eventfd.
pub struct Bell {
    ring: IoUring,
    eventfd: OwnedFd,
}

impl Bell {
    /// # Errors
    /// An errno: EINVAL where it isn't an eventfd; no descriptor or memory for a ring.
    pub fn new(eventfd: OwnedFd) -> Result<Bell, i32> {
        let errno = |e: std::io::Error| e.raw_os_error().unwrap_or(libc::EINVAL);
        let ring = memlock::patiently(|| IoUring::new(1)).map_err(errno)?;
        ring.submitter().register_eventfd(eventfd.as_raw_fd()).map_err(errno)?;
        Ok(Bell { ring, eventfd })
    }

    pub fn eventfd(&self) -> &OwnedFd {
        &self.eventfd
    }

    /// Adds 1 to the counter, or nothing where it is full: a client that doesn't listen.
    pub fn ring(&mut self) {
        let nothing = opcode::Nop::new().build();
        // SAFETY: a no-op names no memory.
        let pushed = unsafe { self.ring.submission().push(&nothing) };
        debug_assert!(pushed.is_ok(), "the last one was handed over");
        // It completes as it is handed over. Interrupted or out of memory, it goes with the next.
        let _ = self.ring.submit();
        self.ring.completion().for_each(drop);
    }
}

impl std::fmt::Debug for Bell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Bell")
    }
}
