//! Bytes that the block devices behind a path delivered and took, by the kernel's own counters.
//!
//! Bytes asked for and bytes delivered differ by whatever the page cache, read-ahead, the
//! file system's metadata and other processes did; hence both are in the record. Counted
//! is the device that the file system lies on (a partition, an md array, a dm volume).
//! Its members are listed but never added: the same bytes would count twice.

use super::Reason;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

const SYS: &str = "/sys";
const MOUNTS: &str = "/proc/self/mountinfo";

/// The unit of every `stat` file, whatever the device's logical block.
const SECTOR_BYTES: u64 = 512;

/// Stacks deeper than this are a loop in what we read.
const STACK_DEPTH_MAX: u32 = 16;

/// A block device; the kernel's name of it, as `nvme0n1p2`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    pub major: u32,
    pub minor: u32,
    pub name: String,
}

impl Device {
    pub fn number(&self) -> (u32, u32) {
        (self.major, self.minor)
    }
}

/// The devices that hold a path's data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Behind {
    /// To be counted. More than one only where a file system spans devices (btrfs).
    pub top: Vec<Device>,
    /// Members of md and dm devices among them, down to the drives.
    pub members: Vec<Device>,
}

impl Behind {
    /// Device numbers for `Counters::read`.
    pub fn numbers(&self) -> Vec<(u32, u32)> {
        self.top.iter().map(Device::number).collect()
    }
}

/// The block devices behind a file, directory or device node; or why there is none.
pub fn disks_behind(path: &Path) -> Result<Behind, Reason> {
    let shown = path.display();
    let meta = fs::metadata(path).map_err(|e| format!("{shown}: {e}"))?;
    let sys = Path::new(SYS);
    if meta.file_type().is_block_device() {
        return disk_stack(sys, &[split(meta.rdev())]);
    }
    if meta.file_type().is_char_device() {
        return Err(format!("{shown} is a character device, which has no block counters"));
    }
    match split(meta.dev()) {
        // Number 0 is the kernel's for file systems that no single device holds.
        (0, _) => anonymous(sys, path),
        number => disk_stack(sys, &[number]),
    }
}

/// A reading of the counters of some devices together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counters {
    devices: Vec<(u32, u32)>,
    /// Traffic of each device.
    each: Vec<Traffic>,
}

/// Traffic of block devices; requests as the device saw them, after merging.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    pub read_ios: u64,
    pub read_bytes: u64,
    pub write_ios: u64,
    pub written_bytes: u64,
}

impl Counters {
    /// Reads the counters of `devices`, each given as (major, minor). A device listed twice counts once.
    pub fn read(devices: &[(u32, u32)]) -> Result<Counters, Reason> {
        Counters::read_in(Path::new(SYS), devices)
    }

    /// `read` in a tree that looks like /sys.
    pub fn read_in(sys: &Path, devices: &[(u32, u32)]) -> Result<Counters, Reason> {
        let devices: Vec<_> = BTreeSet::from_iter(devices.iter().copied()).into_iter().collect();
        if devices.is_empty() {
            return Err("no block device is behind the source".into());
        }
        let each = devices.iter().map(|&number| counted(sys, number)).collect::<Result<_, _>>()?;
        Ok(Counters { devices, each })
    }

    /// Traffic since `earlier`, which must be of the same devices.
    pub fn since(&self, earlier: &Counters) -> Result<Traffic, Reason> {
        Ok(self.by_device(earlier)?.into_values().fold(Traffic::default(), Traffic::plus))
    }

    /// `since` for each device by itself.
    pub fn by_device(&self, earlier: &Counters) -> Result<BTreeMap<(u32, u32), Traffic>, Reason> {
        if self.devices != earlier.devices {
            return Err("the two readings are of different devices".into());
        }
        let gone_by = |((number, now), before): ((&(u32, u32), &Traffic), &Traffic)| {
            let own = now.minus(*before);
            Ok((*number, own.ok_or("the counters went back: a device was removed and came again")?))
        };
        self.devices.iter().zip(&self.each).zip(&earlier.each).map(gone_by).collect()
    }
}

