//! The ublk devices of this machine, ours and others'.

use super::control;
use super::options::OnDeath;
use super::uapi::state;
use super::uring::Kernel;
use forebay_model::Error;
use serde::Serialize;
use std::path::Path;

/// One device, whoever serves it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Device {
    pub id: u32,
    /// `live`; `waiting` and `failing`: it has no daemon, and requests wait or fail; `dead`: it has no disk.
    pub state: &'static str,
    /// The daemon's process.
    pub pid: Option<i32>,
    pub queues: u16,
    pub depth: u16,
    pub on_death: OnDeath,
    /// Result of `identity` for the volume, if the daemon was ours.
    pub identity: u64,
}

/// By number. Empty where the driver isn't loaded.
///
/// # Errors
/// `Machine`: not allowed to ask.
pub fn ublk_devices() -> Result<Vec<Device>, Error> {
    let ids = numbers(Path::new("/sys/class/ublk-char"));
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let mut kernel = Kernel::open()?;
    let described = ids.into_iter().filter_map(|id| control::info(&mut kernel, id).ok().flatten());
    Ok(described
        .map(|info| Device {
            id: info.dev_id,
            state: match info.state {
                state::LIVE => "live",
                state::QUIESCED => "waiting",
                state::FAIL_IO => "failing",
                _ => "dead",
            },
            pid: (info.ublksrv_pid > 0).then_some(info.ublksrv_pid),
            queues: info.nr_hw_queues,
            depth: info.queue_depth,
            on_death: OnDeath::from_flags(info.flags),
            identity: info.ublksrv_flags,
        })
        .collect())
}

/// The first device that waits for a daemon over a volume of that `identity`.
///
/// # Errors
/// Of `ublk_devices`.
pub(crate) fn waiting(identity: u64) -> Result<Option<u32>, Error> {
    let waits = |d: &Device| matches!(d.state, "waiting" | "failing") && d.identity == identity;
    Ok(ublk_devices()?.into_iter().find(waits).map(|d| d.id))
}

/// N of each ublkcN in a folder of sysfs.
fn numbers(folder: &Path) -> Vec<u32> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let number = |e: std::fs::DirEntry| e.file_name().to_str()?.strip_prefix("ublkc")?.parse().ok();
    let mut all: Vec<u32> = entries.filter_map(number).collect();
    all.sort_unstable();
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_found_by_their_names() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["ublkc10", "ublkc2", "ublkcx", "other"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        assert_eq!(numbers(folder.path()), [2, 10]);
        assert!(numbers(Path::new("/nonexistent")).is_empty());
    }
}
