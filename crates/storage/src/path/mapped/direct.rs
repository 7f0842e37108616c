//! `mapped` for many files, which come and go while a run reads them.

use super::bounced::{ASIDE_BYTES_MAX, ASIDE_SLOTS};
use super::{DevicePinner, Limits, MappedQueue, Registry, Staging};
use crate::path::direct::{DirectNeeds, DirectQueues, Means};
use crate::path::{BounceQueue, Copier};
use crate::source::file::FileTarget;
use crate::source::QueueNeeds;
use forebay_io::{Arena, CudaCopier, CudaDevice, CudaStream, PinnedMemory, Queue, Reactor};
use forebay_model::job::{Engine, Pages};
use forebay_model::Error;
use std::any::Any;
use std::rc::Rc;
use std::sync::Arc;

pub(crate) struct MappedMeans {
    registry: Arc<Registry>,
    window_bytes: u64,
}

impl MappedMeans {
    /// Pages are registered by the driver of this GPU, for all of them.
    pub(crate) fn open(device: &Arc<CudaDevice>, limits: Limits) -> Result<MappedMeans, Error> {
        let registry = Registry::new(Box::new(DevicePinner(device.clone())), limits)?;
        Ok(MappedMeans { registry: Arc::new(registry), window_bytes: limits.window_bytes })
    }
}

impl Means for MappedMeans {
    fn bytes_min(&self) -> u64 {
        Registry::LEAST_BYTES
    }

    /// None goes two ways, and memory for more than is registered as a whole would lie idle.
    fn window_bytes(&self) -> Option<u64> {
        Some(self.window_bytes)
    }

    fn forget(&self, file: &FileTarget) {
        self.registry.forget(file);
    }

    fn queues(&self, needs: &DirectNeeds, _: &mut Reactor) -> Result<Box<dyn DirectQueues>, Error> {
        let each = needs.io_bytes.min(ASIDE_BYTES_MAX);
        let aside = Arena::new(ASIDE_SLOTS as usize, each as usize, Pages::Auto)?;
        let (first, _) = needs.devices.first().expect("what passes the host ends on a GPU");
        let pin = first.pin(&aside)?;
        let stream = |(device, _): &(&Arc<CudaDevice>, _)| {
            CudaCopier::new(Arc::clone(device)).map(|copier| copier.stream())
        };
        Ok(Box::new(MappedLanes {
            streams: needs.devices.iter().map(stream).collect::<Result<_, _>>()?,
            _pin: pin,
            staging: Staging::new(ASIDE_SLOTS, each as u32),
            aside,
            registry: self.registry.clone(),
            depth: needs.depth,
        }))
    }

    fn set_up(&self) -> Arc<dyn Any + Send + Sync> {
        self.registry.clone()
    }
}

struct MappedLanes {
    // Field order is drop order.
    streams: Vec<Rc<CudaStream>>,
    _pin: PinnedMemory,
    aside: Arena,
    staging: Staging,
    registry: Arc<Registry>,
    depth: u32,
}

impl DirectQueues for MappedLanes {
    fn queue(&self, file: &FileTarget, turn: usize, reactor: &mut Reactor) -> Result<Box<dyn Queue>, Error> {
        let copier = || Box::new(CudaCopier::on(self.streams[turn].clone())) as Box<dyn Copier>;
        let needs = QueueNeeds::new(ASIDE_SLOTS, self.aside.slot_bytes() as u64).then_copied();
        // What isn't cached is the exception: the worker reads it itself.
        let inner = file.queue(Engine::Inline, needs, reactor)?;
        let bounce = Box::new(BounceQueue::new(inner, true, copier(), &self.aside));
        let (registry, staging) = (self.registry.clone(), self.staging.clone());
        let queue = MappedQueue::new(file, self.depth, registry, copier(), bounce, staging, reactor)?;
        Ok(Box::new(queue))
    }
}
