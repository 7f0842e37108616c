//! Fleets of one job, for tests of what is played in them.

use forebay_model::simulate::fleet::{play, Fleet, HostRate, Job, Outcome, Work};

/// One drive gives or takes `drive_s` bytes per second, a host at most `host_s`; `steps` rates for each doubling of the
/// drives, from 2^-10 to 2^10 of them.
pub fn way(drive_s: f64, host_s: f64, steps: i32) -> HostRate {
    let drives: Vec<f64> =
        (-10 * steps..=10 * steps).map(|i| 2f64.powf(f64::from(i) / f64::from(steps))).collect();
    let bytes_s = drives.iter().map(|d| (d * drive_s).min(host_s)).collect();
    HostRate { drives, bytes_s, pressure: 1.0 }
}

/// `own`: each host has a pool of its own.
pub fn job(hosts: u32, own: bool, work: Work, way: HostRate) -> Job {
    let hosts = (0..hosts).map(|h| if own { h } else { 0 }).collect();
    Job { name: "job".into(), hosts, way, start_s: 0.0, stop_s: None, work }
}

pub fn fleet(pools: Vec<f64>, jobs: Vec<Job>, duration_s: f64) -> Fleet {
    Fleet { seed: 7, duration_s, interval_s: duration_s / 10.0, pools, jobs, faults: Vec::new() }
}

pub fn outcome(fleet: &Fleet) -> Outcome {
    play(fleet, &mut |_| true).unwrap()
}
