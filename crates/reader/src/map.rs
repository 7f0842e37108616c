//! A file's mapping, as workers that copy from it see it: what of it was read, what is cached, and which page tables are filled.

use forebay_io::{install_copy_guard, CpuTimes};
use forebay_storage::{FileMapping, FileTarget};
use std::cell::Cell;
use std::ops::{Range, RangeInclusive};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Instant;

/// Windows of page tables.
const WINDOW: u64 = 4 << 20;
/// Filling the page tables of a window takes about as long as reading this many rows by system calls.
const ROWS_PER_WINDOW_MIN: u64 = 32;
/// Interval in nanoseconds at which the cached state of windows that rows are copied from is asked for: so long that the asking,
/// for which the system walks over all of their pages, takes a hundredth of the time. Once a page had to be read from the device,
/// the next time is the least after the last.
const LOOKED_EVERY: RangeInclusive<u64> = 1_000_000_000..=10_000_000_000;
const ASKING_SHARE: u64 = 100;

/// The whole file, for reading by `guarded_copy` alone.
pub(super) struct Map {
    pub mapping: Arc<FileMapping>,
    pub bytes: u64,
    /// A bit per window that was read.
    read: Bits,
    /// A bit per window whose page tables were filled: one call in place of a thousand faults.
    populated: Bits,
    /// Bits per window, as was last asked: not all of it is cached, or all is.
    absent: Bits,
    resident: Bits,
    /// Approximate number of resident windows: those dropped meanwhile are read in again.
    resident_count: AtomicU64,
    made: Instant,
    /// When all bits of these two were last unset, in nanoseconds since then, and what asking has taken since.
    looked: AtomicU64,
    asking: AtomicU64,
    /// A page of a window that was taken for cached has come from the device since.
    has_lost: AtomicBool,
    /// True once parts of it were read into the page cache by way of it, whose page tables are filled.
    filled: AtomicBool,
}

impl Map {
    /// None where the system gives no room for it: the file is then read by system calls.
    pub(crate) fn new(target: &FileTarget) -> Option<Map> {
        install_copy_guard();
        let mapping = Arc::new(FileMapping::new(target).ok()?);
        let windows = target.bytes.div_ceil(WINDOW);
        Some(Map {
            mapping,
            bytes: target.bytes,
            read: Bits::new(windows),
            populated: Bits::new(windows),
            absent: Bits::new(windows),
            resident: Bits::new(windows),
            resident_count: AtomicU64::new(0),
            made: Instant::now(),
            looked: AtomicU64::new(0),
            asking: AtomicU64::new(0),
            has_lost: AtomicBool::new(false),
            filled: AtomicBool::new(false),
        })
    }

    /// Notes a reading; true if all of it had been read before.
    pub(crate) fn note_read(&self, offset: u64, bytes: usize) -> bool {
        let windows = offset / WINDOW..(offset + bytes as u64).div_ceil(WINDOW);
        windows.filter(|window| !self.read.set(*window)).count() == 0
    }

    pub(crate) fn was_read(&self, offset: u64, bytes: usize) -> bool {
        let end = offset + bytes as u64;
        end <= self.bytes && (offset / WINDOW..end.div_ceil(WINDOW)).all(|window| self.read.get(window))
    }

    /// Has `is_resident` ask anew, once it is time (`LOOKED_EVERY`).
    pub(crate) fn look_again(&self) {
        let (last, now) = (self.looked.load(Ordering::Relaxed), self.made.elapsed().as_nanos() as u64);
        let asking = self.asking.load(Ordering::Relaxed).saturating_mul(ASKING_SHARE);
        let (least, most) = LOOKED_EVERY.into_inner();
        let every = if self.has_lost.load(Ordering::Relaxed) { least } else { asking.clamp(least, most) };
        let (set, seen) = (Ordering::AcqRel, Ordering::Relaxed);
        if now.saturating_sub(last) < every || self.looked.compare_exchange(last, now, set, seen).is_err() {
            return;
        }
        self.asking.store(0, Ordering::Relaxed);
        self.has_lost.store(false, Ordering::Relaxed);
        self.absent.unset_all();
        self.resident.unset_all();
        self.resident_count.store(0, Ordering::Relaxed);
    }

    /// Notes that this thread has copied from windows that it took for cached: whether a page of them came from the device.
    pub(crate) fn note_copied(&self) {
        if self.has_resident() && has_waited_for_pages() {
            self.has_lost.store(true, Ordering::Relaxed);
        }
    }

    /// Returns the address of bytes of the file whose surroundings are cached, by what `share` says of a window at an
    /// offset and length.
    pub(crate) fn resident_at(
        &self,
        offset: u64,
        bytes: usize,
        share: impl Fn(u64, usize) -> Option<f64>,
    ) -> Option<*const u8> {
        let whole = |window: u64| {
            let bytes = WINDOW.min(self.bytes - window * WINDOW) as usize;
            share(window * WINDOW, bytes).is_some_and(|share| share >= 1.0)
        };
        let mut windows = offset / WINDOW..(offset + bytes as u64).div_ceil(WINDOW);
        (bytes > 0 && windows.all(|window| self.is_resident(window, whole))).then(|| self.at(offset))
    }

