//! Detection of changes of a file since its pages were registered.
//!
//! A registered page outlives what happens to its file: after a truncation or a
//! replacement the copies go on, and bring the old bytes without a word. So the
//! file is looked at before copies are queued and after they ended, both through
//! the descriptor and by its path.
//!
//! The kernel doesn't hand its change cookie to programs (STATX_CHANGE_COOKIE is
//! kept for its NFS server), so the change time stands in for it: programs can't
//! set it, and every write, truncation, rename and unlink moves it. Since Linux
//! 6.13 it moves for each change that follows a look at it; before, two changes
//! within a tick of the clock (1 to 10 ms) look like one.

use forebay_io::Fault;
use rustix::fs::{statx, AtFlags, Statx, StatxFlags, StatxTimestamp, CWD};
use rustix::io::Errno;
use std::fs::File;
use std::path::Path;

/// Seconds and nanoseconds.
type Time = (i64, u32);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// (major, minor) of its file system, and its number there.
    device: (u32, u32),
    inode: u64,
    /// Identity of the path's present file; None where it leads nowhere.
    at_path: Option<((u32, u32), u64)>,
    bytes: u64,
    modified: Time,
    changed: Time,
}

impl Identity {
    /// Returns the identity of an open file. `is_device`: a block device's node tells nothing of what is written to
    /// it, but all who open it share its pages, so they are never stale.
    pub(crate) fn read(file: &File, path: &Path, is_device: bool) -> Result<Identity, Fault> {
        let open = statx(file, c"", AtFlags::EMPTY_PATH, wanted()).map_err(|e| unknown(path, e))?;
        let at_path = match statx(CWD, path, AtFlags::empty(), StatxFlags::INO) {
            Ok(named) => Some(place(&named)),
            Err(Errno::NOENT | Errno::NOTDIR) => None,
            Err(e) => return Err(unknown(path, e)),
        };
        let (device, inode) = place(&open);
        let time = |t: StatxTimestamp| if is_device { (0, 0) } else { (t.tv_sec, t.tv_nsec) };
        Ok(Identity {
            device,
            inode,
            at_path,
            bytes: if is_device { u64::MAX } else { open.stx_size },
            modified: time(open.stx_mtime),
            changed: time(open.stx_ctime),
        })
    }

    /// The path leads to the open file, and that holds `bytes` at least.
    pub(crate) fn is_whole(&self, bytes: u64) -> bool {
        self.at_path == Some((self.device, self.inode)) && self.bytes >= bytes
    }

    /// Describes the difference between `self` and `now` for people.
    pub(crate) fn change(&self, now: &Identity) -> &'static str {
        match now.at_path {
            None => "it was deleted or renamed",
            Some(place) if place != (now.device, now.inode) => "another file took its place",
            _ if now.bytes < self.bytes => "it was truncated",
            _ if now.bytes > self.bytes => "it grew",
            _ if now.modified != self.modified => "it was written to",
            _ => "its metadata changed",
        }
    }
}

/// The fault of a read that met a changed file.
pub(crate) fn stale(path: &Path, what: &str) -> Fault {
    Fault::note(
        libc::ESTALE,
        format!(
            "{} changed while it was read: {what}; read it again when nothing writes to it, or use ‹path› bounce",
            path.display()
        ),
    )
}

fn wanted() -> StatxFlags {
    StatxFlags::INO | StatxFlags::SIZE | StatxFlags::MTIME | StatxFlags::CTIME
}

fn place(stat: &Statx) -> ((u32, u32), u64) {
    ((stat.stx_dev_major, stat.stx_dev_minor), stat.stx_ino)
}

fn unknown(path: &Path, e: Errno) -> Fault {
    Fault::note(
        e.raw_os_error(),
        format!("{} can't be looked at, to see whether it changed: statx: {e}", path.display()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::fs::FileExt;

    /// Returns the description of a change of a file.
    fn seen(act: impl FnOnce(&Path)) -> Option<&'static str> {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("f");
        std::fs::File::create(&path).unwrap().write_all(&[7; 8192]).unwrap();
        let open = File::open(&path).unwrap();
        let before = Identity::read(&open, &path, false).unwrap();
        // Kernels before 6.13 tell times apart by the tick.
        std::thread::sleep(std::time::Duration::from_millis(12));
        act(&path);
        let now = Identity::read(&open, &path, false).unwrap();
        (now != before).then(|| before.change(&now))
    }

    // promise: ENG-13
    #[test]
    fn each_change_is_seen_and_named() {
        let write = |p: &Path| std::fs::OpenOptions::new().write(true).open(p).unwrap();
        assert_eq!(seen(|_| {}), None);
        assert_eq!(seen(|p| drop(std::fs::read(p))), None);
        assert_eq!(seen(|p| write(p).set_len(4096).unwrap()), Some("it was truncated"));
        assert_eq!(seen(|p| write(p).set_len(9000).unwrap()), Some("it grew"));
        assert_eq!(seen(|p| write(p).write_all_at(b"x", 0).unwrap()), Some("it was written to"));
        assert_eq!(seen(|p| std::fs::remove_file(p).unwrap()), Some("it was deleted or renamed"));
        let replace = |p: &Path| {
            std::fs::write(p.with_extension("new"), [8; 8192]).unwrap();
            std::fs::rename(p.with_extension("new"), p).unwrap();
        };
        assert_eq!(seen(replace), Some("another file took its place"));
    }

    #[test]
    fn a_file_is_whole_while_its_path_leads_to_all_of_it() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("f");
        std::fs::write(&path, [7; 8192]).unwrap();
        let open = File::open(&path).unwrap();
        let now = || Identity::read(&open, &path, false).unwrap();
        assert!(now().is_whole(8192) && !now().is_whole(8193));
        std::fs::remove_file(&path).unwrap();
        assert!(!now().is_whole(1));
    }
}
