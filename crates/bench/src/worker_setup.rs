//! The resources of a worker: its reactor, its memory and its queues, created on its own thread so that memory is
//! local and the ring has a single issuer.

#![allow(unsafe_code, reason = "slots seen as bytes before there is any I/O")]

use super::run_kit::{Resources, Shared, WorkerSpec};
use forebay_io::{
    memlock_refusal, memory_free_bytes, Arena, CudaDevice, DeviceMemory, Mem, PinnedMemory, Queue, Reactor,
    RingOptions,
};
use forebay_model::content;
use forebay_model::job::{Engine, JobSpec, Pages, PathKind};
use forebay_model::pattern::PatternSpec;
use forebay_model::units::BYTES_PER_GIB;
use forebay_model::Error;
use forebay_storage::{
    BufferNeeds, Buffers, Copiers, FaultQueue, MemoryRegistration, Paths, QueueFactory, QueueNeeds, Target,
    WorkerContext,
};
use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Longer I/Os are submitted one by one: submitted together, the kernel merges adjacent ones, and a drive then gave 0.9
/// of its rate.
pub(crate) const BATCH_IO_BYTES_MAX: u64 = 128 << 10;

pub(crate) struct WorkerSetup {
    // Field order is drop order, should opening fail midway.
    pub queues: Vec<Box<dyn Queue>>,
    pub reactor: Reactor,
    pub memory: Memory,
    /// Index of each target's queue; u32::MAX for a target that this worker doesn't use.
    pub queue_of: Vec<u32>,
    pub slots: u32,
    /// Reads of the job that each I/O is, where it is several.
    pub rows: Option<u32>,
    /// Slots are used in turn, instead of the one freed last first.
    pub in_turn: bool,
    pub resources: Resources,
}

/// The memory of the slots. Loans and pins are dropped before the memory that they refer to.
#[derive(Default)]
pub struct Memory {
    /// Into emulated drives.
    lent: Vec<MemoryRegistration>,
    /// State that paths keep.
    kept: Vec<Box<dyn Any>>,
    _pins: Vec<PinnedMemory>,
    device: Option<DeviceMemory>,
    slots: Option<Arena>,
    /// Slots of paths' own.
    beside: Vec<(PathKind, Arena)>,
}

pub(crate) fn set_up(spec: &WorkerSpec, shared: &Shared) -> Result<WorkerSetup, Error> {
    let job = &shared.job;
    let used = used_targets(&spec.pattern);
    let targets: Vec<&Target> = used.iter().map(|t| &shared.targets[*t as usize]).collect();
    let device = shared.destination.device_of(spec.index);
    let buffers = buffers_of(job, &shared.targets, &targets, device.is_some());
    let rows = buffers.rows.unwrap_or(1);
    let io_bytes_max = job.io_bytes_largest() * u64::from(rows);
    let needs = QueueNeeds::new(buffers.slots, io_bytes_max).with_worker(spec.index);
    let mut reactor = reactor_for(shared, &used, needs)?;
    let mut memory = Memory::new(shared, device, &buffers)?;
    let warning = memory.register(&mut reactor);
    memory.lend(targets.iter().copied())?;
    let copiers = Copiers::new(device, needs).with_rows(rows, job.io_bytes_largest());
    let faults = |queue: Box<dyn Queue>| -> Box<dyn Queue> {
        match shared.faults {
            Some(plan) => Box::new(FaultQueue::new(queue, plan, spec.index)),
            None => queue,
        }
    };
    let (mut queue_of, mut ran) = (vec![u32::MAX; shared.targets.len()], BTreeMap::new());
    let mut queues: Vec<Box<dyn Queue>> = Vec::new();
    let mut factories: Vec<(PathKind, Box<dyn QueueFactory>)> = Vec::new();
    let context = memory.context(shared, device, &copiers, &targets, needs);
    for (t, target) in used.into_iter().zip(&targets) {
        let kind = target.route.path;
        let context = WorkerContext { beside: memory.beside_of(kind), at_work: buffers.at_work, ..context };
        let known = factories.iter().position(|(of, _)| *of == kind);
        let at = match known {
            Some(at) => at,
            None => {
                factories.push((kind, Paths::by_kind(kind).equip(&context, &mut reactor)?));
                factories.len() - 1
            }
        };
        let factory = &factories[at].1;
        queue_of[t as usize] = queues.len() as u32;
        ran.insert(t, factory.ran());
        queues.push(factory.queue(target, &faults, &context, &mut reactor)?);
    }
    memory.kept.extend(factories.into_iter().filter_map(|(_, factory)| factory.kept()));
    let (pages, slot_bytes) = memory.pages();
    let resources = Resources {
        features: reactor.features().to_vec(),
        pages,
        slot_bytes,
        queues: queues.len() as u32,
        ran,
        warning,
        content_on_host: None,
    };
    let (slots, rows) = (buffers.slots, buffers.rows);
    Ok(WorkerSetup { queues, reactor, memory, queue_of, slots, rows, in_turn: device.is_some(), resources })
}