    /// Returns whether so many rows were requested that filling page tables pays.
    pub(crate) fn pays(&self, rows: u64) -> bool {
        self.filled.load(Ordering::Relaxed) || rows >= self.bytes.div_ceil(WINDOW) * ROWS_PER_WINDOW_MIN
    }

    /// Numbers of the windows that a range touches.
    pub(crate) fn windows_of(span: &Range<u64>) -> Range<u64> {
        span.start / WINDOW..span.end.div_ceil(WINDOW)
    }

    /// The range of a window that isn't cached as a whole, by what `share` says; None of one that is.
    pub(crate) fn lacks(&self, window: u64, share: impl Fn(u64, usize) -> Option<f64>) -> Option<Range<u64>> {
        let (begin, end) = (window * WINDOW, self.bytes.min((window + 1) * WINDOW));
        let whole = |_| share(begin, (end - begin) as usize).is_some_and(|share| share >= 1.0);
        self.absent.unset(window);
        (begin < end && !self.is_resident(window, whole)).then_some(begin..end)
    }

    /// Notes a window that was read into the page cache by filling its page tables.
    pub(crate) fn note_filled(&self, offset: u64) {
        let window = offset / WINDOW;
        self.filled.store(true, Ordering::Relaxed);
        self.read.set(window);
        self.populated.set(window);
        self.absent.unset(window);
        if !self.resident.set(window) {
            self.resident_count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns whether all of a window was cached when `whole` was last asked; its page tables are filled then.
    fn is_resident(&self, window: u64, whole: impl Fn(u64) -> bool) -> bool {
        if self.resident.get(window) {
            return true;
        }
        if self.absent.get(window) {
            return false;
        }
        // Several workers may ask at a time. None of them takes it for absent meanwhile: its rows would be read one by one.
        let asked = Instant::now();
        let is_whole = whole(window);
        self.asking.fetch_add(asked.elapsed().as_nanos() as u64, Ordering::Relaxed);
        if !is_whole {
            self.absent.set(window);
            return false;
        }
        self.populate(window * WINDOW, 1);
        if !self.resident.set(window) {
            self.resident_count.fetch_add(1, Ordering::Relaxed);
        }
        true
    }

    pub(crate) fn has_resident(&self) -> bool {
        self.resident_count.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn is_whole(&self) -> bool {
        self.resident_count.load(Ordering::Relaxed) == self.bytes.div_ceil(WINDOW)
    }

    /// The address of the byte at `offset`, which lies in the file.
    pub(crate) fn at(&self, offset: u64) -> *const u8 {
        self.mapping.address(offset).as_ptr()
    }

    /// Fills page tables. Where that is refused (an old kernel, a page that is gone), the copy takes the faults itself.
    pub(crate) fn populate(&self, offset: u64, bytes: usize) {
        for window in offset / WINDOW..(offset + bytes as u64).div_ceil(WINDOW) {
            if self.populated.set(window) {
                continue;
            }
            let length = WINDOW.min(self.bytes - window * WINDOW) as usize;
            self.mapping.populate(window * WINDOW, length);
        }
    }
}

/// Returns whether this thread has waited for a page from a device since it was asked last.
fn has_waited_for_pages() -> bool {
    thread_local! {
        static WAITS: Cell<u64> = const { Cell::new(0) };
    }
    let waits = CpuTimes::page_waits_of_thread();
    WAITS.with(|before| before.replace(waits) != waits)
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

    fn unset(&self, index: u64) {
        self.0[(index / 64) as usize].fetch_and(!(1 << (index % 64)), Ordering::Relaxed);
    }

    fn unset_all(&self) {
        self.0.iter().for_each(|bits| bits.store(0, Ordering::Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_storage::FileAccess;
    use std::time::Duration;

    /// Returns whether a map asks anew that was made `after_s` ago, whose asking took so many ms since.
    fn asks(after_s: f64, asking_ms: u64, has_lost: bool) -> bool {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rows");
        std::fs::write(&path, vec![1; 4096]).unwrap();
        let target = FileTarget::open(&path, FileAccess { write: false, direct: false }).unwrap();
        let Some(made) = Instant::now().checked_sub(Duration::from_secs_f64(after_s)) else { return true };
        let map = Map { made, ..Map::new(&target).unwrap() };
        map.note_filled(0);
        map.asking.store(asking_ms * 1_000_000, Ordering::Relaxed);
        map.has_lost.store(has_lost, Ordering::Relaxed);
        map.look_again();
        assert_eq!(map.has_resident(), map.resident.get(0));
        !map.has_resident()
    }

    #[test]
    fn what_is_cached_is_asked_after_a_second_and_later_the_longer_that_takes() {
        assert!(asks(1.1, 0, false) && asks(1.1, 9, false));
        // A loaded machine may take seconds over this.
        assert!(!asks(2.0, 90, false) && asks(9.1, 90, false));
        assert!(asks(10.1, 5000, false), "ten seconds at most");
        assert!(asks(1.1, 90, true), "a page was gone");
    }
}
