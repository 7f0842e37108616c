//! Control over the page cache: which operations drop pages, and which query residency.

use super::probe::CacheProbe;
use forebay_io::{Check, CheckArea, CheckState, Roots};
use serde::Serialize;

#[derive(Clone, Debug, Default, Serialize)]
pub struct Cache {
    /// `/proc/sys/vm/drop_caches` may be written.
    pub drop_caches: bool,
    #[serde(flatten)]
    pub probe: CacheProbe,
}

pub(crate) fn facts(roots: &Roots, probe: CacheProbe) -> Cache {
    let switch = roots.proc("sys/vm/drop_caches");
    let drop_caches = rustix::fs::access(&switch, rustix::fs::Access::WRITE_OK).is_ok();
    Cache { drop_caches, probe }
}

pub(crate) fn checks(cache: &Cache) -> Vec<Check> {
    vec![fadvise(cache), drop_caches(cache), residency(cache)]
}

fn fadvise(cache: &Cache) -> Check {
    let check = |state, found: &str| {
        Check::new(CheckArea::PageCache, "cache.fadvise", "drop a file's pages", state, found)
    };
    match cache.probe.fadvise_drops {
        Some(true) => check(CheckState::Works, "posix_fadvise empties it (tried)"),
        Some(false) => check(CheckState::Limited, "posix_fadvise left pages behind (tried)")
            .why("the file system keeps its pages: a run with ‹cache› drop may be warm, and says so")
            .next("‹cache› bypass"),
        None => check(CheckState::Unknown, "not tried")
            .why("it needs a temporary file in the place in question")
            .next("forebay doctor DIRECTORY"),
    }
}

fn drop_caches(cache: &Cache) -> Check {
    let check = |state, found: &str| {
        Check::new(CheckArea::PageCache, "cache.drop_caches", "drop all pages", state, found)
    };
    if cache.drop_caches {
        return check(CheckState::Works, "/proc/sys/vm/drop_caches can be written");
    }
    check(CheckState::Limited, "/proc/sys/vm/drop_caches can't be written")
        .why("it needs root, outside a container; dropping file by file is enough for forebay's own runs")
        .next("sync; echo 3 | sudo tee /proc/sys/vm/drop_caches")
}

fn residency(cache: &Cache) -> Check {
    let check = |state, found: String| {
        Check::new(CheckArea::PageCache, "cache.residency", "see what is cached", state, found)
    };
    match (&cache.probe.cachestat_refused, &cache.probe.mincore_refused) {
        (None, None) => check(CheckState::Works, "cachestat and mincore".into()),
        (None, Some(_)) => check(CheckState::Works, "cachestat".into()),
        (Some(refused), None) => check(CheckState::Works, format!("mincore (cachestat: {refused})")),
        (Some(stat), Some(core)) => check(CheckState::Missing, format!("cachestat: {stat}; mincore: {core}"))
            .why("whether a run was cold can't be checked")
            .next("run on Linux 6.5 or later, or allow cachestat in the container's seccomp profile"),
    }
}
