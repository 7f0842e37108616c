//! Device memory, and host memory that a GPU may read by DMA.

use super::{Cuda, CudaError, Device, Stream};
use crate::arena::{Arena, Mem};
use forebay_model::Error;
use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::Arc;

/// CU_MEMHOSTREGISTER_*.
const PORTABLE: c_uint = 1;
const DEVICE_MAP: c_uint = 2;
const READ_ONLY: c_uint = 8;
/// CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD.
const DMA_BUF_FD: c_int = 1;
/// CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED.
const DMA_BUF_SUPPORTED: i32 = 124;
/// CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING, and what it says where kernels of the GPU see what came before
/// they were started (CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER).
const WRITES_ORDERING: i32 = 118;
const ORDERED_FOR_OWNER: i32 = 100;
/// Alignment of a dma-buf's beginning and end.
const PAGE: u64 = 4096;

/// Its memory, and the host's that it reaches; all else of a GPU is in `device`.
impl Device {
    /// `bytes` of device memory, as one slot.
    pub fn allocate(self: &Arc<Self>, bytes: usize) -> Cuda<DeviceMemory> {
        Ok(DeviceMemory { device: self.clone(), at: self.allocate_at(bytes)?, slot_bytes: bytes, count: 1 })
    }

    /// `count` slots of device memory, side by side.
    pub fn slots(self: &Arc<Self>, count: usize, slot_bytes: usize) -> Result<DeviceMemory, Error> {
        let bytes = count.saturating_mul(slot_bytes);
        let at = self.allocate_at(bytes).map_err(|why| {
            let free =
                self.memory_info().map(|(free, _)| format!("; {free} bytes are free")).unwrap_or_default();
            Error::machine(
                format!("{bytes} bytes on GPU {}", self.index()),
                format!("{why}{free}"),
                "a smaller ‹depth›, ‹workers› or ‹io_bytes›",
            )
        })?;
        Ok(DeviceMemory { device: self.clone(), at, slot_bytes, count })
    }

    fn allocate_at(&self, bytes: usize) -> Cuda<u64> {
        let mut at = 0;
        self.enter()?;
        // SAFETY: fills a local.
        self.driver.check(unsafe { (self.driver.calls.mem_alloc)(&mut at, bytes.max(1)) })?;
        Ok(at)
    }

    /// Pins an arena, so that copies from it run at the link's speed and asynchronously. Dropped before the arena.
    pub fn pin(self: &Arc<Self>, arena: &Arena) -> Result<Pinned, Error> {
        let (at, bytes) = arena.whole();
        // SAFETY: the arena's mapping is live, and the worker drops `Pinned` before it.
        let done = unsafe { self.register(at.as_ptr(), bytes, false) };
        done.map(Pinned).map_err(|why| {
            Error::machine(
                format!("pin {bytes} bytes of host memory for GPU {}", self.index()),
                why.to_string(),
                "ulimit -l unlimited, or a smaller ‹depth›",
            )
        })
    }

    /// Pins `bytes` from `at` on and lets the GPU reach them. `read_only`: the GPU only reads, which a read-only
    /// mapping needs.
    ///
    /// # Safety
    /// The memory stays mapped until the `Registered` is dropped, and both ends are aligned to a page.
    pub unsafe fn register(self: &Arc<Self>, at: *mut u8, bytes: usize, read_only: bool) -> Cuda<Registered> {
        self.enter()?;
        let flags = if read_only { PORTABLE | DEVICE_MAP | READ_ONLY } else { PORTABLE | DEVICE_MAP };
        // SAFETY: the caller's promise.
        self.driver.check(unsafe { (self.driver.calls.host_register)(at.cast(), bytes, flags) })?;
        Ok(Registered { device: self.clone(), at: at as usize, bytes })
    }

    /// Copies device memory to `to` and waits.
    pub fn read_back(self: &Arc<Self>, from: u64, to: &mut [u8]) -> Cuda<()> {
        let stream = Stream::borrowed(self, 0);
        // SAFETY: `to` is a live slice, and the stream is synchronised before it is looked at.
        unsafe { stream.copy_to_host(to.as_mut_ptr(), from, to.len())? };
        stream.synchronize()
    }

    /// Copies `from` to device memory and waits.
    pub fn write(self: &Arc<Self>, to: u64, from: &[u8]) -> Cuda<()> {
        let stream = Stream::borrowed(self, 0);
        // SAFETY: `from` is a live slice until the stream is synchronised.
        unsafe { stream.copy_to_device(to, from.as_ptr(), from.len())? };
        stream.synchronize()
    }
}

pub struct DeviceMemory {
    device: Arc<Device>,
    at: u64,
    slot_bytes: usize,
    count: usize,
}

impl DeviceMemory {
    pub fn slot(&self, index: usize) -> Mem {
        assert!(index < self.count, "slot {index} of {}", self.count);
        Mem::Device { gpu: self.device.index(), at: self.at + (index * self.slot_bytes) as u64 }
    }

    pub fn address(&self) -> u64 {
        self.at
    }

    pub fn bytes(&self) -> usize {
        self.slot_bytes * self.count
    }

    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// A dma-buf of it: another device's way to it.
    ///
    /// # Errors
    /// The driver or the GPU exports none, or what came that way wouldn't be seen in order.
    pub fn export(&self) -> Cuda<OwnedFd> {
        let Some(handle_of_range) = self.device.driver.handle_of_range else {
            return Err(CudaError::new(
                "the driver has no cuMemGetHandleForAddressRange: CUDA 11.7 or newer has",
            ));
        };
        if self.device.attribute(DMA_BUF_SUPPORTED)? == 0 {
            return Err(CudaError::new("its driver exports no dma-bufs: NVIDIA's open kernel modules do"));
        }
        if self.device.attribute(WRITES_ORDERING)? < ORDERED_FOR_OWNER {
            return Err(CudaError::new("it doesn't order what other devices write before its own reads"));
        }
        if self.at % PAGE != 0 || self.bytes() as u64 % PAGE != 0 {
            let text = format!(
                "{} bytes at {:#x} are not whole pages: use a larger ‹io_bytes›",
                self.bytes(),
                self.at
            );
            return Err(CudaError::new(text));
        }
        self.device.enter()?;
        let mut fd: c_int = -1;
        let to = (&raw mut fd).cast();
        // SAFETY: fills a local with a descriptor, which is ours.
        let reported = unsafe { handle_of_range(to, self.at, self.bytes(), DMA_BUF_FD, 0) };
        self.device.driver.check(reported)?;
        if fd < 0 {
            return Err(CudaError::new("the driver gave no descriptor"));
        }
        // SAFETY: the driver made it for us.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        let _ = self.device.enter();
        // SAFETY: allocated by us; the worker's copies have ended.
        unsafe { (self.device.driver.calls.mem_free)(self.at) };
    }
}

/// Host memory that the GPU may reach, until it is dropped. Dropping waits for copies under way on the device.
pub struct Registered {
    device: Arc<Device>,
    at: usize,
    bytes: usize,
}

impl Registered {
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let _ = self.device.enter();
        // SAFETY: registered by `register`, once.
        unsafe { (self.device.driver.calls.host_unregister)(self.at as *mut c_void) };
    }
}

/// An arena's pin.
pub struct Pinned(#[allow(dead_code)] Registered);
