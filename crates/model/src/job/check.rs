//! What is wrong with a job on any machine. What depends on the machine is found when the job opens.

use super::{Arrivals, JobSpec, WorkersFrom, ARENA_BYTES_MAX, DEPTH_MAX, IO_BYTES_MAX, WORKERS_MAX};
use crate::units::format_bytes;
use crate::Error;

const FILES_MAX: u32 = 10_000_000;
const REPEATS_MAX: u32 = 10_000;
/// A year.
const SECONDS_MAX: f64 = 3.2e7;
/// File offsets are signed.
const OFFSET_MAX: u64 = i64::MAX as u64;

/// What the number of one field must be, whatever the others are.
struct Bound {
    flag: &'static str,
    /// None where nothing was asked for.
    of: fn(&JobSpec) -> Option<f64>,
    within: fn(f64) -> bool,
    must: &'static str,
    example: &'static str,
}

const fn bound(
    flag: &'static str,
    of: fn(&JobSpec) -> Option<f64>,
    within: fn(f64) -> bool,
    must: &'static str,
    example: &'static str,
) -> Bound {
    Bound { flag, of, within, must, example }
}

const SECONDS: &str = "must be a number of seconds from 0.001 to a year";

/// A row for each field that is a number with bounds of its own.
const BOUNDS: &[Bound] = &[
    bound("--workers", |j| Some(j.workers.into()), |n| to(n, WORKERS_MAX), "must be 1 to 4096", "4"),
    bound(
        "--depth",
        |j| Some(j.depth.into()),
        |n| to(n, DEPTH_MAX),
        "must be 1 to 4096 (I/Os in flight per worker)",
        "32",
    ),
    bound(
        "--batch",
        |j| j.batch.map(f64::from),
        |n| to(n, DEPTH_MAX),
        "must be 1 to 4096 (I/Os per request, of those in flight)",
        "64",
    ),
    bound(
        "--cufile-batch",
        |j| j.cufile_batch.map(f64::from),
        |n| to(n, DEPTH_MAX),
        "must be 1 to 4096 (I/Os per batch)",
        "32",
    ),
    bound(
        "--file-size",
        |j| j.file_bytes.map(|n| n as f64),
        |n| n >= 1.0,
        "an empty file can't be read or written",
        "1g",
    ),
    bound("--files", |j| j.files.map(f64::from), |n| to(n, FILES_MAX), "must be 1 to 10,000,000", "4"),
    bound("--align", |j| j.align_bytes.map(|n| n as f64), |n| n >= 1.0, "must be at least 1 byte", "4k"),
    bound("--duration", |j| j.duration_s, |s| (1e-3..=SECONDS_MAX).contains(&s), SECONDS, "10"),
    bound("--warmup", |j| j.warmup_s, |s| (0.0..=SECONDS_MAX).contains(&s), SECONDS, "10"),
    bound("--timeout", |j| Some(j.timeout_s), |s| (1e-3..=SECONDS_MAX).contains(&s), SECONDS, "10"),
    bound("--passes", |j| j.passes.map(f64::from), |n| n >= 1.0, "must be at least 1", "1"),
    bound(
        "--limit-bytes",
        |j| j.limit_bytes.map(|n| n as f64),
        |n| n >= 1.0,
        "must be at least 1 byte",
        "1g",
    ),
    bound("--limit-ios", |j| j.limit_ios.map(|n| n as f64), |n| n >= 1.0, "must be at least 1", "1000"),
    bound(
        "--skip-every",
        |j| j.skip_every_bytes.map(|n| n as f64),
        |n| n >= 1.0,
        "must be at least 1 byte",
        "256m",
    ),
    bound(
        "--think",
        |j| j.think_s,
        |s| (0.0..=SECONDS_MAX).contains(&s),
        "must be a number of seconds up to a year",
        "0.01",
    ),
    bound("--think-ios", |j| j.think_ios.map(f64::from), |n| n >= 1.0, "must be at least 1", "8"),
    bound("--repeat", |j| Some(j.repeat.into()), |n| to(n, REPEATS_MAX), "must be 1 to 10,000", "5"),
    bound("--repeat-max", |j| Some(j.repeat_max.into()), |n| to(n, REPEATS_MAX), "must be 1 to 10,000", "5"),
    bound(
        "--until-ci",
        |j| j.until_ci_pct,
        |p| p > 0.0 && p < 100.0,
        "must be between 0 and 100 per cent",
        "2%",
    ),
    bound("--read-pct", |j| j.read_pct.map(f64::from), |p| p <= 100.0, "must be 0 to 100", "70"),
    bound("--rate", |j| j.rate_gib_s, |r| r.is_finite() && r > 0.0, "must be above 0", "1.5"),
    bound("--rate-iops", |j| j.rate_iops, |r| r.is_finite() && r > 0.0, "must be above 0", "1.5"),
    bound("--interval", |j| Some(j.interval_ms.into()), |ms| ms >= 10.0, "must be at least 10 ms", "500"),
];

