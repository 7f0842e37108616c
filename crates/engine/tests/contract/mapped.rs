//! The mapped path as a worker opens it: with a GPU where the test has one, else
//! with the host in its part.

use super::arena::Slots;
use super::rig::copier_for;
use forebay_engine::gpu::cuda::{CudaError, Device, Pinned};
use forebay_engine::path::mapped::{DevicePinner, Limits, MappedQueue, Pin, Pinner, Registry, Staging};
use forebay_engine::path::BounceQueue;
use forebay_engine::queue::Queue;
use forebay_engine::reactor::Reactor;
use forebay_engine::source::file::FileTarget;
use forebay_engine::source::{QueueNeeds, Target};
use std::ptr::NonNull;
use std::sync::Arc;

/// Lets the host play the GPU that reads registered pages.
struct HostPinner;

struct HostPin;

impl Pin for HostPin {}

impl Pinner for HostPinner {
    fn pin(&self, _: NonNull<u8>, bytes: usize) -> Result<Box<dyn Pin>, CudaError> {
        assert_eq!(bytes % 4096, 0, "whole pages");
        Ok(Box::new(HostPin))
    }
}

/// What queues of the mapped path share: windows smaller than an I/O, a cap that the larger files are beyond, and
/// too few slots for what goes another way.
pub struct Mapped {
    registry: Arc<Registry>,
    staging: Staging,
    device: Option<Arc<Device>>,
    _pin: Option<Pinned>,
    slots: Slots,
}

impl Mapped {
    const WINDOW: u64 = 12 << 10;

    pub fn new(device: Option<&Arc<Device>>) -> Mapped {
        let slots = Slots::new(2, 8192);
        let limits = Limits { cap_bytes: 6 * Self::WINDOW, window_bytes: Self::WINDOW, least_bytes: 1 };
        let pinner: Box<dyn Pinner> = match device {
            Some(device) => Box::new(DevicePinner(device.clone())),
            None => Box::new(HostPinner),
        };
        Mapped {
            registry: Arc::new(Registry::new(pinner, limits).unwrap()),
            staging: Staging::new(2, 8192),
            device: device.cloned(),
            _pin: device.map(|device| device.pin(slots.arena()).unwrap()),
            slots,
        }
    }

    pub fn queue(&self, target: &Target, needs: QueueNeeds, reactor: &mut Reactor) -> Box<dyn Queue> {
        let open = &mut |file: &FileTarget, engine, needs: QueueNeeds, reactor: &mut Reactor| {
            let inner =
                file.queue(engine, QueueNeeds { depth: 2, io_bytes_max: 8192, then_copied: true }, reactor)?;
            let copier = || copier_for(self.device.as_ref());
            let bounce = Box::new(BounceQueue::new(inner, false, copier(), self.slots.arena()));
            let (registry, staging) = (self.registry.clone(), self.staging.clone());
            let queue = MappedQueue::new(file, needs.depth, registry, copier(), bounce, staging, reactor)?;
            Ok(Box::new(queue) as Box<dyn Queue>)
        };
        target.queue_over(needs, reactor, open).unwrap()
    }
}

/// Whether `mapped` can serve the target: files, read through the page cache.
pub fn is_mappable(target: &Target) -> bool {
    let is_read_there = |t: &&Target| match t.backing.file() {
        Some((file, _)) => !file.direct,
        None => t.backing.scheme() == "stripe",
    };
    target.walk().iter().all(is_read_there)
}
