//! Snapshot of a gateway's counters.

use super::config::Qos;
use crate::namespace::stats::Counters;
use crate::namespace::stats::Histogram;
use crate::target;
pub(crate) use crate::target::stats::{Counts, LatencyStats};
use forebay_storage::SourceReport;
use serde::{Deserialize, Serialize};

/// Since the gateway began.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Stats {
    pub seconds: f64,
    pub threads: u32,
    /// Payload that a CPU copied in memory between the source and the requester (`Via::Staged`), as the source says of each
    /// I/O: out of the page cache, or of a slot.
    pub staged_bytes: u64,
    pub log_lines_dropped: u64,
    pub controllers: Vec<ControllerStats>,
    pub subsystems: Vec<SubsystemStats>,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct SubsystemStats {
    pub nqn: String,
    pub namespaces: Vec<NamespaceStats>,
}

/// One namespace, over all controllers that show it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct NamespaceStats {
    #[serde(flatten)]
    pub counted: target::stats::NamespaceStats,
    pub uuid: String,
    pub qos: Qos,
    /// I/O commands that waited for their namespace's limits.
    pub held_back: u64,
}

/// State of a controller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ControllerState {
    /// No host is there.
    #[default]
    Waiting,
    /// A host is there, and has not enabled it.
    Connected,
    /// CSTS.RDY, or a block device that is there: I/O is served.
    Enabled,
    /// By RPC: what a host asks for stays in its queues.
    Suspended,
    /// CSTS.CFS, or a frontend that broke: a reset, or a new controller, may help.
    Failed,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct ControllerStats {
    pub name: String,
    pub subsystem: String,
    pub cntlid: u16,
    pub state: ControllerState,
    /// Why it failed, in words.
    pub why: Option<String>,
    /// Path of its socket, or of its block device.
    pub place: String,
    /// It took over what an earlier process of the gateway had left.
    pub recovered: bool,
    /// nsids that it shows.
    pub namespaces: Vec<u32>,
    /// Memory of the host that it may reach, and in how many pieces.
    pub mapped_bytes: u64,
    pub mappings: u64,
    /// Hosts that came; CC.EN cleared or the function reset.
    pub connections: u64,
    pub resets: u64,
    /// Ended because of what the host sent.
    pub protocol_errors: u64,
    pub staged_bytes: u64,
    /// Bytes that a block device's driver copied between the requester's pages and the slots that sources read into.
    pub copied_bytes: u64,
    /// Connections of a block device to its source, as they are now.
    pub fabric: Vec<SourceReport>,
    pub queues: Vec<QueueStats>,
}

/// One submission queue, or one hardware queue of a block device, the first of which is 1.
#[derive(Clone, Debug, Default, Serialize)]
pub struct QueueStats {
    /// 0: the admin queue.
    pub qid: u16,
    /// None: the controller's own.
    pub thread: Option<u32>,
    pub entries: u16,
    pub in_flight: u32,
    /// Doorbells that came as messages or wakes; others were found by looking.
    pub doorbells: u64,
    /// The driver rings by Doorbell Buffer Config.
    pub shadow: bool,
    /// MSI-X vectors that were raised, of its completion queue.
    pub interrupts: u64,
    pub staged_bytes: u64,
    /// Counters of the admin queue: commands are `others`, and their latencies aren't taken.
    pub counts: Counts,
    pub read_latency: LatencyStats,
    pub write_latency: LatencyStats,
    /// For who looks for a fault. None: of the admin queue, and of block devices.
    #[serde(skip)]
    pub ends: Option<Ends>,
}

/// Positions of a submission queue and its completion queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Ends {
    /// The next entry that the controller takes, and the one behind the last that the host has rung for.
    pub sq_head: u16,
    pub sq_tail: u16,
    pub cqid: u16,
    pub cq_entries: u16,
    /// The next entry that the host takes, as it has rung, and the next that the controller writes.
    pub cq_head: u16,
    pub cq_tail: u16,
    /// MSI-X vector. None: the host polls.
    pub vector: Option<u16>,
    /// Commands that wait for their namespace's limits.
    pub held_back: u32,
}

/// Counters of one submission queue.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SubmissionTally {
    pub sqid: u16,
    pub counts: Counts,
    pub read_latency: Histogram,
    pub write_latency: Histogram,
    pub staged_bytes: u64,
}

impl SubmissionTally {
    pub(super) fn counters(&mut self) -> Counters<'_> {
        Counters {
            counts: &mut self.counts,
            read_latency: &mut self.read_latency,
            write_latency: &mut self.write_latency,
        }
    }
}
