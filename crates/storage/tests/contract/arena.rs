//! The slots of a test: an engine arena, or memory of a GPU, whose bytes the
//! test may look at while no I/O owns them.

use forebay_io::{Arena, CudaDevice, DeviceMemory, Mem, Reactor};
use forebay_model::job::Pages;
use std::sync::Arc;

/// Content of a slot before a read: a byte that no test writes on purpose.
pub const UNTOUCHED: u8 = 0xEE;

/// Page by page, since each read of every case asks it of its whole slot, and unoptimised code is slow byte by byte.
pub fn untouched(bytes: &[u8]) -> bool {
    const PAGE: [u8; 4096] = [UNTOUCHED; 4096];
    bytes.chunks(PAGE.len()).all(|chunk| chunk == &PAGE[..chunk.len()])
}

pub struct Slots {
    held: Held,
    slot_bytes: usize,
}

/// Returns a copy of host memory that nobody writes to meanwhile.
#[allow(dead_code)] // the tests of faults look at slots only
pub fn bytes_at(mem: Mem, len: usize) -> Vec<u8> {
    // SAFETY: the caller has that memory for as long, lent by a queue that it keeps.
    unsafe { std::slice::from_raw_parts(mem.host_ptr(), len) }.to_vec()
}

enum Held {
    Host(Arena),
    Gpu(DeviceMemory),
}

impl Slots {
    pub fn new(count: usize, bytes_each: usize) -> Slots {
        let arena = Arena::new(count, bytes_each, Pages::Small).unwrap();
        Slots { slot_bytes: arena.slot_bytes(), held: Held::Host(arena) }
    }

    pub fn on(device: &Arc<CudaDevice>, count: usize, bytes_each: usize) -> Slots {
        let slot_bytes = bytes_each.next_multiple_of(4096);
        Slots { slot_bytes, held: Held::Gpu(device.slots(count, slot_bytes).unwrap()) }
    }

    /// False where the locked-memory limit forbids it; I/Os then pin their own pages.
    pub fn register(&mut self, reactor: &mut Reactor) -> bool {
        match &mut self.held {
            Held::Host(arena) => reactor.register_arena(arena).is_ok(),
            Held::Gpu(_) => false,
        }
    }

    /// Memory of a GPU.
    pub fn gpu_memory(&self) -> &DeviceMemory {
        match &self.held {
            Held::Gpu(memory) => memory,
            Held::Host(_) => panic!("the slots lie in host memory"),
        }
    }

    pub fn arena(&self) -> &Arena {
        match &self.held {
            Held::Host(arena) => arena,
            Held::Gpu(memory) => panic!("{:?} has no arena", memory.device()),
        }
    }

    pub fn mem(&self, index: usize) -> Mem {
        match &self.held {
            Held::Host(arena) => arena.slot(index),
            Held::Gpu(memory) => memory.slot(index),
        }
    }

    /// Fills the slot with `bytes` and the rest of it with `UNTOUCHED`. Only for a slot without an I/O.
    pub fn set(&mut self, index: usize, bytes: &[u8]) {
        assert!(bytes.len() <= self.slot_bytes);
        // `resize` would write one byte at a time.
        let mut whole = vec![0; self.slot_bytes];
        whole.fill(UNTOUCHED);
        whole[..bytes.len()].copy_from_slice(bytes);
        match (&self.held, self.mem(index)) {
            (Held::Gpu(memory), Mem::Device { at, .. }) => memory.device().write(at, &whole).unwrap(),
            (_, mem) => {
                // SAFETY: the slot is `slot_bytes` long, inside the arena, and the caller has no I/O on it.
                let slot = unsafe { std::slice::from_raw_parts_mut(mem.host_ptr(), whole.len()) };
                slot.copy_from_slice(&whole);
            }
        }
    }

    /// The whole slot. Only for a slot without an I/O.
    pub fn get(&self, index: usize) -> Vec<u8> {
        let mut whole = vec![0; self.slot_bytes];
        match (&self.held, self.mem(index)) {
            (Held::Gpu(memory), Mem::Device { at, .. }) => memory.device().read_back(at, &mut whole).unwrap(),
            (_, mem) => {
                // SAFETY: as in `set`; the bytes are copied before anything else can write to them.
                whole.copy_from_slice(unsafe { std::slice::from_raw_parts(mem.host_ptr(), self.slot_bytes) });
            }
        }
        whole
    }
}
