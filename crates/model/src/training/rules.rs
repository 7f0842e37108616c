//! From the times of steps to utilisation and throughput, by each edition's arithmetic.
//!
//! Every accelerator goes through an epoch in steps: it waits for a batch, computes on it, and waits at a barrier
//! for the others. What the editions of MLPerf Storage's tool make of it, per accelerator and epoch, with n steps,
//! `first` the time from the epoch's start of loading to the end of the first computation, and `all` the epoch's
//! time from before loading to behind the last barrier:
//!
//! | | busy | counted time | samples/s |
//! |---|---|---|---|
//! | v1.0 | n - 1 computations | all - first | n batches / all |
//! | v2.0 | n - 1 computations | all - first | n - 2 batches / counted time |
//! | v3.0 | n - 1 computations | all - first | n - 1 batches / counted time |
//! | text | n computations | all - the first wait | n batches / all |
//!
//! Utilisation is busy / counted time. In the tool it is averaged over accelerators and then over epochs; samples/s are summed
//! over accelerators and averaged over epochs. By the text, which speaks of totals, sums are divided by sums.
//! The tool's v2.0 and v3.0 take a computation as long as its sleep really took, so that a client that wakes late
//! counts as busy; here a computation is what the workload says in every edition.
//! MiB/s are samples/s times the nominal sample, never bytes that were read.

use super::spec::{RuleSet, Workload};
use crate::schema::record;

const MIB: f64 = (1u64 << 20) as f64;

/// One step of one accelerator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Time from requesting the batch to having it.
    pub wait_ns: u64,
    /// Computation time, as given by the workload.
    pub compute_ns: u64,
    /// From asking for the batch to the end of the computation: `wait_ns + compute_ns`, and what a late timer adds.
    pub process_ns: u64,
    /// Time from the end of the computation until all accelerators had finished theirs.
    pub barrier_ns: u64,
}

/// One accelerator's epoch: sums, which all formulas need, and the first step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Steps {
    /// Before loading began; behind the last barrier.
    pub start_ns: u64,
    pub end_ns: u64,
    pub steps: u32,
    pub first: Step,
    pub wait_ns: u64,
    pub compute_ns: u64,
    pub barrier_ns: u64,
}

impl Steps {
    pub fn begin(start_ns: u64) -> Self {
        Steps { start_ns, end_ns: start_ns, ..Steps::default() }
    }

    /// Counts a step that ended, its barrier included, at `end_ns`.
    #[inline]
    pub fn push(&mut self, step: Step, end_ns: u64) {
        if self.steps == 0 {
            self.first = step;
        }
        self.steps += 1;
        self.wait_ns += step.wait_ns;
        self.compute_ns += step.compute_ns;
        self.barrier_ns += step.barrier_ns;
        self.end_ns = end_ns;
    }
}

record! {
    /// Figures of a rule set for some accelerators' epoch, or for several epochs.
    #[derive(Copy)]
    pub struct Figures {
        /// `v1.0`, `v2.0`, `v3.0` or `text`.
        pub rule_set: RuleSet = "text";
        /// Null if the rule set counts no step.
        pub au_pct: Option<f64> = "%, or null";
        /// Null if the rule set counts no step.
        pub samples_per_s: Option<f64> = "samples/s, or null";
        /// Computation time that counts, over all accelerators.
        pub busy_s: f64 = "s";
        /// The time that it is divided by, over all accelerators.
        pub counted_s: f64 = "s";
    }
}

impl Figures {
    /// `samples_per_s` in nominal MiB/s.
    pub fn mib_s(&self, workload: &Workload) -> Option<f64> {
        self.samples_per_s.map(|rate| rate * workload.record_bytes / MIB)
    }
}

