//! A file that is open for feeding: buffered, by O_DIRECT, and mapped.

use super::request::{Place, Range, Request};
use super::rows::{Fetch, COPIED_ROW_BYTES_MAX, ROW_BYTES_MAX};
use super::thread_pool;
use super::windows::{cap_bytes, Windows};
use super::{MIXED_WINDOW_BYTES, MIXED_WORKERS_MIN, WINDOWED_AT_ONCE_BYTES_MIN, WINDOWED_BYTES_MIN};
use crate::copy;
use crate::gpu::kernels::Rows;
use crate::meter::cache;
use crate::process::PerProcess;
use crate::source::file::{FileAccess, FileTarget};
use forebay_model::Error;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

/// How bytes shall reach a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Whatever suits each range.
    Auto,
    /// Through pinned slots.
    Bounce,
    /// By DMA out of the page cache, of what is in it.
    Mapped,
    /// No GPU: destinations are host memory.
    Host,
}

impl Way {
    pub const NAMES: &[(&str, Way)] =
        &[("auto", Way::Auto), ("bounce", Way::Bounce), ("mapped", Way::Mapped), ("host", Way::Host)];

    pub fn parse(text: &str) -> Result<Way, Error> {
        let named = Way::NAMES.iter().find(|(name, _)| *name == text);
        named.map(|(_, way)| *way).ok_or_else(|| {
            let known: Vec<&str> = Way::NAMES.iter().map(|(name, _)| *name).collect();
            Error::request(format!("path={text:?}"), "no such path for reading from Python", known.join(", "))
        })
    }
}

/// What tells that a file is no longer what it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    pub bytes: u64,
    modified: (i64, i64),
}

/// An open file; what it holds is given back when the last request and the last handle let go of it.
pub struct Reader {
    pub path: PathBuf,
    pub way: Way,
    /// Some(true): always past the page cache. Some(false): never. None: past it for what isn't in it.
    pub direct: Option<bool>,
    /// It is read one time and let go of in the background, so that unregistering what was read costs nobody's wait.
    once: bool,
    cached: FileTarget,
    uncached: Option<FileTarget>,
    map: Option<Map>,
    /// Made when it is first worth it; why it can't be had.
    windows: OnceLock<Result<Arc<Windows>, Error>>,
    /// Bytes of rows that were asked for.
    gathered: AtomicU64,
    /// Rows that were asked for of processors.
    copied: AtomicU64,
    /// What fetches rows, by GPU.
    rows: Mutex<Vec<(u32, Rows)>>,
    /// Of this process: what its parent reads doesn't end here.
    under_way: PerProcess<Mutex<Vec<Weak<Request>>>>,
}

impl Reader {
    pub fn open(path: &Path, way: Way, direct: Option<bool>, once: bool) -> Result<Reader, Error> {
        let cached = FileTarget::open(path, FileAccess { write: false, direct: false }).map_err(in_python)?;
        let uncached = match direct {
            Some(false) => None,
            _ => FileTarget::open(path, FileAccess { write: false, direct: true }).ok().filter(|t| t.direct),
        };
        if direct == Some(true) && uncached.is_none() {
            return Err(Error::machine(
                format!("direct=True for {}", path.display()),
                "its file system doesn't support O_DIRECT",
                "direct=None, and the report says which way the bytes went",
            ));
        }
        let map = (copy::GUARDED && cached.bytes > 0).then(|| Map::new(&cached)).flatten();
        Ok(Reader {
            path: path.into(),
            way,
            direct,
            once,
            cached,
            uncached,
            map,
            windows: OnceLock::new(),
            gathered: AtomicU64::new(0),
            copied: AtomicU64::new(0),
            rows: Mutex::default(),
            under_way: PerProcess::new(),
        })
    }

    /// The file's size now.
    pub fn bytes(&self) -> Result<u64, Error> {
        Ok(self.stamp()?.bytes)
    }

    pub(super) fn stamp(&self) -> Result<Stamp, Error> {
        let meta = self.cached.file.metadata().map_err(|e| {
            Error::run(format!("the size of {}", self.path.display()), e.to_string(), "forebay doctor")
        })?;
        let bytes = if self.cached.is_device { self.cached.bytes } else { meta.len() };
        // A device's node isn't touched by writes to the device.
        let modified = if self.cached.is_device { (0, 0) } else { (meta.mtime(), meta.mtime_nsec()) };
        Ok(Stamp { bytes, modified })
    }

    pub(super) fn fd(&self) -> RawFd {
        self.cached.file.as_raw_fd()
    }

    /// The descriptor that bypasses the page cache, and the unit of its offsets and addresses.
    pub(super) fn direct_fd(&self) -> Option<(RawFd, usize)> {
        let target = self.uncached.as_ref()?;
        Some((target.file.as_raw_fd(), target.align.max(target.mem_align).max(512) as usize))
    }

