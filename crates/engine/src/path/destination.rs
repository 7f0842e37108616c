//! Where a path takes the bytes, for a whole job, across its workers and repeats:
//! host memory, or GPUs, and what was set up for them once.

use super::gds::Session;
use super::mapped::{window_bytes, DevicePinner, Limits, Registry, LEAST_BYTES};
use crate::doctor;
use crate::gpu::cuda::{self, Device};
use crate::source::Target;
use forebay_model::job::{JobSpec, PathKind};
use forebay_model::Error;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, OnceLock};

/// Bytes of the page cache that may stay registered where the system doesn't say how much memory is free.
const PIN_BYTES_DEFAULT: u64 = 4 << 30;

/// What `mapped` may register for readers that keep so many bytes under way, where `--pin-limit` may be given.
pub fn limits(pin_limit_bytes: Option<u64>, in_flight_bytes: u64) -> Limits {
    let half_of_free = || doctor::memory_free_bytes().map_or(PIN_BYTES_DEFAULT, |free| free / 2);
    let cap_bytes = pin_limit_bytes.unwrap_or_else(half_of_free);
    Limits { cap_bytes, window_bytes: window_bytes(in_flight_bytes, cap_bytes), least_bytes: LEAST_BYTES }
}

/// Only network cards move bytes, and nothing goes through cuFile.
pub fn by_card(job: &JobSpec) -> Result<bool, Error> {
    let rdma = |source: &str| source.starts_with("nvme+rdma:");
    let pairs = job.parsed_pairs()?;
    let mut sources =
        job.sources.iter().map(String::as_str).chain(pairs.iter().map(|pair| pair.source.as_str()));
    Ok(sources.all(rdma))
}

#[derive(Default)]
pub struct Destination {
    /// GPUs in the order of --gpu, or one for each --pair; empty where the destination is host memory.
    pub devices: Vec<Arc<Device>>,
    /// What `mapped` registered; made when it first registers something.
    mapped: Mutex<Option<Arc<Registry>>>,
    /// cuFile; opened when something first goes through it.
    cufile: OnceLock<Arc<Session>>,
}

impl Destination {
    /// `bounce` without --gpu makes do with host memory where there is no GPU; every other path into a GPU needs one.
    pub fn open(job: &JobSpec) -> Result<Destination, Error> {
        let of_pairs: Vec<u32> = job.parsed_pairs()?.iter().map(|pair| pair.gpu).collect();
        let asked = if of_pairs.is_empty() { &job.gpus } else { &of_pairs };
        let devices = match (job.path, asked.as_slice()) {
            (PathKind::Host, _) => Vec::new(),
            (PathKind::Bounce | PathKind::Auto, []) if cuda::devices().0 == 0 => Vec::new(),
            (_, []) => vec![Device::open(0)?],
            (_, asked) => asked.iter().map(|gpu| Device::open(*gpu)).collect::<Result<_, _>>()?,
        };
        let destination = Destination { devices, ..Destination::default() };
        if job.path == PathKind::Gds && !by_card(job)? {
            // Before files are made for it.
            destination.through_cufile(job)?;
        }
        Ok(destination)
    }

    fn through_cufile(&self, job: &JobSpec) -> Result<&Arc<Session>, Error> {
        if let Some(session) = self.cufile.get() {
            return Ok(session);
        }
        let device = self.devices.first().ok_or_else(|| {
            let why = cuda::devices().1.unwrap_or_else(|| "no GPU".into());
            Error::machine("--path gds", why, "forebay doctor; --path host needs no GPU")
        })?;
        let session = Session::open(job, device)?;
        Ok(self.cufile.get_or_init(|| session))
    }

    /// cuFile, if anything goes through it.
    pub fn cufile(&self) -> Option<&Arc<Session>> {
        self.cufile.get()
    }

    /// Makes the files known to what the path goes through, before a worker needs them.
    pub fn attach(&self, job: &JobSpec, targets: &[Target]) -> Result<(), Error> {
        let through = |t: &&Target| t.route.path == PathKind::Gds && t.by_card().is_none();
        for target in targets.iter().filter(through) {
            let session = self.through_cufile(job)?;
            let device =
                self.device_of(target.route.pair.unwrap_or(0)).expect("cuFile is open, so there is a GPU");
            session.attach(target, device)?;
        }
        if let Some(session) = self.cufile() {
            session.begin();
        }
        Ok(())
    }

    /// The same GPUs with nothing set up: what a trial registers is its own.
    pub fn afresh(&self) -> Destination {
        Destination { devices: self.devices.clone(), ..Destination::default() }
    }

    /// Registrations of all workers and repeats. One that any of the GPUs made serves them all.
    pub fn registry(&self, job: &JobSpec) -> Result<Arc<Registry>, Error> {
        let device = self.devices.first().ok_or_else(|| {
            let why = cuda::devices().1.unwrap_or_else(|| "no GPU".into());
            Error::machine("--path mapped", why, "forebay doctor; --path host needs no GPU")
        })?;
        let mut held = self.mapped.lock().expect("nothing panics while it holds it");
        if let Some(registry) = held.as_ref() {
            return Ok(registry.clone());
        }
        let in_flight = job.io_bytes_largest().saturating_mul(u64::from(job.depth));
        let limits = limits(job.pin_limit_bytes, in_flight.saturating_mul(u64::from(job.workers)));
        let registry = Arc::new(Registry::new(Box::new(DevicePinner(device.clone())), limits)?);
        Ok(held.insert(registry).clone())
    }

    /// The registrations there are, if `mapped` ran.
    pub fn registered(&self) -> Option<Arc<Registry>> {
        self.mapped.lock().expect("nothing panics while it holds it").clone()
    }

    /// GPUs or pairs that workers take turns at.
    pub fn turns(&self) -> u32 {
        self.devices.len().max(1) as u32
    }

    /// The GPU that a worker feeds: they take turns.
    pub fn device_of(&self, worker: u32) -> Option<&Arc<Device>> {
        (!self.devices.is_empty()).then(|| &self.devices[worker as usize % self.devices.len()])
    }

    /// The GPU of this number, among those that are fed.
    pub fn device(&self, gpu: u32) -> Option<&Arc<Device>> {
        self.devices.iter().find(|d| d.index() == gpu)
    }

    pub fn feeds_gpu(&self) -> bool {
        !self.devices.is_empty()
    }

    /// `host`, `gpu:0`, `gpu:0,1`.
    pub fn name(&self) -> String {
        let numbers: BTreeSet<u32> = self.devices.iter().map(|d| d.index()).collect();
        let numbers: Vec<String> = numbers.iter().map(u32::to_string).collect();
        if numbers.is_empty() {
            "host".into()
        } else {
            format!("gpu:{}", numbers.join(","))
        }
    }
}
