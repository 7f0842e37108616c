//! Seeded content in device memory: checked where it landed, and made where it
//! is written from.

use super::{blocks_max, kernel, CONTENT, THREADS, WARPS};
use crate::arena::Arena;
use crate::gpu::cuda::{Cuda, Device, DeviceMemory, Function, Pinned, Stream};
use forebay_model::content::{self, BLOCK_BYTES};
use forebay_model::job::Pages;
use forebay_model::Error;
use std::sync::Arc;

/// Blocks of content that a warp should have to do, before another warp is worth starting.
const BLOCKS_OF_A_WARP: u64 = 2;
const NOTHING: u64 = u64::MAX;

/// Device memory, and which part of which file belongs there. Any alignment; fastest where address and offset are
/// equally far from a multiple of 16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    pub at: u64,
    pub bytes: u64,
    pub seed: u64,
    /// `content::file_id`.
    pub file: u64,
    /// Offset of the first byte in the file.
    pub offset: u64,
}

/// Result of checking a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finding {
    /// 4 KiB blocks with at least one wrong byte.
    pub blocks_bad: u64,
    /// Position in the file of the first of them; it may be before the range.
    pub first_bad: Option<u64>,
}

impl Finding {
    pub fn is_good(&self) -> bool {
        self.blocks_bad == 0
    }
}

/// As the kernels read it.
#[repr(C)]
#[derive(Clone, Copy)]
struct Entry {
    at: u64,
    bytes: u64,
    seed: u64,
    file: u64,
    offset: u64,
    base: u64,
    blocks_bad: u64,
    first_bad: u64,
}

const ENTRY_BYTES: usize = size_of::<Entry>();
const _: () = assert!(ENTRY_BYTES == 64);

impl Entry {
    fn for_range(range: &Range) -> Entry {
        Entry {
            at: range.at,
            bytes: range.bytes,
            seed: range.seed,
            file: range.file,
            offset: range.offset,
            base: content::base(range.seed, range.file),
            blocks_bad: 0,
            first_bad: NOTHING,
        }
    }
}

/// Lists of ranges on their way to the device and back: pinned, made once, each for one launch at a time.
pub struct Lists {
    // Field order is drop order: the pin goes before what it pins.
    _pin: Pinned,
    host: Arena,
    device: DeviceMemory,
    capacity: usize,
}

impl Lists {
    /// `count` lists of at most `capacity` ranges each.
    pub fn new(device: &Arc<Device>, count: usize, capacity: usize) -> Result<Lists, Error> {
        let host = Arena::new(count, capacity.max(1).saturating_mul(ENTRY_BYTES), Pages::Small)?;
        let pin = device.pin(&host)?;
        let memory = device.slots(count, host.slot_bytes())?;
        Ok(Lists { _pin: pin, host, device: memory, capacity })
    }

    pub fn capacity(&self) -> usize {
        self.capacity
    }

    fn host(&self, list: usize) -> *mut Entry {
        self.host.slot(list).host_ptr().cast()
    }

    fn device(&self, list: usize) -> u64 {
        self.device.address() + (list * self.host.slot_bytes()) as u64
    }

    /// Returns the result of list `list` for its range number `index`, once the stream has passed it.
    pub fn finding(&self, list: usize, index: usize) -> Finding {
        assert!(index < self.capacity, "range {index} of {}", self.capacity);
        // SAFETY: inside the list's slot; the caller waited for the device.
        let entry = unsafe { self.host(list).add(index).read_volatile() };
        Finding {
            blocks_bad: entry.blocks_bad,
            first_bad: (entry.first_bad != NOTHING).then_some(entry.first_bad),
        }
    }

    /// Sends a list to the device and launches `kernel` over it.
    ///
    /// # Safety
    /// The ranges' memory is on this device and stays; the list isn't in use; both until the stream has passed.
    unsafe fn launch(&self, kernel: &Kernel, stream: &Stream, list: usize, ranges: &[Range]) -> Cuda<()> {
        assert!(ranges.len() <= self.capacity, "{} ranges in a list of {}", ranges.len(), self.capacity);
        let (host, device) = (self.host(list), self.device(list));
        let mut blocks = 0;
        for (i, range) in ranges.iter().enumerate() {
            // SAFETY: i < capacity, so the entry lies in the list's slot, which no launch uses.
            unsafe { host.add(i).write(Entry::for_range(range)) };
            blocks = blocks.max(range.bytes.div_ceil(BLOCK_BYTES as u64) + 1);
        }
        let grid = kernel.grid(ranges.len() as u64, blocks);
        // SAFETY: both lists hold as many entries; the rest is the caller's promise.
        unsafe {
            stream.copy_to_device(device, host.cast(), ranges.len() * ENTRY_BYTES)?;
            stream.launch(&kernel.function, grid, THREADS, &[device, ranges.len() as u64])
        }
    }
}

struct Kernel {
    function: Function,
    blocks_max: u32,
}

impl Kernel {
    fn open(device: &Arc<Device>, name: &str) -> Result<Kernel, Error> {
        Ok(Kernel { function: kernel(device, &CONTENT, name)?, blocks_max: blocks_max(device) })
    }

    /// Blocks of threads: the same number for each range.
    fn grid(&self, ranges: u64, content_blocks: u64) -> u32 {
        let wanted = content_blocks.div_ceil(BLOCKS_OF_A_WARP * u64::from(WARPS));
        let each = wanted.min(u64::from(self.blocks_max) / ranges).max(1);
        (each * ranges) as u32
    }
}

/// Checks content in device memory.
pub struct Checker(Kernel);

impl Checker {
    /// Compiles the kernel where this is its first use on the device.
    pub fn open(device: &Arc<Device>) -> Result<Checker, Error> {
        Kernel::open(device, "content_check").map(Checker)
    }

    /// Queues the check of `ranges`; the list has their findings once the stream has passed.
    ///
    /// # Safety
    /// The ranges are live memory of the stream's device, and the list isn't in use, until the stream has passed.
    pub unsafe fn queue(&self, stream: &Stream, lists: &Lists, list: usize, ranges: &[Range]) -> Cuda<()> {
        if ranges.is_empty() {
            return Ok(());
        }
        // SAFETY: the caller's promise; what comes back is as long as what went.
        unsafe {
            lists.launch(&self.0, stream, list, ranges)?;
            stream.copy_to_host(lists.host(list).cast(), lists.device(list), ranges.len() * ENTRY_BYTES)
        }
    }
}

/// Makes content in device memory.
pub struct Filler(Kernel);

impl Filler {
    /// Compiles the kernel where this is its first use on the device.
    pub fn open(device: &Arc<Device>) -> Result<Filler, Error> {
        Kernel::open(device, "content_fill").map(Filler)
    }

    /// Queues the filling of `ranges`.
    ///
    /// # Safety
    /// The ranges are memory of the stream's device that nobody else uses, and the list isn't in use, until the
    /// stream has passed.
    pub unsafe fn queue(&self, stream: &Stream, lists: &Lists, list: usize, ranges: &[Range]) -> Cuda<()> {
        if ranges.is_empty() {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe { lists.launch(&self.0, stream, list, ranges) }
    }
}
