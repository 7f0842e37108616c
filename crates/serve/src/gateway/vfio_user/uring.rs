//! Signalling an eventfd that somebody else owns, and may have made to block.
//!
//! Whether a write waits for room in a counter that is full, its owner decides at any time: the flag belongs to the
//! description that both ends share. The kernel's own signal never waits, and a ring gives it for each completion.

#![allow(unsafe_code, reason = "the ring's entries name buffers by address")]

use forebay_io::retry_for_memlock;
use io_uring::{opcode, IoUring};
use rustix::event::{PollFd, PollFlags, Timespec};
use std::os::fd::{AsRawFd, OwnedFd};

/// A ring of nothing but no-ops, whose completions signal the eventfd.
pub(super) struct Bell {
    ring: IoUring,
    eventfd: OwnedFd,
}

impl Bell {
    /// # Errors
    /// An errno: EINVAL where it isn't an eventfd; no descriptor or memory for a ring.
    pub(super) fn new(eventfd: OwnedFd) -> Result<Bell, i32> {
        let errno = |e: std::io::Error| e.raw_os_error().unwrap_or(libc::EINVAL);
        let ring = retry_for_memlock(|| IoUring::new(1)).map_err(errno)?;
        ring.submitter().register_eventfd(eventfd.as_raw_fd()).map_err(errno)?;
        Ok(Bell { ring, eventfd })
    }

    pub(super) fn eventfd(&self) -> &OwnedFd {
        &self.eventfd
    }

    /// Adds 1 to the counter, or nothing where it is full: a client that doesn't listen.
    pub(super) fn ring(&mut self) {
        let nothing = opcode::Nop::new().build();
        // Full: the last one wasn't handed over, and goes now.
        // SAFETY: a no-op names no memory.
        let _ = unsafe { self.ring.submission().push(&nothing) };
        // It completes as it is handed over.
        if self.ring.submit().is_err() {
            self.signal();
        }
        self.ring.completion().for_each(drop);
    }

    /// Without the ring, which the kernel refuses, or has no memory for at the moment: a client that waits for this must
    /// not wait for the next.
    fn signal(&self) {
        let mut here = [PollFd::new(&self.eventfd, PollFlags::OUT)];
        if rustix::event::poll(&mut here, Some(&Timespec::default())) == Ok(1) {
            let _ = rustix::io::write(&self.eventfd, &1u64.to_ne_bytes());
        }
    }
}

impl std::fmt::Debug for Bell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Bell")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_rigs::seccomp::forbid_entering;
    use rustix::event::{eventfd, EventfdFlags};

    /// A guest waits for each interrupt: one that a ring doesn't give is given by a write, unless that would wait.
    // promise: ENG-6
    #[test]
    fn a_ring_that_may_not_be_entered_any_more_loses_no_interrupt() {
        let run = || {
            let ours = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
            let Ok(mut bell) = Bell::new(ours.try_clone().unwrap()) else { return };
            let counted = || {
                let mut count = [0; 8];
                rustix::io::read(&ours, &mut count).unwrap();
                u64::from_ne_bytes(count)
            };
            bell.ring();
            assert_eq!(counted(), 1);
            forbid_entering(libc::EPERM);
            (0..3).for_each(|_| bell.ring());
            assert_eq!(counted(), 3);
            rustix::io::write(&ours, &(u64::MAX - 1).to_ne_bytes()).unwrap();
            bell.ring();
            assert_eq!(counted(), u64::MAX - 1);
        };
        std::thread::spawn(run).join().unwrap();
    }
}
