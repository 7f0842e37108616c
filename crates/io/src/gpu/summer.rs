//! CRC32C of bytes that come from the host, computed in GPU memory: a ring of
//! pinned slots, each copied and summed on one stream while the next is filled.

use super::cuda::{Cuda, Device, DeviceMemory, Event, Pinned, Stream};
use super::kernels::{Crc32c, Sums};
use crate::arena::Arena;
use forebay_model::job::Pages;
use forebay_model::Error;
use std::sync::Arc;
use std::time::Duration;

/// Between looks at a copy that isn't done: an event that is waited for costs more than this.
const NAP: Duration = Duration::from_micros(40);

/// Caller's name of a slot's bytes, and their checksum.
pub type Summed = (usize, u32);

/// A slot that was sent: what the caller called it.
struct Sent {
    tag: usize,
    event: Event,
}

pub struct Summer {
    // Field order is drop order, after `Drop` has waited for the stream: the pin goes before what it pins.
    sent: Vec<Option<Sent>>,
    spare: Vec<Event>,
    stream: Stream,
    crc: Crc32c,
    sums: Sums,
    memory: DeviceMemory,
    _pin: Pinned,
    slots: Arena,
    next: usize,
}

impl Summer {
    pub fn open(device: &Arc<Device>, slots: usize, slot_bytes: usize) -> Result<Summer, Error> {
        let crc = Crc32c::open(device)?;
        let arena = Arena::new(slots, slot_bytes, Pages::Auto)?;
        let pin = device.pin(&arena)?;
        let refused = |why: super::cuda::CudaError| {
            Error::machine(format!("a stream on GPU {}", device.index()), why.to_string(), "nvidia-smi")
        };
        Ok(Summer {
            sent: (0..slots).map(|_| None).collect(),
            spare: (0..slots).map(|_| Event::on(device)).collect::<Cuda<_>>().map_err(refused)?,
            stream: Stream::on(device).map_err(refused)?,
            crc,
            sums: Sums::new(device, slots)?,
            memory: device.slots(slots, arena.slot_bytes())?,
            _pin: pin,
            slots: arena,
            next: 0,
        })
    }

    /// The slot to fill next; before that, the tag and checksum of what it held, once the device has it.
    pub fn slot(&mut self) -> Cuda<(Option<Summed>, &mut [u8])> {
        let before = self.ended(self.next)?;
        let bytes = self.slots.slot_bytes();
        // SAFETY: the slot is ours, and no copy from it is under way.
        let slot = unsafe { std::slice::from_raw_parts_mut(self.slots.slot(self.next).host_ptr(), bytes) };
        Ok((before, slot))
    }

    /// Sends the first `bytes` of the slot on its way. Its checksum comes back under `tag`.
    pub fn send(&mut self, bytes: usize, tag: usize) -> Cuda<()> {
        assert!(bytes <= self.slots.slot_bytes(), "{bytes} bytes of a slot of {}", self.slots.slot_bytes());
        let index = self.next;
        let at = self.memory.address() + (index * self.slots.slot_bytes()) as u64;
        let from = self.slots.slot(index).host_ptr();
        // SAFETY: both ends are slot `index`, which `slot` gave out when nothing used it; `ended` waits for the event.
        unsafe {
            self.stream.copy_to_device(at, from, bytes)?;
            self.crc.queue(&self.stream, &mut self.sums, index, at, bytes as u64)?;
        }
        let event = match self.spare.pop() {
            Some(event) => event,
            None => Event::on(self.stream.device())?,
        };
        self.stream.record(&event)?;
        self.sent[index] = Some(Sent { tag, event });
        self.next = (index + 1) % self.sent.len();
        Ok(())
    }

    /// Returns the checksums still under way, once the device has them.
    pub fn rest(&mut self) -> Cuda<Vec<Summed>> {
        let mut rest = Vec::new();
        for index in 0..self.sent.len() {
            rest.extend(self.ended(index)?);
        }
        Ok(rest)
    }

    /// Waits for what slot `index` holds.
    fn ended(&mut self, index: usize) -> Cuda<Option<Summed>> {
        let Some(sent) = self.sent[index].take() else { return Ok(None) };
        while !sent.event.is_done()? {
            std::thread::sleep(NAP);
        }
        self.spare.push(sent.event);
        Ok(Some((sent.tag, self.sums.checksum(index))))
    }
}

impl Drop for Summer {
    fn drop(&mut self) {
        // Copies and kernels end before the slots go.
        let _ = self.stream.synchronize();
    }
}
