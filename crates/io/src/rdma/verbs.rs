//! A device: its protection domain, memory registered with it, completion queues, and what is posted to a queue pair.

use super::layout::{
    CompChannel, Context, Cq, Mr, Pd, Qp, ReceiveWork, SendWork, Sge, WorkCompletion, ACCESS_LOCAL_WRITE,
    ACCESS_REMOTE_READ, ACCESS_REMOTE_WRITE, SEND_SIGNALED, WC_FLUSHED, WC_SUCCESS, WR_RDMA_READ,
    WR_RDMA_WRITE, WR_SEND, WR_SEND_WITH_INV,
};
use super::library::Library;
use std::alloc::{alloc_zeroed, dealloc, Layout};
use std::ffi::{c_int, CStr};
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{null_mut, NonNull};
use std::sync::Arc;

const PAGE: usize = 4096;
/// Completions that are taken with one call.
const BATCH: usize = 16;

/// Protection domain: memory registered with it is reached by its queue pairs, and by no other.
pub struct Domain {
    library: &'static Library,
    context: NonNull<Context>,
    pd: NonNull<Pd>,
    /// `mlx5_0`, `rxe0`.
    pub device: String,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send_ for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

use std::marker::Send as Send_;

impl Domain {
    /// On the device that a connection is on, which stays open for ever (`Library::keep_devices`).
    pub(super) fn open(library: &'static Library, context: NonNull<Context>) -> io::Result<Domain> {
        // SAFETY: an open device.
        let pd = unsafe { (library.verbs.alloc_pd)(context.as_ptr()) };
        let pd = NonNull::new(pd).ok_or_else(io::Error::last_os_error)?;
        Ok(Domain { library, context, pd, device: name(library, context) })
    }

    pub(super) fn raw(&self) -> *mut Pd {
        self.pd.as_ptr()
    }

    pub(super) fn library(&self) -> &'static Library {
        self.library
    }

    pub(super) fn is_on(&self, context: NonNull<Context>) -> bool {
        self.context == context
    }
}

fn name(library: &Library, context: NonNull<Context>) -> String {
    // SAFETY: an open device, whose name the library keeps.
    unsafe {
        let name = (library.verbs.device_name)(context.as_ref().device);
        if name.is_null() {
            return "an RDMA device".into();
        }
        CStr::from_ptr(name).to_string_lossy().into_owned()
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: all that stands on it holds it.
        unsafe { (self.library.verbs.dealloc_pd)(self.pd.as_ptr()) };
    }
}

/// Memory that a device reads and writes, and where it was registered for them, peers that are told its key.
pub struct Region {
    mr: NonNull<Mr>,
    pub at: u64,
    pub bytes: usize,
    pub local_key: u32,
    pub remote_key: u32,
    domain: Arc<Domain>,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send_ for Region {}
// SAFETY: as above; nothing of it changes.
unsafe impl Sync for Region {}

impl Region {
    /// # Errors
    /// ENOMEM: more than may be locked (`ulimit -l`), or than the device has room for.
    ///
    /// # Safety
    /// The memory is there as long as the region, and nothing relies on what it holds while a peer has its key.
    pub unsafe fn register(domain: &Arc<Domain>, at: NonNull<u8>, bytes: usize) -> io::Result<Region> {
        let access = ACCESS_LOCAL_WRITE | ACCESS_REMOTE_READ | ACCESS_REMOTE_WRITE;
        // SAFETY: the caller's promise.
        unsafe { Region::with(domain, at, bytes, access) }
    }

    /// As `register`, for our own posts alone: no peer reaches it, whatever key it names.
    ///
    /// # Safety
    /// The memory is there as long as the region, and what a post receives into isn't looked at before it completed.
    pub unsafe fn register_own(domain: &Arc<Domain>, at: NonNull<u8>, bytes: usize) -> io::Result<Region> {
        // SAFETY: the caller's promise.
        unsafe { Region::with(domain, at, bytes, ACCESS_LOCAL_WRITE) }
    }

    /// As `register`, for peers that only read: the memory needn't be writable.
    ///
    /// # Safety
    /// The memory is there as long as the region.
    pub unsafe fn register_to_be_read(
        domain: &Arc<Domain>,
        at: NonNull<u8>,
        bytes: usize,
    ) -> io::Result<Region> {
        // SAFETY: the caller's promise.
        unsafe { Region::with(domain, at, bytes, ACCESS_REMOTE_READ) }
    }

