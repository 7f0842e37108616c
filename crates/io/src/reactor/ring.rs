//! A worker's ring: made, filled, entered, emptied.

use super::memlock;
use super::trust::Trust;
use super::Completion;
use super::Inbox;
use super::RingOptions;
use super::BELL;
use super::CANCEL;
use super::ENTRIES_MAX;
use super::SOON;
use super::SOON_WITHIN;
use super::WAKE;
use crate::clock;
use io_uring::cqueue;
use io_uring::squeue;
use io_uring::types;
use io_uring::IoUring;
use std::fs::File;
use std::sync::Weak;
use std::time::Instant;

/// The argument of io_uring_enter with IORING_ENTER_EXT_ARG: struct io_uring_getevents_arg.
#[repr(C)]
pub(super) struct GetEventsArg {
    pub(super) sigmask: u64,
    pub(super) sigmask_bytes: u32,
    pub(super) min_wait_us: u32,
    pub(super) timeout: u64,
}

pub(super) const ENTER_GETEVENTS: u32 = 1;

pub(super) const ENTER_SQ_WAKEUP: u32 = 2;

pub(super) const ENTER_EXT_ARG: u32 = 8;

/// A timer in the ring whose completions end waits, again and again: one that ends nothing, since it comes between two
/// waits, is followed by another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Bell {
    #[default]
    Silent,
    /// A wait counted on it since it last rang.
    Wanted,
    Rang,
    /// It rang twice for no wait.
    Unwanted,
}

impl Bell {
    fn rung(self, goes_on: bool) -> Bell {
        match self {
            _ if !goes_on => Bell::Silent,
            Bell::Wanted => Bell::Rang,
            _ => Bell::Unwanted,
        }
    }
}

pub(super) struct Ring {
    pub(super) uring: IoUring,
    pub(super) sqpoll: bool,
    /// By their place in the table.
    pub(super) files: Vec<Option<Weak<File>>>,
    pub(super) min_wait: bool,
    /// Submissions that one call of the kernel may hand over.
    pub(super) together: u32,
    /// Queued submissions that complete as they are handed over, as a rule.
    pub(super) soon: u32,
    /// Number of them, and of earlier ones, that didn't complete yet.
    pub(super) soon_left: u32,
    /// Something waits behind one of these: they end a wait, until none is left.
    pub(super) soon_awaited: bool,
    pub(super) trust: Trust,
    pub(super) bell: Bell,
    pub(super) bell_after: Box<types::Timespec>,
    pub(super) wake_buffer: Box<u64>,
    pub(super) wake_armed: bool,
    /// A waker called since the last `wait` ended: the next one doesn't sleep.
    pub(super) woken: bool,
    /// The error with which the kernel refused a call for good.
    pub(super) refused: Option<i32>,
    /// Leave to lock what is registered with it.
    pub(super) registered: Vec<memlock::Registered>,
}

pub(super) fn gather(ring: &mut Ring, inboxes: &mut [Inbox], gathered: &mut u32) {
    let Ring { uring, soon_left, soon_awaited, wake_armed, woken, bell, .. } = ring;
    for cqe in uring.completion() {
        match cqe.user_data() {
            WAKE => (*wake_armed, *woken) = (false, true),
            CANCEL => {}
            BELL => *bell = bell.rung(cqueue::more(cqe.flags())),
            data => {
                let inbox = &mut inboxes[((data & !SOON) >> 32) as usize];
                let soon = data & SOON != 0;
                let counts = u32::from(!soon || *soon_awaited || cqe.result() < 0);
                *soon_left -= u32::from(soon);
                *soon_awaited &= *soon_left > 0;
                let completion = Completion { tag: data as u32, result: cqe.result(), flags: cqe.flags() };
                inbox.completions.push(completion);
                inbox.waited_for += counts;
                *gathered += counts;
            }
        }
    }
}

