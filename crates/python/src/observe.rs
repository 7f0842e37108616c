//! Python's view of a run under way: progress as JSON, and signals honoured.

use forebay_bench::Observer;
use pyo3::prelude::*;
use serde::Serialize;
use std::sync::atomic::{AtomicBool, Ordering};

/// Set by `_core.stop()`.
pub fn stop_requested() -> &'static AtomicBool {
    static STOP: AtomicBool = AtomicBool::new(false);
    &STOP
}

/// Calls the observer, and ends the run when it raises, when a signal's handler does, or on `stop()`.
pub struct Watcher {
    observer: Option<Py<PyAny>>,
    raised: Option<PyErr>,
}

impl Watcher {
    pub fn new(observer: Option<Py<PyAny>>) -> Watcher {
        Watcher { observer, raised: None }
    }

    /// Takes the exception that the observer or a signal handler raised, for a run that ended before it measured
    /// anything.
    pub fn interruption(&mut self) -> Option<PyErr> {
        self.raised.take()
    }
}

impl<W: Serialize> Observer<W> for Watcher {
    fn progress(&mut self, progress: &W) {
        let Some(observer) = self.observer.as_ref().filter(|_| self.raised.is_none()) else { return };
        let Ok(text) = serde_json::to_string(progress).map(crate::in_flags) else { return };
        self.raised = Python::attach(|py| observer.call1(py, (text,)).err());
    }

    fn stop(&mut self) -> bool {
        if self.raised.is_none() {
            self.raised = Python::attach(|py| py.check_signals().err());
        }
        self.raised.is_some() || stop_requested().load(Ordering::Relaxed)
    }

    fn stop_flag(&self) -> Option<&'static AtomicBool> {
        Some(stop_requested())
    }
}
