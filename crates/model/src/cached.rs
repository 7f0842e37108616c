//! Bytes of a run that came out of memory, judged from the record alone: the share of the data in the page cache
//! before and after, and the bytes that the devices moved for those that were requested.

use crate::record::{CacheState, Job, RunResult, Warning};

/// Below this share of what was read, delivered by the device, memory took part. Edges and other users blur the rest.
const DELIVERED_LEAST: f64 = 0.98;
/// More of the data than this in the page cache beforehand shows in the figures.
const RESIDENT_MOST: f64 = 0.01;
/// With this share of the data in the page cache at the end, it kept what came into it.
const KEPT_LEAST: f64 = 0.9;
/// Under `--require-direct` a device must have moved this share of what was read.
const DIRECT_LEAST: f64 = 0.5;
/// More of the data than this doesn't enter the page cache by direct I/O: others may look at a file's first blocks.
const ENTERED_MOST: f64 = 0.05;

const TO_MEASURE_THE_DRIVE: &str = "‹cache› bypass or ‹cache› drop to measure the drive";
const TO_WRITE_TO_IT: &str = "‹cache› bypass, or ‹sync› end, which counts the time until the drive has them";

/// The warning `cached`; None where nothing shows that memory took part, or where that was asked for.
pub fn judge(job: &Job, cache: &CacheState, result: &RunResult) -> Option<Warning> {
    let (text, next) = match cache.policy.as_str() {
        // Memory is what was asked for; `cold_and_warm` tells of a device that took part.
        "none" | "warm" => return None,
        "allow" | "drop" if not_written(cache, result).is_some() => {
            (not_written(cache, result)?, TO_WRITE_TO_IT)
        }
        "memory" => {
            let found = "the file system lives in memory: no device was measured, and the order of reads tells nothing";
            (found.into(), "files on a drive")
        }
        "bypass" => by_device(cache, result).or_else(|| entered(job, cache, result)).map(|text| {
            (text, "files with data in every block (holes cost no I/O), which nothing else reads")
        })?,
        "drop" => by_device(cache, result)
            .map(|text| text + ": the others came from memory, which the run filled after it was dropped")
            .or_else(|| beforehand(cache, "stayed in the page cache when it was dropped"))
            .or_else(|| read_again(job, cache, result))
            .map(|text| {
                (text, "‹cache› bypass; or one pass (‹passes› 1) over files that nothing else uses")
            })?,
        _ => by_device(cache, result)
            .map(|text| text + ": the others came from memory")
            .or_else(|| beforehand(cache, "was in the page cache"))
            .or_else(|| read_again(job, cache, result))
            .map(|text| (text, TO_MEASURE_THE_DRIVE))?,
    };
    Some(Warning { id: "cached".into(), text, next: next.into() })
}

/// Judges a run that only reads: what a device takes of writes, it may take later.
fn by_device(cache: &CacheState, result: &RunResult) -> Option<String> {
    let only_read = result.read_bytes > 0 && result.write_bytes == 0;
    let share = cache.device_bytes.filter(|_| only_read)? as f64 / result.read_bytes as f64;
    (share < DELIVERED_LEAST)
        .then(|| format!("the device delivered {:.0} % of the bytes that were read", 100.0 * share))
}

/// Judges a run that only writes: what the devices took until its end.
fn not_written(cache: &CacheState, result: &RunResult) -> Option<String> {
    let only_wrote = result.write_bytes > 0 && result.read_bytes == 0;
    let share = cache.device_bytes.filter(|_| only_wrote)? as f64 / result.write_bytes as f64;
    (share < DELIVERED_LEAST).then(|| {
        let pct = 100.0 * share;
        format!("the device took {pct:.0} % of the bytes that were written: the others are in memory, to be written later")
    })
}

fn beforehand(cache: &CacheState, what: &str) -> Option<String> {
    let share = cache.resident_before.filter(|share| *share > RESIDENT_MOST)?;
    Some(format!("{:.0} % of the data {what}", 100.0 * share))
}

/// Judges runs without device counters: each byte came from storage once, the page cache kept it, and it was read
/// again.
fn read_again(job: &Job, cache: &CacheState, result: &RunResult) -> Option<String> {
    let kept = cache.resident_after.is_some_and(|share| share >= KEPT_LEAST);
    let only_read = result.read_bytes > 0 && result.write_bytes == 0;
    let most = result.repeats.len().max(1) as f64 * job.data_bytes as f64 / result.read_bytes.max(1) as f64;
    (cache.device_bytes.is_none() && kept && only_read && most < DELIVERED_LEAST).then(|| {
        let pct = 100.0 * most;
        format!("at most {pct:.0} % of the bytes that were read came from storage: the page cache kept them")
    })
}

