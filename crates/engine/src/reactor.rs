//! The only thing that waits: one ring for a worker's files and sockets, timers,
//! and a wake descriptor for threads whose completions don't come through it.
//!
//! Each queue takes a token; what completes for a token gathers in its inbox
//! until the queue reaps. Where io_uring is forbidden the reactor waits in
//! poll(2), and queues that need a ring say so when they open.

use crate::arena::Arena;
use crate::clock;
use forebay_model::Error;
use io_uring::{squeue, types, IoUring};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Submissions that may be queued between two calls of the kernel.
const ENTRIES_MAX: u32 = 4096;
/// The kernel holds back (plugs) what is submitted in one call, to merge it, from the third on.
const UNPLUGGED: u32 = 2;
/// Places in the table of registered files.
const FILES_MAX: u32 = 1024;
/// user_data of what isn't a queue's; tokens stay below.
const WAKE: u64 = u64::MAX;
const CANCEL: u64 = u64::MAX - 1;

#[derive(Clone, Copy, Debug, Default)]
pub struct RingOptions {
    /// I/Os in flight on all queues together.
    pub depth: u32,
    pub sqpoll: bool,
    pub iopoll: bool,
    /// I/Os are long: submissions go to the device one by one. Handed over together, adjacent ones would be
    /// merged into requests of many MiB, which complete together and are then merged again.
    pub one_by_one: bool,
}

/// One completion: the queue's own tag and the kernel's result.
#[derive(Clone, Copy, Debug)]
pub struct Completion {
    pub tag: u32,
    pub result: i32,
}

/// Wakes a reactor from another thread.
#[derive(Debug)]
pub struct Waker(OwnedFd);

impl Waker {
    pub fn wake(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: writes eight bytes of a local to an eventfd that we own. A full counter is awake already.
        unsafe { libc::write(self.0.as_raw_fd(), one.as_ptr().cast(), 8) };
    }
}

/// The argument of io_uring_enter with IORING_ENTER_EXT_ARG: struct io_uring_getevents_arg.
#[repr(C)]
struct GetEventsArg {
    sigmask: u64,
    sigmask_bytes: u32,
    min_wait_us: u32,
    timeout: u64,
}
const _: () = assert!(std::mem::size_of::<GetEventsArg>() == 24);

const ENTER_GETEVENTS: u32 = 1;
const ENTER_SQ_WAKEUP: u32 = 2;
const ENTER_EXT_ARG: u32 = 8;

struct Ring {
    uring: IoUring,
    sqpoll: bool,
    files: u32,
    min_wait: bool,
    /// Submissions that one call of the kernel may hand over.
    together: u32,
    wake_buffer: Box<u64>,
    wake_armed: bool,
}

pub struct Reactor {
    ring: Option<Ring>,
    inboxes: Vec<Vec<Completion>>,
    /// Completions that lie in inboxes.
    gathered: u32,
    waker: Option<Arc<Waker>>,
    features: Vec<&'static str>,
}

impl Reactor {
    /// A reactor without a ring: for queues that finish inline or on threads.
    pub fn without_ring() -> Reactor {
        Reactor { ring: None, inboxes: Vec::new(), gathered: 0, waker: None, features: Vec::new() }
    }

    /// A reactor over a ring. Must be made by the thread that uses it.
    ///
    /// Errors are the kernel's: EPERM or ENOSYS where io_uring is forbidden.
    pub fn with_ring(options: RingOptions) -> std::io::Result<Reactor> {
        let (uring, mut features) = build(options)?;
        if uring.submitter().register_files_sparse(FILES_MAX).is_ok() {
            features.push("fixed_files");
        }
        let ring = Ring {
            together: if options.one_by_one && !options.sqpoll { UNPLUGGED } else { u32::MAX },
            min_wait: uring.params().is_feature_min_timeout(),
            uring,
            sqpoll: options.sqpoll,
            files: 0,
            wake_buffer: Box::new(0),
            wake_armed: false,
        };
        Ok(Reactor { ring: Some(ring), inboxes: Vec::new(), gathered: 0, waker: None, features })
    }

    pub fn has_ring(&self) -> bool {
        self.ring.is_some()
    }

    /// Kernel features that are in force, for the record.
    pub fn features(&self) -> &[&'static str] {
        &self.features
    }

    /// Registers the arena's pieces, so that I/Os into its slots pin no pages of their own.
    ///
    /// # Errors
    /// The kernel's: ENOMEM where the locked-memory limit is too low.
    pub fn register_arena(&mut self, arena: &mut Arena) -> std::io::Result<()> {
        let Some(ring) = &self.ring else { return Ok(()) };
        // SAFETY: the pieces are the arena's own mapping; the worker keeps the arena until after the ring.
        unsafe { ring.uring.submitter().register_buffers(&arena.pieces()) }?;
        arena.mark_registered();
        self.features.push("fixed_buffers");
        Ok(())
    }

