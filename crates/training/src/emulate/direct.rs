//! Directly into a GPU, past the workers' slots: what a whole run has for that. Files
//! are mapped and read by the device where they lie in the page cache, or cuFile knows
//! them; either way they are let go of when the last one who reads them is done.

use super::destination::Destination;
use super::direct_file::DirectFile;
use super::io_mode::IoMode;
use super::route::Route;
use forebay_io::{CudaDevice, Reactor};
use forebay_model::job::JobSpec;
use forebay_model::training::EmulateSpec;
use forebay_model::Error;
use forebay_storage::{DirectMeans, DirectNeeds, DirectQueues, FileTarget, MappedPath, Paths};
use std::collections::HashMap;
use std::fs::File;
use std::sync::{Arc, Mutex};

/// Files that stay mapped from epoch to epoch, with what of them is registered: a process may have 65,530 mappings.
const KEPT_MAX: u64 = 16_384;

pub(crate) struct DirectReads {
    /// By the number of the file. They go before the means do.
    kept: Mutex<HashMap<u32, Arc<DirectFile>>>,
    kept_max: usize,
    means: Arc<dyn DirectMeans>,
    devices: Vec<Arc<CudaDevice>>,
    /// One of the files, for what is the same of all.
    probe: FileTarget,
    /// Job that describes the request to the path.
    job: JobSpec,
}

impl DirectReads {
    /// None where bytes go through the workers' slots.
    pub(crate) fn open(
        spec: &EmulateSpec,
        route: &Route,
        io_mode: &IoMode,
        devices: &[Arc<CudaDevice>],
        files: u32,
    ) -> Result<Option<DirectReads>, Error> {
        let Some((probe, _)) = io_mode.probe.files().into_iter().next().filter(|_| route.passes_host())
        else {
            return Ok(None);
        };
        let device = devices.first().expect("what passes the host ends on a GPU");
        let job = JobSpec {
            path: route.path,
            io_bytes: io_mode.io_bytes,
            workers: io_mode.workers,
            depth: io_mode.depth,
            allow_compat: spec.allow_compat,
            require_direct: spec.require_direct,
            ..JobSpec::default()
        };
        let limits = MappedPath::limits(
            spec.pin_limit_bytes,
            io_mode.io_bytes * u64::from(io_mode.depth) * u64::from(io_mode.workers),
            0,
        );
        let means = Paths::by_kind(route.path).means(&job, device, limits)?;
        let means = means.expect("what passes the host has means to");
        let direct_reads = DirectReads {
            kept: Mutex::default(),
            kept_max: if Paths::by_kind(route.path).keeps_what_it_paid_for() { kept_max(files) } else { 0 },
            means,
            devices: devices.to_vec(),
            probe: probe.clone(),
            job,
        };
        direct_reads.means.begin(&direct_reads.probe, &direct_reads.devices)?;
        Ok(Some(direct_reads))
    }

    /// Returns the path's set-up of this type, if that is its.
    pub(crate) fn set_up<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        self.means.set_up().downcast().ok()
    }

    /// Returns the queues for a worker's streams, on the worker's thread.
    pub(crate) fn queues(
        &self,
        to: &Destination,
        io_mode: &IoMode,
        depth: u32,
        reactor: &mut Reactor,
    ) -> Result<Box<dyn DirectQueues>, Error> {
        let devices = (0..to.turns()).filter_map(|turn| to.device(turn)).collect();
        let needs = DirectNeeds { job: &self.job, devices, depth, io_bytes: io_mode.io_bytes };
        self.means.queues(&needs, reactor)
    }

    /// A file that stayed mapped.
    pub(crate) fn kept(&self, file: u32) -> Option<Arc<DirectFile>> {
        self.lock().get(&file).cloned()
    }

    /// Makes a file known that was just opened, to be read into the GPU of this turn. None: it is too short for that, and
    /// goes through the slots.
    pub(crate) fn hold(
        &self,
        number: u32,
        path: std::path::PathBuf,
        file: &Arc<File>,
        bytes: u64,
        turn: usize,
    ) -> Result<Option<Arc<DirectFile>>, Error> {
        if bytes < self.means.bytes_min() {
            return Ok(None);
        }
        let target = FileTarget { path, file: file.clone(), bytes, ..self.probe.clone() };
        self.means.hold(&target, &self.devices[turn])?;
        let held = Arc::new(DirectFile::new(target, self.means.clone()));
        let mut kept = self.lock();
        if kept.len() < self.kept_max {
            kept.insert(number, held.clone());
        }
        drop(kept);
        Ok(Some(held))
    }

    /// It isn't what it was: the next one who opens it finds it anew.
    pub(crate) fn forget(&self, file: u32) {
        drop(self.lock().remove(&file));
    }

    /// No read is longer than what is registered as a whole: memory for it would lie idle.
    pub(crate) fn within(&self, io_mode: IoMode) -> IoMode {
        let io_bytes = self.means.window_bytes().map_or(io_mode.io_bytes, |most| io_mode.io_bytes.min(most));
        IoMode { io_bytes, ..io_mode }
    }

    /// Most bytes that a read from `offset` on may have: none goes two ways.
    pub(crate) fn io_bytes_max(&self, offset: u64) -> u64 {
        self.means.window_bytes().map_or(u64::MAX, |window| window - offset % window)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<u32, Arc<DirectFile>>> {
        self.kept.lock().expect("nothing panics while it holds the files")
    }
}

/// Returns the greatest number of descriptors of files that stay mapped.
fn kept_max(files: u32) -> usize {
    let wanted = u64::from(files).min(KEPT_MAX);
    let now = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    now.map_or(wanted, |most| wanted.min(most / 2)) as usize
}

/// Descriptors that such files take.
pub(crate) fn descriptors(route: &Route, files: u32) -> u64 {
    if route.passes_host() && Paths::by_kind(route.path).keeps_what_it_paid_for() {
        2 * u64::from(files).min(KEPT_MAX)
    } else {
        0
    }
}
