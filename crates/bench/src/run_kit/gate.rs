//! Barrier in front of threads: they start together, once all are ready, or not at all.

use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Holds threads back until their work begins or is called off.
#[derive(Default)]
pub struct Gate {
    state: Mutex<GateState>,
    /// Threads wait for this at the gate.
    opened: Condvar,
    /// The leader of a team waits for this: one of its threads has come, or has ended.
    changed: Condvar,
}

#[derive(Default)]
struct GateState {
    /// Threads that have come to the gate.
    came: u32,
    /// Threads of a team that have ended.
    ended: u32,
    /// None while it is shut, then the start, or no start at all.
    begin: Option<Option<Instant>>,
}

impl Gate {
    /// Waits until the gate opens. Returns the start, or None if there is none.
    pub fn pass(&self) -> Option<Instant> {
        let mut state = self.lock();
        state.came += 1;
        self.changed.notify_one();
        loop {
            if let Some(begin) = state.begin {
                return begin;
            }
            state = self.opened.wait(state).expect("no thread panics while it holds the gate");
        }
    }

    /// Lets all threads go, with the start that they count from.
    pub fn open(&self, begin: Instant) {
        self.lock().begin = Some(Some(begin));
        self.opened.notify_all();
    }

    /// Lets all threads go that still wait, with no start.
    pub(crate) fn call_off(&self) {
        self.lock().begin.get_or_insert(None);
        self.opened.notify_all();
    }

    /// Counts a thread that has ended.
    pub(super) fn one_ended(&self) {
        self.lock().ended += 1;
        self.changed.notify_one();
    }

    /// Returns whether any of `threads` hasn't ended.
    pub(super) fn has_any_of(&self, threads: u32) -> bool {
        self.lock().ended < threads
    }

    /// Waits until each of `threads` has come to the gate, or ended before.
    pub(super) fn await_arrival(&self, threads: u32) {
        let is_missing = |state: &mut GateState| state.came + state.ended < threads;
        drop(self.changed.wait_while(self.lock(), is_missing));
    }

    /// Waits until all of `threads` have ended, for at most `time`.
    pub(super) fn await_end(&self, threads: u32, time: Duration) {
        let is_working = |state: &mut GateState| state.ended < threads;
        drop(self.changed.wait_timeout_while(self.lock(), time, is_working));
    }

    fn lock(&self) -> MutexGuard<'_, GateState> {
        self.state.lock().expect("no thread panics while it holds the gate")
    }
}
