//! The simulation against simpler truths: mean value analysis, the data sheets it
//! was fitted to, and published measurements that it was not.

use forebay_model::device::DriveModel;
use forebay_model::job::{Op, Rounds};
use forebay_model::simulate::{closed_loop, dependent, mean_value_analysis, Load, Outcome};

fn model(text: &str) -> DriveModel {
    DriveModel::parse(text).unwrap()
}

fn run(text: &str, load: Load) -> Outcome {
    closed_loop(&model(text), &load).unwrap()
}

fn off_by_pct(found: f64, right: f64) -> f64 {
    100.0 * (found / right - 1.0)
}

// promise: ENG-9
#[test]
fn throughput_follows_mean_value_analysis_at_every_depth() {
    // Up to as many as the channels hold, the network is a delay and one server: MVA is exact.
    let drive = model("d7-ps1010");
    for io_bytes in [4096u64, 65536, 131072] {
        let service = drive.service_s(Op::Read, io_bytes);
        for depth in [1u32, 4, 9, 17, 24, 32, 64, 200] {
            let expected = mean_value_analysis(drive.read_latency_s, &[service], depth);
            let load = Load {
                depth,
                io_bytes,
                duration_s: 10_000.0 / expected,
                interval_s: 1e-2,
                ..Load::default()
            };
            let found = run("d7-ps1010", load).iops();
            assert!(off_by_pct(found, expected).abs() < 2.0, "{io_bytes} at {depth}: {found} for {expected}");
        }
    }
}

#[test]
fn a_stripe_follows_mean_value_analysis_of_several_servers() {
    let drive = model("d7-ps1010");
    let share = drive.service_s(Op::Read, 131072) / 4.0;
    for depth in [8u32, 32, 100] {
        let expected = mean_value_analysis(drive.read_latency_s, &[share; 4], depth);
        let load = Load {
            op: Op::RandRead,
            depth,
            duration_s: 60_000.0 / expected,
            interval_s: 1e-2,
            ..Load::default()
        };
        let found = run("d7-ps1010?drives=4", load).iops();
        assert!(off_by_pct(found, expected).abs() < 2.0, "{depth}: {found} for {expected}");
    }
}

#[test]
fn the_least_of_two_bounds_overrates_the_knee() {
    // Where latency and bandwidth allow the same rate, drives give a good part less.
    let drive = model("d7-ps1010?latency_us=36");
    let service = drive.service_s(Op::Read, 131072);
    let knee = 5;
    let bound = (f64::from(knee) / (drive.read_latency_s + service)).min(1.0 / service);
    let load = Load { depth: knee, duration_s: 1.0, ..Load::default() };
    let found = run("d7-ps1010?latency_us=36", load).iops();
    assert!(found < 0.85 * bound, "{found} of {bound}");
}

// promise: ENG-9
#[test]
fn presets_give_back_their_data_sheets() {
    for name in DriveModel::names() {
        let drive = model(name);
        // The ideal drives' IOPS are those of 512-byte commands.
        let small = if name.ends_with("ideal") { 512 } else { 4096 };
        let per_s = |bandwidth: Option<f64>| bandwidth.map(|b| b / 131072.0);
        let figures = [
            (Op::Read, 131072, per_s(Some(drive.read_bandwidth_bytes_s))),
            (Op::Write, 131072, per_s(drive.write_bandwidth_bytes_s)),
            (Op::RandRead, small, drive.rand_read_iops),
            (Op::RandWrite, small, drive.rand_write_iops),
        ];
        for (op, io_bytes, figure) in figures {
            let Some(right) = figure else { continue };
            let duration_s = 20_000.0 / right;
            let load =
                Load { workers: 8, depth: 64, op, io_bytes, duration_s, interval_s: 0.1, ..Load::default() };
            let found = run(name, load).iops();
            assert!(off_by_pct(found, right).abs() < 3.0, "{name}, {op:?}: {found} for {right}");
        }
    }
}

/// (I/O size in KiB, workers, GiB/s with the CPU path, GiB/s with GPUDirect Storage):
/// D7-PS1010, sequential reads, local, out of Solidigm's white paper, table 2.
const PUBLISHED: [(u64, u32, f64, f64); 3] =
    [(64, 32, 12.70, 12.38), (512, 24, 13.48, 13.41), (4096, 24, 13.48, 13.48)];

/// The model was fitted to the data sheet only; these cells are its test.
/// Mean absolute error 2.8 %: 7.7 % too high at 64 KiB, within 0.8 % above.
#[test]
fn published_reads_of_the_d7_ps1010_are_predicted() {
    let mut errors = Vec::new();
    for (kib, workers, cpu, gds) in PUBLISHED {
        let load = Load { workers, io_bytes: kib << 10, duration_s: 0.5, ..Load::default() };
        let found = run("d7-ps1010", load).throughput_gib_s();
        for published in [cpu, gds] {
            println!("{kib} KiB: {found:.2} GiB/s for {published} ({:+.1} %)", off_by_pct(found, published));
            errors.push(off_by_pct(found, published).abs());
        }
    }
    let mean = errors.iter().sum::<f64>() / errors.len() as f64;
    println!("mean absolute error {mean:.2} %");
    assert!(mean < 4.0 && errors.iter().all(|e| *e < 10.0), "{errors:?}");
}

