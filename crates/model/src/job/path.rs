//! The names of the data paths, in jobs and records. The engine's table describes each.

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PathKind {
    Host,
    Bounce,
    Mapped,
    Gds,
    Auto,
}

impl PathKind {
    pub const ALL: [PathKind; 5] =
        [PathKind::Host, PathKind::Bounce, PathKind::Mapped, PathKind::Gds, PathKind::Auto];

    pub fn name(self) -> &'static str {
        match self {
            PathKind::Host => "host",
            PathKind::Bounce => "bounce",
            PathKind::Mapped => "mapped",
            PathKind::Gds => "gds",
            PathKind::Auto => "auto",
        }
    }

    pub fn named(name: &str) -> Option<PathKind> {
        PathKind::ALL.into_iter().find(|path| path.name() == name)
    }

    /// It stands for the path that a run finds for each target.
    pub fn is_found(self) -> bool {
        self == PathKind::Auto
    }

    /// Bytes never reach a GPU.
    pub fn ends_in_host(self) -> bool {
        self == PathKind::Host
    }

    /// Bytes end in a GPU's memory, and a CPU sees none of them.
    pub fn bypasses_host(self) -> bool {
        matches!(self, PathKind::Gds | PathKind::Mapped)
    }

    /// The kernel reads and writes for it, into host memory.
    pub fn reads_by_kernel(self) -> bool {
        matches!(self, PathKind::Host | PathKind::Bounce)
    }

    /// It copies out of the page cache, and nothing else.
    pub fn needs_page_cache(self) -> bool {
        self == PathKind::Mapped
    }

    /// Its I/Os are cuFile's.
    pub fn goes_by_cufile(self) -> bool {
        self == PathKind::Gds
    }

    /// A job on it may have pages of files registered.
    pub fn may_map(self) -> bool {
        self.needs_page_cache() || self.is_found()
    }

    /// A job on it may have bytes go by DMA from a device into a GPU.
    pub fn may_go_direct(self) -> bool {
        self.goes_by_cufile() || self.is_found()
    }
}
