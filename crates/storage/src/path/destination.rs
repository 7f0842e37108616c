//! The destination of a job's bytes, for all its workers and repeats: host memory, or GPUs and the set-up that they
//! share.

use super::{Ends, PATHS};
use crate::source::file::FileTarget;
use crate::source::Target;
use forebay_io::{cuda_devices, CudaDevice};
use forebay_model::job::JobSpec;
use forebay_model::Error;
use std::any::Any;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

#[derive(Default)]
pub struct Destination {
    /// GPUs in the order of --gpu, or one for each --pair; empty if the destination is host memory.
    pub devices: Vec<Arc<CudaDevice>>,
    /// What paths set up when a target first needs it, one of each type.
    set_up: Mutex<Vec<Arc<dyn Any + Send + Sync>>>,
}

impl Destination {
    /// `bounce` without --gpu falls back to host memory if there is no GPU; every other path into a GPU needs one.
    pub fn open(job: &JobSpec) -> Result<Destination, Error> {
        let of_pairs: Vec<u32> = job.parsed_pairs()?.iter().map(|pair| pair.gpu).collect();
        let asked = if of_pairs.is_empty() { &job.gpus } else { &of_pairs };
        let path = super::Paths::find(job.path);
        let devices = match (path.map_or(Ends::GpuIfAny, |path| path.ends()), asked.as_slice()) {
            (Ends::Host, _) => Vec::new(),
            (Ends::GpuIfAny, []) if cuda_devices().0 == 0 => Vec::new(),
            (_, []) => vec![CudaDevice::open(0)?],
            (_, asked) => asked.iter().map(|gpu| CudaDevice::open(*gpu)).collect::<Result<_, _>>()?,
        };
        let destination = Destination::on(devices);
        path.map_or(Ok(()), |path| path.begin(job, &destination))?;
        Ok(destination)
    }

    /// Registers the files with the path's library, before a worker needs them.
    pub fn attach(&self, job: &JobSpec, targets: &[Target]) -> Result<(), Error> {
        for target in targets {
            super::Paths::by_kind(target.route.path).attach(
                job,
                target,
                self,
                target.route.pair.unwrap_or(0),
            )?;
        }
        PATHS.iter().for_each(|path| path.attached(self));
        Ok(())
    }

    /// On these GPUs, with nothing set up.
    pub fn on(devices: Vec<Arc<CudaDevice>>) -> Destination {
        Destination { devices, ..Destination::default() }
    }

    /// Returns a path's set-up of this type, where there is one.
    pub fn set_up<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        let all = self.set_up.lock().expect("nothing panics while it holds it");
        all.iter().find_map(|set_up| set_up.clone().downcast().ok())
    }

    /// As `set_up`, made where there is none yet.
    ///
    /// # Errors
    /// Of `make`.
    pub(crate) fn set_up_or<T: Send + Sync + 'static>(
        &self,
        make: impl FnOnce() -> Result<Arc<T>, Error>,
    ) -> Result<Arc<T>, Error> {
        let mut all = self.set_up.lock().expect("nothing panics while it holds it");
        if let Some(there) = all.iter().find_map(|set_up| set_up.clone().downcast().ok()) {
            return Ok(there);
        }
        let made = make()?;
        all.push(made.clone());
        Ok(made)
    }

    /// The same with a set-up, on GPUs or none.
    #[must_use]
    pub fn with<T: Send + Sync + 'static>(self, set_up: Arc<T>) -> Destination {
        self.set_up.lock().expect("nothing panics while it holds it").push(set_up);
        self
    }

    /// Deregisters a file that is about to be closed.
    pub fn forget(&self, file: &FileTarget) {
        PATHS.iter().for_each(|path| path.forget(file, self));
    }

    /// The same GPUs without any set-up, so that a trial's registrations are its own.
    pub fn afresh(&self) -> Destination {
        Destination::on(self.devices.clone())
    }

    /// Returns the bytes that all workers of a job keep under way.
    pub(crate) fn in_flight_bytes(&self, job: &JobSpec) -> u64 {
        let of_one = job.io_bytes_largest().saturating_mul(u64::from(job.depth));
        of_one.saturating_mul(u64::from(job.workers))
    }

    /// GPUs or pairs to which workers are assigned in turn.
    pub fn turns(&self) -> u32 {
        self.devices.len().max(1) as u32
    }

    /// The GPU that a worker feeds; GPUs are assigned in turn.
    pub fn device_of(&self, worker: u32) -> Option<&Arc<CudaDevice>> {
        (!self.devices.is_empty()).then(|| &self.devices[worker as usize % self.devices.len()])
    }

    /// The GPU of this number, among those that are fed.
    pub fn device(&self, gpu: u32) -> Option<&Arc<CudaDevice>> {
        self.devices.iter().find(|d| d.index() == gpu)
    }

    pub fn feeds_gpu(&self) -> bool {
        !self.devices.is_empty()
    }

    /// `host`, `gpu:0`, `gpu:0,1`.
    pub fn name(&self) -> String {
        let numbers: BTreeSet<u32> = self.devices.iter().map(|d| d.index()).collect();
        let numbers: Vec<String> = numbers.iter().map(u32::to_string).collect();
        if numbers.is_empty() {
            "host".into()
        } else {
            format!("gpu:{}", numbers.join(","))
        }
    }
}
