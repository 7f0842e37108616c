//! Checks of a job that hold on any machine. What depends on the machine is found when the job opens.

use super::{
    Arrivals, Blend, Cache, Flow, JobSpec, Origin, Priorities, SteadyRule, ARENA_BYTES_MAX, DEPTH_MAX,
    FILE_NAME_DEFAULT,
};
use crate::fio_blocks::Rule;
use crate::iolog::Recast;
use crate::request::{check_bounds, Field};
use crate::units::{format_bytes, IO_BYTES_MAX};
use crate::Error;

/// File offsets are signed.
const OFFSET_MAX: u64 = i64::MAX as u64;

fn refused<T>(asked: impl Into<String>, found: &str, next: impl Into<String>) -> Result<T, Error> {
    Err(Error::request(asked.into(), found, next))
}

impl JobSpec {
    /// Everything that is wrong on any machine.
    pub fn check(&self) -> Result<(), Error> {
        self.check_pairs()?;
        if self.sources.is_empty() && self.pairs.is_empty() && self.read_iolog.is_none() {
            let next = "forebay bench FILE, a directory, stripe:?m=A&m=B, nil: or model:NAME";
            return refused("SOURCE", "no source was given", next);
        }
        check_bounds(Self::FIELDS, self, Field::marked)?;
        self.check_sizes()?;
        self.check_bytes()?;
        self.check_batch()?;
        if self.align_bytes.is_some() && !self.op.is_random() {
            let asked = format!("‹align_bytes› {}", format_bytes(self.align_bytes.unwrap_or(0)));
            let found = "applies only to random offsets, and these are sequential";
            return refused(asked, found, "‹op› randread, or no ‹align_bytes›");
        }
        if self.rate_gib_s.is_some() && self.rate_iops.is_some() {
            return refused("‹rate_gib_s› with ‹rate_iops›", "contradict each other", "‹rate_gib_s› 1.5");
        }
        if self.file_name.matches("%d").count() != 1 || self.file_name.contains('/') {
            let asked = format!("‹file_name› {}", self.file_name);
            return refused(
                asked.trim_end(),
                "must contain %d exactly once, and no slash",
                "‹file_name› forebay.%d",
            );
        }
        self.check_files()?;
        self.check_walk()?;
        self.check_log()?;
        self.check_lists()?;
        self.check_rounds()?;
        self.check_pace()?;
        self.check_steady()?;
        self.check_atomic()?;
        self.check_content()?;
        self.parsed_verify_fio()?;
        self.priority.as_deref().map_or(Ok(()), |text| Priorities::parse(text).map(drop))?;
        self.flow.as_deref().map_or(Ok(()), |text| Flow::parse(text).map(drop))?;
        self.parsed_mix()?;
        self.parsed_distribution().map(|_| ())
    }

    /// Choice of files of a directory, and whole files.
    fn check_files(&self) -> Result<(), Error> {
        self.parsed_globs()?;
        if let Some(glob) = self.glob.first() {
            let other = if self.may_make() { "‹create›, or a write," } else { "‹file_name›" };
            if self.may_make() || self.file_name != FILE_NAME_DEFAULT {
                let found =
                    format!("{other} names the files by itself: a pattern chooses among those that exist");
                return refused(format!("‹glob› '{glob}'"), &found, "no ‹glob›, or a read with ‹glob› alone");
            }
        }
        if !self.whole_files {
            return Ok(());
        }
        let why = [
            (self.op.is_random(), "‹op› randread", "‹op› read ‹whole_files› ‹order› random"),
            (self.may_make(), "‹create›, or a write", "‹whole_files› of files that exist"),
            (self.file_bytes.is_some(), "‹file_bytes›", "no ‹file_bytes›"),
            (self.start_bytes > 0, "‹start_bytes›", "no ‹start_bytes›"),
            (self.skip_bytes != 0, "‹skip_bytes›", "no ‹skip_bytes›"),
        ];
        match why.into_iter().find(|(is, ..)| *is) {
            Some((_, with, next)) => refused(
                format!("‹whole_files› with {with}"),
                "each file is read from its beginning to its end, as it is",
                next,
            ),
            None => Ok(()),
        }
    }

