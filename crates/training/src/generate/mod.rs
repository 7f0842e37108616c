//! `emulate datagen`: makes a data set at the speed of the device. Threads take files in turn; each file is made, summed
//! and written front to back, a mebibyte at a time.

mod folder;
pub(crate) mod manifest;
mod packed;
pub(crate) mod pump;
mod spec;
#[cfg(test)]
mod tests;

pub use spec::DatagenSpec;

use crate::format::write::Writer;
use crate::format::{ParseSpec, Parser};
use folder::Folder;
use forebay_bench::Team;
use forebay_io::{monotonic_now, ring_refused, CpuTimes, Reactor};
use forebay_model::job::Engine;
use forebay_model::record::Build;
use forebay_model::units::BYTES_PER_GIB as GIB;
use forebay_model::Error;
use forebay_storage::{FileAccess, FileTarget, QueueNeeds};
use pump::{Halt, Pump, Shared};
use serde::Serialize;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

pub(crate) const SCHEMA: &str = "forebay.datagen/1";
/// Interval at which progress is reported, and the caller asked whether to go on.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Progress of the creation. Bytes and files of this run alone.
#[derive(Clone, Debug, Serialize)]
pub struct DatagenProgress {
    /// `make` or `check`.
    pub phase: &'static str,
    pub files: u64,
    pub files_total: u64,
    pub bytes: u64,
    pub bytes_total: u64,
    pub t_s: f64,
    /// Since the phase began.
    pub gib_s: f64,
}

/// Record of the creation.
#[derive(Clone, Debug, Serialize)]
pub struct DatagenRecord {
    pub schema: &'static str,
    pub forebay: Build,
    pub data: String,
    pub workload: String,
    pub format: String,
    pub files: u64,
    /// Bytes of the whole data set.
    pub bytes: u64,
    pub samples: u64,
    /// Files that were there already.
    pub files_found: u64,
    pub files_made: u64,
    pub written_bytes: u64,
    pub seconds: f64,
    pub throughput_gib_s: Option<f64>,
    /// User and system time of the process.
    pub cpu_s: f64,
    pub cpu_s_per_gib: Option<f64>,
    pub workers: u32,
    /// Past the page cache.
    pub direct: bool,
    /// None: nobody asked for it.
    pub check: Option<Checked>,
    /// Path of the manifest; None in a source, whose first bytes it is.
    pub manifest: Option<String>,
    pub dry_run: bool,
}

#[derive(Clone, Debug, Serialize)]
pub struct Checked {
    pub files: u64,
    pub bytes: u64,
    pub seconds: f64,
}

/// Result of one phase.
#[derive(Clone, Copy, Debug, Default)]
struct PhaseResult {
    files: u64,
    bytes: u64,
    seconds: f64,
    cpu_s: f64,
}

/// Told how it is going some ten times a second; false ends it.
pub(crate) type Observe<'a> = &'a mut dyn FnMut(&DatagenProgress) -> bool;

/// Makes what is missing of the data set.
///
/// # Errors
/// `Request`: another data set is there. `Machine`: it doesn't fit. `Run`: it broke off, and what is finished stays.
/// `Check`: what was read back is damaged.
pub fn generate_data(spec: &DatagenSpec, observe: Observe) -> Result<DatagenRecord, Error> {
    spec.check()?;
    if packed::is_source(&spec.data) {
        return packed::run(spec, observe);
    }
    let bytes = spec.file_bytes()?;
    let folder = Folder::open(spec, &bytes)?;
    let task = FolderTask { spec, folder: &folder, bytes: &bytes, direct: AtomicBool::new(false) };
    let found = folder.finished() as u64;
    let mut record = record_of(spec, &bytes, found);
    record.manifest = Some(folder.manifest().display().to_string());
    if spec.dry_run {
        return Ok(record);
    }
    let missing: Vec<u32> = (0..spec.files).filter(|n| !folder.is_finished(*n)).collect();
    let made = phase("make", spec, &missing, &bytes, observe, &|work| task.make(work))?;
    if made.files < missing.len() as u64 {
        return Err(folder.interrupted(&made, spec.files));
    }
    folder.close()?;
    record.add(&made);
    record.direct = task.direct.load(Ordering::Relaxed);
    if spec.check {
        let all: Vec<u32> = (0..spec.files).collect();
        let read = phase("check", spec, &all, &bytes, observe, &|work| task.check(work))?;
        record.check = Some(checked(&read, spec.files)?);
    }
    Ok(record)
}

