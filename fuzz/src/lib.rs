//! Readers of bytes from outside, one function each: any input is understood or refused, never a panic, and what was
//! understood survives a round trip. State machines take their input as a script, of a peer or a link.

mod auth;
mod controller;
mod input;
mod nvme;
mod pcie;
mod rdma;
mod session;
mod tcp;

pub use auth::nvme_auth;
pub use controller::{nvme_connect, nvme_controller};
pub use nvme::{nvme_command, nvme_discovery, nvme_mdns, nvme_wire};
pub use pcie::{nvme_pcie_device, nvme_pcie_host, nvme_pcie_walk};
pub use rdma::{nvme_rdma, nvme_rdma_host_end, nvme_rdma_target_end};
pub use session::nvme_session;
pub use tcp::{nvme_host_end, nvme_pair, nvme_target_end};

#[cfg(feature = "engine")]
mod snap;
#[cfg(feature = "engine")]
pub use snap::{snap_config, snap_rpc, snap_state};

#[cfg(feature = "engine")]
mod vfio_user;
#[cfg(feature = "engine")]
pub use vfio_user::vfio_user;
#[cfg(feature = "engine")]
mod vfio_user_drive;
#[cfg(feature = "engine")]
pub use vfio_user_drive::vfio_user_drive;
#[cfg(feature = "engine")]
mod formats;
#[cfg(feature = "engine")]
pub use formats::formats;

use forebay_model::device::DriveModel;
use forebay_model::fio_blocks::{check, Rule};
use forebay_model::iolog::{Kind, Line, Parser};
use forebay_model::safetensors::Header;
use forebay_model::{reading, record, units, JobSpec, Latency};
#[cfg(feature = "engine")]
use forebay_serve::TargetConfig;
#[cfg(feature = "engine")]
use forebay_storage::{FaultPlan, Uri};

pub type Target = fn(&[u8]);

/// All of them, by the names that `fuzz/run` and `seeds/` know them by.
pub const TARGETS: &[(&str, Target)] = &[
    ("histogram", histogram),
    ("job", job),
    ("record", record),
    ("units", units),
    #[cfg(feature = "engine")]
    ("source", source),
    ("drive", drive),
    #[cfg(feature = "engine")]
    ("faults", faults),
    ("safetensors", safetensors),
    ("fio_blocks", fio_blocks),
    ("iolog", iolog),
    #[cfg(feature = "engine")]
    ("formats", formats),
    #[cfg(feature = "engine")]
    ("serve", serve),
    #[cfg(feature = "engine")]
    ("snap_config", snap_config),
    #[cfg(feature = "engine")]
    ("snap_rpc", snap_rpc),
    #[cfg(feature = "engine")]
    ("snap_state", snap_state),
    #[cfg(feature = "engine")]
    ("vfio_user", vfio_user),
    #[cfg(feature = "engine")]
    ("vfio_user_drive", vfio_user_drive),
    ("nvme_wire", nvme_wire),
    ("nvme_command", nvme_command),
    ("nvme_discovery", nvme_discovery),
    ("nvme_mdns", nvme_mdns),
    ("nvme_connect", nvme_connect),
    ("nvme_controller", nvme_controller),
    ("nvme_target_end", nvme_target_end),
    ("nvme_host_end", nvme_host_end),
    ("nvme_pair", nvme_pair),
    ("nvme_session", nvme_session),
    ("nvme_auth", nvme_auth),
    ("nvme_rdma", nvme_rdma),
    ("nvme_rdma_target_end", nvme_rdma_target_end),
    ("nvme_rdma_host_end", nvme_rdma_host_end),
    ("nvme_pcie_walk", nvme_pcie_walk),
    ("nvme_pcie_device", nvme_pcie_device),
    ("nvme_pcie_host", nvme_pcie_host),
];

/// The histogram of a record: HdrHistogram V2, base64.
pub fn histogram(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(latency) = Latency::decode(text) else { return };
    let again = Latency::decode(&latency.encode()).expect("what we encode, we decode");
    assert_eq!(again.buckets(), latency.buckets());
    assert!(latency.percentile_ns(50.0) <= latency.percentile_ns(100.0));
}