    fn check_log(&self) -> Result<(), Error> {
        let Some(prefix) = &self.io_log else {
            return match self.io_log_ms {
                Some(ms) => refused(format!("‹io_log_ms› {ms}"), "there is no log", "‹io_log› PREFIX"),
                None => Ok(()),
            };
        };
        if prefix.is_empty() || self.repeat > 1 || self.until_ci_pct.is_some() {
            let found =
                if prefix.is_empty() { "names no file" } else { "is of one run, and there are several" };
            return refused(format!("‹io_log› {prefix}"), found, "‹io_log› PREFIX, without repeats");
        }
        Ok(())
    }

    fn check_rounds(&self) -> Result<(), Error> {
        let Some(rounds) = self.parsed_rounds()? else { return Ok(()) };
        let asked = format!("‹dependent› {}", self.dependent.as_deref().unwrap_or_default());
        let other = [
            (!self.path.ends_in_host(), "‹path› other than host"),
            (self.writes(), "writes"),
            (self.batch != Some(rounds.width()) || self.depth != rounds.width(), "‹batch› or ‹depth›"),
            (self.io_bytes_max.is_some(), "a range of sizes"),
            (self.read_iolog.is_some(), "‹read_iolog›"),
            (self.no_repeat, "‹no_repeat›"),
            (self.distribution != JobSpec::default().distribution, "‹distribution›"),
            (self.rate_gib_s.is_some() || self.rate_iops.is_some(), "a rate"),
            (self.think_s.is_some(), "‹think_s›"),
            (self.flow.is_some(), "‹flow›"),
        ];
        match other.into_iter().find(|(is, _)| *is) {
            Some((_, with)) => refused(
                format!("{asked} with {with}"),
                "a round's reads start together, and the next one's once all are there",
                "one of the two",
            ),
            None => Ok(()),
        }
    }

    /// Lists of I/Os, that are replayed and that are written.
    fn check_lists(&self) -> Result<(), Error> {
        if let Some(file) = &self.write_iolog {
            let asked = format!("‹write_iolog› {file}");
            if file.is_empty() || self.repeat > 1 || self.until_ci_pct.is_some() {
                let found =
                    if file.is_empty() { "names no file" } else { "is of one run, and there are several" };
                return refused(asked, found, "‹write_iolog› FILE, without repeats");
            }
            if !self.gpus.is_empty() || !self.path.ends_in_host() {
                return refused(asked, "lists I/Os into host memory", "‹path› host");
            }
        }
        let recast = Recast::new(self.replay_scale, self.replay_align, self.replay_skip.as_deref())?;
        let scales = self.replay_time_scale.is_some();
        let Some(logs) = &self.read_iolog else {
            return match recast != Recast::new(None, None, None)? || scales || self.replay_no_stall {
                true => {
                    refused("‹replay_scale› and its like", "there is no list to replay", "‹read_iolog› LOG")
                }
                false => Ok(()),
            };
        };
        let asked = format!("‹read_iolog› {logs}");
        if logs.split(':').any(str::is_empty) {
            return refused(asked, "names no file", "‹read_iolog› LOG, or LOG:LOG");
        }
        if scales && self.replay_no_stall {
            return refused(
                "‹replay_time_scale› with ‹replay_no_stall›",
                "contradict each other",
                "one of the two",
            );
        }
        // What the list says, or what draws I/Os.
        let default = JobSpec::default();
        let other = [
            (!self.path.ends_in_host(), "‹path› other than host"),
            (self.workers_from == Origin::Auto, "‹workers› auto"),
            (!self.pairs.is_empty(), "‹pairs›"),
            (self.batch.is_some(), "‹batch›"),
            (self.io_mix.is_some(), "‹io_mix›"),
            (self.rate_gib_s.is_some() || self.rate_iops.is_some(), "a rate"),
            (self.think_s.is_some(), "‹think_s›"),
            (self.no_repeat, "‹no_repeat›"),
            (self.whole_files, "‹whole_files›"),
            (self.start_bytes > 0 || self.start_step_bytes > 0, "‹start_bytes›"),
            (self.skip_bytes != 0, "‹skip_bytes›"),
            (self.distribution != default.distribution, "‹distribution›"),
            (self.verify_fio.is_some(), "‹verify_fio›"),
            (self.atomic, "‹atomic›"),
        ];
        match other.into_iter().find(|(is, _)| *is) {
            Some((_, with)) => refused(
                format!("{asked} with {with}"),
                "the list says which I/Os are done, when and where",
                "one of the two",
            ),
            None => Ok(()),
        }
    }

