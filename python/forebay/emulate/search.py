"""`forebay emulate search`: the greatest number of accelerators that this storage keeps busy, confirmed by full runs.

Its folder of results holds every run as it ends, so that the same command goes on after Ctrl-C or a crash.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forebay import mpi
from forebay.bench import listen, save
from forebay.bench.interrupt import Interrupt
from forebay.bench.summary import count as times
from forebay.bench.summary import significant
from forebay.emulate import data, datasize, division, measure, show
from forebay.emulate.greatest import Greatest, Trial, curve
from forebay.emulate.kept import RESULT, Kept, named
from forebay.emulate.request import Request, count, request_of, run_options, workload_options, workload_spec
from forebay.emulate.run import play
from forebay.errors import BROKE, CHECK_FAILED, DONE, INTERRUPTED, ForebayError, RequestError
from forebay.stages import format_duration
from forebay.units import parse_seconds

if TYPE_CHECKING:
    from forebay.bench.endpoint import Endpoint

PROBE_S = "20"
# Fewer steps than this say little: the first ones are filled by what was read ahead.
STEPS_MIN = 20
EXAMPLES = """\b
Examples:
  forebay emulate search --workload resnet50 --accelerator h100 --data /data/resnet50 --json
  forebay emulate search --workload resnet50 --accelerator h100 --data /data/r --epochs 1 --steps 100 --confirm 2
  forebay emulate search --workload resnet50 --accelerator h100 --data /data/r --results found    (again: it continues)"""


@click.command("search", epilog=EXAMPLES, context_settings={"max_content_width": 110})
@workload_options
@run_options
@click.option("--accelerators", "start", default="1", metavar="N", help="The number to try first. Default: 1.")
@click.option("--max", "most", metavar="N", help="Try no more than N. Default: as many as the data set suffices for.")
@click.option(
    "--probe", default=PROBE_S, show_default=True, metavar="TIME", help="Length of the short runs that narrow the search."
)
@click.option("--confirm", default="5", show_default=True, metavar="N", help="Full runs that must pass; 0 for none.")
@click.option(
    "--warmup-run", is_flag=True, help="First make one full run that doesn't count (v2.0; always by v3.0's divisions)."
)
@click.option("--results", metavar="DIR", help="Where to keep each run. Default: WORKLOAD-ACCELERATOR-search.")
@click.option("--restart", is_flag=True, help="Start over; the earlier results are moved aside.")
@click.option("--mpi", "use_mpi", is_flag=True, help="Search over all hosts of mpirun or srun (detected by mpi4py).")
@listen.option
@click.option("--json", "as_json", is_flag=True, help="The confirmed run's record as one JSON document on stdout.")
@click.option("--quiet", "-q", is_flag=True, help="No progress.")
def command(
    start: str,
    most: str | None,
    probe: str,
    confirm: str,
    warmup_run: bool,
    results: str | None,
    restart: bool,
    use_mpi: bool,
    metrics: str | None,
    as_json: bool,
    quiet: bool,
    **values: Any,
) -> int:
    """How many accelerators does this storage keep busy? The greatest number that passes, and what limits it.

    Short runs narrow it down, then full runs confirm it: each of them must pass, and one with one more accelerator must
    fail. Exit code 1 if not even one accelerator passes. After Ctrl-C the same command continues. Under mpirun every process
    has the same number, and --accelerators and --max are per process.
    """
    request = request_of(values)
    confirmations = _confirmations(confirm, request)
    bound = count(most, "--max") if most else None
    first = count(start)
    if bound is not None and first > bound:
        raise RequestError(f"--accelerators {first} --max {bound}", "starts above its maximum", f"--accelerators {bound}")
    seconds = parse_seconds(probe, "--probe")
    if seconds <= 0:
        raise RequestError(f"--probe {probe}", "must be above 0", "--probe 20")
    division.check(request)
    warm_up = division.check_warm_up(request, warmup_run) and confirmations > 0
    team = Team(mpi.world(explicit=use_mpi), request, seconds)
    if not team.leads:
        return team.follow()
    with team, listen.listening(metrics, quiet) as listens:
        mine = team.request_here()
        data.check_number(mine)
        held = samples_held(mine)
        # Each run reads as many files as its own number of accelerators may.
        data.check_size(mine, first * team.ranks, team.hosts, exact=False)
        greatest_number = largest(mine, held, bound, team.ranks)
        name = f"{request.workload.name}-{request.workload.accelerator}-search"
        folder = measure.results_folder(results or name)
        wanted = definition(request, seconds, team.ranks, warm_up)
        with Kept(folder, request, wanted, restart) as kept:
            hunt = Hunt(team, kept, quiet, held, listens)
            greatest = hunt.greatest(greatest_number, confirmations, warm_up)
            return team.end(conclude(hunt, greatest, first, folder, as_json))


def _confirmations(text: str, request: Request) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 4 and int(text) <= 100):
        raise RequestError(f"--confirm {text}", "is not a whole number from 0 to 100", "--confirm 5")
    if request.division is not None and int(text) < 5:
        raise RequestError(f"--confirm {text} --{request.division}", "a submission has five runs [runs]", "--confirm 5")
    return int(text)


def samples_held(request: Request) -> int | None:
    """Samples of the data set; None where only the engine can count its files."""
    files = data.found_files(request)
    if files is None:
        return request.files * request.workload.samples_per_file if request.files else None
    if files == 0:
        next = f"{data.making(request)} --data {request.data[0]}"
        raise RequestError(f"--data {request.data[0]}", f"holds no .{data.ending_of(request.workload.format)} files", next)
    files = min(files, request.files) if request.files else files
    return files * request.workload.samples_per_file


def largest(request: Request, held: int | None, bound: int | None, ranks: int = 1) -> int:
    """The most accelerators of each process that get enough steps of an epoch out of the data set, or that were allowed."""
    if held is None:
        return bound if bound is not None else 1 << 16
    fit = held // (steps_wanted(request) * request.workload.batch * ranks)
    if fit < 1:
        reported = f"{held:,} samples are fewer than {steps_wanted(request) * ranks} batches of {request.workload.batch:,}"
        raise RequestError(f"--data {request.data[0]}", reported, f"{data.making(request)} --data DIR, with more --files")
    return fit if bound is None else min(fit, bound)


def steps_wanted(request: Request) -> int:
    """Returns the steps that an epoch wants: what the rules want of a submission; else the fewest that say anything."""
    return datasize.STEPS_MIN if request.division is not None else 3


def definition(request: Request, probe_s: float, ranks: int = 1, warm_up: bool = False) -> dict[str, Any]:
    """Returns the settings that make two searches one: the spec, less what varies between its runs."""
    spec = request.spec(1)
    for key in ("accelerators", "ranks", "seed"):
        spec.pop(key, None)
    workload = workload_spec(request.workload, request.rules, request.files)
    several: dict[str, Any] = {"processes": ranks} if ranks > 1 else {}
    several |= {"warm_up": True} if warm_up else {}
    several |= {"exact_files": True} if data.is_exact(request) else {}
    return {**spec, "workload": workload, "probe_s": probe_s, "division": request.division, **several}


class Interrupted(Exception):
    """Ctrl-C during a run, whose part is kept."""


class Team:
    """Players of the runs: this process, or all ranks of an MPI world. The lead says what is played, the others follow.

    Entered by the lead alone: however it leaves, the others are told, since they wait for its word.
    """

    def __init__(self, world: mpi.World | None, request: Request, probe_s: float) -> None:
        self.world, self.request = world, request
        # Several processes of one host are one host.
        self.ranks = 1 if world is None else world.size
        self.hosts = 1 if world is None else world.count_hosts()
        self.leads = world is None or world.leads
        self.probe_steps = max(STEPS_MIN, math.ceil(probe_s / request.workload.compute_s))
        self._reported = False

    def __enter__(self) -> Team:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self.end(getattr(error, "exit_code", INTERRUPTED if kind is KeyboardInterrupt else BROKE))

    def play(self, number: int, full: bool, quiet: bool, label: str, listens: Endpoint | None = None) -> measure.Outcome:
        """One run with `number` accelerators of each process."""
        files = data.exact_files(self.request, number * self.ranks, self.hosts)
        if self.world is not None:
            self.world.comm.bcast((number, full, files), root=0)
        return self._play(number, full, files, quiet, label, listens)

    def request_here(self) -> Request:
        """Returns the request, with the names of the lead's own data."""
        if self.world is None:
            return self.request
        names = {"{rank}": "0", "{local}": "0", "{host}": self.world.host}
        return replace(self.request, data=tuple(mpi.replace(source, names) for source in self.request.data))

    def follow(self) -> int:
        """Plays what the lead says; its exit code."""
        assert self.world is not None, "one process leads itself"
        while True:
            order = self.world.comm.bcast(None, root=0)
            if order is None:
                return self.world.agree(BROKE)
            number, full, files = order
            self._play(number, full, files, quiet=True, label="")
            if self.world.gave_up:  # on others, of which the lead may be one
                return self.world.agree(BROKE)

    def end(self, code: int) -> int:
        """Tells the others that there is no more to play."""
        if self.world is None or self._reported:
            return code
        self._reported = True
        if self.world.lost or self.world.gave_up:  # somebody won't hear it
            return self.world.agree(code)
        self.world.comm.bcast(None, root=0)
        return self.world.agree(code)

    def _play(
        self, number: int, full: bool, files: int | None, quiet: bool, label: str, listens: Endpoint | None = None
    ) -> measure.Outcome:
        with Interrupt() as interrupt:
            return play(self._of(full, files), number, interrupt, quiet, label, self.world, listens)

    def _of(self, full: bool, files: int | None) -> Request:
        request = replace(self.request, files=files)
        if full:
            return request
        steps = self.probe_steps if request.steps is None else min(self.probe_steps, request.steps)
        return request.with_epochs(1, steps)


