//! Slots of memory for batches: lent for as long as anything refers to a batch, and filled again once what used it on a GPU is
//! done.

use crate::by_cufile::ByCufile;
use crate::kept::KeptMemory;
use crate::{devices, Address};
use forebay_io::{CuFileBuffer, Cuda, CudaDevice, CudaEvent, CudaStream, DeviceMemory, Mem, PinnedMemory};
use forebay_model::job::Pages;
use forebay_model::Error;
use std::sync::{Arc, Mutex, MutexGuard};

/// A loader goes on with so many: one in use, one that is asked for, and one ahead.
const SLOTS_MIN: usize = 3;

/// Where batches lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    Host,
    /// Host memory that is pinned for this GPU.
    Pinned(u32),
    Gpu(u32),
}

impl Memory {
    /// The GPU that batches lie on.
    pub fn gpu(self) -> Option<u32> {
        match self {
            Memory::Gpu(gpu) => Some(gpu),
            Memory::Host | Memory::Pinned(_) => None,
        }
    }

    pub fn name(self) -> String {
        match self {
            Memory::Host => "host".into(),
            Memory::Pinned(_) => "pinned".into(),
            Memory::Gpu(gpu) => format!("gpu:{gpu}"),
        }
    }
}

/// Owner of a slot's memory.
#[allow(dead_code, reason = "held for its end")]
enum SlotMemory {
    Host(KeptMemory),
    /// Unpinned before another gets it.
    Pinned(PinnedMemory, KeptMemory),
    /// Where cuFile knows it, it forgets it first.
    Gpu(Option<CuFileBuffer>, DeviceMemory),
}

struct Slot {
    #[allow(dead_code, reason = "held for its end")]
    held: SlotMemory,
    place: Address,
    /// Work of those who used what lay here before, which must end before it is written to.
    after: Vec<CudaEvent>,
}

impl Slot {
    fn is_free(&self) -> bool {
        self.after.iter().all(|event| event.is_done().unwrap_or(true))
    }
}

#[derive(Default)]
struct ShelfState {
    free: Vec<Slot>,
    made: usize,
    /// There was no memory for another.
    no_more: bool,
}

pub(super) struct Shelf {
    memory: Memory,
    device: Option<Arc<CudaDevice>>,
    slot_bytes: usize,
    limit_bytes: usize,
    state: Mutex<ShelfState>,
    /// Is told of the GPU's memory. The slots go before it.
    cufile: Option<Arc<ByCufile>>,
}

pub(super) enum Taken {
    Slot(Lease),
    /// All are lent or still used by a GPU, and no more may be made: one is back, whose work hasn't ended.
    Busy,
    /// All that may be made are lent.
    None,
}

impl Shelf {
    pub(super) fn new(
        memory: Memory,
        slot_bytes: usize,
        limit_bytes: usize,
        cufile: Option<Arc<ByCufile>>,
    ) -> Result<Arc<Shelf>, Error> {
        let device = match memory {
            Memory::Host => None,
            Memory::Pinned(gpu) | Memory::Gpu(gpu) => Some(devices::device(gpu)?),
        };
        Ok(Arc::new(Shelf { memory, device, slot_bytes, limit_bytes, state: Mutex::default(), cufile }))
    }

