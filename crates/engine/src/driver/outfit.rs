//! What a worker works with: its reactor, its memory and its queues, opened on
//! its own thread so that memory is local and the ring has one issuer.

use super::worker::{Kit, Shared, WorkerSpec, BATCH_IO_BYTES_MAX};
use crate::arena::{Arena, Mem};
use crate::doctor;
use crate::gpu::cuda::{Device, DeviceMemory, Pinned, Stream};
use crate::gpu::cufile::Buffer;
use crate::gpu::CudaCopier;
use crate::path::gds::{Base, Duty, Station};
use crate::path::mapped::{MappedQueue, Staging};
use crate::path::{BounceQueue, Copier, HostCopier};
use crate::queue::Queue;
use crate::reactor::{Reactor, RingOptions};
use crate::source::fault::FaultQueue;
use crate::source::Loan;
use crate::source::{QueueNeeds, Target};
use forebay_model::content;
use forebay_model::job::{Engine, JobSpec, PathKind, DEPTH_MAX};
use forebay_model::pattern::PatternSpec;
use forebay_model::Error;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

pub struct Outfit {
    // Field order is drop order, should opening fail midway.
    pub queues: Vec<Box<dyn Queue>>,
    pub reactor: Reactor,
    pub memory: Memory,
    /// Which queue serves a target; u32::MAX for one that this worker doesn't touch.
    pub queue_of: Vec<u32>,
    pub slots: u32,
    /// Slots are used in turn, not the one last freed first.
    pub in_turn: bool,
    pub kit: Kit,
}

/// What the slots are made of. Pins are dropped before the memory that they pin.
#[derive(Default)]
pub struct Memory {
    /// Into emulated drives.
    lent: Vec<Loan>,
    _pin: Option<Pinned>,
    cufile: Option<Buffer>,
    device: Option<DeviceMemory>,
    slots: Option<Arena>,
    staging: Option<Arena>,
    _aside_pin: Option<Pinned>,
    /// Staging for what of `mapped` goes another way.
    aside: Option<Arena>,
}

/// Slots through which bytes go that `mapped` can't map; longer I/Os go in parts.
const ASIDE_SLOTS: u32 = 4;
const ASIDE_BYTES_MAX: u64 = 4 << 20;

pub fn of(spec: &WorkerSpec, shared: &Shared) -> Result<Outfit, Error> {
    let job = &shared.job;
    let used = used_targets(&spec.pattern);
    let targets = used.iter().map(|t| &shared.targets[*t as usize]);
    let device = shared.destination.device_of(spec.index);
    let depth = effective_depth(job, targets.clone(), device.is_some());
    let slots = depth + slots_in_copy(job, targets, device.is_some());
    let needs = QueueNeeds { depth: slots, io_bytes_max: job.io_bytes_largest(), then_copied: false };
    let mut reactor = reactor_for(shared, &used, needs)?;
    let mut memory = Memory::new(shared, device, slots as usize)?;
    let warning = memory.register(&mut reactor);
    memory.lend(used.iter().map(|t| &shared.targets[*t as usize]))?;
    let station = station_for(shared, &used, needs, device, &mut memory, &mut reactor)?;
    let aside = Aside::of(&memory, device);
    let copiers = Copiers::new(device);
    let mut queue_of = vec![u32::MAX; shared.targets.len()];
    let mut queues: Vec<Box<dyn Queue>> = Vec::new();
    for t in used {
        queue_of[t as usize] = queues.len() as u32;
        let target = &shared.targets[t as usize];
        let then_copied = target.route.path == PathKind::Bounce;
        let needs = QueueNeeds { then_copied, ..needs };
        let mut queue = match (&aside, &station, target.route.path) {
            (Some(aside), _, PathKind::Mapped) => {
                aside.queue(shared, target, needs, &copiers, &mut reactor)?
            }
            (_, Some(station), PathKind::Gds) if target.by_card().is_none() => {
                target.queue_over(needs, &mut reactor, &mut |file, _, needs, _| {
                    station.queue(file, needs.depth)
                })?
            }
            // Its card knows the slots.
            (_, _, PathKind::Gds) if target.by_card().is_some() => target.queue(needs, &mut reactor)?,
            (_, None, PathKind::Gds) => return Err(unattached(target)),
            _ => target.queue(needs, &mut reactor)?,
        };
        if let Some(plan) = shared.faults {
            queue = Box::new(FaultQueue::new(queue, plan, spec.index));
        }
        if let Some(staging) = memory.staging.as_ref().filter(|_| then_copied) {
            let inline = target.is_inline() && shared.faults.is_none();
            let bounce = BounceQueue::new(queue, inline, copiers.next()?, staging);
            queue = Box::new(bounce.with_below_max(depth));
        }
        queues.push(queue);
    }
    let (pages, slot_bytes) = memory.pages();
    let kit = Kit {
        features: reactor.features().to_vec(),
        pages,
        slot_bytes,
        queues: queues.len() as u32,
        warning,
        content_on_host: None,
    };
    Ok(Outfit { queues, reactor, memory, queue_of, slots, in_turn: device.is_some(), kit })
}