/// The kernel's name of a device, as `nvme0n1p2`.
pub fn disk_name(number: (u32, u32)) -> String {
    name_of(&device_folder(Path::new(SYS), number), number)
}

impl Traffic {
    fn plus(self, other: Traffic) -> Traffic {
        Traffic {
            read_ios: self.read_ios.saturating_add(other.read_ios),
            read_bytes: self.read_bytes.saturating_add(other.read_bytes),
            write_ios: self.write_ios.saturating_add(other.write_ios),
            written_bytes: self.written_bytes.saturating_add(other.written_bytes),
        }
    }

    fn minus(self, earlier: Traffic) -> Option<Traffic> {
        Some(Traffic {
            read_ios: self.read_ios.checked_sub(earlier.read_ios)?,
            read_bytes: self.read_bytes.checked_sub(earlier.read_bytes)?,
            write_ios: self.write_ios.checked_sub(earlier.write_ios)?,
            written_bytes: self.written_bytes.checked_sub(earlier.written_bytes)?,
        })
    }
}

fn counted(sys: &Path, number: (u32, u32)) -> Result<Traffic, Reason> {
    let folder = device_folder(sys, number);
    let name = name_of(&folder, number);
    // A partition's queue is its disk's.
    let accounting = ["queue/iostats", "../queue/iostats"]
        .iter()
        .find_map(|leaf| fs::read_to_string(folder.join(leaf)).ok());
    if accounting.is_some_and(|on| on.trim() == "0") {
        return Err(format!(
            "{name} has accounting switched off: echo 1 > /sys/dev/block/{}:{}/queue/iostats",
            number.0, number.1
        ));
    }
    let file = folder.join("stat");
    let text = fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
    parse_stat(&text).map_err(|found| format!("{}: {found}", file.display()))
}

/// A block device's `stat` file (Documentation/block/stat.rst): reads, merges, sectors,
/// milliseconds, then the same for writes; later columns aren't needed.
pub(crate) fn parse_stat(text: &str) -> Result<Traffic, Reason> {
    let mut columns = [0u64; 7];
    let mut words = text.split_ascii_whitespace();
    for column in &mut columns {
        let word = words.next().ok_or("fewer than 7 columns")?;
        let shown: String = word.chars().take(40).collect();
        *column = word.parse().map_err(|_| format!("'{shown}' is not a count"))?;
    }
    let bytes = |sectors: u64| sectors.checked_mul(SECTOR_BYTES).ok_or("a count too large for bytes");
    Ok(Traffic {
        read_ios: columns[0],
        read_bytes: bytes(columns[2])?,
        write_ios: columns[4],
        written_bytes: bytes(columns[6])?,
    })
}

/// `tops` and what they are made of, by a tree that looks like /sys.
pub fn disk_stack(sys: &Path, tops: &[(u32, u32)]) -> Result<Behind, Reason> {
    let mut behind = Behind::default();
    let mut seen: BTreeSet<_> = tops.iter().copied().collect();
    for &number in tops {
        let folder = device_folder(sys, number);
        if !folder.exists() {
            return Err(format!("{} is not there: no counters of this device", folder.display()));
        }
        behind.top.push(device(&folder, number));
        members(&folder, &mut seen, &mut behind.members, 0);
    }
    Ok(behind)
}

fn members(folder: &Path, seen: &mut BTreeSet<(u32, u32)>, found: &mut Vec<Device>, depth: u32) {
    let Ok(entries) = fs::read_dir(folder.join("slaves")) else { return };
    let mut below: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    below.sort();
    for folder in below {
        let Some(number) = fs::read_to_string(folder.join("dev")).ok().and_then(|t| parse_number(&t)) else {
            continue;
        };
        if depth < STACK_DEPTH_MAX && seen.insert(number) {
            found.push(device(&folder, number));
            members(&folder, seen, found, depth + 1);
        }
    }
}

