//! Processor, kernel, NUMA nodes, and what stands between us and the hardware.

use super::cgroups::cpu_limits;
use super::roots::{cpu_list, Roots};
use serde::Serialize;
use std::collections::BTreeSet;

#[derive(Clone, Debug, Default, Serialize)]
pub struct Host {
    pub name: String,
    pub os: String,
    pub kernel: String,
    pub cpu: String,
    /// Logical processors online.
    pub cores: u32,
    pub sockets: Option<u32>,
    /// Two threads of one core are both in use.
    pub smt: Option<bool>,
    /// Processors that this process may run on.
    pub allowed_cpus: Option<Vec<u32>>,
    /// Cores' worth of time that the cgroup grants; null without a limit.
    pub cpu_quota_cores: Option<f64>,
    pub governor: Option<String>,
    pub numa: Vec<Node>,
    pub virtualization: Option<String>,
    pub container: Option<String>,
    /// The kernel is a user-space one that answers for Linux (gVisor).
    pub sandboxed_kernel: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Node {
    pub node: u32,
    pub cpus: String,
    pub memory_bytes: Option<u64>,
}

impl Host {
    pub fn gather(roots: &Roots) -> Host {
        let cpuinfo = Roots::text(&roots.proc("cpuinfo")).unwrap_or_default();
        let status = Roots::text(&roots.proc("self/status")).unwrap_or_default();
        Host {
            name: Roots::line(&roots.proc("sys/kernel/hostname")).unwrap_or_default(),
            os: os_name(roots),
            kernel: Roots::line(&roots.proc("sys/kernel/osrelease")).unwrap_or_default(),
            cpu: cpu_model(roots, &cpuinfo),
            cores: cores(roots, &cpuinfo),
            sockets: sockets(roots),
            smt: Roots::number::<u8>(&roots.sys("devices/system/cpu/smt/active")).map(|v| v != 0),
            allowed_cpus: Roots::field(&status, "Cpus_allowed_list").map(cpu_list),
            cpu_quota_cores: cpu_quota(roots),
            governor: Roots::line(&roots.sys("devices/system/cpu/cpu0/cpufreq/scaling_governor")),
            numa: nodes(roots),
            virtualization: virtualization(roots, &cpuinfo),
            container: container(roots),
            sandboxed_kernel: sandboxed(roots),
        }
    }
}

fn os_name(roots: &Roots) -> String {
    let content = Roots::text(&roots.etc.join("os-release")).unwrap_or_default();
    let value = |key: &str| {
        content.lines().find_map(|l| {
            let (name, value) = l.split_once('=')?;
            (name == key).then(|| value.trim_matches(['"', '\'']).to_string())
        })
    };
    value("PRETTY_NAME").or_else(|| value("NAME")).unwrap_or_else(|| "Linux".into())
}

fn cpu_model(roots: &Roots, cpuinfo: &str) -> String {
    let named = Roots::field(cpuinfo, "model name").or_else(|| Roots::field(cpuinfo, "Model"));
    let model = named.map(str::to_string).or_else(|| {
        // Arm servers name the part by number, and the machine in the device tree.
        let tree = Roots::line(&roots.sys("firmware/devicetree/base/model"));
        tree.or_else(|| Some(format!("CPU part {}", Roots::field(cpuinfo, "CPU part")?)))
    });
    model.unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ")
}

fn cores(roots: &Roots, cpuinfo: &str) -> u32 {
    let online = Roots::line(&roots.sys("devices/system/cpu/online")).map(|l| cpu_list(&l).len());
    let listed = cpuinfo.lines().filter(|l| l.starts_with("processor")).count();
    online.filter(|n| *n > 0).unwrap_or(listed) as u32
}

fn sockets(roots: &Roots) -> Option<u32> {
    let cpus = roots.sys("devices/system/cpu");
    let packages: BTreeSet<i64> = Roots::names(&cpus)
        .iter()
        .filter(|n| numbered(n, "cpu").is_some())
        .filter_map(|n| Roots::number(&cpus.join(n).join("topology/physical_package_id")))
        .collect();
    (!packages.is_empty()).then_some(packages.len() as u32)
}

fn nodes(roots: &Roots) -> Vec<Node> {
    let base = roots.sys("devices/system/node");
    let mut found: Vec<Node> = Roots::names(&base)
        .iter()
        .filter_map(|name| {
            let node = numbered(name, "node")?;
            let meminfo = Roots::text(&base.join(name).join("meminfo")).unwrap_or_default();
            Some(Node {
                node,
                cpus: Roots::line(&base.join(name).join("cpulist")).unwrap_or_default(),
                memory_bytes: node_memory(&meminfo),
            })
        })
        .collect();
    found.sort_by_key(|n| n.node);
    found
}

/// `Node 0 MemTotal:  24684084 kB`, in bytes.
fn node_memory(meminfo: &str) -> Option<u64> {
    let entry = meminfo.lines().find(|l| l.contains("MemTotal:"))?;
    let kib = entry.split("MemTotal:").nth(1)?.split_whitespace().next()?;
    kib.parse::<u64>().ok()?.checked_mul(1024)
}

/// The number in `cpu12`, `node3`, `md0`.
pub(crate) fn numbered(name: &str, prefix: &str) -> Option<u32> {
    name.strip_prefix(prefix)?.parse().ok()
}

fn virtualization(roots: &Roots, cpuinfo: &str) -> Option<String> {
    if sandboxed(roots) {
        return Some("gVisor".into());
    }
    let product = Roots::line(&roots.sys("class/dmi/id/product_name"));
    let vendor = Roots::line(&roots.sys("class/dmi/id/sys_vendor"));
    let clocks = Roots::line(&roots.sys("devices/system/clocksource/clocksource0/available_clocksource"))
        .unwrap_or_default();
    let flags = Roots::field(cpuinfo, "flags").unwrap_or_default();
    let kind = if clocks.contains("kvm-clock") {
        "KVM"
    } else if clocks.contains("hyperv") {
        "Hyper-V"
    } else if clocks.contains("xen") || Roots::line(&roots.sys("hypervisor/type")).is_some() {
        "Xen"
    } else if flags.split_whitespace().any(|f| f == "hypervisor") {
        "a hypervisor"
    } else {
        return None;
    };
    let named: Vec<String> = [vendor, product].into_iter().flatten().collect();
    Some(if named.is_empty() { kind.into() } else { format!("{kind} ({})", named.join(" ")) })
}

fn container(roots: &Roots) -> Option<String> {
    if roots.root.join(".dockerenv").exists() {
        return Some("docker".into());
    }
    if roots.run.join(".containerenv").exists() {
        return Some("podman".into());
    }
    if let Some(kind) = Roots::line(&roots.run.join("systemd/container")) {
        return Some(kind);
    }
    let groups = Roots::text(&roots.proc("1/cgroup")).unwrap_or_default();
    ["kubepods", "docker", "containerd", "lxc", "libpod"]
        .iter()
        .find(|name| groups.contains(**name))
        .map(|name| name.to_string())
}

fn sandboxed(roots: &Roots) -> bool {
    let version = Roots::text(&roots.proc("version")).unwrap_or_default();
    // gVisor answers as Linux 4.4.0 and as nothing else.
    version.contains("gVisor") || version.starts_with("Linux version 4.4.0 ")
}

fn cpu_quota(roots: &Roots) -> Option<f64> {
    cpu_limits(roots).into_iter().map(|(cores, _)| cores).reduce(f64::min)
}
