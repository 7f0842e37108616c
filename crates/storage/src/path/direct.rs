//! Direct reads of many files into GPUs, without host buffers: the resources of a whole run, and of each worker.
//! Files are opened, registered, read and deregistered during the run.

use crate::source::file::FileTarget;
use forebay_io::{CudaDevice, Mem, Queue, Reactor};
use forebay_model::job::JobSpec;
use forebay_model::Error;
use std::any::Any;
use std::collections::BTreeMap;
use std::sync::{Arc, RwLock};

/// A run's resources for reading files into GPUs on one path.
pub trait Means: Send + Sync {
    /// Called once, before any file is registered. `probe`: a representative file.
    ///
    /// # Errors
    /// The path can't serve one of the GPUs.
    fn begin(&self, _probe: &FileTarget, _devices: &[Arc<CudaDevice>]) -> Result<(), Error> {
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
    fn hold(&self, _file: &FileTarget, _device: &Arc<CudaDevice>) -> Result<(), Error> {
        Ok(())
    }

    /// Called when the file was closed or has changed.
    fn forget(&self, file: &FileTarget);

    /// A worker's resources; called on the worker's thread.
    ///
    /// # Errors
    /// Memory, or the path's library, can't be had.
    fn queues(&self, needs: &DirectNeeds, reactor: &mut Reactor) -> Result<Box<dyn DirectQueues>, Error>;

    /// The path's set-up for the run: for the record, and for whoever allocates memory that its library is to know.
    fn set_up(&self) -> Arc<dyn Any + Send + Sync>;
}

/// Device memory that a path's library knows: ranges of addresses, which may come to be more meanwhile. Of other device memory
/// it is told as it is.
#[derive(Clone, Debug, Default)]
pub struct Base(Arc<RwLock<BTreeMap<u64, u64>>>);

impl Base {
    /// `bytes` from `at` on were registered.
    pub fn add(&self, at: u64, bytes: u64) {
        self.0.write().expect("nothing panics while it holds the ranges").insert(at, bytes);
    }

    /// The address as the library wants it: what was registered, and how far behind that; None for memory that isn't a GPU's.
    pub fn place(&self, mem: Mem) -> Option<(u64, u64)> {
        let Mem::Device { at, .. } = mem else { return None };
        let ranges = self.0.read().expect("nothing panics while it holds the ranges");
        let before = ranges.range(..=at).next_back();
        let inside = before.filter(|(from, bytes)| at - **from < **bytes);
        Some(inside.map_or((at, 0), |(from, _)| (*from, at - from)))
    }
}

/// Requirements of a worker's queues.
pub struct DirectNeeds<'a> {
    pub job: &'a JobSpec,
    /// The GPUs in turn, and what of their memory the path's library knows.
    pub devices: Vec<(&'a Arc<CudaDevice>, &'a Base)>,
    /// Reads in flight on all queues.
    pub depth: u32,
    pub io_bytes: u64,
}

/// Resources that a worker's queues share.
pub trait DirectQueues {
    /// A queue over a registered file, whose reads end in the memory of the GPU with this index.
    ///
    /// # Errors
    /// The file can't be mapped, or isn't known.
    fn queue(&self, file: &FileTarget, turn: usize, reactor: &mut Reactor) -> Result<Box<dyn Queue>, Error>;
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Inside of what was registered a library is told its begin and the way from there, elsewhere the address itself.
        #[test]
        fn an_address_is_told_from_the_begin_of_its_range(
            lengths in prop::collection::vec((1u64..5000, 0u64..3000), 0..12), at in 0u64..60_000,
        ) {
            let (base, mut from, mut holds) = (Base::default(), 100, None);
            for (bytes, gap) in lengths {
                base.add(from, bytes);
                if (from..from + bytes).contains(&at) {
                    holds = Some(from);
                }
                from += bytes + gap;
            }
            let reported = base.place(Mem::Device { gpu: 0, at });
            prop_assert_eq!(reported, Some(holds.map_or((at, 0), |from| (from, at - from))));
            prop_assert_eq!(base.place(Mem::None), None);
        }
    }
}
