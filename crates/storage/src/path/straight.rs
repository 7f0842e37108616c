//! Direct reads of many files into GPUs, without host buffers: the resources of a whole run, and of each worker.
//! Files are opened, registered, read and deregistered during the run.

use super::gds::{Base, Session};
use super::mapped::Registry;
use crate::source::file::FileTarget;
use forebay_io::gpu::cuda::Device;
use forebay_io::queue::Queue;
use forebay_io::reactor::Reactor;
use forebay_model::job::JobSpec;
use forebay_model::Error;
use std::sync::Arc;

/// A run's resources for reading files into GPUs on one path.
pub trait Means: Send + Sync {
    /// Called once, before any file is registered. `probe`: a representative file.
    ///
    /// # Errors
    /// The path can't serve one of the GPUs.
    fn begin(&self, _probe: &FileTarget, _devices: &[Arc<Device>]) -> Result<(), Error> {
        Ok(())
    }

    /// Files shorter than this go through host buffers instead.
    fn bytes_min(&self) -> u64 {
        0
    }

    /// No read crosses a multiple of this many bytes.
    fn window_bytes(&self) -> Option<u64> {
        None
    }

    /// Registers a file that is to be read into this GPU.
    ///
    /// # Errors
    /// The path's library refuses it.
    fn hold(&self, _file: &FileTarget, _device: &Arc<Device>) -> Result<(), Error> {
        Ok(())
    }

    /// Called when the file was closed or has changed.
    fn forget(&self, file: &FileTarget);

    /// A worker's resources; called on the worker's thread.
    ///
    /// # Errors
    /// Memory, or the path's library, can't be had.
    fn lanes(&self, needs: &LaneNeeds, reactor: &mut Reactor) -> Result<Box<dyn Lanes>, Error>;

    /// The registrations of the page cache, for the record.
    fn registry(&self) -> Option<&Arc<Registry>> {
        None
    }

    /// cuFile, for the record, and for whoever allocates memory that it is to know.
    fn session(&self) -> Option<&Arc<Session>> {
        None
    }
}

/// Requirements of a worker's queues.
pub struct LaneNeeds<'a> {
    pub job: &'a JobSpec,
    /// The GPUs in turn, and what of their memory cuFile knows.
    pub devices: Vec<(&'a Arc<Device>, &'a Base)>,
    /// Reads in flight on all queues.
    pub depth: u32,
    pub io_bytes: u64,
}

/// Resources that a worker's queues share.
pub trait Lanes {
    /// A queue over a registered file, whose reads end in the memory of the GPU with this index.
    ///
    /// # Errors
    /// The file can't be mapped, or isn't known.
    fn queue(&self, file: &FileTarget, turn: usize, reactor: &mut Reactor) -> Result<Box<dyn Queue>, Error>;
}
