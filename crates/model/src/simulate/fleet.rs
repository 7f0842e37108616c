//! Hundreds of hosts with thousands of accelerators, over storage of their own or that they share, in virtual time:
//! training jobs that step together and jobs that just read, with jitter, and with drives and hosts that fail.
//!
//! A step is too long, and its requests are too many, for each request to be followed: an hour of a thousand H100s
//! reads eighty billion of them. So what moves is a host's reading of a step's batches, at the rate that its way to the
//! drives gives (`pool`). Who reads ahead how far, which step begins when, and what utilisation that is, are the
//! scheduler, the barrier and the formulas of emulated training. The requests come back in one place: a batch is whole
//! when the last of its requests is, so that where their times are spread it waits for the longest (`spread`).

mod crew;
mod play;
mod pool;
mod saving;
mod sizes;
mod spread;

use crate::training::{EmulateSpec, Workload};
use crate::Error;
pub use play::play;
pub use pool::HostRate;
use serde::{Deserialize, Serialize};
pub use spread::Shape;

pub const HOSTS_MAX: usize = 1 << 16;
const JOBS_MAX: usize = 64;
const POINTS_MAX: f64 = 1e5;
const TIMES_MAX: u32 = 100_000;
const DURATION_S_MAX: f64 = 3.2e7;

/// Fleet to be played. Sizes in bytes, times in seconds since the beginning.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fleet {
    pub seed: u64,
    pub duration_s: f64,
    /// Between points of the series.
    pub interval_s: f64,
    /// Drives of each pool.
    pub pools: Vec<f64>,
    pub jobs: Vec<Job>,
    #[serde(default)]
    pub faults: Vec<Fault>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Job {
    pub name: String,
    /// The pool that each of its hosts reads from.
    pub hosts: Vec<u32>,
    pub way: HostRate,
    #[serde(default)]
    pub start_s: f64,
    /// None: when the play ends.
    #[serde(default)]
    pub stop_s: Option<f64>,
    pub work: Work,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Work {
    /// Reads without an end, as many requests at a time as its way was made for.
    Reads,
    Training(Box<Training>),
    Checkpoint(Checkpoint),
}

/// Hosts that write a checkpoint together, each its part, and then read it again. One is through when the slowest host
/// is. The job's own way is that of reads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Checkpoint {
    /// Bytes of each host.
    pub bytes: f64,
    pub writes: u32,
    pub reads: u32,
    /// From one's end to the next one's begin.
    pub pause_s: f64,
    pub write_way: HostRate,
}

/// Accelerators that step together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Training {
    pub workload: Workload,
    /// Accelerators of each host.
    pub accelerators: u32,
    pub files: u32,
    /// From a step's end to the next one's begin, on every host: the harness.
    pub overhead_s: f64,
    /// Deviation of an accelerator's computations from their mean.
    #[serde(default)]
    pub compute: Option<Shape>,
    #[serde(default)]
    pub requests: Option<Requests>,
    /// Samples have sizes of their own, in the order of the trace; else all have their mean.
    #[serde(default)]
    pub sizes: bool,
}

/// Duration of single requests of a host, where that differs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Requests {
    pub shape: Shape,
    /// In flight at a time, of one host.
    pub in_flight: f64,
    pub bytes: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Fault {
    /// A pool is as good as so many drives from now on.
    Drives { at_s: f64, pool: u32, drives: f64 },
    /// A host goes. With `back_s` it comes again then; its job waits for it. With `without_s` the others begin again
    /// from there without it. With neither they wait until the end.
    Host { at_s: f64, job: u32, host: u32, back_s: Option<f64>, without_s: Option<f64> },
}

impl Fault {
    pub(crate) fn at_s(self) -> f64 {
        match self {
            Fault::Drives { at_s, .. } | Fault::Host { at_s, .. } => at_s,
        }
    }
}

/// Outcome of a simulation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// Seconds that were played: fewer than were asked for if it was interrupted.
    pub seconds: f64,
    pub interrupted: bool,
    pub events: u64,
    pub jobs: Vec<JobOutcome>,
    /// Seconds times drives that there were, over all pools.
    pub drive_s: f64,
    pub series: Vec<Point>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct JobOutcome {
    pub name: String,
    pub hosts: u32,
    /// From its start to its stop.
    pub seconds: f64,
    pub bytes: f64,
    /// Host-seconds in which it read.
    pub reading_s: f64,
    /// None for a job that doesn't train.
    pub training: Option<Trained>,
    /// None for a job that writes no checkpoints.
    pub checkpoint: Option<Saved>,
}

