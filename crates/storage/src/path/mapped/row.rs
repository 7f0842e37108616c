//! Row of `mapped` in the table of paths, and its part of a worker.

use super::bounced::{ASIDE_BYTES_MAX, ASIDE_SLOTS};
use super::direct::MappedMeans;
use super::policy::window_bytes;
use super::relays::{relays_of, Relays, RELAYED_WINDOW_BYTES_MAX, WINDOWS_IN_FLIGHT};
use super::{DevicePinner, Limits, MappedQueue, Registry, Staging};
use crate::path::auto::{Known, Situation};
use crate::path::buffers::{Buffers, LAUNCHED_ROW_BYTES_MAX, ROW_BYTES_MAX};
use crate::path::direct::Means;
use crate::path::{
    About, Beside, BounceQueue, DataPath, Destination, Ends, Layer, QueueFactory, Readers, Refusal,
    WorkerContext,
};
use crate::source::{MadeOf, QueueNeeds, SourceMedium, Target};
use forebay_io::{cuda_devices, memory_free_bytes, Check, CheckState, CudaDevice, Queue, Reactor, Verdicts};
use forebay_model::job::{Cache, JobSpec, PathKind};
use forebay_model::units::GIB;
use forebay_model::Error;
use std::sync::Arc;

/// From this share on a file counts as cached.
const WARM_SHARE: f64 = 0.95;
/// Below this a registration costs more than copying the bytes.
const BYTES_MIN: u64 = 4 << 20;
/// Below this bounce may be faster by far: the device must fetch many together.
const IO_BYTES_UNTRIED: u64 = 64 << 10;
/// In flight of reads in order, so that windows are long and relays copy some of them meanwhile.
const IN_ORDER_BYTES: u64 = 256 << 20;
const IN_ORDER_IO_BYTES: u64 = 16 << 20;

/// Bytes of the page cache that may stay registered if the amount of free memory is unknown.
const PIN_BYTES_DEFAULT: u64 = 4 * GIB;

pub struct Mapped;

impl DataPath for Mapped {
    fn about(&self) -> &'static About {
        &About {
            kind: PathKind::Mapped,
            name: "mapped",
            what: "page cache to GPU, no CPU copy once registered",
            needs: "libcuda; data already cached",
            serves: "files and stripes of them",
            ends: Ends::Gpu,
            may_go_direct: false,
        }
    }

    fn accepts(&self, medium: &SourceMedium) -> bool {
        medium.is_all(MadeOf::File)
    }

    fn examined(&self, verdicts: &Verdicts) -> Check {
        let check = |state, found: &str| Check::of_path(self.name(), state, found);
        match &verdicts.mapped.because {
            Some(because) => check(CheckState::Missing, "needs a GPU").why(because.clone()),
            None => check(CheckState::Works, "cached data to the GPU, without a CPU copy once registered"),
        }
    }

    fn refuses(&self, job: &JobSpec) -> Result<Option<Refusal>, Error> {
        let refusals = [
            (
                job.require_direct,
                "‹require_direct› with ‹path› mapped",
                "its bytes come out of the page cache",
                "‹path› gds, or no ‹require_direct›",
            ),
            (
                job.writes(),
                "writes by ‹path› mapped",
                "it copies what the page cache holds, and a file system's pages can't be registered for writing",
                "‹path› bounce",
            ),
            (
                matches!(job.cache, Cache::Bypass | Cache::Drop),
                "‹path› mapped without the page cache",
                "it copies from the page cache: every byte would take another path",
                "‹cache› allow or ‹cache› warm; ‹path› bounce for data on a drive",
            ),
        ];
        Ok(refusals.into_iter().find(|r| r.0).map(|(_, asked, found, next)| (asked, found, next)))
    }

    fn option_of_its_own(&self, job: &JobSpec) -> Option<Refusal> {
        let next = "‹path› mapped, or no ‹pin_limit_bytes›";
        job.pin_limit_bytes
            .map(|_| ("‹pin_limit_bytes›", "only ‹path› mapped registers pages of files", next))
    }

    fn cached(&self) -> Option<bool> {
        Some(true)
    }

    fn is_open(&self, s: &Situation) -> bool {
        let warm = s.resident.is_some_and(|share| share >= WARM_SHARE);
        // Rows outside of what may be registered come one by one, and are faster by `bounce` with all others.
        let reached = s.may_stay || !s.is_random || s.io_bytes > ROW_BYTES_MAX;
        s.gpu
            && !s.writes
            && warm
            && s.bytes >= BYTES_MIN
            && reached
            && (s.tried || s.io_bytes >= IO_BYTES_UNTRIED)
    }

    fn can(&self, _: &Target, destination: &Destination, _: &mut Known) -> Result<(), String> {
        match destination.devices.first() {
            Some(device) if device.registers_read_only() => Ok(()),
            Some(_) => Err("the driver can't register pages of files".into()),
            None => Err("no GPU".into()),
        }
    }

    /// Later passes find the pages registered, cost next to nothing, and are at least as fast as by any other way.
    fn keeps_what_it_paid_for(&self) -> bool {
        true
    }

    fn beside(&self, _: u32, slot_bytes: u64, into_gpu: bool) -> Option<Beside> {
        into_gpu.then(|| Beside { count: ASIDE_SLOTS, bytes_each: slot_bytes.min(ASIDE_BYTES_MAX) })
    }

    fn brings_together(&self, _: &JobSpec) -> &'static str {
        "one kernel launch, which fetches them in place"
    }

    /// One or two threads keep the copy engine busy, with reads as long as the windows that are registered, and no longer
    /// than files are, or memory for the rest would lie idle.
    fn readers(&self) -> Readers {
        Readers { workers_max: Some(2), io_bytes: Some((1 << 20, 16 << 20)), depth: None }
    }

    /// Reads in order: windows are as long as that, so that few are registered, and some are copied by relays meanwhile. Rows:
    /// as many as launches fetch together.
    fn full_rate(&self, job: &JobSpec) -> Option<(u64, u64)> {
        let io_bytes = job.io_bytes_largest();
        let rows = || Buffers::depth_of_short(job).map(|depth| (io_bytes, u64::from(depth) * io_bytes));
        if job.op.is_random() {
            rows()
        } else {
            Some((IN_ORDER_IO_BYTES, IN_ORDER_BYTES))
        }
    }

    fn ends_at_once(&self, _: &Target) -> bool {
        false
    }

    fn takes_rows(&self, target: &Target) -> bool {
        target.is_file()
    }

    fn row_bytes_max(&self) -> u64 {
        LAUNCHED_ROW_BYTES_MAX
    }

    /// None of them passes through a processor, and a launch costs the same for any number.
    fn rows_bytes(&self) -> u64 {
        4 << 20
    }

    fn means(
        &self,
        _: &JobSpec,
        device: &Arc<CudaDevice>,
        limits: Limits,
    ) -> Result<Option<Arc<dyn Means>>, Error> {
        Ok(Some(Arc::new(MappedMeans::open(device, limits)?)))
    }

    fn equip(&self, context: &WorkerContext, _: &mut Reactor) -> Result<Box<dyn QueueFactory>, Error> {
        let Some(aside) = context.beside else {
            let why = cuda_devices().1.unwrap_or_else(|| "no GPU".into());
            return Err(Error::machine("‹path› mapped", why, "forebay doctor; ‹path› host needs no GPU"));
        };
        let count = relays_of(context.job, context.destination.in_flight_bytes(context.job));
        // Where there can be none, what was left to them is bounced.
        let relays = context
            .device
            .filter(|device| count > 0 && device.awaits_values())
            .and_then(|device| Relays::open(device, count, aside.slot_bytes()).ok());
        let staging = Staging::new(aside.count() as u32, aside.slot_bytes() as u32);
        Ok(Box::new(Aside { staging, relays }))
    }
}

