//! Streams, in which the device works in order, and events, which say how far it is.

use super::calls::{RawEvent, RawStream};
use super::{Cuda, CudaError, Device, NOT_READY};
use std::ffi::c_uint;
use std::sync::atomic::AtomicU32;
use std::sync::Arc;

/// Work queued on it runs in order, beside that of other streams.
pub struct Stream {
    device: Arc<Device>,
    raw: RawStream,
    /// Ours to destroy.
    owned: bool,
}

// SAFETY: CUDA streams may be used from any thread; every call makes the context current first.
unsafe impl Send for Stream {}

impl Stream {
    /// A stream that doesn't wait for the legacy default stream.
    pub fn on(device: &Arc<Device>) -> Cuda<Stream> {
        const NON_BLOCKING: c_uint = 1;
        let mut raw = std::ptr::null_mut();
        device.enter()?;
        // SAFETY: fills a local.
        device.driver.check(unsafe { (device.driver.calls.stream_create)(&mut raw, NON_BLOCKING) })?;
        Ok(Stream { device: device.clone(), raw, owned: true })
    }

    /// Borrows a stream (PyTorch's, CuPy's) by its handle; 0 is the default stream. It must outlive this.
    pub fn borrowed(device: &Arc<Device>, handle: u64) -> Stream {
        Stream { device: device.clone(), raw: handle as RawStream, owned: false }
    }

    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// CUstream, for libraries that take one.
    pub fn handle(&self) -> u64 {
        self.raw as u64
    }

    /// # Safety
    /// Both ends hold `bytes`, and stay until the copy has ended. The host's end is pinned, or else the call waits.
    pub unsafe fn copy_to_device(&self, to: u64, from: *const u8, bytes: usize) -> Cuda<()> {
        self.device.enter()?;
        // SAFETY: the caller's promise.
        self.check(unsafe { (self.device.driver.calls.copy_to_device)(to, from.cast(), bytes, self.raw) })
    }

    /// Queues all of them, by one call where the driver has one for many.
    ///
    /// # Safety
    /// As for `copy_to_device`, of each; the host's end of each lies in one registration.
    pub unsafe fn copy_all_to_device(&self, copies: &HostCopies) -> Cuda<()> {
        let HostCopies { to, from, bytes } = copies;
        let batch = self.device.driver.copy_batch.filter(|_| to.len() > 1 && self.owned);
        let Some(batch) = batch else {
            let mut each = to.iter().zip(from).zip(bytes);
            // SAFETY: the caller's promise.
            return each.try_for_each(|((to, from), bytes)| unsafe {
                self.copy_to_device(*to, *from as *const u8, *bytes)
            });
        };
        self.device.enter()?;
        // SAFETY: the lists are of one length, and the stream is ours; the rest is the caller's promise.
        self.check(unsafe { batch.queue(to, from, bytes, self.raw) })
    }

    /// # Safety
    /// As for `copy_to_device`.
    pub unsafe fn copy_to_host(&self, to: *mut u8, from: u64, bytes: usize) -> Cuda<()> {
        self.device.enter()?;
        // SAFETY: the caller's promise.
        self.check(unsafe { (self.device.driver.calls.copy_to_host)(to.cast(), from, bytes, self.raw) })
    }

    /// # Safety
    /// `bytes` of device memory from `at` on are the caller's.
    pub unsafe fn set_bytes(&self, at: u64, value: u8, bytes: usize) -> Cuda<()> {
        self.device.enter()?;
        // SAFETY: the caller's promise.
        self.check(unsafe { (self.device.driver.calls.set_bytes)(at, value, bytes, self.raw) })
    }

    pub fn record(&self, event: &Event) -> Cuda<()> {
        self.device.enter()?;
        // SAFETY: both are live.
        self.check(unsafe { (self.device.driver.calls.event_record)(event.raw, self.raw) })
    }

    /// Makes later work of the stream wait for the event.
    pub fn wait_for(&self, event: &Event) -> Cuda<()> {
        self.device.enter()?;
        // SAFETY: both are live.
        self.check(unsafe { (self.device.driver.calls.stream_wait)(self.raw, event.raw, 0) })
    }

