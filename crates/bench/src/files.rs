//! Makes directories, and creates, stats, reads and deletes many files, on threads, and times each call.
//!
//! Everything happens in one directory that the run makes and removes, so that nothing
//! of the user's is ever in reach. Plain system calls on purpose: this measures the file
//! system as programs meet it, a path at a time.

mod run_folder;

use super::run_kit::{Gate, Lead, Stop, Team};
use forebay_io::{disks_behind, name_taken, CpuClock, CpuReading, DiskCounters};
use forebay_model::files::{Cache, FilesRecord, FilesSpec, Phase, PhaseResult, SCHEMA};
use forebay_model::record::Warning;
use forebay_model::units::BYTES_PER_GIB as GIB;
use forebay_model::{Error, Latency};
use run_folder::{Buffer, RunFolder};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

const TICK: Duration = Duration::from_millis(100);
/// Above this share of cached pages a read phase says more about memory than about storage.
const CACHED_SHARE: f64 = 0.05;

/// Progress of a run, given to the observer before each phase and about ten times a second.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Progress {
    /// A phase's name, `prepare` or `cleanup`.
    pub phase: &'static str,
    pub done: u64,
    pub files: u64,
    pub bytes: u64,
    pub t_s: f64,
    pub ops_s: f64,
}

/// Runs the phases. `observe` answers whether to go on: a first no ends the run and cleans
/// up, a second one ends the cleaning too. An error is returned only while nothing was
/// made; later ones are in the record.
pub fn run_files(
    spec: &FilesSpec,
    id: &str,
    observe: &mut dyn FnMut(&Progress) -> bool,
) -> Result<FilesRecord, Error> {
    spec.check()?;
    let folder = RunFolder::make(spec, id)?;
    let mut record = FilesRecord {
        schema: SCHEMA.into(),
        id: id.into(),
        job: spec.clone(),
        directory: folder.root.display().to_string(),
        phases: Vec::new(),
        interrupted: false,
        failure: None,
        left: None,
        missing: BTreeMap::new(),
        warnings: Vec::new(),
    };
    for &phase in &spec.phases {
        let resident = (phase == Phase::Read).then(|| before_reading(&folder, spec, &mut record, observe));
        if record.failure.is_some() || record.interrupted {
            break;
        }
        measure(&folder, phase, resident.flatten(), &mut record, observe);
        if record.failure.is_some() || record.interrupted {
            break;
        }
    }
    record.left = clean_up(&folder, observe);
    warn(&mut record);
    Ok(record)
}

/// Drops the files' pages where that was asked, then says what share of a sample is cached.
fn before_reading(
    folder: &RunFolder,
    spec: &FilesSpec,
    record: &mut FilesRecord,
    observe: &mut dyn FnMut(&Progress) -> bool,
) -> Option<f64> {
    if spec.cache == Cache::Drop {
        // One flush of the file system is far cheaper than one per file.
        folder.flush();
        let work = Work { folder, name: "prepare", call: Call::DropPages };
        let outcome = work.on_threads(observe);
        record.interrupted |= outcome.interrupted;
        record.failure = record.failure.take().or(outcome.failure);
    }
    match folder.resident_share() {
        Ok(share) => Some(share),
        Err(reason) => {
            record.missing.insert(format!("phases.{}.resident_before", record.phases.len()), reason);
            None
        }
    }
}

fn measure(
    folder: &RunFolder,
    phase: Phase,
    resident: Option<f64>,
    record: &mut FilesRecord,
    observe: &mut dyn FnMut(&Progress) -> bool,
) {
    let place = format!("phases.{}", record.phases.len());
    let devices = disks_behind(&folder.root).map(|behind| behind.numbers());
    let before = devices.and_then(|numbers| Ok((DiskCounters::read(&numbers)?, numbers)));
    let outcome = Work { folder, name: phase.name(), call: Call::Timed(phase) }.on_threads(observe);
    let reading = &outcome.cpu;
    let traffic = before.and_then(|(before, numbers)| DiskCounters::read(&numbers)?.since(&before));

    let seconds = outcome.seconds;
    let moves = matches!(phase, Phase::Create | Phase::Read) && seconds > 0.0;
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
    for (field, reason) in CpuReading::missing(reading, seconds, outcome.bytes, outcome.files) {
        record.missing.insert(format!("{place}.cpu.{field}"), reason);
    }
    if !moves {
        let reason = format!("{} moves no content", phase.name());
        record.missing.insert(format!("{place}.throughput_gib_s"), reason);
    }
    if phase != Phase::Read {
        record.missing.insert(format!("{place}.resident_before"), "measured in the read phase only".into());
    }
    if let Err(reason) = &traffic {
        for field in ["device_read_bytes", "device_written_bytes"] {
            record.missing.insert(format!("{place}.{field}"), reason.clone());
        }
    }
    let traffic = traffic.ok();
    record.phases.push(PhaseResult {
        phase,
        seconds,
        files: outcome.files,
        bytes: outcome.bytes,
        ops_s: if seconds > 0.0 { outcome.files as f64 / seconds } else { 0.0 },
        throughput_gib_s: moves.then(|| outcome.bytes as f64 / GIB / seconds),
        latency_us: outcome.latency.summary(),
        histogram: outcome.latency.encode(),
        cpu: CpuReading::fill(reading, seconds, outcome.bytes, outcome.files, cores),
        resident_before: resident,
        device_read_bytes: traffic.map(|t| t.read_bytes),
        device_written_bytes: traffic.map(|t| t.written_bytes),
        complete: outcome.files == folder.files,
    });
    record.interrupted |= outcome.interrupted;
    record.failure = outcome.failure;
}

