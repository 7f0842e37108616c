//! What of a run's bytes came out of memory, judged from the record alone: the share of the data in the page cache
//! before and after, and the bytes that the devices moved for those that were asked for.

use crate::record::{CacheState, Job, RunResult};

/// Under `--require-direct` a device must have moved this share of what was read.
const DIRECT_LEAST: f64 = 0.5;
/// More of the data than this doesn't enter the page cache by direct I/O: others may look at a file's first blocks.
const ENTERED_MOST: f64 = 0.05;

/// Why what was called direct can't have been; None where nothing speaks against it.
pub fn not_direct(job: &Job, cache: &CacheState, result: &RunResult) -> Option<String> {
    if result.read_bytes == 0 {
        return None;
    }
    if let Some(moved) = cache.device_bytes.filter(|d| (*d as f64) < DIRECT_LEAST * result.read_bytes as f64)
    {
        return Some(format!("the device moved {moved} of the {} bytes that were read", result.read_bytes));
    }
    let after = cache.resident_after?;
    // Where no device tells, pages that were there before may have been what was read.
    let before = if cache.device_bytes.is_some() { cache.resident_before.unwrap_or(0.0) } else { 0.0 };
    let entered = (after - before) * job.data_bytes as f64;
    let most = ENTERED_MOST * (result.read_bytes.min(job.data_bytes)) as f64;
    let pct = |share: f64| 100.0 * share;
    (entered > most).then(|| match before > 0.0 {
        true => {
            format!("{:.1} % of the data lies in the page cache, {:.1} % before", pct(after), pct(before))
        }
        false => format!("{:.1} % of the data lies in the page cache", pct(after)),
    })
}

/// What wasn't there to tell whether reads were direct; None where a device told.
pub fn unchecked(cache: &CacheState, result: &RunResult) -> Option<&'static str> {
    match (cache.device_bytes, cache.resident_after) {
        (Some(_), _) => None,
        _ if result.read_bytes == 0 => None,
        (None, Some(_)) => {
            Some("that the data didn't enter the page cache: no device is known, and nothing else could be checked")
        }
        (None, None) => Some("nothing: no device is known, and the page cache doesn't tell"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::JobSpec;

    const DATA: u64 = 100 << 20;

    fn job() -> Job {
        Job {
            source: "f".into(),
            pattern: "sequential".into(),
            direct: true,
            data_bytes: DATA,
            queues: 1,
            spec: JobSpec::default(),
        }
    }

    fn cache(policy: &str, resident: [Option<f64>; 2], device_bytes: Option<u64>) -> CacheState {
        let [resident_before, resident_after] = resident;
        CacheState { policy: policy.into(), resident_before, resident_after, device_bytes }
    }

    fn read(bytes: u64) -> RunResult {
        RunResult { bytes, read_bytes: bytes, ..RunResult::default() }
    }

    #[test]
    fn direct_io_moves_the_device_and_leaves_the_page_cache_alone() {
        let judged =
            |resident, device, bytes| not_direct(&job(), &cache("bypass", resident, device), &read(bytes));
        let (cold, warm) = ([Some(0.0); 2], [Some(1.0); 2]);
        assert_eq!(judged(cold, Some(DATA), DATA), None);
        assert_eq!(judged(cold, Some(DATA / 2), DATA), None, "half is enough: edges, and others' reads");
        let why = judged(cold, Some(DATA / 2 - 1), DATA).unwrap();
        assert!(why.contains("the device moved 52428799 of the 104857600 bytes"), "{why}");
        // Another program's pages from before stay where they are.
        assert_eq!(judged(warm, Some(DATA), DATA), None);
        let why = judged([Some(0.25), Some(1.0)], Some(DATA), DATA).unwrap();
        assert!(why.contains("100.0 % of the data") && why.contains("25.0 % before"), "{why}");
        // A little was read of much: the share of all the data is small.
        assert!(judged([Some(0.0), Some(0.01)], Some(DATA), DATA / 100).is_some());
        assert_eq!(judged([Some(0.0), Some(0.01)], Some(DATA), DATA), None);
        // Nobody may know.
        assert_eq!(judged([None, None], Some(DATA), DATA), None);
        let writes = RunResult { bytes: DATA, write_bytes: DATA, ..RunResult::default() };
        assert_eq!(not_direct(&job(), &cache("bypass", cold, Some(0)), &writes), None);
    }

    #[test]
    fn without_a_device_the_page_cache_must_stay_empty_and_that_is_said() {
        let state = |resident| cache("bypass", resident, None);
        let judged = |resident| not_direct(&job(), &state(resident), &read(DATA));
        assert_eq!(judged([Some(0.0); 2]), None);
        assert!(judged([Some(0.0), Some(1.0)]).is_some());
        assert!(judged([Some(1.0); 2]).is_some(), "it may have been read from there");
        assert_eq!(judged([None, None]), None);
        assert!(unchecked(&state([Some(0.0); 2]), &read(DATA))
            .unwrap()
            .contains("nothing else could be checked"));
        assert!(unchecked(&state([None; 2]), &read(DATA)).unwrap().contains("nothing: no device"));
        assert_eq!(unchecked(&cache("bypass", [None; 2], Some(DATA)), &read(DATA)), None);
    }
}
