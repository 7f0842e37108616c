//! What a worker works with: its reactor, its memory and its queues, opened on
//! its own thread so that memory is local and the ring has one issuer.

use super::worker::{Kit, Shared, WorkerSpec, BATCH_IO_BYTES_MAX};
use crate::arena::{Arena, Mem};
use crate::doctor;
use crate::gpu::cuda::{CudaCopier, DeviceMemory, Pinned};
use crate::path::{BounceQueue, Copier, HostCopier};
use crate::queue::Queue;
use crate::reactor::{Reactor, RingOptions};
use crate::source::fault::FaultQueue;
use crate::source::{QueueNeeds, Target};
use forebay_model::content;
use forebay_model::job::{Engine, JobSpec, PathKind};
use forebay_model::pattern::PatternSpec;
use forebay_model::Error;

pub struct Outfit {
    // Field order is drop order, should opening fail midway.
    pub queues: Vec<Box<dyn Queue>>,
    pub reactor: Reactor,
    pub memory: Memory,
    /// Which queue serves a target; u32::MAX for one that this worker doesn't touch.
    pub queue_of: Vec<u32>,
    pub depth: u32,
    pub kit: Kit,
}

/// What the slots are made of. Pins are dropped before the memory that they pin.
#[derive(Default)]
pub struct Memory {
    _pin: Option<Pinned>,
    device: Option<DeviceMemory>,
    slots: Option<Arena>,
    staging: Option<Arena>,
}

pub fn of(spec: &WorkerSpec, shared: &Shared) -> Result<Outfit, Error> {
    let job = &shared.job;
    let used = used_targets(&spec.pattern);
    let targets = used.iter().map(|t| &shared.targets[*t as usize]);
    let depth = effective_depth(job, targets, shared.device.is_some());
    let needs = QueueNeeds { depth, io_bytes_max: job.io_bytes_largest() };
    let mut reactor = reactor_for(shared, &used, needs)?;
    let mut memory = Memory::new(shared, depth as usize)?;
    let warning = memory.register(&mut reactor);
    let mut queue_of = vec![u32::MAX; shared.targets.len()];
    let mut queues: Vec<Box<dyn Queue>> = Vec::new();
    for t in used {
        queue_of[t as usize] = queues.len() as u32;
        let mut queue = shared.targets[t as usize].queue(needs, &mut reactor)?;
        if let Some(plan) = shared.faults {
            queue = Box::new(FaultQueue::new(queue, plan, spec.index));
        }
        if let Some(staging) = &memory.staging {
            queue = Box::new(BounceQueue::new(queue, copier_for(shared, &mut reactor)?, staging));
        }
        queues.push(queue);
    }
    let arena = memory.staging.as_ref().or(memory.slots.as_ref());
    let kit = Kit {
        features: reactor.features().to_vec(),
        pages: arena.map_or("none", |a| a.got().name()),
        slot_bytes: arena.map_or(0, |a| (a.slot_bytes() * a.count()) as u64),
        queues: queues.len() as u32,
        warning,
    };
    Ok(Outfit { queues, reactor, memory, queue_of, depth, kit })
}

/// Slots are only worth having where something moves bytes into them.
fn wants_slots(job: &JobSpec, targets: &[Target]) -> bool {
    job.path == PathKind::Bounce || job.verify || targets.iter().any(|t| !t.files().is_empty())
}

/// What a worker takes beside its slots: its stack, its histograms and its share of the series.
const WORKER_BYTES: u64 = 1 << 20;

/// Refuses slots that there is no memory for: the kernel would promise it, and kill somebody when they are touched.
pub fn check_memory(job: &JobSpec, targets: &[Target], feeds_gpu: bool) -> Result<(), Error> {
    let slot_bytes = job.io_bytes_largest().next_multiple_of(4096);
    let depth = u64::from(effective_depth(job, targets.iter(), feeds_gpu));
    let arenas = 1 + u64::from(job.path == PathKind::Bounce && !feeds_gpu);
    let workers = u64::from(job.workers);
    let slots = match wants_slots(job, targets) {
        true => [depth, workers, arenas].into_iter().fold(slot_bytes, u64::saturating_mul),
        false => 0,
    };
    let own = workers * WORKER_BYTES;
    let gib = |bytes: u64| format!("{:.1} GiB", bytes as f64 / (1u64 << 30) as f64);
    match doctor::memory_free_bytes() {
        Some(free) if slots.saturating_add(own) > free => Err(Error::machine(
            format!("--workers {workers} × --depth {depth} × --io-size {slot_bytes}"),
            format!(
                "needs {} of buffers and {} for the workers themselves, and {} of memory are free",
                gib(slots),
                gib(own),
                gib(free)
            ),
            "a smaller --depth, --workers or --io-size",
        )),
        _ => Ok(()),
    }
}

