"""Tab completion of values: paths, the names of presets, workloads and drives, and values that make a short list.

Names come from the tables that the verbs themselves read. A verb is dressed only while a shell asks, so none of this is
imported by a command that runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import click
from click.shell_completion import BashComplete, CompletionItem, add_completion_class

from forebay.command_line.spellings import Spelled

# A metavar that names a file, a folder, or a source, which may be one.
_PATHS = re.compile(r"FILE|SOURCE|DIR|RUNS|CONFIG|TOML|CSV|\bMD\b|HTML|URI|DEVICE|PATH|PYTHON")
_FOLDERS = re.compile(r"\[?DIR\]?")
_PATH_ARGUMENTS = {"source", "sources", "folder", "out", "sweep"}
_METERS = ("rapl", "nvml", "ipmi", "redfish:", "none")


def _sweeps() -> Iterable[str]:
    from forebay.sweep.file import presets

    return presets()


def _matrices() -> Iterable[str]:
    from forebay.emulate.matrix import presets

    return presets()


def _trainings() -> Iterable[str]:
    from forebay.emulate.workloads import Training, builtin

    return [name for name, found in builtin().items() if any(isinstance(w, Training) for w in found)]


def _checkpoints() -> Iterable[str]:
    from forebay.emulate.workloads import Checkpoint, builtin

    return [name for name, found in builtin().items() if any(isinstance(w, Checkpoint) for w in found)]


def _plannable() -> Iterable[str]:
    from forebay.emulate.workloads import builtin
    from forebay.plan.jobs import IO, JOB

    return sorted({IO, JOB, *builtin()})


def _accelerators() -> Iterable[str]:
    from forebay.emulate.workloads import builtin

    return sorted({w.accelerator for found in builtin().values() for w in found if hasattr(w, "accelerator")})


def _rules() -> Iterable[str]:
    from forebay.emulate.workloads import RULES

    return RULES


def _drives() -> Iterable[str]:
    from forebay.plan.catalogue import drives

    return [d.name for d in drives().values()]


def _named_sources(incomplete: str) -> Iterable[str]:
    """Sources whose names the engine lists, of the scheme that stands there."""
    from forebay import run

    scheme, colon, _ = incomplete.partition(":")
    rows = run.tables()["sources"] if colon else ()
    return [f"{scheme}:{name}" for row in rows if row["scheme"] == scheme for name in row["names"]]


def _plan_paths() -> Iterable[str]:
    from forebay.plan.cpu import PATHS

    return PATHS


def _metrics() -> Iterable[str]:
    from forebay.metrics import ALL

    return ALL


def _steps() -> Iterable[str]:
    from forebay.validate.steps import STEPS

    return [s.name for s in STEPS]


def _verbs() -> Iterable[str]:
    from forebay.cli import VERBS

    return VERBS


def _shells() -> Iterable[str]:
    from forebay.command_line.shell import SHELLS

    return SHELLS


Names = Callable[[], Iterable[str]]


def _are(*values: str) -> Names:
    return lambda: values


# "option" of any verb, or "verb option" of one, which comes first. An argument goes by its name.
VALUES: dict[str, Names] = {
    "sweep sweep": _sweeps,
    "matrix preset": _matrices,
    "completion shell": _shells,
    "man verb": _verbs,
    "matrix --drive": _are(),
    "--workload": _trainings,
    "checkpoint --workload": _checkpoints,
    "compare --metric": _metrics,
    "snap subject": _are("rpc"),
    "--accelerator": _accelerators,
    "--drive": _drives,
    "report --plan": _drives,
    "--rules": _rules,
    "--power": _are(*_METERS),
    "--distribution": _are("uniform", "zipf:"),
    "--destination": _are("drop", "host", "gpu:0"),
    "--location": _are("local", "remote"),
    "--by": _are("drives", "price", "watts"),
    "--only": _steps,
    **{f"plan {verb} --path": _plan_paths for verb in ("run", "recommend", "whatif")},
    **{f"plan {verb} --workload": _plannable for verb in ("run", "recommend", "whatif")},
    "gdsio -x": _are(*"01234567"),
    "gdsio -I": _are(*"0123"),
}


def dress(command: click.Command, path: str) -> click.Command:
    """`command` with types that complete, for each value that has some. `path`: its verbs, without `forebay`."""
    for parameter in command.params:
        if isinstance(parameter.type, click.types.StringParamType) and not getattr(parameter, "is_flag", False):
            kind = _kind(parameter)
            names = _names(parameter, path)
            if kind or names:
                parameter.type = Completing(kind, names, _may_be_a_source(parameter))
            if isinstance(parameter, Spelled):
                parameter.opts = _Names(parameter.opts, parameter.spellings)
    if isinstance(command, click.Group):
        for name, verb in command.commands.items():
            dress(verb, f"{path} {name}")
    return command


class _Names(list[str]):
    """An option's names: those that are offered, among which others are found too."""

    def __init__(self, shown: Iterable[str], known: Iterable[str]) -> None:
        super().__init__(shown)
        self.known = frozenset(known)

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or name in self.known