#[test]
fn equal_seeds_give_equal_outcomes() {
    let load = Load {
        workers: 3,
        depth: 5,
        op: Op::RandRead,
        read_pct: Some(70),
        io_bytes: 4096,
        duration_s: 0.1,
        interval_s: 0.01,
        ..Load::default()
    };
    assert_eq!(run("d7-ps1010", load.clone()), run("d7-ps1010", load.clone()));
    assert_ne!(run("d7-ps1010", load.clone()).latency, run("d7-ps1010", Load { seed: 8, ..load }).latency);
}

#[test]
fn the_parts_of_an_outcome_agree() {
    let load = Load {
        workers: 2,
        depth: 8,
        op: Op::RandRead,
        read_pct: Some(70),
        io_bytes: 8192,
        duration_s: 0.25,
        interval_s: 0.1,
        ..Load::default()
    };
    let outcome = run("d7-ps1010", load);
    assert_eq!(outcome.bytes, outcome.ios * 8192);
    // What was in flight at the end is in the latency alone.
    assert_eq!((outcome.latency.count(), outcome.late), (outcome.ios + 16, 16));
    let read_share = outcome.read_bytes as f64 / outcome.bytes as f64;
    assert!((read_share - 0.7).abs() < 0.02, "{read_share}");
    let ends: Vec<f64> = outcome.series.iter().map(|p| p.t_s).collect();
    assert_eq!(ends, [0.1, 0.2, 0.25]);
    let lengths = [0.1, 0.1, 0.05];
    let ios: f64 = outcome.series.iter().zip(lengths).map(|(p, length)| p.iops * length).sum();
    assert!((ios - outcome.ios as f64).abs() < 1e-3);
    let drive = model("d7-ps1010");
    let busy = 0.7 * drive.service_s(Op::RandRead, 8192) + 0.3 * drive.service_s(Op::RandWrite, 8192);
    assert!(off_by_pct(outcome.utilisation, outcome.iops() * busy).abs() < 2.0, "{}", outcome.utilisation);
    // Little's law: what is in flight is rate times latency.
    let in_flight = outcome.iops() * outcome.latency.mean_ns() / 1e9;
    assert!((in_flight - 16.0).abs() < 0.1, "{in_flight}");
}

#[test]
fn a_saturated_drive_is_busy_all_the_time_and_no_longer() {
    let load = Load { workers: 24, io_bytes: 4 << 20, duration_s: 0.1, ..Load::default() };
    let busy = run("d7-ps1010", load).utilisation;
    assert!(busy > 0.999 && busy <= 1.0, "{busy}");
}

#[test]
fn loads_out_of_bounds_are_refused_by_name() {
    let drive = model("d7-p5520");
    let cases = [
        ("‹workers›", Load { workers: 0, ..Load::default() }),
        ("‹workers›", Load { workers: u32::MAX, depth: u32::MAX, ..Load::default() }),
        ("‹duration_s›", Load { duration_s: f64::NAN, ..Load::default() }),
        ("‹interval_ms›", Load { interval_s: 0.0, ..Load::default() }),
        ("‹io_bytes›", Load { io_bytes: 0, ..Load::default() }),
        ("the data", Load { data_bytes: 0, op: Op::RandRead, ..Load::default() }),
        ("model:d7-p5520", Load { op: Op::RandRead, ..Load::default() }),
        ("model:d7-p5520", Load { op: Op::RandRead, read_pct: Some(50), ..Load::default() }),
    ];
    for (asked, load) in cases {
        let drive = if asked == "the data" { model("d7-ps1010") } else { drive.clone() };
        let error = closed_loop(&drive, &load).unwrap_err();
        assert!(error.asked.starts_with(asked), "{asked}: {error}");
    }
}

/// The one published run of a vector index on this drive: 141.6 queries a second by one process, of 11.46 MB each, out of which come
/// 7 segments and 200 nodes of 8 KiB in each, its search list. How many of those are read at once isn't published; 4 is assumed.
// promise: BEN-54
#[test]
fn dependent_reads_of_a_d7_ps1010_come_to_the_published_queries() {
    let model = DriveModel::parse("d7-ps1010").unwrap();
    let of = |text: &str, duration_s: f64| {
        let rounds = Rounds::parse(text).unwrap();
        let load = Load { duration_s, ..Load::default() };
        let (outcome, latency) = dependent(&model, &load, &rounds).unwrap();
        assert!(outcome.bytes.abs_diff(latency.count() * rounds.query_bytes()) <= rounds.query_bytes());
        (latency.count() as f64 / duration_s, rounds.query_bytes())
    };
    let (per_s, bytes) = of("hops=50,beam=4,node=8k,segments=7", 1.0);
    assert!(
        (per_s / 141.6 - 1.0).abs() < 0.2 && (bytes as f64 / 11.46e6 - 1.0).abs() < 0.005,
        "{per_s} {bytes}"
    );
    // Every hop waits for the one before: wider beams take fewer of them.
    let (narrow, wide) =
        (of("hops=100,beam=2,node=8k,segments=7", 0.2).0, of("hops=25,beam=8,node=8k,segments=7", 0.2).0);
    assert!(narrow < 0.7 * per_s && wide > 1.4 * per_s, "{narrow} {wide}");
}
