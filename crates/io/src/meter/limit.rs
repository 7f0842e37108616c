//! The CPU limit of the container: how many cores its control groups grant, and how often that held the process back.
//!
//! A process that has used up its share of a period (100 ms, as a rule) doesn't run until the next one. To it that looks
//! like a machine that is busy with something else.

use super::Reason;
use crate::machine::cgroups::cpu_limits;
use crate::machine::roots::Roots;
use std::fs;
use std::path::{Path, PathBuf};

/// The tightest limit, and its counts when it was looked at.
#[derive(Clone, Debug)]
pub(crate) struct Limit {
    cores: f64,
    stat: PathBuf,
    before: Result<Counts, Reason>,
}

/// Effects of a limit since `Limit::find`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Throttling {
    pub cores: f64,
    /// Per cent of the periods that were over in which some thread had to wait for the next one.
    pub periods_pct: Result<f64, Reason>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Counts {
    periods: u64,
    throttled: u64,
}

impl Limit {
    /// Finds the limit of this process.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn find() -> Result<Limit, Reason> {
        Limit::below(&Roots::host())
    }

    fn below(roots: &Roots) -> Result<Limit, Reason> {
        let tightest = cpu_limits(roots).into_iter().min_by(|a, b| a.0.total_cmp(&b.0));
        let (cores, group) = tightest.ok_or("no control group of this process limits its CPU time")?;
        let stat = group.join("cpu.stat");
        Ok(Limit { cores, before: counts(&stat), stat })
    }

    pub(crate) fn held(&self) -> Throttling {
        let since = self.before.clone().and_then(|before| {
            let now = counts(&self.stat)?;
            let periods = now.periods.saturating_sub(before.periods);
            let throttled = now.throttled.saturating_sub(before.throttled);
            Ok(if periods == 0 { 0.0 } else { (100.0 * throttled as f64 / periods as f64).min(100.0) })
        });
        Throttling { cores: self.cores, periods_pct: since }
    }
}

fn counts(stat: &Path) -> Result<Counts, Reason> {
    let text = fs::read_to_string(stat).map_err(|e| format!("{}: {e}", stat.display()))?;
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let value = line.and_then(|value| value.trim().parse().ok());
        value.ok_or_else(|| format!("{} has no {name}", stat.display()))
    };
    Ok(Counts { periods: field("nr_periods")?, throttled: field("nr_throttled")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> (tempfile::TempDir, Roots) {
        let folder = tempfile::tempdir().unwrap();
        let roots = Roots::under(folder.path());
        (folder, roots)
    }

    fn write(path: PathBuf, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn the_tightest_limit_tells_how_often_it_held() {
        let (_folder, roots) = machine();
        let group = roots.sys("fs/cgroup/pods/one");
        write(roots.proc("self/cgroup"), "0::/pods/one\n");
        write(group.join("cpu.max"), "400000 100000\n");
        write(group.join("../cpu.max"), "150000 100000\n");
        write(group.join("../cpu.stat"), "usage_usec 1\nnr_periods 100\nnr_throttled 7\nthrottled_usec 9\n");
        let limit = Limit::below(&roots).unwrap();
        assert_eq!(limit.held(), Throttling { cores: 1.5, periods_pct: Ok(0.0) });
        write(group.join("../cpu.stat"), "usage_usec 1\nnr_periods 300\nnr_throttled 57\n");
        assert_eq!(limit.held(), Throttling { cores: 1.5, periods_pct: Ok(25.0) });
        write(group.join("../cpu.stat"), "usage_usec 1\n");
        assert!(limit.held().periods_pct.unwrap_err().contains("nr_periods"));
    }

    #[test]
    fn without_a_limit_there_is_a_reason() {
        let (_folder, roots) = machine();
        write(roots.proc("self/cgroup"), "0::/\n");
        write(roots.sys("fs/cgroup/cpu.max"), "max 100000\n");
        assert!(Limit::below(&roots).unwrap_err().contains("no control group"));
    }
}
