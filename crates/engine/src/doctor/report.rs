//! What the examination says: facts, and a list of checks that each end in
//! "works", or why not and what to type.

use super::{
    cache, cufile, drives, fabric, filesystem, gds, gpu, host, memory, nvme_rdma, nvme_tcp, power, raid,
    source,
};
use super::{topology, ublk, uring, verdict};
use forebay_model::record::Environment;
use serde::Serialize;

pub use forebay_model::units::readable_bytes as size;

pub const SCHEMA: &str = "forebay.doctor/1";

/// Schema `forebay.doctor/1`.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub schema: &'static str,
    /// What was asked about; null kind `machine` when nothing was named.
    pub source: source::Asked,
    pub environment: Environment,
    /// One sentence: which paths run here, and how much there is to fix.
    pub verdict: String,
    pub checks: Vec<Check>,
    pub host: host::Host,
    pub memory: memory::Memory,
    pub uring: uring::Uring,
    pub filesystems: Vec<filesystem::Examined>,
    pub drives: Vec<drives::DriveFacts>,
    pub raids: Vec<raid::Raid>,
    pub cache: cache::Cache,
    pub gpu: gpu::GpuFacts,
    pub cufile: cufile::Cufile,
    pub gds: gds::Gds,
    pub fabric: fabric::Fabric,
    pub nvme_rdma: nvme_rdma::NvmeRdma,
    pub nvme_tcp: nvme_tcp::NvmeTcp,
    pub ublk: ublk::Ublk,
    pub power: power::Power,
    pub topology: Vec<topology::Distance>,
    pub verdicts: verdict::Verdicts,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
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
    pub state: State,
    /// What is here, in words.
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
        state: State,
        found: impl Into<String>,
    ) -> Check {
        let (id, title, found) = (id.into(), title.into(), found.into());
        Check { id, area, title, state, found, why: None, next: None }
    }

    pub fn why(mut self, why: impl Into<String>) -> Check {
        self.why = Some(why.into());
        self
    }

    pub fn next(mut self, next: impl Into<String>) -> Check {
        self.next = Some(next.into());
        self
    }

    /// Somebody could improve this.
    pub fn wants_action(&self) -> bool {
        let amiss = matches!(self.state, State::Missing | State::Limited);
        // What a path lacks is said where it is lacking.
        amiss && self.next.is_some() && self.area != Area::Paths
    }
}

/// `5 drives`, `1 drive`.
pub fn count(n: usize, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}
