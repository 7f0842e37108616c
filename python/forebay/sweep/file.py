"""A sweep as its TOML file says it. Whatever doesn't fit is refused with the file, the line and the key."""

from __future__ import annotations

import difflib
import importlib
import re
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from forebay import pipes
from forebay.errors import RequestError
from forebay.flags import paths, set_field
from forebay.sweep.fabric import NEEDS

FILE_BYTES_MAX = 1 << 20
ROUNDS_MAX = 10_000
ORDERS = ("as written", "interleaved", "random")
TOP_KEYS = (
    "title",
    "method",
    "cites",
    "order",
    "seed",
    "rounds",
    "alternate",
    "fallback",
    "workers_each",
    "needs",
    "job",
    "matrix",
    "point",
    "system",
    "drives",
)
DRIVES_MAX, GPUS_MAX = 1024, 4096

# One value of one axis, as the job fields that it sets: {"io_bytes": 65536}
Setting = dict[str, Any]


@dataclass(frozen=True)
class System:
    """GPUs that train together, and the kinds of drives that feed them."""

    name: str
    gpus: int
    drives: tuple[str, ...]


@dataclass(frozen=True)
class Sweep:
    """`groups`: each [[point]] as axes of its own; `matrix`: axes that multiply every group.

    `alternate` names a job field whose values run in turn, round after round, before anything else
    changes. `fallback`: for a path that can't run here, the paths to try instead. `workers_each`: the
    workers of a point are those of each pair, where there are pairs.
    """

    name: str
    origin: str
    job: Setting
    matrix: list[list[Setting]]
    groups: list[list[list[Setting]]]
    title: str = ""
    method: str = ""
    cites: list[str] = field(default_factory=list)
    order: str = "as written"
    seed: int = 7
    rounds: int = 1
    alternate: str | None = None
    fallback: dict[str, list[str]] = field(default_factory=dict)
    workers_each: bool = False
    # What runs beside it: `target`, `gateway`; points name them `{target}` and `{gateway}`, the source `{source}`.
    needs: tuple[str, ...] = ()
    # A sweep of trainings in place of jobs: its systems, and how many of each kind of drive feed one.
    systems: tuple[System, ...] = ()
    drives: tuple[int, ...] = ()


def presets() -> dict[str, str]:
    """Name → TOML text of each sweep that comes with Forebay."""
    folder = resources.files("forebay").joinpath("data").joinpath("sweeps")
    found = sorted((f for f in folder.iterdir() if f.name.endswith(".toml")), key=lambda f: f.name)
    return {f.name.removesuffix(".toml"): f.read_text("utf-8") for f in found}


def load(name: str) -> Sweep:
    """The sweep in a file, or the preset of that name. A file wins over a preset of the same name."""
    path = Path(name)
    known = presets()
    if name in known and not path.is_file():
        return parse(known[name], name, f"preset {name}")
    pipes.refuse_to_read(path, f"sweep {name}")
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
        if len(data) > FILE_BYTES_MAX:
            raise RequestError(name, "is larger than 1 MiB, so it isn't a sweep", "forebay sweep --list")
        text = data.decode("utf-8")
    except OSError as error:
        next = f"a TOML file, or one of {', '.join(known)}"
        raise RequestError(
            f"sweep {name}", f"is neither a preset nor a readable file ({error.strerror})", next
        ) from error
    except UnicodeDecodeError as error:
        raise RequestError(name, f"is not UTF-8 text (byte {error.start})", "a TOML file") from error
    return parse(text, path.stem, name)


def parse(text: str, name: str, origin: str) -> Sweep:
    """`origin` is what messages call the file. Raises RequestError."""
    return _Reader(text, origin).sweep(name)