    /// Fields for sequential offsets, and for workers that each cover all of the data.
    fn check_walk(&self) -> Result<(), Error> {
        if self.skip_bytes != 0 && self.op.is_random() {
            let asked = format!("‹skip_bytes› {}", self.skip_bytes);
            return refused(asked, "applies only to sequential offsets", "‹op› read, or no ‹skip_bytes›");
        }
        if self.skip_every_bytes.is_some() && self.skip_bytes <= 0 {
            let found = "it sets how often ‹skip_bytes› are skipped";
            return refused(
                "‹skip_every_bytes› without ‹skip_bytes›",
                found,
                "‹skip_bytes› 2g ‹skip_every_bytes› 256m",
            );
        }
        if self.skip_bytes.unsigned_abs() > OFFSET_MAX {
            return refused(
                format!("‹skip_bytes› {}", self.skip_bytes),
                "overflows (more than 8 EiB)",
                "‹skip_bytes› 64k",
            );
        }
        if self.start_step_bytes == 0 {
            return Ok(());
        }
        let asked = format!("‹start_step_bytes› {}", format_bytes(self.start_step_bytes));
        if !self.clones {
            return refused(
                asked,
                "applies only to workers that each cover all of the data",
                "‹clones› ‹start_step_bytes› 1g",
            );
        }
        if self.start_step_bytes.checked_mul(self.workers.into()).is_none_or(|all| all > OFFSET_MAX) {
            return refused(asked, "overflows (more than 8 EiB)", "a smaller ‹start_step_bytes›");
        }
        Ok(())
    }

    fn check_pace(&self) -> Result<(), Error> {
        if self.arrivals == Arrivals::Poisson && self.rate_gib_s.is_none() && self.rate_iops.is_none() {
            return refused("‹arrivals› poisson", "needs a rate", "‹rate_iops› 1000 ‹arrivals› poisson");
        }
        if self.think_ios.is_some() && self.think_s.is_none() {
            return refused("‹think_ios›", "needs a pause", "‹think_s› 0.01 ‹think_ios› 8");
        }
        Ok(())
    }

    fn check_steady(&self) -> Result<(), Error> {
        let Some(text) = &self.steady else { return Ok(()) };
        let rule = SteadyRule::parse(text)?;
        if rule.points(self.interval_ms) < SteadyRule::POINTS_MIN {
            let found = format!("its window must contain at least 3 intervals of {} ms", self.interval_ms);
            return refused(
                format!("‹steady› {text}"),
                &found,
                "a longer window, or a shorter ‹interval_ms›",
            );
        }
        Ok(())
    }

    fn check_content(&self) -> Result<(), Error> {
        let Some(text) = &self.content else { return Ok(()) };
        Blend::parse(text)?;
        let asked = format!("‹content› {text}");
        if self.verify {
            return refused(asked, "‹verify› checks Forebay's own content", "no ‹verify›");
        }
        if !self.writes() {
            return refused(asked, "nothing is written", "‹op› write, or no ‹content›");
        }
        Ok(())
    }

    /// The rule that reads of fio's files are checked by.
    pub fn parsed_verify_fio(&self) -> Result<Option<Rule>, Error> {
        let Some(text) = &self.verify_fio else { return Ok(None) };
        let asked = format!("‹verify_fio› {text}");
        let rule = match Rule::parse(text) {
            Ok(rule) => rule,
            Err(found) => return refused(asked, &found, "‹verify_fio› crc32c,interval=4k"),
        };
        if self.verify {
            return refused(
                asked,
                "a file holds fio's blocks or Forebay's content, not both",
                "one of the two",
            );
        }
        if self.writes() || self.create {
            return refused(
                asked,
                "fio must have written the data: it is only read, and not created",
                "‹op› read",
            );
        }
        Ok(Some(rule))
    }