/// The ring with the best task-running mode that the kernel has, and what it has of what is in force. A shorter one where
/// no more can be locked: what it has no entries for is handed over in several calls.
pub(super) fn build(options: RingOptions) -> std::io::Result<(IoUring, Vec<&'static str>)> {
    let wanted = options.depth.clamp(8, ENTRIES_MAX).next_power_of_two();
    let limit = memlock::memlock_limit();
    let mut entries = memlock::entries(wanted, limit);
    let (uring, mut features) = match best(options, entries, wanted) {
        Err(e) if e.raw_os_error() == Some(libc::ENOMEM) => {
            entries = entries.min(memlock::ENTRIES_MIN);
            memlock::retry_for_memlock(|| best(options, entries, wanted))?
        }
        reported => reported?,
    };
    features.extend((entries < wanted).then_some(memlock::SHORT));
    Ok((uring, features))
}

/// Checks that locked memory allows that many rings at a time.
///
/// # Errors
/// The kernel's.
pub fn room_for_rings(rings: u32, options: RingOptions) -> std::io::Result<()> {
    let mut had = vec![build(options)?];
    let together = if memlock::memlock_limit().is_some() { rings.min(memlock::TRIED_MAX) } else { 1 };
    while had.len() < together as usize {
        match build(options) {
            Ok(ring) => had.push(ring),
            Err(e) if e.raw_os_error() == Some(libc::ENOMEM) => return Err(e),
            // Of descriptors, too few are named where they are needed.
            Err(_) => break,
        }
    }
    Ok(())
}