/// Seconds that each checkpoint took which is whole, and what was written of all.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Saved {
    pub write_s: Vec<f64>,
    pub read_s: Vec<f64>,
    pub written_bytes: f64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Trained {
    pub steps: u64,
    pub samples: u64,
    pub epochs: u32,
    /// Computing over counted time, by the text of the rules. None before the first step has ended.
    pub au_pct: Option<f64>,
    /// Means over hosts of the time spent computing, waiting for a batch, and for the others and the harness.
    pub computing_s: f64,
    pub waiting_s: f64,
    pub barrier_s: f64,
    /// Since its last step ended, where that is more than ten usual steps.
    pub stalled_s: f64,
    pub step_us: crate::histogram::LatencySummary,
}

/// Totals up to a time, by job.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Point {
    pub t_s: f64,
    pub bytes: Vec<f64>,
    pub steps: Vec<u64>,
}

impl Fleet {
    /// Reads a fleet, naming the key that isn't known or doesn't fit.
    pub fn from_json(text: &str) -> Result<Fleet, Error> {
        let fleet: Fleet = serde_json::from_str(text)
            .map_err(|e| Error::request("the simulation", e.to_string(), "forebay plan run --help"))?;
        fleet.check()?;
        Ok(fleet)
    }

    /// Everything that can't be played.
    pub fn check(&self) -> Result<(), Error> {
        if !(self.duration_s > 0.0 && self.duration_s <= DURATION_S_MAX) {
            let asked = format!("{} seconds to simulate", self.duration_s);
            return refuse(asked, "must be above 0 and at most a year", "--hours 1");
        }
        if !(self.interval_s > 0.0 && self.duration_s / self.interval_s <= POINTS_MAX) {
            let asked = format!("a point every {} s", self.interval_s);
            return refuse(asked, "must give at most 100,000 points", "a longer interval");
        }
        if self.pools.is_empty() || !self.pools.iter().all(|d| is_drives(*d) && *d > 0.0) {
            return refuse("the simulation's drives", "must be above 0 in each pool", "--drives 4");
        }
        if self.jobs.is_empty() || self.jobs.len() > JOBS_MAX {
            return refuse(format!("{} jobs", self.jobs.len()), "must be 1 to 64", "fewer jobs");
        }
        self.jobs.iter().try_for_each(|job| job.check(self.pools.len()))?;
        self.faults.iter().try_for_each(|fault| self.check_fault(*fault))
    }

    fn check_fault(&self, fault: Fault) -> Result<(), Error> {
        let is_time = |s: f64| s.is_finite() && s >= 0.0;
        let sound = match fault {
            Fault::Drives { at_s, pool, drives } => {
                is_time(at_s) && (pool as usize) < self.pools.len() && is_drives(drives)
            }
            Fault::Host { at_s, job, host, back_s, without_s } => {
                let there = self.jobs.get(job as usize).is_some_and(|j| (host as usize) < j.hosts.len());
                let after = |s: Option<f64>| s.is_none_or(|s| s.is_finite() && s > at_s);
                is_time(at_s)
                    && there
                    && after(back_s)
                    && after(without_s)
                    && !(back_s.is_some() && without_s.is_some())
                    && !(without_s.is_some() && self.is_checkpoint(job))
            }
        };
        if sound {
            return Ok(());
        }
        refuse(
            format!("{fault:?}"),
            "can't happen in this simulation",
            "a time, drives or a host that are there",
        )
    }
}

impl Fleet {
    /// Returns whether a job writes checkpoints, which without one of its hosts is never whole.
    fn is_checkpoint(&self, job: u32) -> bool {
        self.jobs.get(job as usize).is_some_and(|j| matches!(j.work, Work::Checkpoint(_)))
    }
}

fn is_drives(drives: f64) -> bool {
    (0.0..=1e9).contains(&drives)
}

