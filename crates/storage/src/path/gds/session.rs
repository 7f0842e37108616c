//! Shared cuFile state of a job: the driver, the files known to it, how each device below goes, and the counters
//! before and after.

use super::verdict::{judge, ByRoute, Verdict};
use crate::source::file::FileTarget;
use crate::source::Target;
use forebay_io::{cufile, CuFileDriver, CuFileError, CuFileHandle, CuFileStats, CudaDevice, Io, Via};
use forebay_model::job::JobSpec;
use forebay_model::record::{Cufile, CufileProperties, CufileRoute};
use forebay_model::Error;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// Offsets and lengths that aren't multiples of this cost cuFile a detour.
pub(crate) const PAGE: u64 = 4096;
/// Longest read of the look beforehand.
const LOOK_BYTES_MAX: u64 = 16 << 20;
const NOTES_MAX: usize = 8;

/// A file that cuFile knows.
#[derive(Clone)]
pub struct GdsFile {
    pub handle: Arc<CuFileHandle>,
    pub file: Arc<File>,
    /// Way of its bytes, as far as was seen beforehand.
    pub via: Via,
}

impl GdsFile {
    /// Returns the present end of its data; a device's end isn't looked for.
    pub(crate) fn bytes_now(&self) -> u64 {
        self.file.metadata().ok().filter(std::fs::Metadata::is_file).map_or(u64::MAX, |m| m.len())
    }
}

/// Something that the record's reader should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    pub id: &'static str,
    pub text: String,
    pub next: &'static str,
}

#[derive(Clone, Debug, PartialEq)]
enum Route {
    Direct(String),
    Compat(String),
    Unproven(String),
}

/// Files that go the same way: their device, whether they are open with O_DIRECT, and the GPU.
type Kind = (Option<(u32, u32)>, bool, u32);

pub struct Session {
    // Field order is drop order: files are let go of before the driver.
    files: Mutex<BTreeMap<RawFd, GdsFile>>,
    driver: CuFileDriver,
    properties: CufileProperties,
    asked: Asked,
    routes: Mutex<Vec<CufileRoute>>,
    seen: Mutex<BTreeMap<Kind, Via>>,
    unaligned: AtomicU64,
    unregistered: AtomicBool,
    /// I/Os per batch as they run; 0 where there are none.
    batch: AtomicU32,
    before: Mutex<Option<Result<CuFileStats, String>>>,
    notes: Mutex<Vec<Note>>,
}

/// Relevant part of the job.
struct Asked {
    allow_compat: bool,
    mode: &'static str,
    batches: bool,
    unregistered: bool,
    io_bytes: u64,
    start: u64,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "cuFile from {}", self.driver.cufile().library)
    }
}

impl Session {
    /// Opens the driver. Without `--allow-compat` cuFile is told to fail rather than to fall back.
    pub fn open(job: &JobSpec, device: &CudaDevice) -> Result<Arc<Session>, Error> {
        const ASKED: &str = "‹path› gds";
        let library = cufile().map_err(|why| {
            Error::machine(
                ASKED,
                why,
                "‹path› bounce; or pip install nvidia-cufile, or CUDA with nvidia-gds; forebay doctor",
            )
        })?;
        device.enter().map_err(|why| Error::machine(ASKED, why.to_string(), "nvidia-smi"))?;
        let allow_compat = job.allow_compat && !job.require_direct;
        let driver = library.open(allow_compat).map_err(|e| no_driver(&e, allow_compat))?;
        let properties =
            driver.properties().map_err(|e| Error::machine(ASKED, e.to_string(), "forebay doctor"))?;
        let asked = Asked {
            allow_compat,
            mode: job.cufile.name(),
            batches: job.cufile.batches(),
            unregistered: job.cufile_unregistered,
            io_bytes: job.io_bytes_largest(),
            start: job.start_bytes,
        };
        Ok(Arc::new(Session {
            files: Mutex::default(),
            driver,
            properties,
            asked,
            routes: Mutex::default(),
            seen: Mutex::default(),
            unaligned: AtomicU64::new(0),
            unregistered: AtomicBool::new(job.cufile_unregistered),
            batch: AtomicU32::new(0),
            before: Mutex::default(),
            notes: Mutex::default(),
        }))
    }

