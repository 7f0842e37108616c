//! A file that is open for feeding: buffered, by O_DIRECT, and mapped.

use super::by_cufile::{ByCufile, KnownFile};
use super::choice::{Carrier, Choice, Load, Noted};
use super::map::Map;
use super::place::{Address, Range};
use super::rows::{Fetch, Layout, COPIED_ROW_BYTES_MAX, ROW_BYTES_MAX};
use super::windows::{cap_bytes, Windows};
use super::{devices, leaving, processors};
use super::{
    AHEAD_SOONER, BESIDE_A_MODEL_WINDOW_BYTES, BESIDE_COPIES_WINDOW_BYTES, MIXED_WORKERS_MIN,
    REGISTERED_FOR_BYTES_MIN, WINDOWED_AT_ONCE_BYTES_MIN, WINDOWED_BYTES_MIN,
};
use forebay_io::{
    cache_residency, monotonic_now, process_id, GpuRows, PerProcess, RowScatter, GUARDED_COPIES,
};
use forebay_model::job::Prefer;
use forebay_model::Error;
use forebay_storage::{FileAccess, FileTarget};
use std::ops::Range as Span;
use std::os::fd::{AsRawFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::Instant;

/// From this share of its windows on a file counts as registered: the others weren't cached, and go through slots.
const REGISTERED_SHARE_MIN: f64 = 0.9;

/// Up to so many cached bytes, headers for example, a file is hardly cached; it is asked again after so many parts.
const HARDLY_CACHED_BYTES: f64 = 1048576.0;
const ASKED_EVERY: usize = 1000;

/// Way of bytes to a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadPath {
    /// Whatever suits each range.
    Auto,
    /// Through pinned slots.
    Bounce,
    /// By DMA out of the page cache, of what is in it.
    Mapped,
    /// Through cuFile; of a loader alone.
    Gds,
    /// No GPU: destinations are host memory.
    Host,
}

impl ReadPath {
    pub const NAMES: &[(&str, ReadPath)] = &[
        ("auto", ReadPath::Auto),
        ("bounce", ReadPath::Bounce),
        ("mapped", ReadPath::Mapped),
        ("gds", ReadPath::Gds),
        ("host", ReadPath::Host),
    ];

    pub fn name(self) -> &'static str {
        ReadPath::NAMES.iter().find(|(_, way)| *way == self).map_or("", |(name, _)| name)
    }

    /// Readers of files take it, and not loaders alone.
    pub fn reads_files(self) -> bool {
        self != ReadPath::Gds
    }

    pub fn parse(text: &str) -> Result<ReadPath, Error> {
        let named = ReadPath::NAMES.iter().find(|(name, _)| *name == text);
        named.map(|(_, way)| *way).ok_or_else(|| {
            let known: Vec<&str> = ReadPath::NAMES.iter().map(|(name, _)| *name).collect();
            Error::request(format!("path={text:?}"), "no such path for reading from Python", known.join(", "))
        })
    }
}

/// Options for opening a file.
#[derive(Clone, Copy, Debug)]
pub struct Opening {
    pub way: ReadPath,
    /// Some(true): always past the page cache. Some(false): never. None: past it for what isn't in it.
    pub direct: Option<bool>,
    /// It is read one time and let go of in the background, so that unregistering what was read costs nobody's wait.
    pub once: bool,
    /// It is read ahead of a consumer that computes on the GPU meanwhile.
    pub ahead: bool,
    pub prefer: Prefer,
}

impl Default for Opening {
    fn default() -> Opening {
        Opening { way: ReadPath::Auto, direct: None, once: false, ahead: false, prefer: Prefer::Balance }
    }
}

/// Identity of a file's content: a change of it is a change of the file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stamp {
    pub bytes: u64,
    modified: (i64, i64),
    /// Names of the file, which are nothing of its content.
    links: u64,
}

impl PartialEq for Stamp {
    fn eq(&self, other: &Stamp) -> bool {
        (self.bytes, self.modified) == (other.bytes, other.modified)
    }
}

