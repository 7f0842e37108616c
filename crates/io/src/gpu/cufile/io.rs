//! Files and buffers that cuFile knows, and its three kinds of I/O on them.

use super::calls::{BatchEntry, BatchEvent, Descriptor};
use super::{error, Cu, CuFile, CuFileError, Driver};
use crate::gpu::cuda::{DeviceMemory, Stream};
use std::ffi::{c_int, c_uint, c_void};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

fn last_errno() -> Option<i32> {
    std::io::Error::last_os_error().raw_os_error()
}

/// Files are opened without blocking, so that a pipe in a file's place hangs nobody. cuFile refuses such a
/// descriptor (error 5019).
fn blocking(file: &File) {
    let descriptor = file.as_raw_fd();
    // SAFETY: reads and sets status flags of a descriptor that is open; refused, cuFile says what it minds.
    unsafe {
        let flags = libc::fcntl(descriptor, libc::F_GETFL);
        if flags >= 0 {
            libc::fcntl(descriptor, libc::F_SETFL, flags & !libc::O_NONBLOCK);
        }
    }
}

/// A file that cuFile knows, for as long as this lives. Any thread may use it.
pub struct FileHandle {
    cufile: &'static CuFile,
    raw: *mut c_void,
    /// Held open: cuFile keeps the descriptor's number.
    _file: Arc<File>,
}

// SAFETY: cuFile's handles may be used from any thread, also at once.
unsafe impl Send for FileHandle {}
// SAFETY: as above.
unsafe impl Sync for FileHandle {}

impl Driver {
    /// Makes a file known to cuFile. It goes direct only where it is open with O_DIRECT.
    pub fn register_file(&self, file: &Arc<File>) -> Cu<FileHandle> {
        const DESCRIPTOR: c_int = 1;
        blocking(file);
        let mut raw = std::ptr::null_mut();
        let mut descriptor =
            Descriptor { kind: DESCRIPTOR, fd: i64::from(file.as_raw_fd()), operations: std::ptr::null() };
        // SAFETY: both are locals; the file stays open as long as the handle.
        let status = unsafe { (self.cufile().calls.handle_register)(&mut raw, &mut descriptor) };
        error::check("cuFileHandleRegister", status)?;
        Ok(FileHandle { cufile: self.cufile(), raw, _file: file.clone() })
    }

    /// Pins device memory for DMA by storage. It must outlive the registration.
    pub fn register_buffer(&self, memory: &DeviceMemory) -> Cu<Buffer> {
        let at = memory.address();
        // SAFETY: the range is one allocation of the device's.
        let status = unsafe { (self.cufile().calls.buffer_register)(at as *const c_void, memory.bytes(), 0) };
        error::check("cuFileBufRegister", status)?;
        Ok(Buffer { cufile: self.cufile(), at })
    }
}

impl Drop for FileHandle {
    fn drop(&mut self) {
        // SAFETY: registered once, and nothing of ours is in flight on it.
        unsafe { (self.cufile.calls.handle_deregister)(self.raw) };
    }
}

/// Device memory that cuFile has pinned.
pub struct Buffer {
    cufile: &'static CuFile,
    at: u64,
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: registered once; the worker's I/Os have ended.
        unsafe { (self.cufile.calls.buffer_deregister)(self.at as *const c_void) };
    }
}

impl FileHandle {
    /// Reads `bytes` from `offset` of the file into device memory, `base_offset` behind `base`; waits. `base` is what
    /// was registered, or the address itself.
    ///
    /// # Safety
    /// The memory is the caller's until the call returns, and the device's context is current.
    pub unsafe fn read(&self, base: u64, base_offset: u64, bytes: usize, offset: u64) -> Cu<usize> {
        // SAFETY: the caller's promise.
        let got = unsafe {
            (self.cufile.calls.read)(self.raw, base as *mut c_void, bytes, offset as i64, base_offset as i64)
        };
        error::bytes("cuFileRead", got, last_errno)
    }