fn record_of(spec: &DatagenSpec, bytes: &[u64], found: u64) -> DatagenRecord {
    DatagenRecord {
        schema: SCHEMA,
        forebay: forebay_io::current_build(),
        data: spec.data.clone(),
        workload: spec.workload.clone(),
        format: spec.format.clone(),
        files: spec.files.into(),
        bytes: bytes.iter().sum(),
        samples: u64::from(spec.files) * u64::from(spec.samples_per_file),
        files_found: found,
        files_made: 0,
        written_bytes: 0,
        seconds: 0.0,
        throughput_gib_s: None,
        cpu_s: 0.0,
        cpu_s_per_gib: None,
        workers: spec.workers(),
        direct: false,
        check: None,
        manifest: None,
        dry_run: spec.dry_run,
    }
}

impl DatagenRecord {
    fn add(&mut self, made: &PhaseResult) {
        self.files_made = made.files;
        self.written_bytes = made.bytes;
        (self.seconds, self.cpu_s) = (made.seconds, made.cpu_s);
        if made.bytes > 0 {
            let gib = made.bytes as f64 / GIB;
            self.throughput_gib_s = Some(gib / made.seconds);
            self.cpu_s_per_gib = Some(made.cpu_s / gib);
        }
    }
}

fn checked(read: &PhaseResult, files: u32) -> Result<Checked, Error> {
    if read.files < u64::from(files) {
        let found = format!("was interrupted after {} of {files} files, all of them good", read.files);
        return Err(Error::run("the check of the data set", found, "the same command again"));
    }
    Ok(Checked { files: read.files, bytes: read.bytes, seconds: read.seconds })
}

/// The work that the threads of a phase share.
struct Work<'a> {
    files: &'a [u32],
    next: AtomicU32,
    done: AtomicU64,
    shared: Shared,
}

impl Work<'_> {
    fn take(&self) -> Option<u32> {
        if self.shared.stop.is_set() {
            return None;
        }
        let index = self.next.fetch_add(1, Ordering::Relaxed) as usize;
        self.files.get(index).copied()
    }
}

type Worker<'a> = &'a (dyn Fn(&Work) -> Result<(), Error> + Sync);

/// Processes all files on threads. Fewer files without an error: it was interrupted.
fn phase(
    name: &'static str,
    spec: &DatagenSpec,
    files: &[u32],
    bytes: &[u64],
    observe: Observe,
    worker: Worker,
) -> Result<PhaseResult, Error> {
    let work = Work { files, next: AtomicU32::new(0), done: AtomicU64::new(0), shared: Shared::default() };
    let total = files.iter().map(|n| bytes[*n as usize]).sum();
    let (began, cpu_before) = (monotonic_now(), CpuTimes::of_process().total_s());
    let threads = spec.workers().min(files.len() as u32);
    let team = Team::new("datagen", threads, &work.shared.stop).of_workers(spec.workers.unwrap_or(threads));
    let mut look = || observe(&progress(name, &work, total, began));
    team.run(|_, _| worker(&work), |lead| lead.watch(POLL_INTERVAL, &mut look));
    look();
    match work.shared.stop.take_failure() {
        Some(error) => Err(error),
        None => Ok(PhaseResult {
            files: work.done.into_inner(),
            bytes: work.shared.bytes.into_inner(),
            seconds: began.elapsed().as_secs_f64(),
            cpu_s: CpuTimes::of_process().total_s() - cpu_before,
        }),
    }
}

fn progress(phase: &'static str, work: &Work, bytes_total: u64, began: Instant) -> DatagenProgress {
    let (bytes, t_s) = (work.shared.bytes.load(Ordering::Relaxed), began.elapsed().as_secs_f64());
    DatagenProgress {
        phase,
        files: work.done.load(Ordering::Relaxed),
        files_total: work.files.len() as u64,
        bytes,
        bytes_total,
        t_s,
        gib_s: if t_s > 0.0 { bytes as f64 / GIB / t_s } else { 0.0 },
    }
}

/// A folder that is being filled or checked.
struct FolderTask<'a> {
    spec: &'a DatagenSpec,
    folder: &'a Folder,
    bytes: &'a [u64],
    direct: AtomicBool,
}

