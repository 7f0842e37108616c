//! A gateway with its RPC socket, as a command runs it: started, asked, brought to rest, stopped.

mod ask;

use super::config::{rpc_path, Config, Controller, Namespace, Qos, Subsystem};
use super::handle::Gateway;
use super::metrics::Exporter;
use super::rpc::{Control, Server};
use super::socket::listen_at;
use super::stats::Stats;
use super::supervisor::Supervisor;
use crate::target::log::{Log, Sink};
use forebay_io::monotonic_now;
use forebay_model::Error;
use std::net::SocketAddr;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub struct Service {
    gateway: Arc<Gateway>,
    rpc: Option<Server>,
    metrics: Option<Exporter>,
}

impl Service {
    /// `rpc`: in place of the configuration's. `sink` gets the log's lines, on a thread of its own.
    ///
    /// # Errors
    /// `Request`: a configuration that can't be, a source that isn't there, a socket that is taken. `Machine`: no
    /// io_uring, no ublk, no memory.
    pub fn start(config: Config, rpc: Option<&str>, sink: Sink) -> Result<Service, Error> {
        let config = config.with_rpc(rpc)?;
        let gateway = Arc::new(Gateway::start(&config, sink)?);
        let socket = rpc_path(config.rpc.as_deref());
        let listener = socket.map(|path| listen_at(&path).map(|listener| (path, listener))).transpose()?;
        Service::with(gateway, listener, false)
    }

    /// As `start`, in the place of the gateway that runs at the configuration's RPC socket, if one does: all that it has goes
    /// on here, its configuration in place of this one, and hosts notice nothing.
    ///
    /// # Errors
    /// Those of `start`, and what keeps that gateway from giving its place: it serves on.
    pub fn take_over(config: Config, rpc: Option<&str>, sink: Sink) -> Result<Service, Error> {
        let config = config.with_rpc(rpc)?;
        let sink = Arc::new(Mutex::new(sink));
        match ask::take_over(&config, shared(&sink))? {
            None => Service::start(config, None, shared(&sink)),
            Some(ask::Taken { gateway, rpc, path }) => {
                Service::with(Arc::new(gateway), rpc.map(|fd| (path, fd.into())), true)
            }
        }
    }

    /// As `start`, by a process that has a supervisor: in the place of one that was killed, if there was one, as that one was.
    ///
    /// # Errors
    /// Those of `start`.
    pub fn kept(
        config: Config,
        rpc: Option<&str>,
        sink: Sink,
        supervisor: Supervisor,
    ) -> Result<Service, Error> {
        let config = config.with_rpc(rpc)?;
        let (again, supervisor) = (supervisor.is_again(), Arc::new(supervisor));
        let socket = rpc_path(config.rpc.as_deref());
        let (gateway, listener) = match again {
            true => Gateway::go_on(supervisor, sink)?,
            false => (Gateway::start_kept(&config, sink, supervisor)?, None),
        };
        let listener = match (socket, listener) {
            (None, _) => None,
            (Some(path), Some(fd)) => Some((path, fd.into())),
            (Some(path), None) => Some((path.clone(), listen_at(&path)?)),
        };
        let service = Service::with(Arc::new(gateway), listener, again)?;
        service.gateway.tell_serving()?;
        Ok(service)
    }

    /// `patient`: the gateway before this one may have the address of the metrics for a while.
    fn with(
        gateway: Arc<Gateway>,
        rpc: Option<(PathBuf, UnixListener)>,
        patient: bool,
    ) -> Result<Service, Error> {
        let address = gateway.config().metrics_address()?;
        let start = |address| Exporter::start(address, patient, gateway.clone());
        let metrics = address.map(start).transpose()?;
        let Some((path, listener)) = rpc else { return Ok(Service { gateway, rpc: None, metrics }) };
        let (server, door) = Server::begin(&path, listener, gateway.clone())?;
        gateway.set_door(door);
        Ok(Service { gateway, rpc: Some(server), metrics })
    }

