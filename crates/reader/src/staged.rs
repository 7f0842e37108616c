//! Memory that parts of files are read into before rows of them are copied to their places.

#![allow(unsafe_code, reason = "memory that a GPU reads by itself")]

use super::devices;
use super::kept::KeptMemory;
use forebay_io::RegisteredMemory;
use forebay_model::job::Pages;
use forebay_model::Error;
use std::sync::{Arc, Mutex};

/// Memory, pinned where a GPU is to read it. Fields in the order in which they must go.
struct Room {
    pinned: Option<RegisteredMemory>,
    memory: KeptMemory,
}

impl Room {
    fn new(bytes: usize, gpu: Option<u32>) -> Result<Room, Error> {
        let memory = KeptMemory::take(bytes, Pages::Thp)?;
        let (at, bytes) = memory.whole();
        let device = gpu.and_then(|gpu| devices::device(gpu).ok()).filter(|device| device.reads_registered());
        // Refused, its rows are copied by processors.
        // SAFETY: the memory goes after its registration, by the order of the fields.
        let pinned = device.and_then(|device| unsafe { device.register(at.as_ptr(), bytes, false) }.ok());
        Ok(Room { pinned, memory })
    }
}

/// Memory that nobody copies from, for the next that is read.
#[derive(Clone, Default)]
pub(super) struct Spare {
    kept: Arc<Mutex<Vec<Room>>>,
    /// That reads it by itself.
    gpu: Option<u32>,
}

impl Spare {
    pub(super) fn new(gpu: Option<u32>) -> Spare {
        Spare { kept: Arc::default(), gpu }
    }

    /// Memory of so many bytes: one that is there, if it is long enough.
    pub(super) fn take(&self, bytes: usize) -> Result<Arc<Staged>, Error> {
        let kept = self.kept.lock().expect("no holder panics").pop();
        let room = match kept.filter(|room| room.memory.slot_bytes() >= bytes) {
            Some(room) => room,
            None => Room::new(bytes, self.gpu)?,
        };
        let (base, bytes) = (room.memory.slot(0).host_ptr() as usize, room.memory.slot_bytes());
        let gpu = room.pinned.as_ref().and(self.gpu);
        Ok(Arc::new(Staged { room: Mutex::new(Some(room)), base, bytes, gpu, spare: self.clone() }))
    }

    pub(super) fn bytes(&self) -> usize {
        self.kept.lock().expect("no holder panics").iter().map(|room| room.memory.slot_bytes()).sum()
    }
}

/// Memory that goes back to the others when nobody copies from it any more.
pub(super) struct Staged {
    room: Mutex<Option<Room>>,
    base: usize,
    bytes: usize,
    gpu: Option<u32>,
    spare: Spare,
}

impl Staged {
    pub(super) fn base(&self) -> *const u8 {
        self.base as *const u8
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The GPU that may read it by itself.
    pub(super) fn gpu(&self) -> Option<u32> {
        self.gpu
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if let Ok(mut spare) = self.spare.kept.lock() {
            spare.extend(self.room.get_mut().ok().and_then(Option::take));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise: FEED-5
    #[test]
    fn a_window_lies_where_one_lay_that_was_a_few_pages_shorter() {
        let spare = Spare::default();
        let before = spare.take((5 << 20) + 1).unwrap();
        let (base, bytes) = (before.base(), before.bytes());
        drop(before);
        let again = spare.take((5 << 20) + (64 << 10)).unwrap();
        assert_eq!((again.base(), again.bytes()), (base, bytes));
        let longer = spare.take(bytes + 1).unwrap();
        assert!(longer.bytes() > bytes && longer.base() != base);
    }
}
