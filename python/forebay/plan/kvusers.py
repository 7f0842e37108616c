"""`forebay plan recommend --kv-users`: the drives on which the requests of so many users are served in time.

The users of MLPerf Storage v3.0 ask and don't wait, 0.3 to 0.9 s apart, so what they ask for doesn't depend on the storage: less
than that, and the queue grows for as long as one looks. A number of drives suffices if, at the lower end of the interval, next
to no request is left in the queue, and 95 % are served to their end (own entry written, and read for every 32 tokens of output)
within the bound. Capacity, parity, endurance and prices are as for any other purchase; users may write all day, so each choice
says how many years its drives endure that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from forebay.errors import RequestError
from forebay.numbers import figure
from forebay.plan import assume, catalogue, decide, kvcache
from forebay.plan.frozen import replace
from forebay.plan.kvcache import LEFT_MOST, Part, Play, Spec
from forebay.plan.planner import Planner
from forebay.plan.recommend import DAYS, Needs, command, fewest
from forebay.plan.system import System
from forebay.units import GIB

# A choice of ours: no whole entry moves within the 50 ms to 1 s that the workload names as its targets.
P95_S, P95_MAX_S = 10.0, 3600.0
DRIVES_MAX = 128
USERS_MAX = 10_000
# The search plays so much of the window; its answer is then played whole.
SEARCH_S = 60.0
DAY_S = 86_400
# A drive that never limits.
AMPLE = "model:gen5-ideal?drives=1000&read_mb_s=1000000&write_mb_s=1000000"
AMPLE_IN_FLIGHT = {"workers": 1024, "depth": 1024}


@dataclass(frozen=True)
class Asked:
    """Users of each rank, and the seconds within which 95 % of requests must have ended."""

    users: int
    p95_s: float

    def check(self) -> None:
        if not 1 <= self.users <= USERS_MAX:
            raise RequestError(f"--kv-users {self.users}", f"must be 1 to {USERS_MAX}", "--kv-users 50")
        if not 0 < self.p95_s <= P95_MAX_S:
            raise RequestError(f"--p95 {self.p95_s:g}", "must be above 0 and at most an hour", f"--p95 {P95_S:g}s")


@dataclass
class Trial:
    """Runs of one drive model, by users and number of drives; each is played once."""

    planner: Planner
    system: System
    asked: Asked
    play: Play
    option: Callable[[int], Spec]

    def __post_init__(self) -> None:
        self._whole: dict[tuple[int, int], Part] = {}

    def part(self, drives: int, users: int, whole: bool, low: bool = True) -> Part:
        system = replace(self.system, drives=drives, users=users)
        spec, storage = kvcache.spec_of(system, self.option), kvcache.storage(self.planner, system)
        factors = kvcache.slower(spec["option"]) if low else (1.0, 1.0)
        seconds = spec["duration_s"] if whole else min(SEARCH_S, spec["duration_s"])
        return self.play(spec | {"dir": storage.source(factors, low), "duration_s": seconds})

    def serves(self, drives: int, users: int) -> bool:
        """In the shorter window; where that goes well, in the whole one."""
        if not self.in_time(self.part(drives, users, whole=False)):
            return False
        self._whole[drives, users] = self.part(drives, users, whole=True)
        return self.in_time(self._whole[drives, users])

    def at_end(self, drives: int, users: int) -> Part:
        """The whole run at the lower end."""
        return self._whole.get((drives, users)) or self.part(drives, users, whole=True)

    def in_time(self, part: Part) -> bool:
        return late(part) is None and part["latency_ms"]["request"]["p95"] <= 1000 * self.asked.p95_s

    def limit(self, part: Part, drives: int) -> str:
        system = replace(self.system, drives=drives)
        return kvcache.storage(self.planner, system).limit(part, kvcache.spec_of(system, self.option))


def late(part: Part) -> float | None:
    """The share of requests that were never taken up, where it is more than next to none."""
    offered, left = part["requests"]["offered"], part["requests"]["left_queued"]
    return left / offered if not part["requests"]["served"] or left > LEFT_MOST * offered else None


def recommend(
    planner: Planner,
    system: System,
    asked: Asked,
    drives: Sequence[catalogue.Drive],
    play: Play,
    option: Callable[[int], Spec],
    reported: Callable[[float], None] = lambda share: None,
    needs: Needs | None = None,
    by: str = "drives",
    sources: Sequence[str] = (),
) -> dict[str, Any]:
    """forebay.recommend/1. No choice is an answer, with the reason. RequestError for what can't be. `sources`: see
    forebay.plan.recommend.command."""
    asked.check()
    needs = needs or Needs()
    needs.check()
    demand = demand_gib_s(system, asked, play, option)
    choices: list[dict[str, Any]] = []
    short: list[dict[str, Any]] = []
    left_out: list[str] = []
    for number, drive in enumerate(drives):
        reported(number / len(drives))
        least, lacking = needs.least(drive)
        lacking = lacking or ("no seq_write_mbps given" if drive.seq_write_mbps is None else "")
        lacking = lacking or (f"no {by} given" if by != "drives" and getattr(drive, by) is None else "")
        if lacking:
            left_out.append(f"{drive.name}: {lacking}")
            continue
        trial = Trial(planner, replace(system, drive=drive.name), asked, play, option)
        found = choice(trial, demand, needs, least, sources)
        (short if "reason" in found else choices).append(found)
    choices.sort(key=lambda c: (c[by], c["drives"], c["p95_ms"]))
    spec = kvcache.spec_of(replace(system, users=asked.users), option)
    first = next(iter(choices or short), None)
    bought = replace(system, drive=first["drive"], drives=first["drives"]) if first else system
    return {
        "schema": "forebay.recommend/1",
        "target": {"kv_users": asked.users, "p95_s": asked.p95_s},
        "by": by,
        "decision": decision(asked, spec, choices, short),
        "assumed": [a.document() for a in assume.listed(planner, bought)] if first else [],
        "needs": {k: v for k, v in needs.__dict__.items() if v is not None and k not in ("bays",)},
        "kvcache": {key: spec[key] for key in ("option", "model", "users", "ranks", "admission", "duration_s", "seed")},
        "demand_gib_s": {"read": demand[0], "write": demand[1]},
        "choices": choices,
        "not_enough": short,
        "advice": advice(choices, short, demand, asked),
        "left_out": left_out,
        "assumptions": [MEANING, *(first.pop("assumptions") if first else [])],
        "interval": kvcache.basis(spec["option"]),
        "warnings": [] if spec["option"] in kvcache.OF_DRIVES else [kvcache.OF_CLIENT],
    }


def decision(asked: Asked, spec: Spec, choices: Sequence[dict[str, Any]], short: Sequence[dict[str, Any]]) -> str:
    """The first choice in a sentence; without one, what comes nearest."""
    whom = f"{asked.users} users of option {spec['option']}"
    if choices:
        one = choices[0]
        ends = ", ".join(f"{figure(one[key] / 1000)} s{at}" for key, at in (("p95_ms", ""), ("p95_ms_p90", " at the low end")))
        parity = f" ({one['parity_drives']} of them for parity)" if one["parity_drives"] else ""
        said = f"{whom}: {one['drives']} × {one['drive']}{parity} on one host; 95 % of requests end within {ends}"
        return f"{said}; {one['users_max']} users at most; what limits it is {decide.words(one['limit'])}."
    if not short:
        return f"no drive of the catalogue could be tried for {whom}."
    best = max(short, key=lambda c: c["users_max"])
    return f"no drive serves {whom}; {best['drives']} × {best['drive']} come nearest: {best['users_max']}; {best['reason']}."


MEANING = (
    "p95: of the time from a request's arrival until it is served: its entry written, and read for every 32 tokens of output, "
    f"all classes together; at most {LEFT_MOST:.0%} of requests may be left in the queue; one seed"
)


def demand_gib_s(system: System, asked: Asked, play: Play, option: Callable[[int], Spec]) -> tuple[float, float]:
    """GiB/s that these users read and write where nothing holds them back."""
    spec = kvcache.spec_of(replace(system, users=asked.users), option) | AMPLE_IN_FLIGHT
    part = play(spec | {"dir": AMPLE, "duration_s": min(SEARCH_S, spec["duration_s"])})
    return part["read_gib_s"]["window"], part["write_gib_s"]["window"]


def choice(
    trial: Trial, demand: tuple[float, float], needs: Needs, least: int, sources: Sequence[str] = ()
) -> dict[str, Any]:
    """The fewest drives of a model, `least` or more, that serve these users, and how many users they could serve; else why
    none do."""
    one = kvcache.storage(trial.planner, replace(trial.system, drives=1))
    load = max(rate / each for rate, each in zip(demand, sheet_gib_s(one), strict=True))
    least = max(least, math.ceil((1 - 2 * LEFT_MOST) * load))
    users = trial.asked.users
    found = fewest(lambda n: trial.serves(n, users), least, DRIVES_MAX) if least <= DRIVES_MAX else None
    if found is None:
        return short_of(trial, least)
    most = most_users(lambda n: trial.serves(found, n), users)
    low, usual = trial.at_end(found, users), trial.part(found, users, whole=True, low=False)
    bought = found + needs.parity
    writes = usual["write_gib_s"]["window"] * GIB * DAY_S / 1e12
    sheet = one.drive
    endured = None if sheet.endurance_pbw is None else 1000 * sheet.endurance_pbw * found
    return {
        "drive": trial.system.drive,
        "drives": bought,
        "parity_drives": needs.parity,
        "hosts": 1,
        "requests": trial.system.workers * trial.system.depth,
        "queues": trial.system.queues,
        "price": None if sheet.price is None else sheet.price * bought + (needs.host_price or 0.0),
        "watts": None if sheet.watts is None else sheet.watts * bought,
        "capacity_tb": None if sheet.capacity_tb is None else sheet.capacity_tb * found,
        "writes_tb_day": writes,
        "endures_years": endured / (writes * DAYS) if endured and writes else None,
        "users_max": most,
        "users_per_drive": most / found,
        "p95_ms": usual["latency_ms"]["request"]["p95"],
        "p95_ms_p90": low["latency_ms"]["request"]["p95"],
        "entry_read_p95_ms": usual["latency_ms"]["entry_read"]["p95"],
        "entry_write_p95_ms": usual["latency_ms"]["entry_write"]["p95"],
        "read_gib_s": usual["read_gib_s"]["window"],
        "write_gib_s": usual["write_gib_s"]["window"],
        "left_queued": usual["requests"]["left_queued"],
        "offered": usual["requests"]["offered"],
        "limit": trial.limit(usual, found),
        "command": command(replace(trial.system, users=users, given=trial.system.given | {"users"}), bought, sources),
        "assumptions": usual["assumptions"],
    }


def sheet_gib_s(storage: kvcache.Storage) -> tuple[float, float]:
    """Reads and writes of its drives alone, at their data sheet."""
    return replace(storage, cap=math.inf, cap_sd=0.0).gib_s()


def most_users(serves: Callable[[int], bool], least: int) -> int:
    """The greatest number that is served; `least` is."""
    refused = fewest(lambda n: not serves(n), least + 1, USERS_MAX)
    return refused - 1 if refused else USERS_MAX


def short_of(trial: Trial, least: int) -> dict[str, Any]:
    """Why DRIVES_MAX drives don't serve these users, and how many they do serve."""
    part = trial.part(DRIVES_MAX, trial.asked.users, whole=False)
    limit, left = trial.limit(part, DRIVES_MAX), late(part)
    p95 = part["latency_ms"]["request"]["p95"]
    why = f"{100 * left:.0f} % of requests are left in the queue" if left else f"P95 is {p95 / 1000:.1f} s"
    return {
        "drive": trial.system.drive,
        "drives": DRIVES_MAX,
        "drives_least": least,
        "users_max": most_users(lambda n: trial.in_time(trial.part(DRIVES_MAX, n, whole=False)), 0),
        "p95_ms": p95,
        "read_gib_s": part["read_gib_s"]["window"],
        "write_gib_s": part["write_gib_s"]["window"],
        "limit": limit,
        "reason": f"{limit}: {why}",
        "next": remedy(trial, limit, least),
        "assumptions": part["assumptions"],
    }


