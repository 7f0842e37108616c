//! One job's hosts: which of them reads which step's batches, and when the steps end.

use super::saving::Saving;
use super::sizes::Sizes;
use super::spread::Spread;
use super::{Job, Trained, Training, Work};
use crate::random::{derive, Xoshiro256};
use crate::training::rules::{self, Figures};
use crate::training::{Plan, RankStreams, RuleSet, Scheduler, Stream, Trace};
use crate::{Error, Latency};
use std::collections::VecDeque;

/// Batches of a host that may wait for their last requests side by side, as those of several readers do.
const READERS_MAX: u32 = 8;
/// Behind so many usual steps without an end a job stands still.
const STALL_STEPS: f64 = 10.0;
/// Lengths of steps are put into the histogram by the thousand.
const LENGTHS: u32 = 1024;

/// Batches of one step that a host is to read: the scheduler's slot, and samples done when it is through.
#[derive(Clone, Copy, Debug)]
pub struct Errand {
    pub stream_slot: u32,
    pub upto: u32,
    pub bytes: f64,
}

#[derive(Clone, Debug, Default)]
pub struct Host {
    /// Its number in the job, which it keeps when others go.
    pub id: u32,
    pub pool: u32,
    pub reading: Option<Errand>,
    waiting: VecDeque<Errand>,
    pub is_away: bool,
    /// The share that it had read when it failed.
    pub left: Option<f64>,
}

/// A job in play.
pub struct Crew {
    pub hosts: Vec<Host>,
    /// Counts up with each new beginning: what was due before is void.
    pub generation: u32,
    pub is_running: bool,
    /// Its barrier waits for a host that is away.
    pub is_held: bool,
    /// Seconds that it ran, and what it did, once it was stopped.
    pub ended: Option<(f64, Option<Trained>)>,
    /// None for a job that doesn't train.
    pub class: Option<Class>,
    /// None for a job that writes no checkpoints.
    pub saving: Option<Saving>,
    /// Slot of its pools for what it reads or writes now: its own number, or past all jobs while it writes.
    pub slot: u32,
}

/// Accelerators that step together.
pub struct Class {
    scheduler: Scheduler<()>,
    trace_steps: u32,
    accelerators: u32,
    batch_bytes: f64,
    /// None: every batch has `batch_bytes`.
    sizes: Option<Sizes>,
    batch: u32,
    compute_ns: u64,
    overhead_ns: u64,
    /// When the barrier falls is known and told.
    barrier: bool,
    requests: Option<(Spread, f64, f64)>,
    random: Xoshiro256,
    epochs: Vec<(Figures, f64)>,
    full_epochs: u32,
    sums: [f64; 3],
    steps_before: u64,
    samples: u64,
    /// From the last step's end to a new beginning: seconds, and seconds times the hosts that began again.
    lost_s: f64,
    lost_host_s: f64,
    lengths_due: u32,
    lengths: Latency,
}

impl Crew {
    pub fn new(job: &Job, slot: u32, seed: u64) -> Result<Crew, Error> {
        let hosts =
            job.hosts.iter().zip(0..).map(|(pool, id)| Host { id, pool: *pool, ..Host::default() }).collect();
        let class = match &job.work {
            Work::Reads | Work::Checkpoint(_) => None,
            Work::Training(training) => Some(Class::new(training, job.hosts.len(), seed)?),
        };
        let saving = match &job.work {
            Work::Checkpoint(spec) => Some(Saving::new(spec)),
            _ => None,
        };
        Ok(Crew { hosts, generation: 0, is_running: false, is_held: false, ended: None, class, saving, slot })
    }

    /// Returns whether its hosts read all the time.
    pub fn only_reads(&self) -> bool {
        self.class.is_none() && self.saving.is_none()
    }
}

impl Host {
    /// Takes an errand; true if it can be set out on now.
    #[inline]
    pub fn take(&mut self, errand: Errand) -> bool {
        if self.reading.is_some() || self.is_away {
            self.waiting.push_back(errand);
            return false;
        }
        self.reading = Some(errand);
        true
    }

    /// The errand that is through; the next one is set out on, if there is one.
    #[inline]
    pub fn finish(&mut self) -> Option<Errand> {
        let next = self.waiting.pop_front();
        std::mem::replace(&mut self.reading, next)
    }

    /// Takes up what it has to read; false if there is nothing.
    pub fn resume(&mut self) -> bool {
        if self.reading.is_none() {
            self.reading = self.waiting.pop_front();
        }
        self.reading.is_some()
    }