/// The buffers of a worker on the `used` ones of these targets.
pub(crate) fn buffers_of(job: &JobSpec, all: &[Target], used: &[&Target], into_gpu: bool) -> Buffers {
    let all: Vec<BufferNeeds> = all.iter().map(BufferNeeds::from_target).collect();
    let used: Vec<BufferNeeds> = used.iter().map(|t| BufferNeeds::from_target(t)).collect();
    Buffers::for_targets(job, &all, &used, into_gpu)
}

/// A worker's memory in addition to its slots: its stack, its histograms and its share of the series.
const WORKER_BYTES: u64 = 1 << 20;

/// Refuses more slots than there is memory for: the kernel would overcommit and kill a process when they are touched.
pub fn check_memory(job: &JobSpec, targets: &[Target], feeds_gpu: bool) -> Result<(), Error> {
    let workers = u64::from(job.workers);
    let each = buffers_of(job, targets, &targets.iter().collect::<Vec<_>>(), feeds_gpu).host_bytes();
    let slots = each.saturating_mul(workers);
    let own = workers * WORKER_BYTES;
    let slot_bytes = job.io_bytes_largest().next_multiple_of(4096);
    let gib = |bytes: u64| format!("{:.1} GiB", bytes as f64 / BYTES_PER_GIB);
    match memory_free_bytes() {
        Some(free) if slots.saturating_add(own) > free => Err(Error::machine(
            format!("‹workers› {workers} × ‹depth› {} × ‹io_bytes› {slot_bytes}", job.depth),
            format!(
                "needs {} of buffers and {} for the workers themselves, and {} of memory are free",
                gib(slots),
                gib(own),
                gib(free)
            ),
            "a smaller ‹depth›, ‹workers› or ‹io_bytes›",
        )),
        _ => Ok(()),
    }
}

/// Refuses slots in huge pages that the pool hasn't got.
pub(crate) fn check_pages(job: &JobSpec, targets: &[Target]) -> Result<(), Error> {
    let each = buffers_of(job, targets, &targets.iter().collect::<Vec<_>>(), false).host_bytes();
    match job.pages {
        Pages::Hugetlb if each > 0 => Arena::check_huge_pages(u64::from(job.workers), each),
        _ => Ok(()),
    }
}

impl Memory {
    pub fn new(
        shared: &Shared,
        device: Option<&Arc<CudaDevice>>,
        buffers: &Buffers,
    ) -> Result<Memory, Error> {
        let mut memory = Memory::default();
        if buffers.slot_bytes == 0 {
            return Ok(memory);
        }
        for (path, beside) in &buffers.beside {
            // Owned from the start: should allocating fail, the pin goes before what it pins.
            let arena = arena_for(shared, beside.count as usize, beside.bytes_each as usize)?;
            memory.beside.push((*path, arena));
            let arena = &memory.beside.last().expect("it was just put there").1;
            memory._pins.extend(device.map(|device| device.pin(arena)).transpose()?);
        }
        let (count, each) = (buffers.slots as usize, buffers.slot_bytes as usize);
        match device {
            Some(device) => memory.device = Some(device.slots(count, each)?),
            None => memory.slots = Some(arena_for(shared, count, each)?),
        }
        Ok(memory)
    }

