//! Finding about one thing on a machine: it works, or why not and what to type. Sources and paths say it of
//! themselves; `doctor` gathers it.

use serde::Serialize;
use std::fmt::Display;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckState {
    Works,
    /// Works, but not as well as it could, or not for every use.
    Limited,
    Missing,
    /// Couldn't be found out; `why` says what stood in the way.
    Unknown,
    /// Nothing here that it could apply to.
    NotApplicable,
}

/// The groups that checks are shown in, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Area {
    Source,
    Machine,
    Memory,
    IoUring,
    Filesystem,
    Drives,
    Raid,
    PageCache,
    Gpu,
    Gds,
    Fabric,
    Power,
    Topology,
    Paths,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// Stable name, as `uring.sqpoll` or `drive.nvme0n1.link`.
    pub id: String,
    pub area: Area,
    pub title: String,
    pub state: CheckState,
    /// Description of what is here.
    pub found: String,
    /// Why it isn't better; null where it works.
    pub why: Option<String>,
    /// The command to type; null where there is nothing to do.
    pub next: Option<String>,
}

impl Check {
    pub fn new(
        area: Area,
        id: impl Into<String>,
        title: impl Into<String>,
        state: CheckState,
        found: impl Into<String>,
    ) -> Check {
        let (id, title, found) = (id.into(), title.into(), found.into());
        Check { id, area, title, state, found, why: None, next: None }
    }

    /// The line for a data path.
    pub fn of_path(name: &str, state: CheckState, found: impl Into<String>) -> Check {
        Check::new(Area::Paths, format!("path.{name}"), name, state, found)
    }

    pub fn why(mut self, why: impl Into<String>) -> Check {
        self.why = Some(why.into());
        self
    }

    pub fn next(mut self, next: impl Into<String>) -> Check {
        self.next = Some(next.into());
        self
    }

    /// The check of a source that isn't a file.
    pub fn of_source(
        id: &str,
        uri: &dyn Display,
        title: &str,
        state: CheckState,
        found: impl Into<String>,
    ) -> Check {
        Check::new(Area::Source, format!("source.{id} {uri}"), title, state, found)
    }

    /// Returns whether something could be improved.
    pub fn wants_action(&self) -> bool {
        let amiss = matches!(self.state, CheckState::Missing | CheckState::Limited);
        // What a path lacks is said where it is lacking.
        amiss && self.next.is_some() && self.area != Area::Paths
    }
}

/// `5 drives`, `1 drive`.
pub fn counted(n: usize, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}

impl Check {
    /// A command with one more thing said behind it, where a shell won't read it.
    pub fn remark(command: &str, more: &str) -> String {
        match command.contains("   # ") {
            true => format!("{command}; {more}"),
            false => format!("{command}   # {more}"),
        }
    }
}