    /// As `register`, of a GPU's memory: `bytes` from the begin of the dma-buf on, which peers call `at` and following.
    ///
    /// # Errors
    /// EOPNOTSUPP: the device, its driver or libibverbs takes none.
    ///
    /// # Safety
    /// The GPU's memory is there as long as the region, and nothing relies on what it holds while a peer has its key.
    pub(crate) unsafe fn register_dma_buf(
        domain: &Arc<Domain>,
        dma_buf: BorrowedFd<'_>,
        at: u64,
        bytes: usize,
    ) -> io::Result<Region> {
        let unsupported = || io::Error::from_raw_os_error(libc::EOPNOTSUPP);
        let register = domain.library.reg_dmabuf.ok_or_else(unsupported)?;
        let access = ACCESS_LOCAL_WRITE | ACCESS_REMOTE_READ | ACCESS_REMOTE_WRITE;
        // SAFETY: the caller's promise; the domain is held, and the device holds the dma-buf by itself.
        let mr = unsafe { register(domain.raw(), 0, bytes, at, dma_buf.as_raw_fd(), access) };
        Region::from_raw(domain, mr, at, bytes)
    }

    /// # Safety
    /// As of `register`, or where peers have no access, of `register_own`.
    unsafe fn with(domain: &Arc<Domain>, at: NonNull<u8>, bytes: usize, access: c_int) -> io::Result<Region> {
        // SAFETY: the caller's promise; the domain is held.
        let mr = unsafe { (domain.library.verbs.reg_mr)(domain.raw(), at.as_ptr().cast(), bytes, access) };
        Region::from_raw(domain, mr, at.as_ptr() as u64, bytes)
    }

    /// The registration, or why it failed.
    fn from_raw(domain: &Arc<Domain>, mr: *mut Mr, at: u64, bytes: usize) -> io::Result<Region> {
        let mr = NonNull::new(mr).ok_or_else(io::Error::last_os_error)?;
        // SAFETY: the library made it, and keeps it until it is given back.
        let (local_key, remote_key) = unsafe { (mr.as_ref().lkey, mr.as_ref().rkey) };
        Ok(Region { mr, at, bytes, local_key, remote_key, domain: domain.clone() })
    }

    pub fn covers(&self, at: u64, bytes: u64) -> bool {
        at >= self.at && at.checked_add(bytes).is_some_and(|end| end <= self.at + self.bytes as u64)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: ours, given back once.
        unsafe { (self.domain.library.verbs.dereg_mr)(self.mr.as_ptr()) };
    }
}

/// Memory of our own that a device reads and writes: capsules, responses. Zeroed.
pub struct Buffer {
    region: Option<Region>,
    at: NonNull<u8>,
    layout: Layout,
}

impl Buffer {
    pub fn new(domain: &Arc<Domain>, bytes: usize) -> io::Result<Buffer> {
        let layout =
            Layout::from_size_align(bytes.max(1).next_multiple_of(PAGE), PAGE).map_err(io::Error::other)?;
        // SAFETY: the layout isn't empty.
        let at = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(io::ErrorKind::OutOfMemory)?;
        let mut buffer = Buffer { region: None, at, layout };
        // SAFETY: `drop` takes the region back before the memory goes; who reads knows what completed.
        buffer.region = Some(unsafe { Region::register_own(domain, at, layout.size()) }?);
        Ok(buffer)
    }

    /// `bytes` from `offset` on, for a post.
    ///
    /// # Panics
    /// Beyond its end.
    pub fn stretch(&self, offset: usize, bytes: usize) -> Sge {
        self.check(offset, bytes);
        let key = self.region.as_ref().map_or(0, |region| region.local_key);
        Sge { addr: self.at.as_ptr() as u64 + offset as u64, length: bytes as u32, lkey: key }
    }

    pub fn write(&mut self, offset: usize, bytes: &[u8]) {
        self.check(offset, bytes.len());
        // SAFETY: within the allocation.
        unsafe { self.at.add(offset).copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) };
    }

    /// A copy of what stands there.
    pub fn read<const N: usize>(&self, offset: usize) -> [u8; N] {
        self.check(offset, N);
        // SAFETY: within the allocation; an array of bytes has no alignment.
        unsafe { self.at.add(offset).cast::<[u8; N]>().read_volatile() }
    }

