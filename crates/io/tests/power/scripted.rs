//! A meter that says what its test tells it to, and ways to wait that hold however late
//! a busy machine lets a thread run.

use forebay_io::{PowerMeter, PowerPace, PowerSample};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time after which an event is taken never to come.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// After `lives` readings it fails.
pub struct Scripted {
    said: Box<dyn FnMut(u32) -> PowerSample + Send>,
    readings: Readings,
    pub lives: u32,
    pub pace: PowerPace,
}

/// Readings that a test takes of a meter that a sampler owns.
#[derive(Clone, Default)]
pub struct Readings(Arc<AtomicU32>);

impl Readings {
    pub fn count(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    /// The thread that read the meter is done with it.
    pub fn are_over(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }
}

impl Scripted {
    pub fn quick(said: impl FnMut(u32) -> PowerSample + Send + 'static) -> Scripted {
        Scripted {
            said: Box::new(said),
            readings: Readings::default(),
            lives: u32::MAX,
            pace: PowerPace::Quick,
        }
    }

    pub fn readings(&self) -> Readings {
        self.readings.clone()
    }
}

impl PowerMeter for Scripted {
    fn source(&self) -> &'static str {
        "rapl"
    }

    fn scope(&self) -> &str {
        "package-0"
    }

    fn sample(&mut self) -> Result<PowerSample, String> {
        let reading = self.readings.0.fetch_add(1, Ordering::Relaxed) + 1;
        match reading > self.lives {
            true => Err("the board went away".into()),
            false => Ok((self.said)(reading)),
        }
    }

    fn pace(&self) -> PowerPace {
        self.pace
    }
}

pub fn wait_until(what: &str, done: impl Fn() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < until, "in {PATIENCE:?} never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Tries ever longer spans of time: a thread that is kept waiting at the end of one distorts
/// a short span and no long one.
pub fn longer_and_longer(mut attempt: impl FnMut(Duration) -> Result<(), String>) {
    let mut length = Duration::from_millis(300);
    while let Err(why) = attempt(length) {
        assert!(length < Duration::from_secs(30), "within {length:?} as in shorter spans: {why}");
        length *= 2;
    }
}