    /// How much of a range the page cache holds, 0 to 1; None where the system won't tell.
    pub(super) fn cached_share(&self, offset: u64, bytes: usize) -> Option<f64> {
        cache::residency(&self.cached.file, offset, bytes as u64).ok()
    }

    /// The range in the mapping, where it was read before: filling page tables, and taking them down, costs more
    /// than one reading of the file gains.
    pub(super) fn mapped(&self, offset: u64, bytes: usize) -> Option<*const u8> {
        let map = self.map.as_ref().filter(|map| offset + bytes as u64 <= map.bytes)?;
        if !map.note_read(offset, bytes) {
            return None;
        }
        map.populate(offset, bytes);
        // SAFETY: the range lies inside the mapping, as was just checked.
        Some(unsafe { map.at.add(offset as usize) })
    }

    /// Whether the file was as long when it was opened: what is mapped and registered ends there, and who grew it since
    /// has the rest read by system calls.
    pub(super) fn was_as_long(&self, end: u64) -> bool {
        end <= self.cached.bytes
    }

    /// Windows to read these ranges through, if that is asked for or pays: registering and unregistering take as long
    /// as one reading gains, so `auto` does so from the second one on; from the first where nobody waits for the latter.
    pub(super) fn windows_for(&self, ranges: &[Range]) -> Result<Option<&Arc<Windows>>, Error> {
        let long = |r: &&Range| r.to.gpu().is_some() && r.bytes >= WINDOWED_BYTES_MIN;
        let (Some(gpu), Some(map)) = (ranges.iter().find(long).and_then(|r| r.to.gpu()), &self.map) else {
            return Ok(None);
        };
        let again = |r: &Range| map.was_read(r.offset, r.bytes);
        let wanted = match self.way {
            Way::Mapped => true,
            Way::Auto => {
                self.direct != Some(true)
                    && (ranges.iter().filter(long).all(again) || self.pays_at_once(ranges))
                    && (self.windows.get().is_some() || Windows::fits(&self.cached))
            }
            Way::Bounce | Way::Host => false,
        };
        if !wanted {
            return Ok(None);
        }
        match self.fresh_windows(gpu) {
            Err(error) if self.way == Way::Mapped => Err(error),
            fresh => Ok(fresh.ok()),
        }
    }

    fn fresh_windows(&self, gpu: u32) -> Result<&Arc<Windows>, Error> {
        let made = self.windows.get_or_init(|| {
            let most = if self.once { MIXED_WINDOW_BYTES } else { u64::MAX };
            thread_pool::device(gpu)
                .and_then(|device| Windows::open(&self.cached, device, most))
                .map(Arc::new)
        });
        made.as_ref().map_err(Error::clone).and_then(|w| w.refresh().map(|()| w))
    }

    /// Who brings `count` rows of `row_bytes`, where that is no matter of ranges: the GPU itself, if that is asked for or
    /// pays, or processors, towards host memory and where slots are asked for. `auto` registers the file once rows of
    /// half of its bytes were asked for, which by hand took about as long as that will.
    ///
    /// # Errors
    /// With `Way::Mapped`: why it can't. A file that is longer than may be registered goes through slots.
    pub(super) fn rows_for(&self, to: Place, count: usize, row_bytes: usize) -> Result<Option<Fetch>, Error> {
        let bytes = (count * row_bytes) as u64;
        if self.map.is_none() || bytes == 0 {
            return Ok(None);
        }
        let Some(gpu) = to.gpu().filter(|_| self.way != Way::Bounce) else {
            return Ok(self.copied_for(to, count, row_bytes));
        };
        let asked = self.gathered.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let fits = || self.windows().is_some() || Windows::fits(&self.cached);
        let wanted = match self.way {
            Way::Mapped => fits(),
            Way::Auto => self.direct != Some(true) && asked >= self.cached.bytes / 2 && fits(),
            Way::Bounce | Way::Host => false,
        };
        if !wanted || row_bytes > ROW_BYTES_MAX {
            return Ok(None);
        }
        match self.rows_on(gpu).and_then(|rows| self.fresh_windows(gpu).map(|_| rows)) {
            Err(error) if self.way == Way::Mapped => Err(error),
            ready => Ok(ready.ok().map(Fetch::Gpu)),
        }
    }

    /// Rows that processors copy out of the mapping, where the system tells what is cached, once so many were asked for
    /// that filling page tables pays.
    fn copied_for(&self, to: Place, count: usize, row_bytes: usize) -> Option<Fetch> {
        let map = self.map.as_ref().filter(|_| self.direct != Some(true))?;
        let asked = self.copied.fetch_add(count as u64, Ordering::Relaxed) + count as u64;
        let pays = asked >= map.bytes.div_ceil(WINDOW) * ROWS_PER_WINDOW_MIN;
        if !pays || row_bytes > COPIED_ROW_BYTES_MAX || self.cached_share(0, 1).is_none() {
            return None;
        }
        map.look_again();
        Some(Fetch::Processors(to.gpu().and_then(|gpu| self.rows_on(gpu).ok())))
    }