    /// Only the kernel's own writes carry the flag, and only past the page cache.
    fn check_atomic(&self) -> Result<(), Error> {
        if !self.atomic {
            return Ok(());
        }
        if !self.writes() {
            return refused("‹atomic›", "nothing is written", "‹op› write, or no ‹atomic›");
        }
        if !self.path.reads_by_kernel() || self.cache != Cache::Bypass {
            let found = "atomic writes are issued by the kernel and bypass the page cache";
            return refused("‹atomic›", found, "‹path› host ‹cache› bypass");
        }
        Ok(())
    }

    /// The sizes of I/Os: one, or a range.
    fn check_sizes(&self) -> Result<(), Error> {
        let (least, most) = (self.io_bytes, self.io_bytes_largest());
        let range = "‹io_bytes› 4k:1m:4k";
        if least == 0 || most > IO_BYTES_MAX {
            let asked = format!("‹io_bytes› {}", format_bytes(most));
            return refused(asked, "must be 1 byte to 1 GiB", "‹io_bytes› 1m");
        }
        if most < least {
            return refused(
                format!("‹io_bytes› {least}:{most}"),
                "the maximum is less than the minimum",
                range,
            );
        }
        if self.io_bytes_max.is_some() && self.io_bytes_step == Some(0) {
            return refused("‹io_bytes› step 0", "the step must be at least 1 byte", range);
        }
        if self.io_bytes_step.is_some() && self.io_bytes_max.is_none() {
            return refused(format!("‹io_bytes› {least} in steps"), "a step needs a maximum size", range);
        }
        Ok(())
    }

    /// Products of fields.
    fn check_bytes(&self) -> Result<(), Error> {
        let of_worker = self.io_bytes_largest().saturating_mul(self.depth.into());
        let arena = of_worker.saturating_mul(self.workers.into());
        if arena > ARENA_BYTES_MAX {
            let asked = format!("‹workers› × ‹depth› × ‹io_bytes› {}", format_bytes(arena));
            return refused(asked, "more than 1 TiB of buffers", "a smaller ‹depth›");
        }
        let (file, files) = (self.file_bytes.unwrap_or(0), self.files.unwrap_or(self.workers));
        if file.checked_mul(files.into()).is_none_or(|all| all > OFFSET_MAX) {
            let asked = format!("‹file_bytes› × files {}", format_bytes(file));
            return refused(asked, "overflows (more than 8 EiB)", "a smaller ‹file_bytes›");
        }
        if self.start_bytes > OFFSET_MAX {
            let asked = format!("‹start_bytes› {}", self.start_bytes);
            return refused(asked, "overflows (more than 8 EiB)", "‹start_bytes› 0");
        }
        Ok(())
    }

    /// The I/Os in flight must be whole batches.
    fn check_batch(&self) -> Result<(), Error> {
        let Some(batch) = self.batch.filter(|batch| self.depth % batch != 0) else { return Ok(()) };
        let found = "‹depth› must be a multiple of ‹batch›";
        let most = (DEPTH_MAX / batch).max(1);
        let next = format!("‹depth› {}", batch * self.depth.div_ceil(batch).min(most));
        refused(format!("‹batch› {batch} with ‹depth› {}", self.depth), found, next)
    }

