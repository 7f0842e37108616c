//! Memory, the locked-memory limit, and huge pages: whether they suffice.

use forebay_io::{counted, Check, CheckArea, CheckState, MEMLOCK_LEFT_BYTES};
pub(crate) use forebay_io::{HugetlbPool, Locked, MemoryFacts};
use forebay_model::units::readable_bytes as size;

/// Memory registered by four workers with 32 slots of 1 MiB.
const LOCKED_BYTES_WANTED: u64 = 128 << 20;

pub(crate) fn checks(memory: &MemoryFacts) -> Vec<Check> {
    vec![total(memory), locked_check(&memory.locked), hugetlb(memory), thp(memory)]
}

/// What `forebay.feed` could do with this memory: files that it holds are read again at its own rate, in any order.
pub(crate) fn loader(memory: &MemoryFacts, gpu: bool) -> Check {
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
    let into =
        if gpu { "memory of the host or a GPU" } else { "host memory (device=\"cpu\"; no GPU is here)" };
    let held = match memory.cgroup_limit_bytes.into_iter().chain(memory.available_bytes).min() {
        Some(bytes) => format!(
            "; up to {} of data stays cached for shuffle=\"rows\", more is read best by \"blocks\"",
            size(bytes)
        ),
        None => String::new(),
    };
    let found = format!("{} into {into}{held}", counted(threads, "thread"));
    Check::new(CheckArea::Memory, "loader", "loader (forebay feed)", CheckState::Works, found)
}

fn total(memory: &MemoryFacts) -> Check {
    let check = |state, found| Check::new(CheckArea::Memory, "memory", "memory", state, found);
    let Some(total) = memory.total_bytes else {
        return check(CheckState::Unknown, "not reported".into()).why("/proc/meminfo can't be read");
    };
    let mut found = size(total);
    if let Some(available) = memory.available_bytes {
        found += &format!(", {} available", size(available));
    }
    match memory.cgroup_limit_bytes.filter(|limit| *limit < total) {
        Some(limit) => check(CheckState::Limited, format!("{found}; the cgroup allows {}", size(limit)))
            .why("page cache counts against a container's memory limit too")
            .next("start the container with a higher --memory"),
        None => check(CheckState::Works, found),
    }
}

fn locked_check(locked: &Locked) -> Check {
    let check =
        |state, found| Check::new(CheckArea::Memory, "memlock", "locked memory (ulimit -l)", state, found);
    let Some(soft) = locked.soft_bytes else {
        return check(CheckState::Works, "unlimited".into());
    };
    if locked.exempt {
        return check(CheckState::Works, format!("{}, lifted by CAP_IPC_LOCK", size(soft)));
    }
    let wanted = LOCKED_BYTES_WANTED + MEMLOCK_LEFT_BYTES;
    if soft >= wanted {
        return check(CheckState::Works, size(soft));
    }
    let raise = match locked.hard_bytes {
        Some(hard) if hard < wanted => {
            "echo '* - memlock unlimited' | sudo tee /etc/security/limits.d/90-memlock.conf   # then log in again; containers: --ulimit memlock=-1; systemd: LimitMEMLOCK=infinity"
        }
        _ => "ulimit -l unlimited",
    };
    check(CheckState::Limited, size(soft))
        .why(format!(
            "io_uring rings, registered buffers and buffers pinned for a GPU count against it, in all processes of a user: 4 workers × depth 32 × 1 MiB need {}, and {} are left to rings",
            size(LOCKED_BYTES_WANTED),
            size(MEMLOCK_LEFT_BYTES)
        ))
        .next(raise)
}

fn hugetlb(memory: &MemoryFacts) -> Check {
    let check = |state, found| Check::new(CheckArea::Memory, "hugetlb", "huge page pool", state, found);
    let mib2 = |p: &&HugetlbPool| p.page_bytes == 2 << 20;
    let Some(pool) = memory.hugetlb.iter().find(mib2).or(memory.hugetlb.first()) else {
        return check(CheckState::Missing, "none".into()).why("the kernel has no hugetlb support");
    };
    let pages: Vec<String> = memory
        .hugetlb
        .iter()
        .map(|p| format!("{} free of {} × {}", p.free, p.pages, size(p.page_bytes)))
        .collect();
    let found = pages.join("; ");
    let wanted = LOCKED_BYTES_WANTED / pool.page_bytes.max(1);
    if memory.hugetlb.iter().any(|p| p.free.saturating_mul(p.page_bytes) >= LOCKED_BYTES_WANTED) {
        return check(CheckState::Works, found);
    }
    let why = if memory.thp.as_deref() == Some("never") {
        "buffers in small pages make scattered requests, which cost throughput and CPU"
    } else {
        "buffers fall back to transparent huge pages, which the kernel grants only while memory is unfragmented"
    };
    let pages = (pool.pages - pool.free.min(pool.pages)).saturating_add(wanted);
    check(CheckState::Limited, found).why(why).next(format!("sudo sysctl vm.nr_hugepages={pages}"))
}

fn thp(memory: &MemoryFacts) -> Check {
    let check =
        |state, found: String| Check::new(CheckArea::Memory, "thp", "transparent huge pages", state, found);
    let Some(mode) = memory.thp.as_deref() else {
        return check(CheckState::Missing, "none".into()).why("the kernel was built without them");
    };
    let mut found = mode.to_string();
    if let Some(defrag) = &memory.thp_defrag {
        found += &format!("; defrag {defrag}");
    }
    if mode == "never" {
        return check(CheckState::Limited, found)
            .why("buffers outside the hugetlb pool get 4 KiB pages")
            .next("echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled");
    }
    check(CheckState::Works, found)
}
