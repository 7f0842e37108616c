//! The page cache: how much of a file is in it, how to empty it, how to fill it.
//!
//! A number is cold or warm only if that was checked. `cachestat(2)` (Linux 6.5) tells in
//! one call; before it, `mincore(2)` over a mapping tells page by page. Both answer only
//! for files that we own or may write: the kernel hides other people's cache, `mincore` by
//! claiming that everything is resident, which is why permission is checked first here.

use super::Reason;
use rustix::fs::{Access, Advice, AtFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::num::NonZeroU64;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};

/// Address space mapped at a time for `mincore`; its answer takes a byte per page.
const WINDOW_BYTES: u64 = 256 << 20;

const READ_BYTES: usize = 1 << 20;

/// cachestat(2), the same number on every architecture.
const SYS_CACHESTAT: libc::c_long = 451;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Resident {
    pub pages: u64,
    /// Pages of the range asked about.
    pub of: u64,
}

impl Resident {
    /// 0 to 1; an empty range has no share.
    pub fn share(&self) -> Option<f64> {
        (self.of > 0).then(|| self.pages as f64 / self.of as f64)
    }
}

/// Share of the pages of `len` bytes from `offset` that are in the page cache, 0 to 1.
/// A `len` of 0 means up to the end. What lies beyond the end doesn't count.
pub fn cache_residency(file: &File, offset: u64, len: u64) -> Result<f64, Reason> {
    cache_resident(file, offset, len)?.share().ok_or_else(|| "the range holds no pages".into())
}

/// `cache_residency` in pages.
pub fn cache_resident(file: &File, offset: u64, len: u64) -> Result<Resident, Reason> {
    let range = PageRange::within(file, offset, len)?;
    if range.of == 0 {
        return Ok(Resident { pages: 0, of: 0 });
    }
    let pages = match by_cachestat(file, &range) {
        Ok(stat) => stat.cached,
        Err(Errno::NOSYS | Errno::OPNOTSUPP | Errno::PERM | Errno::ACCESS) => by_mincore(file, &range)?,
        Err(errno) => return Err(format!("cachestat: {errno}")),
    };
    // Large folios at the edges and pages on their way in can make it more.
    Ok(Resident { pages: pages.min(range.of), of: range.of })
}

/// Writes dirty pages back and drops the range from the page cache; says what stayed.
/// Pages stay where they are mapped, locked or in use, and on file systems whose storage
/// is the page cache.
pub fn drop_cached(file: &File, offset: u64, len: u64) -> Result<Resident, Reason> {
    let range = PageRange::within(file, offset, len)?;
    let Some(bytes) = NonZeroU64::new(range.of * page_bytes()) else {
        return Ok(Resident { pages: 0, of: 0 });
    };
    let clean = by_cachestat(file, &range).is_ok_and(|stat| stat.dirty == 0 && stat.writeback == 0);
    if !clean {
        rustix::fs::fdatasync(file).map_err(|e| format!("fdatasync: {e}"))?;
    }
    rustix::fs::fadvise(file, range.offset, Some(bytes), Advice::DontNeed)
        .map_err(|e| format!("posix_fadvise(DONTNEED): {e}"))?;
    cache_resident(file, range.offset, bytes.get())
}

/// Reads the whole file into the page cache. Answers with the bytes read.
pub fn warm_cache(file: &File) -> Result<u64, Reason> {
    warm_cache_while(file, |_| true)
}

/// `warm`, asking `go_on(bytes so far)` after every MiB.
pub fn warm_cache_while(file: &File, mut go_on: impl FnMut(u64) -> bool) -> Result<u64, Reason> {
    let cached = through_cache(file)?;
    let mut buffer = vec![0u8; READ_BYTES];
    let mut done = 0;
    loop {
        match cached.read_at(&mut buffer, done) {
            Ok(0) => return Ok(done),
            Ok(length) => done += length as u64,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(format!("reading at {done}: {e}")),
        }
        if !go_on(done) {
            return Ok(done);
        }
    }
}

/// A handle that reads through the cache, whatever flags `file` was opened with.
fn through_cache(file: &File) -> Result<File, Reason> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::open(&path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .map(File::from)
        .map_err(|e| format!("opening it again for reading: {e}"))
}

/// A range cut to the file and widened to whole pages.
struct PageRange {
    offset: u64,
    /// Pages.
    of: u64,
}

impl PageRange {
    fn within(file: &File, offset: u64, len: u64) -> Result<PageRange, Reason> {
        let page = page_bytes();
        let end = match len {
            0 => u64::MAX,
            _ => offset.saturating_add(len),
        };
        let end = end.min(size_bytes(file)?);
        let start = offset / page * page;
        Ok(PageRange { offset: start, of: end.saturating_sub(start).div_ceil(page) })
    }
}

fn size_bytes(file: &File) -> Result<u64, Reason> {
    let meta = file.metadata().map_err(|e| format!("fstat: {e}"))?;
    if meta.is_file() {
        return Ok(meta.len());
    }
    if !meta.file_type().is_block_device() {
        return Err("only files and block devices have pages in the page cache".into());
    }
    // A device's inode has no size. An own handle, since seeking moves a shared cursor.
    let mut own = through_cache(file)?;
    own.seek(SeekFrom::End(0)).map_err(|e| format!("size of the device: {e}"))
}

