//! Numbers of rows that lie in a GPU's memory, and stay there: checked and copied by a kernel, in the order of their
//! owner's stream, so that whoever changes them afterwards changes nothing here.

#![allow(unsafe_code, reason = "filling memory that Python lends, by address")]

use super::devices;
use super::repeats::{many_repeat, SAMPLE};
use forebay_io::{
    monotonic_now, Cuda, CudaDevice, CudaEvent, CudaStream, DeviceMemory, OrderedRows, RowNumbers,
};
use forebay_model::feed::EpochOrder;
use forebay_model::Error;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

const NUMBER_BYTES: usize = size_of::<u64>();
/// Numbers behind work of their stream that takes longer than this are waited for without a processor.
const SPIN: Duration = Duration::from_micros(50);
const NAP_MAX: Duration = Duration::from_micros(250);
/// Freeing device memory waits for the device, so some of it is kept for the next call.
const SPARE_MAX: usize = 4;

static SPARE: Mutex<Vec<DeviceMemory>> = Mutex::new(Vec::new());

fn spare() -> MutexGuard<'static, Vec<DeviceMemory>> {
    SPARE.lock().expect("no holder panics")
}

/// Frees what is kept for the next call.
pub(super) fn release() {
    spare().clear();
}

/// Numbers as their owner has them.
#[derive(Clone, Copy, Debug)]
pub struct Given {
    pub gpu: u32,
    /// Stream whose queued work writes the numbers.
    pub stream: u64,
    pub at: u64,
    pub bytes_each: usize,
    pub signed: bool,
    pub count: usize,
}

/// A copy of them, 64 bits each.
pub struct GpuNumbers {
    count: usize,
    device: Arc<CudaDevice>,
    /// Count of wrong numbers, then the numbers; None once nobody reads them any more.
    memory: Mutex<Option<DeviceMemory>>,
}

impl GpuNumbers {
    /// None where one is negative, or `limit` or more; where many come twice, whose rows would cross the link as often; or
    /// where there is no compiler for the kernel that looks.
    ///
    /// # Errors
    /// The GPU failed.
    pub fn take(given: &Given, limit: u64) -> Result<Option<GpuNumbers>, Error> {
        let device = devices::device(given.gpu)?;
        let Ok(kernel) = RowNumbers::open(&device) else { return Ok(None) };
        let failed = |why: forebay_io::CudaError| {
            let asked = format!("{} numbers of rows on GPU {}", given.count, given.gpu);
            Error::run(asked, why.to_string(), "if the CUDA context is gone, a new process; forebay doctor")
        };
        let memory = room(&device, (given.count + 1) * NUMBER_BYTES).map_err(failed)?;
        let seen = copy_checked(&kernel, &device, given, limit, memory.address()).map_err(failed)?;
        let there = GpuNumbers { count: given.count, device, memory: Mutex::new(Some(memory)) };
        if seen[0] > 0 || many_repeat(&seen[1..]) {
            there.give_back();
            return Ok(None);
        }
        Ok(Some(there))
    }

    /// Samples of an order, computed on the device: the event after which they are there. `sum`, a device address, grows by their
    /// hash.
    ///
    /// # Errors
    /// The GPU failed.
    pub(super) fn ordered(
        kernel: &OrderedRows,
        stream: &CudaStream,
        order: &EpochOrder,
        (first, count): (u64, usize),
        sum: u64,
    ) -> Cuda<Option<(GpuNumbers, CudaEvent)>> {
        let Some(permutation) = order.permutation() else { return Ok(None) };
        let device = stream.device();
        let memory = room(device, (count + 1) * NUMBER_BYTES)?;
        // SAFETY: the memory has room for the numbers, and nobody else uses it; the sum is its owner's, who holds it while the
        // stream works.
        unsafe {
            stream.set_bytes(sum, 0, NUMBER_BYTES)?;
            let some = (first, count as u64);
            kernel.queue(stream, permutation, some, order.hash_keys(), memory.address(), sum)?;
        }
        let event = CudaEvent::on(device)?;
        stream.record(&event)?;
        let numbers = GpuNumbers { count, device: device.clone(), memory: Mutex::new(Some(memory)) };
        Ok(Some((numbers, event)))
    }