    /// Forgets what it was to read.
    pub fn clear(&mut self) {
        (self.reading, self.left) = (None, None);
        self.waiting.clear();
    }
}

impl Class {
    fn new(training: &Training, hosts: usize, seed: u64) -> Result<Class, Error> {
        let spec = training.spec(hosts)?;
        let trace = Trace::new(&spec, training.files)?;
        let each = f64::from(training.workload.batch) * training.workload.record_bytes;
        let sizes = training.sizes.then(|| Sizes::new(spec.clone(), training.files, seed)).transpose()?;
        let requests = training.requests.map(|r| (Spread::new(r.shape), r.in_flight, r.bytes));
        let plan = Plan {
            ranks: hosts as u32,
            batch: 1,
            prefetch: spec.batches_ahead().max(1),
            read_threads: if requests.is_some() { spec.batches_ahead().clamp(1, READERS_MAX) } else { 1 },
            steps: trace.steps(),
            compute_ns: training.workload.compute_ns(),
            awaits_others: true,
        };
        let mut scheduler = Scheduler::new(plan);
        if let Some(shape) = training.compute {
            let (spread, mut random) = (Spread::new(shape), Xoshiro256::new(derive(seed, 1)));
            let (mean, count) = (plan.compute_ns as f64, f64::from(training.accelerators));
            scheduler.vary(Box::new(move |_| (mean * spread.longest_of(count, &mut random)) as u64));
        }
        Ok(Class {
            scheduler,
            trace_steps: trace.steps(),
            accelerators: training.accelerators,
            batch_bytes: each * f64::from(training.accelerators),
            sizes,
            batch: training.workload.batch.saturating_mul(training.accelerators),
            compute_ns: plan.compute_ns,
            overhead_ns: (training.overhead_s * 1e9).round() as u64,
            barrier: false,
            requests,
            random: Xoshiro256::new(derive(seed, 2)),
            epochs: Vec::new(),
            full_epochs: 0,
            sums: [0.0; 3],
            steps_before: 0,
            samples: 0,
            lost_s: 0.0,
            lost_host_s: 0.0,
            lengths_due: LENGTHS,
            lengths: Latency::default(),
        })
    }

    pub fn compute_ns(&self) -> u64 {
        self.compute_ns
    }

    /// An epoch begins now, with nothing read.
    pub fn begin_epoch(&mut self, now: u64) {
        let Plan { ranks, steps, read_threads, .. } = *self.scheduler.plan();
        if let Some(sizes) = self.sizes.as_mut() {
            sizes.begin(ranks, self.accelerators);
        }
        let readers = read_threads.min(steps);
        let streams = move |_| -> RankStreams {
            Box::new((0..readers).map(move |reader| Stream {
                file: 0,
                first: 0,
                every: 1,
                samples: (steps - reader).div_ceil(readers),
                position: u64::from(reader),
                stride: readers,
            }))
        };
        self.scheduler.begin(now, &mut { streams });
        self.scheduler.advance(now);
        self.barrier = false;
    }

    /// The next errand that may be set out on, with its host.
    #[inline]
    pub fn grant(&mut self) -> Option<(u32, Errand)> {
        let grant = self.scheduler.take()?;
        let step = grant.stream.position as u32 + (grant.upto - 1) * grant.stream.stride;
        let bytes = match self.sizes.as_mut() {
            Some(sizes) => sizes.bytes(grant.rank, step),
            None => self.batch_bytes,
        };
        Some((grant.rank, Errand { stream_slot: grant.slot, upto: grant.upto, bytes }))
    }

    /// Returns the time after its bytes at which a batch's last request comes, where the mean of a request is
    /// `mean_ns`.
    #[inline]
    pub fn tail_ns(&mut self, bytes_per_ns: f64) -> u64 {
        let Some((spread, in_flight, bytes)) = &self.requests else { return 0 };
        if bytes_per_ns <= 0.0 {
            return 0;
        }
        let last = in_flight.min((self.batch_bytes / bytes).max(1.0));
        let mean_ns = last * bytes / bytes_per_ns;
        let longest = spread.longest_of(last, &mut self.random);
        (mean_ns * (longest - 1.0).max(0.0)) as u64
    }

