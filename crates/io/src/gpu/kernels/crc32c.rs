//! CRC32C (Castagnoli) of device memory.

use super::{blocks_max, kernel, CRC32C, THREADS, WARPS};
use crate::arena::Arena;
use crate::gpu::cuda::{Cuda, Device, DeviceMemory, Function, Pinned, Stream};
use forebay_model::crc32c::{of_remainder, product, product_table, shift, unshift};
use forebay_model::job::Pages;
use forebay_model::Error;
use std::sync::Arc;

/// Bytes that a warp reads at once: 16 by each lane.
const ROW_BYTES: u64 = 512;
/// Rows that a warp should have to do, before another warp is worth starting: putting its part in place costs as
/// much as a dozen.
const ROWS_OF_A_WARP_MIN: u64 = 16;
/// Places of the words of a row.
const PLACES: u64 = ROW_BYTES / 4;

/// The kernel and its tables, for one device.
pub struct Crc32c {
    kernel: Function,
    device: Arc<Device>,
    /// By the binary logarithm of a warp's rows; each as long as was needed so far.
    powers: Vec<Option<DeviceMemory>>,
    tables: DeviceMemory,
    warps_max: u64,
}

/// Sums on their way back: pinned, each for one launch at a time.
pub struct Sums {
    // Field order is drop order: the pin goes before what it pins.
    _pin: Pinned,
    host: Arena,
    device: DeviceMemory,
    /// Spans of the sums' launches.
    spans: Vec<Span>,
}

/// Range of a launch, which turns its remainder into a checksum.
#[derive(Clone, Copy, Default)]
struct Span {
    bytes: u64,
    /// Missing bytes of the last row.
    padding: u64,
    rows: u64,
}

impl Span {
    fn new(at: u64, bytes: u64) -> Span {
        let whole = at % 16 + bytes;
        let rows = whole.div_ceil(ROW_BYTES);
        Span { bytes, padding: rows * ROW_BYTES - whole, rows }
    }
}

const SUM_BYTES: usize = 64;

impl Sums {
    pub fn new(device: &Arc<Device>, count: usize) -> Result<Sums, Error> {
        let host = Arena::new(count, SUM_BYTES, Pages::Small)?;
        let pin = device.pin(&host)?;
        let memory = device.slots(count, SUM_BYTES)?;
        Ok(Sums { _pin: pin, host, device: memory, spans: vec![Span::default(); count] })
    }

    pub fn count(&self) -> usize {
        self.spans.len()
    }

    fn device(&self, index: usize) -> u64 {
        self.device.address() + (index * SUM_BYTES) as u64
    }

    /// The checksum of the launch that used sum `index`, once the stream has passed it.
    pub fn checksum(&self, index: usize) -> u32 {
        let span = self.spans[index];
        // SAFETY: the slot is ours; the caller waited for the device.
        let remainder = unsafe { self.host.slot(index).host_ptr().cast::<u32>().read_volatile() };
        of_remainder(product(remainder, unshift(span.padding)), span.bytes)
    }
}

impl Crc32c {
    /// Compiles the kernel where this is its first use on the device.
    pub fn open(device: &Arc<Device>) -> Result<Crc32c, Error> {
        let kernel = kernel(device, &CRC32C, "crc32c_sum")?;
        let mut words = product_table(shift(ROW_BYTES));
        words.extend((1..=PLACES).map(|place| shift(ROW_BYTES - 4 * place)));
        let tables = on_device(device, &words).map_err(|why| no_memory(device, &why))?;
        let warps_max = u64::from(blocks_max(device) * WARPS);
        Ok(Crc32c { kernel, device: device.clone(), powers: Vec::new(), tables, warps_max })
    }

