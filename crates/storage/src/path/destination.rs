//! The destination of a job's bytes, for all its workers and repeats: host memory, or GPUs and the set-up that they
//! share.

use super::gds::Session;
use super::mapped::{
    relays_of, window_bytes, DevicePinner, Limits, Registry, LEAST_BYTES, RELAYED_WINDOW_BYTES_MAX,
    WINDOWS_IN_FLIGHT,
};
use super::Ends;
use crate::source::file::FileTarget;
use crate::source::Target;
use forebay_io::gpu::cuda::{self, Device};
use forebay_io::machine;
use forebay_model::job::JobSpec;
use forebay_model::units::GIB;
use forebay_model::Error;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, OnceLock};

/// Bytes of the page cache that may stay registered if the amount of free memory is unknown.
const PIN_BYTES_DEFAULT: u64 = 4 * GIB;

/// Returns the limits on registration by `mapped` for readers that keep so many bytes under way, where `--pin-limit`
/// may be given. `relays`: threads that copy windows meanwhile, when the files are first read.
pub fn limits(pin_limit_bytes: Option<u64>, in_flight_bytes: u64, relays: u32) -> Limits {
    let half_of_free = || machine::memory_free_bytes().map_or(PIN_BYTES_DEFAULT, |free| free / 2);
    let cap_bytes = pin_limit_bytes.unwrap_or_else(half_of_free);
    // A window is half of that.
    let share = if relays > 0 { WINDOWS_IN_FLIGHT / 2 } else { 1 };
    let most = if relays > 0 { RELAYED_WINDOW_BYTES_MAX } else { u64::MAX };
    let window_bytes = window_bytes(in_flight_bytes / share, cap_bytes).min(most);
    Limits { cap_bytes, window_bytes, least_bytes: LEAST_BYTES, relays }
}

#[derive(Default)]
pub struct Destination {
    /// GPUs in the order of --gpu, or one for each --pair; empty if the destination is host memory.
    pub devices: Vec<Arc<Device>>,
    /// The registrations of `mapped`; created when it first registers something.
    mapped: Mutex<Option<Arc<Registry>>>,
    /// cuFile; opened when something first goes through it.
    cufile: OnceLock<Arc<Session>>,
}

impl Destination {
    /// `bounce` without --gpu falls back to host memory if there is no GPU; every other path into a GPU needs one.
    pub fn open(job: &JobSpec) -> Result<Destination, Error> {
        let of_pairs: Vec<u32> = job.parsed_pairs()?.iter().map(|pair| pair.gpu).collect();
        let asked = if of_pairs.is_empty() { &job.gpus } else { &of_pairs };
        let path = super::find(job.path);
        let devices = match (path.map_or(Ends::GpuIfAny, |path| path.ends()), asked.as_slice()) {
            (Ends::Host, _) => Vec::new(),
            (Ends::GpuIfAny, []) if cuda::devices().0 == 0 => Vec::new(),
            (_, []) => vec![Device::open(0)?],
            (_, asked) => asked.iter().map(|gpu| Device::open(*gpu)).collect::<Result<_, _>>()?,
        };
        let destination = Destination::on(devices);
        path.map_or(Ok(()), |path| path.begin(job, &destination))?;
        Ok(destination)
    }

    /// cuFile, opened if it wasn't.
    pub fn through_cufile(&self, job: &JobSpec) -> Result<&Arc<Session>, Error> {
        if let Some(session) = self.cufile.get() {
            return Ok(session);
        }
        let device = self.devices.first().ok_or_else(|| {
            let why = cuda::devices().1.unwrap_or_else(|| "no GPU".into());
            Error::machine("‹path› gds", why, "forebay doctor; ‹path› host needs no GPU")
        })?;
        let session = Session::open(job, device)?;
        Ok(self.cufile.get_or_init(|| session))
    }

    /// cuFile, if anything goes through it.
    pub fn cufile(&self) -> Option<&Arc<Session>> {
        self.cufile.get()
    }

    /// Registers the files with the path's library, before a worker needs them.
    pub fn attach(&self, job: &JobSpec, targets: &[Target]) -> Result<(), Error> {
        for target in targets {
            super::of(target.route.path).attach(job, target, self, target.route.pair.unwrap_or(0))?;
        }
        if let Some(session) = self.cufile() {
            session.begin();
        }
        Ok(())
    }

    /// On these GPUs, with nothing set up.
    pub fn on(devices: Vec<Arc<Device>>) -> Destination {
        Destination { devices, ..Destination::default() }
    }

    /// One whose registrations are these, on GPUs or none.
    pub fn with_registry(self, registry: Arc<Registry>) -> Destination {
        Destination { mapped: Mutex::new(Some(registry)), ..self }
    }

    /// Deregisters a file that is about to be closed.
    pub fn forget(&self, file: &FileTarget) {
        if let Some(session) = self.cufile() {
            session.detach(file);
        }
    }

    /// The same GPUs without any set-up, so that a trial's registrations are its own.
    pub fn afresh(&self) -> Destination {
        Destination::on(self.devices.clone())
    }

    /// Registrations of all workers and repeats. One that any of the GPUs made serves them all.
    pub fn registry(&self, job: &JobSpec) -> Result<Arc<Registry>, Error> {
        let mut held = self.mapped.lock().expect("nothing panics while it holds it");
        if let Some(registry) = held.as_ref() {
            return Ok(registry.clone());
        }
        let device = self.devices.first().ok_or_else(|| {
            let why = cuda::devices().1.unwrap_or_else(|| "no GPU".into());
            Error::machine("‹path› mapped", why, "forebay doctor; ‹path› host needs no GPU")
        })?;
        let in_flight = self.in_flight_bytes(job);
        let relays = if device.awaits_values() { relays_of(job, in_flight) * job.workers } else { 0 };
        let limits = limits(job.pin_limit_bytes, in_flight, relays);
        let registry = Arc::new(Registry::new(Box::new(DevicePinner(device.clone())), limits)?);
        Ok(held.insert(registry).clone())
    }

    /// Returns the bytes that all workers of a job keep under way.
    pub fn in_flight_bytes(&self, job: &JobSpec) -> u64 {
        let of_one = job.io_bytes_largest().saturating_mul(u64::from(job.depth));
        of_one.saturating_mul(u64::from(job.workers))
    }

    /// The registrations there are, if `mapped` ran.
    pub fn registered(&self) -> Option<Arc<Registry>> {
        self.mapped.lock().expect("nothing panics while it holds it").clone()
    }

    /// GPUs or pairs to which workers are assigned in turn.
    pub fn turns(&self) -> u32 {
        self.devices.len().max(1) as u32
    }

    /// The GPU that a worker feeds; GPUs are assigned in turn.
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
