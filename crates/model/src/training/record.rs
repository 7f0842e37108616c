//! The results of an emulated training run: the part `training` of a record.

use super::rules::{self, Figures};
use super::spec::{EmulateSpec, Level, Loader, RuleSet};
use crate::histogram::LatencySummary;
use crate::schema::{record, Part};
use crate::units::readable_bytes;
use crate::{Error, Latency};

/// Share of their nominal bytes below which HDF5's samples aren't in the files: what describes data that lies elsewhere is shorter.
const SMALLEST_SHARE: f64 = 0.25;

/// The tables of the part `training` and of its parts.
pub const PARTS: &[Part] = &[
    Training::PART,
    Epoch::PART,
    Span::PART,
    Figures::PART,
    Verdict::PART,
    Skipped::PART,
    Timing::PART,
    Latencies::PART,
    Waited::PART,
    Headroom::PART,
    TrainingMemory::PART,
    CurvePoint::PART,
];

/// Label of every record of this kind, so that no figure passes for a submitted one.
pub const LABEL: &str = "MLPerf-style, unverified";

record! {
    /// Emulated accelerators fed from storage.
    pub struct Training [Default by hand] {
        /// `MLPerf-style, unverified`.
        pub label: String = "text";
        /// For example `unet3d`.
        pub workload: String = "text";
        /// Edition that the workload's constants come from, for example `1.0`; `own`: from a file of the user's, and not
        /// all as published.
        pub version: String = "text";
        /// For example `h100`.
        pub accelerator: String = "text";
        /// Emulated accelerators on all hosts.
        pub accelerators: u32 = "count", sum;
        /// Hosts of the run.
        pub hosts: u32 = "count", sum;
        /// The rule set of `au_pct` and `samples_per_s`.
        pub rule_set: RuleSet = "`v1.0`, `v2.0`, `v3.0` or `text`";
        /// Framing parsed and checksums verified, or bytes only read.
        pub level: Level = "`parse` or `bytes`";
        /// Images were decoded.
        pub decode: bool = "true or false";
        /// How files became batches.
        pub loader: Loader = "`pytorch` or `tensorflow`";
        /// Format of the files.
        pub format: String = "text";
        /// Per step and accelerator.
        pub batch: u32 = "samples";
        /// An accelerator's computation on one batch.
        pub compute_s: f64 = "s";
        /// Nominal mean size of a sample.
        pub record_bytes: f64 = "bytes";
        /// Files in the data set.
        pub files: u32 = "count";
        /// Samples in each file of the data set.
        pub samples_per_file: u32 = "count";
        /// Seed of the order of samples.
        pub seed: u64 = "number";
        /// Batches read ahead, as requested.
        pub prefetch: u32 = "batches";
        /// Batches that each accelerator really had read ahead: by an edition's own loader more than `prefetch`.
        pub batches_ahead: u32 = "batches";
        /// Files that one accelerator reads at a time.
        pub read_threads: u32 = "count";
        /// `drop`, `host` or `gpu:N`.
        pub destination: String = "text";
        /// Utilisation of the accelerators. Null if there are too few steps for the formula, or nothing was read.
        pub au_pct: Option<f64> = "%, or null";
        /// Threshold to pass.
        pub au_pct_min: f64 = "%";
        /// Whether `au_pct` reaches it in a run that was finished and skipped nothing.
        pub passes: bool = "true or false";
        /// Rate of all accelerators together, of samples that were read.
        pub samples_per_s: Option<f64> = "samples/s, or null";
        /// `samples_per_s` × `record_bytes`: nominal, not what was read.
        pub throughput_mib_s: Option<f64> = "MiB/s, or null";
        /// Planned steps per epoch.
        pub steps: u32 = "count";
        /// Epochs that the run was to have; 0 if unknown.
        pub epochs_asked: u32 = "count";
        /// Each pass over the data.
        pub epochs: Vec<Epoch> = "list of objects";
        /// The same run by every rule set that has batches read ahead as this run had.
        pub by_rules: Vec<Figures> = "list of objects";
        /// The verdict of each rule that was checked.
        pub rules: Vec<Verdict> = "list of objects";
        /// Bytes actually read in the epochs; for batches kept in memory, those that arrived there. The byte counts by path
        /// in `path` add up to this.
        pub read_bytes: u64 = "bytes", sum;
        /// Bytes of samples, without their containers.
        pub payload_bytes: u64 = "bytes", sum;
        /// Samples consumed by accelerators.
        pub samples: u64 = "count", sum;
        /// What `--on-error skip` skipped.
        pub skipped: Skipped = "object";
        /// Latency of reads, samples and steps.
        pub latency: Latencies = "object";
        /// Where the accelerators' time went while they weren't computing.
        pub waited: Waited = "object";
        /// Whether the client could have done more.
        pub headroom: Headroom = "object";
        /// Memory of the client.
        pub memory_bytes: TrainingMemory = "object";
        /// From the start of the process to the first computation.
        pub start_to_first_step_s: Option<f64> = "s, or null", most;
        /// For a search: utilisation by number of accelerators.
        pub curve: Vec<CurvePoint> = "list of objects";
    }
}

