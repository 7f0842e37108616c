//! Result of the examination: facts, and a list of checks that each end in "works", or why not and what to type.

use super::{
    cache, cufile, drives, fabric, filesystem, gds, gpu, host, memory, nvme_rdma, nvme_tcp, power, raid,
    source,
};
use super::{topology, ublk, uring, verdict};
use forebay_io::Check;
use forebay_model::record::Environment;
use serde::Serialize;

pub(crate) const SCHEMA: &str = "forebay.doctor/1";

/// Schema `forebay.doctor/1`.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub schema: &'static str,
    /// The source that was examined; kind `machine` if none was named.
    pub source: source::Asked,
    pub environment: Environment,
    /// One sentence: which paths run here, and how much there is to fix.
    pub verdict: String,
    pub checks: Vec<Check>,
    pub host: host::HostFacts,
    pub memory: memory::MemoryFacts,
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
