"""A system and its workload, as TOML or flags say it: what a plan is made for. What can't exist is refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from forebay.emulate.workloads import RULES
from forebay.errors import RequestError
from forebay.paths import BOUNCE, GDS
from forebay.plan import catalogue, flow, jobs, models, pcie
from forebay.plan.cpu import PATHS
from forebay.plan.jobs import IO, JOB, KVCACHE
from forebay.plan.training import Ask
from forebay.units import parse_bytes, parse_gib_s

LOCATIONS = ("local", "remote")
# Elsewhere in Forebay the path through CPU memory is called by what it does there.
ALIASES = {"path": {BOUNCE: "cpu"}}
COUNT_MAX = 1_000_000


@dataclass(frozen=True)
class System:
    """`drives`, `accelerators` and `workers` × `depth` requests of `io_size` in flight are those of all `hosts` together, which
    share them evenly: local drives as a RAID 0 in each host, remote ones as one set, through a DPU in each. `accelerators` None
    asks for the greatest number. `threads`, `memory`, `cores` (for I/O; None: all threads) and `pcie`, the tree of switches,
    are of each host.
    `link`: GiB/s of the narrowest link that all bytes pass (an uplink, a NIC), `sharers` of it alike; `gpu_link`: of each GPU.
    Sizes in bytes; memory and data set in GiB. `gpus`: the published system whose GPUs train (dlrm). `samples_per_s`: of
    one accelerator that never waits (job, models). `mode`: of an inference, where its samples are at first. `rules`: whose
    variant of an emulated workload; None: the first that has it.
    `option` to `admission`: of a KV cache, as `forebay emulate kvcache` has them; None: the option's.
    `given`: the settings that were said; forebay.plan.assume settles others.
    """

    drive: str
    drives: int = 1
    location: str = "local"
    queues: int | None = None
    io_size: int = 1 << 20
    workers: int = 24
    depth: int = 1
    path: str = GDS
    link: float | None = None
    sharers: int = 1
    workload: str = IO
    accelerator: str = "h100"
    accelerators: int | None = None
    dataset: float | None = None
    memory: float = 2048.0
    threads: int = 208
    gpus: str = "D74H-7U"
    sample_bytes: float = 912.0
    pcie: tuple[pcie.Switch, ...] = ()
    gpu_link: float | None = None
    cores: int | None = None
    samples_per_s: float | None = None
    rules: str | None = None
    option: int | None = None
    users: int | None = None
    model: str | None = None
    ranks: int | None = None
    admission: int | None = None
    hosts: int = 1
    mode: str = models.RAM
    given: frozenset[str] = frozenset()

    @property
    def settings(self) -> dict[str, Any]:
        """Returns what was said, as `make` takes it."""
        return {key: getattr(self, key) for key in KEYS if key in self.given}

    @property
    def in_minutes(self) -> bool:
        return jobs.in_minutes(self.workload, self.accelerator)

    @property
    def saves(self) -> bool:
        return jobs.is_checkpoint(self.workload)

    @property
    def emulated(self) -> bool:
        """Returns whether it trains on accelerators whose AU is asked for."""
        return self.workload not in (IO, KVCACHE) and not self.in_minutes and not self.saves and not self.loads

    @property
    def trains_on(self) -> str | None:
        """Returns the name of its accelerator; None of a user's own training, whose accelerator nobody named."""
        return None if jobs.names_no_accelerator(self.workload) else self.accelerator.upper()

    @property
    def loads(self) -> bool:
        """Returns whether it is a model that is planned in seconds of what it loads first."""
        return models.loads(self.workload, self.mode)

    @property
    def modelled(self) -> bool:
        """Returns whether it is a model of `forebay train` or `forebay infer`."""
        return models.known(self.workload)

    @property
    def need(self) -> models.Model:
        """Returns what one GPU of a model takes."""
        return models.need(self.workload, self.accelerator, self._own_bytes, self.samples_per_s)

    @property
    def _own_bytes(self) -> float | None:
        """The bytes of a model's sample where they were said."""
        return self.sample_bytes if "sample_bytes" in self.given else None

    @property
    def caches(self) -> bool:
        """Returns whether it is a KV cache, which is played in virtual time."""
        return self.workload == KVCACHE

    @property
    def ask(self) -> Ask:
        """Returns the demand of one accelerator, of a workload that is emulated."""
        size = self._own_bytes if self.modelled else self.sample_bytes
        return jobs.ask(self.workload, self.accelerator, self.rules, size, self.samples_per_s)

    def load(self) -> flow.Load:
        cap = None if self.link is None else self.link / self.sharers
        return flow.Load(
            self.drive, self.io_size / 1024, self.workers, self.path, self.location == "remote", self.drives, self.depth,
            self.queues, cap, dpus=self.hosts,
        )  # fmt: skip


