//! The slots of a test: an engine arena whose bytes the test may look at while
//! no I/O owns them.

use forebay_engine::arena::{Arena, Mem};
use forebay_engine::reactor::Reactor;
use forebay_model::job::Pages;

/// What a slot holds before a read: a byte that no test writes on purpose.
pub const UNTOUCHED: u8 = 0xEE;

pub struct Slots(Arena);

impl Slots {
    pub fn new(count: usize, bytes_each: usize) -> Slots {
        Slots(Arena::new(count, bytes_each, Pages::Small).unwrap())
    }

    /// False where the locked-memory limit forbids it; I/Os then pin their own pages.
    pub fn register(&mut self, reactor: &mut Reactor) -> bool {
        reactor.register_arena(&mut self.0).is_ok()
    }

    pub fn arena(&self) -> &Arena {
        &self.0
    }

    pub fn mem(&self, index: usize) -> Mem {
        self.0.slot(index)
    }

    /// Fills the slot with `bytes` and the rest of it with `UNTOUCHED`. Only for a slot without an I/O.
    pub fn set(&mut self, index: usize, bytes: &[u8]) {
        assert!(bytes.len() <= self.0.slot_bytes());
        let whole = self.0.slot_bytes();
        // SAFETY: the slot is `slot_bytes` long, inside the arena, and the caller has no I/O on it.
        let slot = unsafe { std::slice::from_raw_parts_mut(self.mem(index).host_ptr(), whole) };
        slot[..bytes.len()].copy_from_slice(bytes);
        slot[bytes.len()..].fill(UNTOUCHED);
    }

    /// The whole slot. Only for a slot without an I/O.
    pub fn get(&self, index: usize) -> Vec<u8> {
        // SAFETY: as in `set`; the bytes are copied before anything else can write to them.
        unsafe { std::slice::from_raw_parts(self.mem(index).host_ptr(), self.0.slot_bytes()) }.to_vec()
    }
}