/// A file system under an anonymous number: its mount says what it is, and btrfs and its
/// like name a device there.
fn anonymous(sys: &Path, path: &Path) -> Result<Behind, Reason> {
    let shown = path.display();
    let whole = fs::canonicalize(path).map_err(|e| format!("{shown}: {e}"))?;
    let table = fs::read(MOUNTS).map_err(|e| format!("{MOUNTS}: {e}"))?;
    let mount = mount_of(&table, &whole).ok_or_else(|| format!("{MOUNTS} names no mount of {shown}"))?;
    let node = fs::metadata(&mount.source).ok().filter(|meta| meta.file_type().is_block_device());
    match node {
        Some(meta) => {
            let number = split(meta.rdev());
            disk_stack(sys, &btrfs_devices(sys, number).unwrap_or_else(|| vec![number]))
        }
        None => Err(without_device(&mount.kind, &shown.to_string())),
    }
}

fn without_device(kind: &str, shown: &str) -> Reason {
    match kind {
        "tmpfs" | "ramfs" | "hugetlbfs" | "devtmpfs" => format!("{shown} is in memory ({kind})"),
        "overlay" => format!("{shown} is on overlay, whose layers are elsewhere; use a path on a volume"),
        "nfs" | "nfs4" | "cifs" | "smb3" | "ceph" | "lustre" | "9p" | "virtiofs" => {
            format!("{shown} is on another machine ({kind})")
        }
        _ => format!("{shown} is on {kind}, which names no block device"),
    }
}

/// All devices of the btrfs that `member` belongs to.
fn btrfs_devices(sys: &Path, member: (u32, u32)) -> Option<Vec<(u32, u32)>> {
    let systems = fs::read_dir(sys.join("fs/btrfs")).ok()?;
    systems.flatten().find_map(|system| {
        let devices = fs::read_dir(system.path().join("devices")).ok()?;
        let mut numbers: Vec<_> = devices
            .flatten()
            .filter_map(|entry| parse_number(&fs::read_to_string(entry.path().join("dev")).ok()?))
            .collect();
        numbers.sort_unstable();
        numbers.contains(&member).then_some(numbers)
    })
}

/// Entry of mountinfo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mount {
    pub point: PathBuf,
    pub kind: String,
    pub source: PathBuf,
}

/// The mount that `path` (absolute, no links) lies on: the longest mount point above it,
/// and of several on one point the last, which covers the others.
pub(crate) fn mount_of(table: &[u8], path: &Path) -> Option<Mount> {
    let mounts = table.split(|&byte| byte == b'\n').filter_map(parse_mount);
    mounts.filter(|mount| path.starts_with(&mount.point)).max_by_key(|mount| mount.point.as_os_str().len())
}

/// One line of mountinfo (proc_pid_mountinfo(5)): the mount point is field 5, and after
/// the lone `-` come the type and the source.
fn parse_mount(line: &[u8]) -> Option<Mount> {
    let fields: Vec<&[u8]> = line.split(|&byte| byte == b' ').collect();
    let dash = fields.iter().position(|field| *field == b"-").filter(|&at| at >= 6)?;
    let text = |field: &[u8]| PathBuf::from(OsString::from_vec(unescape(field)));
    Some(Mount {
        point: text(fields[4]),
        kind: String::from_utf8_lossy(fields.get(dash + 1)?).into_owned(),
        source: text(fields.get(dash + 2)?),
    })
}

/// Space, tab, newline and backslash come as `\` and three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, after)) = rest.split_first() {
        let octal = after.get(..3).filter(|d| byte == b'\\' && d.iter().all(|c| (b'0'..=b'7').contains(c)));
        match octal {
            Some(d) if d[0] <= b'3' => {
                plain.push((d[0] - b'0') * 64 + (d[1] - b'0') * 8 + (d[2] - b'0'));
                rest = &after[3..];
            }
            _ => {
                plain.push(byte);
                rest = after;
            }
        }
    }
    plain
}

