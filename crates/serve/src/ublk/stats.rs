//! Snapshot of a device's counters.

use super::options::OnDeath;
use crate::target::stats::{Counts, LatencyStats};
use forebay_storage::SourceReport;
use serde::Serialize;

/// Since the device was made, or taken over.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Stats {
    pub id: u32,
    /// /dev/ublkbN.
    pub path: String,
    pub source: String,
    pub bytes: u64,
    pub block_bytes: u32,
    pub writable: bool,
    pub state: DeviceState,
    /// It waited for a daemon, and got this one.
    pub recovered: bool,
    pub on_death: OnDeath,
    /// ublk features of this kernel.
    pub kernel_features: Vec<&'static str>,
    pub depth: u16,
    pub max_transfer: u32,
    pub queues: Vec<QueueStats>,
    pub counts: Counts,
    pub read_latency: LatencyStats,
    pub write_latency: LatencyStats,
    /// Between the requester's pages and the slots that sources read into: the driver's own copy, one for each byte.
    pub copied_bytes: u64,
    /// Between a slot and the source through memory of somebody's own: the page cache, or a thread of ours that
    /// decrypts.
    pub staged_bytes: u64,
    /// Its own connections to its source, as they are now.
    pub fabric: Vec<SourceReport>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceState {
    #[default]
    Live,
    /// Requests are held.
    Suspended,
    /// The device takes no more requests: stopped, by us or by somebody else.
    Stopped,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct QueueStats {
    /// Hardware queue.
    pub queue: u16,
    pub thread: u32,
    /// Requests that aren't answered, held ones among them.
    pub in_flight: u32,
    pub counts: Counts,
    pub read_latency: LatencyStats,
    pub write_latency: LatencyStats,
    /// As of `Stats`.
    pub staged_bytes: u64,
}