#[derive(Clone, Copy)]
struct CacheStat {
    cached: u64,
    dirty: u64,
    writeback: u64,
}

fn by_cachestat(file: &File, range: &PageRange) -> Result<CacheStat, Errno> {
    // struct cachestat_range and struct cachestat of linux/mman.h.
    let asked: [u64; 2] = [range.offset, range.of * page_bytes()];
    let mut found = [0u64; 5];
    // SAFETY: both arrays have the layout (u64 fields only) and the size that the call
    // expects, and outlive it.
    let status =
        unsafe { libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), asked.as_ptr(), found.as_mut_ptr(), 0) };
    match status {
        0 => Ok(CacheStat { cached: found[0], dirty: found[1], writeback: found[2] }),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)),
    }
}

fn by_mincore(file: &File, range: &PageRange) -> Result<u64, Reason> {
    if !tells_the_truth(file)? {
        return Err("the kernel tells only a file's owner or writer what is cached".into());
    }
    let page = page_bytes();
    let mut answer = vec![0u8; (WINDOW_BYTES / page) as usize];
    let (mut at, end) = (range.offset, range.offset + range.of * page);
    let mut pages = 0;
    while at < end {
        let bytes = WINDOW_BYTES.min(end - at);
        let answer = &mut answer[..(bytes / page) as usize];
        mincore(file, at, bytes as usize, answer)?;
        pages += answer.iter().filter(|&&byte| byte & 1 == 1).count() as u64;
        at += bytes;
    }
    Ok(pages)
}

/// `mincore` calls every page of a file resident that is neither ours nor writable.
fn tells_the_truth(file: &File) -> Result<bool, Reason> {
    let euid = rustix::process::geteuid().as_raw();
    let owner = file.metadata().map_err(|e| format!("fstat: {e}"))?.uid();
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let writable =
        || rustix::fs::accessat(rustix::fs::CWD, &path, Access::WRITE_OK, AtFlags::EACCESS).is_ok();
    Ok(owner == euid || euid == 0 || writable())
}

/// One byte per page into `answer`, whose lowest bit says whether the page is resident.
fn mincore(file: &File, offset: u64, bytes: usize, answer: &mut [u8]) -> Result<(), Reason> {
    assert!(answer.len() as u64 * page_bytes() >= bytes as u64, "a byte for each page");
    // SAFETY: a fresh mapping at an address of the kernel's choice, never dereferenced (so a
    // file that shrinks does no harm) and unmapped below. `answer` has a byte for each page.
    unsafe {
        let nowhere = std::ptr::null_mut();
        let map = rustix::mm::mmap(nowhere, bytes, ProtFlags::READ, MapFlags::SHARED, file, offset)
            .map_err(|e| format!("mmap: {e}"))?;
        let status = libc::mincore(map.cast(), bytes, answer.as_mut_ptr());
        let error = std::io::Error::last_os_error();
        rustix::mm::munmap(map, bytes).map_err(|e| format!("munmap: {e}"))?;
        match status {
            0 => Ok(()),
            _ => Err(format!("mincore: {error}")),
        }
    }
}

fn page_bytes() -> u64 {
    rustix::param::page_size() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Write;

    fn written(bytes: usize) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&vec![7u8; bytes]).unwrap();
        file
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn cachestat_and_mincore_agree(
            read_at in 0u64..200, read_pages in 0usize..80, offset in 0u64..900_000, len in 0u64..900_000,
        ) {
            let file = written(700_123);
            drop_cached(&file, 0, 0).unwrap();
            // No read-ahead, so that a part of the file is resident.
            rustix::fs::fadvise(&file, 0, None, Advice::Random).unwrap();
            let mut buffer = vec![0u8; read_pages * 4096];
            let _ = file.read_at(&mut buffer, read_at * 4096).unwrap();
            let range = PageRange::within(&file, offset, len).unwrap();
            if range.of > 0 {
                let pages = by_mincore(&file, &range).unwrap();
                match by_cachestat(&file, &range) {
                    Ok(stat) => prop_assert_eq!(stat.cached.min(range.of), pages),
                    Err(errno) => prop_assert_eq!(errno, Errno::NOSYS),
                }
            }
        }
    }

    #[test]
    fn a_range_is_cut_to_the_file_and_widened_to_pages() {
        let file = written(10_000);
        let page = page_bytes();
        let pages = |offset, len| PageRange::within(&file, offset, len).unwrap().of;
        assert_eq!(pages(0, 0), 10_000u64.div_ceil(page));
        assert_eq!(pages(0, 1), 1);
        assert_eq!(pages(1_000_000, 5), 0);
        assert_eq!(pages(u64::MAX, u64::MAX), 0);
        assert_eq!(pages(0, u64::MAX), 10_000u64.div_ceil(page));
    }
}
