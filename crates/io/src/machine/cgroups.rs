//! Control groups around this process, and what they grant it.

use super::roots::Roots;
use std::path::{Path, PathBuf};

/// The directories that limit this process, innermost first, of cgroup v2 and of one v1 controller.
pub(crate) fn cgroup_dirs(roots: &Roots, controller: &str) -> Vec<PathBuf> {
    let groups = Roots::text(&roots.proc("self/cgroup")).unwrap_or_default();
    let base = roots.sys("fs/cgroup");
    let mut dirs = Vec::new();
    for entry in groups.lines().take(64) {
        let mut parts = entry.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        let top = match controllers {
            "" => base.clone(),
            list if list.split(',').any(|c| c == controller) => base.join(controller),
            _ => continue,
        };
        let inner = Path::new(path.trim_start_matches('/'));
        if inner.components().any(|c| !matches!(c, std::path::Component::Normal(_))) {
            continue;
        }
        dirs.extend(inner.ancestors().take(32).map(|ancestor| top.join(ancestor)));
    }
    dirs
}

/// Cores that each control group above this process grants it, and the group's folder, where it sets a limit.
pub(crate) fn cpu_limits(roots: &Roots) -> Vec<(f64, PathBuf)> {
    let limits = cgroup_dirs(roots, "cpu").into_iter().filter_map(|dir| {
        let cores = if let Some(limit) = Roots::line(&dir.join("cpu.max")) {
            let (quota, period) = limit.split_once(' ')?;
            quota.parse::<f64>().ok()? / period.parse::<f64>().ok()?
        } else {
            let quota: f64 = Roots::number(&dir.join("cpu.cfs_quota_us"))?;
            let period: f64 = Roots::number(&dir.join("cpu.cfs_period_us"))?;
            quota / period
        };
        Some((cores, dir))
    });
    limits.filter(|(cores, _)| cores.is_finite() && *cores > 0.0).collect()
}