/// Direct I/O leaves the page cache as it was.
fn entered(job: &Job, cache: &CacheState, result: &RunResult) -> Option<String> {
    let (before, after) = (cache.resident_before?, cache.resident_after?);
    let most = ENTERED_MOST * result.read_bytes.min(job.data_bytes) as f64;
    (result.read_bytes > 0 && (after - before) * job.data_bytes as f64 > most).then(|| {
        let (after, before) = (100.0 * after, 100.0 * before);
        format!("{after:.1} % of the data is in the page cache, {before:.1} % before")
    })
}

/// Why what was called direct can't have been; None where nothing speaks against it.
pub fn not_direct(job: &Job, cache: &CacheState, result: &RunResult) -> Option<String> {
    if result.read_bytes == 0 {
        return None;
    }
    let Some(moved) = cache.device_bytes else {
        // Pages that were there before may have been what was read.
        let from_empty = CacheState { resident_before: Some(0.0), ..cache.clone() };
        let found = "the data is in the page cache, and no device tells that it wasn't read from there";
        return entered(job, &from_empty, result).map(|_| found.into());
    };
    if (moved as f64) < DIRECT_LEAST * result.read_bytes as f64 {
        return Some(format!("the device moved {moved} of the {} bytes that were read", result.read_bytes));
    }
    entered(job, cache, result)
}

