//! All that a gateway is at one moment, as plain data.

use crate::gateway::config::Config;
use crate::gateway::handed::{Bytes, Fd};
use crate::gateway::stats::SubmissionTally;
use crate::gateway::vfio_user::state::{PeerState, VectorState};
use crate::target::stats::{Counts, LatencyStats};
use forebay_nvme::transport::pcie::device::state::DeviceState;
use forebay_nvme::transport::pcie::queue::QueueState;
use serde::{Deserialize, Serialize};

/// State that the next gateway needs before the old one stops for a moment.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Offer {
    /// As it is now; the number of threads is what it came to.
    pub config: Config,
    /// Since the gateway began, ns: hosts' clocks go on.
    pub age_ns: u64,
    pub namespaces: Vec<NamespaceState>,
}

/// A namespace: what its source must be, and what was counted.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamespaceState {
    pub nqn: String,
    pub nsid: u32,
    pub blocks: u64,
    pub block_bytes: u32,
    /// Descriptors that hold the locks on its files.
    pub locks: Vec<Fd>,
}

/// Counters of a namespace, over all its controllers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamespaceCounts {
    pub nqn: String,
    pub nsid: u32,
    pub counts: Counts,
    pub read_latency: LatencyStats,
    pub write_latency: LatencyStats,
    pub held_back: u64,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GatewayState {
    /// The socket that takes RPCs.
    pub rpc: Option<Fd>,
    pub counts: Vec<NamespaceCounts>,
    pub controllers: Vec<ControllerState>,
}

/// One emulated drive.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ControllerState {
    pub nqn: String,
    pub name: String,
    pub cntlid: u16,
    pub suspended: bool,
    pub listener: Fd,
    pub doorbells: Fd,
    /// Wake-up descriptors of each thread.
    pub kicks: Vec<Fd>,
    /// By submission queue.
    pub rings: Vec<u64>,
    pub write_cache: bool,
    /// Its client rings in memory alone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub rung_in_memory: bool,
    pub device: DeviceState,
    pub config_space: Bytes,
    pub msix_table: Bytes,
    pub vectors: Vec<VectorState>,
    pub mappings: Vec<MappingState>,
    pub peer: Option<PeerState>,
    pub tally: TallyState,
    pub queues: Vec<QueueKept>,
    /// Its client's connection is its supervisor's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<KeptState>,
}

/// State that is needed after a gateway was killed, and not before.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeptState {
    /// Some for a client; true once VERSION was exchanged.
    pub greeted: Option<bool>,
    /// Memory in which queues note their state.
    pub paper: Fd,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MappingState {
    pub address: u64,
    pub bytes: u64,
    pub readable: bool,
    pub writable: bool,
    /// The file and the offset in it. Several mappings may name one.
    pub file: Option<(Fd, u64)>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TallyState {
    pub connections: u64,
    pub resets: u64,
    pub protocol_errors: u64,
    pub admin_interrupts: u64,
    pub fatal: Option<String>,
}

/// A completion queue with its submission queues, as its thread had them.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueueKept {
    pub queue: QueueState,
    pub interrupts: u64,
    /// Values of doorbells that were acted on.
    pub head_seen: u32,
    pub tails_seen: Vec<(u16, u32)>,
    pub tallies: Vec<SubmissionTally>,
}