    /// A place in the ring's table of files. None: the table is full or refused, use the descriptor.
    pub fn register_file(&mut self, fd: RawFd) -> Option<u32> {
        let ring = self.ring.as_mut()?;
        if !self.features.contains(&"fixed_files") || ring.files == FILES_MAX {
            return None;
        }
        let at = ring.files;
        ring.uring.submitter().register_files_update(at, &[fd]).ok()?;
        ring.files += 1;
        Some(at)
    }

    /// Takes part: what completes under the token gathers for `take`.
    pub fn token(&mut self) -> u32 {
        self.inboxes.push(Vec::new());
        (self.inboxes.len() - 1) as u32
    }

    /// Queues a submission. Nothing starts before `flush` or `wait`.
    ///
    /// # Safety
    /// What the entry points to must live until its completion was taken.
    pub unsafe fn push(&mut self, token: u32, tag: u32, entry: squeue::Entry) {
        let ring = self.ring.as_mut().expect("a queue that needs a ring opened on one");
        let entry = entry.user_data(user_data(token, tag));
        // SAFETY: the caller's promise.
        while unsafe { !ring.push(&entry) } {
            // A ring whose completions overflow takes no more until they are collected.
            ring.enter(0, Some(clock::now()), 0);
            gather(ring, &mut self.inboxes, &mut self.gathered);
        }
    }

    /// Asks the kernel to give up on one submission; its completion still comes.
    pub fn cancel(&mut self, token: u32, tag: u32) {
        let Some(ring) = self.ring.as_mut() else { return };
        let entry = io_uring::opcode::AsyncCancel::new(user_data(token, tag)).build().user_data(CANCEL);
        // SAFETY: a cancellation points to nothing.
        while unsafe { !ring.push(&entry) } {
            ring.enter(0, Some(clock::now()), 0);
            gather(ring, &mut self.inboxes, &mut self.gathered);
        }
    }

    /// Starts what was pushed and collects what is done, without waiting.
    pub fn flush(&mut self) {
        if let Some(ring) = self.ring.as_mut() {
            ring.enter(0, Some(clock::now()), 0);
            self.gather();
        }
    }

    /// Starts what was pushed; no call of the kernel where nothing was.
    pub fn submit(&mut self) {
        if let Some(ring) = self.ring.as_mut() {
            if !ring.uring.submission().is_empty() {
                ring.enter(0, None, 0);
            }
        }
    }

    /// A descriptor through which threads can end a `wait`.
    pub fn waker(&mut self) -> Result<Arc<Waker>, Error> {
        if let Some(waker) = &self.waker {
            return Ok(waker.clone());
        }
        let flags = libc::EFD_CLOEXEC | if self.ring.is_some() { 0 } else { libc::EFD_NONBLOCK };
        // SAFETY: a fresh descriptor of ours.
        let fd = unsafe { libc::eventfd(0, flags) };
        if fd < 0 {
            let found = std::io::Error::last_os_error().to_string();
            return Err(Error::machine("a wake descriptor", found, "ulimit -n 1048576, or fewer --workers"));
        }
        // SAFETY: fd was just made and belongs to nobody else.
        Ok(self.waker.insert(Arc::new(Waker(unsafe { OwnedFd::from_raw_fd(fd) }))).clone())
    }

    /// Starts what was pushed, and waits until `at_least` completions gathered, a waker called, or `until`.
    /// With `batch`, once that time has passed a single completion is enough.
    pub fn wait(&mut self, at_least: u32, until: Instant, batch: Duration) {
        self.gather();
        let wanted = at_least.saturating_sub(self.gathered);
        if self.ring.is_none() {
            if wanted > 0 {
                self.poll(until);
            }
            return;
        }
        if wanted > 0 {
            self.arm_wake();
        }
        if let Some(ring) = self.ring.as_mut() {
            ring.enter(wanted, Some(until), batch.as_micros() as u32);
        }
        self.gather();
    }

    /// Moves what completed for `token` out of its inbox.
    pub fn take(&mut self, token: u32, into: &mut Vec<Completion>) {
        self.gather();
        let inbox = &mut self.inboxes[token as usize];
        self.gathered -= inbox.len() as u32;
        into.append(inbox);
    }

    fn gather(&mut self) {
        if let Some(ring) = self.ring.as_mut() {
            gather(ring, &mut self.inboxes, &mut self.gathered);
        }
    }

