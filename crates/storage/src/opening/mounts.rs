//! Detection of users of a block device: a mount, swap, or a device above it.

use crate::source::file::patiently;
use forebay_model::Error;
use std::collections::BTreeSet;
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Why the device must not be written to; None if nothing is known to use it.
pub fn mounted_as(path: &Path) -> Option<String> {
    let rdev = std::fs::metadata(path).ok()?.rdev();
    let (major, minor) = (libc::major(rdev), libc::minor(rdev));
    let family = family_of(major, minor);
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    for line in mounts.lines() {
        let fields: Vec<&str> = line.split(' ').take(5).collect();
        if let [_, _, device, _, at] = fields[..] {
            if family.contains(device) {
                return Some(format!("it is mounted at {at}"));
            }
        }
    }
    let swaps = std::fs::read_to_string("/proc/swaps").unwrap_or_default();
    for name in swaps.lines().skip(1).filter_map(|l| l.split_whitespace().next()) {
        if std::fs::metadata(name)
            .is_ok_and(|m| family.contains(&format!("{}:{}", libc::major(m.rdev()), libc::minor(m.rdev()))))
        {
            return Some("it is used as swap".into());
        }
    }
    if let Some(holder) = family.iter().find_map(|device| holder_of(device)) {
        return Some(format!("{holder} is built on it"));
    }
    claimed(path).then(|| "the kernel keeps it for a mount, a volume or another program".into())
}

/// A volume, an array or a mapping over the device.
fn holder_of(device: &str) -> Option<String> {
    let holders = std::fs::read_dir(format!("/sys/dev/block/{device}/holders")).ok()?;
    Some(holders.flatten().next()?.file_name().to_string_lossy().into_owned())
}

/// Returns whether the device or a part of it is claimed. What spans several devices (btrfs, ZFS) mounts under a
/// number of its own, and shows nowhere else.
fn claimed(path: &Path) -> bool {
    let opened = patiently(|| std::fs::OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(path));
    opened.is_err_and(|e| e.raw_os_error() == Some(libc::EBUSY))
}

/// The device and its partitions: `major:minor` of each.
fn family_of(major: u32, minor: u32) -> BTreeSet<String> {
    let own = format!("{major}:{minor}");
    let partitions = std::fs::read_dir(format!("/sys/dev/block/{own}")).into_iter().flatten().flatten();
    let numbers = partitions.filter_map(|entry| std::fs::read_to_string(entry.path().join("dev")).ok());
    numbers.map(|text| text.trim().to_string()).chain([own.clone()]).collect()
}

pub(crate) fn device_bytes(path: &Path) -> Result<u64, Error> {
    let asked = || format!("the size of {}", path.display());
    let mut file = std::fs::File::open(path)
        .map_err(|e| Error::request(asked(), e.to_string(), "sudo, or a device that you may read"))?;
    file.seek(SeekFrom::End(0)).map_err(|e| Error::run(asked(), e.to_string(), "lsblk -b"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    // promise: FLT-11
    #[test]
    #[ignore = "needs root and a loop device"]
    fn a_device_that_somebody_claimed_is_in_use() {
        if !rustix::process::geteuid().is_root() {
            return eprintln!("skipped: needs root");
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        let made = Command::new("losetup").args(["--find", "--show"]).arg(file.path()).output().unwrap();
        let name = String::from_utf8(made.stdout).unwrap();
        let device = Path::new(name.trim());
        let before = mounted_as(device);
        let claim = std::fs::OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(device);
        let during = mounted_as(device);
        drop(claim);
        Command::new("losetup").arg("--detach").arg(device).status().unwrap();
        assert_eq!(before, None);
        assert!(during.is_some_and(|why| why.contains("kernel keeps it")));
    }
}