    pub(super) fn len(&self) -> usize {
        self.count
    }

    pub(super) fn gpu(&self) -> u32 {
        self.device.index()
    }

    fn memory(&self) -> MutexGuard<'_, Option<DeviceMemory>> {
        self.memory.lock().expect("no holder panics")
    }

    /// The device address of number `index`, for a request that has not ended.
    pub(super) fn address(&self, index: usize) -> u64 {
        let at = self.memory().as_ref().expect("its request goes on").address();
        at + ((index + 1) * NUMBER_BYTES) as u64
    }

    /// Copies some of them to the host, for who must know them there.
    pub(super) fn read(&self, some: Range<usize>) -> Cuda<Vec<u64>> {
        let mut bytes = vec![0; some.len() * NUMBER_BYTES];
        self.device.read_back(self.address(some.start), &mut bytes)?;
        Ok(words(&bytes))
    }

    /// At the end of its request: nothing on the device reads them any more.
    pub(super) fn give_back(&self) {
        let memory = self.memory().take();
        let mut spare = spare();
        if let Some(memory) = memory.filter(|_| spare.len() < SPARE_MAX) {
            spare.push(memory);
        }
    }
}

fn room(device: &Arc<CudaDevice>, bytes: usize) -> Cuda<DeviceMemory> {
    let mut spare = spare();
    let fits = |memory: &DeviceMemory| memory.device().index() == device.index() && memory.bytes() >= bytes;
    if let Some(at) = spare.iter().position(fits) {
        return Ok(spare.swap_remove(at));
    }
    // Too short ones would only lie there.
    let at = spare.iter().position(|memory| memory.device().index() == device.index());
    drop(at.map(|at| spare.swap_remove(at)));
    drop(spare);
    device.allocate(bytes.next_power_of_two())
}

fn words(bytes: &[u8]) -> Vec<u64> {
    let word = |n: &[u8]| u64::from_ne_bytes(n.try_into().expect("eight bytes"));
    bytes.chunks_exact(NUMBER_BYTES).map(word).collect()
}

/// Copies and checks them; how many are wrong, and the first of them.
fn copy_checked(
    kernel: &RowNumbers,
    device: &Arc<CudaDevice>,
    given: &Given,
    limit: u64,
    to: u64,
) -> Cuda<Vec<u64>> {
    let stream = CudaStream::borrowed(device, given.stream);
    let event = CudaEvent::on(device)?;
    let mut seen = vec![0; (1 + given.count.min(SAMPLE)) * NUMBER_BYTES];
    // SAFETY: `to` has room for the count and the numbers, which nobody else uses; what was given is its owner's promise.
    unsafe {
        stream.set_bytes(to, 0, NUMBER_BYTES)?;
        kernel.queue(&stream, given.at, (given.bytes_each, given.signed), given.count, limit, to)?;
    }
    stream.record(&event)?;
    nap_until(&event)?;
    // SAFETY: the local is there until the stream has passed.
    unsafe { stream.copy_to_host(seen.as_mut_ptr(), to, seen.len())? };
    stream.synchronize()?;
    Ok(words(&seen))
}

/// A copy into memory that isn't pinned would wait with a processor for all that its stream has before it.
fn nap_until(event: &CudaEvent) -> Cuda<()> {
    let began = monotonic_now();
    while !event.is_done()? {
        match began.elapsed() {
            // A sleep would end later.
            waited if waited < SPIN => std::hint::spin_loop(),
            waited => std::thread::sleep((waited / 4).min(NAP_MAX)),
        }
    }
    Ok(())
}