    fn arm_wake(&mut self) {
        let (Some(waker), Some(ring)) = (&self.waker, self.ring.as_mut()) else { return };
        if ring.wake_armed {
            return;
        }
        let buffer: *mut u64 = &mut *ring.wake_buffer;
        let read = io_uring::opcode::Read::new(types::Fd(waker.0.as_raw_fd()), buffer.cast(), 8)
            .build()
            .user_data(WAKE);
        // SAFETY: the buffer is boxed and left to the kernel if the ring goes first; one read is in flight at a time.
        ring.wake_armed = unsafe { ring.push(&read) };
    }

    fn poll(&mut self, until: Instant) {
        let left = until.saturating_duration_since(clock::now());
        let Some(waker) = &self.waker else {
            std::thread::sleep(left);
            return;
        };
        let mut poll = libc::pollfd { fd: waker.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let timeout =
            libc::timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        let mut count = 0u64;
        // SAFETY: one pollfd and one timespec on the stack; the read fills a local u64.
        unsafe {
            if libc::ppoll(&mut poll, 1, &timeout, std::ptr::null()) > 0 {
                libc::read(poll.fd, std::ptr::addr_of_mut!(count).cast(), 8);
            }
        }
    }
}

fn gather(ring: &mut Ring, inboxes: &mut [Vec<Completion>], gathered: &mut u32) {
    for cqe in ring.uring.completion() {
        match cqe.user_data() {
            WAKE => ring.wake_armed = false,
            CANCEL => {}
            data => {
                inboxes[(data >> 32) as usize].push(Completion { tag: data as u32, result: cqe.result() });
                *gathered += 1;
            }
        }
    }
}

fn user_data(token: u32, tag: u32) -> u64 {
    (u64::from(token) << 32) | u64::from(tag)
}

/// The ring with the best task-running mode that the kernel has, and which that is.
fn build(options: RingOptions) -> std::io::Result<(IoUring, Vec<&'static str>)> {
    let entries = options.depth.clamp(8, ENTRIES_MAX).next_power_of_two();
    let completions = options.depth.saturating_mul(2).clamp(entries * 2, 65536).next_power_of_two();
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
                let iopoll = options.iopoll.then_some("iopoll");
                return Ok((uring, [Some(*mode), iopoll].into_iter().flatten().collect()));
            }
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => refusal = e,
            Err(e) => return Err(e),
        }
    }
    Err(refusal)
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
    unsafe fn push(&mut self, entry: &squeue::Entry) -> bool {
        // SAFETY: the caller's promise.
        if unsafe { self.uring.submission().push(entry) }.is_ok() {
            return true;
        }
        self.enter(0, None, 0);
        // SAFETY: as above.
        unsafe { self.uring.submission().push(entry) }.is_ok()
    }

    /// One call of the kernel: submits what is queued; with a deadline also gathers, and waits for `wanted`.
    fn enter(&mut self, wanted: u32, until: Option<Instant>, batch_us: u32) {
        let queue = self.uring.submission();
        let queued = queue.len() as u32;
        let asleep = self.sqpoll && queue.need_wakeup();
        drop(queue);
        let flags = if asleep { ENTER_SQ_WAKEUP } else { 0 };
        let mut queued = queued;
        while queued > self.together {
            // SAFETY: plain submission; entries were pushed under `push`'s contract.
            match unsafe { self.uring.submitter().enter::<libc::sigset_t>(self.together, 0, flags, None) } {
                Ok(taken) if taken > 0 => queued -= (taken as u32).min(queued),
                _ => break,
            }
        }
        let Some(until) = until else {
            // SAFETY: plain submission; entries were pushed under `push`'s contract.
            let _ = unsafe { self.uring.submitter().enter::<libc::sigset_t>(queued, 0, flags, None) };
            return;
        };
        // A kernel before 6.12 can't be told to be content with fewer after a while.
        let wanted = if self.min_wait { wanted } else { wanted.min(1) };
        let left = until.saturating_duration_since(clock::now());
        let timeout = types::Timespec::new().sec(left.as_secs()).nsec(left.subsec_nanos());
        let arg = GetEventsArg {
            sigmask: 0,
            sigmask_bytes: 0,
            min_wait_us: if wanted > 1 { batch_us } else { 0 },
            timeout: std::ptr::addr_of!(timeout) as u64,
        };
        // SAFETY: the argument and its timespec live on this stack frame until the call returns. ETIME,
        // EINTR and EBUSY mean "nothing yet": the caller looks at the clock and comes back.
        let _ = unsafe {
            self.uring.submitter().enter(queued, wanted, flags | ENTER_GETEVENTS | ENTER_EXT_ARG, Some(&arg))
        };
    }
}
