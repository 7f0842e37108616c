//! Report on a namespace while it is open: its present paths, and its part of a record at the end.

use super::Host;
use forebay_model::record::{FabricEvent, FabricPath, FabricQueue, FabricRan};
use serde::Serialize;

/// One path to a namespace's controller, as it is now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PathReport {
    pub address: String,
    /// `live`, `connecting` or `lost`.
    pub state: &'static str,
    /// Why it isn't live.
    pub why: Option<String>,
    /// ANA state of a live one whose namespace is there.
    pub ana: Option<&'static str>,
    /// Times that it came up again after the first.
    pub reconnects: u32,
    /// I/O queues that are connected.
    pub queues: u32,
    /// Connections of I/O queues that the target didn't take.
    pub refused: u32,
}

impl PathReport {
    /// For a record.
    pub fn ended(self) -> FabricPath {
        let words = [Some(self.state), self.ana, self.why.as_deref()];
        let state = words.into_iter().flatten().collect::<Vec<_>>().join(", ");
        FabricPath { address: self.address, state, reconnects: self.reconnects, refused: self.refused }
    }
}

/// A namespace over a fabric, or an emulated drive, while it is in use: what a record has of it, with its paths as they
/// are now.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct SourceReport {
    pub uri: String,
    pub model: String,
    pub firmware: String,
    pub header_digest: bool,
    pub data_digest: bool,
    pub paths: Vec<PathReport>,
    /// I/O queues that carried commands.
    pub queues: Vec<FabricQueue>,
    /// The last events of the paths.
    pub events: Vec<FabricEvent>,
    /// Earlier events, which are only counted.
    pub events_dropped: u64,
}

impl SourceReport {
    pub(in crate::source) fn new(ran: FabricRan, paths: Vec<PathReport>) -> SourceReport {
        let FabricRan { uri, model, firmware, header_digest, data_digest, queues, events, .. } = ran;
        let events_dropped = ran.events_dropped;
        SourceReport {
            uri,
            model,
            firmware,
            header_digest,
            data_digest,
            paths,
            queues,
            events,
            events_dropped,
        }
    }
}

impl Host {
    /// I/O queues of a path that are connected.
    pub fn connected(&self, path: usize) -> u32 {
        self.traffic().iter().filter(|t| t.path == path).map(|t| t.connected()).sum()
    }
}
