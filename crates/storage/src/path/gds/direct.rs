//! `gds` for many files, which come and go while a run reads them.

use super::{CuFileWorker, Duty, Session};
use crate::path::direct::{DirectNeeds, DirectQueues, Means};
use crate::source::file::FileTarget;
use crate::source::{OpenFileSource, Target};
use forebay_io::{CudaDevice, Queue, Reactor};
use forebay_model::job::Engine;
use forebay_model::Error;
use std::any::Any;
use std::sync::Arc;

pub(crate) struct CufileMeans(pub Arc<Session>);

impl Means for CufileMeans {
    /// Has cuFile show, for each GPU, how it goes; from here on its counters count.
    fn begin(&self, probe: &FileTarget, devices: &[Arc<CudaDevice>]) -> Result<(), Error> {
        devices.iter().try_for_each(|device| self.hold(probe, device))?;
        self.0.detach(probe);
        self.0.begin();
        Ok(())
    }

    fn hold(&self, file: &FileTarget, device: &Arc<CudaDevice>) -> Result<(), Error> {
        let source = OpenFileSource { target: file.clone(), engine: Engine::Inline };
        self.0.attach(&Target::new(file.path.display().to_string(), file.bytes, source), device)
    }

    fn forget(&self, file: &FileTarget) {
        self.0.detach(file);
    }

    fn queues(&self, needs: &DirectNeeds, reactor: &mut Reactor) -> Result<Box<dyn DirectQueues>, Error> {
        let plain = needs.devices.len() == 1;
        let duty = Duty { job: needs.job, depth: needs.depth, plain };
        let mut workers = Vec::with_capacity(needs.devices.len());
        for (device, base) in &needs.devices {
            device.enter().map_err(|why| Error::machine("‹path› gds", why.to_string(), "nvidia-smi"))?;
            workers.push(CuFileWorker::open(&self.0, device, (*base).clone(), &duty, reactor)?);
        }
        Ok(Box::new(CuFileWorkers { workers, depth: needs.depth }))
    }

    fn set_up(&self) -> Arc<dyn Any + Send + Sync> {
        self.0.clone()
    }
}

/// One for each GPU.
struct CuFileWorkers {
    workers: Vec<CuFileWorker>,
    depth: u32,
}

impl DirectQueues for CuFileWorkers {
    fn queue(&self, file: &FileTarget, turn: usize, _: &mut Reactor) -> Result<Box<dyn Queue>, Error> {
        self.workers[turn].queue(file, self.depth)
    }
}