KV_WHOLE = ("option", "users", "ranks", "admission")
# I/Os that a KV cache has in flight where nothing is said: those of `forebay emulate kvcache`.
KV_WORKERS, KV_DEPTH = 4, 32
WHOLE = ("drives", "hosts", "queues", "workers", "depth", "sharers", "accelerators", "threads", "cores", *KV_WHOLE)
REAL_MAX = 1e15
RATES = ("link", "gpu_link")
REAL = (*RATES, "dataset", "memory", "sample_bytes", "samples_per_s")
CHOICES = {"location": LOCATIONS, "path": PATHS, "accelerator": jobs.ACCELERATORS, "rules": RULES, "mode": models.MODES}
KEYS = tuple(f.name for f in fields(System) if f.name != "given")


def make(given: Mapping[str, Any], more: list[catalogue.Drive], where: str = "plan") -> System:
    """A checked system out of settings. RequestError names the setting, what it is, and what would do."""
    unknown = sorted(set(given) - set(KEYS))
    if unknown:
        raise RequestError(f"{where}: {unknown[0]}", "is not a setting of a plan", "one of " + ", ".join(KEYS))
    settled = {key: _value(key, value, where) for key, value in given.items() if value is not None}
    if "drive" not in settled:
        raise RequestError(where, "names no drive", "--drive D7-PS1010, or drive = \"D7-PS1010\"")
    settled["drive"] = catalogue.drive(settled["drive"], more).name
    if "queues" in settled and settled.get("location", "local") == "local":
        raise RequestError(f"{where}: queues", "belong to the DPU, and a local drive has none", "location remote, or no queues")
    if "sharers" in settled and "link" not in settled:
        raise RequestError(f"{where}: sharers", "needs the link that they share", "link = 25.0 (GiB/s)")
    cores, threads = settled.get("cores"), settled.get("threads")
    if cores and threads and cores > threads:
        raise RequestError(f"{where}: cores {cores}", f"the host has {threads} threads", f"cores {threads}, or threads {cores}")
    if cores and not threads:
        settled["threads"] = max(cores, System.threads)
    if settled.get("workload") == KVCACHE:
        settled = {"workers": KV_WORKERS, "depth": KV_DEPTH, **settled}
    if "drives" not in settled:
        settled["drives"] = settled.get("hosts", 1)
    system = System(**settled, given=frozenset(key for key, value in given.items() if value is not None))
    _suits(system, where)
    _spread(system, where)
    each, hosts = sum(s.drives for s in system.pcie), 1 if system.location == "remote" else system.hosts
    if each * hosts > system.drives:
        said = f"the PCIe tree has {each}" + (f" in each of {hosts} hosts" if hosts > 1 else "")
        raise RequestError(f"{where}: drives {system.drives}", said, f"drives {each * hosts}, or a smaller tree")
    if system.queues is not None and system.queues > flow.QUEUES_MAX:
        raise RequestError(f"queues {system.queues}", f"a DPU offers at most {flow.QUEUES_MAX}", f"1 to {flow.QUEUES_MAX}")
    return system


def _spread(system: System, where: str) -> None:
    """RequestError for local drives that hosts can't share evenly."""
    hosts, drives = system.hosts, system.drives
    if system.location == "local" and drives % hosts:
        said = f"can't be spread evenly over {hosts} hosts, all of whose drives they are"
        near = hosts * max(1, round(drives / hosts))
        raise RequestError(f"{where}: drives {drives}", said, f"drives {near}, or another --hosts")


