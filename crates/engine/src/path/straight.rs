//! Reads of many files straight into GPUs, past any slot of the host: what a whole
//! run has for that, and what each worker makes queues by. Files are opened, made
//! known, read and let go of while the run goes on.

use super::gds::{Base, Session};
use super::mapped::Registry;
use crate::gpu::cuda::Device;
use crate::queue::Queue;
use crate::reactor::Reactor;
use crate::source::file::FileTarget;
use forebay_model::job::JobSpec;
use forebay_model::Error;
use std::sync::Arc;

/// What a whole run has to read files into GPUs by one path.
pub trait Means: Send + Sync {
    /// Called once, before any file is made known. `probe`: a file like all others.
    ///
    /// # Errors
    /// The path can't serve one of the GPUs.
    fn begin(&self, _probe: &FileTarget, _devices: &[Arc<Device>]) -> Result<(), Error> {
        Ok(())
    }

    /// Bytes below which a file goes through the host's slots instead.
    fn bytes_min(&self) -> u64 {
        0
    }

    /// No read crosses a multiple of so many bytes.
    fn window_bytes(&self) -> Option<u64> {
        None
    }

    /// Makes a file known that is to be read into this GPU.
    ///
    /// # Errors
    /// The path's library refuses it.
    fn hold(&self, _file: &FileTarget, _device: &Arc<Device>) -> Result<(), Error> {
        Ok(())
    }

    /// The file was closed, or is no longer what it was.
    fn forget(&self, file: &FileTarget);

    /// What a worker has for it, on the worker's thread.
    ///
    /// # Errors
    /// Memory, or the path's library, can't be had.
    fn lanes(&self, needs: &LaneNeeds, reactor: &mut Reactor) -> Result<Box<dyn Lanes>, Error>;

    /// What was registered of the page cache, for the record.
    fn registry(&self) -> Option<&Arc<Registry>> {
        None
    }

    /// cuFile, for the record, and for whoever allocates memory that it is to know.
    fn session(&self) -> Option<&Arc<Session>> {
        None
    }
}

/// What a worker's queues must carry.
pub struct LaneNeeds<'a> {
    pub job: &'a JobSpec,
    /// The GPUs in turn, and what of their memory cuFile knows.
    pub devices: Vec<(&'a Arc<Device>, &'a Base)>,
    /// Reads in flight of all queues together.
    pub depth: u32,
    pub io_bytes: u64,
}

/// What a worker's queues share.
pub trait Lanes {
    /// A queue over a file that is known, whose reads end in the memory of the GPU with this turn.
    ///
    /// # Errors
    /// The file can't be mapped, or isn't known.
    fn queue(&self, file: &FileTarget, turn: usize, reactor: &mut Reactor) -> Result<Box<dyn Queue>, Error>;
}
