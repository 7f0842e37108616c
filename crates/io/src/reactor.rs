//! The only place that waits: one ring for a worker's files and sockets, timers, and an eventfd for threads whose
//! completions don't come through the ring.
//!
//! Each queue has a token; completions for a token collect in its inbox until the queue reaps them. If io_uring is
//! forbidden, the reactor waits in poll(2), and queues that need a ring report this when they are opened.

#![allow(unsafe_code, reason = "the worker's own ring, and what it waits for")]

pub(crate) mod memlock;
mod patience;
mod ring;
#[cfg(test)]
pub(crate) mod tests;
mod trust;

use crate::arena::Arena;
use crate::clock;
use forebay_model::Error;
use io_uring::squeue;
use io_uring::types;
use patience::Patience;
use ring::{build, gather, Bell, GetEventsArg, Ring};
pub use ring::{is_nothing_yet, room_for_rings};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::AtomicU64;
use std::sync::Arc;
use std::time::{Duration, Instant};
use trust::Trust;

/// Submissions that may be queued between two calls of the kernel.
const ENTRIES_MAX: u32 = 4096;
/// The kernel holds back (plugs) what is submitted in one call, to merge it, from the third on.
const UNPLUGGED: u32 = 2;
/// Entries in the table of registered files.
const FILES_MAX: u32 = 1024;
/// user_data of what isn't a queue's; tokens stay below.
const WAKE: u64 = u64::MAX;
const CANCEL: u64 = u64::MAX - 1;
const BELL: u64 = u64::MAX - 2;
/// Marks in user_data what `push_soon` queued.
const SOON: u64 = 1 << 63;
/// Longest time that a wait counts on it. One timer in the ring ends all the waits of that time: one for each wait
/// would have to be started and taken back each time, which on a virtual machine costs as much as the wait's own work.
const SOON_WITHIN: Duration = Duration::from_millis(10);
/// Length of a wait on a ring that the kernel refuses to enter: nothing completes, and callers must not spin.
const REFUSED: Duration = Duration::from_millis(10);

#[derive(Clone, Copy, Debug, Default)]
pub struct RingOptions {
    /// I/Os in flight on all queues.
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
    /// IORING_CQE_F_*.
    pub flags: u32,
}

/// Completions of one token that haven't been taken yet.
#[derive(Default)]
struct Inbox {
    completions: Vec<Completion>,
    /// Those that count in `Reactor::gathered`.
    waited_for: u32,
}

/// Memory that another process writes to: a change there ends a wait without a completion of the ring.
pub trait Glance: Send + Sync {
    /// Returns whether something has arrived. Called repeatedly while a wait spins, so it must be cheap.
    fn is_ready(&self) -> bool;
    /// Returns whether nothing will arrive any more.
    fn is_closed(&self) -> bool;
}

/// Polls memory between two system calls, while a wait spins.
const GLANCES: u32 = 32;

/// Wakes a reactor from another thread.
#[derive(Debug)]
pub struct Waker(OwnedFd);

impl Waker {
    /// One that is waited for by poll(2), not by a reactor.
    pub fn new() -> std::io::Result<Waker> {
        let flags = rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK;
        Ok(Waker(rustix::event::eventfd(0, flags)?))
    }

    /// Forgets the calls so far.
    pub fn drain(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }

