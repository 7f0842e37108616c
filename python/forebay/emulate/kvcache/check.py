"""`forebay emulate kvcache check`: three rates of anybody's results, as far as their files tell, and what doesn't hold."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import click

from forebay.emulate.kvcache import bounds, findings, limits, rank_files, show
from forebay.emulate.kvcache.bounds import Rates
from forebay.emulate.kvcache.findings import DURATION_S, Finding, Subject
from forebay.emulate.kvcache.formula import AGGREGATED, aggregate, is_number, nested
from forebay.errors import CHECK_FAILED, DONE, RequestError
from forebay.numbers import rate, significant
from forebay.units import parse_seconds

SCHEMA = "forebay.kvcache-check/1"
DURATIONS_S = (1e-3, 1e9)
LABEL = "MLPerf-style, unverified"
EXAMPLES = """\b
Examples:
  forebay emulate kvcache check results
  forebay emulate kvcache check results --drive D7-PS1010 --drives 4
  forebay emulate kvcache check kvcache_results_20260523_120000.json --link 5,4 --json"""


@click.command("check", epilog=EXAMPLES, context_settings={"max_content_width": 110})
@click.argument("tree")
@click.option("--drive", metavar="NAME", help="The drive of the storage, of the catalogue. Default: one that the tree names.")
@click.option("--drives", metavar="N", help="Number of such drives. Default: 1.")
@click.option("--link", metavar="GEN,LANES", help="PCIe generation and lanes of a drive, e.g. 5,4. Default: the drive's.")
@click.option("--duration", metavar="SECONDS", help="Duration that was asked for. Default: what the tree says, or 300.")
@click.option("--closed", is_flag=True, help="Deviations from the closed division's parameters are faults, too.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def command(
    tree: str, drive: str | None, drives: str | None, link: str | None, duration: str | None, closed: bool, as_json: bool
) -> int:
    """How fast was this KV cache really? Exit code 1 means that something doesn't hold.

    TREE holds results of MLPerf Storage v3.0's workload kvcache (option_O/trial_T/rank_N/kvcache_results_*.json, with or without
    summary.json), or is one such file. Results are MLPerf-style and unverified.
    """
    asked = parse_seconds(duration, "--duration") if duration is not None else None
    if asked is not None and not is_duration(asked):
        raise RequestError(f"--duration {duration}", "is no duration of a run", f"--duration {DURATION_S:g}")
    storage = limits.asked(drive, link, drives)
    document = Check(rank_files.survey(tree), storage, asked, closed).document()
    click.echo(json.dumps(document, indent=1, allow_nan=False) if as_json else "\n".join(show.lines(document)))
    return CHECK_FAILED if any(f["fault"] for f in show.every_finding(document)) else DONE


@dataclass
class Check:
    """One check of a tree. `storage` and `asked`, the duration: as far as they were typed."""

    found: rank_files.Found
    storage: limits.Asked
    asked: float | None
    closed: bool
    by_run: dict[str, limits.Limits] = field(default_factory=dict)

    def limits(self, run: str) -> limits.Limits:
        if run not in self.by_run:
            self.by_run[run] = limits.limits_of(self.storage, self.found, run)
        return self.by_run[run]

    def document(self) -> dict[str, Any]:
        """Schema forebay.kvcache-check/1. Options of several runs in one tree are named RUN/O."""
        found = self.found
        logs = bounds.logs_of(found)
        general: list[Finding] = []
        subjects = [s for file in self.last_of_each(general) if (s := self.subject(file, logs)) is not None]
        if not (subjects or found.damaged or found.summaries):
            reported = "holds no kvcache_results_*.json and no summary.json of such"
            reported += f" that can be read: {found.skipped[0][0]} {found.skipped[0][1]}" if found.skipped else ""
            raise RequestError(found.tree, reported, "the folder above option_1, or one kvcache_results_*.json")
        groups: dict[tuple[str, int], list[Subject]] = {}
        for s in subjects:
            groups.setdefault((s.file.run, s.file.option if s.file.option is not None else -1), []).append(s)
        options = {self.name(*key): self.option(*key, mine, general) for key, mine in sorted(groups.items())}
        for run in found.summaries:
            general += findings.of_summary(found, run)
        for run, metadata in found.metadata.items():
            general += findings.of_metadata(metadata, run or ".", self.closed)
        skipped = [{"file": d.place, "why": d.why} for d in found.damaged]
        general += [Finding("damaged", d.why, d.place) for d in found.damaged]
        runs = {f.run for f in (*found.files, *found.damaged)}
        general += [Finding("damaged", why, p) for p, why in found.skipped if rank_files.is_summary(p, runs)]
        skipped += [{"file": place, "why": why} for place, why in found.skipped]
        return {
            "schema": SCHEMA,
            "label": LABEL,
            "tree": found.tree,
            "files": len(subjects),
            "options": options,
            "findings": [f.document() for f in general],
            "skipped": skipped,
        }

    def last_of_each(self, general: list[Finding]) -> list[rank_files.RankFile]:
        """The files without those that a later one of the same rank stands beside."""
        last: dict[tuple[Any, ...], rank_files.RankFile] = {}
        for file in self.found.files:
            numbers = (file.option, file.trial, file.rank)
            key = (file.run, *numbers) if None not in numbers else (file.place,)
            if key in last:
                text = f"isn't counted, since {file.path.name} of the same rank comes after it"
                general.append(Finding("several", text, last[key].place, fault=False))
            last[key] = file
        return list(last.values())

    def name(self, run: str, option: int) -> str:
        shown = str(option) if option >= 0 else "unknown"
        several = len({f.run for f in self.found.files}) > 1
        return f"{run or '.'}/{shown}" if several else shown

    def duration(self, file: rank_files.RankFile) -> float:
        """Seconds that were asked for: typed, or else by the launcher's description or Forebay's own file, or else the closed
        division's."""
        launched = self.found.metadata.get(file.run)
        said = nested(launched, ("duration",), nested(launched, ("parameters", "duration")))
        own = nested(self.found.own.get(file.run), ("durations_s", f"option_{file.option}/trial_{file.trial}"))
        return self.asked or next((float(seconds) for seconds in (said, own) if is_duration(seconds)), DURATION_S)

    def subject(self, file: rank_files.RankFile, logs: Sequence[bounds.Log]) -> Subject | None:
        try:
            figures = bounds.figures_of(file)
        except rank_files.Damaged as damage:
            self.found.damaged.append(rank_files.Broken(**place_of(file), why=str(damage)))
            return None
        duration = self.duration(file)
        end, link = bounds.end_of(file, figures, duration, logs), self.limits(file.run).link_gib_s
        read, write = (bounds.rates(figures, way, duration, end, link) for way in bounds.WAYS)
        return Subject(file, figures, duration, end, read, write)

    def option(self, run: str, option: int, subjects: Sequence[Subject], general: list[Finding]) -> dict[str, Any]:
        trials: dict[tuple[int, str], list[Subject]] = {}
        for s in subjects:
            # A file whose folders don't say whose it is adds up with no other.
            alone = s.file.place if s.file.trial is None or s.file.rank is None else ""
            trials.setdefault((-1 if s.file.trial is None else s.file.trial, alone), []).append(s)
        shown, reads, writes = [], [], []
        for (number, _), mine in sorted(trials.items()):
            part, read, write = self.trial(number if number >= 0 else None, mine)
            shown.append(part)
            reads.append(read)
            writes.append(write)
        aggregated: dict[str, Any] = {}
        if option >= 0:
            ranks, trials_of = rank_files.slots(self.found, run)
            if option in trials_of:
                right = aggregate(trials_of[option], ranks)
                aggregated = {key: right[key] for key in (*AGGREGATED, "rank_count", "trial_count")}
            general += findings.of_option(self.found, run, option, self.closed)
        aggregated |= {"read_gib_s": bounds.mean(reads).document(), "write_gib_s": bounds.mean(writes).document()}
        return {"storage": self.limits(run).document(), "trials": shown, "aggregated": aggregated}

    def trial(self, number: int | None, subjects: Sequence[Subject]) -> tuple[dict[str, Any], Rates, Rates]:
        known = self.limits(subjects[0].file.run)
        duration, ends, link = subjects[0].duration, [s.end for s in subjects], known.link_gib_s
        read = bounds.together([s.read for s in subjects], ends, duration, link)
        write = bounds.together([s.write for s in subjects], ends, duration, link)
        fast = list(findings.too_fast(read, write, known, subjects[0].file.place))
        ranks = [self.rank(s, fast if s is subjects[0] else []) for s in subjects]
        part = {"trial": number, "ranks": ranks, "read_gib_s": read.document(), "write_gib_s": write.document()}
        return part, read, write

    def rank(self, s: Subject, more: Sequence[Finding]) -> dict[str, Any]:
        mine = [*findings.of_rank(s, self.closed), *more]
        return {
            "rank": s.file.rank,
            "file": s.file.place,
            "read_gib_s": s.read.document(),
            "write_gib_s": s.write.document(),
            "last_end_s": [s.end.least, s.end.most],
            "why": evidence(s, self.limits(s.file.run).link_gib_s),
            "findings": [f.document() for f in mine],
        }


def is_duration(value: Any) -> TypeGuard[float]:
    """Returns whether a run can last so many seconds."""
    return is_number(value) and DURATIONS_S[0] <= value <= DURATIONS_S[1]


def place_of(file: rank_files.RankFile) -> dict[str, Any]:
    return {key: getattr(file, key) for key in rank_files.FilePlace.__dataclass_fields__}


def evidence(s: Subject, link: float | None) -> list[str]:
    """The reason of each bound, a line each."""
    end, reported = s.end, []
    if end.least is not None:
        reported.append(f"drained ≤ bytes ÷ {significant(end.least, 4)} s: {end.least_why}")
    if end.most is not None:
        reported.append(f"drained ≥ bytes ÷ {significant(end.most, 4)} s: {end.most_why}")
    reported.append("window ≤ as-published: no more was moved within the duration than in all")
    if link is not None:
        reported.append(f"window, drained ≤ {rate(link)} GiB/s: the link carries no more, unless even the least is above it")
    if link is not None and end.most is not None:
        late = max(0.0, end.most - s.duration)
        reported.append(f"window ≥ (bytes − {significant(late, 3)} s of the link) ÷ {s.duration:g} s: no more was moved after it")
    return reported