/// What queues of `mapped` share: the way for what can't be mapped.
struct Aside<'a> {
    arena: &'a Arena,
    staging: Staging,
}

impl<'a> Aside<'a> {
    fn of(memory: &'a Memory, device: Option<&Arc<Device>>) -> Option<Aside<'a>> {
        let arena = memory.aside.as_ref().filter(|_| device.is_some())?;
        Some(Aside { arena, staging: Staging::new(arena.count() as u32, arena.slot_bytes() as u32) })
    }

    fn queue(
        &self,
        shared: &Shared,
        target: &Target,
        needs: QueueNeeds,
        copiers: &Copiers,
        reactor: &mut Reactor,
    ) -> Result<Box<dyn Queue>, Error> {
        let registry = shared.destination.registry(&shared.job)?;
        target.queue_over(needs, reactor, &mut |file, engine, needs, reactor| {
            let slots = QueueNeeds {
                depth: self.arena.count() as u32,
                io_bytes_max: self.arena.slot_bytes() as u64,
                then_copied: true,
            };
            let inner = file.queue(engine, slots, reactor)?;
            let inline = matches!(engine, Engine::Map | Engine::Inline);
            let bounce = Box::new(BounceQueue::new(inner, inline, copiers.next()?, self.arena));
            let staging = self.staging.clone();
            let queue = MappedQueue::new(
                file,
                needs.depth,
                registry.clone(),
                copiers.next()?,
                bounce,
                staging,
                reactor,
            )?;
            Ok(Box::new(queue))
        })
    }
}

fn maps(targets: &[Target]) -> bool {
    targets.iter().any(|t| t.route.path == PathKind::Mapped)
}

fn bounces(targets: &[Target]) -> bool {
    goes(targets, PathKind::Bounce)
}

fn goes(targets: &[Target], path: PathKind) -> bool {
    targets.iter().any(|t| t.route.path == path)
}

fn unattached(target: &Target) -> Error {
    Error::run(&target.label, "nobody told cuFile of it", "report it: a defect in Forebay")
}

/// What the worker's queues through cuFile share; its memory is registered once.
pub fn station_for(
    shared: &Shared,
    used: &[u32],
    needs: QueueNeeds,
    device: Option<&Arc<Device>>,
    memory: &mut Memory,
    reactor: &mut Reactor,
) -> Result<Option<Station>, Error> {
    let (Some(session), Some(device)) = (shared.destination.cufile(), device) else { return Ok(None) };
    let Some(slots) = &memory.device else { return Ok(None) };
    let targets = || used.iter().map(|t| &shared.targets[*t as usize]);
    device.enter().map_err(|why| Error::machine("--path gds", why.to_string(), "nvidia-smi"))?;
    let base = Base::default();
    if Station::registers(&shared.job) {
        match session.driver().register_buffer(slots) {
            Ok(buffer) => {
                base.add(slots.address(), slots.bytes() as u64);
                memory.cufile = Some(buffer);
            }
            Err(e) => session.stays_unregistered(&e),
        }
    }
    let duty = Duty {
        job: &shared.job,
        depth: targets().map(|t| t.ring_depth(needs)).max().unwrap_or(1).max(needs.depth),
        plain: targets().all(Target::is_file),
        whole_pages: targets().flat_map(Target::files).all(|(f, _)| f.bytes % 4096 == 0),
    };
    Station::open(session, device, base, &duty, reactor).map(Some)
}

/// Slots are only worth having where something moves bytes into them.
fn wants_slots(job: &JobSpec, targets: &[Target]) -> bool {
    targets.iter().any(|t| t.route.path != PathKind::Host)
        || job.verify
        || targets.iter().any(Target::moves_bytes)
}

/// What a worker takes beside its slots: its stack, its histograms and its share of the series.
const WORKER_BYTES: u64 = 1 << 20;

/// Refuses slots that there is no memory for: the kernel would promise it, and kill somebody when they are touched.
pub fn check_memory(job: &JobSpec, targets: &[Target], feeds_gpu: bool) -> Result<(), Error> {
    let slot_bytes = job.io_bytes_largest().next_multiple_of(4096);
    let depth = effective_depth(job, targets.iter(), feeds_gpu);
    let depth = u64::from(depth + slots_in_copy(job, targets.iter(), feeds_gpu));
    let arenas = 1 + u64::from(bounces(targets) && !feeds_gpu);
    let workers = u64::from(job.workers);
    // Those of `gds` lie in GPU memory.
    let on_host = targets.iter().any(|t| t.route.path != PathKind::Gds);
    let slots = match on_host && wants_slots(job, targets) {
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
    pub fn new(shared: &Shared, device: Option<&Arc<Device>>, depth: usize) -> Result<Memory, Error> {
        let job = &shared.job;
        let io_bytes = job.io_bytes_largest() as usize;
        let mut memory = Memory::default();
        if !wants_slots(job, &shared.targets) {
            return Ok(memory);
        }
        if bounces(&shared.targets) {
            // Owned from the start: should allocating fail, the pin goes before what it pins.
            let staging = memory.staging.insert(arena_for(shared, depth, io_bytes)?);
            memory._pin = device.map(|device| device.pin(staging)).transpose()?;
        }
        if let Some(device) = device.filter(|_| maps(&shared.targets)) {
            let each = (io_bytes as u64).min(ASIDE_BYTES_MAX) as usize;
            let aside = memory.aside.insert(Arena::new(ASIDE_SLOTS as usize, each, job.pages)?);
            memory._aside_pin = Some(device.pin(aside)?);
        }
        match device {
            Some(device) => memory.device = Some(device.slots(depth, io_bytes.next_multiple_of(4096))?),
            None => memory.slots = Some(arena_for(shared, depth, io_bytes)?),
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

    /// What bytes are copied through on their way, where the path does that.
    pub fn staging(&self) -> Option<&Arena> {
        self.staging.as_ref()
    }

    /// The pages that the slots got, and their bytes.
    pub fn pages(&self) -> (&'static str, u64) {
        let arena = self.staging.as_ref().or(self.slots.as_ref()).or(self.aside.as_ref());
        let bytes = arena.map_or(0, |a| (a.slot_bytes() * a.count()) as u64);
        (arena.map_or("none", |a| a.got().name()), bytes.max(self.device_bytes()))
    }

    /// Of the GPU; 0 where the slots lie in host memory.
    fn device_bytes(&self) -> u64 {
        self.device.as_ref().map_or(0, |d| d.bytes() as u64)
    }

    /// Lends it to drives and network cards, so that nothing is staged on the way.
    fn lend<'a>(&mut self, targets: impl Iterator<Item = &'a Target>) -> Result<(), Error> {
        for target in targets {
            for arena in [&self.staging, &self.slots].into_iter().flatten() {
                self.lent.extend(target.lend(arena)?);
            }
            let by_card = target.by_card().filter(|_| target.route.path == PathKind::Gds);
            if let (Some(remote), Some(device)) = (by_card, &self.device) {
                let lent = remote.lend_device(device).map_err(|why| {
                    Error::machine(
                        format!("--path gds from {}", target.label),
                        why,
                        "--path bounce; forebay doctor",
                    )
                })?;
                self.lent.push(Loan::Fabric(lent));
            }
        }
        Ok(())
    }

    /// Registers what the kernel reads into; says so if it won't have it.
    pub fn register(&mut self, reactor: &mut Reactor) -> Option<String> {
        let arena = self.staging.as_mut().or(self.slots.as_mut()).or(self.aside.as_mut())?;
        let e = reactor.register_arena(arena).err()?;
        let bytes = arena.slot_bytes() * arena.count();
        Some(format!("the kernel refused to register {bytes} bytes of buffers ({e}): each I/O pins its own pages; ulimit -l is too low"))
    }

    /// Writes carry bytes that don't compress, even where nobody will verify them.
    pub fn fill_for_writes(&self, job: &JobSpec, worker: u32) -> Result<(), Error> {
        if !job.writes() {
            return Ok(());
        }
        for arena in [self.slots.as_ref(), self.staging.as_ref()].into_iter().flatten() {
            let (at, bytes) = arena.whole();
            // SAFETY: the arena is ours and no I/O is in flight yet.
            let whole = unsafe { std::slice::from_raw_parts_mut(at.as_ptr(), bytes) };
            content::fill(whole, job.seed, u64::from(worker), 0);
        }
        self.device.as_ref().map_or(Ok(()), |device| fill_device(device, job.seed, worker))
    }
}

/// Once, and by the host: what is written from GPU memory is never what somebody else left there.
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

/// Emulated drives can only be lent memory that has a descriptor.
fn arena_for(shared: &Shared, count: usize, bytes_each: usize) -> Result<Arena, Error> {
    match shared.targets.iter().any(|t| t.drives().next().is_some()) {
        true => Arena::shared(count, bytes_each, shared.job.pages),
        false => Arena::new(count, bytes_each, shared.job.pages),
    }
}

fn used_targets(pattern: &PatternSpec) -> Vec<u32> {
    let mut used: Vec<u32> = pattern.spans.iter().filter(|s| s.bytes > 0).map(|s| s.target).collect();
    used.sort_unstable();
    used.dedup();
    used
}

/// A source that finishes each I/O in `submit` gains nothing from a second slot, and loses the cache. Copies to
/// a GPU go on meanwhile, so that feeding one takes as many slots as the last-level cache holds.
pub fn effective_depth<'a>(
    job: &JobSpec,
    mut targets: impl Iterator<Item = &'a Target>,
    feeds_gpu: bool,
) -> u32 {
    let reads_by_hand = |t: &Target| t.is_inline() && t.route.path != PathKind::Mapped;
    if !targets.all(reads_by_hand) || job.faults.is_some() {
        job.depth
    } else if feeds_gpu {
        job.depth.min(slots_in_cache(job))
    } else {
        1
    }
}

/// Slots on top of those that the source works at: what they hold is on its way to the GPU, so that the source has
/// no less to do meanwhile. None below four, where each I/O is meant to be seen through before the next.
fn slots_in_copy<'a>(job: &JobSpec, mut targets: impl Iterator<Item = &'a Target>, feeds_gpu: bool) -> u32 {
    const FROM_DEPTH: u32 = 4;
    const BYTES_MAX: u64 = 16 << 20;
    let asynchronous = |t: &Target| t.route.path == PathKind::Bounce && !t.is_inline();
    if !feeds_gpu || job.depth < FROM_DEPTH || !targets.all(asynchronous) {
        return 0;
    }
    let fitting = (BYTES_MAX / job.io_bytes_largest()).clamp(1, u64::from(DEPTH_MAX)) as u32;
    (job.depth / 2).min(fitting)
}

/// What a worker's slots may take of the last-level cache: a slot that fell out of it is written to memory and
/// read back for the copy, and both compete with the reads.
fn slots_in_cache(job: &JobSpec) -> u32 {
    const AT_LEAST: u64 = 3;
    let share = doctor::last_level_cache_bytes() / 2 / u64::from(job.workers);
    (share / job.io_bytes_largest()).clamp(AT_LEAST, u64::from(u32::MAX)) as u32
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