    pub fn driver(&self) -> &CuFileDriver {
        &self.driver
    }

    pub fn properties(&self) -> &CufileProperties {
        &self.properties
    }

    /// Makes a target's files known to cuFile, and reads once from each device below to see how it goes.
    pub fn attach(&self, target: &Target, device: &Arc<CudaDevice>) -> Result<(), Error> {
        let enter = device.enter();
        enter.map_err(|why| Error::machine("‹path› gds", why.to_string(), "nvidia-smi"))?;
        for (target, _) in target.files() {
            let handle = self.driver.register_file(&target.file).map_err(|e| self.no_file(target, &e))?;
            let handle = Arc::new(handle);
            let kind = (target.device(), target.direct, device.index());
            let known = lock(&self.seen).get(&kind).copied();
            let via = match known {
                Some(via) => via,
                None => self.probe(target, &handle, device)?,
            };
            lock(&self.seen).insert(kind, via);
            let file = GdsFile { handle, file: target.file.clone(), via };
            lock(&self.files).insert(target.file.as_raw_fd(), file);
        }
        Ok(())
    }

    /// Lets go of a file that is about to be closed.
    pub fn detach(&self, target: &FileTarget) {
        lock(&self.files).remove(&target.file.as_raw_fd());
    }

    /// From here on the counters count for the record.
    pub fn begin(&self) {
        *lock(&self.before) = Some(CuFileStats::read(&self.driver).map_err(|e| e.to_string()));
    }

    pub fn file(&self, target: &FileTarget) -> Result<GdsFile, Error> {
        lock(&self.files).get(&target.file.as_raw_fd()).cloned().ok_or_else(|| {
            Error::run(
                target.path.display().to_string(),
                "it isn't registered with cuFile",
                "report this: it is a bug in Forebay",
            )
        })
    }

    /// Reads from the file once and sees which counter moves.
    fn probe(
        &self,
        target: &FileTarget,
        handle: &CuFileHandle,
        device: &Arc<CudaDevice>,
    ) -> Result<Via, Error> {
        let route = self.route_of(target, handle, device)?;
        let (name, evidence) = match &route {
            Route::Direct(why) => ("direct", why),
            Route::Compat(why) => ("compat", why),
            Route::Unproven(why) => ("unproven", why),
        };
        lock(&self.routes).push(CufileRoute {
            target: target.path.display().to_string(),
            route: name.into(),
            evidence: evidence.clone(),
        });
        match route {
            Route::Direct(_) => Ok(Via::Direct),
            Route::Compat(why) if !self.asked.allow_compat => Err(Error::machine(
                format!("‹path› gds from {}", target.path.display()),
                format!("cuFile runs in its compatibility mode here: {why}"),
                NEXT_COMPAT,
            )),
            _ => Ok(Via::Compat),
        }
    }

    fn route_of(
        &self,
        target: &FileTarget,
        handle: &CuFileHandle,
        device: &Arc<CudaDevice>,
    ) -> Result<Route, Error> {
        let start = if self.asked.start < target.bytes { self.asked.start } else { 0 };
        let bytes = self.asked.io_bytes.min(LOOK_BYTES_MAX).min(target.bytes - start) as usize;
        let before = CuFileStats::read(&self.driver);
        if bytes > 0 {
            self.read_once(target, handle, device, start, bytes)?;
        }
        let reported =
            before.and_then(|before| CuFileStats::read(&self.driver).map(|after| after.since(&before)));
        Ok(self.judge_look(target, reported, bytes))
    }