fn best(options: RingOptions, entries: u32, wanted: u32) -> std::io::Result<(IoUring, Vec<&'static str>)> {
    let at_most = if entries < wanted { entries * 2 } else { 65536 };
    let completions = options.depth.saturating_mul(2).clamp(entries * 2, at_most).next_power_of_two();
    let modes: &[&'static str] =
        if options.sqpoll { &["sqpoll"] } else { &["defer_taskrun", "coop_taskrun", "plain"] };
    let mut refusal = std::io::Error::from_raw_os_error(libc::EINVAL);
    for mode in modes {
        let mut builder = IoUring::builder();
        builder.setup_cqsize(completions).setup_clamp().setup_submit_all();
        match *mode {
            "sqpoll" => builder.setup_sqpoll(1000),
            "defer_taskrun" => builder.setup_single_issuer().setup_defer_taskrun(),
            "coop_taskrun" => builder.setup_coop_taskrun(),
            _ => &mut builder,
        };
        if options.iopoll {
            builder.setup_iopoll();
        }
        match builder.build(entries) {
            // Waiting with a deadline came with Linux 5.11.
            Ok(uring) if !uring.params().is_feature_ext_arg() => {
                return Err(std::io::Error::from_raw_os_error(libc::ENOSYS))
            }
            Ok(uring) => {
                // A filter of system calls may allow the setup and not the entering: I/Os would then never begin.
                // SAFETY: nothing was pushed, and nothing is waited for.
                unsafe { uring.submitter().enter::<libc::sigset_t>(0, 0, 0, None) }?;
                let iopoll = options.iopoll.then_some("iopoll");
                return Ok((uring, [Some(*mode), iopoll].into_iter().flatten().collect()));
            }
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => refusal = e,
            Err(e) => return Err(e),
        }
    }
    Err(refusal)
}

/// Returns whether io_uring_enter ended for a reason that may pass: the time is over, a signal came, completions
/// overflow, memory is short.
pub fn is_nothing_yet(errno: i32) -> bool {
    [libc::ETIME, libc::EINTR, libc::EBUSY, libc::EAGAIN, libc::ENOMEM].contains(&errno)
}

impl Drop for Ring {
    /// A read that a wake has just satisfied may run after the ring is closed.
    fn drop(&mut self) {
        if self.wake_armed {
            std::mem::forget(std::mem::take(&mut self.wake_buffer));
        }
    }
}

impl Ring {
    /// False where the kernel has taken none of the submissions that fill the queue.
    ///
    /// # Safety
    /// What the entry points to must live until its completion was taken.
    pub(super) unsafe fn push(&mut self, entry: &squeue::Entry) -> bool {
        // SAFETY: the caller's promise.
        if unsafe { self.uring.submission().push(entry) }.is_ok() {
            return true;
        }
        self.enter(0, None, 0);
        // SAFETY: as above.
        unsafe { self.uring.submission().push(entry) }.is_ok()
    }

    /// One call of the kernel: submits what is queued; with a deadline also gathers, and waits for `wanted`. Whether
    /// it counted on what should complete soon.
    pub(super) fn enter(&mut self, wanted: u32, until: Option<Instant>, batch_us: u32) -> bool {
        let soon = std::mem::take(&mut self.soon);
        let counts = self.min_wait && until.is_some() && wanted > 0 && soon > 0 && self.trust.is_due();
        // What this call starts isn't relied on yet: the kernel may have no memory for it.
        let rings = self.bell != Bell::Silent;
        if until.is_some() {
            self.see_to_bell(counts);
        }
        let rings = rings && self.bell != Bell::Silent;
        let queue = self.uring.submission();
        let mut queued = queue.len() as u32;
        let asleep = self.sqpoll && queue.need_wakeup();
        drop(queue);
        let flags = if asleep { ENTER_SQ_WAKEUP } else { 0 };
        while queued > self.together {
            // SAFETY: plain submission; entries were pushed under `push`'s contract.
            let reported =
                unsafe { self.uring.submitter().enter::<libc::sigset_t>(self.together, 0, flags, None) };
            match self.heed(reported) {
                0 => break,
                taken => queued -= (taken as u32).min(queued),
            }
        }
        let Some(until) = until else {
            // SAFETY: plain submission; entries were pushed under `push`'s contract.
            let reported = unsafe { self.uring.submitter().enter::<libc::sigset_t>(queued, 0, flags, None) };
            self.heed(reported);
            return false;
        };
        // A kernel before 6.12 can't be told to be content with fewer after a while.
        let wanted = if self.min_wait { wanted } else { wanted.min(1) };
        let batch_us = if wanted > 1 { batch_us } else { 0 };
        let wanted = wanted + if counts { soon } else { 0 };
        let left = until.saturating_duration_since(clock::monotonic_now());
        if rings && batch_us == 0 && left >= SOON_WITHIN {
            // SAFETY: plain submission and waiting; entries were pushed under `push`'s contract.
            let reported = unsafe {
                self.uring.submitter().enter::<libc::sigset_t>(queued, wanted, flags | ENTER_GETEVENTS, None)
            };
            self.heed(reported);
            return counts;
        }
        let patience_us = if counts && batch_us == 0 { SOON_WITHIN.as_micros() as u32 } else { batch_us };
        let timeout = types::Timespec::new().sec(left.as_secs()).nsec(left.subsec_nanos());
        let arg = GetEventsArg {
            sigmask: 0,
            sigmask_bytes: 0,
            min_wait_us: patience_us,
            timeout: std::ptr::addr_of!(timeout) as u64,
        };
        // SAFETY: the argument and its timespec live on this stack frame until the call returns.
        let reported = unsafe {
            self.uring.submitter().enter(queued, wanted, flags | ENTER_GETEVENTS | ENTER_EXT_ARG, Some(&arg))
        };
        self.heed(reported);
        counts
    }

    /// Starts the bell for a wait that counts on it, and ends one that none wants.
    fn see_to_bell(&mut self, counts: bool) {
        let after: *const types::Timespec = &*self.bell_after;
        let (entry, then) = match (self.bell, counts) {
            (Bell::Silent, true) => {
                let again = types::TimeoutFlags::MULTISHOT;
                let entry = io_uring::opcode::Timeout::new(after).flags(again).build();
                (entry.user_data(BELL), Bell::Wanted)
            }
            (Bell::Unwanted, false) => {
                (io_uring::opcode::TimeoutRemove::new(BELL).build().user_data(CANCEL), Bell::Silent)
            }
            (_, true) => return self.bell = Bell::Wanted,
            (_, false) => return,
        };
        // SAFETY: the kernel reads the time when it takes the entry, and the box lives as long as the ring.
        if unsafe { self.push(&entry) } {
            self.bell = then;
        }
    }

    /// Counts the submissions that a call of the kernel took. After an error that means "nothing yet" the caller looks
    /// at the clock and comes back. Others come back, too.
    fn heed(&mut self, reported: std::io::Result<usize>) -> usize {
        reported.unwrap_or_else(|e| {
            let errno = e.raw_os_error().unwrap_or(libc::EIO);
            if !is_nothing_yet(errno) {
                self.refused.get_or_insert(errno);
            }
            0
        })
    }
}