def remedy(trial: Trial, limit: str, least: int) -> str:
    """Flags that would change it."""
    spec = kvcache.spec_of(trial.system, trial.option)
    if limit == "admission":
        return f"--admission {2 * spec['admission']}, which the closed division doesn't allow"
    if limit == "requests in flight":
        return f"--workers {2 * spec['workers']}, or --depth {2 * spec['depth']}" + (
            f", and {least} drives or more" if least > DRIVES_MAX else ""
        )
    if limit == "users":
        return "a longer --p95: no more drives change what one entry takes"
    if limit == "drive bandwidth":
        return f"{least} drives or more, of which {DRIVES_MAX} are tried, or fewer --kv-users"
    return f"a wider way to the host than {limit}, or fewer --kv-users"


def advice(
    choices: Sequence[dict[str, Any]], short: Sequence[dict[str, Any]], demand: tuple[float, float], asked: Asked
) -> list[str]:
    """What these users ask for, and, where nothing serves them, what would."""
    each = demand[0] / asked.users
    found = [
        f"these users never wait for an answer: they ask for {demand[0]:.0f} GiB/s of reads, {each:.1f} each, whatever the "
        "storage gives; users who wait ask for less"
    ]
    if not choices and short:
        best = max(short, key=lambda c: c["users_max"])
        found.append(f"no drive serves them with {DRIVES_MAX}; {best['drive']} serves {best['users_max']}. {best['reason']}")
        found.append(f"what would change it: {best['next']}")
    return found