impl Memory {
    fn new(shared: &Shared, depth: usize) -> Result<Memory, Error> {
        let job = &shared.job;
        let io_bytes = job.io_bytes_largest() as usize;
        let bounce = job.path == PathKind::Bounce;
        let mut memory = Memory::default();
        if !wants_slots(job, &shared.targets) {
            return Ok(memory);
        }
        if bounce {
            // Owned from the start: should allocating fail, the pin goes before what it pins.
            let staging = memory.staging.insert(Arena::new(depth, io_bytes, job.pages)?);
            if let Some(device) = &shared.device {
                memory._pin = Some(device.pin(staging)?);
                memory.device = Some(device.allocate(depth, staging.slot_bytes())?);
            }
        }
        if memory.device.is_none() {
            memory.slots = Some(Arena::new(depth, io_bytes, job.pages)?);
        }
        Ok(memory)
    }

    /// Where the worker's I/O number `index` has its payload.
    pub fn slot(&self, index: usize) -> Mem {
        match (&self.device, &self.slots) {
            (Some(device), _) => device.slot(index),
            (None, Some(arena)) => arena.slot(index),
            (None, None) => Mem::None,
        }
    }

    /// Registers what the kernel reads into; says so if it won't have it.
    fn register(&mut self, reactor: &mut Reactor) -> Option<String> {
        let arena = self.staging.as_mut().or(self.slots.as_mut())?;
        let e = reactor.register_arena(arena).err()?;
        let bytes = arena.slot_bytes() * arena.count();
        Some(format!("the kernel refused to register {bytes} bytes of buffers ({e}): each I/O pins its own pages; ulimit -l is too low"))
    }

    /// Writes carry bytes that don't compress, even where nobody will verify them.
    pub fn fill_for_writes(&self, job: &JobSpec, worker: u32) {
        if !job.writes() {
            return;
        }
        for arena in [self.slots.as_ref(), self.staging.as_ref()].into_iter().flatten() {
            let (at, bytes) = arena.whole();
            // SAFETY: the arena is ours and no I/O is in flight yet.
            let whole = unsafe { std::slice::from_raw_parts_mut(at.as_ptr(), bytes) };
            content::fill(whole, job.seed, u64::from(worker), 0);
        }
    }
}

fn used_targets(pattern: &PatternSpec) -> Vec<u32> {
    let mut used: Vec<u32> = pattern.spans.iter().filter(|s| s.bytes > 0).map(|s| s.target).collect();
    used.sort_unstable();
    used.dedup();
    used
}

/// A source that finishes each I/O in `submit` gains nothing from a second slot, and loses the cache;
/// but for the copies to a GPU, which go on meanwhile.
pub fn effective_depth<'a>(
    job: &JobSpec,
    mut targets: impl Iterator<Item = &'a Target>,
    feeds_gpu: bool,
) -> u32 {
    if targets.all(Target::is_inline) && job.faults.is_none() && !feeds_gpu {
        1
    } else {
        job.depth
    }
}

fn reactor_for(shared: &Shared, used: &[u32], needs: QueueNeeds) -> Result<Reactor, Error> {
    let job = &shared.job;
    let targets = || used.iter().map(|t| &shared.targets[*t as usize]);
    let wants_ring =
        targets().flat_map(Target::files).any(|(_, e)| matches!(e, Engine::Uring | Engine::Auto));
    if !wants_ring {
        return Ok(Reactor::without_ring());
    }
    let depth = targets().map(|t| t.ring_depth(needs)).fold(0u32, u32::saturating_add);
    let one_by_one = needs.io_bytes_max > BATCH_IO_BYTES_MAX;
    Reactor::with_ring(RingOptions { depth, sqpoll: job.sqpoll, iopoll: job.iopoll, one_by_one }).map_err(
        |e| {
            Error::machine(
                "io_uring",
                format!("the kernel refuses a ring: {e}"),
                "--engine pread, or forebay doctor for the reason",
            )
        },
    )
}

fn copier_for(shared: &Shared, reactor: &mut Reactor) -> Result<Box<dyn Copier>, Error> {
    Ok(match &shared.device {
        Some(device) => Box::new(CudaCopier::new(device.clone(), reactor.waker()?)?),
        None => Box::new(HostCopier::default()),
    })
}