class Hunt:
    """Plays the search's runs, or finds them among those that were kept. Numbers of accelerators are each process's.

    `listens`: hands out the runs' progress, under `name` where the search is one of several.
    """

    def __init__(
        self, team: Team, kept: Kept, quiet: bool, held: int | None, listens: Endpoint | None = None, name: str = ""
    ) -> None:
        self.team, self.kept, self.quiet, self.held, self.listens, self.name = team, kept, quiet, held, listens, name
        self.request, self.ranks = team.request, team.ranks
        self.records: dict[tuple[int, bool, int], dict[str, Any]] = {}
        self.refused: dict[int, RequestError] = {}
        self.found_before = 0

    def greatest(self, most: int, confirmations: int, warm_up: bool = False) -> Greatest:
        """The search over these runs. When one begins, the endpoint knows what passed before it."""

        def run(number: int, full: bool, turn: int) -> Trial:
            if self.listens is not None:
                self.listens.tell(accelerators_passed=self.all(found.number) if found.trials else None)
            return self.run(number, full, turn)

        found = Greatest(run, self.request.workload.au_pct_min, most, confirmations, [], warm_up)
        return found

    def run(self, number: int, full: bool, turn: int) -> Trial:
        """One run as a Trial. Raises Interrupted, or what ended it."""
        key, kind = named(number, full, turn)
        record = self.kept.find(key, max(turn, 0))
        if record is None:
            try:
                record = self._play(number, full, key, turn, kind)
            except RequestError as error:
                # What ran with fewer accelerators and can't with more lacks data for them.
                if all(n >= number for n, _, _ in self.records):
                    raise
                self.refused[number] = error
                click.echo(f"{kind} {self.all(number):>5,} accelerators  can't run: {error.found}", err=True)
                return Trial(number, full, turn, None, False)
        else:
            self.found_before += 1
        self.records[number, full, turn] = record
        training = record["training"]
        trial = Trial(number, full, turn, training["au_pct"], bool(training["passes"]))
        if not self.quiet:
            click.echo(f"{kind} {reported(trial, record, self.all(number))}", err=True)
        return trial

    def _play(self, number: int, full: bool, key: str, turn: int, kind: str) -> dict[str, Any]:
        label = f"{self.name}: {kind.strip()}" if self.name else kind.strip()
        outcome = self.team.play(number, full, self.quiet, label, self.listens)
        if outcome.record is not None:
            self.kept.add(key, max(turn, 0), f"{kind.strip()} with {self.all(number)} accelerators", outcome.record)
        if outcome.interrupted:
            raise Interrupted
        if outcome.error is not None:
            raise outcome.error
        assert outcome.record is not None, "a run without record has an error"
        return outcome.record

    def all(self, number: int) -> int:
        """Returns the sum over all processes."""
        return number * self.ranks


