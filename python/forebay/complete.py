"""Tab completion of values: paths, the names of presets, workloads and drives, and values that make a short list.

Names come from the tables that the verbs themselves read. A verb is dressed only while a shell asks, so none of this is
imported by a command that runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import click
from click.shell_completion import CompletionItem

# A metavar that names a file, a folder, or a source, which may be one.
_PATHS = re.compile(r"FILE|SOURCE|DIR|RUNS|CONFIG|TOML|CSV|\bMD\b|HTML|URI|DEVICE|PATH|PYTHON")
_FOLDERS = re.compile(r"\[?DIR\]?")
_PATH_ARGUMENTS = {"source", "sources", "folder", "out", "sweep"}
_RULES = ("v1.0", "v2.0", "v3.0", "text")
_METERS = ("rapl", "nvml", "ipmi", "redfish:", "none")
_LOGS = ("text", "json", "off")


def _sweeps() -> Iterable[str]:
    from forebay.sweep.file import presets

    return presets()


def _matrices() -> Iterable[str]:
    from forebay.emulate.matrix import presets

    return presets()


def _workloads() -> Iterable[str]:
    from forebay.emulate.workloads import builtin

    return builtin()


def _accelerators() -> Iterable[str]:
    from forebay.emulate.workloads import builtin

    return sorted({w.accelerator for found in builtin().values() for w in found if hasattr(w, "accelerator")})


def _drives() -> Iterable[str]:
    from forebay.plan.catalogue import drives

    return [d.name for d in drives().values()]


def _steps() -> Iterable[str]:
    from forebay.validate.steps import STEPS

    return [s.name for s in STEPS]


def _verbs() -> Iterable[str]:
    from forebay.cli import VERBS

    return VERBS


def _shells() -> Iterable[str]:
    from forebay.shell import SHELLS

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
    "--workload": _workloads,
    "--accelerator": _accelerators,
    "--drive": _drives,
    "report --plan": _drives,
    "--rules": _are(*_RULES),
    "--power": _are(*_METERS),
    "--distribution": _are("uniform", "zipf:"),
    "--level": _are("parse", "bytes"),
    "--on-error": _are("fail", "skip"),
    "--destination": _are("drop", "host", "gpu:0"),
    "--location": _are("local", "remote"),
    "--by": _are("drives", "price", "watts"),
    "--log": _are(*_LOGS),
    "--new-key": _are("sha256", "sha384", "sha512", "none"),
    "--only": _steps,
    "--phases": _are("mkdir", "create", "stat", "read", "delete"),
    "files --cache": _are("drop", "allow"),
    "serve --cache": _are("auto", "bypass", "allow"),
    **{f"plan {verb} --path": _are("gds", "cpu") for verb in ("run", "recommend", "whatif")},
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
                parameter.type = Completing(kind, names)
    if isinstance(command, click.Group):
        for name, verb in command.commands.items():
            dress(verb, f"{path} {name}")
    return command


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
    own = parameter.opts[-1] if isinstance(parameter, click.Option) else str(parameter.name)
    for key in (f"{path} {own}", f"{path.split(' ')[-1]} {own}", own):
        if key in VALUES:
            return VALUES[key]
    from forebay.flags import fields

    values = next((f.values for f in fields() if f"--{f.flag}" == own and f.values), None)
    return _are(*values) if values else None


class Completing(click.types.StringParamType):
    """Text that Tab completes: by names, else by paths where those may stand there."""

    def __init__(self, kind: str, names: Names | None) -> None:
        self.kind, self.names = kind, names

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        found = [CompletionItem(n) for n in (self.names() if self.names else ()) if n.startswith(incomplete)]
        # Bash empties its list at a path's line, so that one comes first and serves where no name fits.
        return [CompletionItem(incomplete, type=self.kind), *found] if self.kind else found