/// Steps that enter utilisation, and those that enter samples/s.
fn counted_steps(rules: RuleSet, steps: u32) -> (u32, u32) {
    match rules {
        RuleSet::V10 => (steps.saturating_sub(1), steps),
        RuleSet::V20 => (steps.saturating_sub(1), steps.saturating_sub(2)),
        RuleSet::V30 => (steps.saturating_sub(1), steps.saturating_sub(1)),
        RuleSet::Text => (steps, steps),
    }
}

/// (busy ns, counted ns, samples/s) of one accelerator's epoch. Zeroes and None where the rule set counts nothing.
fn of_one(rules: RuleSet, epoch: &Steps, batch: u32) -> (u64, u64, Option<f64>) {
    let (for_au, for_rate) = counted_steps(rules, epoch.steps);
    let all = epoch.end_ns.saturating_sub(epoch.start_ns);
    let (busy, left_out) = match rules {
        RuleSet::Text => (epoch.compute_ns, epoch.first.wait_ns),
        _ => (epoch.compute_ns - epoch.first.compute_ns, epoch.first.process_ns),
    };
    let counted = all.saturating_sub(left_out);
    let span = match rules {
        RuleSet::V10 | RuleSet::Text => all,
        RuleSet::V20 | RuleSet::V30 => counted,
    };
    let samples = f64::from(for_rate) * f64::from(batch);
    let rate = (for_rate > 0 && span > 0).then(|| samples * 1e9 / span as f64);
    if for_au > 0 {
        (busy, counted, rate)
    } else {
        (0, 0, rate)
    }
}

/// One epoch of some accelerators.
pub fn of_epoch(rules: RuleSet, accelerators: &[Steps], batch: u32) -> Figures {
    // By the text busy time is added up before it is divided; by the code each accelerator has its share first.
    let (mut busy_ns, mut counted_ns, mut pct_sum, mut rate_sum) = (0u64, 0u64, Some(0.0), Some(0.0));
    for epoch in accelerators {
        let (busy, counted, rate) = of_one(rules, epoch, batch);
        busy_ns += busy;
        counted_ns += counted;
        pct_sum = pct_sum.zip(pct(busy, counted)).map(|(sum, pct)| sum + pct);
        rate_sum = rate_sum.zip(rate).map(|(sum, rate): (f64, f64)| sum + rate);
    }
    let some = !accelerators.is_empty();
    let au_pct = match rules {
        RuleSet::Text => pct(busy_ns, counted_ns),
        _ => pct_sum.map(|sum: f64| sum / accelerators.len() as f64),
    };
    Figures {
        rule_set: rules,
        au_pct: au_pct.filter(|_| some),
        samples_per_s: rate_sum.filter(|_| some),
        busy_s: busy_ns as f64 / 1e9,
        counted_s: counted_ns as f64 / 1e9,
    }
}

fn pct(busy_ns: u64, counted_ns: u64) -> Option<f64> {
    (counted_ns > 0).then(|| 100.0 * busy_ns as f64 / counted_ns as f64)
}