def reported(trial: Trial, record: dict[str, Any], number: int) -> str:
    """`8 accelerators  AU 93.10 % passes · 4.2 GiB/s · 1.3 cores · limited by the storage`."""
    au = "AU not known, too few steps" if trial.au_pct is None else f"AU {trial.au_pct:6.2f} %"
    parts = [f"{number:>5,} accelerators  {au} {'passes' if trial.passes else 'fails '}"]
    parts.append(f"{significant(record['result']['throughput_gib_s'])} GiB/s")
    busy = record["training"]["headroom"]["cores_busy"]
    if busy is not None:
        parts.append(f"{significant(busy)} cores")
    if not trial.passes:
        parts.append(f"limit: {show.limit(record['training'])[0]}")
    return " · ".join(parts)


def conclude(hunt: Hunt, greatest: Greatest, first: int, folder: Path, as_json: bool) -> int:
    """Searches, then shows and keeps the answer, also where it ended early."""
    began = time.monotonic()
    ended: ForebayError | None = None
    interrupted = False
    try:
        greatest.search(first)
    except Interrupted:
        interrupted = True
    except ForebayError as error:
        ended = error
    if not greatest.trials:
        if ended is not None:
            raise ended
        click.echo("forebay: interrupted before anything was measured", err=True)
        return INTERRUPTED
    document = document_of(hunt, greatest, time.monotonic() - began, interrupted or ended is not None)
    save.write(folder / RESULT, [document])
    click.echo("\n".join(lines(document, folder)), err=as_json)
    if as_json:
        click.echo(json.dumps(document, indent=1))
    if interrupted:
        click.echo("forebay: interrupted; the same command continues", err=True)
        return INTERRUPTED
    if ended is not None:
        click.echo(f"forebay: {ended}", err=True)
        return ended.exit_code
    return DONE if greatest.number else CHECK_FAILED