/// A job as JSON, as it comes from the command line's front and from records.
pub fn job(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(job) = JobSpec::from_json(text) else { return };
    let written = serde_json::to_string(&job).expect("a checked job holds no NaN");
    assert_eq!(JobSpec::from_json(&written).expect("what was accepted stays acceptable"), job);
}

/// A record of this or an older schema.
pub fn record(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(run) = reading::read(text) else { return };
    assert_eq!(run.schema, record::SCHEMA);
    let written = serde_json::to_string(&run).expect("a record is JSON");
    reading::read(&written).expect("what was read can be read again");
}

/// A size as people type it.
pub fn units(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(bytes) = units::parse_bytes(text) else { return };
    assert_eq!(units::parse_bytes(&units::format_bytes(bytes)).expect("what we print, we read"), bytes);
}

/// A source URI. A nested one is bounded in depth and length.
#[cfg(feature = "engine")]
pub fn source(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(uri) = Uri::parse(text) else { return };
    assert_eq!(Uri::parse(text).expect("the same text reads the same"), uri);
}

/// Reads what stands after `model:`. Figures stay finite, and times are never negative.
pub fn drive(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(drive) = DriveModel::parse(text) else { return };
    for seconds in [drive.read_latency_s, drive.write_latency_s, drive.command_overhead_s] {
        assert!(seconds.is_finite() && seconds >= 0.0, "{text}: {seconds} s");
    }
    assert!(drive.read_bandwidth_bytes_s.is_finite() && drive.read_bandwidth_bytes_s > 0.0);
}

/// `--faults`. Shares stay between 0 and 1.
#[cfg(feature = "engine")]
pub fn faults(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(plan) = FaultPlan::parse(text) else { return };
    assert!([plan.error, plan.short, plan.stall].iter().all(|share| (0.0..=1.0).contains(share)));
}

/// The configuration of `forebay serve`. What passes has addresses, and says nothing of its secrets.
#[cfg(feature = "engine")]
pub fn serve(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(config) = TargetConfig::from_toml(text) else { return };
    assert!(!config.addresses().expect("checked").is_empty() && !config.subsystems.is_empty());
    config.metrics_address().expect("checked");
    let written = serde_json::to_string(&config).expect("a checked configuration holds no NaN");
    assert!(!written.contains("DHHC-1:"), "a secret is written");
}

/// Blocks that fio wrote, and a rule about them: its length, the rule, how far into the file they lie, the blocks.
pub fn fio_blocks(data: &[u8]) {
    let Some((&rule_len, rest)) = data.split_first() else { return };
    let Some((rule, rest)) = rest.split_at_checked(rule_len.into()) else { return };
    let Some((place, blocks)) = rest.split_first_chunk::<8>() else { return };
    let Some(rule) = std::str::from_utf8(rule).ok().and_then(|text| Rule::parse(text).ok()) else { return };
    let at = u64::from_le_bytes(*place);
    let Err(wrong) = check(blocks, at, &rule) else { return };
    let inside = wrong.at.wrapping_sub(at);
    assert!(inside < blocks.len() as u64 && wrong.blocks >= 1, "{}", wrong.describe("the file"));
}

/// A list of I/Os, line by line: each is one that can be done, or refused by its number.
pub fn iolog(data: &[u8]) {
    let mut parser = Parser::new("list");
    for (n, line) in (1..).zip(data.split_inclusive(|byte| *byte == b'\n')) {
        match parser.read(line) {
            Ok(Line::Io(io)) => {
                assert!((io.file as usize) < parser.names().len());
                assert!(io.offset + u64::from(io.len) <= i64::MAX as u64);
                assert_eq!(io.len == 0, io.kind == Kind::Sync);
            }
            Ok(_) => {}
            Err(wrong) => return assert_eq!(wrong.asked, format!("list line {n}")),
        }
    }
}

/// A safetensors header; its first two bytes say how much data follows it. Tensors cover that, and nothing else.
pub fn safetensors(data: &[u8]) {
    let Some((length, json)) = data.split_first_chunk::<2>() else { return };
    let data_bytes = u64::from(u16::from_le_bytes(*length));
    let Ok(header) = Header::parse(json, data_bytes) else { return };
    let end = header.tensors.iter().fold(0, |at, tensor| {
        assert!(tensor.begin == at && tensor.end >= at, "{}: a gap or an overlap", tensor.name);
        tensor.end
    });
    assert_eq!(end, data_bytes);
}