/// Several epochs of the same accelerators. By the text, `seconds` are the epochs' own.
pub fn of_epochs(rules: RuleSet, epochs: &[(Figures, f64)]) -> Figures {
    // An epoch that was cut off in its first steps has no figure; the others have theirs all the same.
    let mean = |value: fn(&Figures) -> Option<f64>| {
        let values: Vec<f64> = epochs.iter().filter_map(|(figures, _)| value(figures)).collect();
        (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
    };
    let busy_s = epochs.iter().map(|(f, _)| f.busy_s).sum();
    let counted_s: f64 = epochs.iter().map(|(f, _)| f.counted_s).sum();
    let (au_pct, samples_per_s) = match rules {
        RuleSet::Text => {
            let seconds: f64 = epochs.iter().map(|(_, seconds)| seconds).sum();
            let samples: Option<f64> = epochs.iter().map(|(f, s)| f.samples_per_s.map(|rate| rate * s)).sum();
            (
                (counted_s > 0.0).then(|| 100.0 * busy_s / counted_s),
                samples.filter(|_| seconds > 0.0).map(|n| n / seconds),
            )
        }
        _ => (mean(|f| f.au_pct), mean(|f| f.samples_per_s)),
    };
    Figures { rule_set: rules, au_pct, samples_per_s, busy_s, counted_s }
}

/// The same epoch (or epochs) of several hosts; each with its number of accelerators.
pub fn of_hosts(rules: RuleSet, hosts: &[(Figures, u32)]) -> Figures {
    let busy_s = hosts.iter().map(|(f, _)| f.busy_s).sum();
    let counted_s: f64 = hosts.iter().map(|(f, _)| f.counted_s).sum();
    let count: u32 = hosts.iter().map(|(_, n)| n).sum();
    let weighted: Option<f64> = hosts.iter().map(|(f, n)| f.au_pct.map(|au| au * f64::from(*n))).sum();
    let au_pct = match rules {
        RuleSet::Text => (counted_s > 0.0).then(|| 100.0 * busy_s / counted_s),
        _ => weighted.filter(|_| count > 0).map(|sum| sum / f64::from(count)),
    };
    let samples_per_s: Option<f64> = hosts.iter().map(|(f, _)| f.samples_per_s).sum();
    Figures { rule_set: rules, au_pct, samples_per_s: samples_per_s.filter(|_| count > 0), busy_s, counted_s }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn step(wait: u64, compute: u64, barrier: u64) -> Step {
        let process_ns = (wait + compute) * MS;
        Step { wait_ns: wait * MS, compute_ns: compute * MS, process_ns, barrier_ns: barrier * MS }
    }

    fn epoch(steps: &[Step]) -> Steps {
        let mut epoch = Steps::begin(5 * MS);
        let mut now = 5 * MS;
        for s in steps {
            now += s.process_ns + s.barrier_ns;
            epoch.push(*s, now);
        }
        epoch
    }

    fn close(found: Option<f64>, right: f64) -> bool {
        found.is_some_and(|f| (f - right).abs() < 1e-9 * right.abs().max(1.0))
    }

    // promise: TRA-2
    #[test]
    fn four_steps_by_hand() {
        // Waits 100, 10, 0, 40; computes 50 each; barriers 5, 0, 0, 5: 360 ms in all. Batches of 8.
        let one = epoch(&[step(100, 50, 5), step(10, 50, 0), step(0, 50, 0), step(40, 50, 5)]);
        assert_eq!(one.end_ns - one.start_ns, 360 * MS);
        // All but the first step's 150: 210 ms with three computations.
        let right = [
            (RuleSet::V10, 150.0 / 210.0, 32.0 / 0.360),
            (RuleSet::V20, 150.0 / 210.0, 16.0 / 0.210),
            (RuleSet::V30, 150.0 / 210.0, 24.0 / 0.210),
            (RuleSet::Text, 200.0 / 260.0, 32.0 / 0.360),
        ];
        for (rules, au, rate) in right {
            let found = of_epoch(rules, &[one], 8);
            assert!(close(found.au_pct, 100.0 * au), "{rules:?}: {found:?}");
            assert!(close(found.samples_per_s, rate), "{rules:?}: {found:?}");
            let workload = Workload { record_bytes: 131_072.0, ..Workload::default() };
            assert!(close(found.mib_s(&workload), rate / 8.0));
        }
    }

    #[test]
    fn accelerators_are_averaged_and_their_samples_summed() {
        // The second waits 50 less in its first step, and 50 more at the first barrier.
        let a = epoch(&[step(100, 50, 0), step(0, 50, 0)]);
        let b = epoch(&[step(50, 50, 50), step(0, 50, 0)]);
        let found = of_epoch(RuleSet::V10, &[a, b], 4);
        assert!(close(found.au_pct, 100.0 * (50.0 / 50.0 + 50.0 / 100.0) / 2.0), "{found:?}");
        assert!(close(found.samples_per_s, 2.0 * 8.0 / 0.2), "{found:?}");
        let text = of_epoch(RuleSet::Text, &[a, b], 4);
        assert!(close(text.au_pct, 100.0 * 200.0 / (100.0 + 150.0)), "{text:?}");
    }

    // promise: TRA-2
    #[test]
    fn epochs_are_averaged_by_the_code_and_added_up_by_the_text() {
        let fast = epoch(&[step(0, 50, 0), step(0, 50, 0), step(0, 50, 0)]);
        let slow = epoch(&[step(0, 50, 0), step(150, 50, 0), step(150, 50, 0)]);
        for (rules, right) in [(RuleSet::V10, (100.0 + 25.0) / 2.0), (RuleSet::Text, 100.0 * 300.0 / 600.0)] {
            let each = [fast, slow].map(|e| (of_epoch(rules, &[e], 1), (e.end_ns - e.start_ns) as f64 / 1e9));
            assert!(close(of_epochs(rules, &each).au_pct, right), "{rules:?}");
        }
        let each =
            [fast, slow].map(|e| (of_epoch(RuleSet::Text, &[e], 2), (e.end_ns - e.start_ns) as f64 / 1e9));
        assert!(close(of_epochs(RuleSet::Text, &each).samples_per_s, 12.0 / 0.6));
    }

    #[test]
    fn an_epoch_too_short_for_the_formula_has_no_figure() {
        let one = epoch(&[step(10, 50, 0)]);
        let found = |rules| of_epoch(rules, &[one], 1);
        assert_eq!((found(RuleSet::V10).au_pct, found(RuleSet::V20).samples_per_s), (None, None));
        assert_eq!(found(RuleSet::V30).samples_per_s, None);
        assert!(close(found(RuleSet::V10).samples_per_s, 1.0 / 0.06));
        assert!(close(found(RuleSet::Text).au_pct, 100.0));
        // The tool's v2.0 says 0 for two steps and less than nothing for one.
        let two = epoch(&[step(10, 50, 0), step(10, 50, 0)]);
        assert_eq!(of_epoch(RuleSet::V20, &[two], 1).samples_per_s, None);
        for rules in RuleSet::ALL {
            assert_eq!((of_epoch(rules, &[], 1).au_pct, of_epochs(rules, &[]).au_pct), (None, None));
            assert_eq!(of_hosts(rules, &[]).samples_per_s, None);
        }
    }

    #[test]
    fn an_epoch_cut_off_in_its_first_step_takes_no_figure_from_the_others() {
        let whole = epoch(&[step(10, 50, 0); 5]);
        let cut = epoch(&[step(10, 50, 0)]);
        for rules in RuleSet::ALL {
            let each = [whole, cut].map(|e| (of_epoch(rules, &[e], 1), 0.3));
            let found = of_epochs(rules, &each);
            assert!(found.au_pct.is_some() && found.samples_per_s.is_some(), "{rules:?}: {found:?}");
            if rules != RuleSet::Text {
                assert!(close(found.au_pct, each[0].0.au_pct.unwrap()), "{rules:?}: {found:?}");
            }
        }
    }

    // promise: TRA-4
    #[test]
    fn hosts_together_are_what_one_host_with_all_accelerators_is() {
        let ranks: Vec<Steps> = (1..=5)
            .map(|n| epoch(&[step(10 * n, 50, 60 - 10 * n), step(n, 50, 6 - n), step(0, 50, 6)]))
            .collect();
        for rules in RuleSet::ALL {
            let whole = of_epoch(rules, &ranks, 3);
            let parts = [(of_epoch(rules, &ranks[..2], 3), 2), (of_epoch(rules, &ranks[2..], 3), 3)];
            let merged = of_hosts(rules, &parts);
            assert!(close(merged.au_pct, whole.au_pct.unwrap()), "{rules:?}");
            assert!(close(merged.samples_per_s, whole.samples_per_s.unwrap()), "{rules:?}");
        }
    }
}