    /// Writes device memory to the file; waits.
    ///
    /// # Safety
    /// As for `read`.
    pub unsafe fn write(&self, base: u64, base_offset: u64, bytes: usize, offset: u64) -> Cu<usize> {
        // SAFETY: the caller's promise.
        let got = unsafe {
            (self.cufile.calls.write)(
                self.raw,
                base as *const c_void,
                bytes,
                offset as i64,
                base_offset as i64,
            )
        };
        error::bytes("cuFileWrite", got, last_errno)
    }

    /// Queues the I/O on the stream. `io` says afterwards what became of it.
    ///
    /// # Safety
    /// `io` stays where it is, and the memory belongs to the I/O, until the stream has passed it.
    pub unsafe fn start(&self, io: &mut StreamIo, stream: &Stream) -> Cu<()> {
        let calls = &self.cufile.calls;
        let (name, call) = if io.writes {
            ("cuFileWriteAsync", calls.write_async)
        } else {
            ("cuFileReadAsync", calls.read_async)
        };
        let call = call.ok_or_else(|| self.cufile.missing(name))?;
        io.result = StreamIo::PENDING;
        // SAFETY: the caller's promise.
        let status = unsafe {
            call(
                self.raw,
                io.base as *mut c_void,
                &mut io.bytes,
                &mut io.offset,
                &mut io.base_offset,
                &mut io.result,
                stream.handle() as *mut c_void,
            )
        };
        error::check(name, status)
    }
}

/// Parameters that a stream call reads when the stream comes to it, and results that it writes when it is done.
#[derive(Debug, Default)]
pub struct StreamIo {
    writes: bool,
    base: u64,
    bytes: usize,
    offset: i64,
    base_offset: i64,
    result: isize,
}

impl StreamIo {
    pub fn new(writes: bool, (base, behind): (u64, u64), bytes: usize, offset: u64) -> StreamIo {
        StreamIo {
            writes,
            base,
            bytes,
            offset: offset as i64,
            base_offset: behind as i64,
            result: Self::PENDING,
        }
    }

    const PENDING: isize = isize::MIN;

    /// Bytes moved, once the stream has passed the call.
    pub fn outcome(&self) -> Cu<usize> {
        let name = if self.writes { "cuFileWriteAsync" } else { "cuFileReadAsync" };
        // SAFETY: a live local field; cuFile's thread wrote it before the stream's event.
        let result = unsafe { std::ptr::read_volatile(&self.result) };
        if result == Self::PENDING {
            return Err(CuFileError::new(format!(
                "{name}: the stream passed it, and it never reported a result"
            )));
        }
        error::bytes(name, result, || None)
    }
}

/// One I/O of a batch.
pub struct BatchIo<'a> {
    pub file: &'a FileHandle,
    pub writes: bool,
    pub base: u64,
    pub base_offset: u64,
    pub bytes: usize,
    pub offset: u64,
    /// Given back with its event.
    pub tag: u64,
}

/// An entry of a batch that has ended.
pub struct Event {
    pub tag: u64,
    pub outcome: Cu<usize>,
}

/// A batch: set up once, submitted again and again, each time after the last has ended.
pub struct Batch {
    cufile: &'static CuFile,
    raw: *mut c_void,
    entries: Vec<BatchEntry>,
    events: Vec<BatchEvent>,
}

// SAFETY: a batch is used by one thread at a time, whichever.
unsafe impl Send for Batch {}

impl Driver {
    /// A batch of at most `entries`.
    pub fn batch(&self, entries: u32) -> Cu<Batch> {
        let cufile = self.cufile();
        let calls = &cufile.calls;
        let all = [calls.batch_submit.is_some(), calls.batch_status.is_some(), calls.batch_cancel.is_some()];
        let set_up = calls.batch_set_up.filter(|_| all.iter().all(|there| *there));
        let set_up = set_up.ok_or_else(|| cufile.missing("cuFileBatchIOSetUp"))?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: fills a local.
        error::check("cuFileBatchIOSetUp", unsafe { set_up(&mut raw, entries) })?;
        let none = BatchEvent { cookie: std::ptr::null_mut(), status: 0, result: 0 };
        Ok(Batch { cufile, raw, entries: Vec::new(), events: vec![none; entries as usize] })
    }
}

