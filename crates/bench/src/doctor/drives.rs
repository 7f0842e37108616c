//! Block devices: their limits, and the remedies.

pub(crate) use forebay_io::DriveFacts;
use forebay_io::{counted, Check, CheckArea, CheckState, PciLink};
use forebay_model::record::Drive;
use forebay_model::units::readable_bytes as size;

/// Temperature at which most drives begin to slow down; each has its own limit.
const HOT_C: f64 = 70.0;

pub(crate) fn checks(drives: &[DriveFacts]) -> Vec<Check> {
    if drives.is_empty() {
        return vec![Check::new(
            CheckArea::Drives,
            "drives",
            "drives",
            CheckState::NotApplicable,
            "no block device behind this",
        )];
    }
    drives.iter().flat_map(drive_checks).collect()
}

fn drive_checks(facts: &DriveFacts) -> Vec<Check> {
    let mut checks = vec![identity(facts)];
    checks.extend(link_check(facts));
    checks.extend(transfer(facts));
    checks.extend(scheduler(facts));
    checks.extend(polling(facts));
    checks.extend(heat(facts));
    checks
}

fn check(facts: &DriveFacts, id: &str, title: &str, state: CheckState, found: String) -> Check {
    let name = &facts.drive.name;
    Check::new(CheckArea::Drives, format!("drive.{name}.{id}"), format!("{name} {title}"), state, found)
}

fn identity(facts: &DriveFacts) -> Check {
    let drive = &facts.drive;
    let mut parts = vec![drive.model.clone().unwrap_or_else(|| drive.kind.clone())];
    parts.extend(drive.size_bytes.map(size));
    parts.extend(drive.serial.as_ref().map(|s| format!("serial {s}")));
    parts.extend(drive.firmware.as_ref().map(|f| format!("firmware {f}")));
    parts.extend(facts.transport.as_ref().filter(|t| *t != "pcie").map(|t| format!("over {t}")));
    parts.extend(drive.numa_node.map(|n| format!("NUMA node {n}")));
    parts.extend(facts.queues.map(|q| counted(q as usize, "queue")));
    parts.extend(facts.backing_file.as_ref().map(|f| format!("backed by {f}")));
    if !facts.members.is_empty() {
        parts.push(format!("on {}", facts.members.join(" ")));
    }
    let check = |state, found| check(facts, "identity", "", state, found);
    let mut done = match spins(drive) {
        true => check(CheckState::Limited, parts.join(", "))
            .why("a spinning disk: seconds per GiB, and random reads in the hundreds per second"),
        false => check(CheckState::Works, parts.join(", ")),
    };
    done.title = drive.name.clone();
    done
}

/// Loop and virtio devices say that they rotate whatever is behind them.
fn spins(drive: &Drive) -> bool {
    drive.rotational == Some(true) && matches!(drive.kind.as_str(), "sata" | "scsi" | "md" | "dm")
}

fn link_check(facts: &DriveFacts) -> Option<Check> {
    let drive = &facts.drive;
    let link = PciLink {
        generation: drive.pcie_gen,
        generation_max: drive.pcie_gen_max,
        width: drive.pcie_width,
        width_max: drive.pcie_width_max,
    };
    let words = link.words()?;
    let address = drive.pci.as_deref().unwrap_or("?");
    let rate = link.gib_s().map(|g| format!(", at most {g:.1} GiB/s")).unwrap_or_default();
    let found = format!("{words} at {address}{rate}");
    if !link.is_degraded() {
        return Some(check(facts, "link", "PCIe link", CheckState::Works, found));
    }
    Some(
        check(facts, "link", "PCIe link", CheckState::Limited, found)
            .why("the link trained below what the drive can do: a slower or narrower slot, a riser, a bad contact, or power saving")
            .next(format!("sudo lspci -vv -s {address} | grep -E 'LnkCap|LnkSta'   # then reseat it, or move it to a faster slot")),
    )
}

fn transfer(facts: &DriveFacts) -> Option<Check> {
    let now = facts.drive.max_transfer_bytes?;
    let mut found = format!("{} per command", size(now));
    if let Some(segments) = facts.max_segments {
        found += &format!(", {segments} segments");
    }
    let id = "transfer";
    let title = "largest transfer";
    match facts.max_transfer_bytes_hw {
        Some(most) if most > now && now < 1 << 20 => Some(
            check(facts, id, title, CheckState::Limited, format!("{found}; the drive takes {}", size(most)))
                .why("the kernel cuts larger I/Os into pieces of this size")
                .next(format!(
                    "echo {} | sudo tee /sys/block/{}/queue/max_sectors_kb",
                    most >> 10,
                    facts.drive.name
                )),
        ),
        Some(most) if most > now => Some(check(
            facts,
            id,
            title,
            CheckState::Works,
            format!("{found}; the drive takes {}", size(most)),
        )),
        _ => Some(check(facts, id, title, CheckState::Works, found)),
    }
}

fn scheduler(facts: &DriveFacts) -> Option<Check> {
    let drive = &facts.drive;
    let name = drive.scheduler.as_deref()?;
    let mut found = name.to_string();
    if let Some(requests) = drive.queue_requests {
        found += &format!(", {requests} requests");
    }
    if name == "none" || spins(drive) {
        return Some(check(facts, "scheduler", "scheduler", CheckState::Works, found));
    }
    Some(
        check(facts, "scheduler", "scheduler", CheckState::Limited, found)
            .why("it costs CPU on each I/O, and a solid-state drive gains nothing from it")
            .next(format!("echo none | sudo tee /sys/block/{}/queue/scheduler", drive.name)),
    )
}

/// A ring with IOPOLL can be set up anywhere; its I/O fails on a drive without poll queues.
fn polling(facts: &DriveFacts) -> Option<Check> {
    let module = match facts.drive.kind.as_str() {
        "nvme" => "nvme",
        "virtio" => "virtio_blk",
        _ => return None,
    };
    if facts.polled? {
        return Some(check(facts, "polling", "poll queues", CheckState::Works, "on".into()));
    }
    Some(
        check(
            facts,
            "polling",
            "poll queues",
            CheckState::NotApplicable,
            "none: a job with iopoll fails here".into(),
        )
        .next(format!("boot with {module}.poll_queues=4   # only where you want iopoll")),
    )
}

fn heat(facts: &DriveFacts) -> Option<Check> {
    let drive = &facts.drive;
    let title = "temperature";
    match drive.temperature_c {
        Some(degrees) if degrees >= HOT_C => Some(
            check(facts, "temperature", title, CheckState::Limited, format!("{degrees:.0} °C"))
                .why("drives throttle from about here, and long runs get slower")
                .next(format!("nvme smart-log /dev/{}   # and look at its airflow", drive.name)),
        ),
        Some(degrees) => {
            Some(check(facts, "temperature", title, CheckState::Works, format!("{degrees:.0} °C")))
        }
        None if drive.kind == "nvme" => Some(
            check(facts, "temperature", title, CheckState::Unknown, "not reported".into())
                .why("the kernel has no hwmon for it (CONFIG_NVME_HWMON)")
                .next(format!("sudo nvme smart-log /dev/{}", drive.name)),
        ),
        None => None,
    }
}
