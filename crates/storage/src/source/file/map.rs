//! A file copied out of a mapping: for data that is in memory already, with one
//! copy and no system call. A file that shrinks under the mapping is an error of
//! the read that met it, not the end of the process.

#![allow(unsafe_code, reason = "reading a mapping of a file")]

use super::FileTarget;
use crate::source::at_once::AtOnce;
use forebay_io::{
    cache_residency, guarded_copy, guarded_row_copy, install_copy_guard, prefetch_ahead, CopyChoice,
    CopyStores, Done, Fault, Io, Mem, Op, Via, GUARDED_COPIES,
};
use forebay_model::job::Hint;
use forebay_model::Error;
use std::collections::BTreeMap;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

pub(crate) const SUPPORTED: bool = GUARDED_COPIES;

/// Page tables are filled this far at a time: large enough to cost one call in
/// thousands of I/Os, small enough not to stall the first one.
const WINDOW: u64 = 8 << 20;

/// A file's mapping, which all workers share: of a large file the tables of one fit in the processor's cache, and those of
/// sixteen don't, so that each short read would wait for memory twice.
struct Mapping {
    at: NonNull<u8>,
    bytes: u64,
    /// A bit per window whose page tables were filled, and how many weren't.
    filled: Vec<AtomicU64>,
    unfilled: AtomicU64,
    target: FileTarget,
}

// SAFETY: a read-only mapping, which stays until the last worker has let go of it; the rest is atomic or never changes.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

/// Mappings that some worker has, by their open file and its length.
static MAPPINGS: Mutex<BTreeMap<(usize, u64), Weak<Mapping>>> = Mutex::new(BTreeMap::new());

fn key_of(target: &FileTarget) -> (usize, u64) {
    (Arc::as_ptr(&target.file) as usize, target.bytes)
}

impl Mapping {
    fn open(target: FileTarget) -> Result<Arc<Mapping>, Error> {
        let mut all = MAPPINGS.lock().expect("no holder panics");
        let key = key_of(&target);
        if let Some(known) = all.get(&key).and_then(Weak::upgrade) {
            return Ok(known);
        }
        let made = Arc::new(Mapping::new(target)?);
        all.insert(key, Arc::downgrade(&made));
        Ok(made)
    }

    fn new(target: FileTarget) -> Result<Mapping, Error> {
        let bytes = target.bytes.max(1);
        // SAFETY: a fresh read-only mapping of a file that the target holds open.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes as usize,
                libc::PROT_READ,
                libc::MAP_SHARED,
                target.file.as_raw_fd(),
                0,
            )
        };
        if at == libc::MAP_FAILED {
            let e = std::io::Error::last_os_error();
            return Err(Error::machine(
                format!("map {}", target.path.display()),
                e.to_string(),
                "‹engine› inline",
            ));
        }
        let advice = match target.hint {
            Hint::Random => Some(libc::MADV_RANDOM),
            Hint::Sequential => Some(libc::MADV_SEQUENTIAL),
            Hint::None | Hint::Auto => None,
        };
        if let Some(advice) = advice {
            // SAFETY: advice about the mapping that was just made; refusal costs only speed.
            unsafe { libc::madvise(at, bytes as usize, advice) };
        }
        let words = bytes.div_ceil(WINDOW).div_ceil(64);
        Ok(Mapping {
            at: NonNull::new(at.cast()).expect("mmap gave an address"),
            bytes: target.bytes,
            filled: (0..words).map(|_| AtomicU64::new(0)).collect(),
            unfilled: AtomicU64::new(bytes.div_ceil(WINDOW)),
            target,
        })
    }

    fn place(&self, offset: u64) -> *mut u8 {
        self.at.as_ptr().wrapping_add(offset as usize)
    }

    /// Returns whether nothing is left to be filled.
    fn is_filled(&self) -> bool {
        self.unfilled.load(Ordering::Relaxed) == 0
    }

    #[inline]
    fn fill_all(&self, from: u64, to: u64) {
        (from / WINDOW..to.div_ceil(WINDOW)).for_each(|window| self.fill(window));
    }

    #[inline]
    fn fill(&self, window: u64) {
        const MADV_POPULATE_READ: i32 = 22;
        let (word, bit) = (&self.filled[(window / 64) as usize], 1u64 << (window % 64));
        if word.load(Ordering::Relaxed) & bit != 0 || word.fetch_or(bit, Ordering::Relaxed) & bit != 0 {
            return;
        }
        let from = window * WINDOW;
        let len = WINDOW.min(self.bytes - from);
        self.unfilled.fetch_sub(1, Ordering::Relaxed);
        // Reads here and there of what isn't cached are to bring no more than they ask for.
        let whole = || cache_residency(&self.target.file, from, len).is_ok_and(|share| share >= 1.0);
        if self.target.hint == Hint::Random && !self.target.in_memory && !whole() {
            return;
        }
        // SAFETY: the range lies inside our mapping. Refusal (old kernel, a page that is gone) costs only speed:
        // the copy takes the faults itself.
        unsafe { libc::madvise(self.place(from).cast(), len as usize, MADV_POPULATE_READ) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        {
            let mut all = MAPPINGS.lock().expect("no holder panics");
            let key = key_of(&self.target);
            // Another worker may have made one since.
            if all.get(&key).is_some_and(|other| other.strong_count() == 0) {
                all.remove(&key);
            }
        }
        // SAFETY: our mapping, and no copy is running: its last worker lets go of it.
        unsafe { libc::munmap(self.at.as_ptr().cast(), self.bytes.max(1) as usize) };
    }
}