record! {
    /// One pass over the data set.
    pub struct Epoch {
        /// Number of the epoch, from 1.
        pub epoch: u32 = "number";
        /// Steps that all accelerators finished.
        pub steps: u32 = "count";
        /// From before loading until after the last barrier.
        pub seconds: f64 = "s";
        /// By the run's rule set.
        pub au_pct: Option<f64> = "%, or null";
        /// By the run's rule set.
        pub samples_per_s: Option<f64> = "samples/s, or null";
        /// Bytes actually read.
        pub read_bytes: u64 = "bytes";
        /// One entry per rule set, as above.
        pub by_rules: Vec<Figures> = "list of objects";
        /// The times of each accelerator, from which its utilisation follows; none in a merged record.
        pub accelerators: Vec<Span> = "list of objects" [skip_serializing_if = "Vec::is_empty"];
    }
}

record! {
    /// One accelerator's epoch, in seconds since the run began: start of loading, end of the first step's wait and computation, end behind
    /// the last barrier; and the steps and their computation in all.
    #[derive(Copy)]
    pub struct Span {
        /// Before loading began, since the run did.
        pub start_s: f64 = "s";
        /// The first batch had come.
        pub first_wait_end_s: f64 = "s";
        /// The first computation ended.
        pub first_step_end_s: f64 = "s";
        /// Behind the last barrier.
        pub end_s: f64 = "s";
        /// Steps.
        pub steps: u32 = "count";
        /// Computation of all of them.
        pub compute_s: f64 = "s";
    }
}

impl Span {
    fn from_steps(steps: &rules::Steps) -> Span {
        let s = |ns: u64| ns as f64 / 1e9;
        Span {
            start_s: s(steps.start_ns),
            first_wait_end_s: s(steps.start_ns + steps.first.wait_ns),
            first_step_end_s: s(steps.start_ns + steps.first.process_ns),
            end_s: s(steps.end_ns),
            steps: steps.steps,
            compute_s: s(steps.compute_ns),
        }
    }
}

record! {
    /// The verdict of a rule.
    pub struct Verdict {
        /// Name of the rule, for example `au`.
        pub id: String = "text";
        /// Whether the run complies with it.
        pub ok: bool = "true or false";
        /// The evidence.
        pub why: String = "text";
    }
}

record! {
    /// Samples that `--on-error skip` left out.
    pub struct Skipped {
        /// Samples skipped, counted once for each epoch that needed them.
        pub count: u64 = "samples", sum;
        /// Each damaged record once, the first 100: file, record, offset and what is wrong.
        pub examples: Vec<String> = "list of texts", all;
    }
}

impl Skipped {
    pub const EXAMPLES_MAX: usize = 100;
}

record! {
    /// A distribution of times.
    pub struct Timing {
        /// As in `result.latency_us`.
        pub latency_us: LatencySummary = "object";
        /// As in `result.histogram`; empty if nothing was timed.
        pub histogram: String = "text";
    }
}

impl Timing {
    pub fn from_latency(latency: &Latency) -> Timing {
        Timing { latency_us: latency.summary(), histogram: latency.encode() }
    }

    fn of_hosts(parts: &[&Timing]) -> Result<Timing, Error> {
        let mut all = Latency::default();
        for part in parts.iter().filter(|p| !p.histogram.is_empty()) {
            all.merge(&Latency::decode(&part.histogram)?);
        }
        Ok(Timing::from_latency(&all))
    }
}

record! {
    /// Times of what makes a step.
    pub struct Latencies {
        /// One I/O, from its submission to its bytes.
        pub read: Timing = "object";
        /// One sample, from its first I/O to its last checked byte.
        pub sample: Timing = "object";
        /// One accelerator's step, from asking for its batch to the end of the barrier.
        pub step: Timing = "object";
    }
}

