//! Network and RDMA devices.

use forebay_io::{pci_ancestry, pci_numa_node, Check, CheckArea, CheckState, Roots};
use serde::Serialize;

const DEVICES_MAX: usize = 256;

#[derive(Clone, Debug, Default, Serialize)]
pub struct Fabric {
    pub rdma: Vec<Rdma>,
    /// Network devices on PCI.
    pub nics: Vec<Nic>,
    /// `/dev/infiniband` can be used from here.
    pub verbs: bool,
    /// The kernel module through which RDMA cards reach GPU memory.
    pub peer_memory: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Rdma {
    pub name: String,
    pub firmware: Option<String>,
    pub pci: Option<String>,
    pub numa_node: Option<i32>,
    pub ports: Vec<Port>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Port {
    pub port: u32,
    /// `ACTIVE`, `DOWN` …
    pub state: String,
    /// The rate as the kernel reports it: `400 Gb/sec (4X NDR)`.
    pub rate: Option<String>,
    /// `InfiniBand` or `Ethernet`.
    pub link_layer: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Nic {
    pub name: String,
    pub pci: Option<String>,
    pub numa_node: Option<i32>,
    /// Null where the link is down.
    pub megabits: Option<u64>,
}

pub(crate) fn facts(roots: &Roots) -> Fabric {
    let verbs = Roots::names(&roots.dev.join("infiniband")).iter().any(|n| n.starts_with("uverbs"));
    Fabric {
        rdma: Roots::names(&roots.sys("class/infiniband"))
            .iter()
            .take(DEVICES_MAX)
            .map(|n| rdma(roots, n))
            .collect(),
        nics: Roots::names(&roots.sys("class/net"))
            .iter()
            .take(DEVICES_MAX)
            .filter_map(|n| nic(roots, n))
            .collect(),
        verbs,
        peer_memory: ["nvidia_peermem", "nv_peer_mem"].iter().any(|m| roots.sys("module").join(m).exists()),
    }
}

fn rdma(roots: &Roots, name: &str) -> Rdma {
    let base = roots.sys("class/infiniband").join(name);
    let pci = address(&base.join("device"));
    let ports = Roots::names(&base.join("ports")).into_iter().filter_map(|port| {
        let directory = base.join("ports").join(&port);
        let state = Roots::line(&directory.join("state")).unwrap_or_default();
        Some(Port {
            port: port.parse().ok()?,
            // `4: ACTIVE`
            state: state.rsplit(": ").next().unwrap_or_default().to_string(),
            rate: Roots::line(&directory.join("rate")),
            link_layer: Roots::line(&directory.join("link_layer")),
        })
    });
    Rdma {
        name: name.into(),
        firmware: Roots::line(&base.join("fw_ver")),
        numa_node: pci.as_deref().and_then(|a| pci_numa_node(roots, a)),
        pci,
        ports: ports.collect(),
    }
}

fn nic(roots: &Roots, name: &str) -> Option<Nic> {
    let base = roots.sys("class/net").join(name);
    let pci = address(&base.join("device"))?;
    let megabits = Roots::number::<i64>(&base.join("speed")).filter(|s| *s > 0).map(|s| s as u64);
    Some(Nic { name: name.into(), numa_node: pci_numa_node(roots, &pci), pci: Some(pci), megabits })
}

fn address(device: &std::path::Path) -> Option<String> {
    pci_ancestry(&device.canonicalize().ok()?).pop()
}

/// `gpu`: there is a GPU whose memory could be a target.
pub(crate) fn checks(fabric: &Fabric, gpu: bool) -> Vec<Check> {
    let mut checks: Vec<Check> = fabric.nics.iter().map(nic_check).collect();
    if fabric.rdma.is_empty() {
        let found = "no RDMA device; NVMe/TCP needs none";
        checks.push(Check::new(CheckArea::Fabric, "rdma", "RDMA", CheckState::NotApplicable, found));
        return checks;
    }
    checks.extend(fabric.rdma.iter().map(|device| rdma_check(device, fabric.verbs)));
    if gpu {
        checks.push(peer_memory(fabric));
    }
    checks
}

fn nic_check(nic: &Nic) -> Check {
    let mut found = nic.pci.clone().unwrap_or_default();
    found += &nic
        .megabits
        .map_or(", link speed not reported".into(), |m| format!(", {} Gbit/s", m as f64 / 1000.0));
    if let Some(node) = nic.numa_node {
        found += &format!(", NUMA node {node}");
    }
    Check::new(CheckArea::Fabric, format!("nic.{}", nic.name), nic.name.clone(), CheckState::Works, found)
}

fn rdma_check(device: &Rdma, verbs: bool) -> Check {
    let ports: Vec<String> = device
        .ports
        .iter()
        .map(|p| {
            format!(
                "port {} {} {} {}",
                p.port,
                p.state,
                p.rate.as_deref().unwrap_or(""),
                p.link_layer.as_deref().unwrap_or("")
            )
            .trim_end()
            .to_string()
        })
        .collect();
    let found =
        format!("{}, firmware {}", ports.join("; "), device.firmware.as_deref().unwrap_or("not reported"));
    let check = |state| {
        Check::new(CheckArea::Fabric, format!("rdma.{}", device.name), device.name.clone(), state, found)
    };
    if !device.ports.iter().any(|p| p.state == "ACTIVE") {
        return check(CheckState::Limited)
            .why("no port is active: no cable, or no subnet manager")
            .next(format!("ibstat {}; rdma link show", device.name));
    }
    if !verbs {
        return check(CheckState::Limited)
            .why("/dev/infiniband isn't here, so that no program can use it")
            .next("sudo modprobe ib_uverbs   # in a container: --device /dev/infiniband");
    }
    check(CheckState::Works)
}

fn peer_memory(fabric: &Fabric) -> Check {
    let check = |state, found: &str| {
        Check::new(CheckArea::Fabric, "rdma.peer_memory", "RDMA into GPU memory", state, found)
    };
    if fabric.peer_memory {
        return check(CheckState::Works, "nvidia_peermem is loaded");
    }
    check(CheckState::Limited, "nvidia_peermem isn't loaded")
        .why("memory can then be registered through dma-buf alone, which not every library does")
        .next("sudo modprobe nvidia_peermem")
}