    /// Where a row lies in the mapping, if what lies around it is cached. That is asked once a second: what is dropped
    /// meanwhile is read in again when it is copied.
    pub(super) fn resident(&self, offset: u64, bytes: usize) -> Option<*const u8> {
        let map = self.map.as_ref().filter(|map| offset + bytes as u64 <= map.bytes)?;
        let whole = |window: u64| {
            let bytes = WINDOW.min(map.bytes - window * WINDOW) as usize;
            self.cached_share(window * WINDOW, bytes).is_some_and(|share| share >= 1.0)
        };
        let mut windows = offset / WINDOW..(offset + bytes as u64).div_ceil(WINDOW);
        if !windows.all(|window| map.is_resident(window, whole)) {
            return None;
        }
        // SAFETY: the row lies inside the mapping, as was just checked.
        Some(unsafe { map.at.add(offset as usize) })
    }

    /// Where the file lies in memory, if all of it is cached, as far as `resident` was told in the last second.
    pub(super) fn whole(&self) -> Option<*const u8> {
        self.map.as_ref().filter(|map| map.is_whole()).map(|map| map.at)
    }

    fn rows_on(&self, gpu: u32) -> Result<Rows, Error> {
        let mut all = self.rows.lock().expect("no holder panics");
        if let Some((_, rows)) = all.iter().find(|(of, _)| *of == gpu) {
            return Ok(rows.clone());
        }
        let device = thread_pool::device(gpu)?;
        if !device.reads_registered() {
            return Err(Error::machine(
                format!("rows of {} fetched by GPU {gpu}", self.path.display()),
                "it doesn't read registered memory at the host's addresses",
                "path=\"bounce\"",
            ));
        }
        let rows = Rows::open(&device)?;
        all.push((gpu, rows.clone()));
        Ok(rows)
    }

    /// Whether processors copy a part of what is read one time, while the rest is registered: that costs more of their time,
    /// and uses the link's rate.
    pub(super) fn mixes(&self, bytes: usize) -> bool {
        self.once
            && self.way == Way::Auto
            && bytes >= WINDOWED_AT_ONCE_BYTES_MIN
            && thread_pool::threads() >= MIXED_WORKERS_MIN
            && self.windows().is_some_and(|windows| windows.is_untouched())
    }

    /// A quarter of the processor time of copying by hand; pages of memory file systems are small, and cost more.
    fn pays_at_once(&self, ranges: &[Range]) -> bool {
        let bytes: usize = ranges.iter().map(|r| r.bytes).sum();
        let all_cached =
            || ranges.iter().all(|r| self.cached_share(r.offset, r.bytes).is_some_and(|s| s >= 1.0));
        self.once && !self.cached.in_memory && bytes >= WINDOWED_AT_ONCE_BYTES_MIN && all_cached()
    }

    pub(super) fn windows(&self) -> Option<&Arc<Windows>> {
        self.windows.get().and_then(|made| made.as_ref().ok())
    }

    pub(super) fn note(&self, request: &Arc<Request>) {
        let mut all = self.under_way.lock().expect("no holder panics");
        all.retain(|r| r.upgrade().is_some_and(|r| !r.is_done()));
        all.push(Arc::downgrade(request));
    }

    /// Waits until no request reads from it, and lets go of it: in the background where it was opened for one reading.
    pub fn close(self: Arc<Reader>) {
        self.settle();
        if self.once && self.windows().is_some() {
            let bytes = self.cached.bytes;
            thread_pool::drop_aside(self, bytes, cap_bytes());
        }
    }

    /// Waits until no request reads from it.
    pub fn settle(&self) {
        let all = std::mem::take(&mut *self.under_way.lock().expect("no holder panics"));
        for request in all.iter().filter_map(Weak::upgrade) {
            request.wait(None);
        }
    }
}

/// What the command line advises doesn't help a caller in Python.
fn in_python(error: Error) -> Error {
    let next = match error.kind {
        forebay_model::Kind::Request => "a file that exists and may be read",
        _ => "forebay doctor",
    };
    Error { next: next.into(), ..error }
}

/// The whole file, for reading by `copy::guarded` alone.
struct Map {
    at: *const u8,
    bytes: u64,
    /// A bit per window that was read.
    read: Bits,
    /// A bit per window whose page tables were filled: one call in place of a thousand faults.
    populated: Bits,
    /// Bits per window, as was last asked: not all of it is cached, or all is.
    absent: Bits,
    resident: Bits,
    /// How many of the latter are set, or so: what is dropped meanwhile is read in again.
    resident_count: AtomicU64,
    /// When all bits of these two were last unset.
    looked: Mutex<Instant>,
}