record! {
    /// Time of the accelerators in which they didn't compute, in accelerator-seconds.
    pub struct Waited {
        /// Waiting for bytes from storage.
        pub storage_s: f64 = "accelerator-seconds", sum;
        /// Waiting for bytes to be parsed and checked.
        pub parse_s: f64 = "accelerator-seconds", sum;
        /// Waiting for a free CPU of the client.
        pub cpu_s: f64 = "accelerator-seconds", sum;
        /// Waiting for the other accelerators.
        pub barrier_s: f64 = "accelerator-seconds", sum;
    }
}

record! {
    /// Headroom of this client.
    pub struct Headroom {
        /// Cores of the client that this run kept busy.
        pub cores_busy: Option<f64> = "cores, or null", sum;
        /// Share of their time that the workers were busy.
        pub workers_busy_pct: Option<f64> = "%, or null", most;
        /// Whether the client and not the storage was the bottleneck.
        pub client_limited: bool = "true or false";
        /// The evidence.
        pub why: String = "text";
    }
}

record! {
    /// Memory of the client.
    pub struct TrainingMemory {
        /// Additional memory per accelerator.
        pub per_accelerator: Option<u64> = "bytes, or null", most;
        /// Peak resident memory in all.
        pub rss: Option<u64> = "bytes, or null", sum;
    }
}

record! {
    /// Result of a search for one number of accelerators.
    pub struct CurvePoint {
        /// Emulated accelerators.
        pub accelerators: u32 = "count";
        /// The utilisation that they reached.
        pub au_pct: Option<f64> = "%, or null";
        /// Whether this is enough to pass.
        pub passes: bool = "true or false";
    }
}

/// Values of fields that a record lacks.
impl Default for Training {
    fn default() -> Self {
        Training::of_spec(&EmulateSpec::default(), 0, 0)
    }
}

impl Training {
    /// Settings of `spec`, nothing measured yet.
    pub fn of_spec(spec: &EmulateSpec, files: u32, steps: u32) -> Training {
        let workload = &spec.workload;
        Training {
            label: LABEL.into(),
            workload: workload.name.clone(),
            version: workload.version.clone(),
            accelerator: workload.accelerator.clone(),
            accelerators: spec.accelerators,
            hosts: 1,
            rule_set: spec.rules,
            level: spec.level,
            decode: spec.decode,
            loader: workload.loader,
            format: workload.format.clone(),
            batch: workload.batch,
            compute_s: workload.compute_s,
            record_bytes: workload.record_bytes,
            files,
            samples_per_file: workload.samples_per_file,
            seed: spec.seed,
            prefetch: spec.prefetch,
            batches_ahead: spec.batches_ahead(),
            read_threads: spec.read_threads,
            destination: spec.destination.clone(),
            au_pct: None,
            au_pct_min: workload.au_pct_min,
            passes: false,
            samples_per_s: None,
            throughput_mib_s: None,
            steps,
            epochs_asked: spec.epochs,
            epochs: Vec::new(),
            by_rules: Vec::new(),
            rules: Vec::new(),
            read_bytes: 0,
            payload_bytes: 0,
            samples: 0,
            skipped: Skipped::default(),
            latency: Latencies::default(),
            waited: Waited::default(),
            headroom: Headroom::default(),
            memory_bytes: TrainingMemory::default(),
            start_to_first_step_s: None,
            curve: Vec::new(),
        }
    }

    /// Adds an epoch. `accelerators` holds one entry for each of this host; all of them passed the same barriers.
    pub fn push_epoch(&mut self, accelerators: &[rules::Steps], read_bytes: u64) {
        let start_ns = accelerators.iter().map(|a| a.start_ns).min().unwrap_or(0);
        let end_ns = accelerators.iter().map(|a| a.end_ns).max().unwrap_or(start_ns);
        let by_rules = self
            .comparable()
            .into_iter()
            .map(|rules| rules::of_epoch(rules, accelerators, self.batch))
            .collect::<Vec<_>>();
        let own = figures_of(&by_rules, self.rule_set);
        self.epochs.push(Epoch {
            epoch: self.epochs.len() as u32 + 1,
            steps: accelerators.iter().map(|a| a.steps).min().unwrap_or(0),
            seconds: (end_ns - start_ns) as f64 / 1e9,
            au_pct: own.and_then(|f| f.au_pct),
            samples_per_s: own.and_then(|f| f.samples_per_s),
            read_bytes,
            by_rules,
            accelerators: accelerators.iter().map(Span::from_steps).collect(),
        });
        self.waited.barrier_s += accelerators.iter().map(|a| a.barrier_ns).sum::<u64>() as f64 / 1e9;
        self.sum_epochs();
    }

