//! Utilisation and throughput against a re-enactment of the published tool's loop, list by list, and against
//! arithmetic for storage of a known rate.

use forebay_model::training::rules::{of_epoch, of_epochs, Steps};
use forebay_model::training::{Lockstep, RuleSet};
use proptest::prelude::*;

/// One accelerator's notebook in the tool: a list entry per step, all in seconds.
#[derive(Default)]
struct Notebook {
    processed: Vec<f64>,
    computed: Vec<f64>,
}

/// Returns the tool's notes where ranks find their batches ready `ready[rank][step]` seconds after the start.
fn play(ready: &[Vec<f64>], compute: f64) -> (Vec<Notebook>, f64) {
    let mut books: Vec<Notebook> = ready.iter().map(|_| Notebook::default()).collect();
    let mut clock = 0.0f64;
    for step in 0..ready[0].len() {
        let asked = clock;
        for (book, ready) in books.iter_mut().zip(ready) {
            let loaded = asked.max(ready[step]);
            book.computed.push(compute);
            book.processed.push(loaded + compute - asked);
            clock = clock.max(loaded + compute);
        }
    }
    (books, clock)
}

/// (AU in per cent, samples/s) of one rank as the tool's editions work it out from its lists.
fn tool(rules: RuleSet, book: &Notebook, all: f64, batch: f64) -> (f64, f64) {
    let n = book.computed.len();
    let (skip_start, skip_end) = (1, 0);
    let window = skip_start..n - skip_end;
    let busy: f64 = book.computed[window.clone()].iter().sum();
    let outside = |list: &[f64]| list[..window.start].iter().chain(&list[window.end..]).sum::<f64>();
    let time = all - outside(&book.processed);
    let rate = match rules {
        RuleSet::V10 => n as f64 / all,
        RuleSet::V20 => (n as f64 - 2.0) / time,
        RuleSet::V30 => window.len() as f64 / time,
        RuleSet::Text => unreachable!("no tool computes it"),
    };
    (100.0 * busy / time, rate * batch)
}

fn ours(ready: &[Vec<f64>], compute: f64) -> Vec<Steps> {
    let ns = |s: f64| (s * 1e9).round() as u64;
    let mut steps = Lockstep::begin(ready.len() as u32, ns(compute), 0);
    for step in 0..ready[0].len() {
        for (rank, of_rank) in ready.iter().enumerate() {
            steps.start(rank as u32, ns(of_rank[step]));
        }
        let at = steps.barrier_ns().expect("all started");
        steps.pass(at);
    }
    steps.into_steps()
}

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-6 * a.abs().max(b.abs()).max(1.0)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    // promise: TRA-2
    #[test]
    fn every_edition_gives_what_its_loop_gives(
        gaps in prop::collection::vec(prop::collection::vec(0.0f64..0.3, 4..30), 1..6),
        compute in 0.001f64..0.2,
    ) {
        let least = gaps.iter().map(Vec::len).min().unwrap();
        let ready: Vec<Vec<f64>> = gaps
            .iter()
            .map(|g| g[..least].iter().scan(0.0, |at, gap| { *at += gap; Some(*at) }).collect())
            .collect();
        let (books, all) = play(&ready, compute);
        let steps = ours(&ready, compute);
        for rules in [RuleSet::V10, RuleSet::V20, RuleSet::V30] {
            let each: Vec<(f64, f64)> = books.iter().map(|b| tool(rules, b, all, 7.0)).collect();
            let au = each.iter().map(|e| e.0).sum::<f64>() / each.len() as f64;
            let rate: f64 = each.iter().map(|e| e.1).sum();
            let found = of_epoch(rules, &steps, 7);
            prop_assert!(near(found.au_pct.unwrap(), au), "{:?}: {:?} for {}", rules, found, au);
            prop_assert!(near(found.samples_per_s.unwrap(), rate), "{:?}: {:?} for {}", rules, found, rate);
        }
    }

    /// Storage that hands on one byte after the other at a known rate, batch by batch.
    // promise: TRA-3
    #[test]
    fn throttled_supply_gives_the_arithmetics_utilisation(
        accelerators in 1usize..20,
        steps in 3usize..40,
        compute in 0.01f64..0.5,
        batch_s in 0.0005f64..0.1,
    ) {
        let ready: Vec<Vec<f64>> = (0..accelerators)
            .map(|rank| (0..steps).map(|step| (step * accelerators + rank + 1) as f64 * batch_s).collect())
            .collect();
        let supply = accelerators as f64 * batch_s;
        let found = of_epoch(RuleSet::V10, &ours(&ready, compute), 1);
        // Where supply sets the pace, a step takes as long as its bytes. Only the first wait of each differs.
        let spread = supply / (compute.max(supply) * (steps - 1) as f64);
        let right = 100.0 * (compute / supply).min(1.0);
        prop_assert!((found.au_pct.unwrap() - right).abs() <= 100.0 * spread + 1e-6, "{:?} for {}", found, right);
        let last = of_epoch(RuleSet::V10, &ours(&ready, compute)[accelerators - 1..], 1);
        prop_assert!(near(last.au_pct.unwrap(), right), "{:?} for {}", last, right);
    }

    // promise: TRA-3
    #[test]
    fn busy_accelerators_are_fully_used_by_every_rule_set(steps in 3u32..50, compute_ns in 1u64..1_000_000_000) {
        let mut lockstep = Lockstep::begin(2, compute_ns, 77);
        for _ in 0..steps {
            lockstep.start(1, 0);
            lockstep.start(0, 0);
            let at = lockstep.barrier_ns().unwrap();
            lockstep.pass(at);
        }
        let all = lockstep.into_steps();
        for rules in RuleSet::ALL {
            let epoch = of_epoch(rules, &all, 1);
            prop_assert_eq!(epoch.au_pct, Some(100.0));
            let both = of_epochs(rules, &[(epoch, 1.0), (epoch, 1.0)]);
            prop_assert!(near(both.au_pct.unwrap(), 100.0), "{:?}", both);
        }
    }
}

#[test]
fn a_barrier_of_other_hosts_counts_against_utilisation_but_not_as_a_wait() {
    let mut lockstep = Lockstep::begin(1, 100, 0);
    for step in 0..3u64 {
        lockstep.start(0, 0);
        assert_eq!(lockstep.barrier_ns(), Some(step * 150 + 100));
        lockstep.pass(step * 150 + 150);
    }
    let steps = lockstep.into_steps();
    assert_eq!((steps[0].wait_ns, steps[0].barrier_ns, steps[0].compute_ns), (0, 150, 300));
    // Two computations in 450 - 100.
    let found = of_epoch(RuleSet::V10, &steps, 1).au_pct.unwrap();
    assert!((found - 100.0 * 200.0 / 350.0).abs() < 1e-9);
}