    /// The resources that paths build on, each with its own additional slots.
    pub fn context<'a>(
        &'a self,
        shared: &'a Shared,
        device: Option<&'a Arc<CudaDevice>>,
        copiers: &'a Copiers,
        targets: &'a [&'a Target],
        needs: QueueNeeds,
    ) -> WorkerContext<'a> {
        WorkerContext {
            job: &shared.job,
            destination: &shared.destination,
            device,
            slots: self.device.as_ref(),
            beside: None,
            copiers,
            targets,
            needs,
            at_work: needs.depth,
            layered: shared.faults.is_some(),
        }
    }

    /// The path's own slots.
    pub fn beside_of(&self, path: PathKind) -> Option<&Arena> {
        self.beside.iter().find(|(of, _)| *of == path).map(|(_, arena)| arena)
    }

    /// The memory of the worker's slot `index`.
    pub fn slot(&self, index: usize) -> Mem {
        match (&self.device, &self.slots) {
            (Some(device), _) => device.slot(index),
            (None, Some(arena)) => arena.slot(index),
            (None, None) => Mem::None,
        }
    }

    /// The pages that the slots got, and their bytes.
    pub fn pages(&self) -> (&'static str, u64) {
        let arena = self.beside.first().map(|(_, arena)| arena).or(self.slots.as_ref());
        let bytes = arena.map_or(0, |a| (a.slot_bytes() * a.count()) as u64);
        (arena.map_or("none", |a| a.got().name()), bytes.max(self.device_bytes()))
    }

    /// Bytes of GPU memory; 0 if the slots are in host memory.
    fn device_bytes(&self) -> u64 {
        self.device.as_ref().map_or(0, |d| d.bytes() as u64)
    }

    /// Maps the memory into drives and registers it with network cards, so that nothing is staged.
    fn lend<'a>(&mut self, targets: impl Iterator<Item = &'a Target>) -> Result<(), Error> {
        for target in targets {
            let arenas = [self.beside_of(target.route.path), self.slots.as_ref()];
            let lent = arenas.into_iter().flatten().map(|arena| target.lend(arena));
            let lent = lent.collect::<Result<Vec<_>, _>>()?;
            self.lent.extend(lent.into_iter().flatten());
            // Where payload goes through no other slots, the card is to reach those of the GPU.
            let by_card = target.is_by_card() && self.beside_of(target.route.path).is_none();
            if let Some(device) = self.device.as_ref().filter(|_| by_card) {
                let lent = target.source.lend_device(device).map_err(|why| {
                    Error::machine(
                        format!("‹path› gds from {}", target.label),
                        why,
                        "‹path› bounce; forebay doctor",
                    )
                })?;
                self.lent.push(lent);
            }
        }
        Ok(())
    }

    /// Registers the buffers with the kernel; returns a warning if it refuses.
    pub fn register(&mut self, reactor: &mut Reactor) -> Option<String> {
        let arena = self.beside.first_mut().map(|(_, arena)| arena).or(self.slots.as_mut())?;
        let e = reactor.register_arena(arena).err()?;
        let bytes = arena.locked_bytes();
        Some(format!("{bytes} bytes of buffers aren't registered with io_uring ({e}): each I/O pins its own pages; ulimit -l is too low"))
    }

    /// Fills the slots with incompressible data for writes, even if nothing will be verified.
    pub fn fill_for_writes(&self, job: &JobSpec, worker: u32) -> Result<(), Error> {
        if !job.writes() {
            return Ok(());
        }
        for arena in self.slots.iter().chain(self.beside.iter().map(|(_, arena)| arena)) {
            let (at, bytes) = arena.whole();
            // SAFETY: the arena is ours and no I/O is in flight yet.
            let whole = unsafe { std::slice::from_raw_parts_mut(at.as_ptr(), bytes) };
            content::fill(whole, job.seed, u64::from(worker), 0);
        }
        self.device.as_ref().map_or(Ok(()), |device| fill_device(device, job.seed, worker))
    }
}

/// Fills GPU memory once, by the host, so that data left there by another program is never written.
fn fill_device(memory: &DeviceMemory, seed: u64, worker: u32) -> Result<(), Error> {
    const PIECE: usize = 4 << 20;
    let mut piece = vec![0; PIECE.min(memory.bytes())];
    for at in (0..memory.bytes()).step_by(PIECE) {
        let piece = &mut piece[..PIECE.min(memory.bytes() - at)];
        content::fill(piece, seed, u64::from(worker), at as u64);
        memory.device().write(memory.address() + at as u64, piece).map_err(|why| {
            let asked = format!("filling {} bytes of GPU {}", memory.bytes(), memory.device().index());
            Error::machine(asked, why.to_string(), "nvidia-smi; forebay doctor")
        })?;
    }
    Ok(())
}

/// Only memory with a descriptor can be mapped into what moves it by itself.
fn arena_for(shared: &Shared, count: usize, bytes_each: usize) -> Result<Arena, Error> {
    let pages = shared.job.pages;
    match shared.targets.iter().any(|t| t.maps_slots()) {
        true => Arena::shared(count, bytes_each, pages),
        false if bytes_each % 4096 != 0 => Arena::tight(count, bytes_each, pages),
        false => Arena::new(count, bytes_each, pages),
    }
}

pub(crate) fn used_targets(pattern: &PatternSpec) -> Vec<u32> {
    let mut used: Vec<u32> = pattern.spans.iter().filter(|s| s.bytes > 0).map(|s| s.target).collect();
    used.sort_unstable();
    used.dedup();
    used
}

pub fn reactor_for(shared: &Shared, used: &[u32], needs: QueueNeeds) -> Result<Reactor, Error> {
    let job = &shared.job;
    let targets = || used.iter().map(|t| &shared.targets[*t as usize]);
    let by_ring = |t: &Target| {
        let files = t.files();
        t.needs_ring() || files.iter().any(|(_, e)| matches!(e, Engine::Uring | Engine::Auto))
    };
    let wants_ring = targets().any(by_ring);
    if !wants_ring {
        return Ok(Reactor::without_ring());
    }
    let depth = targets().map(|t| t.ring_depth(needs)).fold(0u32, u32::saturating_add);
    let one_by_one = needs.io_bytes_max > BATCH_IO_BYTES_MAX;
    let options = RingOptions { depth, sqpoll: job.sqpoll, iopoll: job.iopoll, one_by_one };
    let otherwise = "‹engine› pread, or forebay doctor for the reason";
    Reactor::with_ring(options).map_err(|e| memlock_refusal("a worker of this run", &e, otherwise))
}