def _may_be_a_source(parameter: click.Parameter) -> bool:
    shown = parameter.metavar or ("SOURCE" if parameter.name in ("source", "sources") else "")
    return "=" not in shown and bool(re.search("SOURCE|URI", shown))


def _kind(parameter: click.Parameter) -> str:
    """`file`, `dir`, or nothing."""
    shown = parameter.metavar or ""
    if isinstance(parameter, click.Argument) and not shown:
        return "file" if parameter.name in _PATH_ARGUMENTS else ""
    # HOST=SOURCE and the like: shells would complete the whole word.
    if "=" in shown or "--path" in parameter.opts or not _PATHS.search(shown):
        return ""
    return "dir" if _FOLDERS.fullmatch(shown) else "file"


def _names(parameter: click.Parameter, path: str) -> Names | None:
    words = getattr(parameter, "words", ())
    if words:
        return _are(*words)
    own = parameter.opts[-1] if isinstance(parameter, click.Option) else str(parameter.name)
    for key in (f"{path} {own}", f"{path.split(' ')[-1]} {own}", own):
        if key in VALUES:
            return VALUES[key]
    from forebay.flags import fields

    values = next((f.values for f in fields() if f"--{f.flag}" == own and f.values), None)
    return _are(*values) if values else None


class Completing(click.types.StringParamType):
    """Text that Tab completes: by names, else by paths where those may stand there."""

    def __init__(self, kind: str, names: Names | None, may_be_a_source: bool = False) -> None:
        self.kind, self.names, self.may_be_a_source = kind, names, may_be_a_source

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        names = [*(self.names() if self.names else ())]
        if self.may_be_a_source:
            names += _named_sources(incomplete)
        found = [CompletionItem(n) for n in names if n.startswith(incomplete)]
        # Bash empties its list at a path's line, so that one comes first and serves where no name fits.
        return [CompletionItem(incomplete, type=self.kind), *found] if self.kind else found


def rpc(words: list[str], incomplete: str) -> list[CompletionItem]:
    """Behind `forebay snap rpc WORDS`: its verbs, then the flags of the one that stands there."""
    from forebay import _core

    verbs = dict(_core.snap_rpcs())
    verb = next((word for word in words if word in verbs), None)
    if verb is None and words[-1:] in (["-s"], ["--socket"]):
        return [CompletionItem(incomplete, type="file")]
    if verb is None:
        offered = ("--socket",) if incomplete.startswith("-") else tuple(verbs)
    else:
        offered = tuple(flag for flag in verbs[verb] if flag.startswith("--")) if incomplete.startswith("-") else ()
    return [CompletionItem(word) for word in offered if word.startswith(incomplete)]


class Bash(BashComplete):
    """For bash, which cuts a word at each colon, hands on the pieces, and replaces only the last of them."""

    kept = 0

    def get_completion_args(self) -> tuple[list[str], str]:
        args, incomplete = super().get_completion_args()
        *args, joined = _joined([*args, incomplete])
        self.kept = joined.rfind(":") + 1 if joined != incomplete else 0
        return args, joined

    def format_completion(self, item: CompletionItem) -> str:
        return f"{item.type},{item.value[self.kept :]}"


def _joined(pieces: list[str]) -> list[str]:
    words: list[str] = []
    colon = False
    for piece in pieces:
        is_colon = bool(piece) and not piece.strip(":")
        if words and (is_colon or (colon and piece and not piece.startswith("-"))):
            words[-1] += piece
        else:
            words.append(piece)
        colon = is_colon
    return words


def register() -> None:
    """Before click answers a shell."""
    add_completion_class(Bash)
