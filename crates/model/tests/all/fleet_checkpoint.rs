//! Checkpoints of many hosts, played: against arithmetic, and with hosts and drives that fail meanwhile.

use super::fleets::{self, fleet, job, outcome};
use forebay_model::simulate::fleet::{Checkpoint, Fault, HostRate, Outcome, Saved, Work};
use proptest::prelude::*;

fn way(drive_s: f64, host_s: f64) -> HostRate {
    fleets::way(drive_s, host_s, 40)
}

fn checkpoint(bytes: f64, write_way: HostRate) -> Checkpoint {
    Checkpoint { bytes, writes: 3, reads: 2, pause_s: 5.0, write_way }
}

fn saved(outcome: &Outcome) -> &Saved {
    outcome.jobs[0].checkpoint.as_ref().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Compares with the bytes that each host has to write, at the rate of its part of the drives or of its own way,
    /// whichever is less.
    // promise: PLN-11
    #[test]
    fn a_checkpoint_takes_its_bytes_at_the_rate_of_the_narrowest(
        hosts in 1u32..40, drives in 1u32..20, bytes in 1e9f64..1e12, write in 1e8f64..1e10, faster in 1.0f64..4.0,
        host_s in 1e8f64..5e10, own in any::<bool>(),
    ) {
        let each = f64::from(drives) / if own { 1.0 } else { f64::from(hosts) };
        let seconds = |rate: f64| bytes / (rate * each).min(host_s);
        let pools = vec![f64::from(drives); if own { hosts as usize } else { 1 }];
        let work = Work::Checkpoint(checkpoint(bytes, way(write, host_s)));
        let (writes, reads) = (seconds(write), seconds(write * faster));
        let all = 3.0 * writes + 2.0 * reads + 4.0 * 5.0;
        let reported = outcome(&fleet(pools.clone(), vec![job(hosts, own, work.clone(), way(write * faster, host_s))], all * 1.1));
        let found = saved(&reported);
        prop_assert_eq!((found.write_s.len(), found.read_s.len()), (3, 2));
        prop_assert!(found.write_s.iter().all(|s| (s / writes - 1.0).abs() < 0.01), "{:?} {writes}", found.write_s);
        prop_assert!(found.read_s.iter().all(|s| (s / reads - 1.0).abs() < 0.01), "{:?} {reads}", found.read_s);
        prop_assert!((found.written_bytes / (3.0 * bytes * f64::from(hosts)) - 1.0).abs() < 1e-6);
        prop_assert!((reported.jobs[0].bytes / (5.0 * bytes * f64::from(hosts)) - 1.0).abs() < 1e-6);
        // Cut short before the last one is whole, it isn't counted.
        let short = outcome(&fleet(pools, vec![job(hosts, own, work, way(write * faster, host_s))], all - reads * 0.5));
        prop_assert_eq!((saved(&short).write_s.len(), saved(&short).read_s.len()), (3, 1));
    }
}

/// Four hosts on drives of their own that write 10 GB at 1 GB/s, with a fault.
fn with(fault: Option<Fault>) -> Outcome {
    let work = Work::Checkpoint(checkpoint(10e9, way(1e9, 1e15)));
    let mut fleet = fleet(vec![1.0; 4], vec![job(4, true, work, way(2e9, 1e15))], 1000.0);
    fleet.faults.extend(fault);
    outcome(&fleet)
}

// promise: PLN-11
#[test]
fn a_checkpoint_waits_for_a_host_that_goes_and_comes_again_or_for_ever() {
    let near = |found: &[f64], expected: &[f64]| {
        assert_eq!(found.len(), expected.len(), "{found:?}");
        assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 0.01), "{found:?} {expected:?}");
    };
    near(&saved(&with(None)).write_s, &[10.0, 10.0, 10.0]);
    let away = |at_s, back_s| Some(Fault::Host { at_s, job: 0, host: 2, back_s, without_s: None });
    near(&saved(&with(away(4.0, Some(24.0)))).write_s, &[30.0, 10.0, 10.0]);
    // Gone in the pause, it begins late.
    near(&saved(&with(away(12.0, Some(20.0)))).write_s, &[10.0, 15.0, 10.0]);
    let ever = with(away(17.0, None));
    near(&saved(&ever).write_s, &[10.0]);
    near(&saved(&ever).read_s, &[]);
    assert!(saved(&ever).written_bytes > 70e9);
    let slow = with(Some(Fault::Drives { at_s: 5.0, pool: 1, drives: 0.5 }));
    near(&saved(&slow).write_s, &[15.0, 20.0, 20.0]);
    near(&saved(&slow).read_s, &[10.0, 10.0]);
}

#[test]
fn a_checkpoint_beside_readers_gets_its_part_of_the_drives() {
    let work = Work::Checkpoint(checkpoint(10e9, way(1e9, 1e15)));
    let jobs = vec![job(1, false, work, way(2e9, 1e15)), job(1, false, Work::Reads, way(2e9, 1e15))];
    let reported = outcome(&fleet(vec![1.0], jobs, 1000.0));
    assert!(saved(&reported).write_s.iter().all(|s| (s - 20.0).abs() < 0.1), "{:?}", saved(&reported));
    assert!(saved(&reported).read_s.iter().all(|s| (s - 10.0).abs() < 0.1), "{:?}", saved(&reported));
    assert!(reported.jobs[1].checkpoint.is_none());
}

#[test]
fn a_checkpoint_that_cannot_be_is_refused() {
    let fleet_of = |work: Checkpoint| {
        fleet(vec![1.0], vec![job(1, false, Work::Checkpoint(work), way(1e9, 1e15))], 10.0)
    };
    let good = checkpoint(1e9, way(1e9, 1e15));
    assert!(fleet_of(good.clone()).check().is_ok());
    assert!(fleet_of(Checkpoint { bytes: 0.0, ..good.clone() }).check().is_err());
    assert!(fleet_of(Checkpoint { bytes: f64::NAN, ..good.clone() }).check().is_err());
    assert!(fleet_of(Checkpoint { writes: 0, ..good.clone() }).check().is_err());
    assert!(fleet_of(Checkpoint { reads: u32::MAX, ..good.clone() }).check().is_err());
    assert!(fleet_of(Checkpoint { pause_s: -1.0, ..good.clone() }).check().is_err());
    assert!(fleet_of(Checkpoint { write_way: way(-1.0, 1.0), ..good.clone() }).check().is_err());
    // A checkpoint without one of its hosts is never whole.
    let mut fleet = fleet_of(good);
    fleet.faults.push(Fault::Host { at_s: 1.0, job: 0, host: 0, back_s: None, without_s: Some(2.0) });
    assert!(fleet.check().is_err());
}