    /// Returns the bytes of a completed receive, until it is posted again.
    pub fn bytes(&self, offset: usize, bytes: usize) -> &[u8] {
        self.check(offset, bytes);
        // SAFETY: within the allocation, and no receive that is posted writes there: who borrows this posts none.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr().add(offset), bytes) }
    }

    fn check(&self, offset: usize, bytes: usize) {
        let inside = offset.checked_add(bytes).is_some_and(|end| end <= self.layout.size());
        assert!(inside, "{bytes} bytes from {offset} on, of {}", self.layout.size());
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.region = None;
        // SAFETY: allocated with this layout, and no device has it any more.
        unsafe { dealloc(self.at.as_ptr(), self.layout) };
    }
}

/// Completion of a posted request.
#[derive(Clone, Copy, Debug)]
pub struct Completed {
    /// As it was posted.
    pub id: u64,
    /// Bytes of a completed receive.
    pub bytes: u32,
    /// Why it failed; None: it didn't.
    pub failed: Option<u32>,
}

impl Completed {
    /// It was given up because its queue pair is in error, for a reason that another one has.
    pub fn is_flushed(self) -> bool {
        self.failed == Some(WC_FLUSHED)
    }
}

/// Completions of queue pairs, and the descriptor that signals them.
pub struct CompletionQueue {
    cq: NonNull<Cq>,
    channel: NonNull<CompChannel>,
    domain: Arc<Domain>,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send_ for CompletionQueue {}
// SAFETY: as above.
unsafe impl Sync for CompletionQueue {}

impl CompletionQueue {
    pub fn new(domain: &Arc<Domain>, entries: u32) -> io::Result<CompletionQueue> {
        let verbs = &domain.library.verbs;
        // SAFETY: an open device.
        let channel = unsafe { (verbs.create_comp_channel)(domain.context.as_ptr()) };
        let channel = NonNull::new(channel).ok_or_else(io::Error::last_os_error)?;
        // SAFETY: an open device, and a channel of it.
        let cq = unsafe {
            (verbs.create_cq)(domain.context.as_ptr(), entries as c_int, null_mut(), channel.as_ptr(), 0)
        };
        let Some(cq) = NonNull::new(cq) else {
            let error = io::Error::last_os_error();
            // SAFETY: ours, and no queue uses it.
            unsafe { (verbs.destroy_comp_channel)(channel.as_ptr()) };
            return Err(error);
        };
        let queue = CompletionQueue { cq, channel, domain: domain.clone() };
        rustix::io::ioctl_fionbio(queue.fd(), true)?;
        Ok(queue)
    }

    pub(super) fn raw(&self) -> *mut Cq {
        self.cq.as_ptr()
    }

    /// Readable after something completed, once it is armed.
    pub fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel's own descriptor, which is open as long as the channel is.
        unsafe { BorrowedFd::borrow_raw(self.channel.as_ref().fd) }
    }

