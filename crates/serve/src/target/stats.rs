//! Snapshot of a target's counters.

pub(crate) use crate::namespace::stats::LatencyStats;
pub use crate::namespace::stats::{Counts, NamespaceStats};
use serde::Serialize;
use std::collections::BTreeMap;

/// Since the server began.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Stats {
    pub seconds: f64,
    /// No new connections: it ends once those that are there have gone.
    pub draining: bool,
    pub connections: u64,
    pub connections_accepted: u64,
    /// Over a limit, or the process had no descriptor left.
    pub connections_refused: u64,
    /// Ended by an error of the protocol, a time-out or a stall.
    pub connections_broken: u64,
    pub log_lines_dropped: u64,
    pub controllers: Vec<ControllerStats>,
    pub subsystems: Vec<SubsystemStats>,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct SubsystemStats {
    pub nqn: String,
    pub namespaces: Vec<NamespaceStats>,
    pub hosts: Vec<HostStats>,
}

/// One host, over all its controllers of the subsystem.
#[derive(Clone, Debug, Default, Serialize)]
pub struct HostStats {
    pub nqn: String,
    pub connections: u64,
    pub counts: Counts,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct ControllerStats {
    pub cntlid: u16,
    pub subsystem: String,
    pub host: String,
    pub address: String,
    /// As granted. None: the host asked for no time-out.
    pub keep_alive_s: Option<f64>,
    /// ANA groups that this host doesn't reach the best way, and the state of each.
    pub ana: BTreeMap<u32, &'static str>,
    pub queues: Vec<QueueStats>,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct QueueStats {
    /// 0: the admin queue.
    pub qid: u16,
    pub thread: u32,
    pub depth: u16,
    pub in_flight: u16,
    pub header_digest: bool,
    pub data_digest: bool,
    pub counts: Counts,
    pub read_latency: LatencyStats,
    pub write_latency: LatencyStats,
}