    fn state(&self) -> MutexGuard<'_, ShelfState> {
        self.state.lock().expect("no holder panics")
    }

    pub(super) fn memory(&self) -> Memory {
        self.memory
    }

    /// Bytes of all slots that there are.
    pub(super) fn bytes(&self) -> usize {
        self.state().made * self.slot_bytes
    }

    /// A slot that may be written to once its `after` have passed, which the GPU itself waits for where it writes.
    pub(super) fn take(self: &Arc<Self>) -> Result<Taken, Error> {
        let mut state = self.state();
        // cuFile waits for no event of a GPU.
        let waits_itself = matches!(self.memory, Memory::Gpu(_)) && self.cufile.is_none();
        // The one that came back last is in the caches still.
        let at = state.free.iter().rposition(|slot| waits_itself || slot.is_free());
        if let Some(at) = at {
            let slot = state.free.remove(at);
            return Ok(Taken::Slot(self.lend(slot)));
        }
        let all_there = if state.free.is_empty() { Taken::None } else { Taken::Busy };
        if state.no_more || (state.made + 1).saturating_mul(self.slot_bytes) > self.limit_bytes {
            return Ok(all_there);
        }
        let slot = match self.make(state.made) {
            Ok(slot) => slot,
            // Fewer are read ahead, then.
            Err(_) if state.made >= SLOTS_MIN => {
                state.no_more = true;
                return Ok(all_there);
            }
            Err(error) => return Err(error),
        };
        state.made += 1;
        Ok(Taken::Slot(self.lend(slot)))
    }

    /// The slot that came back first, once its work has ended. Only where `take` said that there is one.
    pub(super) fn wait_for_one(self: &Arc<Self>) -> Result<Arc<Lease>, Error> {
        let slot = self.state().free.remove(0);
        for event in &slot.after {
            let _ = event.synchronize();
        }
        Ok(Arc::new(self.lend(slot)))
    }

    fn lend(self: &Arc<Self>, slot: Slot) -> Lease {
        Lease {
            place: slot.place,
            slot: Mutex::new(Some(slot)),
            used_on: Mutex::default(),
            shelf: self.clone(),
        }
    }

    /// `made`: slots that there are already.
    fn make(&self, made: usize) -> Result<Slot, Error> {
        let host = || -> Result<(KeptMemory, Address), Error> {
            let memory =
                KeptMemory::take(self.slot_bytes, Pages::Auto).map_err(|e| self.no_memory(made, &e.found))?;
            let Mem::Host { at, .. } = memory.slot(0) else { unreachable!("an arena is host memory") };
            Ok((memory, Address::Host(at.as_ptr() as u64)))
        };
        let (held, place) = match (self.memory, &self.device) {
            (Memory::Gpu(gpu), Some(device)) => {
                let memory =
                    device.allocate(self.slot_bytes).map_err(|why| self.no_memory(made, &why.to_string()))?;
                let at = memory.address();
                let known = self.cufile.as_ref().and_then(|cufile| cufile.register(&memory));
                (SlotMemory::Gpu(known, memory), Address::Device { gpu, at })
            }
            (Memory::Pinned(_), Some(device)) => {
                let (memory, place) = host()?;
                let pinned = device.pin(&memory).map_err(|e| self.no_memory(made, &e.found))?;
                (SlotMemory::Pinned(pinned, memory), place)
            }
            _ => {
                let (memory, place) = host()?;
                (SlotMemory::Host(memory), place)
            }
        };
        Ok(Slot { held, place, after: Vec::new() })
    }

    fn no_memory(&self, made: usize, why: &str) -> Error {
        let asked = format!("{} bytes of {} memory for a batch", self.slot_bytes, self.memory.name());
        let found = format!("{why}; {made} batches are there");
        Error::machine(
            asked,
            found,
            "a smaller batch_size or prefetch; ulimit -l unlimited for device=\"pinned\"",
        )
    }

    /// The error of a consumer that keeps all batches.
    pub(super) fn is_empty(&self, prefetch: usize) -> Error {
        let made = self.state().made;
        let limit = self.limit_bytes;
        let found = format!(
            "the program keeps {made} batches of {} bytes, and pin_limit allows {limit} bytes",
            self.slot_bytes
        );
        let next = (made + prefetch + 2).saturating_mul(self.slot_bytes);
        Error::request(
            "another batch",
            found,
            format!("del batch once it is used, batch.copy(), or pin_limit={next}"),
        )
    }
}

/// The memory of one batch: goes back to its shelf when the last reference is dropped.
pub struct Lease {
    place: Address,
    slot: Mutex<Option<Slot>>,
    /// Streams of the GPU whose work may read it.
    used_on: Mutex<Vec<u64>>,
    shelf: Arc<Shelf>,
}

impl Lease {
    pub fn place(&self) -> Address {
        self.place
    }

    pub fn memory(&self) -> Memory {
        self.shelf.memory
    }

    /// Notes a stream whose work reads the batch: its memory isn't written to before what it was given until the last
    /// reference goes has ended.
    pub fn note_stream(&self, stream: u64) {
        let mut used = self.used_on.lock().expect("no holder panics");
        if !used.contains(&stream) {
            used.push(stream);
        }
    }

    /// Events that must pass before the slot is written to, for one request: taken by the first, which is ordered before the
    /// others by its own stream or not at all. For each request anew.
    pub(super) fn after(&self) -> Vec<CudaEvent> {
        let slot = self.slot.lock().expect("no holder panics");
        let (Some(slot), Some(device)) = (slot.as_ref(), &self.shelf.device) else { return Vec::new() };
        if slot.after.is_empty() || !matches!(self.shelf.memory, Memory::Gpu(_)) {
            return Vec::new();
        }
        let again = || -> Cuda<CudaEvent> {
            let stream = CudaStream::on(device)?;
            for event in &slot.after {
                stream.wait_for(event)?;
            }
            let event = CudaEvent::on(device)?;
            stream.record(&event).map(|()| event)
        };
        match again() {
            Ok(event) => vec![event],
            Err(_) => {
                // Whatever the driver says, nothing may be written too early.
                slot.after.iter().for_each(|event| _ = event.synchronize());
                Vec::new()
            }
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let Some(mut slot) = self.slot.get_mut().ok().and_then(Option::take) else { return };
        slot.after.clear();
        if let Some(device) = &self.shelf.device {
            let streams = std::mem::take(self.used_on.get_mut().expect("no holder panics"));
            // Of pinned memory nobody says which stream copies from it: the default one comes after all that block.
            let default =
                (self.shelf.memory == Memory::Pinned(device.index()) && streams.is_empty()).then_some(0);
            for handle in streams.into_iter().chain(default) {
                let stream = CudaStream::borrowed(device, handle);
                let marked = CudaEvent::on(device).and_then(|event| stream.record(&event).map(|()| event));
                match marked {
                    Ok(event) => slot.after.push(event),
                    // A stream that has gone has no work left that would run.
                    Err(_) => continue,
                }
            }
        }
        let mut state = self.shelf.state();
        state.free.push(slot);
    }
}