/// Removes what is left of the files, then the directories. Some(what and why) where that failed.
fn clean_up(folder: &RunFolder, observe: &mut dyn FnMut(&Progress) -> bool) -> Option<String> {
    let shown = folder.root.display();
    for call in [Call::Remove, Call::RemoveDirectory] {
        if matches!(call, Call::RemoveDirectory) && !folder.has_begun_directories() {
            continue;
        }
        let outcome = Work { folder, name: "cleanup", call }.on_threads(observe);
        if outcome.interrupted {
            return Some(format!("{shown}: cleaning up was interrupted"));
        }
        if let Some(error) = outcome.failure {
            return Some(format!("{shown}: {}", error.found));
        }
    }
    folder.remove_directories().err().map(|e| format!("{shown}: {e}"))
}

fn warn(record: &mut FilesRecord) {
    let mut add = |id: &str, text: String, next: &str| {
        record.warnings.push(Warning { id: id.into(), text, next: next.into() });
    };
    if record.phases.iter().any(|p| matches!(p.phase, Phase::Stat | Phase::Read)) {
        let text = "stat and open found metadata that this kernel had just written and still held".into();
        add(
            "metadata_cached",
            text,
            "read them as the cost of the calls; a second client shows the server's",
        );
    }
    if let Some(share) = record.phases.iter().find_map(|p| p.resident_before.filter(|s| *s > CACHED_SHARE)) {
        let text = format!("{:.0} % of the content was in the page cache when reading began", 100.0 * share);
        add("cached", text, "‹cache› drop, and a file system that doesn't live in memory");
    }
    if record.phases.iter().any(|p| p.complete && p.seconds < 0.5) {
        add("too_short", "a phase took less than half a second".into(), "more ‹files›");
    }
    if record.interrupted {
        add("interrupted", "the run was stopped before it was done".into(), "");
    }
}

/// Calls of each thread on each of its files.
#[derive(Clone, Copy)]
enum Call {
    Timed(Phase),
    DropPages,
    /// As delete, and a file that isn't there is fine.
    Remove,
    /// The same of what mkdir made. What anyone put into it keeps it there.
    RemoveDirectory,
}

struct Work<'a> {
    folder: &'a RunFolder,
    name: &'static str,
    call: Call,
}

/// State that the threads share while they run.
struct Shared {
    stop: Stop,
    files: AtomicU64,
    bytes: AtomicU64,
    running: AtomicU64,
    /// From when the threads may go until the last is done, whatever the observer does meanwhile.
    clock: OnceLock<CpuClock>,
    cpu: OnceLock<CpuReading>,
}

impl Shared {
    fn new(workers: u32) -> Shared {
        Shared {
            stop: Stop::default(),
            files: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            running: AtomicU64::new(u64::from(workers)),
            clock: OnceLock::new(),
            cpu: OnceLock::new(),
        }
    }

    /// Counts a thread that has finished; the last one reads the meters.
    fn one_less(&self) {
        if self.running.fetch_sub(1, Relaxed) == 1 {
            self.read_meters();
        }
    }

    fn read_meters(&self) -> &CpuReading {
        self.cpu.get_or_init(|| self.clock.get_or_init(CpuClock::start).stop())
    }
}

struct Outcome {
    seconds: f64,
    files: u64,
    bytes: u64,
    latency: Latency,
    interrupted: bool,
    cpu: CpuReading,
    failure: Option<Error>,
}

