//! Memory in which batches stay until their step takes them: of the host or of GPUs, in pieces that each hold one
//! read. Pieces are made when they are first needed and used again; no more are ever out than batches that may be read
//! ahead.

use forebay_io::{Arena, Copier, CuFileBuffer, CudaCopier, CudaDevice, DeviceMemory, Mem, PinnedMemory};
use forebay_model::job::Pages;
use forebay_model::training::EmulateSpec;
use forebay_model::Error;
use forebay_storage::{CuFileSession, DirectBase, HostCopier};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

/// Memory is asked for in blocks of about this.
const BLOCK_BYTES: usize = 4 << 20;
/// Block size of memory that is registered with cuFile, which registers only so many.
const CUFILE_BLOCK_BYTES: usize = 64 << 20;

pub(crate) struct Destination {
    /// Empty: host memory.
    devices: Vec<Arc<CudaDevice>>,
    piece_bytes: usize,
    pool: Mutex<Pool>,
    name: String,
    /// Registered base addresses by GPU, and their registrar.
    bases: Vec<DirectBase>,
    session: Option<Arc<CuFileSession>>,
}

#[derive(Default)]
struct Pool {
    /// By the GPU's turn.
    free: Vec<Vec<Mem>>,
    /// Batches that wait for their step, in any order.
    held: VecDeque<(u32, usize, Mem)>,
    arenas: Vec<Arena>,
    // What points to memory goes before it.
    buffers: Vec<CuFileBuffer>,
    memory: Vec<DeviceMemory>,
    bytes: u64,
}

impl Destination {
    /// The GPUs that batches end on; none of them where they don't.
    pub(crate) fn devices(spec: &EmulateSpec) -> Result<Vec<Arc<CudaDevice>>, Error> {
        spec.gpus().into_iter().map(CudaDevice::open).collect()
    }

    /// None where what was read and checked is let go of. `session`: reads come by cuFile, which is to know the memory.
    pub(crate) fn new(
        spec: &EmulateSpec,
        devices: Vec<Arc<CudaDevice>>,
        piece_bytes: usize,
        session: Option<Arc<CuFileSession>>,
    ) -> Option<Destination> {
        if devices.is_empty() && spec.destination != "host" {
            return None;
        }
        let pool = Pool { free: vec![Vec::new(); devices.len().max(1)], ..Pool::default() };
        let bases = devices.iter().map(|_| DirectBase::default()).collect();
        let name = spec.destination.clone();
        Some(Destination { devices, piece_bytes, pool: Mutex::new(pool), name, bases, session })
    }

    /// The GPU of a turn, and what of its memory cuFile knows.
    pub(crate) fn device(&self, turn: usize) -> Option<(&Arc<CudaDevice>, &DirectBase)> {
        self.devices.get(turn).zip(self.bases.get(turn))
    }

