//! Every seed and every input that once broke something, replayed without a fuzzer; and a few thousand scripts at
//! random, so that what takes a script is tried by `cargo test`, too.

use forebay_fuzz::{Target, TARGETS};
use std::path::Path;

fn target(name: &str) -> Target {
    TARGETS.iter().find(|(known, _)| *known == name).expect("a target of this name").1
}

fn replay(name: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds").join(name);
    let mut seeds = 0;
    for entry in std::fs::read_dir(&folder).expect("the target has seeds") {
        let path = entry.expect("a readable folder").path();
        println!("{}", path.display());
        target(name)(&std::fs::read(path).expect("a readable seed"));
        seeds += 1;
    }
    assert!(seeds > 0, "{} is empty", folder.display());
}

// promise: FLT-12
#[test]
fn histogram_seeds() {
    replay("histogram");
}

// promise: FLT-12
#[test]
fn job_seeds() {
    replay("job");
}

// promise: FLT-12
#[test]
fn record_seeds() {
    replay("record");
}

// promise: FLT-12
#[test]
fn units_seeds() {
    replay("units");
}

#[cfg(feature = "engine")]
// promise: FLT-12
#[test]
fn source_seeds() {
    replay("source");
}

// promise: FLT-12
#[test]
fn drive_seeds() {
    replay("drive");
}

#[cfg(feature = "engine")]
// promise: FLT-12
#[test]
fn faults_seeds() {
    replay("faults");
}

#[test]
fn fio_blocks_seeds() {
    replay("fio_blocks");
}

#[test]
fn iolog_seeds() {
    replay("iolog");
}

// promise: PYT-10
#[test]
fn safetensors_seeds() {
    replay("safetensors");
}

#[cfg(feature = "engine")]
// promise: EMU-21, TRA-19
#[test]
fn formats_seeds() {
    replay("formats");
}

#[cfg(feature = "engine")]
// promise: FLT-12
#[test]
fn serve_seeds() {
    replay("serve");
}

#[cfg(feature = "engine")]
// promise: SNP-3
#[test]
fn snap_config_seeds() {
    replay("snap_config");
}

#[cfg(feature = "engine")]
// promise: GWY-3
#[test]
fn vfio_user_seeds() {
    replay("vfio_user");
}

#[cfg(feature = "engine")]
// promise: GWY-14
#[test]
fn vfio_user_drive_seeds() {
    replay("vfio_user_drive");
}

#[cfg(feature = "engine")]
// promise: SNP-8
#[test]
fn snap_state_seeds() {
    replay("snap_state");
}

#[cfg(feature = "engine")]
// promise: SNP-3
#[test]
fn snap_rpc_seeds() {
    replay("snap_rpc");
}

// promise: NTP-7
#[test]
fn nvme_wire_seeds() {
    replay("nvme_wire");
}

// promise: NTP-7
#[test]
fn nvme_command_seeds() {
    replay("nvme_command");
}

// promise: NTP-7
#[test]
fn nvme_discovery_seeds() {
    replay("nvme_discovery");
}

// promise: NTP-7
#[test]
fn nvme_mdns_seeds() {
    replay("nvme_mdns");
}

// promise: NTP-7
#[test]
fn nvme_connect_seeds() {
    replay("nvme_connect");
}

// promise: NTP-7
#[test]
fn nvme_controller_seeds() {
    replay("nvme_controller");
}

// promise: NTP-7
#[test]
fn nvme_target_end_seeds() {
    replay("nvme_target_end");
}

// promise: NTP-7
#[test]
fn nvme_host_end_seeds() {
    replay("nvme_host_end");
}

// promise: RHO-9
#[test]
fn nvme_rdma_seeds() {
    replay("nvme_rdma");
}

// promise: RHO-14
#[test]
fn nvme_rdma_target_end_seeds() {
    replay("nvme_rdma_target_end");
}

// promise: RHO-9
#[test]
fn nvme_rdma_host_end_seeds() {
    replay("nvme_rdma_host_end");
}

// promise: NTP-7
#[test]
fn nvme_pair_seeds() {
    replay("nvme_pair");
}

// promise: NTP-7
#[test]
fn nvme_session_seeds() {
    replay("nvme_session");
}

// promise: NTP-7
#[test]
fn nvme_auth_seeds() {
    replay("nvme_auth");
}

// promise: PCI-5
#[test]
fn nvme_pcie_walk_seeds() {
    replay("nvme_pcie_walk");
}

// promise: SNP-8, PCI-5
#[test]
fn nvme_pcie_device_seeds() {
    replay("nvme_pcie_device");
}

// promise: PCI-5
#[test]
fn nvme_pcie_host_seeds() {
    replay("nvme_pcie_host");
}

#[test]
fn every_target_has_seeds() {
    for (name, _) in TARGETS {
        replay(name);
    }
}

/// `FOREBAY_SEED` repeats a run.
// promise: NTP-7
#[test]
fn scripts_at_random_break_nothing() {
    let seed = std::env::var("FOREBAY_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(7u64);
    println!("FOREBAY_SEED={seed}");
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state >> 8
    };
    for (name, run) in TARGETS.iter().filter(|(name, _)| name.starts_with("nvme_")) {
        for _ in 0..300 {
            let length = random() % 400;
            let script: Vec<u8> = (0..length).map(|_| random() as u8).collect();
            println!("{name}");
            run(&script);
        }
    }
}