pub(super) struct Map {
    mapping: Arc<Mapping>,
    then_copied: bool,
    choice: CopyChoice,
}

impl Map {
    pub(crate) fn new(target: FileTarget, then_copied: bool) -> Result<Map, Error> {
        if !SUPPORTED {
            return Err(Error::machine(
                "‹engine› map",
                "needs an x86-64 processor (the guarded copy)",
                "‹engine› inline",
            ));
        }
        install_copy_guard();
        let choice = if then_copied { CopyChoice::for_staging() } else { CopyChoice::default() };
        Ok(Map { mapping: Mapping::open(target)?, then_copied, choice })
    }

    /// Bytes copied; fewer than asked for where the file ended when it was opened.
    fn read(&mut self, io: &Io) -> Result<u32, Fault> {
        let len = u64::from(io.len).min(self.mapping.bytes.saturating_sub(io.offset));
        if len == 0 {
            return Ok(0);
        }
        let from = self.mapping.place(io.offset);
        if std::ptr::eq(io.mem.host_ptr(), from) {
            return self.still_has(io.offset + len).map(|()| len as u32);
        }
        self.mapping.fill_all(io.offset, io.offset + len);
        if !io.mem.holds(len as usize) {
            return Err(Fault::note(libc::EFAULT, "the payload's memory is shorter than it"));
        }
        // SAFETY: source and length lie inside the mapping (bounded above); the memory is ours until the I/O is reaped.
        let whole =
            self.choice.copy(len as usize, |stores| unsafe { copy_all(io, from, len as usize, stores) });
        if whole {
            Ok(len as u32)
        } else {
            Err(self.changed())
        }
    }

    fn copy_rows(&mut self, io: &Io, rows: &[u64]) -> Result<u32, Fault> {
        let each = io.len as usize / rows.len().max(1);
        let to = io.mem.host_ptr();
        if to.is_null() {
            return Err(Fault::note(libc::EFAULT, "rows go into contiguous memory of the host"));
        }
        let Mapping { at, bytes, .. } = &*self.mapping;
        let greatest = rows.iter().copied().max().unwrap_or(0);
        if greatest.saturating_add(each as u64) > *bytes {
            return Err(self.changed());
        }
        if !self.mapping.is_filled() {
            rows.iter().for_each(|offset| self.mapping.fill_all(*offset, offset + each as u64));
        }
        // SAFETY: each row lies inside the mapping, as was just seen, and the memory has room for all of them.
        if unsafe { guarded_row_copy(to, at.as_ptr(), (rows, 1), each) } > 0 {
            return Err(self.changed());
        }
        Ok(io.len)
    }

    /// Checks that what was lent is still there. A device doesn't shrink, and its node says nothing of its size.
    fn still_has(&self, end: u64) -> Result<(), Fault> {
        let target = &self.mapping.target;
        let len = target.file.metadata().map_or(0, |m| m.len());
        if target.is_device || len >= end {
            return Ok(());
        }
        Err(self.changed())
    }

    fn changed(&self) -> Fault {
        let Mapping { target, bytes, .. } = &*self.mapping;
        let now = target.file.metadata().map_or(0, |m| m.len());
        let path = target.path.display();
        let note = format!(
            "{path} had {bytes} bytes when it was opened and has {now} now: it changed while it was read"
        );
        Fault::note(libc::EIO, note)
    }
}

/// Into all pieces of an I/O's memory; false where a page of the source is gone.
///
/// # Safety
/// `from` lies in a mapping of `len` bytes or more, whose pages may be gone; the I/O's memory holds as many.
unsafe fn copy_all(io: &Io, mut from: *const u8, len: usize, stores: CopyStores) -> bool {
    for piece in io.mem.each(len) {
        // SAFETY: the caller's promise. A page that is gone makes the copy stop, which is what `guarded_copy` is for.
        if unsafe { guarded_copy(piece.at.as_ptr(), from, piece.len, stores) } > 0 {
            return false;
        }
        from = from.wrapping_add(piece.len);
    }
    true
}

impl AtOnce for Map {
    fn perform(&mut self, io: &Io) -> Done {
        let (result, via) = match io.op {
            Op::Read => (self.read(io), Via::Mapped),
            Op::Flush => (Ok(0), Via::Nothing),
            _ => (Err(Fault::note(libc::EROFS, "the map engine only reads")), Via::Nothing),
        };
        Done { tag: io.tag, result, via, copy_ns: 0 }
    }

    fn ahead(&mut self, io: &Io) {
        if io.op == Op::Read && io.offset < self.mapping.bytes {
            prefetch_ahead(self.mapping.place(io.offset), io.len as usize);
        }
    }

    /// Only for what is copied on: else stores that pass the cache may be better, row by row (`Choice`).
    fn takes_rows(&self) -> bool {
        self.then_copied
    }

    fn read_rows(&mut self, io: &Io, rows: &[u64]) -> (Result<u32, Fault>, Via) {
        (self.copy_rows(io, rows), Via::Mapped)
    }

    /// A place inside the mapping. Its page tables are filled, so that who reads there seldom faults.
    fn lend(&mut self, offset: u64, len: u32) -> Option<Mem> {
        let end = offset.checked_add(len.into()).filter(|end| *end <= self.mapping.bytes)?;
        self.mapping.fill_all(offset, end);
        Some(Mem::Host { at: NonNull::new(self.mapping.place(offset))?, piece: Mem::UNREGISTERED })
    }
}