/// An open file; what it holds is given back when the last request and the last handle let go of it.
pub struct Reader {
    pub path: PathBuf,
    pub way: ReadPath,
    pub direct: Option<bool>,
    once: bool,
    ahead: bool,
    prefer: Prefer,
    cached: FileTarget,
    uncached: Option<FileTarget>,
    map: Option<Map>,
    /// Made when it is first worth it; why it can't be had.
    windows: OnceLock<Result<Arc<Windows>, Error>>,
    /// Chooser between CPUs and GPU for cached data, as `Way::Auto` uses it.
    choice: Choice,
    /// Rows that were asked for of processors.
    copied: AtomicU64,
    pub(super) last_seen: LastSeen,
    /// Whether the system tells what is cached.
    tells: OnceLock<bool>,
    /// Calls until it is asked again whether hardly any of the file is cached.
    asked_after: AtomicUsize,
    /// Fetchers of rows, by GPU.
    rows: Mutex<Vec<(u32, GpuRows)>>,
    /// As cuFile knows it, where it is read through that.
    known: OnceLock<KnownFile>,
    /// Requests of this process: what its parent reads doesn't end here.
    under_way: PerProcess<Arc<UnderWay>>,
    _open: Open,
}

/// Files of the process that are open.
static OPEN: AtomicUsize = AtomicUsize::new(0);

/// Returns whether a file is open.
pub(super) fn any_open() -> bool {
    OPEN.load(Ordering::Relaxed) > 0
}

/// An open file's count.
struct Open;

