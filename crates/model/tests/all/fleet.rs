//! Hosts over shared storage: against arithmetic, and against the simulation that follows every request.

use super::fleets::{self, fleet, outcome};
use forebay_model::device::DriveModel;
use forebay_model::simulate::fleet::{
    play, Fault, Fleet, HostRate, Job, Outcome, Requests, Shape, Trained, Training, Work,
};
use forebay_model::simulate::mean_value_analysis;
use forebay_model::training::simulate::{file_sizes, simulate, Setup};
use forebay_model::training::{EmulateSpec, Loader, Workload};
use proptest::prelude::*;

const COMPUTE_S: f64 = 0.1;
const BATCH_BYTES: f64 = 4.0 * 25e6;

fn workload() -> Workload {
    Workload {
        name: "test".into(),
        version: "1.0".into(),
        accelerator: "x".into(),
        loader: Loader::PyTorch,
        format: "npz".into(),
        batch: 4,
        compute_s: COMPUTE_S,
        record_bytes: BATCH_BYTES / 4.0,
        samples_per_file: 1,
        files: 4,
        read_threads: 2,
        prefetch: 2,
        epochs: 1,
        ..Workload::default()
    }
}

fn way(drive_s: f64, host_s: f64) -> HostRate {
    fleets::way(drive_s, host_s, 8)
}

fn training(accelerators: u32, files: u32) -> Training {
    Training {
        workload: workload(),
        accelerators,
        files,
        overhead_s: 0.0,
        compute: None,
        requests: None,
        sizes: false,
    }
}

fn job(hosts: u32, own: bool, work: Training, way: HostRate) -> Job {
    fleets::job(hosts, own, Work::Training(Box::new(work)), way)
}

fn trained(outcome: &Outcome) -> &Trained {
    outcome.jobs[0].training.as_ref().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Without jitter a step takes the longer of computing with its overhead, and reading at the bottleneck.
    #[test]
    fn steps_take_the_longer_of_computing_and_reading(
        hosts in 1u32..12, accelerators in 1u32..9, drives in 1u32..9, load in 0.3f64..3.0,
        overhead_s in 0.0f64..0.02, own in any::<bool>(),
    ) {
        let readers = f64::from(if own { 1 } else { hosts });
        let step_bytes = BATCH_BYTES * f64::from(accelerators);
        let drive_s = load * readers * step_bytes / COMPUTE_S / f64::from(drives);
        let ranks = hosts * accelerators;
        let work = Training { overhead_s, ..training(accelerators, ranks * 4 * 100) };
        let pools = vec![f64::from(drives); if own { hosts as usize } else { 1 }];
        let reported = outcome(&fleet(pools, vec![job(hosts, own, work, way(drive_s, 1e15))], 60.0));
        let step_s = (COMPUTE_S + overhead_s).max(COMPUTE_S / load);
        let au = 100.0 * COMPUTE_S / step_s;
        let found = trained(&reported).au_pct.unwrap();
        // An epoch of 100 steps begins with nothing read.
        prop_assert!((found / au - 1.0).abs() < 0.03, "{found} {au}");
        let bytes = trained(&reported).steps as f64 * step_bytes * f64::from(hosts);
        prop_assert!((reported.jobs[0].bytes / bytes - 1.0).abs() < 0.15);
    }

    /// The same run with every request followed through a modelled drive: the same utilisation, though one knows
    /// streams, requests and a drive's inside, and the other how fast a host reads with so many requests in flight.
    // promise: PLN-11
    #[test]
    fn a_host_is_as_busy_as_where_every_request_is_followed(accelerators in 1u32..5, load in 0.5f64..1.6, seed in 0u64..99) {
        let demand = f64::from(accelerators) * BATCH_BYTES / COMPUTE_S;
        let text = format!("d7-ps1010?read_mb_s={}&latency_us=100&channels=4096", load * demand / 1e6);
        let model = DriveModel::parse(&text).unwrap();
        let (in_flight, command) = (64u32, 128u64 << 10);
        let files = accelerators * 4 * 60;
        let spec = EmulateSpec {
            workload: workload(), data: vec!["model".into()], accelerators, ranks: accelerators, seed,
            prefetch: 2, read_threads: 2, ..EmulateSpec::default()
        };
        let setup = Setup { files: file_sizes(&spec.workload, files, seed), in_flight, io_bytes: command };
        let followed = simulate(&spec, &model, &setup, &mut || true).unwrap();
        let service_s = command as f64 / model.read_bandwidth_bytes_s;
        let rate = mean_value_analysis(model.read_latency_s, &[service_s], in_flight) * command as f64;
        let flat = HostRate { drives: vec![0.5, 1.0], bytes_s: vec![rate / 2.0, rate], pressure: 1.0 };
        let reported = outcome(&fleet(vec![1.0], vec![job(1, true, training(accelerators, files), flat)], 60.0));
        let epoch = &followed.training.epochs[0];
        let au = epoch.by_rules.iter().find(|f| f.rule_set.name() == "text").unwrap().au_pct.unwrap();
        let found = trained(&reported).au_pct.unwrap();
        prop_assert!((found - au).abs() < 3.0, "{found} {au} at load {load}");
    }
}

