//! Barrier in front of threads: they start together, once all are ready, or not at all.

use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Instant;

/// Holds threads back until their work begins or is called off.
#[derive(Default)]
pub struct Gate {
    /// None while they wait, then the start, or no start at all.
    state: Mutex<Option<Option<Instant>>>,
    changed: Condvar,
}

impl Gate {
    /// Waits until the gate opens. Returns the start, or None if there is none.
    pub fn pass(&self) -> Option<Instant> {
        let mut state = self.lock();
        loop {
            if let Some(begin) = *state {
                return begin;
            }
            state = self.changed.wait(state).expect("no thread panics while it holds the gate");
        }
    }

    /// Lets all threads go, with the start that they count from.
    pub fn open(&self, begin: Instant) {
        *self.lock() = Some(Some(begin));
        self.changed.notify_all();
    }

    /// Lets all threads go that still wait, with no start.
    pub fn call_off(&self) {
        self.lock().get_or_insert(None);
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Option<Option<Instant>>> {
        self.state.lock().expect("no thread panics while it holds the gate")
    }
}