    /// Queues the checksum of `bytes` of device memory from `at` on; `sums` has it at `index` once the stream has
    /// passed.
    ///
    /// # Safety
    /// The memory is live and doesn't change, and the sum isn't in use, until the stream has passed.
    pub unsafe fn queue(
        &mut self,
        stream: &Stream,
        sums: &mut Sums,
        index: usize,
        at: u64,
        bytes: u64,
    ) -> Cuda<()> {
        let span = Span::new(at, bytes);
        sums.spans[index] = span;
        let sum = sums.device(index);
        let host = sums.host.slot(index).host_ptr();
        let doublings = self.rows_each(span.rows).trailing_zeros();
        let rows_each = 1u64 << doublings;
        let warps = span.rows.div_ceil(rows_each).max(1);
        let powers = self.powers(doublings, warps as usize)?;
        let blocks = warps.div_ceil(u64::from(WARPS)) as u32;
        let arguments = [at, bytes, rows_each, self.tables.address(), powers, sum];
        // SAFETY: the kernel takes these; sum and slot are this launch's; the rest is the caller's promise.
        unsafe {
            stream.set_bytes(sum, 0, SUM_BYTES)?;
            stream.launch(&self.kernel, blocks, THREADS, &arguments)?;
            stream.copy_to_host(host, sum, SUM_BYTES)
        }
    }

    /// Waits for the checksum of device memory, which its owner leaves alone meanwhile. Both of its ends must be this
    /// device's.
    pub fn checksum(&mut self, stream: &Stream, at: u64, bytes: u64) -> Result<u32, Error> {
        let gpu = self.device.index();
        let is_ours = |at: u64| self.device.owner_of(at) == Some(gpu);
        let last = at.checked_add(bytes.saturating_sub(1));
        if bytes > 0 && !(is_ours(at) && last.is_some_and(is_ours)) {
            let asked = format!("CRC32C of {bytes} bytes at {at:#x}");
            return Err(Error::request(
                asked,
                format!("that isn't memory of GPU {gpu}"),
                "an array on that GPU",
            ));
        }
        let mut sums = Sums::new(&self.device, 1)?;
        // SAFETY: this device's memory, only read, and a stream that is synchronised; a hole in its midst is an error
        // of the device.
        let done = unsafe { self.queue(stream, &mut sums, 0, at, bytes) }.and_then(|()| stream.synchronize());
        let asked = format!("CRC32C of {bytes} bytes on GPU {}", self.device.index());
        done.map_err(|why| Error::run(asked, why.to_string(), "nvidia-smi; dmesg | tail"))?;
        Ok(sums.checksum(0))
    }

    /// A power of two, so that few tables of powers are needed.
    fn rows_each(&self, rows: u64) -> u64 {
        rows.div_ceil(self.warps_max).max(ROWS_OF_A_WARP_MIN).next_power_of_two()
    }

    /// Returns the address of the table that has, for each warp, the multiplier for the rows behind its own.
    fn powers(&mut self, doublings: u32, warps: usize) -> Cuda<u64> {
        let index = doublings as usize;
        if self.powers.len() <= index {
            self.powers.resize_with(index + 1, || None);
        }
        if let Some(table) = self.powers[index].as_ref().filter(|t| t.bytes() >= warps * size_of::<u32>()) {
            return Ok(table.address());
        }
        // Work that is queued may still read the shorter one: freeing waits for it.
        let step = shift(ROW_BYTES << doublings);
        let powers = std::iter::successors(Some(shift(0)), |power| Some(product(*power, step)));
        let words: Vec<u32> = powers.take(warps.next_power_of_two()).collect();
        Ok(self.powers[index].insert(on_device(&self.device, &words)?).address())
    }
}

fn on_device(device: &Arc<Device>, words: &[u32]) -> Cuda<DeviceMemory> {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let memory = device.allocate(bytes.len())?;
    device.write(memory.address(), &bytes)?;
    Ok(memory)
}

fn no_memory(device: &Device, why: &crate::gpu::cuda::CudaError) -> Error {
    Error::machine(format!("tables of CRC32C on GPU {}", device.index()), why.to_string(), "nvidia-smi")
}
