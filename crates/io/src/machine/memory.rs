//! Memory, the locked-memory limit, and huge pages.

use super::cgroups::cgroup_dirs;
use super::roots::{kib_field, Roots};
use serde::Serialize;

/// CAP_IPC_LOCK, from linux/capability.h: no locked-memory limit applies.
const CAP_IPC_LOCK: u32 = 14;

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Memory {
    pub total_bytes: Option<u64>,
    pub available_bytes: Option<u64>,
    pub swap_bytes: Option<u64>,
    /// The least limit of the cgroups around this process; null without one.
    pub cgroup_limit_bytes: Option<u64>,
    pub locked: Locked,
    pub hugetlb: Vec<HugetlbPool>,
    /// `always`, `madvise` or `never`.
    pub thp: Option<String>,
    pub thp_defrag: Option<String>,
    pub thp_shmem: Option<String>,
}

/// Limit on the memory that this process may pin.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Locked {
    /// Null: unlimited.
    pub soft_bytes: Option<u64>,
    pub hard_bytes: Option<u64>,
    /// CAP_IPC_LOCK lifts the limit.
    pub exempt: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct HugetlbPool {
    pub page_bytes: u64,
    pub pages: u64,
    pub free: u64,
}

impl Memory {
    /// Bytes that can be had without taking them from anybody: free huge pages count, a cgroup's limit caps it.
    pub fn free_bytes(&self) -> Option<u64> {
        let huge =
            self.hugetlb.iter().map(|p| p.page_bytes.saturating_mul(p.free)).fold(0, u64::saturating_add);
        let free = self.available_bytes?.saturating_add(huge);
        Some(self.cgroup_limit_bytes.map_or(free, |limit| free.min(limit)))
    }
}

/// Size of the last-level data cache; None if the kernel doesn't report it.
pub(crate) fn last_level_cache_bytes(roots: &Roots) -> Option<u64> {
    let caches = roots.sys("devices/system/cpu/cpu0/cache");
    let of = |index: usize| {
        let cache = caches.join(format!("index{index}"));
        let kind = Roots::line(&cache.join("type"))?;
        let size = Roots::line(&cache.join("size"))?;
        let kib: u64 = size.strip_suffix('K')?.parse().ok()?;
        (kind != "Instruction").then_some((Roots::number::<u32>(&cache.join("level"))?, kib << 10))
    };
    (0..16).filter_map(of).max().map(|(_, bytes)| bytes)
}

impl Memory {
    pub fn gather(roots: &Roots) -> Memory {
        let meminfo = Roots::text(&roots.proc("meminfo")).unwrap_or_default();
        let thp = roots.sys("kernel/mm/transparent_hugepage");
        Memory {
            total_bytes: kib_field(&meminfo, "MemTotal"),
            available_bytes: kib_field(&meminfo, "MemAvailable"),
            swap_bytes: kib_field(&meminfo, "SwapTotal"),
            cgroup_limit_bytes: cgroup_limit(roots),
            locked: locked(roots),
            hugetlb: pools(roots),
            thp: Roots::line(&thp.join("enabled")).and_then(|l| chosen(&l)),
            thp_defrag: Roots::line(&thp.join("defrag")).and_then(|l| chosen(&l)),
            thp_shmem: Roots::line(&thp.join("shmem_enabled")).and_then(|l| chosen(&l)),
        }
    }
}

impl Memory {
    /// Bytes that the page cache may come to: what is available, within what each control group leaves of its limit to files. None if
    /// the kernel doesn't report it.
    pub fn page_cache_room_bytes(roots: &Roots) -> Option<u64> {
        let meminfo = Roots::text(&roots.proc("meminfo")).unwrap_or_default();
        let available = kib_field(&meminfo, "MemAvailable")?;
        let left = cgroup_dirs(roots, "memory").into_iter().filter_map(|dir| {
            let number = |name: &str| Roots::number::<u64>(&dir.join(name));
            let limit = number("memory.max").or_else(|| number("memory.limit_in_bytes"))?;
            let used = number("memory.current").or_else(|| number("memory.usage_in_bytes")).unwrap_or(0);
            let counts = Roots::text(&dir.join("memory.stat")).unwrap_or_default();
            let count = |name: &str| {
                let lines = counts.lines().filter_map(|line| line.split_once(' '));
                lines.filter(|(key, _)| *key == name).find_map(|(_, value)| value.trim().parse::<u64>().ok())
            };
            let files = ["active_file", "inactive_file"].map(|name| count(name).unwrap_or(0)).iter().sum();
            Some(limit.saturating_sub(used.saturating_sub(files)))
        });
        Some(left.fold(available, u64::min))
    }
}

/// The bracketed word of `always [madvise] never`.
pub(crate) fn chosen(choices: &str) -> Option<String> {
    let start = choices.find('[')? + 1;
    let end = start + choices[start..].find(']')?;
    Some(choices[start..end].to_string())
}

fn cgroup_limit(roots: &Roots) -> Option<u64> {
    let limits = cgroup_dirs(roots, "memory").into_iter().filter_map(|dir| {
        Roots::number(&dir.join("memory.max")).or_else(|| Roots::number(&dir.join("memory.limit_in_bytes")))
    });
    // Version 1 writes "no limit" as a number near 2^63.
    limits.filter(|bytes| *bytes < 1 << 62).min()
}

/// From `/proc/self/limits` and the effective capabilities.
fn locked(roots: &Roots) -> Locked {
    let limits = Roots::text(&roots.proc("self/limits")).unwrap_or_default();
    let status = Roots::text(&roots.proc("self/status")).unwrap_or_default();
    let (soft_bytes, hard_bytes) = locked_limits(&limits).unwrap_or((None, None));
    let capabilities = Roots::field(&status, "CapEff").and_then(|v| u64::from_str_radix(v, 16).ok());
    let exempt = capabilities.is_some_and(|bits| bits >> CAP_IPC_LOCK & 1 == 1);
    Locked { soft_bytes, hard_bytes, exempt }
}

/// `Max locked memory   8388608   8388608   bytes` → (soft, hard); None within: unlimited.
fn locked_limits(limits: &str) -> Option<(Option<u64>, Option<u64>)> {
    let values = limits.lines().find_map(|l| l.strip_prefix("Max locked memory"))?;
    let mut values = values.split_whitespace().map(|v| v.parse::<u64>().ok());
    Some((values.next()?, values.next()?))
}

fn pools(roots: &Roots) -> Vec<HugetlbPool> {
    let base = roots.sys("kernel/mm/hugepages");
    Roots::names(&base)
        .iter()
        .filter_map(|name| {
            let kib: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
            Some(HugetlbPool {
                page_bytes: kib.checked_mul(1024)?,
                pages: Roots::number(&base.join(name).join("nr_hugepages"))?,
                free: Roots::number(&base.join(name).join("free_hugepages"))?,
            })
        })
        .collect()
}
