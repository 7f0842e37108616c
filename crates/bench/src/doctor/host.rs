//! Processor, kernel, NUMA nodes, and virtualisation.

pub(crate) use forebay_io::HostFacts;
use forebay_io::{counted, Check, CheckArea, CheckState, Roots};

pub(crate) fn checks(host: &HostFacts) -> Vec<Check> {
    let mut checks = vec![processor(host), numa(host), kernel(host)];
    checks.push(governor(host));
    checks
}

fn processor(host: &HostFacts) -> Check {
    let mut found = format!("{}, {}", host.cpu, counted(host.cores as usize, "core"));
    if let Some(sockets) = host.sockets {
        found += &format!(", {}", counted(sockets as usize, "socket"));
    }
    let check = |state, found| Check::new(CheckArea::Machine, "cpu", "processor", state, found);
    if let Some(quota) = host.cpu_quota_cores.filter(|q| *q < f64::from(host.cores)) {
        return check(CheckState::Limited, format!("{found}; the cgroup grants {quota:.1}"))
            .why("a container's CPU limit throttles in bursts, which shows as latency spikes")
            .next(format!("start the container with --cpus={}", host.cores));
    }
    let allowed = host.allowed_cpus.as_ref().map_or(host.cores as usize, Vec::len);
    if allowed > 0 && allowed < host.cores as usize {
        let list = Roots::show_list(host.allowed_cpus.as_deref().unwrap_or_default());
        return check(CheckState::Limited, format!("{found}; this process may use {list}"))
            .why("its CPU affinity or cpuset leaves the others out")
            .next(format!("taskset -c 0-{} forebay …", host.cores.saturating_sub(1)));
    }
    check(CheckState::Works, found)
}

fn numa(host: &HostFacts) -> Check {
    let check = |state, found| Check::new(CheckArea::Machine, "numa", "NUMA nodes", state, found);
    if host.numa.is_empty() {
        return check(CheckState::Unknown, "not reported".into())
            .why("the kernel shows no /sys/devices/system/node");
    }
    let nodes: Vec<String> = host.numa.iter().map(|n| format!("node {}: CPUs {}", n.node, n.cpus)).collect();
    check(CheckState::Works, nodes.join("; "))
}

fn kernel(host: &HostFacts) -> Check {
    let mut found = format!("{} ({})", host.kernel, host.os);
    if let Some(virtualization) = &host.virtualization {
        found += &format!(", under {virtualization}");
    }
    if let Some(container) = &host.container {
        found += &format!(", in a container ({container})");
    }
    let check = |state| Check::new(CheckArea::Machine, "kernel", "kernel", state, found);
    if host.sandboxed_kernel {
        return check(CheckState::Limited)
            .why(
                "a sandboxed kernel copies every byte once more and has no io_uring: don't quote its figures",
            )
            .next("run on a machine, or with a container runtime, that uses the Linux kernel itself");
    }
    check(CheckState::Works)
}

fn governor(host: &HostFacts) -> Check {
    let check =
        |state, found: &str| Check::new(CheckArea::Machine, "governor", "CPU frequency", state, found);
    match host.governor.as_deref() {
        None => check(CheckState::NotApplicable, "no frequency control visible"),
        Some(name @ ("powersave" | "conservative" | "ondemand" | "userspace")) => {
            check(CheckState::Limited, name)
                .why("the clock adapts to the load late, so latency depends on what ran before")
                .next("sudo cpupower frequency-set -g performance")
        }
        Some(name) => check(CheckState::Works, name),
    }
}