impl Open {
    fn new() -> Open {
        OPEN.fetch_add(1, Ordering::Relaxed);
        Open
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        OPEN.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Reader {
    pub fn open(path: &Path, opening: Opening) -> Result<Reader, Error> {
        let Opening { way, direct, once, ahead, prefer } = opening;
        if !way.reads_files() && !ahead {
            return Err(Error::request(
                format!("path={:?} for {}", way.name(), path.display()),
                "through cuFile a Loader reads batches, and nothing else",
                "path=\"auto\"; or forebay.feed.Loader(…, path=\"gds\")",
            ));
        }
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
        let map = (GUARDED_COPIES && cached.bytes > 0).then(|| Map::new(&cached)).flatten();
        Ok(Reader {
            path: path.into(),
            way,
            direct,
            once,
            ahead,
            prefer,
            cached,
            uncached,
            map,
            windows: OnceLock::new(),
            choice: Choice::default(),
            copied: AtomicU64::new(0),
            last_seen: LastSeen::default(),
            tells: OnceLock::new(),
            asked_after: AtomicUsize::new(0),
            rows: Mutex::default(),
            known: OnceLock::new(),
            under_way: PerProcess::new(),
            _open: Open::new(),
        })
    }

    /// Has it read through cuFile from here on.
    pub(super) fn read_through(&self, cufile: &Arc<ByCufile>) -> Result<(), Error> {
        let known = cufile.know(self.uncached.as_ref().unwrap_or(&self.cached))?;
        let _ = self.known.set(known);
        Ok(())
    }

    /// As cuFile knows it, where it is read through that.
    pub(super) fn known(&self) -> Option<&KnownFile> {
        self.known.get()
    }

    /// The block device below.
    pub(super) fn device(&self) -> Option<(u32, u32)> {
        self.cached.device()
    }

    /// The file's size now.
    pub fn bytes(&self) -> Result<u64, Error> {
        Ok(self.stamp()?.bytes)
    }

    pub(super) fn stamp(&self) -> Result<Stamp, Error> {
        // statx, which `File::metadata` asks, takes twice as long.
        let found = rustix::fs::fstat(&self.cached.file).map_err(|e| {
            Error::run(
                format!("the size of {}", self.path.display()),
                std::io::Error::from(e).to_string(),
                "forebay doctor",
            )
        })?;
        let bytes = if self.cached.is_device { self.cached.bytes } else { found.st_size as u64 };
        // A device's node isn't touched by writes to the device.
        let modified =
            if self.cached.is_device { (0, 0) } else { (found.st_mtime, found.st_mtime_nsec as i64) };
        #[allow(clippy::useless_conversion, reason = "not of that type on every platform")]
        let links = found.st_nlink.into();
        Ok(Stamp { bytes, modified, links })
    }

    /// Returns whether another file has taken its name. Looked up only where it has lost a name since; one that was deleted, and
    /// stays open, is no other.
    pub(super) fn is_replaced(&self, before: Stamp, now: Stamp) -> bool {
        if now.links >= before.links {
            return false;
        }
        let (Ok(named), Ok(open)) = (rustix::fs::stat(&self.path), rustix::fs::fstat(&self.cached.file))
        else {
            return false;
        };
        (named.st_dev, named.st_ino) != (open.st_dev, open.st_ino)
    }

    pub(super) fn fd(&self) -> RawFd {
        self.cached.file.as_raw_fd()
    }

    /// The descriptor that bypasses the page cache, and the unit of its offsets and addresses.
    pub(super) fn direct_fd(&self) -> Option<(RawFd, usize)> {
        let target = self.uncached.as_ref()?;
        Some((target.file.as_raw_fd(), target.align.max(target.mem_align).max(512) as usize))
    }

    /// Returns the share of a range that the page cache holds, 0 to 1; None if the system won't tell.
    pub(super) fn cached_share(&self, offset: u64, bytes: usize) -> Option<f64> {
        cache_residency(&self.cached.file, offset, bytes as u64).ok()
    }

    /// Returns whether what is read of it must come from the device, but for some of it at most.
    pub(super) fn is_of_the_device(&self) -> bool {
        self.direct == Some(true) || self.is_hardly_cached()
    }

    /// Returns whether hardly any of the file is cached, so that no part of it needs to be asked for. Where more is, the system
    /// walks over all of it to say so, and is seldom asked, and not while a part is known to be.
    pub(super) fn is_hardly_cached(&self) -> bool {
        if let Some(map) = &self.map {
            map.look_again();
            if map.has_resident() {
                return false;
            }
        }
        let one_less = |left: usize| left.checked_sub(1);
        if self.asked_after.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok() {
            return false;
        }
        let bytes = self.cached.bytes;
        let share = self.cached_share(0, bytes as usize);
        let hardly = share.is_some_and(|share| share * bytes as f64 <= HARDLY_CACHED_BYTES);
        if !hardly {
            self.asked_after.store(ASKED_EVERY, Ordering::Relaxed);
        }
        hardly
    }

    /// Asked once: where the system doesn't tell any more, nothing counts as cached.
    fn tells(&self) -> bool {
        *self.tells.get_or_init(|| self.cached_share(0, 1).is_some())
    }

    /// The range in the mapping, where it was read before: filling page tables, and taking them down, costs more
    /// than one reading of the file gains. So a file that is read one time is never read there: threads that overtake each
    /// other would find windows that their neighbours' parts reached into.
    pub(super) fn mapped(&self, offset: u64, bytes: usize) -> Option<*const u8> {
        let inside = |map: &&Map| !self.once && offset + bytes as u64 <= map.bytes;
        let map = self.map.as_ref().filter(inside)?;
        if !map.note_read(offset, bytes) {
            return None;
        }
        map.populate(offset, bytes);
        (bytes > 0).then(|| map.at(offset))
    }

    /// As `mapped`, for a loader, which reads the same again and again: what was found cached isn't asked of the system for a while,
    /// which walks over all of its pages to say so.
    pub(super) fn resident_again(&self, offset: u64, bytes: usize) -> Option<*const u8> {
        let map = self.map.as_ref().filter(|map| self.ahead && map.was_read(offset, bytes))?;
        map.look_again();
        self.resident(offset, bytes)
    }

    /// Returns whether the file was as long when it was opened: mappings and registrations end there, and what was
    /// appended since is read by system calls.
    pub(super) fn was_as_long(&self, end: u64) -> bool {
        end <= self.cached.bytes
    }

    /// Windows to read these ranges through, if that is asked for or pays: registering and unregistering take as long
    /// as one reading gains, so `auto` has long ranges registered from the second one on; from the first where nobody waits for
    /// the latter. Shorter ones use what is registered.
    pub(super) fn windows_for(&self, ranges: &[Range]) -> Result<Option<&Arc<Windows>>, Error> {
        let windowed = |r: &&Range| r.to.gpu().is_some() && r.bytes >= WINDOWED_BYTES_MIN;
        let long = |r: &&Range| windowed(r) && r.bytes >= REGISTERED_FOR_BYTES_MIN;
        let (Some(gpu), Some(map)) = (ranges.iter().find(windowed).and_then(|r| r.to.gpu()), &self.map)
        else {
            return Ok(None);
        };
        let again = |r: &Range| map.was_read(r.offset, r.bytes);
        let wanted = match self.way {
            ReadPath::Mapped => true,
            ReadPath::Auto => {
                self.direct != Some(true)
                    && (self.is_registered()
                        || ranges.iter().any(|r| long(&r))
                            && (ranges.iter().filter(long).all(again) || self.pays_at_once(ranges)))
                    && self.may_be_registered()
            }
            ReadPath::Bounce | ReadPath::Gds | ReadPath::Host => false,
        };
        if !wanted {
            return Ok(None);
        }
        match self.fresh_windows(gpu) {
            Err(error) if self.way == ReadPath::Mapped => Err(error),
            fresh => Ok(fresh.ok()),
        }
    }

    fn fresh_windows(&self, gpu: u32) -> Result<&Arc<Windows>, Error> {
        let made = self.windows.get_or_init(|| {
            let mapping = self.map.as_ref().map(|map| map.mapping.clone());
            let beside_copies = self.once || self.way == ReadPath::Auto;
            let most = match (self.ahead, beside_copies) {
                (true, _) => BESIDE_A_MODEL_WINDOW_BYTES,
                (false, true) => BESIDE_COPIES_WINDOW_BYTES,
                (false, false) => u64::MAX,
            };
            devices::device(gpu)
                .and_then(|device| Windows::open(&self.cached, mapping, device, most))
                .map(Arc::new)
        });
        made.as_ref().map_err(Error::clone).and_then(|w| w.refresh().map(|()| w))
    }

    /// Chooses who brings such rows where ranges don't decide: the GPU, if requested or worthwhile, or CPUs, towards
    /// host memory, where slots are requested, and with `auto` until registering the file has paid.
    ///
    /// # Errors
    /// With `Way::Mapped`: why it can't. A file that is longer than may be registered goes through slots.
    pub(super) fn rows_for(&self, to: Address, load: Load) -> Result<Rowwise, Error> {
        self.rows_where(to, load, || self.is_registered())
    }

    /// As `rows_for`, of pages of which each (byte, bytes) lies in one of `runs`: a file that is registered as far as they go is
    /// registered, though the rest of it was never written.
    pub(super) fn pages_for(&self, to: Address, load: Load, runs: &[(u64, usize)]) -> Result<Rowwise, Error> {
        self.rows_where(to, load, || self.is_registered_there(runs))
    }

    /// Returns whether the GPU may read all of these.
    pub(super) fn is_registered_there(&self, runs: &[(u64, usize)]) -> bool {
        let ready =
            |windows: &Arc<Windows>| runs.iter().all(|(offset, bytes)| windows.are_ready(*offset, *bytes));
        self.windows().is_some_and(ready)
    }

    fn rows_where(
        &self,
        to: Address,
        load: Load,
        is_registered: impl Fn() -> bool,
    ) -> Result<Rowwise, Error> {
        if self.map.is_none() || load.rows * load.row_bytes == 0 {
            return Ok(Rowwise::default());
        }
        let by_cpus = |reader: &Reader| reader.copied_for(to, load.rows, load.row_bytes);
        let Some(gpu) = to.gpu() else { return Ok(Rowwise::by(by_cpus(self))) };
        match self.way {
            ReadPath::Bounce => Ok(Rowwise::by(by_cpus(self))),
            ReadPath::Gds | ReadPath::Host => Ok(Rowwise::default()),
            ReadPath::Mapped if load.row_bytes > ROW_BYTES_MAX || !self.may_be_registered() => {
                Ok(Rowwise::default())
            }
            ReadPath::Mapped => Ok(Rowwise::by(Some(self.fetched_by(gpu)?))),
            ReadPath::Auto if self.direct == Some(true) => Ok(Rowwise::default()),
            ReadPath::Auto => Ok(self.chosen_for(gpu, load, by_cpus, is_registered)),
        }
    }

    /// The GPU where it is to bring such rows and may; CPUs meanwhile and else.
    fn chosen_for(
        &self,
        gpu: u32,
        load: Load,
        by_cpus: impl Fn(&Reader) -> Option<Fetch>,
        is_registered: impl Fn() -> bool,
    ) -> Rowwise {
        let counts = self.would_spare(load);
        if counts && is_registered() {
            if let Ok(fetch) = self.fetched_by(gpu) {
                let noted = Noted { gpu, load, by: Carrier::Gpu, counts: false, settled: true };
                return Rowwise { fetch: Some(fetch), noted: Some(noted) };
            }
        }
        let settled = self.whole().is_some() && !self.is_registering();
        let fetch = by_cpus(self);
        let settled = settled && fetch.is_some();
        Rowwise { fetch, noted: Some(Noted { gpu, load, by: Carrier::Cpus, counts, settled }) }
    }

    fn fetched_by(&self, gpu: u32) -> Result<Fetch, Error> {
        let rows = self.rows_on(gpu)?;
        self.fresh_windows(gpu).map(|_| Fetch::Gpu(rows))
    }

    /// Returns whether a GPU would bring it, were the file registered.
    fn would_spare(&self, load: Load) -> bool {
        load.row_bytes <= ROW_BYTES_MAX
            && self.may_be_registered()
            && self.choice.is_for_gpu(load, processors::all_threads(), self.prefer)
    }

    /// Notes a request of ranges through slots.
    pub(super) fn note_ranges(&self, ranges: &[Range]) -> Option<Noted> {
        let gpu = ranges.first()?.to.gpu()?;
        let auto = self.way == ReadPath::Auto && self.direct != Some(true) && self.map.is_some();
        if !auto || ranges.iter().any(|r| r.bytes < WINDOWED_BYTES_MIN) {
            return None;
        }
        let bytes: usize = ranges.iter().map(|r| r.bytes).sum();
        let load = Load { rows: bytes / ROW_BYTES_MAX, row_bytes: ROW_BYTES_MAX, ahead: false };
        let counts = self.would_spare(load);
        Some(Noted { gpu, load, by: Carrier::Cpus, counts, settled: false })
    }

    /// Notes a request's end. Has the file registered in the background, once as much time was spent as that takes: not before,
    /// since it would leave no memory to pin for slots where little may be pinned.
    pub(super) fn note_end(&self, noted: Noted, began: Instant) {
        self.choice.note(noted, processors::all_threads(), began, monotonic_now());
        let open = || !self.is_registered() && !self.is_registering();
        // What a loader reads is read again, epoch after epoch.
        let worth = if self.ahead { self.cached.bytes / AHEAD_SOONER } else { self.cached.bytes };
        if noted.counts && open() && self.choice.is_due(worth) {
            // Where it can't be had, CPUs go on.
            if let Ok(windows) = self.fresh_windows(noted.gpu) {
                windows.ask_for_all(self.ahead);
            }
        }
    }

    /// Number of threads that copy its cached rows to host memory, whoever waits for them among these.
    pub(super) fn to_host(&self) -> usize {
        match self.ahead || self.prefer == Prefer::Rate {
            true => processors::to_host_soonest(),
            false => processors::to_host(),
        }
    }

    /// Returns the number of workers for rows that processors bring one by one.
    pub(super) fn hands(&self) -> usize {
        processors::all_threads()
    }

    fn may_be_registered(&self) -> bool {
        self.windows().is_some() || Windows::fits(&self.cached)
    }

    /// Returns whether the GPU may read the file, but for a few windows.
    fn is_registered(&self) -> bool {
        self.windows()
            .and_then(|windows| windows.ready_share())
            .is_some_and(|share| share >= REGISTERED_SHARE_MIN)
    }

    /// Returns whether windows of it are being registered.
    pub(super) fn is_registering(&self) -> bool {
        self.windows().is_some_and(|windows| windows.ready_share().is_none())
    }

    /// Rows that processors copy out of the mapping, where the system tells what is cached, once so many were asked for
    /// that filling page tables pays.
    pub(super) fn copied_for(&self, to: Address, count: usize, row_bytes: usize) -> Option<Fetch> {
        let map = self.map.as_ref().filter(|_| self.direct != Some(true))?;
        let asked = self.copied.fetch_add(count as u64, Ordering::Relaxed) + count as u64;
        if !map.pays(asked) || row_bytes > COPIED_ROW_BYTES_MAX || !self.tells() {
            return None;
        }
        map.look_again();
        Some(Fetch::Processors(to.gpu().and_then(|gpu| self.rows_on(gpu).ok())))
    }

    /// Returns whether what isn't cached can be read into the page cache by way of the mapping, and is to be.
    pub(super) fn can_fill_cache(&self) -> bool {
        let on_disk = self.direct.is_none() && self.known.get().is_none() && !self.cached.in_memory;
        on_disk && self.map.as_ref().is_some_and(|map| map.mapping.can_populate()) && self.tells()
    }

    /// Has what isn't cached come by huge pages, or as the system sees fit.
    pub(super) fn read_by_huge_pages(&self, wanted: bool) {
        if let Some(map) = &self.map {
            map.mapping.read_by_huge_pages(wanted);
        }
    }

    /// Numbers of the parts that a range touches, as they are read into the page cache.
    pub(super) fn cache_parts(span: &Span<u64>) -> Span<u64> {
        Map::windows_of(span)
    }

    /// The range of a part that isn't cached as a whole.
    pub(super) fn lacks_part(&self, part: u64) -> Option<Span<u64>> {
        self.map.as_ref()?.lacks(part, |offset, bytes| self.cached_share(offset, bytes))
    }

    /// Notes a part that was read into the page cache.
    pub(super) fn note_filled(&self, offset: u64) {
        if let Some(map) = &self.map {
            map.note_filled(offset);
        }
    }

    /// The address of a byte in the mapping.
    pub(super) fn mapped_at(&self, offset: u64) -> Option<*const u8> {
        self.map.as_ref().filter(|map| offset < map.bytes).map(|map| map.at(offset))
    }

    /// Has the system asked anew what is cached, once in a while.
    pub(super) fn look_again(&self) {
        if let Some(map) = &self.map {
            map.look_again();
        }
    }

    /// Notes that this thread has copied some of it.
    pub(super) fn note_copied(&self) {
        if let Some(map) = &self.map {
            map.note_copied();
        }
    }

    /// Returns the address of a row in the mapping, if its surroundings are cached. That is asked once in a while: what
    /// is dropped meanwhile is read in again when it is copied.
    pub(super) fn resident(&self, offset: u64, bytes: usize) -> Option<*const u8> {
        let map = self.map.as_ref().filter(|map| offset + bytes as u64 <= map.bytes)?;
        map.resident_at(offset, bytes, |offset, bytes| self.cached_share(offset, bytes))
    }

    /// Returns the address of the file in memory, if the surroundings of all these rows are cached, as was last asked.
    pub(super) fn resident_rows(&self, layout: Layout, numbers: &[u64]) -> Option<*const u8> {
        let here = |number: &u64| self.resident(layout.offset(*number), layout.row_bytes).is_some();
        self.whole().or_else(|| {
            let map = self.map.as_ref().filter(|_| numbers.iter().all(here))?;
            Some(map.at(0))
        })
    }

    /// Returns the address of the file in memory, if surroundings of rows were found cached when it was last asked.
    pub(super) fn partly_resident(&self) -> Option<*const u8> {
        self.map.as_ref().filter(|map| map.has_resident()).map(|map| map.at(0))
    }

    /// Returns the address of the file in memory, if all of it was cached when it was last asked.
    pub(super) fn whole(&self) -> Option<*const u8> {
        self.map.as_ref().filter(|map| map.is_whole()).map(|map| map.at(0))
    }

    pub(super) fn rows_on(&self, gpu: u32) -> Result<GpuRows, Error> {
        let mut all = self.rows.lock().expect("no holder panics");
        if let Some((_, rows)) = all.iter().find(|(of, _)| *of == gpu) {
            return Ok(rows.clone());
        }
        let device = devices::device(gpu)?;
        if !device.reads_registered() {
            return Err(Error::machine(
                format!("rows of {} fetched by GPU {gpu}", self.path.display()),
                "it doesn't read registered memory at the host's addresses",
                "path=\"bounce\"",
            ));
        }
        let rows = GpuRows::open(&device)?;
        all.push((gpu, rows.clone()));
        Ok(rows)
    }

    /// Kernel that takes pieces to places apart from each other.
    pub(super) fn scatter_on(&self, gpu: u32) -> Result<RowScatter, Error> {
        // Says whether it reads what is registered.
        self.rows_on(gpu)?;
        RowScatter::open(&devices::device(gpu)?)
    }

    /// Returns whether processors copy a part of data that is read once, while the rest is registered: at more CPU
    /// time, and the link's rate.
    pub(super) fn mixes(&self, bytes: usize) -> bool {
        self.once
            && self.way == ReadPath::Auto
            && bytes >= WINDOWED_AT_ONCE_BYTES_MIN
            && processors::threads() >= MIXED_WORKERS_MIN
            && self.windows().is_some_and(|windows| windows.is_untouched())
    }

    /// Number of workers that copy what is read once at the link's rate, if that is preferred and they are to be had: registering
    /// takes half of the processor time, and a quarter longer.
    pub(super) fn copied_at_full_rate(&self, bytes: usize) -> Option<usize> {
        let wanted = self.once && self.way == ReadPath::Auto && self.prefer == Prefer::Rate;
        processors::for_full_rate(processors::all_threads())
            .filter(|_| wanted && bytes >= WINDOWED_AT_ONCE_BYTES_MIN)
    }

    /// Half of the processor time of copying by hand; pages of memory file systems are small, and cost more.
    fn pays_at_once(&self, ranges: &[Range]) -> bool {
        let bytes: usize = ranges.iter().map(|r| r.bytes).sum();
        if self.copied_at_full_rate(bytes).is_some() {
            return false;
        }
        let all_cached =
            || ranges.iter().all(|r| self.cached_share(r.offset, r.bytes).is_some_and(|s| s >= 1.0));
        self.once && !self.cached.in_memory && bytes >= WINDOWED_AT_ONCE_BYTES_MIN && all_cached()
    }

    pub(super) fn windows(&self) -> Option<&Arc<Windows>> {
        self.windows.get().and_then(|made| made.as_ref().ok())
    }

    /// Held by a request that reads from it.
    pub(super) fn reading(&self) -> Reading {
        Reading::begin(&self.under_way)
    }

    /// Waits until no request reads from it, and lets go of it: in the background where it was opened for one reading.
    pub fn close(self: Arc<Reader>) {
        self.wait_for_requests();
        if self.once && self.windows().is_some() {
            let bytes = self.cached.bytes;
            leaving::drop_aside(self, bytes, cap_bytes());
        }
    }

    /// Waits until no request reads from it.
    pub fn wait_for_requests(&self) {
        self.under_way.wait();
    }
}

/// Identity of a file's content after its last reading.
#[derive(Default)]
pub(super) struct LastSeen(Mutex<Option<Stamp>>);

impl LastSeen {
    /// Returns whether the content is as it was at the call before.
    pub(super) fn is_still(&self, now: Stamp) -> bool {
        // Not held long; and held by nobody where this process was forked meanwhile.
        let Ok(mut last) = self.0.try_lock() else { return false };
        last.replace(now) == Some(now)
    }
}

/// Requests that read from a file.
#[derive(Default)]
pub(super) struct UnderWay {
    count: Mutex<usize>,
    ended: Condvar,
}

impl UnderWay {
    pub(super) fn any(&self) -> bool {
        *self.count.lock().expect("no holder panics") > 0
    }

    pub(super) fn wait(&self) {
        let mut count = self.count.lock().expect("no holder panics");
        while *count > 0 {
            count = self.ended.wait(count).expect("no holder panics");
        }
    }
}

/// A request reads from a file, until this is dropped.
pub(super) struct Reading {
    of: Arc<UnderWay>,
    process: u32,
}

impl Reading {
    pub(super) fn begin(of: &Arc<UnderWay>) -> Reading {
        *of.count.lock().expect("no holder panics") += 1;
        Reading { of: of.clone(), process: process_id() }
    }
}

impl Drop for Reading {
    /// After a fork a thread of the parent may have had the lock, and nobody in the child waits.
    fn drop(&mut self) {
        if self.process != process_id() {
            return;
        }
        let mut count = self.of.count.lock().expect("no holder panics");
        *count -= 1;
        if *count == 0 {
            self.of.ended.notify_all();
        }
    }
}

/// Way of rows, and how their request is noted.
#[derive(Default)]
pub(super) struct Rowwise {
    /// None: as ranges.
    pub fetch: Option<Fetch>,
    pub noted: Option<Noted>,
}

impl Rowwise {
    fn by(fetch: Option<Fetch>) -> Rowwise {
        Rowwise { fetch, noted: None }
    }
}

/// Removes command-line advice from an error for callers in Python.
fn in_python(error: Error) -> Error {
    let next = match error.kind {
        forebay_model::Kind::Request => "a file that exists and may be read",
        _ => "forebay doctor",
    };
    Error { next: next.into(), ..error }
}