    /// GPUs, or host memory: how many take turns.
    pub(crate) fn turns(&self) -> usize {
        self.devices.len().max(1)
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn feeds_gpu(&self) -> bool {
        !self.devices.is_empty()
    }

    /// Accelerators take turns at the GPUs.
    pub(crate) fn turn_of(&self, rank: u32) -> usize {
        rank as usize % self.turns()
    }

    /// A worker's copiers, one per turn, to be used by the thread that asks.
    pub(crate) fn copiers(&self) -> Result<Vec<Box<dyn Copier>>, Error> {
        if self.devices.is_empty() {
            return Ok(vec![Box::new(HostCopier::default())]);
        }
        let copier =
            |device: &Arc<CudaDevice>| Ok(Box::new(CudaCopier::new(device.clone())?) as Box<dyn Copier>);
        self.devices.iter().map(copier).collect()
    }

    /// Pins a worker's slots for all GPUs.
    pub(crate) fn pin(&self, slots: &Arena) -> Result<Option<PinnedMemory>, Error> {
        self.devices.first().map(|device| device.pin(slots)).transpose()
    }

    /// A free piece.
    pub(crate) fn take(&self, turn: usize) -> Result<Mem, Error> {
        let mut pool = self.pool.lock().expect("nothing panics while it holds the pool");
        if let Some(piece) = pool.free[turn].pop() {
            return Ok(piece);
        }
        let block_bytes = if self.session.is_some() { CUFILE_BLOCK_BYTES } else { BLOCK_BYTES };
        let count = (block_bytes / self.piece_bytes).max(1);
        let pieces: Vec<Mem> = match self.devices.get(turn) {
            Some(device) => {
                let memory = device.slots(count, self.piece_bytes).map_err(too_much)?;
                let pieces = (0..count).map(|i| memory.slot(i)).collect();
                pool.buffers.extend(self.tell_cufile(turn, &memory));
                pool.memory.push(memory);
                pieces
            }
            None => {
                let arena = Arena::new(count, self.piece_bytes, Pages::Small).map_err(too_much)?;
                let pieces = (0..count).map(|i| arena.slot(i)).collect();
                pool.arenas.push(arena);
                pieces
            }
        };
        pool.bytes += (count * self.piece_bytes) as u64;
        pool.free[turn].extend(pieces);
        Ok(pool.free[turn].pop().expect("some were made"))
    }

    /// Registers memory with cuFile; None where that is refused: then cuFile reads by memory of its own.
    fn tell_cufile(&self, turn: usize, memory: &DeviceMemory) -> Option<CuFileBuffer> {
        let session = self.session.as_ref()?;
        match session.driver().register_buffer(memory) {
            Ok(buffer) => {
                self.bases[turn].add(memory.address(), memory.bytes() as u64);
                Some(buffer)
            }
            Err(e) => {
                session.stays_unregistered(&e);
                None
            }
        }
    }

    /// A piece is filled, and belongs to a batch.
    pub(crate) fn keep(&self, batch: u32, turn: usize, piece: Mem) {
        let mut pool = self.pool.lock().expect("nothing panics while it holds the pool");
        pool.held.push_back((batch, turn, piece));
    }

    /// A piece that nobody wants.
    pub(crate) fn give_back(&self, turn: usize, piece: Mem) {
        self.pool.lock().expect("nothing panics while it holds the pool").free[turn].push(piece);
    }

    /// The steps before `step` took their batches.
    pub(crate) fn taken(&self, step: u32) {
        let mut pool = self.pool.lock().expect("nothing panics while it holds the pool");
        let Pool { free, held, .. } = &mut *pool;
        held.retain(|(batch, turn, piece)| {
            if *batch < step {
                free[*turn].push(*piece);
            }
            *batch >= step
        });
    }

    /// Memory that it came to.
    pub(crate) fn bytes(&self) -> u64 {
        self.pool.lock().expect("nothing panics while it holds the pool").bytes
    }
}

fn too_much(error: Error) -> Error {
    Error { next: "fewer --accelerators, a smaller --prefetch, or --destination drop".into(), ..error }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host() -> Destination {
        let spec = EmulateSpec { destination: "host".into(), ..EmulateSpec::default() };
        Destination::new(&spec, Vec::new(), 1 << 20, None).unwrap()
    }

    // promise: TRA-12
    #[test]
    fn pieces_come_back_when_their_step_took_them() {
        let host = host();
        let pieces: Vec<Mem> = (0..6).map(|_| host.take(0).unwrap()).collect();
        assert_eq!(host.bytes(), 8 << 20);
        for (n, piece) in pieces.iter().enumerate() {
            host.keep(n as u32 / 2, 0, *piece);
        }
        host.taken(2);
        let again: Vec<Mem> = (0..6).map(|_| host.take(0).unwrap()).collect();
        assert!(pieces[..4].iter().all(|piece| again.contains(piece)));
        assert!(pieces[4..].iter().all(|piece| !again.contains(piece)));
        assert_eq!(host.bytes(), 8 << 20, "nothing new was needed");
    }

    #[test]
    fn what_is_dropped_needs_no_memory() {
        let spec = EmulateSpec::default();
        assert!(Destination::devices(&spec).unwrap().is_empty());
        assert!(Destination::new(&spec, Vec::new(), 4096, None).is_none());
    }
}
