//! Snapshot of a target's counters.

use forebay_nvme::controller::Health;
use forebay_nvme::nvm::{Op, Request};
use forebay_nvme::status::{Code, Status};
use forebay_storage::source::nvme::SourceReport;
use serde::{Deserialize, Serialize};
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

#[derive(Clone, Debug, Default, Serialize)]
pub struct NamespaceStats {
    pub nsid: u32,
    pub source: String,
    pub bytes: u64,
    pub block_bytes: u32,
    pub writable: bool,
    pub counts: Counts,
    pub read_latency: LatencyStats,
    pub write_latency: LatencyStats,
    /// Sources below that are reached over a fabric or a socket, as they are now.
    pub fabric: Vec<SourceReport>,
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

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    pub reads: u64,
    pub read_bytes: u64,
    pub writes: u64,
    pub write_bytes: u64,
    pub flushes: u64,
    /// Write Zeroes, Dataset Management, Compare, Verify.
    pub others: u64,
    /// Completed with an error status.
    pub errors: u64,
    /// Number of them that said that the medium lost data, or didn't take them.
    #[serde(default)]
    pub media_errors: u64,
}

impl NamespaceStats {
    /// Adds counts from elsewhere.
    pub fn add(&mut self, more: &NamespaceStats) {
        self.counts.add(&more.counts);
        self.read_latency.add(&more.read_latency);
        self.write_latency.add(&more.write_latency);
    }
}

impl Counts {
    /// A command that went well.
    pub fn count(&mut self, request: &Request) {
        match request.op {
            Op::Read => (self.reads, self.read_bytes) = (self.reads + 1, self.read_bytes + request.bytes),
            Op::Write => {
                (self.writes, self.write_bytes) = (self.writes + 1, self.write_bytes + request.bytes)
            }
            Op::Flush => self.flushes += 1,
            _ => self.others += 1,
        }
    }

    /// For the SMART / Health log.
    pub fn health(&self) -> Health {
        Health {
            bytes_read: self.read_bytes.into(),
            bytes_written: self.write_bytes.into(),
            reads: self.reads.into(),
            writes: self.writes.into(),
            media_errors: self.media_errors.into(),
            ..Health::default()
        }
    }

    pub fn add(&mut self, more: &Counts) {
        self.reads += more.reads;
        self.read_bytes += more.read_bytes;
        self.writes += more.writes;
        self.write_bytes += more.write_bytes;
        self.flushes += more.flushes;
        self.others += more.others;
        self.errors += more.errors;
        self.media_errors += more.media_errors;
    }

    /// A command that failed.
    pub fn count_failed(&mut self, status: Status) {
        self.errors += 1;
        self.media_errors += u64::from(matches!(status.code, Code::WRITE_FAULT | Code::UNRECOVERED_READ));
    }
}

/// From the command's arrival to its completion's being handed to the socket.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct LatencyStats {
    pub count: u64,
    pub sum_s: f64,
    /// (upper bound in seconds, how many took no longer), ascending: powers of two of a microsecond.
    pub buckets: Vec<(f64, u64)>,
}

impl LatencyStats {
    pub fn add(&mut self, more: &LatencyStats) {
        if self.buckets.is_empty() {
            self.buckets.clone_from(&more.buckets);
        } else {
            self.buckets.iter_mut().zip(&more.buckets).for_each(|(a, b)| a.1 += b.1);
        }
        self.count += more.count;
        self.sum_s += more.sum_s;
    }
}
