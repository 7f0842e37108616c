//! Whether anything uses a block device: a mount, swap, or a device above it.

use forebay_model::Error;
use std::collections::BTreeSet;
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Why the device must not be written to; None if nothing is known to use it.
pub fn in_use(path: &Path) -> Option<String> {
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
    let holders = std::fs::read_dir(format!("/sys/dev/block/{major}:{minor}/holders")).ok()?;
    let holder = holders.flatten().next()?;
    Some(format!("{} is built on it", holder.file_name().to_string_lossy()))
}

/// The device and its partitions: `major:minor` of each.
fn family_of(major: u32, minor: u32) -> BTreeSet<String> {
    let own = format!("{major}:{minor}");
    let partitions = std::fs::read_dir(format!("/sys/dev/block/{own}")).into_iter().flatten().flatten();
    let numbers = partitions.filter_map(|entry| std::fs::read_to_string(entry.path().join("dev")).ok());
    numbers.map(|text| text.trim().to_string()).chain([own.clone()]).collect()
}

pub fn device_bytes(path: &Path) -> Result<u64, Error> {
    let asked = || format!("the size of {}", path.display());
    let mut file = std::fs::File::open(path)
        .map_err(|e| Error::request(asked(), e.to_string(), "sudo, or a device that you may read"))?;
    file.seek(SeekFrom::End(0)).map_err(|e| Error::run(asked(), e.to_string(), "lsblk -b"))
}