    /// Brings the totals up to the epochs.
    pub fn sum_epochs(&mut self) {
        let of = |rules: RuleSet| {
            let epochs: Vec<(Figures, f64)> = self
                .epochs
                .iter()
                .filter_map(|e| figures_of(&e.by_rules, rules).map(|figures| (figures, e.seconds)))
                .collect();
            rules::of_epochs(rules, &epochs)
        };
        self.by_rules = self.comparable().into_iter().map(of).collect();
        let own = figures_of(&self.by_rules, self.rule_set);
        let share = self.delivered_share();
        // Accelerators that computed on nothing weren't kept busy by this storage.
        self.au_pct = own.and_then(|f| f.au_pct).filter(|_| share > 0.0);
        self.samples_per_s = own.and_then(|f| f.samples_per_s).map(|rate| rate * share);
        let rule_set = self.rule_set;
        for epoch in &mut self.epochs {
            let own = figures_of(&epoch.by_rules, rule_set);
            epoch.samples_per_s = own.and_then(|f| f.samples_per_s).map(|rate| rate * share);
        }
        self.throughput_mib_s = self.samples_per_s.map(|rate| rate * self.record_bytes / (1u64 << 20) as f64);
        self.rules.retain(|verdict| !["au", "delivered", "complete"].contains(&verdict.id.as_str()));
        let verdicts = [Some(self.au_verdict()), self.delivered_verdict(), self.complete_verdict()];
        self.rules.splice(0..0, verdicts.into_iter().flatten());
        let own = |verdict: &&Verdict| ["au", "delivered", "complete"].contains(&verdict.id.as_str());
        self.passes = self.rules.iter().filter(own).all(|verdict| verdict.ok);
    }

    /// The rule sets whose figures this run has: another edition's formula is comparable where batches were read ahead as it has
    /// them read. By the text `prefetch` batches are; by the editions' own loaders more.
    fn comparable(&self) -> Vec<RuleSet> {
        let alike = |rules: &RuleSet| {
            *rules == self.rule_set
                || self.batches_ahead <= self.prefetch.max(1)
                || (*rules == RuleSet::Text) == (self.rule_set == RuleSet::Text)
        };
        RuleSet::ALL.into_iter().filter(alike).collect()
    }

    /// Returns the share of the samples that steps were made of that was read.
    fn delivered_share(&self) -> f64 {
        match self.samples + self.skipped.count {
            0 => 1.0,
            all => self.samples as f64 / all as f64,
        }
    }

    fn delivered_verdict(&self) -> Option<Verdict> {
        let skipped = self.skipped.count;
        let wanted = self.samples as f64 * self.record_bytes;
        let why = if skipped > 0 {
            let all = self.samples + skipped;
            format!("{skipped} of {all} samples couldn't be read and were skipped")
        } else if self.format == "hdf5" && (self.payload_bytes as f64) < SMALLEST_SHARE * wanted {
            let (found, each) =
                (readable_bytes(self.payload_bytes), readable_bytes(self.record_bytes as u64));
            format!("the {} samples that were read have {found} in all, not {each} each", self.samples)
        } else {
            return None;
        };
        Some(Verdict { id: "delivered".into(), ok: false, why })
    }

    fn complete_verdict(&self) -> Option<Verdict> {
        let asked = self.epochs_asked as usize;
        let whole = self.epochs.iter().filter(|epoch| epoch.steps >= self.steps).count();
        (whole < asked).then(|| {
            let why = format!("{whole} of {asked} epochs were finished");
            Verdict { id: "complete".into(), ok: false, why }
        })
    }

    fn au_verdict(&self) -> Verdict {
        let ok = self.au_pct.is_some_and(|au| au >= self.au_pct_min);
        let why = match self.au_pct {
            None if self.delivered_share() == 0.0 => "nothing was read".into(),
            None => format!("too few steps for the formula of {}", self.rule_set.name()),
            Some(au) => {
                format!("AU {au:.2} % by {}; it takes {:.0} %", self.rule_set.name(), self.au_pct_min)
            }
        };
        Verdict { id: "au".into(), ok, why }
    }