fn refuse(asked: impl Into<String>, found: impl Into<String>, next: &str) -> Result<(), Error> {
    Err(Error::request(asked, found, next))
}

impl Job {
    fn check(&self, pools: usize) -> Result<(), Error> {
        let asked = |what: &str| format!("job {}: {what}", self.name);
        if self.hosts.is_empty() || self.hosts.len() > HOSTS_MAX {
            return refuse(asked(&format!("{} hosts", self.hosts.len())), "must be 1 to 65,536", "--hosts 8");
        }
        if self.hosts.iter().any(|pool| *pool as usize >= pools) {
            return refuse(asked("a pool"), "isn't there", "one of the pools");
        }
        self.way.check(&self.name)?;
        let start = self.start_s;
        if !(start.is_finite() && start >= 0.0 && self.stop_s.is_none_or(|s| s.is_finite() && s > start)) {
            return refuse(
                asked("its times"),
                "must be from 0, the stop behind the start",
                "start = 0, stop = 600",
            );
        }
        match &self.work {
            Work::Reads => Ok(()),
            Work::Training(training) => training.check(&self.name, self.hosts.len()),
            Work::Checkpoint(checkpoint) => checkpoint.check(&self.name),
        }
    }
}

impl HostRate {
    fn check(&self, name: &str) -> Result<(), Error> {
        if self.is_sound() {
            return Ok(());
        }
        let asked = format!("job {name}: its way to the drives");
        refuse(asked, "isn't a rising table of rates above 0", "forebay plan run")
    }
}

impl Checkpoint {
    fn check(&self, name: &str) -> Result<(), Error> {
        let asked = |what: &str| format!("job {name}: {what}");
        if !(1.0..=1e18).contains(&self.bytes) {
            return refuse(
                asked("a checkpoint's part of each host"),
                "must be 1 byte to an exabyte",
                "fewer hosts",
            );
        }
        if !(1..=TIMES_MAX).contains(&self.writes) || self.reads > TIMES_MAX {
            let times = format!("{} checkpoints written, {} read", self.writes, self.reads);
            return refuse(
                asked(&times),
                "must be 1 to 100,000, and at most as many",
                "writes = 10, reads = 10",
            );
        }
        if !(0.0..=DURATION_S_MAX).contains(&self.pause_s) {
            return refuse(asked("a pause"), "must be 0 s to a year", "pause_s = 5");
        }
        self.write_way.check(name)
    }
}

impl Training {
    fn check(&self, name: &str, hosts: usize) -> Result<(), Error> {
        let asked = |what: String| format!("job {name}: {what}");
        if !(self.overhead_s >= 0.0 && self.overhead_s <= 3600.0) {
            return refuse(
                asked(format!("{} s between steps", self.overhead_s)),
                "must be 0 to 3600",
                "0.001",
            );
        }
        if self.workload.compute_s <= 0.0 {
            return refuse(
                asked("no time to compute".into()),
                "makes no utilisation",
                "a workload that computes",
            );
        }
        if let Some(Requests { in_flight, bytes, .. }) = self.requests {
            if !(1.0..=1e9).contains(&in_flight) || !(1.0..=1e12).contains(&bytes) {
                return refuse(
                    asked("its requests".into()),
                    "must be 1 or more, of 1 byte or more",
                    "‹io_bytes› 1m",
                );
            }
        }
        self.compute.into_iter().chain(self.requests.map(|r| r.shape)).try_for_each(Shape::check)?;
        self.spec(hosts)?.check()
    }

    /// The run of emulated training that this job is, all hosts together.
    pub(crate) fn spec(&self, hosts: usize) -> Result<EmulateSpec, Error> {
        let ranks = u32::try_from(hosts).ok().and_then(|hosts| hosts.checked_mul(self.accelerators));
        let ranks = ranks.ok_or_else(|| {
            let asked = format!("{hosts} hosts of {} accelerators", self.accelerators);
            Error::request(asked, "are too many", "at most 1,048,576 in all")
        })?;
        Ok(EmulateSpec {
            workload: self.workload.clone(),
            data: vec!["simulated".into()],
            accelerators: ranks,
            ranks,
            epochs: 1,
            prefetch: self.workload.prefetch,
            read_threads: self.workload.read_threads,
            ..EmulateSpec::default()
        })
    }
}
