//! I/Os in proportion: workers that name the same file start as many as their weights say, whichever process they are in.

mod shm;

use forebay_io::monotonic_now;
use forebay_model::job::{self, JobSpec};
use forebay_model::Error;
use shm::Sheet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// A worker that is ahead looks again after this long,
const AGAIN: Duration = Duration::from_micros(100);
/// and, while it stays ahead, for places that a process left which was killed.
const SWEEP: Duration = Duration::from_secs(1);
/// Workers that may share a file.
const PLACES: usize = 64;

/// A worker's place among those that share.
pub(crate) struct Share {
    sheet: Sheet,
    place: usize,
    weight: u64,
    started: u64,
    again: Option<Instant>,
    swept: Instant,
}

impl Share {
    /// None where the job shares with nobody.
    ///
    /// # Errors
    /// `Request`: the file is somebody's, or all places are taken.
    pub(crate) fn for_job(job: &JobSpec) -> Result<Option<Share>, Error> {
        let Some(text) = &job.flow else { return Ok(None) };
        let flow = job::Flow::parse(text)?;
        let sheet = Sheet::open(&flow.file)?;
        sweep(&sheet);
        let weight = u64::from(flow.weight);
        let mine = u64::from(std::process::id()) << 32 | weight;
        let free = |place: &usize| owner(&sheet, *place).compare_exchange(0, mine, Relaxed, Relaxed).is_ok();
        let place = (0..PLACES).find(free).ok_or_else(|| full(&flow.file))?;
        count_of(&sheet, place).store(0, Relaxed);
        Ok(Some(Share { sheet, place, weight, started: 0, again: None, swept: monotonic_now() }))
    }

    /// Returns whether the next I/O is within this worker's share of all that were started.
    pub(crate) fn may_start(&mut self, now: Instant) -> bool {
        if self.is_within() {
            self.again = None;
            return true;
        }
        if self.again.is_some() && now.saturating_duration_since(self.swept) > SWEEP {
            self.swept = now;
            sweep(&self.sheet);
        }
        self.again = Some(now + AGAIN);
        false
    }

    fn is_within(&self) -> bool {
        let (mut weights, mut ios) = (0, 0u64);
        for place in 0..PLACES {
            let owner = owner(&self.sheet, place).load(Relaxed);
            if owner != 0 {
                weights += owner & u64::from(u32::MAX);
                ios += count_of(&self.sheet, place).load(Relaxed);
            }
        }
        u128::from(self.started) * u128::from(weights) <= u128::from(self.weight) * (u128::from(ios) + 1)
    }

    pub(crate) fn count(&mut self) {
        self.started += 1;
        count_of(&self.sheet, self.place).store(self.started, Relaxed);
    }

    /// When to look again; None where nothing holds it up.
    pub(crate) fn again(&self) -> Option<Instant> {
        self.again
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        count_of(&self.sheet, self.place).store(0, Relaxed);
        owner(&self.sheet, self.place).store(0, Relaxed);
    }
}

/// Process and weight; 0: nobody.
fn owner(sheet: &Sheet, place: usize) -> &AtomicU64 {
    sheet.word(2 + 2 * place)
}

/// I/Os that it started.
fn count_of(sheet: &Sheet, place: usize) -> &AtomicU64 {
    sheet.word(3 + 2 * place)
}

/// Frees the places of processes that are no more.
fn sweep(sheet: &Sheet) {
    for place in 0..PLACES {
        let owner = owner(sheet, place);
        let found = owner.load(Relaxed);
        if found != 0 && !PathBuf::from(format!("/proc/{}", found >> 32)).exists() {
            let _ = owner.compare_exchange(found, 0, Relaxed, Relaxed);
        }
    }
}

fn full(file: &Path) -> Error {
    let found = format!("{PLACES} workers share it already");
    Error::request(format!("‹flow› {}", file.display()), found, "another file, or fewer ‹workers›")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(file: &Path, weight: u32) -> Share {
        let flow = Some(format!("{weight}@{}", file.display()));
        Share::for_job(&JobSpec { flow, ..JobSpec::default() }).unwrap().unwrap()
    }

    // promise: BEN-31
    #[test]
    fn each_starts_as_many_as_its_weight_says_until_the_other_has_gone() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("flow");
        let (mut one, mut eight) = (share(&file, 1), share(&file, 8));
        for _ in 0..900 {
            for each in [&mut one, &mut eight] {
                if each.may_start(monotonic_now()) {
                    each.count();
                }
            }
        }
        let (ours, theirs) = (one.started, eight.started);
        assert!(theirs > 800 && (8 * ours).abs_diff(theirs) <= 16, "{ours} : {theirs}");
        while one.may_start(monotonic_now()) {
            one.count();
        }
        assert!(one.again().is_some());
        drop(eight);
        assert!(one.may_start(monotonic_now()) && one.again().is_none());
    }

    // promise: BEN-31
    #[test]
    fn the_place_of_a_process_that_is_no_more_is_free_and_there_are_so_many() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("flow");
        let held: Vec<Share> = (0..PLACES).map(|_| share(&file, 1)).collect();
        let job = JobSpec { flow: Some(format!("1@{}", file.display())), ..JobSpec::default() };
        assert!(Share::for_job(&job).err().unwrap().found.contains("share it already"));
        // No process has this number: it is above the most that Linux gives.
        owner(&held[3].sheet, 3).store(u64::from(u32::MAX) << 32 | 1, Relaxed);
        assert_eq!(Share::for_job(&job).unwrap().unwrap().place, 3);
    }

    #[test]
    fn what_is_somebodys_file_is_left_alone() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("letter");
        for text in ["dear", &"x".repeat(4096)] {
            std::fs::write(&file, text).unwrap();
            let job = JobSpec { flow: Some(format!("1@{}", file.display())), ..JobSpec::default() };
            assert!(Share::for_job(&job).err().unwrap().found.contains("isn't a file of ‹flow›"));
            assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
        }
        assert!(Share::for_job(&JobSpec::default()).unwrap().is_none());
    }
}