    /// Another process has its place: there is nothing left to do here.
    pub fn has_left(&self) -> bool {
        self.gateway.has_left()
    }

    /// Why a thread of it can't go on.
    pub fn failure(&self) -> Option<Error> {
        self.gateway.failure()
    }

    pub fn rpc_path(&self) -> Option<&Path> {
        self.rpc.as_ref().map(Server::path)
    }

    /// Returns the address on which its metrics are served.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics.as_ref().map(Exporter::address)
    }

    pub fn stats(&self) -> Stats {
        self.gateway.stats()
    }

    /// Takes no more RPCs and nothing more from hosts' queues, and waits up to `timeout` for what is in flight. True:
    /// nothing was cut off.
    pub fn drain(&mut self, timeout: Duration) -> bool {
        self.gateway.tell_ending();
        self.rpc = None;
        let until = monotonic_now() + timeout;
        let mut done = true;
        for (_, controller) in self.gateway.config().controllers() {
            let left = until.saturating_duration_since(monotonic_now());
            done &= self.gateway.suspend(&controller.name, left).is_ok();
        }
        done
    }

    pub fn stop(self) {
        drop(self);
    }
}

/// One sink, for whichever gateway comes of it.
fn shared(sink: &Arc<Mutex<Sink>>) -> Sink {
    let sink = sink.clone();
    Box::new(move |entry| {
        if let Ok(mut sink) = sink.lock() {
            sink(entry);
        }
    })
}

impl Control for Gateway {
    fn config(&self) -> Config {
        self.config()
    }

    fn stats(&self) -> Stats {
        self.stats()
    }

    fn subsystem_create(&self, subsystem: &Subsystem) -> Result<(), Error> {
        self.may_change()?;
        self.changed(self.subsystem_create(subsystem))
    }

    fn subsystem_destroy(&self, nqn: &str) -> Result<(), Error> {
        self.may_change()?;
        self.changed(self.subsystem_destroy(nqn))
    }

    fn namespace_create(&self, nqn: &str, namespace: &Namespace) -> Result<u32, Error> {
        self.may_change()?;
        self.changed(self.namespace_create(nqn, namespace))
    }

    fn namespace_destroy(&self, nqn: &str, nsid: u32) -> Result<(), Error> {
        self.may_change()?;
        self.changed(self.namespace_destroy(nqn, nsid))
    }

    fn namespace_set_source(&self, nqn: &str, nsid: u32, namespace: &Namespace) -> Result<(), Error> {
        self.may_change()?;
        self.changed(self.namespace_set_source(nqn, nsid, namespace))
    }

    fn namespace_set_qos(&self, nqn: &str, nsid: u32, qos: Qos) -> Result<(), Error> {
        self.may_change()?;
        self.changed(self.namespace_set_qos(nqn, nsid, qos))
    }

    fn controller_create(&self, nqn: &str, controller: &Controller) -> Result<(), Error> {
        self.may_change()?;
        self.changed(self.controller_create(nqn, controller))
    }

    fn controller_destroy(&self, name: &str, force: bool) -> Result<(), Error> {
        self.may_change()?;
        self.changed(self.controller_destroy(name, force))
    }

    fn attach(&self, name: &str, nsid: u32) -> Result<(), Error> {
        self.may_change()?;
        self.changed(self.attach(name, nsid))
    }

    fn detach(&self, name: &str, nsid: u32) -> Result<(), Error> {
        self.may_change()?;
        self.changed(self.detach(name, nsid))
    }

    fn suspend(&self, name: &str, timeout: Duration) -> Result<(), Error> {
        self.may_change()?;
        self.changed(self.suspend(name, timeout))
    }

    fn resume(&self, name: &str) -> Result<(), Error> {
        self.may_change()?;
        self.changed(self.resume(name))
    }

    fn hand_over(&self, socket: &Path, format: u64) -> Result<(), Error> {
        self.hand_over(socket, format)
    }

    fn log(&self) -> Option<Log> {
        Some(self.log())
    }
}