    /// One host's part as `result.hosts` shows it.
    pub fn of_host(&self) -> serde_json::Value {
        serde_json::json!({
            "accelerators": self.accelerators, "au_pct": self.au_pct, "samples_per_s": self.samples_per_s,
            "throughput_mib_s": self.throughput_mib_s, "samples": self.samples, "read_bytes": self.read_bytes,
            "steps": self.epochs.iter().map(|e| e.steps).sum::<u32>(), "waited": self.waited, "headroom": self.headroom,
            "step_us": self.latency.step.latency_us,
        })
    }

    fn key(&self) -> impl PartialEq + std::fmt::Debug + '_ {
        let workload = (&self.workload, &self.version, &self.accelerator, &self.format, self.batch);
        let data = (self.files, self.samples_per_file, self.compute_s.to_bits(), self.record_bytes.to_bits());
        let run =
            (self.rule_set, self.level, self.loader, self.seed, self.prefetch, self.read_threads, self.steps);
        (workload, data, run, (&self.destination, self.decode))
    }

    /// One run of several hosts. Refuses hosts that ran something else, or with another number of accelerators.
    pub fn of_hosts(parts: &[&Training]) -> Result<Training, Error> {
        let refuse = |found: String| Err(Error::request("merging emulated runs", found, "parts of one run"));
        let Some(first) = parts.first() else { return refuse("there are none".into()) };
        if let Some(at) = parts.iter().position(|p| p.key() != first.key()) {
            return refuse(format!("host {at} ran {:?}, host 0 {:?}", parts[at].key(), first.key()));
        }
        if let Some(other) = parts.iter().find(|p| p.accelerators != first.accelerators) {
            let found =
                format!("{} accelerators on one host, {} on another", first.accelerators, other.accelerators);
            return refuse(format!("{found}: the rules require the same number on each"));
        }
        let mut merged = Training {
            epochs: merge_epochs(parts),
            skipped: merge_skipped(parts),
            latency: Latencies {
                read: Timing::of_hosts(&each(parts, |p| &p.latency.read))?,
                sample: Timing::of_hosts(&each(parts, |p| &p.latency.sample))?,
                step: Timing::of_hosts(&each(parts, |p| &p.latency.step))?,
            },
            waited: Waited::merged(&each(parts, |p| &p.waited)),
            headroom: merge_headroom(parts),
            memory_bytes: TrainingMemory::merged(&each(parts, |p| &p.memory_bytes)),
            ..(*first).clone()
        };
        merged.merge(parts);
        merged.sum_epochs();
        Ok(merged)
    }
}

/// That part of each host's.
fn each<'a, T>(parts: &[&'a Training], part: fn(&'a Training) -> &'a T) -> Vec<&'a T> {
    parts.iter().map(|p| part(p)).collect()
}

fn figures_of(all: &[Figures], rules: RuleSet) -> Option<Figures> {
    all.iter().find(|f| f.rule_set == rules).copied()
}

fn merge_epochs(parts: &[&Training]) -> Vec<Epoch> {
    let count = parts.iter().map(|p| p.epochs.len()).min().unwrap_or(0);
    (0..count)
        .map(|n| {
            let own: Vec<(&Epoch, u32)> = parts.iter().map(|p| (&p.epochs[n], p.accelerators)).collect();
            let of = |rules: RuleSet| {
                let hosts: Vec<(Figures, u32)> =
                    own.iter().filter_map(|(e, n)| Some((figures_of(&e.by_rules, rules)?, *n))).collect();
                rules::of_hosts(rules, &hosts)
            };
            let by_rules: Vec<Figures> = parts[0].comparable().into_iter().map(of).collect();
            let chosen = figures_of(&by_rules, parts[0].rule_set);
            Epoch {
                epoch: n as u32 + 1,
                steps: own.iter().map(|(e, _)| e.steps).min().unwrap_or(0),
                seconds: own.iter().map(|(e, _)| e.seconds).fold(0.0, f64::max),
                au_pct: chosen.and_then(|f| f.au_pct),
                samples_per_s: chosen.and_then(|f| f.samples_per_s),
                read_bytes: own.iter().map(|(e, _)| e.read_bytes).sum(),
                by_rules,
                accelerators: Vec::new(),
            }
        })
        .collect()
}

fn merge_skipped(parts: &[&Training]) -> Skipped {
    let mut skipped = Skipped::merged(&each(parts, |p| &p.skipped));
    skipped.examples.truncate(Skipped::EXAMPLES_MAX);
    skipped
}

