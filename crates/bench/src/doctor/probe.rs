//! Probes that touch storage: a direct read, a nameless temporary file, the page
//! cache's own answers. Each has a time limit, so that a dead drive or a lost
//! file server can't hang the examination.

use forebay_io::{direct_alignment, with_time_limit};
use forebay_storage::FileAccess;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(3);
/// Steps that are tried, coarse to fine.
const STEPS: [usize; 4] = [4096, 2048, 1024, 512];
const BLOCK_BYTES: usize = 8192;

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct DirectProbe {
    /// Operation that was tried.
    pub tried: String,
    /// (memory, offset) alignment that statx gives for the temporary file.
    pub reported: Option<(u32, u32)>,
    /// The finest step of offset and length that was accepted.
    pub offset_align: Option<u32>,
    /// The kernel's answer where direct I/O failed.
    pub refused: Option<String>,
    /// The failure says nothing about the file system: no permission, an empty file.
    pub inconclusive: bool,
    pub timed_out: bool,
}

/// Direct I/O on a file or device (read only) or in a directory: on a temporary file if
/// `write`, else on its first file. None where there is nothing to try it on.
pub(crate) fn direct(path: &Path, write: bool) -> Option<DirectProbe> {
    let path: PathBuf = path.to_path_buf();
    let done = with_time_limit(LIMIT, move || {
        if path.is_dir() && write {
            return Some(in_directory(&path));
        }
        if path.is_dir() {
            let mut files = std::fs::read_dir(&path).ok()?.take(64).flatten();
            let file = files.find(|e| e.file_type().is_ok_and(|t| t.is_file()))?;
            return Some(on_file(&file.path()));
        }
        Some(on_file(&path))
    });
    done.unwrap_or_else(|| {
        let refused = Some(format!("no answer in {} s", LIMIT.as_secs()));
        Some(DirectProbe { refused, timed_out: true, ..DirectProbe::default() })
    })
}

fn on_file(path: &Path) -> DirectProbe {
    let tried = format!("a read of {}", path.display());
    let reported = direct_alignment(path);
    match open_direct(path) {
        Ok(file) if is_buffered(&file) => {
            let refused = Some(format!("{}: {}", path.display(), FileAccess::NO_DIRECT));
            DirectProbe { tried, refused, ..DirectProbe::default() }
        }
        Ok(file) => finest_step(&file, DirectProbe { tried, reported, ..DirectProbe::default() }),
        Err(error) => DirectProbe {
            tried,
            reported,
            inconclusive: error != rustix::io::Errno::INVAL,
            refused: Some(format!("{}: {error}", path.display())),
            ..DirectProbe::default()
        },
    }
}

fn in_directory(directory: &Path) -> DirectProbe {
    let tried = "a temporary file".to_string();
    let flags = OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC;
    let file = match temporary(directory, flags) {
        Ok(file) => file,
        Err(error) => {
            let refused = Some(format!("a temporary file with O_DIRECT: {error}"));
            let inconclusive = error != rustix::io::Errno::INVAL;
            return DirectProbe { tried, refused, inconclusive, ..DirectProbe::default() };
        }
    };
    if is_buffered(&file) {
        let refused = Some(format!("a temporary file with O_DIRECT: {}", FileAccess::NO_DIRECT));
        return DirectProbe { tried, refused, ..DirectProbe::default() };
    }
    let reported = reported(file.as_fd());
    let mut probe = DirectProbe { tried, reported, ..DirectProbe::default() };
    let buffer = vec![0x5au8; BLOCK_BYTES * 2];
    let start = aligned_start(&buffer, 4096);
    if let Err(error) = rustix::io::pwrite(&file, &buffer[start..start + BLOCK_BYTES], 0) {
        probe.inconclusive = error != rustix::io::Errno::INVAL;
        probe.refused = Some(format!("a direct write: {error}"));
        return probe;
    }
    finest_step(&file, probe)
}

fn open_direct(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC | OFlags::NONBLOCK;
    rustix::fs::open(path, flags, Mode::empty())
}

/// A file without a name: nothing is left behind, whatever happens to us.
fn temporary(directory: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let mode = Mode::RUSR | Mode::WUSR;
    let nameless = rustix::fs::open(directory, flags | OFlags::TMPFILE, mode);
    if !matches!(nameless, Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::ISDIR)) {
        return nameless;
    }
    let name = directory.join(format!(".forebay-doctor-{}", std::process::id()));
    let file = rustix::fs::open(&name, flags | OFlags::CREATE | OFlags::EXCL, mode);
    if file.is_ok() {
        rustix::fs::unlink(&name)?;
    }
    file
}

/// O_DIRECT is taken and ignored: every step would work.
fn is_buffered(file: &OwnedFd) -> bool {
    FileAccess::reported_alignment(file).is_some_and(|(offset, _)| offset == 0)
}

