//! The file system of a path: kind, mount options, alignment for O_DIRECT, and what direct I/O on it shows.

use super::probe::{self, DirectProbe};
use forebay_io::{filesystem_facts, Check, CheckArea, CheckState, Roots};
use forebay_model::record::Filesystem;
use forebay_model::units::readable_bytes as size;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// A path, its file system, and what direct I/O on it showed.
#[derive(Clone, Debug, Serialize)]
pub struct Examined {
    pub path: PathBuf,
    /// `file`, `directory`, `block device`.
    pub kind: &'static str,
    /// Major and minor number of the block device that the file system, or the device itself, is on.
    pub device: (u32, u32),
    #[serde(flatten)]
    pub filesystem: Option<Filesystem>,
    /// The kernel's own word for ext4's journal mode, from /proc/fs/ext4; null elsewhere.
    pub journal_mode: Option<String>,
    pub direct: Option<DirectProbe>,
}

/// Limit on the examination of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trial {
    /// Look at it only.
    Nothing,
    /// Read a block with O_DIRECT.
    Read,
    /// The same; in a directory, on a nameless temporary file.
    Write,
}

/// Everything about one path, with as much trying as `trial` allows.
pub(crate) fn examine(roots: &Roots, path: &Path, trial: Trial) -> Option<Examined> {
    use std::os::unix::fs::{FileTypeExt, MetadataExt};
    let stat = std::fs::metadata(path).ok()?;
    let kind = match stat.file_type() {
        t if t.is_dir() => "directory",
        t if t.is_block_device() => "block device",
        _ => "file",
    };
    let block = kind == "block device";
    let number = if block { stat.rdev() } else { stat.dev() };
    let device = (rustix::fs::major(number), rustix::fs::minor(number));
    let mut filesystem = if block { None } else { filesystem_facts(roots, path) };
    let direct = match trial {
        Trial::Nothing => None,
        Trial::Read | Trial::Write => probe::direct(path, trial == Trial::Write),
    };
    // A directory without files: the temporary file knows.
    if let (Some(fs), Some(reported)) = (&mut filesystem, direct.as_ref().and_then(|d| d.reported)) {
        fs.direct_memory_align.get_or_insert(reported.0);
        fs.direct_offset_align.get_or_insert(reported.1);
    }
    let device = filesystem.as_ref().and_then(|f| device_of(f, device)).unwrap_or(device);
    let journal_mode = filesystem.as_ref().and_then(|f| journal_mode(roots, f));
    Some(Examined { path: path.to_path_buf(), kind, device, filesystem, journal_mode, direct })
}

/// btrfs and overlay give files an anonymous device number; the mounted device is the real one.
fn device_of(filesystem: &Filesystem, number: (u32, u32)) -> Option<(u32, u32)> {
    use std::os::unix::fs::MetadataExt;
    if number.0 != 0 || !filesystem.device.starts_with("/dev/") {
        return None;
    }
    let real = std::fs::metadata(&filesystem.device).ok()?.rdev();
    Some((rustix::fs::major(real), rustix::fs::minor(real)))
}

fn journal_mode(roots: &Roots, filesystem: &Filesystem) -> Option<String> {
    if filesystem.kind != "ext4" {
        return None;
    }
    let name = filesystem.device.rsplit('/').next()?;
    let options = Roots::text(&roots.proc("fs/ext4").join(name).join("options"))?;
    options.lines().find_map(|l| l.strip_prefix("data=").map(str::to_string))
}

/// Returns whether a directory lets us make files in it.
pub(crate) fn writable(path: &Path) -> bool {
    rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok()
}

/// `gpu`: there is a GPU (or libcufile), so that what direct DMA asks of a file system matters.
pub(crate) fn checks(examined: &Examined, gpu: bool) -> Vec<Check> {
    let mut checks = Vec::new();
    if let Some(fs) = &examined.filesystem {
        checks.push(kind_check(fs));
        checks.extend(option_checks(fs));
        if gpu && fs.kind == "ext4" {
            checks.push(ordered(examined, fs));
        }
    }
    checks.push(direct_check(examined));
    checks
}