/// 1 to `most`.
fn to(number: f64, most: u32) -> bool {
    (1.0..=f64::from(most)).contains(&number)
}

fn refused<T>(asked: impl Into<String>, found: &str, next: impl Into<String>) -> Result<T, Error> {
    Err(Error::request(asked.into(), found, next))
}

impl JobSpec {
    /// Everything that is wrong on any machine.
    pub fn check(&self) -> Result<(), Error> {
        self.check_pairs()?;
        if self.sources.is_empty() && self.pairs.is_empty() {
            let next = "forebay bench FILE, a directory, stripe:?m=A&m=B, nil: or model:NAME";
            return refused("SOURCE", "no source was given", next);
        }
        for Bound { flag, of, within, must, example } in BOUNDS {
            if let Some(value) = of(self).filter(|value| !within(*value)) {
                return refused(format!("{flag} {value}"), must, format!("{flag} {example}"));
            }
        }
        self.check_sizes()?;
        self.check_bytes()?;
        self.check_batch()?;
        if self.align_bytes.is_some() && !self.op.is_random() {
            let asked = format!("--align {}", format_bytes(self.align_bytes.unwrap_or(0)));
            let found = "it is the alignment of random offsets, and these are sequential";
            return refused(asked, found, "--op randread, or no --align");
        }
        if self.rate_gib_s.is_some() && self.rate_iops.is_some() {
            return refused("--rate with --rate-iops", "contradict each other", "--rate 1.5");
        }
        if self.file_name.matches("%d").count() != 1 || self.file_name.contains('/') {
            let asked = format!("--file-name {}", self.file_name);
            return refused(asked.trim_end(), "must hold %d once and no slash", "--file-name forebay.%d");
        }
        self.check_walk()?;
        self.check_pace()?;
        self.parsed_mix()?;
        self.parsed_distribution().map(|_| ())
    }

    /// What belongs to sequential offsets, and to workers that each cover all of the data.
    fn check_walk(&self) -> Result<(), Error> {
        if self.skip_bytes != 0 && self.op.is_random() {
            let asked = format!("--skip {}", self.skip_bytes);
            return refused(asked, "random offsets follow on nothing", "--op read, or no --skip");
        }
        if self.skip_every_bytes.is_some() && self.skip_bytes <= 0 {
            let found = "it says after how many bytes something is passed over";
            return refused("--skip-every without --skip", found, "--skip 2g --skip-every 256m");
        }
        if self.skip_bytes.unsigned_abs() > OFFSET_MAX {
            return refused(
                format!("--skip {}", self.skip_bytes),
                "overflows (more than 8 EiB)",
                "--skip 64k",
            );
        }
        if self.start_step_bytes == 0 {
            return Ok(());
        }
        let asked = format!("--start-step {}", format_bytes(self.start_step_bytes));
        if !self.clones {
            return refused(
                asked,
                "workers that share the data start where their parts do",
                "--clones --start-step 1g",
            );
        }
        if self.start_step_bytes.checked_mul(self.workers.into()).is_none_or(|all| all > OFFSET_MAX) {
            return refused(asked, "overflows (more than 8 EiB)", "a smaller --start-step");
        }
        Ok(())
    }