def _suits(system: System, where: str) -> None:
    """RequestError for a workload that isn't known, or settings that it has no use for."""
    infers = models.infers(system.workload)
    if system.emulated:
        _ = system.ask
    elif infers:
        _ = system.need
    elif system.accelerators is not None:
        said = f"are for emulated workloads, and {system.workload} is not one"
        said = "change nothing: a graph's features are loaded once" if system.workload == models.GNN else said
        raise RequestError(f"{where}: accelerators {system.accelerators}", said, "--workload unet3d, or no accelerators")
    if system.in_minutes and system.hosts > 1:
        said = f"are more than the one that trains {system.workload}, {system.gpus}"
        raise RequestError(f"{where}: hosts {system.hosts}", said, "no hosts")
    if "mode" in system.given and not infers:
        names = "--workload, one of " + ", ".join(name for name in models.TABLE if models.infers(name))
        raise RequestError(f"{where}: mode {system.mode}", f"is of an inference, not of {system.workload}", names)
    takes = system.workload == JOB or system.modelled and (not system.loads or infers and system.mode == models.RAM)
    if system.samples_per_s is not None and not takes:
        said = f"is for workload job; {system.workload} has a rate of its own"
        said = "changes nothing: what is planned is what loads first" if system.loads else said
        next_ = "no samples_per_s" if system.loads else "--workload job"
        raise RequestError(f"{where}: samples_per_s {system.samples_per_s:g}", said, next_)
    of_cache = [key for key in (*KV_WHOLE, "model") if getattr(system, key) is not None]
    if of_cache and not system.caches:
        said = f"is for workload {KVCACHE}, not for {system.workload}"
        raise RequestError(f"{where}: {of_cache[0]} {getattr(system, of_cache[0])}", said, f"--workload {KVCACHE}")
    if system.rules is not None and (not system.emulated or system.modelled or system.workload == JOB):
        raise RequestError(f"{where}: rules {system.rules}", f"are for emulated workloads, not for {system.workload}", "no rules")


def _value(key: str, value: Any, where: str) -> Any:
    if key == "io_size":
        if isinstance(value, str) and value.strip().isdigit():
            raise RequestError(f"{where}: io_size {value}", "has no unit", f"{value}k or {value}m, or {value}b for bytes")
        size = value if isinstance(value, int) and not isinstance(value, bool) else parse_bytes(value, "io_size")
        return _within(key, size, 512, 1 << 30, where)
    if key == "pcie":
        return pcie.switches(value, where)
    if key in WHOLE:
        if isinstance(value, bool) or not isinstance(value, int):
            raise RequestError(f"{where}: {key} {value}", "is not a whole number", f"{key} 1 or more")
        return _within(key, value, 1, COUNT_MAX, where)
    if key in RATES and isinstance(value, str):
        value = parse_gib_s(value, f"{where}: {key}")
    if key in REAL:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < REAL_MAX:
            raise RequestError(f"{where}: {key} {str(value)[:60]}", "is not a number above 0", f"{key} 100.0")
        return float(value)
    if not isinstance(value, str):
        raise RequestError(f"{where}: {key} {value}", "is not text", f'{key} = "…"')
    value = ALIASES.get(key, {}).get(value, value)
    if key in CHOICES and value not in CHOICES[key]:
        known = ", ".join((*CHOICES[key], *ALIASES.get(key, {})))
        raise RequestError(f"{where}: {key} '{value}'", "is not known", f"one of {known}")
    return value


def _within(key: str, value: int, low: int, high: int, where: str) -> int:
    if not low <= value <= high:
        raise RequestError(f"{where}: {key} {value}", f"must be {low} to {high}", f"{key} {max(low, min(high, value))}")
    return value


def read(path: str) -> dict[str, Any]:
    """The settings of a TOML file: [system] and [workload], or all at the top. RequestError for a key given twice."""
    document = catalogue.load_toml(catalogue.read_text(path, "plan"), path)
    settings: dict[str, Any] = {}
    for part in (document, document.get("system", {}), document.get("workload", {})):
        if not isinstance(part, dict):
            # At the top, workload = "unet3d" is a setting and no table.
            continue
        for key, value in part.items():
            if isinstance(value, dict) or key == "drive" and isinstance(value, list):
                continue
            if key in settings and settings[key] != value:
                raise RequestError(f"{path}: {key}", f"is both {settings[key]} and {value}", "one of them")
            settings[key] = value
    return settings