fn kind_check(fs: &Filesystem) -> Check {
    let mut found = format!("{} on {} at {} ({})", fs.kind, fs.device, fs.mount_point, fs.options.join(","));
    if let Some(free) = fs.free_bytes {
        found += &format!(", {} free", size(free));
    }
    let id = format!("filesystem {}", fs.mount_point);
    let check = |state| Check::new(CheckArea::Filesystem, id, "file system", state, found);
    match fs.kind.as_str() {
        "tmpfs" | "ramfs" => check(CheckState::Limited)
            .why("it lives in memory: a run here measures memory, not storage")
            .next("name a directory on the drive that you mean"),
        "overlay" => check(CheckState::Limited)
            .why("it is a container's layered root: the drive is hidden behind it")
            .next("mount a volume into the container: -v /data:/data"),
        "btrfs" => check(CheckState::Limited)
            .why("with checksums on, direct I/O may fall back to the page cache")
            .next("chattr +C DIRECTORY   # before its files are made"),
        "nfs" | "nfs4" | "cifs" | "fuse" | "9p" | "virtiofs" => check(CheckState::Limited)
            .why("the storage is behind another machine or process: drive facts don't show here")
            .next("run forebay doctor there as well"),
        _ => check(CheckState::Works),
    }
}

fn option_checks(fs: &Filesystem) -> Vec<Check> {
    let has = |name: &str| fs.options.iter().any(|o| o == name);
    let mount_point = &fs.mount_point;
    let check = |id: &str, found: &str, why: &str, next: String| {
        Check::new(
            CheckArea::Filesystem,
            format!("mount.{id} {mount_point}"),
            format!("mount option {id}"),
            CheckState::Limited,
            found,
        )
        .why(why)
        .next(next)
    };
    let remount = |option: &str| format!("sudo mount -o remount,{option} {mount_point}");
    let mut checks = Vec::new();
    if has("ro") {
        checks.push(check("ro", "read-only", "writes fail here", remount("rw")));
    }
    if has("strictatime") || (!has("noatime") && !has("relatime") && !has("ro") && on_disk(fs)) {
        checks.push(check(
            "noatime",
            "every read notes its time",
            "reading writes to the drive as well",
            remount("noatime"),
        ));
    }
    if has("discard") {
        checks.push(check(
            "discard",
            "discards as files are deleted",
            "deleting large files sends bursts of discards, which disturb a run beside it",
            remount("nodiscard") + " && sudo systemctl enable --now fstrim.timer",
        ));
    }
    if has("sync") || has("dirsync") {
        checks.push(check(
            "sync",
            "every write waits for the drive",
            "writes are as slow as the drive's flush",
            remount("async"),
        ));
    }
    checks
}

fn on_disk(fs: &Filesystem) -> bool {
    fs.device.starts_with("/dev/")
}

/// cuFile takes ext4 only with ordered data, and looks for the words among the mount options.
fn ordered(examined: &Examined, fs: &Filesystem) -> Check {
    let spelled = fs.options.iter().find_map(|o| o.strip_prefix("data="));
    let mode = spelled.or(examined.journal_mode.as_deref());
    let check = |state, found: String| {
        let id = format!("mount.data {}", fs.mount_point);
        Check::new(CheckArea::Filesystem, id, "mount option data=ordered", state, found)
    };
    let again = ordered_again(fs);
    match (spelled, mode) {
        (Some("ordered"), _) => check(CheckState::Works, "spelled out".into()),
        (None, Some("ordered")) => check(CheckState::Limited, "in force, as the default".into())
            .why("cuFile looks for the words data=ordered among the mount options, where a default isn't shown")
            .next(again),
        (_, Some(other)) => check(CheckState::Missing, format!("data={other}"))
            .why("cuFile supports ext4 only with data=ordered; it falls back to its compatibility mode")
            .next(again),
        (_, None) => check(CheckState::Limited, "not reported".into())
            .why("cuFile supports ext4 only with data=ordered among its mount options")
            .next(again),
    }
}

/// The command that mounts an ext4 file system with the words data=ordered.
pub(crate) fn ordered_again(fs: &Filesystem) -> String {
    if fs.mount_point == "/" {
        return r#"sudo sed -i 's/^GRUB_CMDLINE_LINUX="/&rootflags=data=ordered /' /etc/default/grub && sudo update-grub && sudo reboot"#.into();
    }
    format!(
        "sudo umount {0} && sudo mount -o data=ordered {1} {0}   # and in /etc/fstab",
        fs.mount_point, fs.device
    )
}