/// One host that sets the pace sets it for all, as every step waits for it.
fn merge_headroom(parts: &[&Training]) -> Headroom {
    let limited = parts.iter().position(|p| p.headroom.client_limited);
    let shown = &parts[limited.unwrap_or(0)].headroom;
    Headroom {
        client_limited: limited.is_some(),
        why: match limited {
            Some(host) if parts.len() > 1 => format!("host {host}: {}", shown.why),
            _ => shown.why.clone(),
        },
        ..Headroom::merged(&each(parts, |p| &p.headroom))
    }
}

#[cfg(test)]
mod tests {
    use super::rules::{Step, Steps};
    use super::*;
    use crate::training::Workload;

    fn spec(accelerators: u32) -> EmulateSpec {
        let workload = Workload {
            name: "unet3d".into(),
            batch: 7,
            record_bytes: 1048576.0,
            samples_per_file: 1,
            au_pct_min: 90.0,
            ..Workload::default()
        };
        EmulateSpec {
            workload,
            accelerators,
            ranks: accelerators,
            rules: RuleSet::V10,
            ..EmulateSpec::default()
        }
    }

    /// One accelerator's epoch of `waits` ms, each with 90 ms of computation.
    fn steps(waits: &[u64]) -> Steps {
        let mut all = Steps::begin(0);
        let mut now = 0;
        for wait in waits {
            let (wait_ns, compute_ns) = (wait * 1_000_000, 90_000_000);
            now += wait_ns + compute_ns;
            all.push(Step { wait_ns, compute_ns, process_ns: wait_ns + compute_ns, barrier_ns: 0 }, now);
        }
        all
    }

    fn part(waits: &[u64]) -> Training {
        let mut part = Training::of_spec(&spec(2), 100, waits.len() as u32);
        part.push_epoch(&[steps(waits), steps(waits)], 1000);
        part.read_bytes = 1000;
        let mut step = Latency::default();
        step.record_n(100_000, 4);
        part.latency.step = Timing::from_latency(&step);
        part
    }

    // promise: TRA-42
    #[test]
    fn a_run_passes_at_the_threshold_and_says_why_not_below() {
        let passing = part(&[500, 10, 10]);
        assert!(passing.passes && (passing.au_pct.unwrap() - 90.0).abs() < 1e-9, "{passing:?}");
        assert_eq!(passing.throughput_mib_s, passing.samples_per_s);
        let failing = part(&[0, 30, 10]);
        assert!(!failing.passes);
        assert_eq!((failing.rules.len(), failing.rules[0].ok), (1, false));
        assert_eq!(failing.rules[0].why, "AU 81.82 % by v1.0; it takes 90 %");
    }

    #[test]
    fn hosts_add_up_and_their_histograms_merge() {
        let (a, b) = (part(&[0, 10, 10]), part(&[0, 10, 10]));
        let merged = Training::of_hosts(&[&a, &b]).unwrap();
        assert_eq!((merged.accelerators, merged.hosts, merged.read_bytes), (4, 2, 2000));
        assert_eq!(merged.epochs[0].au_pct.unwrap().round(), 90.0);
        let (one, both) = (a.samples_per_s.unwrap(), merged.samples_per_s.unwrap());
        assert!((both - 2.0 * one).abs() < 1e-9);
        assert_eq!(Latency::decode(&merged.latency.step.histogram).unwrap().count(), 8);
        assert_eq!(merged.rules.len(), 1);
    }

    // promise: TRA-4
    #[test]
    fn unequal_hosts_are_refused() {
        let a = part(&[0, 10, 10]);
        let mut fewer = a.clone();
        fewer.accelerators = 1;
        let error = Training::of_hosts(&[&a, &fewer]).unwrap_err();
        assert!(error.found.contains("2 accelerators on one host, 1 on another"), "{error}");
        let mut other = a.clone();
        other.seed += 1;
        assert!(Training::of_hosts(&[&a, &other]).is_err());
        assert!(Training::of_hosts(&[]).is_err());
    }

    #[test]
    fn a_host_that_sets_the_pace_is_named() {
        let a = part(&[0, 10, 10]);
        let mut b = a.clone();
        b.headroom = Headroom { client_limited: true, why: "both cores busy".into(), ..Headroom::default() };
        let merged = Training::of_hosts(&[&a, &b]).unwrap();
        assert!(merged.headroom.client_limited && merged.headroom.why == "host 1: both cores busy");
    }

    #[test]
    fn json_round_trips() {
        let part = part(&[0, 10, 10]);
        let text = serde_json::to_string(&part).unwrap();
        assert_eq!(serde_json::from_str::<Training>(&text).unwrap(), part);
    }
}