def document_of(hunt: Hunt, greatest: Greatest, seconds: float, early: bool) -> dict[str, Any]:
    """The record of the run nearest to the answer (of several the one with the median AU), its `training.curve`, and `search`:
    the answer, how sure it is, and what limits. `accelerators` 0: not even one passes."""
    number = greatest.number
    counted = [t for t in greatest.trials if not t.warms_up]
    mine = [t for t in counted if t.accelerators == (number or min(x.accelerators for x in counted))]
    chosen = sorted([t for t in mine if t.full] or mine, key=lambda t: t.au_pct or 0.0)
    median = chosen[(len(chosen) - 1) // 2]
    record = json.loads(json.dumps(hunt.records[median.accelerators, median.full, median.turn]))
    record["training"]["curve"] = curve([replace(t, accelerators=hunt.all(t.accelerators)) for t in greatest.trials])
    values = [t.au_pct for t in chosen if t.au_pct is not None]
    record["search"] = {
        "accelerators": hunt.all(number),
        "hosts": hunt.team.hosts,
        "confirmed": greatest.confirmed and not early,
        "finished": not early,
        "au_pct": statistics.fmean(values) if values else None,
        "runs": [{**vars(t), "accelerators": hunt.all(t.accelerators), "warm_up": t.warms_up} for t in greatest.trials],
        "limit": limit_of(hunt, greatest),
        "seconds": seconds,
        "found_before": hunt.found_before,
    }
    return record


def limit_of(hunt: Hunt, greatest: Greatest) -> dict[str, Any]:
    """Returns the obstacle to one accelerator more (of each process), by the record of that run: {id, text, accelerators}."""
    return {**_limit_of(hunt, greatest), "accelerators": hunt.all(greatest.first_failing or greatest.most)}


def _limit_of(hunt: Hunt, greatest: Greatest) -> dict[str, Any]:
    above = greatest.first_failing
    if above is None:
        if hunt.held is not None and greatest.most == largest(hunt.request, hunt.held, None, hunt.ranks):
            steps = steps_wanted(hunt.request)
            text = f"the data set: {hunt.held:,} samples give more accelerators fewer than {steps} steps of an epoch"
            return {"id": "data", "text": text}
        return {"id": "max", "text": f"no limit up to {hunt.all(greatest.most):,} accelerators"}
    trial = max((t for t in greatest.trials if t.accelerators == above and not t.warms_up), key=lambda t: t.full)
    if above in hunt.refused:
        return {"id": "data", "text": f"the data set: {hunt.refused[above].found}"}
    if greatest.too_few_steps(above):
        text = "the data set: too few steps to tell by the rules' formula"
        return {"id": "data", "text": text}
    found = show.limit(hunt.records[above, trial.full, trial.turn]["training"])
    return {"id": found[0], "text": found[1]}


def lines(document: dict[str, Any], folder: Path) -> list[str]:
    """The curve, the answer, what limits, and where it is kept."""
    found, training = document["search"], document["training"]
    which = f"{training['accelerator'].upper()} of {training['workload']}"
    reported = show.curve(training["curve"], training["au_pct_min"])
    full = [r for r in found["runs"] if r["full"] and not r["warm_up"] and r["accelerators"] == found["accelerators"]]
    if not found["accelerators"]:
        answer = f"not even one {which} reaches {training['au_pct_min']:g} %"
    else:
        answer = f"{found['accelerators']:,} × {which} pass by {training['rule_set']}"
        answer += f" on {times(found['hosts'], 'host')}" if found["hosts"] > 1 else ""
        answer += f", AU {found['au_pct']:.2f} % on average over {times(len(full), 'full run')}" if full else ", from probes only"
    if not found["finished"]:
        answer += " so far: the search isn't over"
    elif not found["confirmed"]:
        answer += "; not confirmed"
    reported.append(f"answer    {answer}")
    limit = found["limit"]
    at = f"with {limit['accelerators']:,}: " if limit["id"] not in ("max", "data") else ""
    reported.append(f"limit     {at}{limit['text']}")
    before = f", {found['found_before']} of them found before" if found["found_before"] else ""
    reported.append(f"runs      {len(found['runs'])}{before}, in {format_duration(found['seconds'])}; kept in {folder}")
    reported.append(f"label     {training['label']}")
    return reported