/// Returns the missing evidence of whether reads were direct; None where a device told.
pub fn unchecked(cache: &CacheState, result: &RunResult) -> Option<&'static str> {
    match (cache.device_bytes, cache.resident_after) {
        (Some(_), _) => None,
        _ if result.read_bytes == 0 => None,
        (None, Some(_)) => {
            Some("that the data didn't enter the page cache: no device is known, and nothing else could be checked")
        }
        (None, None) => Some("none: no device is known, and the page cache can't be queried"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::JobSpec;
    use crate::record::Repeat;

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
        let policy = policy.into();
        CacheState { policy, resident_before, resident_after, device_bytes, ..CacheState::default() }
    }

    fn read(bytes: u64) -> RunResult {
        RunResult { bytes, read_bytes: bytes, ..RunResult::default() }
    }

    fn judged(cache: &CacheState, result: &RunResult) -> Option<String> {
        judge(&job(), cache, result).map(|w| {
            assert!(w.id == "cached" && !w.next.is_empty());
            w.text
        })
    }

    /// The second pass over data that was dropped before the first reads what that brought in.
    // promise: REC-30
    #[test]
    fn memory_is_told_under_every_policy_by_what_the_device_delivered() {
        let cold = [Some(0.0), Some(1.0)];
        let twice = read(2 * DATA);
        let text = judged(&cache("drop", cold, Some(DATA)), &twice).unwrap();
        assert!(text.contains("delivered 50 % of") && text.contains("filled after it was dropped"), "{text}");
        assert_eq!(judged(&cache("drop", cold, Some(DATA)), &read(DATA)), None, "one pass is cold");
        assert_eq!(judged(&cache("drop", cold, Some(3 * DATA)), &twice), None, "read-ahead");
        let text = judged(&cache("allow", cold, Some(DATA)), &twice).unwrap();
        assert!(text.contains("delivered 50 %") && text.ends_with("from memory"), "{text}");
        assert!(judged(&cache("bypass", [Some(0.0); 2], Some(DATA)), &twice).is_some(), "holes");
        assert_eq!(judged(&cache("bypass", [Some(1.0); 2], Some(2 * DATA)), &twice), None, "left alone");
        assert!(judged(&cache("bypass", cold, Some(2 * DATA)), &twice).unwrap().contains("0.0 % before"));
        // Memory is what was asked for: the device has nothing to tell.
        assert_eq!(judged(&cache("warm", [Some(0.0); 2], Some(0)), &twice), None);
        assert!(judged(&cache("memory", [None; 2], None), &twice).is_some());
        assert_eq!(judged(&cache("none", [None; 2], None), &twice), None);
        let mixed = RunResult { write_bytes: DATA, ..twice };
        assert_eq!(judged(&cache("drop", cold, Some(0)), &mixed), None, "written back later");
    }

    // promise: REC-30
    #[test]
    fn writes_that_reached_no_device_are_told_where_they_go_through_memory() {
        let written = RunResult { bytes: DATA, write_bytes: DATA, ..RunResult::default() };
        let judged = |policy, device| judged(&cache(policy, [Some(0.0), Some(1.0)], device), &written);
        for policy in ["allow", "drop"] {
            let text = judged(policy, Some(DATA / 4)).unwrap();
            assert!(text.starts_with("the device took 25 % of the bytes that were written"), "{text}");
            assert_eq!(judged(policy, Some(DATA)), None);
        }
        assert_eq!(judged("allow", None), None, "no device tells");
        assert_eq!((judged("warm", Some(0)), judged("bypass", Some(0))), (None, None));
    }

    // promise: REC-30
    #[test]
    fn without_a_device_residency_and_arithmetic_tell_of_memory() {
        let state = |policy, resident| cache(policy, resident, None);
        let (cold, warm) = ([Some(0.0), Some(1.0)], [Some(1.0); 2]);
        let text = judged(&state("allow", warm), &read(DATA)).unwrap();
        assert_eq!(text, "100 % of the data was in the page cache");
        assert_eq!(judged(&state("warm", warm), &read(DATA)), None, "as requested");
        let text = judged(&state("drop", [Some(0.2), Some(1.0)]), &read(DATA)).unwrap();
        assert!(text.contains("20 % of the data stayed"), "{text}");
        for policy in ["drop", "allow"] {
            let text = judged(&state(policy, cold), &read(4 * DATA)).unwrap();
            assert!(text.starts_with("at most 25 % of the bytes"), "{text}");
            assert_eq!(judged(&state(policy, cold), &read(DATA)), None);
            assert_eq!(judged(&state(policy, [Some(0.0), Some(0.5)]), &read(4 * DATA)), None, "not kept");
        }
        // Dropped before each of four.
        let four = RunResult { repeats: vec![Repeat::default(); 4], ..read(4 * DATA) };
        assert_eq!(judged(&state("drop", cold), &four), None);
    }

    // promise: FLT-31
    #[test]
    fn direct_io_moves_the_device_and_leaves_the_page_cache_alone() {
        let judge =
            |resident, device, bytes| not_direct(&job(), &cache("bypass", resident, device), &read(bytes));
        let (cold, warm) = ([Some(0.0); 2], [Some(1.0); 2]);
        assert_eq!(judge(cold, Some(DATA), DATA), None);
        assert_eq!(judge(cold, Some(DATA / 2), DATA), None, "half is enough: edges, and others' reads");
        let why = judge(cold, Some(DATA / 2 - 1), DATA).unwrap();
        assert!(why.contains("the device moved 52428799 of the 104857600 bytes"), "{why}");
        // Another program's pages from before stay where they are.
        assert_eq!(judge(warm, Some(DATA), DATA), None);
        let why = judge([Some(0.25), Some(1.0)], Some(DATA), DATA).unwrap();
        assert!(why.contains("100.0 % of the data") && why.contains("25.0 % before"), "{why}");
        // A little was read of much: the share of all the data is small.
        assert!(judge([Some(0.0), Some(0.01)], Some(DATA), DATA / 100).is_some());
        assert_eq!(judge([Some(0.0), Some(0.01)], Some(DATA), DATA), None);
        // Nobody may know.
        assert_eq!(judge([None, None], Some(DATA), DATA), None);
        let writes = RunResult { bytes: DATA, write_bytes: DATA, ..RunResult::default() };
        assert_eq!(not_direct(&job(), &cache("bypass", cold, Some(0)), &writes), None);
    }

    // promise: FLT-31
    #[test]
    fn without_a_device_the_page_cache_must_stay_empty_and_that_is_said() {
        let state = |resident| cache("bypass", resident, None);
        let judge = |resident| not_direct(&job(), &state(resident), &read(DATA));
        assert_eq!(judge([Some(0.0); 2]), None);
        assert!(judge([Some(0.0), Some(1.0)]).is_some());
        assert!(judge([Some(1.0); 2]).is_some(), "it may have been read from there");
        assert_eq!(judge([None, None]), None);
        assert!(unchecked(&state([Some(0.0); 2]), &read(DATA))
            .unwrap()
            .contains("nothing else could be checked"));
        assert!(unchecked(&state([None; 2]), &read(DATA)).unwrap().contains("none: no device"));
        assert_eq!(unchecked(&cache("bypass", [None; 2], Some(DATA)), &read(DATA)), None);
    }
}