fn parse_number(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.trim().split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

fn split(device: u64) -> (u32, u32) {
    (rustix::fs::major(device), rustix::fs::minor(device))
}

fn device_folder(sys: &Path, (major, minor): (u32, u32)) -> PathBuf {
    sys.join(format!("dev/block/{major}:{minor}"))
}

fn device(folder: &Path, number: (u32, u32)) -> Device {
    Device { major: number.0, minor: number.1, name: name_of(folder, number) }
}

fn name_of(folder: &Path, (major, minor): (u32, u32)) -> String {
    let whole = fs::canonicalize(folder).ok();
    let last = whole
        .as_deref()
        .and_then(Path::file_name)
        .map(|n| String::from_utf8_lossy(n.as_bytes()).into_owned());
    last.unwrap_or_else(|| format!("{major}:{minor}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sectors_are_512_bytes_whatever_the_drive() {
        let nvme = "  1467  25  98304  410  77  12  2048  99  0  380  509  0 0 0 0  5  2\n";
        let traffic = parse_stat(nvme).unwrap();
        assert_eq!((traffic.read_ios, traffic.read_bytes), (1467, 98304 * 512));
        assert_eq!((traffic.write_ios, traffic.written_bytes), (77, 2048 * 512));
    }

    #[test]
    fn a_count_that_overflows_is_named_not_wrapped() {
        assert!(parse_stat(&format!("1 1 {} 1 1 1 1", u64::MAX)).unwrap_err().contains("too large"));
        assert!(parse_stat("1 2 3").unwrap_err().contains("fewer"));
        assert!(parse_stat("1 2 x 4 5 6 7").unwrap_err().contains("'x'"));
    }

    #[test]
    fn the_innermost_mount_wins_and_covers_older_ones() {
        let table = b"22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
            30 22 0:50 / /data rw shared:1 - nfs4 host:/x rw\n\
            31 22 0:51 / /data rw - tmpfs tmpfs rw\n\
            32 22 0:52 / /data/my\\040set rw master:2 propagate_from:1 - btrfs /dev/vdb rw\n\
            garbage\n";
        let at = |path: &str| mount_of(table, Path::new(path)).unwrap().kind;
        assert_eq!(at("/etc"), "ext4");
        assert_eq!(at("/data/x"), "tmpfs");
        assert_eq!(at("/data/my set/x"), "btrfs");
        assert_eq!(at("/database"), "ext4");
    }

    proptest! {
        #[test]
        fn any_stat_is_traffic_or_a_reason(text in "\\PC{0,120}|[0-9 \n]{0,200}") {
            let _ = parse_stat(&text);
        }

        #[test]
        fn any_mount_table_is_survived(table in prop::collection::vec(any::<u8>(), 0..400)) {
            let _ = mount_of(&table, Path::new("/a/b"));
        }

        #[test]
        fn a_mount_point_is_read_back_whatever_it_is_called(name in prop::collection::vec(1u8..=255, 1..40)) {
            let mut line = b"30 22 0:50 / /".to_vec();
            for &byte in &name {
                match byte {
                    b' ' | b'\t' | b'\n' | b'\\' => line.extend(format!("\\{byte:03o}").bytes()),
                    _ => line.push(byte),
                }
            }
            line.extend(b" rw - xfs /dev/vdb rw");
            let mount = parse_mount(&line).unwrap();
            prop_assert_eq!(&mount.point.as_os_str().as_bytes()[1..], &name[..]);
            prop_assert_eq!(mount.kind, "xfs");
        }

        #[test]
        fn differences_add_up(a in any::<[u32; 4]>(), b in any::<[u32; 4]>()) {
            let traffic = |n: [u32; 4]| Traffic {
                read_ios: n[0].into(), read_bytes: n[1].into(),
                write_ios: n[2].into(), written_bytes: n[3].into(),
            };
            prop_assert_eq!(traffic(a).plus(traffic(b)).minus(traffic(a)), Some(traffic(b)));
        }
    }
}
