//! Copiers of a worker's queues: from slots on to a GPU, or within host memory.

#![allow(unsafe_code, reason = "copies between slots of two arenas")]

use super::buffers::parts_of_row;
use crate::source::QueueNeeds;
use forebay_io::{Copier, CudaCopier, CudaDevice, CudaStream, Fault, Mem, Pulling, Scattering};
use forebay_model::Error;
use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

/// Streams that a worker's queues share in turn: a separate one for each of thousands of files would cost more than
/// it gains.
const STREAMS_MAX: usize = 4;

/// I/Os of at least this length are copied one by one unless they are adjacent, or rows of one I/O.
const SCATTERED_BYTES_MAX: u64 = 64 << 10;

/// Creates the copiers of a worker's queues.
pub struct Copiers {
    device: Option<Arc<CudaDevice>>,
    streams: RefCell<Vec<Rc<CudaStream>>>,
    made: Cell<usize>,
    /// Copies many short I/Os by one kernel launch; shared like the streams.
    scattering: OnceCell<Option<Rc<Scattering>>>,
    /// Fetches a single longer one from a slot.
    pulling: OnceCell<Option<Rc<Pulling>>>,
    needs: QueueNeeds,
    /// Rows of each I/O.
    rows: u32,
}

impl Copiers {
    /// For I/Os as `needs` says. Short ones are copied one by one where the GPU can't move them together: where it lacks a
    /// compiler for its kernels, or doesn't read host memory.
    pub fn new(device: Option<&Arc<CudaDevice>>, needs: QueueNeeds) -> Copiers {
        Copiers {
            device: device.cloned(),
            streams: RefCell::default(),
            made: Cell::new(0),
            scattering: OnceCell::new(),
            pulling: OnceCell::new(),
            needs,
            rows: 1,
        }
    }

    /// Each I/O is so many rows, of which long ones are copied in parts.
    pub fn with_rows(self, rows: u32, row_bytes: u64) -> Copiers {
        let parts = if rows > 1 { parts_of_row(row_bytes as u32) } else { 1 };
        Copiers { rows: rows.saturating_mul(parts), ..self }
    }

    fn scattering(&self, device: &Arc<CudaDevice>) -> Option<Rc<Scattering>> {
        let pieces = self.needs.depth as usize * self.rows as usize;
        let short = self.rows > 1 || pieces > 1 && self.needs.io_bytes_max < SCATTERED_BYTES_MAX;
        // Each may lie in two windows of the page cache.
        let pieces = 2 * pieces;
        let made = || if short { Scattering::new(device, pieces).ok().map(Rc::new) } else { None };
        self.scattering.get_or_init(made).clone()
    }

    fn pulling(&self, device: &Arc<CudaDevice>) -> Option<Rc<Pulling>> {
        let takes = Pulling::takes_up_to(self.needs.io_bytes_max);
        let made = || if takes { Pulling::new(device).ok().map(Rc::new) } else { None };
        self.pulling.get_or_init(made).clone()
    }

    pub fn next(&self) -> Result<Box<dyn Copier>, Error> {
        self.made(|copier, device| copier.with_scattering(self.scattering(device)))
    }

    /// Returns a copier for a path that copies all of its bytes from slots, as other workers do at the same time.
    pub(crate) fn next_from_slots(&self) -> Result<Box<dyn Copier>, Error> {
        self.made(|copier, device| {
            copier.with_scattering(self.scattering(device)).with_pulling(self.pulling(device))
        })
    }

    fn made(
        &self,
        finish: impl Fn(CudaCopier, &Arc<CudaDevice>) -> CudaCopier,
    ) -> Result<Box<dyn Copier>, Error> {
        let Some(device) = &self.device else { return Ok(Box::new(HostCopier::default())) };
        let made = self.made.replace(self.made.get() + 1);
        let mut streams = self.streams.borrow_mut();
        let copier = if streams.len() == STREAMS_MAX {
            CudaCopier::on(streams[made % STREAMS_MAX].clone())
        } else {
            let copier = CudaCopier::new(device.clone())?;
            streams.push(copier.stream());
            copier
        };
        Ok(Box::new(finish(copier, device)))
    }
}

/// The destination is host memory: one memcpy by the worker.
#[derive(Default)]
pub struct HostCopier(Vec<u32>);

impl Copier for HostCopier {
    fn start(&mut self, tag: u32, from: Mem, to: Mem, bytes: usize) {
        // SAFETY: both are slots of at least `bytes`, of different arenas, and belong to this I/O until it is reaped.
        unsafe { std::ptr::copy_nonoverlapping(from.host_ptr(), to.host_ptr(), bytes) };
        self.0.push(tag);
    }

    fn reap(&mut self, done: &mut Vec<(u32, Option<Fault>)>) {
        done.extend(self.0.drain(..).map(|tag| (tag, None)));
    }

    fn at_once(&self) -> usize {
        1
    }
}