    /// A batch is whole.
    #[inline]
    pub fn whole(&mut self, host: u32, stream_slot: u32, upto: u32, now: u64) {
        self.scheduler.report(host, stream_slot, upto, now);
        self.scheduler.give_back(host, stream_slot, ());
    }

    /// When the barrier of this step falls and the harness is through, told once per step.
    #[inline]
    pub fn barrier_at(&mut self) -> Option<u64> {
        if self.barrier {
            return None;
        }
        let ends = self.scheduler.awaits_others()?;
        self.barrier = true;
        Some(ends + self.overhead_ns)
    }

    /// The step ends for all. Whether the epoch is over.
    #[inline]
    pub fn pass(&mut self, now: u64) -> bool {
        self.barrier = false;
        self.scheduler.passed(now);
        self.lengths_due -= 1;
        if self.lengths_due == 0 {
            self.lengths_due = LENGTHS;
            self.count_lengths();
        }
        self.scheduler.is_over()
    }

    fn count_lengths(&mut self) {
        self.scheduler.take_waited_ns();
        for length in self.scheduler.take_lengths() {
            self.lengths.record(length);
        }
    }

    /// Puts down what the epoch was. `is_full`: it went to its end.
    pub fn end_epoch(&mut self, now: u64, is_full: bool) {
        let hosts = self.scheduler.epoch();
        let Some(first) = hosts.first().filter(|steps| steps.steps > 0) else { return };
        let seconds = (now.max(first.end_ns) - first.start_ns) as f64 / 1e9;
        self.epochs.push((rules::of_epoch(RuleSet::Text, hosts, self.batch), seconds));
        for host in hosts {
            for (sum, ns) in self.sums.iter_mut().zip([host.compute_ns, host.wait_ns, host.barrier_ns]) {
                *sum += ns as f64 / 1e9 / hosts.len() as f64;
            }
        }
        self.steps_before += u64::from(first.steps);
        self.samples += u64::from(first.steps) * u64::from(self.batch) * hosts.len() as u64;
        self.full_epochs += u32::from(is_full);
    }

    /// Goes on from the same place with so many hosts: what was read ahead is lost.
    pub fn begin_again(&mut self, hosts: u32, now: u64) {
        let plan = *self.scheduler.plan();
        let left = u64::from(plan.steps - self.scheduler.step()) * u64::from(plan.ranks) / u64::from(hosts);
        let lost_s = now.saturating_sub(self.scheduler.end_ns()) as f64 / 1e9;
        self.lost_s += lost_s;
        self.lost_host_s += lost_s * f64::from(hosts);
        self.end_epoch(now, false);
        self.scheduler.set_plan(Plan {
            ranks: hosts,
            steps: left.max(1).min(u64::from(u32::MAX)) as u32,
            ..plan
        });
        self.trace_steps =
            (u64::from(self.trace_steps) * u64::from(plan.ranks) / u64::from(hosts)).max(1) as u32;
        self.begin_epoch(now);
    }

    /// The next epoch, whole again.
    pub fn next_epoch(&mut self, now: u64) {
        self.end_epoch(now, true);
        let plan = *self.scheduler.plan();
        self.scheduler.set_plan(Plan { steps: self.trace_steps, ..plan });
        self.begin_epoch(now);
    }

    pub fn steps(&self) -> u64 {
        self.steps_before + u64::from(self.scheduler.step())
    }
}

impl Class {
    /// The results until `now`, when it ended.
    pub fn finish(&mut self, now: u64) -> Trained {
        self.count_lengths();
        let hosts = self.scheduler.plan().ranks;
        let usual = if self.lengths.count() > 0 { self.lengths.mean_ns() } else { self.compute_ns as f64 };
        let since = now.saturating_sub(self.scheduler.end_ns()) as f64;
        let stalled_s = if since > STALL_STEPS * usual { since / 1e9 } else { 0.0 };
        self.end_epoch(now, false);
        let all = rules::of_epochs(RuleSet::Text, &self.epochs);
        let counted_s = all.counted_s + stalled_s * f64::from(hosts) + self.lost_host_s;
        Trained {
            steps: self.steps_before,
            samples: self.samples,
            epochs: self.full_epochs,
            au_pct: (counted_s > 0.0).then(|| 100.0 * all.busy_s / counted_s),
            computing_s: self.sums[0],
            waiting_s: self.sums[1],
            barrier_s: self.sums[2],
            stalled_s: stalled_s + self.lost_s,
            step_us: self.lengths.summary(),
        }
    }
}