    fn judge_look(
        &self,
        target: &FileTarget,
        reported: Result<CuFileStats, CuFileError>,
        bytes: usize,
    ) -> Route {
        let calls = reported.as_ref().map(CuFileStats::calls).unwrap_or_default();
        let silent = match &reported {
            Err(e) => e.to_string(),
            Ok(_) if bytes == 0 => "the file is empty".into(),
            Ok(_) => "cuFile's counters didn't move".into(),
        };
        match (calls.p2p, calls.nvfs, calls.posix) {
            (1.., _, 0) => Route::Direct("a read went by PCI P2PDMA".into()),
            (0, 1.., 0) => Route::Direct("a read went by nvidia-fs".into()),
            (0, 0, 1..) => {
                Route::Compat(format!("cuFile counted a read as POSIX ({})", self.hindrance(target)))
            }
            (0, 0, 0) if self.driver.forbids_compat() || self.driver.allows_compat() == Some(false) => {
                Route::Direct(format!("compatibility mode was off, and a read succeeded ({silent})"))
            }
            (0, 0, 0) if self.properties.direct.is_empty() => {
                Route::Compat(format!("{} ({silent})", self.hindrance(target)))
            }
            (0, 0, 0) => Route::Unproven(silent),
            _ => Route::Unproven("one read was counted both as direct and as POSIX".into()),
        }
    }

    /// Returns why it can't go direct, from cuFile's properties and the file.
    fn hindrance(&self, target: &FileTarget) -> String {
        if self.driver.forces_compat() == Some(true) {
            return "force_compat_mode is on".into();
        }
        if self.properties.direct.is_empty() {
            let p2pdma = match self.driver.uses_p2pdma() {
                Some(false) => "PCI P2PDMA is off in cufile.json",
                _ => "PCI P2PDMA isn't available",
            };
            return format!("nvidia-fs {}: not loaded; {p2pdma}", self.properties.nvidia_fs);
        }
        if !target.direct {
            return "the file isn't open with O_DIRECT".into();
        }
        format!("direct here only: {}", self.properties.direct.join(", "))
    }

    fn read_once(
        &self,
        target: &FileTarget,
        handle: &CuFileHandle,
        device: &Arc<CudaDevice>,
        start: u64,
        bytes: usize,
    ) -> Result<(), Error> {
        let memory = device.slots(1, bytes.next_multiple_of(PAGE as usize))?;
        let registered = match self.asked.unregistered {
            true => None,
            false => self.driver.register_buffer(&memory).ok(),
        };
        // SAFETY: the memory is ours, and lives until the call returns.
        let read = unsafe { handle.read(memory.address(), 0, bytes, start) };
        drop(registered);
        read.map(|_| ()).map_err(|e| {
            let next =
                if self.asked.allow_compat { "forebay doctor SOURCE; cuFile's log" } else { NEXT_COMPAT };
            Error::machine(format!("‹path› gds from {}", target.path.display()), e.to_string(), next)
        })
    }

    fn no_file(&self, target: &FileTarget, e: &CuFileError) -> Error {
        let asked = format!("‹path› gds from {}", target.path.display());
        if e.lacks_udev() {
            let number = target.device().map_or_else(|| "?".into(), |(a, b)| format!("b{a}:{b}"));
            return Error::machine(
                asked,
                format!("{e}: libudev has no answer, as in a container without udev (/run/udev/data/{number})"),
                "forebay doctor SOURCE --fix-udev prints the fix (docker run -v /run/udev:/run/udev:ro works, too); ‹path› bounce",
            );
        }
        let next =
            if self.asked.allow_compat { "‹path› bounce; forebay doctor SOURCE" } else { NEXT_COMPAT };
        Error::machine(asked, e.to_string(), next)
    }

    /// Counts what cuFile has to round.
    #[inline]
    pub fn count(&self, io: &Io) {
        self.count_range(io.offset, u64::from(io.len));
    }

