//! The sampler: power over spans of a run, and meters that are slow, silent or broken.

use super::scripted::{longer_and_longer, wait_until, Scripted};
use super::{near, NEVER, TICK};
use forebay_io::{PowerMeter, PowerPace, PowerSample, PowerSampler};
use std::sync::{mpsc, Arc, Mutex};
use std::time::{Duration, Instant};

// promise: REC-7
#[test]
fn power_over_a_run_is_energy_over_time() {
    longer_and_longer(|length| {
        let begun = Instant::now();
        let meter = Scripted::quick(move |_| PowerSample::Joules(50.0 * begun.elapsed().as_secs_f64()));
        let mut sampler = PowerSampler::start(vec![Box::new(meter)], NEVER);
        std::thread::sleep(length);
        let powers = sampler.stop(1 << 29);
        let Some(power) = powers.first() else { return Err(format!("{:?}", sampler.failures())) };
        assert_eq!((power.source.as_str(), power.scope.as_str()), ("rapl", "package-0"));
        let seconds = power.joules_per_gib.unwrap() / 2.0 / power.watts_mean;
        let outside = begun.elapsed().as_secs_f64() + 1e-6;
        assert!((length.as_secs_f64() - 1e-6..outside).contains(&seconds), "{seconds} for half a GiB");
        assert!(power.samples >= 2);
        assert!(sampler.failures().is_empty());
        match (power.watts_mean - 50.0).abs() < 1.0 {
            true => Ok(()),
            false => Err(format!("{power:?}")),
        }
    });
}

#[test]
fn spans_are_told_apart() {
    longer_and_longer(|length| {
        let watts = Arc::new(Mutex::new(100.0));
        let (now, mut last, mut joules) = (Arc::clone(&watts), Instant::now(), 0.0);
        let meter = Scripted::quick(move |_| {
            joules += *now.lock().unwrap() * last.elapsed().as_secs_f64();
            last = Instant::now();
            PowerSample::Joules(joules)
        });
        let mut sampler = PowerSampler::start(vec![Box::new(meter)], NEVER);
        let marks = [100.0, 1000.0, 300.0].map(|level| {
            let from = sampler.mark();
            *watts.lock().unwrap() = level;
            std::thread::sleep(length);
            (from, sampler.mark())
        });
        let mean = |powers: Vec<forebay_model::record::Power>| powers.first().map(|p| p.watts_mean);
        let first = mean(sampler.over(&marks[..1], 1));
        let last = mean(sampler.over(&marks[2..], 1));
        // The middle stays out.
        let outer = mean(sampler.stop_over(&[marks[0], marks[2]], 1));
        let found = [(first, 100.0), (last, 300.0), (outer, 200.0)];
        match found.iter().all(|(mean, level)| mean.is_some_and(|m| (m - level).abs() < 0.2 * level)) {
            true => Ok(()),
            false => Err(format!("mean and what it should be: {found:?}")),
        }
    });
}

#[test]
fn a_meter_that_dies_leaves_its_readings_and_its_reason() {
    let mut meter = Scripted::quick(|_| PowerSample::Watts(120.0));
    meter.lives = 3;
    let readings = meter.readings();
    let mut sampler = PowerSampler::start(vec![Box::new(meter)], TICK);
    wait_until("the meter is given up", || readings.are_over());
    let powers = sampler.stop(0);
    assert!(near(powers[0].watts_mean, 120.0));
    assert_eq!(powers[0].samples, 3);
    assert_eq!(powers[0].joules_per_gib, None, "no bytes");
    let (meter, reason) = &sampler.failures()[0];
    assert_eq!(meter, "rapl:package-0");
    assert!(reason.contains("after 3 readings") && reason.contains("went away"), "{reason}");
}

#[test]
fn a_meter_that_never_speaks_is_left_out_with_its_reason() {
    let mut meter = Scripted::quick(|_| PowerSample::Watts(1.0));
    meter.lives = 0;
    let readings = meter.readings();
    let mut sampler = PowerSampler::start(vec![Box::new(meter)], TICK);
    wait_until("the meter is given up", || readings.are_over());
    assert!(sampler.stop(1).is_empty());
    assert_eq!(sampler.failures().len(), 1, "{:?}", sampler.failures());
    assert!(sampler.failures()[0].1.contains("went away"));
}

#[test]
fn one_bad_reading_is_counted_and_survived() {
    let meter = Scripted::quick(|reading| PowerSample::Watts(if reading == 3 { f64::NAN } else { 80.0 }));
    let readings = meter.readings();
    let mut sampler = PowerSampler::start(vec![Box::new(meter)], TICK);
    wait_until("a reading after the bad one is kept", || readings.count() >= 5);
    assert!(near(sampler.stop(1)[0].watts_mean, 80.0));
    assert!(sampler.failures()[0].1.starts_with("1 of "), "{:?}", sampler.failures());
}

/// A meter over a slow bus, which answers 400 W once it is sent something or its sender is gone.
fn slow() -> (mpsc::Sender<()>, Box<dyn PowerMeter>) {
    let (answer, asked) = mpsc::channel();
    let mut meter = Scripted::quick(move |_| {
        let _ = asked.recv();
        PowerSample::Watts(400.0)
    });
    meter.pace = PowerPace::Slow(NEVER);
    (answer, Box::new(meter))
}

#[test]
fn a_slow_meter_holds_nobody_up_and_counts_though_the_run_was_shorter() {
    // To wait for each as long as for a quick meter would take 25 s.
    let (silent, meters): (Vec<_>, Vec<_>) = (0..50).map(|_| slow()).unzip();
    let begun = Instant::now();
    let sampler = PowerSampler::start(meters, TICK);
    sampler.mark();
    assert!(begun.elapsed() < Duration::from_secs(12), "start and mark don't wait for it");
    drop((sampler, silent));

    longer_and_longer(|length| {
        let (answer, meter) = slow();
        let mut sampler = PowerSampler::start(vec![meter], TICK);
        std::thread::sleep(length);
        std::thread::spawn(move || {
            std::thread::sleep(TICK);
            answer.send(())
        });
        let asked = Instant::now();
        let powers = sampler.stop(1 << 30);
        let reported: Vec<_> = powers.iter().map(|power| (power.watts_mean, power.samples)).collect();
        // It waits up to 6 s for a meter that doesn't answer.
        match reported == [(400.0, 1)] && asked.elapsed() < Duration::from_secs(5) {
            true => Ok(()),
            false => Err(format!("{reported:?} after {:?}; {:?}", asked.elapsed(), sampler.failures())),
        }
    });
}

// promise: REC-1
#[test]
fn a_counter_that_stands_still_is_no_zero_watts() {
    longer_and_longer(|length| {
        let meter = Scripted::quick(|_| PowerSample::Joules(5.0));
        let mut sampler = PowerSampler::start(vec![Box::new(meter)], TICK);
        std::thread::sleep(length);
        assert!(sampler.stop(1).is_empty());
        match sampler.failures()[0].1.contains("stood still") {
            true => Ok(()),
            false => Err(format!("{:?}", sampler.failures())),
        }
    });
}
