//! Assignment and resources of workers that do I/Os, and the state that they share.

use super::Standstills;
use forebay_model::job::JobSpec;
use forebay_model::pattern::PatternSpec;
use forebay_model::Error;
use forebay_storage::{Destination, FaultPlan, Target};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::Arc;
use std::time::Duration;

/// State shared by all workers of a run.
pub struct Shared {
    pub job: JobSpec,
    pub targets: Vec<Target>,
    /// Seed of each target's content.
    pub content_seeds: Vec<u64>,
    pub destination: Arc<Destination>,
    pub faults: Option<FaultPlan>,
    /// Set when another worker failed: stop now.
    pub stop: AtomicBool,
    /// Ends of warm-up and of the measured time, in ns since the run began.
    pub from_ns: AtomicU64,
    pub until_ns: AtomicU64,
    /// Time after the end for which an open loop still starts I/Os that were due, in ns.
    pub drain_ns: AtomicU64,
    pub interval: Duration,
    /// Snapshots carry their histogram.
    pub with_histograms: bool,
    pub standstills: Arc<Standstills>,
}

impl Shared {
    /// Of workers that go on until they are told to stop, and are measured all the while.
    ///
    /// # Errors
    /// `Request`: the job's faults aren't any.
    pub fn endless(
        job: &JobSpec,
        targets: Vec<Target>,
        content_seeds: Vec<u64>,
        destination: Arc<Destination>,
    ) -> Result<Shared, Error> {
        Ok(Shared {
            job: job.clone(),
            targets,
            content_seeds,
            destination,
            faults: job.faults.as_deref().map(FaultPlan::parse).transpose()?,
            stop: AtomicBool::new(false),
            from_ns: AtomicU64::new(0),
            until_ns: AtomicU64::new(u64::MAX / 2),
            drain_ns: AtomicU64::new(0),
            interval: Duration::from_millis(u64::from(job.interval_ms)),
            with_histograms: false,
            standstills: Arc::default(),
        })
    }
}

/// The assignment of one worker.
#[derive(Clone, Debug)]
pub struct WorkerSpec {
    pub index: u32,
    pub cpu: Option<u32>,
    /// The NUMA node of its GPU, to stay on if the system allows.
    pub near: Option<u32>,
    pub pattern: PatternSpec,
}

/// A worker's actual resources, for the record.
#[derive(Clone, Debug, Default)]
pub struct Resources {
    pub features: Vec<&'static str>,
    pub pages: &'static str,
    pub slot_bytes: u64,
    pub queues: u32,
    /// For each target, the path of its queue.
    pub ran: BTreeMap<u32, &'static str>,
    pub warning: Option<String>,
    /// Why the host generates and checks the content of slots in GPU memory.
    pub content_on_host: Option<String>,
}

impl Resources {
    /// Workers may get different pages; together they have the worst of them.
    pub fn add(&mut self, other: Resources) {
        let rank = |p: &str| ["none", "hugetlb", "thp", "thp-partial", "small"].iter().position(|k| *k == p);
        if rank(other.pages) > rank(self.pages) {
            self.pages = other.pages;
        }
        self.features = other.features;
        self.slot_bytes += other.slot_bytes;
        self.queues += other.queues;
        self.ran.extend(other.ran);
        self.warning = self.warning.take().or(other.warning);
        self.content_on_host = self.content_on_host.take().or(other.content_on_host);
    }
}