    /// Makes later work of the stream wait until the 32-bit word at `at` of registered memory is at least `value`,
    /// cyclically.
    ///
    /// # Errors
    /// Among others, where the driver knows no such waits.
    ///
    /// # Safety
    /// The word stays registered until the wait has ended. Another thread that makes no call of the driver sets it: such
    /// calls may wait for all that is queued.
    pub(crate) unsafe fn await_value(&self, at: *const AtomicU32, value: u32) -> Cuda<()> {
        const AT_LEAST: c_uint = 0;
        let Some((wait, _)) = self.device.driver.on_values else { return Err(no_values()) };
        self.device.enter()?;
        // SAFETY: the caller's promise.
        self.check(unsafe { wait(self.raw, at as u64, value, AT_LEAST) })
    }

    /// Sets the word at `at` of registered memory once all that was queued before has ended.
    ///
    /// # Errors
    /// As for `await_value`.
    ///
    /// # Safety
    /// The word stays registered until it is written.
    pub(crate) unsafe fn write_value(&self, at: *const AtomicU32, value: u32) -> Cuda<()> {
        let Some((_, write)) = self.device.driver.on_values else { return Err(no_values()) };
        self.device.enter()?;
        // SAFETY: the caller's promise.
        self.check(unsafe { write(self.raw, at as u64, value, 0) })
    }

    /// Waits for everything queued on it.
    pub fn synchronize(&self) -> Cuda<()> {
        self.device.enter()?;
        // SAFETY: a live stream.
        self.check(unsafe { (self.device.driver.calls.stream_synchronize)(self.raw) })
    }

    pub(super) fn raw(&self) -> RawStream {
        self.raw
    }

    fn check(&self, result: i32) -> Cuda<()> {
        self.device.driver.check(result)
    }
}

fn no_values() -> CudaError {
    CudaError::new("the driver has no cuStreamWaitValue32_v2: CUDA 11.7 or newer has")
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.owned {
            let _ = self.device.enter();
            // SAFETY: our stream; what is still queued on it runs to its end.
            unsafe { (self.device.driver.calls.stream_destroy)(self.raw) };
        }
    }
}

/// Copies out of host memory, as lists of what each takes from where to where.
#[derive(Default)]
pub struct HostCopies {
    to: Vec<u64>,
    from: Vec<u64>,
    bytes: Vec<usize>,
}

impl HostCopies {
    pub fn push(&mut self, from: *const u8, to: u64, bytes: usize) {
        self.to.push(to);
        self.from.push(from as u64);
        self.bytes.push(bytes);
    }

    pub fn is_empty(&self) -> bool {
        self.to.is_empty()
    }
}

/// A point in a stream.
pub struct Event {
    device: Arc<Device>,
    raw: RawEvent,
}

// SAFETY: as for streams.
unsafe impl Send for Event {}

impl Event {
    /// An event that is asked for: one that a thread may sleep for would have the device interrupt a processor each time, which
    /// takes 2 µs of a stream, and more of a virtual machine.
    pub fn on(device: &Arc<Device>) -> Cuda<Event> {
        const DISABLE_TIMING: c_uint = 2;
        let mut raw = std::ptr::null_mut();
        device.enter()?;
        // SAFETY: fills a local.
        device.driver.check(unsafe { (device.driver.calls.event_create)(&mut raw, DISABLE_TIMING) })?;
        Ok(Event { device: device.clone(), raw })
    }

    /// Returns whether the device has passed it. An error comes only after waiting for it, as far as the driver still
    /// waits: what was queued before it is at an end, and its memory the caller's again.
    pub fn is_done(&self) -> Cuda<bool> {
        self.device.enter()?;
        // SAFETY: a live event.
        match unsafe { (self.device.driver.calls.event_query)(self.raw) } {
            NOT_READY => Ok(false),
            result => self.device.driver.check(result).map(|()| true).inspect_err(|_| {
                let _ = self.synchronize();
            }),
        }
    }

    /// Waits for it, with a processor: only at an end, or after a failure.
    pub fn synchronize(&self) -> Cuda<()> {
        self.device.enter()?;
        // SAFETY: a live event.
        self.device.driver.check(unsafe { (self.device.driver.calls.event_synchronize)(self.raw) })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let _ = self.device.enter();
        // SAFETY: our event; the driver defers its end to when the device has passed it.
        unsafe { (self.device.driver.calls.event_destroy)(self.raw) };
    }
}