impl Batch {
    /// Hands the I/Os over. In compatibility mode the call waits for staging buffers, for ever if the pool is too small.
    ///
    /// # Safety
    /// Their memory belongs to them until their events have come.
    pub unsafe fn submit<'a>(&mut self, ios: impl Iterator<Item = BatchIo<'a>>) -> Cu<()> {
        const BATCH: c_int = 1;
        self.entries.clear();
        self.entries.extend(ios.map(|io| BatchEntry {
            mode: BATCH,
            base: io.base as *mut c_void,
            file_offset: io.offset as i64,
            base_offset: io.base_offset as i64,
            bytes: io.bytes,
            handle: io.file.raw,
            opcode: c_int::from(io.writes),
            cookie: io.tag as *mut c_void,
        }));
        let submit = self.cufile.calls.batch_submit.expect("looked for when the batch was made");
        // SAFETY: as many entries as it says; the caller's promise.
        let status = unsafe { submit(self.raw, self.entries.len() as c_uint, self.entries.as_mut_ptr(), 0) };
        error::check("cuFileBatchIOSubmit", status)
    }

    /// Appends what has ended; waits up to `patience` for at least one.
    pub fn collect(&mut self, patience: Duration, into: &mut Vec<Event>) -> Cu<()> {
        let get = self.cufile.calls.batch_status.expect("looked for when the batch was made");
        let mut count = self.entries.len() as c_uint;
        let mut timeout =
            libc::timespec { tv_sec: patience.as_secs() as i64, tv_nsec: i64::from(patience.subsec_nanos()) };
        // SAFETY: room for as many events as it is told.
        let status = unsafe { get(self.raw, 1, &mut count, self.events.as_mut_ptr(), &mut timeout) };
        error::check("cuFileBatchIOGetStatus", status)?;
        let count = (count as usize).min(self.events.len());
        into.extend(self.events[..count].iter().filter_map(event));
        Ok(())
    }

    /// Asks cuFile to give up on what hasn't ended; events still come.
    pub fn cancel(&self) {
        if let Some(cancel) = self.cufile.calls.batch_cancel {
            // SAFETY: a live batch.
            unsafe { cancel(self.raw) };
        }
    }
}

/// None for an entry that is still under way.
fn event(e: &BatchEvent) -> Option<Event> {
    const CALL: &str = "cuFileBatchIOSubmit";
    const INVALID: c_int = 0x04;
    const CANCELED: c_int = 0x08;
    const COMPLETE: c_int = 0x10;
    const TIMEOUT: c_int = 0x20;
    const FAILED: c_int = 0x40;
    let outcome = match e.status {
        COMPLETE => error::bytes(CALL, e.result, || None),
        INVALID | FAILED if e.result < 0 => error::bytes(CALL, e.result, || None),
        INVALID => Err(CuFileError::new(format!("{CALL}: cuFile calls the entry invalid"))),
        FAILED => Err(CuFileError::new(format!("{CALL}: the entry failed, and doesn't say why"))),
        CANCELED => Err(CuFileError::with_errno(libc::ECANCELED, format!("{CALL}: cancelled"))),
        TIMEOUT => Err(CuFileError::with_errno(
            libc::ETIMEDOUT,
            format!("{CALL}: cuFile's own time-out of a batch passed"),
        )),
        _ => return None,
    };
    Some(Event { tag: e.cookie as u64, outcome })
}

impl Drop for Batch {
    fn drop(&mut self) {
        if let Some(destroy) = self.cufile.calls.batch_destroy {
            // SAFETY: made once; all of its entries have ended.
            unsafe { destroy(self.raw) };
        }
    }
}