    /// Takes the descriptor's events, and asks for the next: look at the queue after that.
    pub fn arm(&self) -> io::Result<()> {
        let verbs = &self.domain.library.verbs;
        let (mut of, mut context) = (null_mut(), null_mut());
        // SAFETY: the channel is open and doesn't block; both are filled only where there is an event, which is this
        // queue's, as no other is on the channel.
        unsafe {
            while (verbs.get_cq_event)(self.channel.as_ptr(), &mut of, &mut context) == 0 {
                (verbs.ack_cq_events)(of, 1);
            }
        }
        // SAFETY: the queue is there, and its device open.
        let done = unsafe {
            let call = self.cq.as_ref().context.as_ref().and_then(|context| context.ops.req_notify_cq);
            call.map(|call| call(self.cq.as_ptr(), 0))
        };
        match done {
            Some(0) => Ok(()),
            Some(errno) => Err(io::Error::from_raw_os_error(errno.abs())),
            None => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Appends what completed; whether there may be more.
    pub fn poll(&self, into: &mut Vec<Completed>) -> io::Result<bool> {
        let mut batch = [WorkCompletion::default(); BATCH];
        // SAFETY: the queue is there, and its device open; fills as many places as there are.
        let count = unsafe {
            let call = self.cq.as_ref().context.as_ref().and_then(|context| context.ops.poll_cq);
            call.map_or(-1, |call| call(self.cq.as_ptr(), BATCH as c_int, batch.as_mut_ptr()))
        };
        let Ok(count) = usize::try_from(count) else {
            return Err(io::Error::other("the completion queue can't be read"));
        };
        into.extend(batch.iter().take(count).map(|wc| Completed {
            id: wc.wr_id,
            bytes: wc.byte_len,
            failed: (wc.status != WC_SUCCESS).then_some(wc.status),
        }));
        Ok(count >= BATCH)
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        let verbs = &self.domain.library.verbs;
        // SAFETY: queue pairs hold it, so that none is left; its events were acknowledged.
        unsafe {
            (verbs.destroy_cq)(self.cq.as_ptr());
            (verbs.destroy_comp_channel)(self.channel.as_ptr());
        }
    }
}

/// Request that is posted for sending.
#[derive(Clone, Copy, Debug)]
pub enum Send {
    Message,
    /// The peer's device invalidates this key of its own with it.
    MessageInvalidating(u32),
    /// To, or from, the peer's memory of this address and key.
    Write {
        address: u64,
        key: u32,
    },
    Read {
        address: u64,
        key: u32,
    },
}

/// Stretches that one post has, at most.
pub(crate) const STRETCHES_MAX: usize = 2;

/// One post for sending.
#[derive(Clone, Copy, Debug)]
pub struct Post {
    pub id: u64,
    pub what: Send,
    pub stretches: [Sge; STRETCHES_MAX],
    pub count: usize,
    /// Its completion comes even where it succeeds.
    pub signaled: bool,
}

/// The queue pair of a connection, which takes posts.
#[derive(Clone, Copy)]
pub(super) struct Pair<'a> {
    raw: NonNull<Qp>,
    /// The connection that has it.
    held: PhantomData<&'a Qp>,
}

impl Pair<'_> {
    /// # Safety
    /// It is there for as long as `'a` lasts, and nobody but the library changes it.
    pub(super) unsafe fn new<'a>(raw: NonNull<Qp>) -> Pair<'a> {
        Pair { raw, held: PhantomData }
    }

    /// Posts in order, with one call.
    #[inline]
    pub(super) fn send(self, posts: &mut [Post]) -> io::Result<()> {
        let pair = self.raw;
        let mut work: Vec<SendWork> = posts.iter_mut().map(send_work).collect();
        for next in (1..work.len()).rev() {
            let after: *mut SendWork = &mut work[next];
            work[next - 1].next = after;
        }
        let Some(first) = work.first_mut() else { return Ok(()) };
        let mut bad = null_mut();
        // SAFETY: the pair is there; list and stretches are locals, which the call only reads. The memory that they
        // name is checked by its keys.
        let done = unsafe {
            let call = pair.as_ref().context.as_ref().and_then(|context| context.ops.post_send);
            call.map(|call| call(pair.as_ptr(), first, &mut bad))
        };
        posted(done)
    }

    /// Posts a buffer for the next message.
    #[inline]
    pub(super) fn receive(self, id: u64, mut into: Sge) -> io::Result<()> {
        let pair = self.raw;
        let mut work = ReceiveWork { wr_id: id, next: null_mut(), sg_list: &mut into, num_sge: 1 };
        let mut bad = null_mut();
        // SAFETY: as of `send`.
        let done = unsafe {
            let call = pair.as_ref().context.as_ref().and_then(|context| context.ops.post_recv);
            call.map(|call| call(pair.as_ptr(), &mut work, &mut bad))
        };
        posted(done)
    }
}

fn send_work(post: &mut Post) -> SendWork {
    let (opcode, remote_addr, rkey, invalidate_rkey) = match post.what {
        Send::Message => (WR_SEND, 0, 0, 0),
        Send::MessageInvalidating(key) => (WR_SEND_WITH_INV, 0, 0, key),
        Send::Write { address, key } => (WR_RDMA_WRITE, address, key, 0),
        Send::Read { address, key } => (WR_RDMA_READ, address, key, 0),
    };
    SendWork {
        wr_id: post.id,
        sg_list: post.stretches.as_mut_ptr(),
        num_sge: post.count.min(STRETCHES_MAX) as c_int,
        opcode,
        send_flags: if post.signaled { SEND_SIGNALED } else { 0 },
        invalidate_rkey,
        remote_addr,
        rkey,
        ..SendWork::default()
    }
}

/// Some drivers give the errno, some -1.
fn posted(done: Option<c_int>) -> io::Result<()> {
    match done {
        Some(0) => Ok(()),
        Some(-1) => Err(io::Error::last_os_error()),
        Some(errno) => Err(io::Error::from_raw_os_error(errno.abs())),
        None => Err(io::ErrorKind::Unsupported.into()),
    }
}
