//! Memory that parts of files are read into before rows of them are copied to their places.

use forebay_io::Arena;
use forebay_model::job::Pages;
use forebay_model::Error;
use std::sync::{Arc, Mutex};

/// Memory that nobody copies from, for the next that is read.
#[derive(Clone, Default)]
pub(super) struct Spare(Arc<Mutex<Vec<Arena>>>);

impl Spare {
    /// Memory of so many bytes: one that is there, if it is long enough.
    pub(super) fn take(&self, bytes: usize) -> Result<Arc<Staged>, Error> {
        let kept = self.0.lock().expect("no holder panics").pop();
        let arena = match kept.filter(|arena| arena.slot_bytes() >= bytes) {
            Some(arena) => arena,
            None => Arena::new(1, bytes, Pages::Thp)?,
        };
        let (base, bytes) = (arena.slot(0).host_ptr() as usize, arena.slot_bytes());
        Ok(Arc::new(Staged { arena: Mutex::new(Some(arena)), base, bytes, spare: self.clone() }))
    }

    pub(super) fn bytes(&self) -> usize {
        self.0.lock().expect("no holder panics").iter().map(Arena::slot_bytes).sum()
    }
}

/// Memory that goes back to the others when nobody copies from it any more.
pub(super) struct Staged {
    arena: Mutex<Option<Arena>>,
    base: usize,
    bytes: usize,
    spare: Spare,
}

impl Staged {
    pub(super) fn base(&self) -> *const u8 {
        self.base as *const u8
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if let Ok(mut spare) = self.spare.0.lock() {
            spare.extend(self.arena.get_mut().ok().and_then(Option::take));
        }
    }
}
