//! Order of calls to the driver. While a window is being registered every other call of the driver waits, and a
//! registrar that goes on at once keeps winning the driver's lock: workers would find their copies long done and the
//! link idle. So between two windows it lets those go first who wait.

use forebay_io::monotonic_now;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::OnceLock;
use std::thread::Thread;
use std::time::Duration;

#[derive(Default)]
pub struct Turns {
    /// Workers that call the driver now, wait to do so, or were just woken to do so.
    wanting: AtomicU32,
    registrar: OnceLock<Thread>,
    parked: AtomicBool,
}

/// A worker's turn with the driver.
pub struct Turn<'a>(&'a Turns);

impl Turns {
    pub fn enter(&self) -> Turn<'_> {
        self.promise();
        Turn(self)
    }

    /// Announces a turn.
    pub fn promise(&self) {
        self.wanting.fetch_add(1, Ordering::SeqCst);
    }

    /// A turn, or the promise of one, is over.
    pub fn done(&self) {
        if self.wanting.fetch_sub(1, Ordering::SeqCst) == 1 && self.parked.load(Ordering::SeqCst) {
            if let Some(thread) = self.registrar.get() {
                thread.unpark();
            }
        }
    }

    /// The registrar's: waits until nobody wants a turn, and no longer than `at_most`.
    pub(crate) fn give_way(&self, at_most: Duration) {
        self.registrar.get_or_init(std::thread::current);
        let until = monotonic_now() + at_most;
        self.parked.store(true, Ordering::SeqCst);
        while self.wanting.load(Ordering::SeqCst) > 0 {
            let left = until.saturating_duration_since(monotonic_now());
            if left.is_zero() {
                break;
            }
            std::thread::park_timeout(left);
        }
        self.parked.store(false, Ordering::SeqCst);
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.done();
    }
}