impl FolderTask<'_> {
    /// Each I/O is one call that lasts as long as the device takes: there are more threads than processors.
    fn pump(&self) -> Result<Pump, Error> {
        Pump::new(Reactor::without_ring(), 1, self.spec.io_bytes)
    }

    fn needs(&self) -> QueueNeeds {
        QueueNeeds::new(1, self.spec.io_bytes)
    }

    fn make(&self, work: &Work) -> Result<(), Error> {
        let (mut pump, mut writer) = (self.pump()?, self.spec.writer()?);
        while let Some(number) = work.take() {
            let done = self.make_file(number, &mut pump, &mut writer, &work.shared);
            match done {
                Ok(true) => work.done.fetch_add(1, Ordering::Relaxed),
                Ok(false) => break,
                Err(error) => {
                    self.folder.forget(self.spec, number);
                    return Err(error);
                }
            };
        }
        Ok(())
    }

    /// False: it was to stop, and the file is gone.
    fn make_file(
        &self,
        number: u32,
        pump: &mut Pump,
        writer: &mut Writer,
        shared: &Shared,
    ) -> Result<bool, Error> {
        let bytes = self.bytes[number as usize];
        let path = self.folder.begin(self.spec, number, bytes)?;
        let target = open(&path, true)?;
        self.direct.fetch_or(target.direct, Ordering::Relaxed);
        let align = target.align;
        let queue = target.queue(Engine::Inline, self.needs(), &mut pump.reactor)?;
        pump.take_on(queue);
        let shape = self.spec.shape(number);
        let written = pump.write(writer, shape, 0, align, shared);
        pump.let_go();
        match written {
            Ok(()) => {
                self.folder.put_beside(self.spec, number, &writer.beside(shape))?;
                self.folder.finish(self.spec, number, bytes).map(|()| true)
            }
            Err(Halt::Stopped) => {
                self.folder.forget(self.spec, number);
                Ok(false)
            }
            Err(halt) => Err(self.failed(&path, halt)),
        }
    }

    fn check(&self, work: &Work) -> Result<(), Error> {
        let (mut pump, mut parser) = (self.pump()?, parser(self.spec)?);
        while let Some(number) = work.take() {
            let path = self.folder.path(self.spec, number);
            let target = open(&path, false)?;
            let queue = target.queue(Engine::Inline, self.needs(), &mut pump.reactor)?;
            pump.take_on(queue);
            let bytes = self.bytes[number as usize];
            let checked = pump.check(&mut *parser, 0, bytes, 1, &work.shared);
            pump.let_go();
            match checked {
                Ok(()) => work.done.fetch_add(1, Ordering::Relaxed),
                Err(Halt::Stopped) => break,
                Err(halt) => return Err(self.failed(&path, halt)),
            };
        }
        Ok(())
    }

    fn failed(&self, path: &Path, halt: Halt) -> Error {
        match halt {
            Halt::Io { fault, .. } if fault.note.is_none() => {
                self.folder.broke(path, &std::io::Error::from_raw_os_error(fault.errno))
            }
            Halt::Io { offset, fault } => {
                Error::run(format!("{} at {offset}", path.display()), fault.to_string(), "dmesg | tail")
            }
            Halt::Damaged(damage) => damaged(&path.display().to_string(), &damage),
            Halt::Refused(why) => ring_refused(&why),
            Halt::Stopped => {
                Error::run(path.display().to_string(), "was interrupted", "the same command again")
            }
        }
    }
}

fn damaged(file: &str, damage: &crate::format::Damage) -> Error {
    Error::check(
        format!("the check of {file}"),
        damage.to_string(),
        "rm that file, and the same command again",
    )
}

fn parser(spec: &DatagenSpec) -> Result<Box<dyn Parser>, Error> {
    let parse = ParseSpec { samples_per_file: spec.samples_per_file, ..ParseSpec::default() };
    Ok((spec.row()?.parser)(&parse))
}

/// Past the page cache where that can be had.
fn open(path: &Path, write: bool) -> Result<FileTarget, Error> {
    let access = |direct| FileAccess { write, direct };
    FileTarget::open(path, access(true)).or_else(|_| FileTarget::open(path, access(false)))
}
