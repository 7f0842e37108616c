//! What a worker has for its paths to build on, and what they make of it.

use super::{Copier, Destination, HostCopier};
use crate::arena::Arena;
use crate::gpu::cuda::{Device, DeviceMemory, Stream};
use crate::gpu::CudaCopier;
use crate::queue::Queue;
use crate::reactor::Reactor;
use crate::source::{QueueNeeds, Target};
use forebay_model::job::JobSpec;
use forebay_model::Error;
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

#[derive(Clone, Copy)]
pub struct Site<'a> {
    pub job: &'a JobSpec,
    pub destination: &'a Destination,
    /// The GPU that the worker feeds.
    pub device: Option<&'a Arc<Device>>,
    /// The worker's slots, where they lie in that GPU's memory.
    pub slots: Option<&'a DeviceMemory>,
    /// Slots of the path's own (`DataPath::beside`).
    pub beside: Option<&'a Arena>,
    pub copiers: &'a Copiers,
    /// All that the worker reads or writes, by whatever path.
    pub targets: &'a [&'a Target],
    /// What each queue must carry.
    pub needs: QueueNeeds,
    /// I/Os of those that a source works at; what the others hold is copied on meanwhile.
    pub at_work: u32,
    /// Something stands between a source and its path, and may hold I/Os back.
    pub layered: bool,
}

/// Puts something over a source's queue, below what a path puts there.
pub type Layer<'a> = &'a dyn Fn(Box<dyn Queue>) -> Box<dyn Queue>;

/// A path's part of one worker.
pub trait Gear {
    /// The path whose queues these are, for the record.
    fn ran(&self) -> &'static str;

    fn queue(
        &self,
        target: &Target,
        layer: Layer,
        site: &Site,
        reactor: &mut Reactor,
    ) -> Result<Box<dyn Queue>, Error>;

    /// What must last until the queues are gone, and go before the worker's slots.
    fn kept(self: Box<Self>) -> Option<Box<dyn Any>> {
        None
    }
}

/// Streams that a worker's queues share in turn: one for each of thousands of files would cost more than it gives.
const STREAMS_MAX: usize = 4;

/// Makes the copiers of a worker's queues.
pub struct Copiers {
    device: Option<Arc<Device>>,
    streams: RefCell<Vec<Rc<Stream>>>,
    made: Cell<usize>,
}

impl Copiers {
    pub fn new(device: Option<&Arc<Device>>) -> Copiers {
        Copiers { device: device.cloned(), streams: RefCell::default(), made: Cell::new(0) }
    }

    pub fn next(&self) -> Result<Box<dyn Copier>, Error> {
        let Some(device) = &self.device else { return Ok(Box::new(HostCopier::default())) };
        let made = self.made.replace(self.made.get() + 1);
        let mut streams = self.streams.borrow_mut();
        if streams.len() == STREAMS_MAX {
            return Ok(Box::new(CudaCopier::on(streams[made % STREAMS_MAX].clone())));
        }
        let copier = CudaCopier::new(device.clone())?;
        streams.push(copier.stream());
        Ok(Box::new(copier))
    }
}