class _Reader:
    """Keeps the text beside its values, for the line in a message."""

    def __init__(self, text: str, origin: str) -> None:
        self.text, self.origin = text, origin

    def sweep(self, name: str) -> Sweep:
        top = self._toml()
        for key in top:
            if key not in TOP_KEYS:
                near = difflib.get_close_matches(key, TOP_KEYS, n=1)
                raise self._bad("", key, "is not a key of a sweep", near[0] if near else f"one of {', '.join(TOP_KEYS)}")
        groups = [
            self._axes(f"point {i}", self._table(g, "point")) for i, g in enumerate(self._points(top), 1)
        ]
        sweep = Sweep(
            name=name,
            origin=self.origin,
            job=self._job(self._table(top.get("job", {}), "job")),
            matrix=self._axes("matrix", self._table(top.get("matrix", {}), "matrix")),
            groups=groups,
            title=self._typed(top, "title", str, ""),
            method=self._typed(top, "method", str, ""),
            cites=self._texts("cites", top.get("cites", [])),
            order=self._order(top),
            seed=self._typed(top, "seed", int, 7),
            rounds=self._rounds(top),
            alternate=self._alternate(top),
            fallback=self._fallback(self._table(top.get("fallback", {}), "fallback")),
            workers_each=self._switch(top, "workers_each"),
            needs=self._needs(top),
            systems=self._systems(top),
            drives=self._drives(top),
        )
        if sweep.alternate and sweep.order != "as written":
            raise self._bad(
                "", "alternate", f'contradicts order = "{sweep.order}"', 'order = "as written"'
            )
        return sweep

    def _toml(self) -> dict[str, Any]:
        try:
            toml: Any = importlib.import_module("tomllib")
        except ModuleNotFoundError:  # Python 3.10
            toml = importlib.import_module("tomli")
        try:
            return toml.loads(self.text)
        except toml.TOMLDecodeError as error:
            raise RequestError(self.origin, f"is not TOML: {error}", "docs/sweep.md has examples") from error
        except RecursionError as error:
            raise RequestError(self.origin, "is nested too deeply", "docs/sweep.md has examples") from error

    def _points(self, top: dict[str, Any]) -> list[Any]:
        points = top.get("point", [])
        if not isinstance(points, list):
            raise self._bad("", "point", "is not a list of tables", "[[point]] with two brackets")
        return points

    def _job(self, table: dict[str, Any]) -> Setting:
        job: Setting = {}
        for key, value in table.items():
            if isinstance(value, list) and key not in (
                "source",
                "sources",
                "gpu",
                "pair",
                "power",
                "overwrite",
                "overwrite-device",
            ):
                raise self._bad(
                    "job",
                    key,
                    "is a list, but [job] holds what is common to all points",
                    "[matrix] for lists",
                )
            self._set_field(job, "job", key, value)
        return job

    def _axes(self, where: str, table: dict[str, Any]) -> list[list[Setting]]:
        """Each key is an axis: a list is its values, anything else its only one."""
        axes = []
        for key, values in table.items():
            values = values if isinstance(values, list) else [values]
            if not values:
                raise self._bad(where, key, "is an empty list, so no point would run", "at least one value")
            axis: list[Setting] = []
            for value in values:
                axis.append({})
                self._set_field(axis[-1], where, key, value)
            axes.append(axis)
        return axes

    def _set_field(self, job: Setting, where: str, key: str, value: Any) -> None:
        parts = value if isinstance(value, list) else [value]
        if not all(isinstance(p, (str, int, float)) for p in parts):
            raise self._bad(
                where, key, f"has a {type(parts[0]).__name__} for a value", "a string, a number, true or false"
            )
        try:
            set_field(job, key, value)
        except RequestError as error:
            raise RequestError(
                f"{self._place(where, key)}: {error.asked}", error.found, error.next
            ) from error

    def _order(self, top: dict[str, Any]) -> str:
        order = self._typed(top, "order", str, "as written")
        if order not in ORDERS:
            raise self._bad("", "order", f'is "{order}"', f"one of {', '.join(ORDERS)}")
        return order

    def _rounds(self, top: dict[str, Any]) -> int:
        rounds = self._typed(top, "rounds", int, 1)
        if not 1 <= rounds <= ROUNDS_MAX:
            raise self._bad("", "rounds", f"is {rounds}, not 1 to {ROUNDS_MAX:,}", "rounds = 5")
        return rounds

    def _alternate(self, top: dict[str, Any]) -> str | None:
        name = self._typed(top, "alternate", str, None)
        if name is None:
            return None
        from forebay.flags import by_name

        if name not in by_name():
            raise self._bad(
                "", "alternate", f'names "{name}", which is not a field of a job', 'alternate = "path"'
            )
        return by_name()[name].key

    def _fallback(self, table: dict[str, Any]) -> dict[str, list[str]]:
        for path, instead in table.items():
            for name in [path, *self._texts("fallback", instead)]:
                if name not in paths():
                    raise self._bad(
                        "fallback", path, f'names "{name}", which is not a path', f"one of {', '.join(paths())}"
                    )
        return table

    def _needs(self, top: dict[str, Any]) -> tuple[str, ...]:
        needs = self._texts("needs", top.get("needs", []))
        for name in needs:
            if name not in NEEDS:
                raise self._bad("", "needs", f'names "{name}"', f"some of {', '.join(NEEDS)}")
        if "gateway" in needs and "target" not in needs:
            raise self._bad("", "needs", "has a gateway and no target", 'needs = ["target", "gateway"]')
        return tuple(needs)

    def _systems(self, top: dict[str, Any]) -> tuple[System, ...]:
        tables = top.get("system", [])
        jobs = set(top) & {"job", "matrix", "point", "fallback", "alternate", "needs"}
        if not isinstance(tables, list) or (tables and jobs):
            raise self._bad("", "system", "is no list of tables, or stands beside jobs", "[[system]] alone: it runs no jobs")
        found: list[System] = []
        for table in map(lambda one: self._table(one, "system"), tables):
            name, gpus = self._typed(table, "name", str, None), self._typed(table, "gpus", int, None)
            drives = self._texts("drives", table.get("drives", []))
            if not name or gpus is None or not 1 <= gpus <= GPUS_MAX or not drives or set(table) - {"name", "gpus", "drives"}:
                wanted = 'name = "MINE", gpus = 8, drives = ["D7-PS1010"], and nothing else'
                raise self._bad("", "system", f"number {len(found) + 1} isn't a name, 1 to {GPUS_MAX} gpus and drives", wanted)
            found.append(System(name, gpus, tuple(drives)))
        return tuple(found)

    def _drives(self, top: dict[str, Any]) -> tuple[int, ...]:
        counts = top.get("drives", [])
        good = isinstance(counts, list) and all(type(n) is int and 1 <= n <= DRIVES_MAX for n in counts)
        if not good or sorted(set(counts)) != counts or bool(counts) != bool(top.get("system")):
            raise self._bad("", "drives", "is no list of rising whole numbers beside [[system]]", "drives = [1, 2, 4, 8]")
        return tuple(counts)

    def _table(self, value: Any, key: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self._bad("", key, "is not a table", f"[{key}]")
        return value

    def _texts(self, key: str, value: Any) -> list[str]:
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise self._bad("", key, "is not a list of strings", f'{key} = ["…"]')
        return value

    def _switch(self, top: dict[str, Any], key: str) -> bool:
        value = top.get(key, False)
        if not isinstance(value, bool):
            raise self._bad("", key, f"is {value!r}", f"{key} = true")
        return value

    def _typed(self, top: dict[str, Any], key: str, kind: type, default: Any) -> Any:
        value = top.get(key, default)
        if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
            raise self._bad("", key, f"is {value!r}", "a text" if kind is str else "a whole number")
        return value

    def _bad(self, where: str, key: str, found: str, next: str) -> RequestError:
        return RequestError(f"{self._place(where, key)}: key '{key}'", found, next)

    def _place(self, where: str, key: str) -> str:
        line = line_of(self.text, where, key)
        return f"{self.origin}:{line}" if line else self.origin


def line_of(text: str, where: str, key: str) -> int | None:
    """The line that sets `key` in table `where` ('' the top, 'job', 'matrix', 'point 2'), or opens it.

    A plain search: the parser keeps no positions. None where the key is written in a way it doesn't find.
    """
    table, points = "", 0
    sets = re.compile(rf"""^\s*["']?{re.escape(key)}["']?\s*[=.]""")
    for number, line in enumerate(text.splitlines(), 1):
        opened = re.match(r"^\s*(\[\[?)\s*([^\[\]]+?)\s*\]", line)
        if opened:
            table = opened[2]
            if opened[1] == "[[" and table == "point":
                points += 1
                table = f"point {points}"
            if not where and opened[2] == key:
                return number
        elif table == where and sets.match(line):
            return number
    return None
