"""Files of a search: its runs, and which of them are its answer's."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import click

from forebay.bench.save import refuse_to_replace
from forebay.emulate.greatest import WARM_UP, Greatest, Trial
from forebay.emulate.request import Request
from forebay.errors import RequestError
from forebay.run import typed
from forebay.sweep.results import HEADER, POINT, Contents, Results

FILE = "search.jsonl"
RESULT = "result.json"
ORIGIN = "forebay emulate search"
KEY = re.compile(r"(probe|full|warm-up)-([1-9][0-9]{0,8})", re.ASCII)


def named(number: int, full: bool, turn: int) -> tuple[str, str]:
    """(key of a run among those that are kept, what it is called)."""
    if turn == WARM_UP:
        return f"warm-up-{number}", "warm-up"
    return (f"full-{number}", "full ") if full else (f"probe-{number}", "probe")


class Kept:
    """The folder's file of runs: one line each, on disk before the next begins. One search at a time has it."""

    def __init__(self, folder: Path, request: Request, wanted: dict[str, Any], restart: bool) -> None:
        """`wanted`: the search's definition."""
        refuse_to_replace(folder / RESULT)
        self.results = Results(folder / FILE)
        try:
            self._begin(wanted, request, restart)
        except BaseException:
            self.results.__exit__()
            raise

    def __enter__(self) -> Kept:
        return self

    def __exit__(self, *exc: object) -> None:
        self.results.__exit__(*exc)

    def _begin(self, wanted: dict[str, Any], request: Request, restart: bool) -> None:
        results = self.results
        if restart and (results.contents.headers or results.contents.lines or results.contents.damaged):
            click.echo(f"forebay: what was found before is in {results.restart()}", err=True)
        aside = results.put_damage_aside()
        if aside is not None:
            click.echo(f"forebay: damaged lines of {results.path} are in {aside}; their runs are repeated", err=True)
        results.mend_end()
        headers = results.contents.headers
        if not headers:
            results.append(self._header(wanted, request))
            return
        old = headers[-1]["definition"]
        changed = sorted(k for k in {*old, *wanted} if old.get(k) != wanted.get(k))
        if changed:
            reported = "holds a search that differs in " + ", ".join(changed)
            raise RequestError(f"--results {results.path.parent}", reported, "--restart, or another --results")

    @staticmethod
    def _header(wanted: dict[str, Any], request: Request) -> dict[str, Any]:
        return {
            "schema": HEADER,
            "preset": f"emulate-{request.workload.name}-{request.workload.accelerator}",
            "origin": ORIGIN,
            "title": f"{request.workload.name} on {request.workload.accelerator}: AU by number of accelerators",
            "method": "",
            "cites": [],
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "command": typed(),
            "sources": list(request.data),
            "definition": wanted,
            "frozen": {},
        }

    def find(self, key: str, turn: int) -> dict[str, Any] | None:
        line = self.results.contents.finished().get((key, turn))
        return None if line is None else line["record"]

    def add(self, key: str, turn: int, name: str, record: dict[str, Any]) -> None:
        interrupted = {"partial": True} if record["result"].get("interrupted") else {}
        point = {"accelerators": record["training"]["accelerators"], "sources": [record["job"].get("source")]}
        line = {"schema": POINT, "key": key, "round": turn, "name": name, "point": point, **interrupted, "record": record}
        self.results.append(line)


def runs_of_answer(contents: Contents) -> list[tuple[str, dict[str, Any]]]:
    """(what it is called, record) of each full run with the number that a search found: the warm-up run, if it made
    one, and those that count, in turn. ValueError where it hasn't confirmed any number; KeyError of a damaged record."""
    made = [_trial(key, turn, line["record"]) for (key, turn), line in contents.finished().items()]
    if not made:
        raise ValueError("the search has finished no run")
    needed = float(made[0][1]["training"]["au_pct_min"])
    number = Greatest(_plays_nothing, needed, 1 << 30, trials=[trial for trial, _ in made]).number
    mine = sorted(((t.turn, record) for t, record in made if t.full and t.accelerators == number), key=lambda run: run[0])
    if mine and mine[0][0] == WARM_UP:
        # One that decided a probe was made before the warm-up run.
        mine = [run for run in mine if run[0] != 0]
    if not mine:
        found = f"{number} accelerators pass by probes alone" if number else "not even one accelerator passes"
        raise ValueError(f"the search has no confirmed number: {found}")
    counted = 0
    named: list[tuple[str, dict[str, Any]]] = []
    for turn, record in mine:
        counted += turn != WARM_UP
        named.append(("warm-up" if turn == WARM_UP else f"full {counted}", record))
    return named


def _trial(key: str, turn: int, record: dict[str, Any]) -> tuple[Trial, dict[str, Any]]:
    match = KEY.fullmatch(key)
    if match is None:
        raise ValueError(f"holds a run that no search makes: {key[:40]!r}")
    kind, number = match[1], int(match[2])
    training = record["training"]
    au_pct = None if training["au_pct"] is None else float(training["au_pct"])
    turn = WARM_UP if kind == "warm-up" else turn
    return Trial(number, kind != "probe", turn, au_pct, bool(training["passes"])), record


def _plays_nothing(*run: Any) -> Trial:
    raise AssertionError(f"a search that is only read doesn't play {run}")
