//! `forebay snap` for Python: a configuration checked, a gateway with its life, and RPCs to one that runs.

use crate::{json, raise};
use forebay_model::Error;
use forebay_serve::gateway::config::Config;
use forebay_serve::gateway::keeper::{self, Keeper};
use forebay_serve::gateway::rpc::{client, VERBS};
use forebay_serve::gateway::service::Service;
use forebay_serve::target::log;
use pyo3::prelude::*;
use std::ffi::OsString;
use std::sync::Mutex;
use std::time::Duration;

/// The configuration with its defaults, as JSON. Opens nothing. `rpc`: a path in place of its own, or off.
#[pyfunction]
#[pyo3(name = "snap_check")]
pub fn check(py: Python<'_>, text: &str, form: &str, rpc: Option<&str>) -> PyResult<String> {
    let checked = read(text, form).and_then(|config| config.with_rpc(rpc));
    json(py, &checked.map_err(|error| raise(py, error))?)
}

/// Runs `words` as a gateway, and again whenever it is killed: what outlives it is this process's. Returns an exit code.
#[pyfunction]
#[pyo3(name = "snap_keep")]
pub fn keep(py: Python<'_>, words: Vec<OsString>, log: &str, warnings_only: bool) -> PyResult<i32> {
    let sink = log::to_stderr(log, warnings_only);
    py.detach(|| keeper::keep(words, sink)).map_err(|error| raise(py, error))
}

/// Returns the output of `forebay snap rpc WORDS`. Where a signal's handler raises, that is raised, and what was
/// waited for is its cause.
#[pyfunction]
#[pyo3(name = "snap_rpc")]
pub fn rpc(py: Python<'_>, words: Vec<String>) -> PyResult<String> {
    let mut raised = None;
    let mut go_on = || {
        raised = Python::attach(|py| py.check_signals().err());
        raised.is_none()
    };
    let done = py.detach(|| client::run(&words, &mut go_on));
    done.map_err(|error| match raised {
        Some(raised) => {
            raised.set_cause(py, Some(raise(py, error)));
            raised
        }
        None => raise(py, error),
    })
}

/// (verb, its flags) of each RPC.
#[pyfunction]
#[pyo3(name = "snap_verbs")]
pub fn verbs() -> Vec<(&'static str, Vec<String>)> {
    VERBS.iter().map(|verb| (verb.name, client::flags(verb))).collect()
}

fn read(text: &str, form: &str) -> Result<Config, Error> {
    if form == "toml" {
        Config::from_toml(text)
    } else {
        Config::from_json(text)
    }
}

/// Drives that are there until `stop`, or until it is let go of.
#[pyclass(frozen)]
pub struct Gateway {
    running: Mutex<Option<Service>>,
}

#[pymethods]
impl Gateway {
    /// `log`: text, json or off, on stderr. `rpc`: a path in place of the configuration's, or off. `take_over`: in the place of
    /// the gateway that runs there.
    #[new]
    fn start(
        py: Python<'_>,
        text: &str,
        form: &str,
        log: &str,
        warnings_only: bool,
        rpc: Option<&str>,
        take_over: bool,
    ) -> PyResult<Gateway> {
        let sink = log::to_stderr(log, warnings_only);
        let started = py.detach(|| match (Keeper::here()?, take_over) {
            (Some(keeper), _) => Service::kept(read(text, form)?, rpc, sink, keeper),
            (None, true) => Service::take_over(read(text, form)?, rpc, sink),
            (None, false) => Service::start(read(text, form)?, rpc, sink),
        });
        Ok(Gateway { running: Mutex::new(Some(started.map_err(|error| raise(py, error))?)) })
    }

    /// Returns the path of its RPC socket.
    fn rpc_path(&self, py: Python<'_>) -> PyResult<Option<String>> {
        self.with(py, |s| s.rpc_path().map(|p| p.display().to_string()))
    }

    fn metrics_address(&self, py: Python<'_>) -> PyResult<Option<String>> {
        self.with(py, |s| s.metrics_address().map(|a| a.to_string()))
    }

    fn stats(&self, py: Python<'_>) -> PyResult<String> {
        let stats = self.with(py, |s| s.stats())?;
        json(py, &stats)
    }

    /// Another process has taken over.
    fn has_left(&self, py: Python<'_>) -> PyResult<bool> {
        self.with(py, |s| s.has_left())
    }

    /// Why a thread of it can't go on; hosts of that one have nobody.
    fn failure(&self, py: Python<'_>) -> PyResult<Option<String>> {
        self.with(py, |s| s.failure().map(|e| e.to_string()))
    }

    /// Takes nothing more from hosts' queues, lets commands finish. True: nothing was cut off.
    fn drain(&self, py: Python<'_>, timeout_s: f64) -> PyResult<bool> {
        let timeout = Duration::try_from_secs_f64(timeout_s).unwrap_or(Duration::MAX);
        self.with(py, |s| s.drain(timeout))
    }

    /// Lets go of hosts and sources, waits for the threads. A second call does nothing.
    fn stop(&self, py: Python<'_>) {
        let running = self.running.lock().map(|mut r| r.take()).unwrap_or(None);
        py.detach(|| running.map(Service::stop));
    }
}

impl Gateway {
    /// Without the GIL, which the log's thread and other threads of Python may want meanwhile.
    fn with<T: Send>(&self, py: Python<'_>, call: impl FnOnce(&mut Service) -> T + Send) -> PyResult<T> {
        let done = py.detach(|| match self.running.lock() {
            Ok(mut running) => running.as_mut().map(call).ok_or_else(|| {
                Error::run("the gateway", "has been stopped", "forebay.snap.engine.Gateway again")
            }),
            Err(_) => {
                Err(Error::run("the gateway", "panicked earlier", "report this: it is a bug in Forebay"))
            }
        });
        done.map_err(|error| raise(py, error))
    }
}