    /// As `count`, for a call of so many bytes.
    #[inline]
    pub fn count_range(&self, offset: u64, bytes: u64) {
        if (offset | bytes) % PAGE != 0 {
            self.unaligned.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Keeps the first few, once each.
    pub fn note(&self, id: &'static str, text: String, next: &'static str) {
        let (note, mut notes) = (Note { id, text, next }, lock(&self.notes));
        if notes.len() < NOTES_MAX && !notes.contains(&note) {
            notes.push(note);
        }
    }

    pub fn notes(&self) -> Vec<Note> {
        lock(&self.notes).clone()
    }

    /// A worker's buffers couldn't be registered; I/Os go through cuFile's own.
    pub fn stays_unregistered(&self, e: &CuFileError) {
        self.unregistered.store(true, Ordering::Relaxed);
        self.note(
            "cufile_unregistered",
            format!("buffers aren't registered with cuFile: {e}"),
            "a smaller ‹depth› or ‹workers›",
        );
    }

    pub(crate) fn batches_of(&self, entries: u32) {
        self.batch.store(entries, Ordering::Relaxed);
    }

    /// Everything below goes direct, as far as was seen beforehand.
    pub(crate) fn goes_direct(&self) -> bool {
        lock(&self.files).values().all(|f| f.via == Via::Direct)
    }

    fn reported(&self) -> Result<CuFileStats, String> {
        let before = lock(&self.before).clone().unwrap_or_else(|| Err("no run began".into()))?;
        CuFileStats::read(&self.driver).map(|now| now.since(&before)).map_err(|e| e.to_string())
    }

    /// Returns cuFile's part of the record, the way of the bytes, and reasons for nulls.
    pub fn report(&self, direct: u64, compat: u64) -> (Cufile, Verdict, BTreeMap<String, String>) {
        let reported = self.reported();
        let allows = self.driver.allows_compat();
        let no_fallback = self.driver.forbids_compat() || allows == Some(false);
        let by_route = ByRoute { direct, compat };
        let able = !self.properties.direct.is_empty();
        let verdict = judge(by_route, reported.as_ref().map_err(String::as_str), no_fallback, able);
        let batch = self.batch.load(Ordering::Relaxed);
        let cufile = Cufile {
            library: self.driver.cufile().library.clone(),
            version: self.driver.cufile().version(),
            mode: self.asked.mode.into(),
            batch: (self.asked.batches && batch > 0).then_some(batch),
            buffers_registered: !self.unregistered.load(Ordering::Relaxed),
            allow_compat_mode: if self.driver.forbids_compat() { Some(false) } else { allows },
            properties: self.properties.clone(),
            routes: lock(&self.routes).clone(),
            unaligned_ios: self.unaligned.load(Ordering::Relaxed),
            gpus: reported.as_ref().ok().map(|s| s.gpus.clone()),
            batches: reported.as_ref().ok().map(|s| s.batches.clone()),
        };
        let mut missing = BTreeMap::new();
        if let Err(why) = reported {
            missing.insert("cufile.gpus".into(), why.clone());
            missing.insert("cufile.batches".into(), why);
        }
        if cufile.version.is_none() {
            missing.insert("cufile.version".into(), "the library has no cuFileGetVersion".into());
        }
        if cufile.allow_compat_mode.is_none() {
            missing.insert(
                "cufile.allow_compat_mode".into(),
                "the library has no cuFileGetParameterBool".into(),
            );
        }
        (cufile, verdict, missing)
    }
}

const NEXT_COMPAT: &str = "forebay doctor SOURCE for the reason; ‹allow_compat› to accept it; ‹path› bounce";

fn no_driver(e: &CuFileError, allow_compat: bool) -> Error {
    let next = if allow_compat { "forebay doctor; ‹path› bounce" } else { NEXT_COMPAT };
    Error::machine("‹path› gds", e.to_string(), next)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no thread panics while it holds it")
}