impl Work<'_> {
    /// Runs the call over all files; the calling thread watches and lets `observe` end it.
    fn on_threads(&self, observe: &mut dyn FnMut(&Progress) -> bool) -> Outcome {
        let workers = self.folder.workers.min(self.folder.files.try_into().unwrap_or(u32::MAX));
        let shared = Shared::new(workers);
        // Before anything is done, so that an observer may say no to all of it.
        let refused = !observe(&self.progress(&shared, Duration::ZERO));
        if refused {
            shared.stop.set();
        }
        // What can't be done by all is done by none. Only cleaning up goes on with fewer.
        let cleans_up = matches!(self.call, Call::Remove | Call::RemoveDirectory);
        let team =
            Team::new("files", workers, &shared.stop).of_workers(self.folder.workers).or_fewer(cleans_up);
        let work = |worker, gate: &Gate| Ok(self.one_thread(worker, workers, &shared, gate));
        let ((interrupted, begun), parts) = team.run(work, |lead| {
            lead.open_gate(|| {
                shared.clock.get_or_init(CpuClock::start);
                Instant::now()
            });
            let begun = Instant::now();
            for worker in lead.missing() {
                self.one_thread(worker, workers, &shared, lead.gate());
            }
            (refused || self.watch(&shared, lead, begun, observe), begun)
        });
        // From the first thread's start: this thread may have been woken later than they were.
        let (mut first, mut last, mut latency) = (begun, begun, Latency::default());
        for (part, started, ended) in parts {
            latency.merge(&part);
            first = first.min(started);
            last = last.max(ended);
        }
        Outcome {
            seconds: (last - first).as_secs_f64(),
            files: shared.files.load(Relaxed),
            bytes: shared.bytes.load(Relaxed),
            latency,
            interrupted,
            cpu: shared.read_meters().clone(),
            failure: shared.stop.take_failure(),
        }
    }

    /// Returns when the threads are done or `observe` has said no.
    fn watch(
        &self,
        shared: &Shared,
        lead: &Lead,
        begun: Instant,
        observe: &mut dyn FnMut(&Progress) -> bool,
    ) -> bool {
        let mut next = begun + TICK;
        while lead.is_working() {
            lead.rest(next.saturating_duration_since(Instant::now()));
            if Instant::now() < next {
                continue;
            }
            next = Instant::now() + TICK;
            if !observe(&self.progress(shared, begun.elapsed())) {
                shared.stop.set();
                return true;
            }
        }
        false
    }

    fn progress(&self, shared: &Shared, elapsed: Duration) -> Progress {
        let (done, t_s) = (shared.files.load(Relaxed), elapsed.as_secs_f64());
        Progress {
            phase: self.name,
            done,
            files: self.folder.files,
            bytes: shared.bytes.load(Relaxed),
            t_s,
            ops_s: if t_s > 0.0 { done as f64 / t_s } else { 0.0 },
        }
    }

    fn one_thread(
        &self,
        worker: u32,
        workers: u32,
        shared: &Shared,
        gate: &Gate,
    ) -> (Latency, Instant, Instant) {
        let mut latency = Latency::default();
        let mut buffer = Buffer::new(self.folder, self.call.needs_content(), worker);
        gate.pass();
        let started = Instant::now();
        let mine = (u64::from(worker)..self.folder.files).step_by(workers as usize);
        let of_directories = self.call.is_of_directories();
        let most = if self.creates() { usize::MAX } else { self.folder.begun(worker, of_directories) };
        for file in mine.take(most) {
            if shared.stop.is_set() {
                break;
            }
            if self.creates() {
                self.folder.begin(worker, of_directories);
            }
            let path =
                if of_directories { self.folder.path_of_directory(file) } else { self.folder.path(file) };
            if self.removes() && !self.folder.is_ours(&path, file) {
                if matches!(self.call, Call::Remove) {
                    continue;
                }
                shared.stop.fail(name_taken(&path));
                break;
            }
            let begun = Instant::now();
            match self.one_file(&path, file, &mut buffer) {
                Ok((bytes, aside)) => {
                    latency.record(begun.elapsed().saturating_sub(aside).as_nanos() as u64);
                    shared.files.fetch_add(1, Relaxed);
                    shared.bytes.fetch_add(bytes, Relaxed);
                }
                Err(error) => {
                    shared.stop.fail(self.folder.explain(self.name, &path, &error));
                    break;
                }
            }
        }
        let ended = Instant::now();
        shared.one_less();
        (latency, started, ended)
    }

    fn creates(&self) -> bool {
        matches!(self.call, Call::Timed(Phase::Create | Phase::Mkdir))
    }

    fn removes(&self) -> bool {
        matches!(self.call, Call::Timed(Phase::Delete) | Call::Remove)
    }

    /// Bytes moved, and time within that isn't the call's.
    fn one_file(&self, path: &Path, file: u64, buffer: &mut Buffer) -> io::Result<(u64, Duration)> {
        let bytes = match self.call {
            Call::Timed(Phase::Create) => return self.folder.create(path, file, buffer.content(file)),
            Call::Timed(Phase::Mkdir) => std::fs::create_dir(path).map(|()| 0),
            Call::Timed(Phase::Stat) => std::fs::symlink_metadata(path).map(|_| 0),
            Call::Timed(Phase::Read) => self.folder.read(path, buffer.space()),
            Call::Timed(Phase::Delete) => std::fs::remove_file(path).map(|()| 0),
            Call::DropPages => self.folder.drop_pages(path).map(|()| 0),
            Call::Remove => or_not_there(std::fs::remove_file(path)),
            Call::RemoveDirectory => or_not_there(std::fs::remove_dir(path)),
        };
        bytes.map(|bytes| (bytes, Duration::ZERO))
    }
}

fn or_not_there(removed: io::Result<()>) -> io::Result<u64> {
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
        other => other.map(|()| 0),
    }
}

impl Call {
    fn is_of_directories(self) -> bool {
        matches!(self, Call::Timed(Phase::Mkdir) | Call::RemoveDirectory)
    }

    fn needs_content(self) -> bool {
        matches!(self, Call::Timed(Phase::Create | Phase::Read))
    }
}
