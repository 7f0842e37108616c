//! SMART / Health log of namespaces: what they did, when they were busy, how warm their drives are.

use forebay_io::{monotonic_now, temperature_c};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A temperature that is older than this is read again.
const FRESH: Duration = Duration::from_secs(10);
/// 0 °C.
const ICE_KELVIN: f64 = 273.15;

/// Minutes in which commands ended.
#[derive(Debug)]
pub struct Busy {
    began: Instant,
    minutes: AtomicU64,
    /// The last one that was counted, and one.
    last: AtomicU64,
}

impl Default for Busy {
    fn default() -> Busy {
        Busy { began: monotonic_now(), minutes: AtomicU64::new(0), last: AtomicU64::new(0) }
    }
}

impl Busy {
    pub fn note(&self, now: Instant) {
        let minute = now.saturating_duration_since(self.began).as_secs() / 60 + 1;
        if self.last.load(Ordering::Relaxed) != minute && self.last.swap(minute, Ordering::Relaxed) != minute
        {
            self.minutes.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn minutes(&self) -> u64 {
        self.minutes.load(Ordering::Relaxed)
    }
}

/// The temperature of the drives below files. A thread reads it, once somebody asks: a sensor takes milliseconds, and a
/// dead drive for ever. So the first who asks is told what was read when it was opened, and who asks later what
/// the one before had read.
#[derive(Debug)]
pub struct Thermometer {
    files: Vec<PathBuf>,
    read: Arc<Reading>,
    asked: Mutex<Option<Instant>>,
}

#[derive(Debug, Default)]
struct Reading {
    /// 0: not known.
    kelvin: AtomicU16,
    under_way: AtomicBool,
}

impl Thermometer {
    pub fn new(files: Vec<PathBuf>) -> Thermometer {
        let thermometer = Thermometer { files, read: Arc::default(), asked: Mutex::new(None) };
        thermometer.kelvin();
        thermometer
    }

    /// As it was last read, in Kelvin; 0 where nothing tells it.
    pub fn kelvin(&self) -> u16 {
        let mut asked = self.asked.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if !self.files.is_empty() && asked.is_none_or(|at| at.elapsed() >= FRESH) {
            *asked = Some(monotonic_now());
            self.read_sensors();
        }
        self.read.kelvin.load(Ordering::Relaxed)
    }

    fn read_sensors(&self) {
        if self.read.under_way.swap(true, Ordering::Relaxed) {
            return;
        }
        let (files, read) = (self.files.clone(), self.read.clone());
        let thread = std::thread::Builder::new().name("forebay-sensor".into()).spawn(move || {
            let warmest = files.iter().filter_map(|file| temperature_c(file)).fold(None, warmer);
            read.kelvin.store(warmest.map_or(0, kelvin), Ordering::Relaxed);
            read.under_way.store(false, Ordering::Relaxed);
        });
        if thread.is_err() {
            self.read.under_way.store(false, Ordering::Relaxed);
        }
    }
}

fn warmer(most: Option<f64>, celsius: f64) -> Option<f64> {
    Some(most.map_or(celsius, |most| most.max(celsius)))
}

fn kelvin(celsius: f64) -> u16 {
    (celsius + ICE_KELVIN).round().clamp(0.0, f64::from(u16::MAX)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise: TGT-13
    #[test]
    fn a_minute_counts_once_whoever_was_busy_in_it() {
        let busy = Busy::default();
        let at = |seconds| busy.began + Duration::from_secs(seconds);
        for (seconds, expected) in [(0, 1), (59, 1), (60, 2), (61, 2), (600, 3)] {
            busy.note(at(seconds));
            busy.note(at(seconds));
            assert_eq!(busy.minutes(), expected, "{seconds} s");
        }
    }

    // promise: TGT-13
    #[test]
    fn degrees_are_told_in_kelvin_and_none_as_zero() {
        assert_eq!([0.0, 36.85, -300.0].map(kelvin), [273, 310, 0]);
        assert_eq!([41.0, 55.5, 30.0].into_iter().fold(None, warmer), Some(55.5));
        assert_eq!(Thermometer::new(Vec::new()).kelvin(), 0, "no file, no drive");
    }
}
