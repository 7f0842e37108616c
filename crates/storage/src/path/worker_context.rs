//! The resources of a worker that its paths build on, and the queues that they create.

use super::copiers::Copiers;
use super::Destination;
use crate::source::{QueueNeeds, Target};
use forebay_io::{Arena, CudaDevice, DeviceMemory, Queue, Reactor};
use forebay_model::job::JobSpec;
use forebay_model::Error;
use std::any::Any;
use std::sync::Arc;

/// Resources of a worker for the queues that a path makes for it.
#[derive(Clone, Copy)]
pub struct WorkerContext<'a> {
    pub job: &'a JobSpec,
    pub destination: &'a Destination,
    /// The GPU that the worker feeds.
    pub device: Option<&'a Arc<CudaDevice>>,
    /// The worker's slots, where they lie in that GPU's memory.
    pub slots: Option<&'a DeviceMemory>,
    /// Slots of the path's own (`DataPath::beside`).
    pub beside: Option<&'a Arena>,
    pub copiers: &'a Copiers,
    /// Everything that the worker reads or writes, on any path.
    pub targets: &'a [&'a Target],
    /// Requirements of each queue.
    pub needs: QueueNeeds,
    /// I/Os that a source executes at a time; the data of the others is being copied.
    pub at_work: u32,
    /// True if something between a source and its path may hold I/Os back.
    pub layered: bool,
}

/// Wraps a source's queue, below the path's own wrappers.
pub(crate) type Layer<'a> = &'a dyn Fn(Box<dyn Queue>) -> Box<dyn Queue>;

/// A path's part of one worker.
pub trait QueueFactory {
    /// The path whose queues these are, for the record.
    fn ran(&self) -> &'static str;

    fn queue(
        &self,
        target: &Target,
        layer: Layer,
        context: &WorkerContext,
        reactor: &mut Reactor,
    ) -> Result<Box<dyn Queue>, Error>;

    /// Resources that must be dropped after the queues and before the worker's slots.
    fn kept(self: Box<Self>) -> Option<Box<dyn Any>> {
        None
    }
}