    fn check_pace(&self) -> Result<(), Error> {
        if self.arrivals == Arrivals::Poisson && self.rate_gib_s.is_none() && self.rate_iops.is_none() {
            return refused("--arrivals poisson", "needs a rate", "--rate-iops 1000 --arrivals poisson");
        }
        if self.think_ios.is_some() && self.think_s.is_none() {
            return refused("--think-ios", "needs a pause", "--think 0.01 --think-ios 8");
        }
        Ok(())
    }

    /// The sizes of I/Os: one, or a range.
    fn check_sizes(&self) -> Result<(), Error> {
        let (least, most) = (self.io_bytes, self.io_bytes_largest());
        let range = "--io-size 4k:1m:4k";
        if least == 0 || most > IO_BYTES_MAX {
            let asked = format!("--io-size {}", format_bytes(most));
            return refused(asked, "must be 1 byte to 1 GiB", "--io-size 1m");
        }
        if most < least {
            return refused(format!("--io-size {least}:{most}"), "the greatest is below the least", range);
        }
        if self.io_bytes_max.is_some() && self.io_bytes_step == Some(0) {
            return refused("--io-size step 0", "the step must be at least 1 byte", range);
        }
        if self.io_bytes_step.is_some() && self.io_bytes_max.is_none() {
            return refused(format!("--io-size {least} in steps"), "steps need a greatest size", range);
        }
        Ok(())
    }

    /// What fields come to together.
    fn check_bytes(&self) -> Result<(), Error> {
        let of_worker = self.io_bytes_largest().saturating_mul(self.depth.into());
        let arena = of_worker.saturating_mul(self.workers.into());
        if arena > ARENA_BYTES_MAX {
            let asked = format!("--workers × --depth × --io-size {}", format_bytes(arena));
            return refused(asked, "more than 1 TiB of buffers", "a smaller --depth");
        }
        let (file, files) = (self.file_bytes.unwrap_or(0), self.files.unwrap_or(self.workers));
        if file.checked_mul(files.into()).is_none_or(|all| all > OFFSET_MAX) {
            let asked = format!("--file-size × files {}", format_bytes(file));
            return refused(asked, "overflows (more than 8 EiB)", "a smaller --file-size");
        }
        if self.start_bytes > OFFSET_MAX {
            let asked = format!("--start {}", self.start_bytes);
            return refused(asked, "overflows (more than 8 EiB)", "--start 0");
        }
        Ok(())
    }

    /// What is in flight is whole batches.
    fn check_batch(&self) -> Result<(), Error> {
        let Some(batch) = self.batch.filter(|batch| self.depth % batch != 0) else { return Ok(()) };
        let found = "what is in flight per worker must be a whole number of batches";
        let most = (DEPTH_MAX / batch).max(1);
        let next = format!("--depth {}", batch * self.depth.div_ceil(batch).min(most));
        refused(format!("--batch {batch} with --depth {}", self.depth), found, next)
    }