fn direct_check(examined: &Examined) -> Check {
    let id = format!("direct {}", examined.path.display());
    let check = |state, found: String| Check::new(CheckArea::Filesystem, id, "O_DIRECT", state, found);
    let fs = examined.filesystem.as_ref();
    let reported = fs.and_then(|f| Some((f.direct_memory_align?, f.direct_offset_align?)));
    let says = reported.map(|(memory, offset)| {
        format!("memory aligned to {memory} B, offsets and lengths to {offset} B (statx)")
    });
    let Some(direct) = &examined.direct else {
        if let Some(says) = says {
            return check(CheckState::Works, format!("{says}; not tried"));
        }
        return check(CheckState::Unknown, "not tried".into())
            .why("there is no file here to read, and none may be made")
            .next("forebay doctor on a file, or on a directory that you may write to");
    };
    match &direct.refused {
        Some(refused) if direct.timed_out => {
            check(CheckState::Unknown, refused.clone()).why("the storage doesn't answer").next("dmesg | tail")
        }
        Some(refused) if direct.inconclusive => {
            check(CheckState::Unknown, says.unwrap_or_else(|| refused.clone())).why(refused.clone()).next(
                "forebay doctor on a file there that you may read, or a directory that you may write to",
            )
        }
        Some(refused) => check(CheckState::Missing, refused.clone())
            .why("this file system has no direct I/O: ‹cache› bypass fails here")
            .next("‹cache› drop, which reads through the page cache after dropping the files' pages"),
        None => {
            let tried = format!("tried with {}", direct.tried);
            let least = direct.offset_align.map(|n| format!("{n} B steps work"));
            let parts: Vec<String> = [says, least, Some(tried)].into_iter().flatten().collect();
            check(CheckState::Works, parts.join("; "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn examined(kind: &str, options: &str, journal: Option<&str>) -> Examined {
        let filesystem = Some(Filesystem {
            kind: kind.into(),
            mount_point: "/mnt/d".into(),
            device: "/dev/nvme0n1".into(),
            options: options.split(',').map(str::to_string).collect(),
            ..Filesystem::default()
        });
        let journal_mode = journal.map(str::to_string);
        Examined {
            path: "/mnt/d".into(),
            kind: "directory",
            device: (259, 0),
            filesystem,
            journal_mode,
            direct: None,
        }
    }

    fn find(checks: &[Check], id: &str) -> Option<Check> {
        checks.iter().find(|c| c.id == format!("{id} /mnt/d")).cloned()
    }

    #[test]
    fn ext4_for_gpus_must_spell_out_ordered_data() {
        let state = |options: &str, journal| {
            find(&checks(&examined("ext4", options, journal), true), "mount.data").map(|c| c.state)
        };
        assert_eq!(state("rw,noatime,data=ordered", None), Some(CheckState::Works));
        assert_eq!(state("rw,noatime", Some("ordered")), Some(CheckState::Limited));
        assert_eq!(state("rw,noatime,data=journal", None), Some(CheckState::Missing));
        assert_eq!(find(&checks(&examined("xfs", "rw", None), true), "mount.data"), None);
        assert_eq!(find(&checks(&examined("ext4", "rw", None), false), "mount.data"), None);
    }

    #[test]
    fn mount_options_that_cost_name_the_remount() {
        let all = checks(&examined("xfs", "ro,strictatime,discard,sync", None), false);
        for (id, command) in [
            ("mount.ro", "remount,rw /mnt/d"),
            ("mount.noatime", "remount,noatime /mnt/d"),
            ("mount.discard", "remount,nodiscard /mnt/d"),
            ("mount.sync", "remount,async /mnt/d"),
        ] {
            assert!(find(&all, id).unwrap().next.unwrap().contains(command), "{id}");
        }
        let quiet = checks(&examined("xfs", "rw,relatime", None), false);
        assert!(!quiet.iter().any(|c| c.id.starts_with("mount.")));
    }
}