    pub fn wake(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: writes eight bytes of a local to an eventfd that we own. A full counter is awake already.
        unsafe { libc::write(self.0.as_raw_fd(), one.as_ptr().cast(), 8) };
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

const _: () = assert!(std::mem::size_of::<GetEventsArg>() == 24);

pub struct Reactor {
    ring: Option<Ring>,
    inboxes: Vec<Inbox>,
    /// Completions in inboxes that can end a wait.
    gathered: u32,
    waker: Option<Arc<Waker>>,
    features: Vec<&'static str>,
    spin: Duration,
    /// Polls for a moment before it sleeps, where that pays. None: nobody asked for that.
    patience: Option<Patience>,
    glances: Vec<Arc<dyn Glance>>,
}

impl Reactor {
    /// A reactor without a ring, for queues that complete inline or on threads.
    pub fn without_ring() -> Reactor {
        Reactor {
            ring: None,
            inboxes: Vec::new(),
            gathered: 0,
            waker: None,
            features: Vec::new(),
            spin: Duration::ZERO,
            patience: None,
            glances: Vec::new(),
        }
    }

    /// A reactor over a ring. Must be created by the thread that uses it.
    ///
    /// Errors are the kernel's: EPERM or ENOSYS where io_uring is forbidden.
    pub fn with_ring(options: RingOptions) -> std::io::Result<Reactor> {
        let (uring, mut features) = build(options)?;
        if uring.submitter().register_files_sparse(FILES_MAX).is_ok() {
            features.push("fixed_files");
        }
        let ring = Ring {
            soon: 0,
            soon_left: 0,
            soon_awaited: false,
            trust: Trust::default(),
            bell: Bell::default(),
            bell_after: Box::new(types::Timespec::from(SOON_WITHIN)),
            together: if options.one_by_one && !options.sqpoll { UNPLUGGED } else { u32::MAX },
            min_wait: uring.params().is_feature_min_timeout(),
            uring,
            sqpoll: options.sqpoll,
            files: Vec::new(),
            wake_buffer: Box::new(0),
            wake_armed: false,
            woken: false,
            refused: None,
            registered: Vec::new(),
        };
        Ok(Reactor {
            ring: Some(ring),
            inboxes: Vec::new(),
            gathered: 0,
            waker: None,
            features,
            spin: Duration::ZERO,
            patience: None,
            glances: Vec::new(),
        })
    }

    pub fn has_ring(&self) -> bool {
        self.ring.is_some()
    }

    /// Why the kernel refuses system calls for the ring, e.g. because a seccomp filter was loaded during the run.
    /// What was pushed and isn't back by then may still write to its memory, and never completes.
    pub fn refused(&self) -> Option<std::io::Error> {
        self.ring.as_ref()?.refused.map(std::io::Error::from_raw_os_error)
    }

    /// Kernel features in use, for the record.
    pub fn features(&self) -> &[&'static str] {
        &self.features
    }

    /// Registers the arena's pieces, so that I/Os into its slots pin no pages of their own.
    ///
    /// # Errors
    /// The kernel's, or ours before it: ENOMEM where the locked-memory limit is too low.
    pub fn register_arena(&mut self, arena: &mut Arena) -> std::io::Result<()> {
        let Some(ring) = &mut self.ring else { return Ok(()) };
        let registered = memlock::Registered::take(arena.locked_bytes(), memlock::memlock_limit())?;
        // SAFETY: the pieces are the arena's own mapping; the worker keeps the arena until after the ring.
        unsafe { ring.uring.submitter().register_buffers(&arena.pieces()) }?;
        ring.registered.push(registered);
        arena.mark_registered();
        self.features.push("fixed_buffers");
        Ok(())
    }

    /// An entry in the ring's table of registered files. None: the table is full or refused; use the descriptor.
    pub fn register_file(&mut self, file: &Arc<File>) -> Option<u32> {
        let ring = self.ring.as_mut()?;
        let free = ring.files.iter().position(Option::is_none);
        let at = free.unwrap_or(ring.files.len());
        if !self.features.contains(&"fixed_files") || at == FILES_MAX as usize {
            return None;
        }
        ring.uring.submitter().register_files_update(at as u32, &[file.as_raw_fd()]).ok()?;
        if free.is_none() {
            ring.files.push(None);
        }
        ring.files[at] = Some(Arc::downgrade(file));
        Some(at as u32)
    }

    /// Takes files out of that table that nobody has open any more: until then the kernel keeps them, with the space
    /// of those that were removed.
    pub fn forget_files(&mut self) {
        let Some(ring) = self.ring.as_mut() else { return };
        for (at, place) in ring.files.iter_mut().enumerate() {
            if place.as_ref().is_some_and(|file| file.strong_count() == 0)
                && ring.uring.submitter().register_files_update(at as u32, &[-1]).is_ok()
            {
                *place = None;
            }
        }
    }

    /// Registers a token: its completions collect for `take`.
    pub fn token(&mut self) -> u32 {
        self.inboxes.push(Inbox::default());
        (self.inboxes.len() - 1) as u32
    }

    /// Queues a submission, which starts at the next `flush` or `wait`.
    ///
    /// # Safety
    /// What the entry points to must live until its completion was taken.
    pub unsafe fn push(&mut self, token: u32, tag: u32, entry: squeue::Entry) {
        // SAFETY: the caller's promise.
        unsafe { self.queue(entry.user_data(user_data(token, tag))) };
    }

    /// # Safety
    /// As of `push`.
    unsafe fn queue(&mut self, entry: squeue::Entry) {
        let ring = self.ring.as_mut().expect("a queue that needs a ring opened on one");
        // SAFETY: the caller's promise.
        while unsafe { !ring.push(&entry) } && ring.refused.is_none() {
            // A ring whose completions overflow takes no more until they are collected.
            ring.enter(0, Some(clock::monotonic_now()), 0);
            gather(ring, &mut self.inboxes, &mut self.gathered);
        }
    }

    /// As `push`, for what completes as it is handed over, as a rule (`soon`): a small send. A `wait` isn't for it,
    /// so that handing it over and waiting for something else is one call. One that fails does end a wait.
    ///
    /// # Safety
    /// As of `push`.
    pub unsafe fn push_soon(&mut self, token: u32, tag: u32, entry: squeue::Entry, soon: bool) {
        let mark = if soon { SOON } else { 0 };
        // SAFETY: the caller's promise.
        unsafe { self.queue(entry.user_data(user_data(token, tag) | mark)) };
        let ring = self.ring.as_mut().expect("a queue that needs a ring opened on one");
        ring.soon += u32::from(soon);
        ring.soon_left += u32::from(soon);
    }

    /// Something waits behind what `push_soon` queued and isn't complete: a full socket takes a small send late, and
    /// what is to be sent next must not wait for other completions, of which there may be none.
    pub(crate) fn await_soon(&mut self) {
        if let Some(ring) = self.ring.as_mut() {
            ring.soon_awaited = ring.soon_left > 0;
        }
    }

    /// Has the next signal of an eventfd complete under the token, once; what the eventfd counted is forgotten.
    pub fn hear(&mut self, token: u32, tag: u32, eventfd: BorrowedFd) {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let entry =
            io_uring::opcode::Read::new(types::Fd(eventfd.as_raw_fd()), COUNT.as_ptr().cast(), 8).build();
        // SAFETY: it points to eight bytes that are always there, and that nobody reads.
        unsafe { self.push(token, tag, entry) };
    }

    /// Has a descriptor's next readiness to be read complete under the token, once. `cancel` ends it, too.
    pub fn watch(&mut self, token: u32, tag: u32, descriptor: BorrowedFd) {
        let fd = types::Fd(descriptor.as_raw_fd());
        let entry = io_uring::opcode::PollAdd::new(fd, libc::POLLIN as u32).build();
        // SAFETY: a poll points to nothing, and holds its file by itself.
        unsafe { self.push(token, tag, entry) };
    }

    /// Asks the kernel to cancel one submission; its completion still arrives.
    pub fn cancel(&mut self, token: u32, tag: u32) {
        self.cancel_named(user_data(token, tag));
    }

    /// `cancel` for what `push_soon` queued as `soon`.
    pub(crate) fn cancel_soon(&mut self, token: u32, tag: u32) {
        self.cancel_named(user_data(token, tag) | SOON);
    }

    fn cancel_named(&mut self, name: u64) {
        if self.ring.is_some() {
            let entry = io_uring::opcode::AsyncCancel::new(name).build().user_data(CANCEL);
            // SAFETY: a cancellation points to nothing.
            unsafe { self.queue(entry) };
        }
    }

    /// Submits pushed entries and collects completions, without waiting.
    pub fn flush(&mut self) {
        if let Some(ring) = self.ring.as_mut() {
            ring.enter(0, Some(clock::monotonic_now()), 0);
            self.gather();
        }
    }

    /// Submits pushed entries; makes no system call if there are none.
    pub fn submit(&mut self) {
        if let Some(ring) = self.ring.as_mut() {
            if !ring.uring.submission().is_empty() {
                ring.enter(0, None, 0);
            }
        }
    }

    /// A descriptor with which other threads can end a `wait`.
    pub fn waker(&mut self) -> Result<Arc<Waker>, Error> {
        if let Some(waker) = &self.waker {
            return Ok(waker.clone());
        }
        let flags = libc::EFD_CLOEXEC | if self.ring.is_some() { 0 } else { libc::EFD_NONBLOCK };
        // SAFETY: a fresh descriptor of ours.
        let fd = unsafe { libc::eventfd(0, flags) };
        if fd < 0 {
            let found = std::io::Error::last_os_error().to_string();
            return Err(Error::machine("a wake descriptor", found, "ulimit -n 1048576, or fewer ‹workers›"));
        }
        // SAFETY: fd was just made and belongs to nobody else.
        Ok(self.waker.insert(Arc::new(Waker(unsafe { OwnedFd::from_raw_fd(fd) }))).clone())
    }

    /// Submits pushed entries and waits for `at_least` completions, a waker, or `until`. With `batch`, a single
    /// completion is enough once that time has passed.
    pub fn wait(&mut self, at_least: u32, until: Instant, batch: Duration) {
        self.gather();
        // Its call may have been collected by `flush` or `take`, after the caller looked at what it is woken for.
        if self.sees() || self.was_woken() {
            return self.submit();
        }
        let wanted = at_least.saturating_sub(self.gathered);
        if self.ring.is_none() {
            if wanted > 0 {
                self.poll(until);
            }
            return;
        }
        if wanted > 0 && (self.poll_for(self.spin, until) || self.polls(until)) {
            self.was_woken();
            return;
        }
        let counted =
            self.ring.as_mut().is_some_and(|r| r.enter(wanted, Some(until), batch.as_micros() as u32));
        if self.refused().is_some() {
            std::thread::sleep(until.saturating_duration_since(clock::monotonic_now()).min(REFUSED));
        }
        self.gather();
        if let Some(ring) = self.ring.as_mut().filter(|_| counted) {
            ring.trust.judge(ring.soon_left == 0);
        }
        self.was_woken();
    }

    fn was_woken(&mut self) -> bool {
        self.ring.as_mut().is_some_and(|ring| std::mem::take(&mut ring.woken))
    }

    /// From now on `wait` polls for this long before it sleeps: a wake-up costs several microseconds, on virtual
    /// machines tens. The longest requested time applies.
    pub fn spin(&mut self, at_most: Duration) {
        self.spin = self.spin.max(at_most);
    }

    /// From now on `wait` polls for a moment before it sleeps, as long as what it waits for comes within it: for peers
    /// that answer at once.
    pub fn poll_where_it_pays(&mut self) {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let seed = since.map_or(1, |time| time.subsec_nanos());
        self.patience.get_or_insert_with(|| Patience::new(seed));
    }

    fn polls(&mut self, until: Instant) -> bool {
        if !self.spin.is_zero() {
            return false;
        }
        let Some(most) = self.patience.as_mut().and_then(Patience::allows) else { return false };
        let began = clock::monotonic_now();
        let came = self.poll_for(most, until);
        if let Some(patience) = &mut self.patience {
            patience.judge(clock::monotonic_now().saturating_duration_since(began), came);
        }
        came
    }

    /// Looks again and again for so long; whether there is something for which the next `wait` returns at once.
    pub fn poll_for(&mut self, at_most: Duration, until: Instant) -> bool {
        self.arm_wake();
        if at_most.is_zero() {
            return false;
        }
        let until = until.min(clock::monotonic_now() + at_most);
        while self.gathered == 0 && clock::monotonic_now() < until {
            self.flush();
            if self.is_woken() || self.glanced() {
                return true;
            }
        }
        self.gathered > 0
    }

    fn is_woken(&self) -> bool {
        self.ring.as_ref().is_some_and(|ring| ring.woken)
    }

    /// From now on `wait` also polls this memory before it sleeps, until it is closed.
    pub fn look_at(&mut self, glance: Arc<dyn Glance>) {
        self.glances.retain(|glance| !glance.is_closed());
        self.glances.push(glance);
    }

    fn sees(&self) -> bool {
        self.glances.iter().any(|glance| glance.is_ready())
    }

    /// Looks at memory for as long as a call of the kernel would take.
    fn glanced(&self) -> bool {
        let look = |_| {
            std::hint::spin_loop();
            self.sees()
        };
        !self.glances.is_empty() && (0..GLANCES).any(look)
    }

    /// Moves the completions of `token` out of its inbox.
    pub fn take(&mut self, token: u32, into: &mut Vec<Completion>) {
        self.gather();
        let inbox = &mut self.inboxes[token as usize];
        self.gathered -= inbox.waited_for;
        inbox.waited_for = 0;
        into.append(&mut inbox.completions);
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
        let left = until.saturating_duration_since(clock::monotonic_now());
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

/// Returns the error of a run for whose ring the kernel takes no calls any more (`Reactor::refused`).
pub fn ring_refused(why: &std::io::Error) -> Error {
    let next = match why.raw_os_error() {
        Some(libc::EBADR) => "more memory, or fewer I/Os in flight",
        _ => "forebay doctor; a filter of system calls was loaded meanwhile",
    };
    Error::run("io_uring", ring_refusal(why), next)
}

/// The same in words.
pub fn ring_refusal(why: &std::io::Error) -> String {
    match why.raw_os_error() {
        // It says so once: what was lost never comes.
        Some(libc::EBADR) => "the kernel had no memory for completions of io_uring, and lost some".into(),
        _ => format!("the kernel refuses io_uring_enter, which it allowed before: {why}"),
    }
}

fn user_data(token: u32, tag: u32) -> u64 {
    (u64::from(token) << 32) | u64::from(tag)
}