    fn check_pairs(&self) -> Result<(), Error> {
        let count = self.parsed_pairs()?.len();
        if count == 0 {
            return Ok(());
        }
        if !self.sources.is_empty() {
            let asked = format!("--pair {} with {}", self.pairs[0], self.sources.join(" "));
            let next = "--pair GPU=SOURCE for each, and no SOURCE";
            return refused(asked, "each --pair names its own source", next);
        }
        if !self.gpus.is_empty() {
            let next = "--pair GPU=SOURCE for each, and no --gpu";
            return refused("--pair with --gpu", "pairs name their own GPUs", next);
        }
        if self.workers_from == WorkersFrom::Given && (self.workers as usize) < count {
            let asked = format!("--workers {} for {count} pairs", self.workers);
            let next = format!("--workers {count}, or a multiple of it");
            return refused(asked, "each pair needs a worker of its own", next);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::Op;
    use super::*;

    fn job() -> JobSpec {
        JobSpec { sources: vec!["nil:".into()], ..JobSpec::default() }
    }

    /// Each row sees its field: beyond its bound it is refused by the flag, with the value, and what to type is good.
    #[test]
    fn each_number_is_refused_beyond_its_bounds_and_by_its_flag_alone() {
        let beyond: &[(&str, JobSpec)] = &[
            ("--workers 4097", JobSpec { workers: 4097, ..job() }),
            ("--depth 0", JobSpec { depth: 0, ..job() }),
            ("--batch 0", JobSpec { batch: Some(0), ..job() }),
            ("--cufile-batch 0", JobSpec { cufile_batch: Some(0), ..job() }),
            ("--file-size 0", JobSpec { file_bytes: Some(0), ..job() }),
            ("--files 10000001", JobSpec { files: Some(FILES_MAX + 1), ..job() }),
            ("--align 0", JobSpec { align_bytes: Some(0), ..job() }),
            ("--duration 0", JobSpec { duration_s: Some(0.0), ..job() }),
            ("--warmup -1", JobSpec { warmup_s: Some(-1.0), ..job() }),
            ("--timeout inf", JobSpec { timeout_s: f64::INFINITY, ..job() }),
            ("--passes 0", JobSpec { passes: Some(0), ..job() }),
            ("--limit-bytes 0", JobSpec { limit_bytes: Some(0), ..job() }),
            ("--limit-ios 0", JobSpec { limit_ios: Some(0), ..job() }),
            ("--skip-every 0", JobSpec { skip_every_bytes: Some(0), ..job() }),
            ("--think -1", JobSpec { think_s: Some(-1.0), ..job() }),
            ("--think-ios 0", JobSpec { think_ios: Some(0), ..job() }),
            ("--repeat 10001", JobSpec { repeat: REPEATS_MAX + 1, ..job() }),
            ("--repeat-max 0", JobSpec { repeat_max: 0, ..job() }),
            ("--until-ci 100", JobSpec { until_ci_pct: Some(100.0), ..job() }),
            ("--read-pct 101", JobSpec { read_pct: Some(101), ..job() }),
            ("--rate NaN", JobSpec { rate_gib_s: Some(f64::NAN), ..job() }),
            ("--rate-iops 0", JobSpec { rate_iops: Some(0.0), ..job() }),
            ("--interval 9", JobSpec { interval_ms: 9, ..job() }),
        ];
        assert_eq!(beyond.len(), BOUNDS.len());
        for ((asked, job), row) in beyond.iter().zip(BOUNDS) {
            let error = job.check().unwrap_err();
            assert_eq!(error.asked, *asked);
            assert_eq!(error.next, format!("{} {}", row.flag, row.example));
        }
        job().check().unwrap();
    }

    #[test]
    fn what_needs_another_field_is_refused_without_it() {
        for (asked, job) in [
            ("--skip 4096", JobSpec { skip_bytes: 4096, op: Op::RandRead, ..job() }),
            ("--skip-every without --skip", JobSpec { skip_every_bytes: Some(1), ..job() }),
            ("--skip-every without --skip", JobSpec { skip_every_bytes: Some(1), skip_bytes: -8, ..job() }),
            ("--start-step 1k", JobSpec { start_step_bytes: 1024, ..job() }),
            (
                "--start-step 4194304t",
                JobSpec { start_step_bytes: 1 << 62, clones: true, workers: 2, ..job() },
            ),
            ("--arrivals poisson", JobSpec { arrivals: Arrivals::Poisson, ..job() }),
            ("--think-ios", JobSpec { think_ios: Some(1), ..job() }),
            ("--distribution zoned:1/1", JobSpec { distribution: "zoned:1/1".into(), ..job() }),
        ] {
            let error = job.check().unwrap_err();
            assert_eq!(error.asked, asked);
            assert!(!error.next.is_empty());
        }
    }

    #[test]
    fn sizes_and_steps_that_make_no_range_are_refused() {
        let sized = |io_bytes, io_bytes_max, io_bytes_step| JobSpec {
            io_bytes,
            io_bytes_max,
            io_bytes_step,
            ..job()
        };
        for (job, found) in [
            (sized(0, None, None), "1 byte to 1 GiB"),
            (sized(1, Some(IO_BYTES_MAX + 1), None), "1 byte to 1 GiB"),
            (sized(2, Some(1), None), "below the least"),
            (sized(1, Some(2), Some(0)), "at least 1 byte"),
            (sized(1, None, Some(1)), "need a greatest size"),
        ] {
            let error = job.check().unwrap_err();
            assert!(error.asked.starts_with("--io-size") && error.found.contains(found), "{error}");
        }
        sized(4096, Some(1 << 20), Some(4096)).check().unwrap();
    }
}
