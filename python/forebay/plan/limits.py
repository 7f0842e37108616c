"""Bounds of a system besides its drives and DPU: a named link, PCIe uplinks, the GPUs' links, the host's cores."""

from __future__ import annotations

import math

from forebay.paths import GDS
from forebay.plan import flow, pcie
from forebay.plan.estimate import Z80
from forebay.plan.frozen import replace
from forebay.plan.planner import Planner
from forebay.plan.system import JOB, System


def links(system: System) -> dict[str, float]:
    """GiB/s of all reads together by each link that may bound it. Empty where nothing is said of links."""
    found: dict[str, float] = {}
    if system.link is not None:
        found["link"] = system.link / system.sharers
    # Emulated accelerators, and entries of a KV cache, end in memory; a real job's bytes go on to GPUs.
    in_memory = system.caches or system.emulated and system.workload != JOB and not system.modelled
    if system.pcie:
        to = pcie.MEMORY if in_memory else pcie.DIRECT if system.path == GDS else pcie.STAGED
        remote = system.location == "remote"
        drives = system.drives if remote else system.drives // system.hosts
        found |= {name: most * system.hosts for name, most in pcie.limits(system.pcie, drives, remote, to).items()}
    if system.gpu_link is not None and not in_memory:
        found["GPU links"] = system.gpu_link * max(1, sum(s.gpus for s in system.pcie)) * system.hosts
    return found


def cores_of(system: System) -> int:
    """Cores that I/O may use, of all hosts."""
    return min(system.cores or system.threads, system.threads) * system.hosts


def limits(planner: Planner, system: System) -> dict[str, float]:
    """The links, and the hosts' cores: those that I/O may use, else as many as they have threads."""
    found = links(system)
    cores = cores_of(system)
    found["host cores"] = planner.cores.most_gibps(system.path, system.io_size / 1024, cores)
    return found


def way(planner: Planner, system: System) -> tuple[float, str, float]:
    """GiB/s of what lies between the drives and whoever reads as much as it can, which that is (a link, cores, a DPU's
    queues), and the standard deviation of its logarithm: a link is known, the others are estimated.
    """
    found = {name: (most, 0.0) for name, most in limits(planner, system).items()}
    cores, _ = found["host cores"]
    found["host cores"] = (cores, planner.cores.log_sd(system.path, system.io_size / 1024))
    if system.location == "remote":
        rate, unsure = planner.flow.queues_gibps(system.queues)
        found["DPU queues"] = (rate * system.hosts, unsure)
    name = min(found, key=lambda n: found[n][0])
    # Where the narrowest is unsure, it may let more through than the next one does at its best: that one then limits.
    most = min(rate * math.exp(Z80 * sd) for rate, sd in found.values())
    return found[name][0], name, math.log(most / found[name][0]) / Z80


def load(planner: Planner, system: System) -> flow.Load:
    """The system's load, bounded by the narrowest of its limits."""
    found = limits(planner, system)
    name = min(found, key=lambda n: found[n])
    return replace(system.load(), cap_gibps=found[name], cap_name=name)


def next_cap(planner: Planner, system: System, without: str) -> tuple[float | None, str]:
    """The narrowest limit besides one, for what follows when that is gone."""
    found = {n: v for n, v in limits(planner, system).items() if n != without}
    name = min(found, key=lambda n: found[n]) if found else "link"
    return found.get(name), name