#[test]
fn the_same_seed_plays_the_same_and_another_one_another() {
    let jittered = |seed| {
        let mut work = training(4, 4 * 4 * 8 * 50);
        work.compute = Some(Shape::Lognormal(0.1));
        work.requests = Some(Requests { shape: Shape::Exponential, in_flight: 32.0, bytes: 1e6 });
        let mut fleet = fleet(vec![8.0], vec![job(8, false, work, way(4e9, 1e15))], 30.0);
        fleet.seed = seed;
        outcome(&fleet)
    };
    assert_eq!(jittered(1), jittered(1));
    assert_ne!(trained(&jittered(1)).au_pct, trained(&jittered(2)).au_pct);
}

#[test]
fn a_step_of_many_waits_for_the_slowest_of_all() {
    // Of n exponential times the longest is the n-th harmonic number on the mean.
    for (hosts, accelerators) in [(1, 8), (25, 8)] {
        let mut work = training(accelerators, hosts * accelerators * 4 * 400);
        work.compute = Some(Shape::Exponential);
        let plenty = way(1e15, 1e15);
        let reported = outcome(&fleet(vec![1.0], vec![job(hosts, false, work, plenty)], 200.0));
        let harmonic: f64 = (1..=hosts * accelerators).map(|k| 1.0 / f64::from(k)).sum();
        let found = trained(&reported).au_pct.unwrap();
        assert!((found * harmonic / 100.0 - 1.0).abs() < 0.06, "{found} {harmonic}");
    }
}

#[test]
fn long_requests_hold_batches_up_where_many_hosts_must_be_whole() {
    let au = |requests| {
        let mut work = training(1, 64 * 4 * 200);
        work.requests = requests;
        // Just enough, and little read ahead.
        work.workload.prefetch = 1;
        work.workload.read_threads = 1;
        let reported = outcome(&fleet(vec![64.0], vec![job(64, false, work, way(1.1e9, 1e15))], 60.0));
        trained(&reported).au_pct.unwrap()
    };
    let requests = Requests { shape: Shape::Pareto(1.0), in_flight: 16.0, bytes: 1e6 };
    let (even, uneven) = (au(None), au(Some(requests)));
    assert!(uneven < even - 3.0, "{even} {uneven}");
}

#[test]
fn a_slow_drive_slows_all_for_as_long_as_it_is_slow() {
    let work = training(1, 4 * 4 * 2000);
    let mut fleet = fleet(vec![4.0], vec![job(4, false, work, way(1.1e9, 1e15))], 100.0);
    let healthy = outcome(&fleet);
    fleet.faults = vec![
        Fault::Drives { at_s: 20.0, pool: 0, drives: 2.0 },
        Fault::Drives { at_s: 60.0, pool: 0, drives: 4.0 },
    ];
    let hurt = outcome(&fleet);
    let rate = |outcome: &Outcome, from: usize, to: usize| {
        (outcome.series[to].bytes[0] - outcome.series[from].bytes[0]) / 10.0 / (to - from) as f64
    };
    assert!((rate(&hurt, 2, 5) / 2.2e9 - 1.0).abs() < 0.01);
    assert!((rate(&hurt, 6, 8) / rate(&healthy, 6, 8) - 1.0).abs() < 0.02);
    assert!((hurt.drive_s - (400.0 - 80.0)).abs() < 1e-6);
    let (a, b) = (trained(&healthy).au_pct.unwrap(), trained(&hurt).au_pct.unwrap());
    assert!((b / (a * (0.6 + 0.4 * 0.55)) - 1.0).abs() < 0.05, "{a} {b}");
}

