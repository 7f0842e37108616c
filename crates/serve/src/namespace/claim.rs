//! A file that hosts write to has one server: the lock that says so.

use forebay_io::is_process_gone;
use forebay_model::Error;
use rustix::fs::{flock, fstat, major, minor, FlockOperation};
use rustix::io::Errno;
use std::fs::{read_to_string, File};
use std::path::Path;
use std::time::{Duration, Instant};

/// For how long the lock of a process that is gone is waited for. The kernel closes a ring, and with it the files that
/// the ring knows, behind the end of its process: after tens of milliseconds, or as soon as the drive has answered.
const GONE_WAIT: Duration = Duration::from_secs(5);
/// And that of one that lives: it may just be ending.
const LIVING_WAIT: Duration = Duration::from_millis(250);
const POLL: Duration = Duration::from_millis(10);

/// Makes a file nobody else's, as long as others ask.
///
/// # Errors
/// `Request`: it is another's. `Machine`: its file system has no locks.
pub(super) fn claim(file: &File, path: &Path) -> Result<(), Error> {
    claim_within(file, path, GONE_WAIT, LIVING_WAIT)
}

fn claim_within(file: &File, path: &Path, gone: Duration, living: Duration) -> Result<(), Error> {
    let asked = || format!("serve {} to write", path.display());
    let began = Instant::now();
    loop {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(Errno::WOULDBLOCK | Errno::INTR) => {}
            Err(e) => {
                let found = format!("can't be locked, which would keep a second server off: {e}");
                return Err(Error::machine(asked(), found, "writable = false, or another file system"));
            }
        }
        let holder = holder(file);
        if began.elapsed() >= holder.map_or(gone, |_| living) {
            let process = |pid| format!("process {pid}{}", name(pid));
            let who = holder.map_or("another server or program".into(), process);
            return Err(Error::request(asked(), format!("{who} has it locked"), "writable = false, or lsof"));
        }
        std::thread::sleep(POLL);
    }
}

/// The living process that took the file's lock, as far as `/proc/locks` tells: it knows none of other containers, and
/// none where the file system numbers its devices anew.
fn holder(file: &File) -> Option<u32> {
    let of = fstat(file).ok()?;
    // As fs/locks.c writes it.
    let place = format!("{:02x}:{:02x}:{}", major(of.st_dev), minor(of.st_dev), of.st_ino);
    let locks = read_to_string("/proc/locks").ok()?;
    locks.lines().find_map(|line| owner(line, &place)).filter(|pid| !is_process_gone(*pid as i32))
}

/// `1: FLOCK  ADVISORY  WRITE 4242 fe:01:131077 0 EOF`. A line with an arrow is of one who waits.
fn owner(line: &str, place: &str) -> Option<u32> {
    let mut words = line.split_whitespace().skip(1);
    if words.next()? != "FLOCK" {
        return None;
    }
    let pid = words.nth(2)?.parse().ok()?;
    (words.next()? == place).then_some(pid)
}

fn name(pid: u32) -> String {
    let name = read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    Some(name.trim()).filter(|name| !name.is_empty()).map(|name| format!(" ({name})")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    /// Wait that nobody waits out.
    const LONG: Duration = Duration::from_secs(600);

    fn opened() -> (tempfile::TempDir, std::path::PathBuf, File) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        let file = File::create(&path).unwrap();
        (dir, path, file)
    }

    #[test]
    fn a_line_of_another_file_or_kind_names_nobody() {
        let place = "fe:01:131077";
        assert_eq!(owner("1: FLOCK  ADVISORY  WRITE 4242 fe:01:131077 0 EOF", place), Some(4242));
        for other in [
            "1: FLOCK  ADVISORY  WRITE 4242 fe:01:1310770 0 EOF",
            "1: POSIX  ADVISORY  WRITE 4242 fe:01:131077 0 EOF",
            "1: -> FLOCK  ADVISORY  WRITE 4243 fe:01:131077 0 EOF",
            "1: FLOCK  ADVISORY  WRITE -1 fe:01:131077 0 EOF",
            "1: FLOCK",
            "",
        ] {
            assert_eq!(owner(other, place), None, "{other}");
        }
    }

    // promise: TGT-16
    #[test]
    fn a_lock_of_the_living_is_refused_by_name_without_a_wait_for_its_end() {
        let (_dir, path, file) = opened();
        claim(&file, &path).unwrap();
        let began = Instant::now();
        let error = claim_within(&File::open(&path).unwrap(), &path, LONG, LIVING_WAIT).unwrap_err();
        assert!(began.elapsed() < LONG, "{:?}", began.elapsed());
        let me = format!("process {} (", std::process::id());
        assert!(error.found.contains(&me) && error.found.ends_with(") has it locked"), "{error}");
    }

    // promise: TGT-16
    #[test]
    fn a_lock_that_outlives_its_process_is_waited_for() {
        let (_dir, path, file) = opened();
        // The descriptor is ours, too: the lock stays after the process that took it, as one in a ring does.
        let taken =
            Command::new("flock").args(["-n", "0"]).stdin(Stdio::from(file.try_clone().unwrap())).status();
        assert!(taken.expect("util-linux has flock").success());
        let other = File::open(&path).unwrap();
        assert!(flock(&other, FlockOperation::NonBlockingLockExclusive).is_err());
        let began = Instant::now();
        let later = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(300));
            drop(file);
        });
        claim_within(&other, &path, LONG, Duration::ZERO).unwrap();
        assert!(began.elapsed() >= Duration::from_millis(300), "{:?}", began.elapsed());
        later.join().unwrap();
    }
}