fn reported(file: BorrowedFd<'_>) -> Option<(u32, u32)> {
    let stat = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok()?;
    (stat.stx_mask & StatxFlags::DIOALIGN.bits() != 0 && stat.stx_dio_offset_align > 0)
        .then_some((stat.stx_dio_mem_align, stat.stx_dio_offset_align))
}

/// Reads at ever finer steps until one is refused.
fn finest_step(file: &OwnedFd, mut probe: DirectProbe) -> DirectProbe {
    let mut buffer = vec![0u8; BLOCK_BYTES * 2];
    let start = aligned_start(&buffer, 4096);
    for step in STEPS {
        match rustix::io::pread(file, &mut buffer[start..start + step], step as u64) {
            Ok(_) => probe.offset_align = Some(step as u32),
            Err(error) if probe.offset_align.is_none() => {
                probe.inconclusive = error != rustix::io::Errno::INVAL;
                probe.refused = Some(format!("a direct read of {step} B: {error}"));
                return probe;
            }
            Err(_) => return probe,
        }
    }
    probe
}

/// Index of the first byte whose address is a multiple of `align`.
fn aligned_start(buffer: &[u8], align: usize) -> usize {
    buffer.as_ptr().align_offset(align)
}

/// Operations on the page cache that work here.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct CacheProbe {
    /// Null where it works.
    pub cachestat_refused: Option<String>,
    pub mincore_refused: Option<String>,
    /// posix_fadvise(DONTNEED) emptied the cache of a file; null where that couldn't be seen.
    pub fadvise_drops: Option<bool>,
}

/// Tried on a temporary file in `directory`, or without one on our own program.
pub(crate) fn page_cache(directory: Option<&Path>) -> CacheProbe {
    let directory = directory.map(Path::to_path_buf);
    let timed_out = || {
        let late = Some(format!("no answer in {} s", LIMIT.as_secs()));
        CacheProbe { cachestat_refused: late.clone(), mincore_refused: late, fadvise_drops: None }
    };
    with_time_limit(LIMIT, move || cache_on(directory.as_deref())).unwrap_or_else(timed_out)
}

fn cache_on(directory: Option<&Path>) -> CacheProbe {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let scratch = directory.and_then(|d| temporary(d, flags).ok());
    let refused = |result: Result<u64, std::io::Error>| result.err().map(|e| e.to_string());
    let Some(file) = scratch else {
        let Ok(own) = std::fs::File::open("/proc/self/exe") else { return CacheProbe::default() };
        return CacheProbe {
            cachestat_refused: refused(super::syscalls::cached_pages(own.as_fd())),
            mincore_refused: refused(super::syscalls::mapped_pages(own.as_fd(), 4096)),
            fadvise_drops: None,
        };
    };
    let content = vec![0x5au8; 64 << 10];
    let written = rustix::io::pwrite(&file, &content, 0).is_ok() && rustix::fs::fdatasync(&file).is_ok();
    let mincore = super::syscalls::mapped_pages(file.as_fd(), content.len());
    let dropped = written.then(|| drops(&file, content.len())).flatten();
    CacheProbe {
        cachestat_refused: refused(super::syscalls::cached_pages(file.as_fd())),
        mincore_refused: refused(mincore),
        fadvise_drops: dropped,
    }
}

fn drops(file: &OwnedFd, bytes: usize) -> Option<bool> {
    if super::syscalls::mapped_pages(file.as_fd(), bytes).ok()? == 0 {
        return None;
    }
    rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed).ok()?;
    Some(super::syscalls::mapped_pages(file.as_fd(), bytes).ok()? == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn a_probe_that_hangs_is_given_up() {
        let (_keep, block) = mpsc::channel::<()>();
        assert_eq!(with_time_limit(Duration::from_millis(20), move || block.recv().is_ok()), None);
        assert_eq!(with_time_limit(Duration::from_secs(120), || 7), Some(7));
    }

    #[test]
    fn a_directory_is_tried_and_left_as_it_was() {
        let directory = tempfile::tempdir().unwrap();
        let probe = direct(directory.path(), true).unwrap();
        assert_eq!(probe.tried, "a temporary file");
        assert!(probe.refused.is_some() || probe.offset_align.is_some_and(|a| a <= 4096));
        page_cache(Some(directory.path()));
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn an_empty_directory_that_may_not_be_written_to_gives_nothing_to_try() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(direct(directory.path(), false), None);
    }

    #[test]
    fn a_file_is_only_read() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("f");
        std::fs::write(&file, vec![7u8; 16384]).unwrap();
        let probe = direct(&file, true).unwrap();
        assert!(probe.tried.starts_with("a read of"));
        assert_eq!(std::fs::read(&file).unwrap(), vec![7u8; 16384]);
    }
}
