//! Quarantine of released slots in builds with debug assertions: they stay poisoned and read-only for a while, and are
//! checked before they are unmapped. A thread that still writes there ends at once; what the kernel or a device wrote
//! ends the process when it is found, at its exit at the latest.

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::{Mutex, Once};

const POISON: u8 = 0xdb;
const PAGE: usize = 4096;
/// Limit on quarantined bytes: the oldest go first, and larger slots at once.
const KEPT_BYTES_MAX: usize = 32 << 20;

/// A mapping that was let go of.
struct Kept {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: nobody else may use the mapping any more.
unsafe impl Send for Kept {}

impl Kept {
    fn new(base: NonNull<u8>, bytes: usize) -> Kept {
        // SAFETY: the caller's mapping, which is nobody else's.
        unsafe {
            base.as_ptr().write_bytes(POISON, bytes);
            libc::mprotect(base.as_ptr().cast(), bytes, libc::PROT_READ);
        }
        Kept { base, bytes }
    }

    /// The first page that isn't as it was left.
    fn check(&self) -> Result<(), String> {
        let page = |at: &usize| {
            // SAFETY: a page of the mapping, which stays until this is dropped.
            unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(*at), PAGE) }
        };
        match (0..self.bytes).step_by(PAGE).find(|at| page(at) != [POISON; PAGE]) {
            None => Ok(()),
            Some(at) => Err(format!(
                "something wrote to memory that had been let go of: {at} bytes into {} bytes at {:p}",
                self.bytes, self.base
            )),
        }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours alone.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

#[derive(Default)]
struct Freed {
    kept: VecDeque<Kept>,
    bytes: usize,
}

impl Freed {
    const fn new() -> Freed {
        Freed { kept: VecDeque::new(), bytes: 0 }
    }

    /// Adds a buffer; returns those that exceed the limit as a result.
    fn add(&mut self, kept: Kept) -> Vec<Kept> {
        self.bytes += kept.bytes;
        self.kept.push_back(kept);
        let mut gone = Vec::new();
        while self.bytes > KEPT_BYTES_MAX {
            let oldest = self.kept.pop_front().expect("what is kept has bytes");
            self.bytes -= oldest.bytes;
            gone.push(oldest);
        }
        gone
    }

    fn check(&self) -> Result<(), String> {
        self.kept.iter().try_for_each(Kept::check)
    }
}

static FREED: Mutex<Freed> = Mutex::new(Freed::new());

/// Takes over a mapping of whole pages that nobody may use any more.
pub(crate) fn keep(base: NonNull<u8>, bytes: usize) {
    static AT_EXIT: Once = Once::new();
    // SAFETY: a function that takes nothing and returns.
    AT_EXIT.call_once(|| unsafe {
        libc::atexit(look_at_exit);
    });
    if bytes > KEPT_BYTES_MAX {
        return drop(Kept { base, bytes });
    }
    let kept = Kept::new(base, bytes);
    // Looked at and unmapped without the lock.
    let gone = FREED.lock().expect("nothing panics while it holds what was freed").add(kept);
    gone.iter().for_each(|oldest| end_if(oldest.check()));
}

extern "C" fn look_at_exit() {
    // Threads may go on while the process exits.
    if let Ok(freed) = FREED.try_lock() {
        end_if(freed.check());
    }
}

// Builds that measure have none of this.
#[allow(clippy::disallowed_methods)]
fn end_if(found: Result<(), String>) {
    if let Err(found) = found {
        eprintln!("a bug in Forebay: {found}");
        std::process::abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::{Arena, Mem};
    use crate::clock;
    use crate::reactor::{Reactor, RingOptions};
    use forebay_model::job::Pages;
    use std::mem::ManuallyDrop;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::FileExt;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;
    use std::time::Duration;

    /// Simulates a late write by the kernel, which a read-only mapping doesn't prevent.
    fn write_late(at: *mut u8) {
        let memory = std::fs::File::options().write(true).open("/proc/self/mem").unwrap();
        memory.write_all_at(b"late", at as u64).unwrap();
    }

    // promise: ENG-16
    #[test]
    fn what_is_written_to_freed_slots_is_found_and_nothing_else() {
        let mut freed = Freed::default();
        let mut slots = [0; 3].map(|_| {
            let arena = ManuallyDrop::new(Arena::new(2, 8192, Pages::Small).unwrap());
            let (base, bytes) = arena.whole();
            assert!(freed.add(Kept::new(base, bytes)).is_empty());
            arena.slot(1).host_ptr()
        });
        assert_eq!(freed.check(), Ok(()));
        write_late(slots[1].wrapping_add(5000));
        assert!(freed.check().unwrap_err().contains("12288 bytes into"));
        slots.reverse();
        let large = ManuallyDrop::new(Arena::new(1, KEPT_BYTES_MAX, Pages::Small).unwrap());
        assert_eq!(freed.add(Kept::new(large.whole().0, large.whole().1)).len(), 3, "the oldest go");
    }

    /// As a worker that let go of its slots with an I/O in flight would have it: the kernel has pinned them.
    // promise: ENG-16
    #[test]
    fn a_read_that_lands_in_slots_that_were_let_go_of_is_found() {
        let Ok(mut reactor) = Reactor::with_ring(RingOptions { depth: 8, ..RingOptions::default() }) else {
            return;
        };
        let mut arena = ManuallyDrop::new(Arena::new(1, 4096, Pages::Small).unwrap());
        if reactor.register_arena(&mut arena).is_err() {
            return;
        }
        let Mem::Host { at, piece } = arena.slot(0) else { panic!("host memory") };
        let (read, write) = rustix::pipe::pipe().unwrap();
        let (token, fd) = (reactor.token(), io_uring::types::Fd(read.as_raw_fd()));
        let entry = io_uring::opcode::ReadFixed::new(fd, at.as_ptr(), 4096, piece).build();
        // SAFETY: the slot isn't there any more when the read ends: the defect that is to be found.
        unsafe { reactor.push(token, 0, entry) };
        reactor.flush();
        let mut freed = Freed::default();
        freed.add(Kept::new(arena.whole().0, arena.whole().1));
        assert_eq!(freed.check(), Ok(()));
        rustix::io::write(&write, b"late").unwrap();
        let mut done = Vec::new();
        while done.is_empty() {
            reactor.wait(1, clock::monotonic_now() + Duration::from_secs(1), Duration::ZERO);
            reactor.take(token, &mut done);
        }
        assert!(done[0].result != 4 || freed.check().is_err(), "it was written, and not found");
        assert_eq!(done[0].result, 4);
    }

    // promise: ENG-16
    #[test]
    fn a_process_that_wrote_late_does_not_end_well() {
        const PLANTED: &str = "FOREBAY_TEST_LATE_WRITE";
        if std::env::var_os(PLANTED).is_some() {
            let arena = Arena::new(1, 4096, Pages::Small).unwrap();
            let at = arena.slot(0).host_ptr();
            drop(arena);
            return write_late(at);
        }
        let name = "arena::freed::tests::a_process_that_wrote_late_does_not_end_well";
        let program = std::env::current_exe().unwrap();
        let done = Command::new(program).args([name, "--exact"]).env(PLANTED, "1").output().unwrap();
        let said = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.signal(), Some(libc::SIGABRT), "{said}");
        assert!(said.contains("memory that had been let go of"), "{said}");
    }
}
