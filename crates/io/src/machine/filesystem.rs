//! The file system that a path lies in: kind, mount options, alignment for O_DIRECT.

use super::roots::Roots;
use forebay_model::record::Filesystem;
use rustix::fs::{AtFlags, StatxFlags, CWD};
use std::path::{Path, PathBuf};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mount {
    pub major: u32,
    pub minor: u32,
    pub mount_point: PathBuf,
    pub options: Vec<String>,
    pub kind: String,
    pub device: String,
}

/// The lines of `/proc/self/mountinfo` (proc_pid_mountinfo(5)) that make sense.
pub(crate) fn mounts(mountinfo: &str) -> Vec<Mount> {
    mountinfo.lines().filter_map(mount).collect()
}

fn mount(line: &str) -> Option<Mount> {
    let (left, right) = line.split_once(" - ")?;
    let mut left = left.split(' ');
    let (major, minor) = left.nth(2)?.split_once(':')?;
    let mount_point = PathBuf::from(unescape(left.nth(1)?));
    let mut options: Vec<String> = left.next()?.split(',').map(str::to_string).collect();
    let mut right = right.split(' ');
    let kind = right.next()?.to_string();
    let device = unescape(right.next()?);
    for option in right.next().unwrap_or("").split(',').filter(|o| !o.is_empty()) {
        // The mount's own ro or rw stands; the superblock's would contradict it.
        if !options.iter().any(|o| o == option) && !matches!(option, "rw" | "ro") {
            options.push(option.to_string());
        }
    }
    let (major, minor) = (major.parse().ok()?, minor.parse().ok()?);
    Some(Mount { major, minor, mount_point, options, kind, device })
}

/// Blank, tab, newline and backslash come as `\040` and so on.
fn unescape(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let digits = bytes.get(at + 1..at + 4).filter(|_| bytes[at] == b'\\');
        let octal =
            digits.and_then(|d| std::str::from_utf8(d).ok()).and_then(|d| u8::from_str_radix(d, 8).ok());
        out.push(octal.unwrap_or(bytes[at]));
        at += if octal.is_some() { 4 } else { 1 };
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// The mount that `path` (absolute, no links in it) is seen through: the longest
/// mount point, and of several on one point the last.
pub(crate) fn mount_of<'a>(mounts: &'a [Mount], path: &Path) -> Option<&'a Mount> {
    let depth = |m: &&Mount| m.mount_point.components().count();
    mounts.iter().filter(|m| path.starts_with(&m.mount_point)).max_by_key(depth)
}

/// Facts about the file system of `path` without touching it. None where the path can't be looked at.
pub fn filesystem_facts(roots: &Roots, path: &Path) -> Option<Filesystem> {
    let absolute = path.canonicalize().ok()?;
    let mountinfo = Roots::text(&roots.proc("self/mountinfo")).unwrap_or_default();
    let mounts = mounts(&mountinfo);
    let mount = mount_of(&mounts, &absolute)?;
    let space = rustix::fs::statvfs(&absolute).ok();
    let alignment = direct_alignment(&absolute);
    Some(Filesystem {
        kind: mount.kind.clone(),
        mount_point: mount.mount_point.display().to_string(),
        device: mount.device.clone(),
        options: mount.options.clone(),
        block_bytes: space.as_ref().map(|s| s.f_bsize),
        direct_memory_align: alignment.map(|a| a.0),
        direct_offset_align: alignment.map(|a| a.1),
        free_bytes: space.map(|s| s.f_bavail.saturating_mul(s.f_frsize)),
    })
}

/// (memory, offset) alignment by STATX_DIOALIGN of a file, or of the first file in
/// a directory; None where the kernel doesn't say (before Linux 6.1; tmpfs, overlay).
pub fn direct_alignment(path: &Path) -> Option<(u32, u32)> {
    let file = if path.is_dir() { first_file(path)? } else { path.to_path_buf() };
    let stat = rustix::fs::statx(CWD, &file, AtFlags::empty(), StatxFlags::DIOALIGN).ok()?;
    let reported = stat.stx_mask & StatxFlags::DIOALIGN.bits() != 0;
    (reported && stat.stx_dio_offset_align > 0).then_some((stat.stx_dio_mem_align, stat.stx_dio_offset_align))
}

fn first_file(directory: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(directory).ok()?.take(64).flatten();
    let mut files = entries.filter(|e| e.file_type().is_ok_and(|t| t.is_file()));
    files.next().map(|e| e.path())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TABLE: &str = "\
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard,data=ordered
40 27 259:3 / /mnt/my\\040data rw,noatime shared:1 master:2 - xfs /dev/nvme0n1p1 rw,attr2
41 27 0:30 / /mnt/my\\040data rw - tmpfs none rw,size=4k
garbage
42 27 x:y / / rw - ext4 /dev/vdb rw";

    #[test]
    fn mountinfo_is_read_with_its_escapes_and_optional_fields() {
        let mounts = mounts(TABLE);
        assert_eq!(mounts.len(), 3);
        assert_eq!(mounts[1].mount_point, Path::new("/mnt/my data"));
        assert_eq!(mounts[1].options, ["rw", "noatime", "attr2"]);
        assert_eq!((mounts[1].major, mounts[1].minor), (259, 3));
    }

    #[test]
    fn the_last_of_the_deepest_mounts_is_what_a_path_is_seen_through() {
        let mounts = mounts(TABLE);
        let kind = |path: &str| mount_of(&mounts, Path::new(path)).unwrap().kind.clone();
        assert_eq!(kind("/mnt/my data/file"), "tmpfs");
        assert_eq!(kind("/mnt/my database"), "ext4");
    }

    proptest! {
        #[test]
        fn any_mountinfo_is_survived(text in "[-a-z0-9:/ ,\\\\\n]{0,300}") {
            for mount in mounts(&text) {
                prop_assert!(mount.kind.len() <= text.len());
            }
        }
    }
}