/// Path for what can't be mapped, shared by queues of `mapped`.
struct Aside {
    staging: Staging,
    relays: Option<Relays>,
}

impl QueueFactory for Aside {
    fn ran(&self) -> &'static str {
        Mapped.name()
    }

    fn queue(
        &self,
        target: &Target,
        layer: Layer,
        context: &WorkerContext,
        reactor: &mut Reactor,
    ) -> Result<Box<dyn Queue>, Error> {
        let arena = context.beside.expect("it was there when the worker was equipped");
        let registry = registry_of(context.job, context.destination)?;
        let queue = target.queue_over(context.needs, reactor, &mut |file, engine, needs, reactor| {
            let slots = QueueNeeds {
                depth: arena.count() as u32,
                io_bytes_max: arena.slot_bytes() as u64,
                ..needs.then_copied()
            };
            let inner = file.queue(engine, slots, reactor)?;
            let copier = context.copiers.next()?;
            let bounce = Box::new(BounceQueue::new(inner, engine.is_inline(), copier, arena));
            let (registry, staging) = (registry.clone(), self.staging.clone());
            let copier = context.copiers.next()?;
            let queue = MappedQueue::new(file, needs.depth, registry, copier, bounce, staging, reactor)?;
            Ok(Box::new(queue.with_relays(self.relays.clone())))
        })?;
        Ok(layer(queue))
    }
}

impl Mapped {
    /// Returns the limits on registration by `mapped` for readers that keep so many bytes under way, where `--pin-limit`
    /// may be given. `relays`: threads that copy windows meanwhile, when the files are first read.
    pub fn limits(pin_limit_bytes: Option<u64>, in_flight_bytes: u64, relays: u32) -> Limits {
        let half_of_free = || memory_free_bytes().map_or(PIN_BYTES_DEFAULT, |free| free / 2);
        let cap_bytes = pin_limit_bytes.unwrap_or_else(half_of_free);
        // A window is half of that.
        let share = if relays > 0 { WINDOWS_IN_FLIGHT / 2 } else { 1 };
        let most = if relays > 0 { RELAYED_WINDOW_BYTES_MAX } else { u64::MAX };
        let window_bytes = window_bytes(in_flight_bytes / share, cap_bytes).min(most);
        Limits { cap_bytes, window_bytes, least_bytes: Registry::LEAST_BYTES, relays }
    }
}

/// Registrations of all workers and repeats. One that any of the GPUs made serves them all.
fn registry_of(job: &JobSpec, destination: &Destination) -> Result<Arc<Registry>, Error> {
    destination.set_up_or(|| {
        let device = destination.devices.first().ok_or_else(|| {
            let why = cuda_devices().1.unwrap_or_else(|| "no GPU".into());
            Error::machine("‹path› mapped", why, "forebay doctor; ‹path› host needs no GPU")
        })?;
        let in_flight = destination.in_flight_bytes(job);
        let relays = if device.awaits_values() { relays_of(job, in_flight) * job.workers } else { 0 };
        let limits = Mapped::limits(job.pin_limit_bytes, in_flight, relays);
        Ok(Arc::new(Registry::new(Box::new(DevicePinner(device.clone())), limits)?))
    })
}