    fn check_pairs(&self) -> Result<(), Error> {
        let count = self.parsed_pairs()?.len();
        if count == 0 {
            return Ok(());
        }
        if !self.sources.is_empty() {
            let asked = format!("‹pairs› {} with {}", self.pairs[0], self.sources.join(" "));
            let next = "‹pairs› GPU=SOURCE for each, and no SOURCE";
            return refused(asked, "each ‹pairs› names its own source", next);
        }
        if !self.gpus.is_empty() {
            let next = "‹pairs› GPU=SOURCE for each, and no ‹gpus›";
            return refused("‹pairs› with ‹gpus›", "pairs name their own GPUs", next);
        }
        if self.workers_from == Origin::Given && (self.workers as usize) < count {
            let asked = format!("‹workers› {} for {count} pairs", self.workers);
            let next = format!("‹workers› {count}, or a multiple of it");
            return refused(asked, "each pair needs a worker of its own", next);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Op, PathKind};
    use super::*;

    fn job() -> JobSpec {
        JobSpec { sources: vec!["nil:".into()], ..JobSpec::default() }
    }

    #[test]
    fn what_needs_another_field_is_refused_without_it() {
        for (asked, job) in [
            ("‹skip_bytes› 4096", JobSpec { skip_bytes: 4096, op: Op::RandRead, ..job() }),
            ("‹skip_every_bytes› without ‹skip_bytes›", JobSpec { skip_every_bytes: Some(1), ..job() }),
            (
                "‹skip_every_bytes› without ‹skip_bytes›",
                JobSpec { skip_every_bytes: Some(1), skip_bytes: -8, ..job() },
            ),
            ("‹start_step_bytes› 1k", JobSpec { start_step_bytes: 1024, ..job() }),
            (
                "‹start_step_bytes› 4194304t",
                JobSpec { start_step_bytes: 1 << 62, clones: true, workers: 2, ..job() },
            ),
            ("‹arrivals› poisson", JobSpec { arrivals: Arrivals::Poisson, ..job() }),
            ("‹think_ios›", JobSpec { think_ios: Some(1), ..job() }),
            ("‹atomic›", JobSpec { atomic: true, ..job() }),
            ("‹atomic›", JobSpec { atomic: true, op: Op::Write, cache: Cache::Allow, ..job() }),
            ("‹atomic›", JobSpec { atomic: true, op: Op::Write, path: PathKind::Auto, ..job() }),
            (
                "‹steady› iops=5,window=4",
                JobSpec { steady: Some("iops=5,window=4".into()), interval_ms: 2000, ..job() },
            ),
            ("‹content› dedupe=5", JobSpec { content: Some("dedupe=5".into()), ..job() }),
            (
                "‹content› dedupe=5",
                JobSpec { content: Some("dedupe=5".into()), op: Op::Write, verify: true, ..job() },
            ),
            ("‹priority› fast", JobSpec { priority: Some("fast".into()), ..job() }),
            ("‹whole_files› with ‹op› randread", JobSpec { whole_files: true, op: Op::RandRead, ..job() }),
            (
                "‹whole_files› with ‹create›, or a write",
                JobSpec { whole_files: true, read_pct: Some(50), ..job() },
            ),
            ("‹whole_files› with ‹file_bytes›", JobSpec { whole_files: true, file_bytes: Some(1), ..job() }),
            ("‹whole_files› with ‹start_bytes›", JobSpec { whole_files: true, start_bytes: 1, ..job() }),
            ("‹whole_files› with ‹skip_bytes›", JobSpec { whole_files: true, skip_bytes: 1, ..job() }),
            ("‹glob› '*'", JobSpec { glob: vec!["*".into()], create: true, ..job() }),
            ("‹glob› '*'", JobSpec { glob: vec!["*".into()], file_name: "f%d".into(), ..job() }),
            ("‹glob› '['", JobSpec { glob: vec!["[".into()], ..job() }),
            ("‹flow› 8", JobSpec { flow: Some("8".into()), ..job() }),
            ("‹distribution› zoned:1/1", JobSpec { distribution: "zoned:1/1".into(), ..job() }),
        ] {
            let error = job.check().unwrap_err();
            assert_eq!(error.asked, asked);
            assert!(!error.next.is_empty());
        }
    }

    // promise: FLT-6
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
            (sized(2, Some(1), None), "less than the minimum"),
            (sized(1, Some(2), Some(0)), "at least 1 byte"),
            (sized(1, None, Some(1)), "needs a maximum size"),
        ] {
            let error = job.check().unwrap_err();
            assert!(error.asked.starts_with("‹io_bytes›") && error.found.contains(found), "{error}");
        }
        sized(4096, Some(1 << 20), Some(4096)).check().unwrap();
    }
}
