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
}
