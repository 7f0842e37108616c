"""Settings that end a section early, and those of its NUMA nodes: `rate_min`, `ss`, `exitall`, `numa_…`."""

from __future__ import annotations

import re

from forebay.fio.offsets import Offsets
from forebay.units import GIB

_STEADY = re.compile(r"(iops|bw|lat)(_slope)?:([0-9]{1,12}(?:\.[0-9]{1,9})?)%")
_NODES = re.compile(r"[0-9]{1,4}(-[0-9]{1,4})?(,[0-9]{1,4}(-[0-9]{1,4})?)*")
WHAT = ("group", "stonewall", "all")


class Endings(Offsets):
    """A section that ends early, or ends others."""

    def endings(self, threads: int) -> str:
        """Returns which others end with it: one of `WHAT`; empty where none do."""
        self.least_rates(threads)
        self.steady(threads)
        exits, what = self.flag("exitall", False), self.left.pop("exit_what", "group")
        if what not in WHAT:
            raise self.wrong("exit_what", what, f"is not one of {', '.join(WHAT)}", "exit_what=group")
        if exits and "wait_for" in self.left:
            self.leave_out("exitall", "1", "with wait_for a section could be ended before its turn; use stonewall")
        return what if exits else ""

    def least_rates(self, threads: int) -> None:
        for key, name, unit in (("rate_min", "rate_min_gib_s", 1 / GIB), ("rate_iops_min", "rate_min_iops", 1.0)):
            text = self.left.pop(key, "0")
            least = [self.size(key, part) if part else 0 for part in (p.strip() for p in text.split(","))]
            if not any(least):
                continue
            if len(least) > 3:
                raise self.wrong(key, text, "has more than three parts", f"{key}=10m")
            if "read_pct" in self.fields:
                self.leave_out(key, text, "in a mixed job fio applies a minimum rate to each direction")
                continue
            own = least[min(1, len(least) - 1)] if self.is_write() else least[0]
            if own:
                self.fields[name] = own * threads * unit

    def steady(self, threads: int) -> None:
        """`ss=iops:10%`, watched second by second."""
        rule, window, skip = self.left.pop("ss", ""), self.seconds("ss_dur"), self.seconds("ss_ramp") or 0.0
        every = self.seconds("ss_interval")
        every = 1.0 if every is None else every
        if not rule:
            return
        found = _STEADY.fullmatch(rule)
        if not found or not float(found[3]):
            self.leave_out("ss", rule, "must be iops, bw, lat or one of their slopes, as a percentage")
        elif not window or not 0.01 <= every <= window / 3:
            self.leave_out("ss", rule, "ss_dur must be at least three times ss_interval")
        elif threads > 1 and "group_reporting" not in self.left:
            self.leave_out("ss", rule, "the jobs of a section are judged together; add group_reporting")
        elif every * 1000 > (1 << 32) - 1:
            raise self.wrong("ss_interval", str(every), "is longer than 49 days", "ss_interval=1s")
        else:
            self.fields["steady"] = f"{found[1]}{found[2] or ''}={found[3]},window={window:.6g},skip={skip:.6g}"
            self.fields["interval_ms"] = round(every * 1000)

    def nodes(self) -> None:
        """NUMA nodes for threads, and for memory."""
        nodes, policy = self.left.pop("numa_cpu_nodes", ""), self.left.pop("numa_mem_policy", "default")
        if nodes and not _NODES.fullmatch(nodes):
            raise self.wrong("numa_cpu_nodes", nodes, "is not a list of nodes", "numa_cpu_nodes=0-1")
        if nodes.isdigit():
            self.fields["numa"] = int(nodes)
        elif nodes:
            self.fields["cpus"] = f"nodes:{nodes}"
            self.notes.append("each worker keeps to one CPU of numa_cpu_nodes, in turn; in fio each may use all of them")
        kind, _, places = policy.partition(":")
        if kind == "interleave":
            if not _NODES.fullmatch(places):
                raise self.wrong("numa_mem_policy", policy, "names no nodes", "numa_mem_policy=interleave:0-1")
            self.fields["numa_interleave"] = places
        elif policy not in ("default", "local") and policy != f"bind:{self.fields.get('numa')}":
            self.leave_out("numa_mem_policy", policy, "memory is on the node of its threads, or interleaved over nodes")