struct Bits(Vec<AtomicU64>);

impl Bits {
    fn new(count: u64) -> Bits {
        Bits((0..count.div_ceil(64)).map(|_| AtomicU64::new(0)).collect())
    }

    fn get(&self, index: u64) -> bool {
        self.0[(index / 64) as usize].load(Ordering::Relaxed) & (1 << (index % 64)) != 0
    }

    /// Sets a bit; whether it was set before.
    fn set(&self, index: u64) -> bool {
        let bit = 1 << (index % 64);
        self.0[(index / 64) as usize].fetch_or(bit, Ordering::Relaxed) & bit != 0
    }

    fn unset_all(&self) {
        self.0.iter().for_each(|bits| bits.store(0, Ordering::Relaxed));
    }
}

/// Windows of page tables.
const WINDOW: u64 = 4 << 20;
/// Filling the page tables of a window takes about as long as reading this many rows by system calls.
const ROWS_PER_WINDOW_MIN: u64 = 32;
/// So often it is asked what is cached of a window that rows are copied from.
const LOOKED_EVERY: Duration = Duration::from_secs(1);

// SAFETY: the mapping is read-only and stays until the Reader is dropped.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl Map {
    /// None where the system gives no room for it: the file is then read by system calls.
    fn new(target: &FileTarget) -> Option<Map> {
        copy::install_guard();
        let (protection, flags) = (libc::PROT_READ, libc::MAP_SHARED);
        let fd = target.file.as_raw_fd();
        // SAFETY: a fresh read-only mapping of an open file, at an address of the kernel's choice.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), target.bytes as usize, protection, flags, fd, 0) };
        let windows = target.bytes.div_ceil(WINDOW);
        (at != libc::MAP_FAILED).then(|| Map {
            at: at.cast(),
            bytes: target.bytes,
            read: Bits::new(windows),
            populated: Bits::new(windows),
            absent: Bits::new(windows),
            resident: Bits::new(windows),
            resident_count: AtomicU64::new(0),
            looked: Mutex::new(Instant::now()),
        })
    }

    /// Whether all of it had been read before.
    fn note_read(&self, offset: u64, bytes: usize) -> bool {
        let windows = offset / WINDOW..(offset + bytes as u64).div_ceil(WINDOW);
        windows.filter(|window| !self.read.set(*window)).count() == 0
    }

    fn was_read(&self, offset: u64, bytes: usize) -> bool {
        let end = offset + bytes as u64;
        end <= self.bytes && (offset / WINDOW..end.div_ceil(WINDOW)).all(|window| self.read.get(window))
    }

    /// Has `is_resident` ask anew, at most once a second.
    fn look_again(&self) {
        // Whoever has it looks; or had it when this process was forked.
        let Ok(mut looked) = self.looked.try_lock() else { return };
        if looked.elapsed() >= LOOKED_EVERY {
            *looked = Instant::now();
            self.absent.unset_all();
            self.resident.unset_all();
            self.resident_count.store(0, Ordering::Relaxed);
        }
    }

    /// Whether all of a window was cached when that was last asked of `whole`; its page tables are filled then.
    fn is_resident(&self, window: u64, whole: impl Fn(u64) -> bool) -> bool {
        if self.resident.get(window) {
            return true;
        }
        if self.absent.get(window) {
            return false;
        }
        // Several workers may ask at a time. None of them takes it for absent meanwhile: its rows would be read one by one.
        if !whole(window) {
            self.absent.set(window);
            return false;
        }
        self.populate(window * WINDOW, 1);
        if !self.resident.set(window) {
            self.resident_count.fetch_add(1, Ordering::Relaxed);
        }
        true
    }

    fn is_whole(&self) -> bool {
        self.resident_count.load(Ordering::Relaxed) == self.bytes.div_ceil(WINDOW)
    }

    fn populate(&self, offset: u64, bytes: usize) {
        const MADV_POPULATE_READ: i32 = 22;
        for window in offset / WINDOW..(offset + bytes as u64).div_ceil(WINDOW) {
            if self.populated.set(window) {
                continue;
            }
            let length = WINDOW.min(self.bytes - window * WINDOW) as usize;
            // SAFETY: inside our mapping. Refusal (an old kernel, a page that is gone) costs only speed: the copy
            // takes the faults itself.
            unsafe {
                let at = self.at.add((window * WINDOW) as usize).cast_mut();
                libc::madvise(at.cast(), length, MADV_POPULATE_READ)
            };
        }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: our mapping; requests hold the Reader, so no copy from it is under way.
        unsafe { libc::munmap(self.at.cast_mut().cast(), self.bytes as usize) };
    }
}
