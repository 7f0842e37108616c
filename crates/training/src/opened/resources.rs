//! Resources of one thread, made once for all files: its ring, its slots in host or GPU memory, and the way to a
//! queue on a file that is opened later.

use forebay_bench::{reactor_for, Contents, NameOf, Resources, Shared, WorkerMemory, WorkerSpec};
use forebay_io::{Client, Queue, Reactor};
use forebay_model::job::Engine;
use forebay_model::pattern::PatternSpec;
use forebay_model::Error;
use forebay_storage::{
    BufferNeeds, Buffers, Copiers, FaultQueue, FileTarget, OpenFileSource, Paths, QueueFactory, QueueNeeds,
    Target, WorkerContext,
};
use std::sync::Arc;

/// The one target of `Shared`: the folder.
const FOLDER: u32 = 0;

/// `P`: what an I/O belongs to.
pub(crate) struct WorkerResources<P: Copy> {
    // Field order is drop order: queues go before the ring, and that before the memory that both point to.
    pub client: Client<P>,
    factory: Box<dyn QueueFactory>,
    copiers: Copiers,
    pub reactor: Reactor,
    pub contents: Contents,
    memory: WorkerMemory,
    shared: Arc<Shared>,
    index: u32,
    needs: QueueNeeds,
    /// Files that faults were injected into.
    opened: u32,
    /// The queue of the whole target, once somebody asked for it.
    whole: Option<u32>,
}

impl<P: Copy> WorkerResources<P> {
    /// `names`: the file to which a content claims to belong. `idle`: what a slot without an I/O belongs to.
    pub(crate) fn open(
        index: u32,
        shared: &Arc<Shared>,
        names: NameOf,
        idle: P,
    ) -> Result<(WorkerResources<P>, Resources), Error> {
        let job = &shared.job;
        let device = shared.destination.device_of(index);
        let needs = QueueNeeds::new(job.depth, job.io_bytes).with_worker(index);
        let folder = &shared.targets[FOLDER as usize];
        let mut reactor = reactor_for(shared, &[FOLDER], needs)?;
        let buffers =
            Buffers::with_slots(job, &[BufferNeeds::from_target(folder)], job.depth, device.is_some());
        let mut memory = WorkerMemory::new(shared, device, &buffers)?;
        let warning = memory.register(&mut reactor);
        let copiers = Copiers::new(device, needs);
        let path = Paths::by_kind(job.path);
        let targets = [folder];
        let context = memory.context(shared, device, &copiers, &targets, needs);
        let context = WorkerContext { beside: memory.beside_of(job.path), ..context };
        let factory = path.equip(&context, &mut reactor)?;
        let (contents, content_on_host) = Contents::open(job, 0, names, device, job.depth as usize)?;
        memory.fill_for_writes(job, index)?;
        let (pages, slot_bytes) = memory.pages();
        let reported = Resources {
            features: reactor.features().to_vec(),
            pages,
            slot_bytes,
            queues: 0,
            ran: [(FOLDER, factory.ran())].into(),
            warning,
            content_on_host,
        };
        let shared = shared.clone();
        let client = Client::new(job.depth, shared.destination.feeds_gpu(), idle, |slot| memory.slot(slot));
        Ok((
            WorkerResources {
                client,
                factory,
                copiers,
                reactor,
                contents,
                memory,
                shared,
                index,
                needs,
                opened: 0,
                whole: None,
            },
            reported,
        ))
    }

    /// Hands an I/O that has begun to its file's queue.
    pub(crate) fn push(&mut self, tag: u32) {
        self.client.push(tag, &mut self.reactor);
    }

    pub(crate) fn collect(&mut self) {
        self.client.collect(&mut self.reactor);
    }

    fn folder(&self) -> &Target {
        &self.shared.targets[FOLDER as usize]
    }

    /// Unit of a file's length while it is written.
    pub(crate) fn align(&self) -> u32 {
        self.folder().align()
    }

    /// A queue on a file that was just opened, by the run's path: its number at the client.
    pub(crate) fn queue(&mut self, file: &FileTarget) -> Result<u32, Error> {
        let source = Arc::new(OpenFileSource { target: file.clone(), engine: self.engine() });
        let target = Target { source, bytes: file.bytes, ..self.folder().clone() };
        self.queue_on(&target)
    }

    /// The queue of the run's target itself, where that is no folder: one for all entries.
    pub(crate) fn whole(&mut self) -> Result<u32, Error> {
        if let Some(queue) = self.whole {
            return Ok(queue);
        }
        let target = self.folder().clone();
        let queue = self.queue_on(&target)?;
        self.whole = Some(queue);
        Ok(queue)
    }

    fn queue_on(&mut self, target: &Target) -> Result<u32, Error> {
        let (shared, kind) = (&self.shared, self.shared.job.path);
        Paths::by_kind(kind).attach(&shared.job, target, &shared.destination, self.index)?;
        // Each file meets faults of its own.
        self.opened = self.opened.wrapping_add(1);
        let salt = self.index.wrapping_add(self.opened.wrapping_mul(shared.job.workers));
        let faults = |queue: Box<dyn Queue>| -> Box<dyn Queue> {
            match shared.faults {
                Some(plan) => Box::new(FaultQueue::new(queue, plan, salt)),
                None => queue,
            }
        };
        let device = shared.destination.device_of(self.index);
        let targets = [target];
        let context = self.memory.context(shared, device, &self.copiers, &targets, self.needs);
        let context = WorkerContext { beside: self.memory.beside_of(kind), ..context };
        let queue = self.factory.queue(target, &faults, &context, &mut self.reactor)?;
        Ok(self.client.add(queue))
    }

    fn engine(&self) -> Engine {
        self.folder().source.descriptor().map_or(Engine::Auto, |(_, engine)| engine)
    }

    /// Before a file is closed: nobody else keeps it open.
    pub(crate) fn forget(&mut self, file: &FileTarget) {
        self.shared.destination.forget(file);
    }
}

/// A worker in bench's vocabulary; its pattern is never drawn from.
pub(crate) fn spec_of(index: u32, cpu: Option<u32>, near: Option<u32>) -> WorkerSpec {
    let pattern = PatternSpec { io_bytes: 1, align: 1, ..PatternSpec::default() };
    WorkerSpec { index, cpu, near, pattern }
}