#[test]
fn all_wait_for_a_host_that_went_and_go_on_without_it_where_they_may() {
    let play_with = |back_s, without_s| {
        let work = training(2, 4 * 8 * 1000);
        let mut fleet = fleet(vec![4.0], vec![job(4, false, work, way(4e9, 1e15))], 100.0);
        fleet.faults = vec![Fault::Host { at_s: 30.0, job: 0, host: 1, back_s, without_s }];
        outcome(&fleet)
    };
    let (gone, back, without) =
        (play_with(None, None), play_with(Some(50.0), None), play_with(None, Some(50.0)));
    let steps = |outcome: &Outcome| trained(outcome).steps as f64 * COMPUTE_S;
    assert!((steps(&gone) - 30.0).abs() < 1.0 && (trained(&gone).stalled_s - 70.0).abs() < 1.0);
    assert!((trained(&gone).au_pct.unwrap() - 30.0).abs() < 1.5);
    assert!((steps(&back) - 80.0).abs() < 1.0, "{}", steps(&back));
    assert!((steps(&without) - 80.0).abs() < 1.0, "{}", steps(&without));
    let samples = 300.0 * 4.0 * 8.0 + 500.0 * 3.0 * 8.0;
    assert!((trained(&without).samples as f64 / samples - 1.0).abs() < 0.02);
    // Four hosts for 30 s and three for 50 s are busy; the three lose 20 s.
    for (reported, au) in [(&back, 80.0), (&without, 100.0 * 270.0 / 330.0)] {
        assert!((trained(reported).au_pct.unwrap() - au).abs() < 1.5, "{:?}", trained(reported));
    }
}

#[test]
fn jobs_that_come_and_go_take_turns_at_the_drives() {
    let work = training(4, 4 * 4 * 4000);
    let reads = Job {
        name: "reads".into(),
        hosts: vec![0],
        way: way(1e9, 1e15),
        start_s: 30.0,
        stop_s: Some(60.0),
        work: Work::Reads,
    };
    // Enough for the training alone; with an equal beside it there is half of that.
    let reported = outcome(&fleet(vec![4.0], vec![job(1, false, work, way(1e9, 1e15)), reads], 100.0));
    assert_eq!(reported.jobs[1].seconds, 30.0);
    assert!((reported.jobs[1].bytes / 30.0 / 2e9 - 1.0).abs() < 0.01, "{}", reported.jobs[1].bytes);
    let beside = reported.series[4].bytes[0] - reported.series[3].bytes[0];
    assert!((beside / 10.0 / 2e9 - 1.0).abs() < 0.01, "{beside}");
    assert_eq!(reported.series[2].bytes[1], 0.0);
}

#[test]
fn an_interrupted_play_keeps_what_it_has() {
    let work = training(1, 16 * 4 * 1000);
    let whole = fleet(vec![1.0], vec![job(16, false, work, way(1e12, 1e15))], 5000.0);
    let mut asked = 0;
    let reported = play(&whole, &mut |_| {
        asked += 1;
        asked < 3
    })
    .unwrap();
    assert!(reported.interrupted && reported.seconds > 0.0 && reported.seconds < 5000.0);
    assert!(trained(&reported).steps > 0 && trained(&reported).au_pct.unwrap() > 90.0);
}

#[test]
fn what_cannot_be_is_refused() {
    let sound = fleet(vec![4.0], vec![job(2, false, training(1, 800), way(1e9, 1e15))], 10.0);
    assert!(sound.check().is_ok());
    let changed = |change: fn(&mut Fleet)| {
        let mut fleet = sound.clone();
        change(&mut fleet);
        play(&fleet, &mut |_| true).unwrap_err()
    };
    for error in [
        changed(|f| f.duration_s = f64::NAN),
        changed(|f| f.interval_s = 1e-9),
        changed(|f| f.pools = vec![0.0]),
        changed(|f| f.jobs.clear()),
        changed(|f| f.jobs[0].hosts[1] = 3),
        changed(|f| f.jobs[0].hosts.clear()),
        changed(|f| f.jobs[0].way.bytes_s[2] = -1.0),
        changed(|f| f.jobs[0].stop_s = Some(0.0)),
        changed(|f| f.faults.push(Fault::Drives { at_s: 1.0, pool: 1, drives: 1.0 })),
        changed(|f| f.faults.push(Fault::Host { at_s: 1.0, job: 0, host: 2, back_s: None, without_s: None })),
        changed(|f| {
            f.faults.push(Fault::Host { at_s: 1.0, job: 0, host: 0, back_s: Some(0.5), without_s: None })
        }),
        changed(|f| {
            let Work::Training(work) = &mut f.jobs[0].work else { return };
            work.files = 1;
        }),
        changed(|f| {
            let Work::Training(work) = &mut f.jobs[0].work else { return };
            work.accelerators = u32::MAX;
        }),
        Fleet::from_json("{\"seed\": 1, \"nonsense\": 2}").unwrap_err(),
    ] {
        assert!(!error.next.is_empty(), "{error}");
    }
}
