//! `forebay serve` for Python: a configuration checked, and a server with its life.

use crate::{json, raise};
use forebay_model::Error;
use forebay_serve::target::{self, reload, Config};
use forebay_storage::source::Uri;
use pyo3::prelude::*;
use std::sync::Mutex;
use std::time::Duration;

/// The configuration with its defaults, as JSON; keys are hidden. Opens nothing.
#[pyfunction]
#[pyo3(name = "serve_check")]
pub fn check(py: Python<'_>, text: &str, form: &str) -> PyResult<String> {
    let mut config = read(text, form).map_err(|error| raise(py, error))?;
    reload::number(&mut config, None);
    json(py, &config)
}

/// A new DH-HMAC-CHAP secret, transformed with sha256, sha384 or sha512 before use, or none.
#[pyfunction]
pub fn dhchap_secret(py: Python<'_>, transform: &str) -> PyResult<String> {
    forebay_io::auth::generate(transform).map_err(|error| raise(py, error))
}

fn read(text: &str, form: &str) -> Result<Config, Error> {
    let config = if form == "toml" { Config::from_toml(text) } else { Config::from_json(text) }?;
    let mut sources = config.subsystems.iter().flat_map(|s| &s.namespaces).map(|n| &n.source);
    sources.try_for_each(|s| Uri::parse(s).map(drop))?;
    Ok(config)
}

/// A target that runs until `stop`, or until it is let go of.
#[pyclass(frozen)]
pub struct Server {
    running: Mutex<Option<Running>>,
}

struct Running {
    server: target::Server,
    /// Configuration that it serves now, each namespace with its nsid.
    config: Config,
}

#[pymethods]
impl Server {
    /// `log`: text, json or off, on stderr.
    #[new]
    fn start(py: Python<'_>, text: &str, form: &str, log: &str, warnings_only: bool) -> PyResult<Server> {
        let sink = target::log::to_stderr(log, warnings_only);
        let started = py.detach(|| {
            let mut config = read(text, form)?;
            reload::number(&mut config, None);
            Ok(Running { server: target::Server::start(config.clone(), sink)?, config })
        });
        let running = started.map_err(|error| raise(py, error))?;
        Ok(Server { running: Mutex::new(Some(running)) })
    }

    /// Returns the addresses on which it listens over TCP, with the ports that were free.
    fn addresses(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        self.with(py, |r| Ok(r.server.addresses().iter().map(ToString::to_string).collect()))
    }

    /// Returns the addresses over RDMA.
    fn rdma_addresses(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        self.with(py, |r| Ok(r.server.rdma_addresses().iter().map(ToString::to_string).collect()))
    }

    fn metrics_address(&self, py: Python<'_>) -> PyResult<Option<String>> {
        self.with(py, |r| Ok(r.server.metrics_address().map(|a| a.to_string())))
    }

    fn stats(&self, py: Python<'_>) -> PyResult<String> {
        let stats = self.with(py, |r| Ok(r.server.stats()))?;
        json(py, &stats)
    }

    /// Adds and removes namespaces until they are those of this configuration; what changed, as JSON.
    fn reload(&self, py: Python<'_>, text: &str, form: &str) -> PyResult<String> {
        let changed = self.with(py, |r| {
            let mut asked = read(text, form)?;
            reload::number(&mut asked, Some(&r.config));
            let changes = reload::changes(&r.config, &asked)?;
            reload::apply(&r.server, &mut r.config, &changes)?;
            Ok(changes)
        })?;
        json(py, &changed)
    }

    /// Why a thread of it can't go on; hosts of that one have nobody.
    fn failure(&self, py: Python<'_>) -> PyResult<Option<String>> {
        self.with(py, |r| Ok(r.server.failure().map(|e| e.to_string())))
    }

    /// Accepts nothing more, lets commands finish. True: nothing was cut off.
    fn drain(&self, py: Python<'_>, timeout_s: f64) -> PyResult<bool> {
        let timeout = Duration::try_from_secs_f64(timeout_s).unwrap_or(Duration::MAX);
        self.with(py, |r| Ok(r.server.drain(timeout)))
    }

    /// Closes what is left, flushes what was written, waits for the threads. A second call does nothing.
    fn stop(&self, py: Python<'_>) {
        let running = self.running.lock().map(|mut r| r.take()).unwrap_or(None);
        py.detach(|| running.map(|r| r.server.stop()));
    }
}

impl Server {
    /// Without the GIL, which the log's thread and other threads of Python may want meanwhile.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut Running) -> Result<T, Error> + Send,
    ) -> PyResult<T> {
        let done = py.detach(|| match self.running.lock() {
            Ok(mut running) => match running.as_mut() {
                Some(running) => call(running),
                None => {
                    Err(Error::run("the server", "has been stopped", "forebay.serve.engine.Server again"))
                }
            },
            Err(_) => {
                Err(Error::run("the server", "panicked earlier", "report this: it is a bug in Forebay"))
            }
        });
        done.map_err(|error| raise(py, error))
    }
}
