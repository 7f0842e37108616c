//! Distance of a GPU from each drive and network card, by their places in the PCI tree.

use super::drives::DriveFacts;
use super::fabric::Fabric;
use super::gpu::GpuFacts;
use forebay_io::{pci_ancestry, pci_directory, pci_numa_node, Check, CheckArea, CheckState, Roots};
use serde::Serialize;
use std::path::Path;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Relation {
    /// Below one PCIe switch: traffic needn't reach the processor.
    SameSwitch,
    /// Functions or devices below one root port, with no switch between.
    SameRootPort,
    /// Below one host bridge of the processor.
    SameHostBridge,
    /// Different host bridges of one NUMA node.
    SameNode,
    /// Across the link between sockets, or between parts of one.
    CrossNode,
    /// Different host bridges, and the firmware doesn't say which node each is on.
    Unknown,
}

impl Relation {
    pub fn words(self) -> &'static str {
        match self {
            Relation::SameSwitch => "below one PCIe switch",
            Relation::SameRootPort => "below one root port",
            Relation::SameHostBridge => "below one host bridge of the processor",
            Relation::SameNode => "below different host bridges of one NUMA node",
            Relation::CrossNode => "across NUMA nodes",
            Relation::Unknown => "at an unknown distance",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Distance {
    pub gpu: u32,
    /// `nvme0n1`, `mlx5_0`, `eth0`.
    pub to: String,
    pub relation: Relation,
}

pub(crate) fn facts(roots: &Roots, gpu: &GpuFacts, drives: &[DriveFacts], fabric: &Fabric) -> Vec<Distance> {
    let named = |name: &str, pci: &Option<String>| Some((name.to_string(), pci.clone()?));
    let mut others: Vec<(String, String)> =
        drives.iter().filter_map(|d| named(&d.drive.name, &d.drive.pci)).collect();
    others.extend(fabric.rdma.iter().filter_map(|d| named(&d.name, &d.pci)));
    // A card with an RDMA name needn't be listed again as a network device.
    let known: Vec<String> = others.iter().map(|o| o.1.clone()).collect();
    let more = fabric.nics.iter().filter_map(|d| named(&d.name, &d.pci));
    others.extend(more.filter(|(_, address)| !known.contains(address)));
    let mut found = Vec::new();
    for device in &gpu.gpus {
        let Some(from) = &device.gpu.pci else { continue };
        for (name, address) in &others {
            let relation = between(roots, from, address);
            found.push(Distance { gpu: device.gpu.index, to: name.clone(), relation });
        }
    }
    found
}

fn between(roots: &Roots, a: &str, b: &str) -> Relation {
    let path = |address: &str| pci_directory(roots, address).canonicalize().ok();
    let (Some(a_path), Some(b_path)) = (path(a), path(b)) else { return Relation::Unknown };
    relation(&a_path, &b_path, [pci_numa_node(roots, a), pci_numa_node(roots, b)])
}

/// By the paths in /sys/devices: host bridge (`pci0000:3a`), root port, switch ports, device.
pub(crate) fn relation(a: &Path, b: &Path, nodes: [Option<i32>; 2]) -> Relation {
    let shared = pci_ancestry(a).iter().zip(&pci_ancestry(b)).take_while(|(x, y)| x == y).count();
    match shared {
        0 => {}
        1 => return Relation::SameRootPort,
        _ => return Relation::SameSwitch,
    }
    let bridge = |path: &Path| {
        let names = path.components().filter_map(|c| c.as_os_str().to_str().map(str::to_string));
        names.into_iter().find(|n| n.starts_with("pci") && n.contains(':'))
    };
    match (bridge(a), bridge(b)) {
        (Some(x), Some(y)) if x == y => return Relation::SameHostBridge,
        _ => {}
    }
    match nodes {
        [Some(x), Some(y)] if x == y => Relation::SameNode,
        [Some(_), Some(_)] => Relation::CrossNode,
        _ => Relation::Unknown,
    }
}

pub(crate) fn checks(distances: &[Distance], gpu: bool) -> Vec<Check> {
    if !gpu {
        let found = "no NVIDIA GPU here";
        return vec![Check::new(
            CheckArea::Topology,
            "topology",
            "GPU to drive and NIC",
            CheckState::NotApplicable,
            found,
        )];
    }
    if distances.is_empty() {
        return vec![Check::new(
            CheckArea::Topology,
            "topology",
            "GPU to drive and NIC",
            CheckState::Unknown,
            "nothing to compare",
        )
        .why("no drive or network card here shows a PCI address")];
    }
    distances.iter().map(check).collect()
}

fn check(distance: &Distance) -> Check {
    let title = format!("GPU {} to {}", distance.gpu, distance.to);
    let id = format!("topology.{}.{}", distance.gpu, distance.to);
    let check = |state, found: &str| Check::new(CheckArea::Topology, id, title, state, found);
    let hint =
        format!("nvidia-smi topo -m   # and use a GPU near {}, or ‹gpus› with another number", distance.to);
    match distance.relation {
        Relation::SameSwitch => check(CheckState::Works, distance.relation.words()),
        Relation::SameRootPort => check(CheckState::Works, distance.relation.words()),
        Relation::SameHostBridge => check(CheckState::Works, distance.relation.words()),
        Relation::SameNode => check(CheckState::Limited, distance.relation.words())
            .why("direct DMA between them runs through the processor's fabric, slower than through a switch on many machines")
            .next(hint),
        Relation::CrossNode => check(CheckState::Limited, distance.relation.words())
            .why("every byte crosses the link between sockets: expect much less, especially for direct DMA")
            .next(hint),
        Relation::Unknown => check(CheckState::Unknown, "not reported")
            .why("different host bridges, and the firmware doesn't name their NUMA nodes (a virtual machine does this)")
            .next("nvidia-smi topo -m"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GPU: &str = "/sys/devices/pci0000:3a/0000:3a:01.0/0000:3b:00.0/0000:3c:10.0/0000:3e:00.0";

    #[test]
    fn places_in_the_tree_give_the_distance() {
        let to = |path: &str, nodes| relation(Path::new(GPU), Path::new(path), nodes);
        let none = [None, None];
        assert_eq!(
            to("/sys/devices/pci0000:3a/0000:3a:01.0/0000:3b:00.0/0000:3c:04.0/0000:3d:00.0", none),
            Relation::SameSwitch
        );
        assert_eq!(to("/sys/devices/pci0000:3a/0000:3a:01.0/0000:99:00.0", none), Relation::SameRootPort);
        assert_eq!(to("/sys/devices/pci0000:3a/0000:3a:02.0/0000:40:00.0", none), Relation::SameHostBridge);
        let far = "/sys/devices/pci0000:b0/0000:b0:02.0/0000:b1:00.0";
        assert_eq!(to(far, [Some(0), Some(0)]), Relation::SameNode);
        assert_eq!(to(far, [Some(0), Some(1)]), Relation::CrossNode);
        assert_eq!(to(far, [Some(0), None]), Relation::Unknown);
    }

    proptest! {
        #[test]
        fn any_two_paths_are_as_far_one_way_as_the_other(a in "(/[a-f0-9:.pci]{1,14}){0,5}", b in "(/[a-f0-9:.pci]{1,14}){0,5}") {
            let (a, b) = (Path::new(&a), Path::new(&b));
            prop_assert_eq!(relation(a, b, [Some(0), Some(1)]), relation(b, a, [Some(1), Some(0)]));
        }
    }
}
