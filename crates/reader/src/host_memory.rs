//! Memory of the host that its owner has mapped, lent to a GPU: what a GPU writes there by itself costs no processor's time.

#![allow(unsafe_code, reason = "filling memory that Python lends, by address")]

use super::devices;
use forebay_io::{
    monotonic_now, Arena, Cuda, CudaDevice, CudaError, CudaEvent, CudaStream, DeviceMemory, PinnedMemory,
    RegisteredMemory, RowPiece, RowScatter, ROW_PIECE_BYTES,
};
use forebay_model::job;
use forebay_model::Error;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Pieces of a launch: enough for milliseconds of the link.
const PIECES_MAX: usize = 8192;
/// Windows that are registered one by one: each call of the driver waits for one at most.
const WINDOW_BYTES: usize = 64 << 20;
const NAP: Duration = Duration::from_micros(50);
const NAP_MAX: Duration = Duration::from_millis(1);

/// A range of memory that a GPU may write to, until this is dropped. Its owner keeps it mapped as long.
pub struct HostMemory {
    /// They end first.
    launches: Mutex<Launches>,
    _registered: Vec<RegisteredMemory>,
    device: Arc<CudaDevice>,
    at: u64,
    bytes: usize,
}

struct Launches {
    // Field order is drop order: the pin goes before what it pins.
    stream: CudaStream,
    _pin: PinnedMemory,
    list: Arena,
    there: DeviceMemory,
    kernel: RowScatter,
}

// SAFETY: one thread at a time uses them, by the lock.
unsafe impl Send for Launches {}

impl HostMemory {
    /// Lends `bytes` at `at`, both whole pages.
    ///
    /// # Errors
    /// `Machine`: the driver refuses, or the GPU doesn't write to memory where the host has it.
    ///
    /// # Safety
    /// The memory stays mapped, for reading and writing, until this is dropped.
    pub unsafe fn lend(gpu: u32, at: u64, bytes: usize) -> Result<HostMemory, Error> {
        let device = devices::device(gpu)?;
        let asked = || format!("{bytes} bytes of host memory for GPU {gpu}");
        if !device.reads_registered() {
            let found = "it doesn't reach registered memory at the host's addresses";
            return Err(Error::machine(asked(), found, "path=\"bounce\""));
        }
        let refused = |why: CudaError| Error::machine(asked(), why.to_string(), "ulimit -l unlimited");
        let mut registered = Vec::new();
        for begin in (0..bytes).step_by(WINDOW_BYTES) {
            let length = WINDOW_BYTES.min(bytes - begin);
            // SAFETY: the caller's promise.
            registered.push(
                unsafe { device.register((at as usize + begin) as *mut u8, length, false) }
                    .map_err(refused)?,
            );
        }
        let list = Arena::new(1, PIECES_MAX * ROW_PIECE_BYTES, job::Pages::Small)?;
        let launches = Launches {
            stream: CudaStream::on(&device).map_err(refused)?,
            _pin: device.pin(&list)?,
            there: device.slots(1, list.slot_bytes())?,
            list,
            kernel: RowScatter::open(&device)?,
        };
        Ok(HostMemory { launches: Mutex::new(launches), _registered: registered, device, at, bytes })
    }

    /// Has the GPU copy `bytes_each` from each of its addresses `from` to byte `to` of this memory, after `after`; waits until
    /// all is there.
    ///
    /// # Errors
    /// The GPU failed; or one of them doesn't lie inside.
    pub fn fill(
        &self,
        from: &[u64],
        to: &[u64],
        bytes_each: usize,
        after: &[CudaEvent],
    ) -> Result<(), Error> {
        let inside = |to: &u64| to.checked_add(bytes_each as u64).is_some_and(|end| end <= self.bytes as u64);
        if from.len() != to.len() || !to.iter().all(inside) {
            let found = format!("it has {} bytes", self.bytes);
            return Err(Error::request("pieces of memory that was lent to a GPU", found, "pieces inside"));
        }
        let launches = self.launches.lock().expect("no holder panics");
        let pieces: Vec<RowPiece> = from
            .iter()
            .zip(to)
            .map(|(from, to)| RowPiece { from: *from, to: self.at + to, bytes: bytes_each as u64 })
            .collect();
        self.launched(&launches, &pieces, bytes_each, after).map_err(|why| {
            let next = "if the CUDA context is gone, a new process; forebay doctor";
            Error::run(format!("copy from GPU {}", self.device.index()), why.to_string(), next)
        })
    }

    fn launched(
        &self,
        launches: &Launches,
        pieces: &[RowPiece],
        bytes_each: usize,
        after: &[CudaEvent],
    ) -> Cuda<()> {
        let Launches { stream, list, there, kernel, .. } = launches;
        after.iter().try_for_each(|event| stream.wait_for(event))?;
        let event = CudaEvent::on(&self.device)?;
        for some in pieces.chunks(PIECES_MAX) {
            let at = list.slot(0).host_ptr();
            // SAFETY: the list has room for them and no launch reads it any more; the places lie in memory that was lent, and
            // what is copied is its owner's promise.
            unsafe {
                std::ptr::copy_nonoverlapping(some.as_ptr(), at.cast::<RowPiece>(), some.len());
                stream.copy_to_device(there.address(), at, some.len() * ROW_PIECE_BYTES)?;
                kernel.queue(stream, there.address(), some.len() as u64, bytes_each as u64)?;
            }
            stream.record(&event)?;
            await_asleep(&event)?;
        }
        Ok(())
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        // Unregistering waits for copies, but not for kernels.
        if let Ok(launches) = self.launches.get_mut() {
            let _ = launches.stream.synchronize();
        }
    }
}

fn await_asleep(event: &CudaEvent) -> Cuda<()> {
    let began = monotonic_now();
    while !event.is_done()? {
        std::thread::sleep((began.elapsed() / 4).clamp(NAP, NAP_MAX));
    }
    Ok(())
}
