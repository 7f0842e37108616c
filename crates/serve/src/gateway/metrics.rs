//! A gateway's counters in Prometheus's text format, and the address that hands them out.

use super::handle::Gateway;
use super::stats::{ControllerState, QueueStats, Stats};
use crate::target::accept;
use crate::target::metrics::{self, counters, fabric, family, histograms};
use forebay_model::prometheus::escaped;
use forebay_model::Error;
use rustix::event::{eventfd, poll, EventfdFlags, PollFd, PollFlags, Timespec};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Interval at which an address is tried that the previous gateway still holds.
const AGAIN: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
const STATES: [(ControllerState, &str); 5] = [
    (ControllerState::Waiting, "waiting"),
    (ControllerState::Connected, "connected"),
    (ControllerState::Enabled, "enabled"),
    (ControllerState::Suspended, "suspended"),
    (ControllerState::Failed, "failed"),
];

/// Answers requests for a gateway's counters until it is dropped.
pub(crate) struct Exporter {
    address: SocketAddr,
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Exporter {
    /// `patient`: another process may have the address, and will let it go.
    ///
    /// # Errors
    /// `Request`: the address can't be listened at. `Machine`: no descriptor, no thread.
    pub(crate) fn start(
        address: SocketAddr,
        patient: bool,
        gateway: Arc<Gateway>,
    ) -> Result<Exporter, Error> {
        let scarce = |e: String| Error::machine("the metrics", e, "ulimit -n 65536, ulimit -u");
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let stop = Arc::new(eventfd(0, flags).map_err(|e| scarce(e.to_string()))?);
        let listener = match accept::bind("metrics", address) {
            Err(_) if patient => None,
            bound => Some(bound?),
        };
        let local = listener.as_ref().and_then(|l| l.local_addr().ok());
        let stopped = stop.clone();
        let answer = move || {
            let listener = listener.or_else(|| bind_later(address, &stopped));
            listener.iter().for_each(|l| metrics::serve(l, &stopped, &|| render(&gateway.stats())));
        };
        let thread = std::thread::Builder::new().name("metrics".into()).spawn(answer);
        let thread = Some(thread.map_err(|e| scarce(e.to_string()))?);
        Ok(Exporter { address: local.unwrap_or(address), stop, thread })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Once nobody else has the address. None: stopped before.
fn bind_later(address: SocketAddr, stop: &OwnedFd) -> Option<TcpListener> {
    loop {
        let mut fds = [PollFd::new(stop, PollFlags::IN)];
        if matches!(poll(&mut fds, Some(&AGAIN)), Ok(n) if n > 0) {
            return None;
        }
        if let Ok(listener) = accept::bind("metrics", address) {
            return Some(listener);
        }
    }
}

/// All of a snapshot, under the names that a target's counters have where they are the same.
pub(crate) fn render(stats: &Stats) -> String {
    let mut out = String::with_capacity(16 << 10);
    metrics::whole(
        &mut out,
        &[
            ("forebay_uptime_seconds", "gauge", stats.seconds),
            ("forebay_staged_bytes_total", "counter", stats.staged_bytes as f64),
            ("forebay_log_lines_dropped_total", "counter", stats.log_lines_dropped as f64),
            ("forebay_controllers", "gauge", stats.controllers.len() as f64),
        ],
    );
    let mut namespaces = Vec::new();
    for subsystem in &stats.subsystems {
        let nqn = escaped(&subsystem.nqn);
        let labels = |nsid| format!("subsystem=\"{nqn}\",nsid=\"{nsid}\"");
        namespaces.extend(subsystem.namespaces.iter().map(|n| (labels(n.counted.nsid), n)));
    }
    let counted: Vec<_> = namespaces.iter().map(|(l, n)| (l.clone(), &n.counted)).collect();
    metrics::of_namespaces(&mut out, &counted);
    let held_back = namespaces.iter().map(|(l, n)| (l.as_str(), n.held_back));
    family(&mut out, "forebay_namespace_held_back_total", "counter", held_back);
    controllers(&mut out, stats);
    sources(&mut out, &counted, stats);
    out
}

fn controllers(out: &mut String, stats: &Stats) {
    let (mut all, mut states, mut queues) = (Vec::new(), Vec::new(), Vec::new());
    for c in &stats.controllers {
        let labels = format!("subsystem=\"{}\",controller=\"{}\"", escaped(&c.subsystem), escaped(&c.name));
        let state = |(state, name): &(ControllerState, &str)| {
            (format!("{labels},state=\"{name}\""), c.state == *state)
        };
        states.extend(STATES.iter().map(state));
        queues.extend(c.queues.iter().map(|q| (format!("{labels},qid=\"{}\"", q.qid), q)));
        all.push((labels, c));
    }
    let states = states.iter().map(|(l, is)| (l.as_str(), u64::from(*is)));
    family(out, "forebay_controller_state", "gauge", states);
    let mut each = |name: &str, kind: &str, pick: fn(&super::stats::ControllerStats) -> u64| {
        let values = all.iter().map(|(l, c)| (l.as_str(), pick(c)));
        family(out, &format!("forebay_controller_{name}"), kind, values);
    };
    each("connections_total", "counter", |c| c.connections);
    each("resets_total", "counter", |c| c.resets);
    each("protocol_errors_total", "counter", |c| c.protocol_errors);
    each("staged_bytes_total", "counter", |c| c.staged_bytes);
    each("mapped_bytes", "gauge", |c| c.mapped_bytes);
    of_queues(out, &queues);
}

fn of_queues(out: &mut String, all: &[(String, &QueueStats)]) {
    counters(out, "queue", all.iter().map(|(l, q)| (l.as_str(), &q.counts)));
    histograms(out, "queue_read", all.iter().map(|(l, q)| (l.as_str(), &q.read_latency)));
    histograms(out, "queue_write", all.iter().map(|(l, q)| (l.as_str(), &q.write_latency)));
    let in_flight = all.iter().map(|(l, q)| (l.as_str(), q.in_flight.into()));
    family(out, "forebay_queue_in_flight", "gauge", in_flight);
    let interrupts = all.iter().map(|(l, q)| (l.as_str(), q.interrupts));
    family(out, "forebay_queue_interrupts_total", "counter", interrupts);
}

/// Writes the connections of namespaces, and those of block devices, which have their own.
fn sources(out: &mut String, namespaces: &[(String, &crate::target::stats::NamespaceStats)], stats: &Stats) {
    let devices = stats.controllers.iter().flat_map(|c| {
        let nsid = c.namespaces.first().map_or(String::new(), u32::to_string);
        let whose = format!(
            "subsystem=\"{}\",nsid=\"{nsid}\",controller=\"{}\"",
            escaped(&c.subsystem),
            escaped(&c.name)
        );
        c.fabric.iter().map(move |source| (whose.clone(), source))
    });
    let of_namespaces = namespaces.iter().flat_map(|(l, n)| n.fabric.iter().map(move |s| (l.clone(), s)));
    let all: Vec<_> = of_namespaces.chain(devices).collect();
    fabric::render(out, all.iter().map(|(l, source)| (l.as_str(), *source)));
}
