"""The command line of plans."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import click

from forebay.errors import CHECK_FAILED, DONE, INTERRUPTED, RequestError
from forebay.plan import output
from forebay.plan.frozen import replace
from forebay.plan.simulation.options import simulation_options, taken

EXAMPLES = """\b
Examples:
  forebay plan run --drive D7-PS1010 --drives 4 --workload unet3d
  forebay plan run --drive D7-P5520 --location remote --queues 15 --io-size 128k
  forebay plan run --drive D7-PS1010 --workload unet3d --simulate --hosts 125 --jitter compute=0.05
  forebay plan recommend --accelerators 6 --workload unet3d
  forebay plan compare --drive D7-PS1010,D5-P5336 --workload unet3d
  forebay plan whatif --drive D7-PS1010 --vary drives=1:8
  forebay plan calibrate mine.jsonl --drive D7-PS1010 --out mine.json
  forebay plan predict --query cells.csv --out predicted.csv
  forebay plan backtest --page docs/plan-backtest.md"""


@click.group(name="plan", epilog=EXAMPLES, context_settings={"max_content_width": 110})
def command() -> None:
    """What will k drives, n GPUs, q queues give? What is the bottleneck? What should I change?"""


def catalogue_of(path: str | None) -> list[Any]:
    """The drives of a user's catalogue; none without one."""
    from forebay.plan import catalogue

    if path is None:
        return []
    return catalogue.drives_of(catalogue.load_toml(catalogue.read_text(path, "--catalogue"), path), path)


CATALOGUE = click.option("--catalogue", metavar="FILE", help="More drives, as [[drive]] tables in TOML.")
CALIBRATION = click.option("--calibration", metavar="FILE", help="File written by calibrate --out, instead of --runs.")
JSON = click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")


OPTIONS = (
    ("--drive", str, "NAME", "Drive model, as named in the catalogue."),
    ("--drives", int, "N", "Number of drives, of all hosts together; a RAID 0 in each host (1 for each host)."),
    ("--hosts", int, "N", "Number of hosts, which share drives, requests and accelerators evenly (1)."),
    ("--location", str, "WHERE", "local, or remote through a DPU (local)."),
    ("--queues", int, "N", "Queues of the DPU, up to 31; remote only (31)."),
    ("--io-size", str, "SIZE", "Size of a request (1m)."),
    ("--workers", int, "N", "Number of reading workers (as few as bring nearly what any number would; kvcache: 4)."),
    ("--depth", int, "N", "Requests in flight per worker (1; kvcache: 32)."),
    ("--path", str, "PATH", "gds, or bounce (also cpu): through CPU memory (gds)."),
    ("--link", str, "GIB_S", "Bandwidth of the narrowest link on the way, e.g. an uplink or a NIC; also as 200Gb/s."),
    ("--sharers", int, "N", "How many share that link equally (1)."),
    ("--gpu-link", str, "GIB_S", "Bandwidth of each GPU's link."),
    ("--cores", int, "N", "Limit on the CPU cores of each host that I/O may use (its threads)."),
    ("--workload", str, "NAME", "io, job, kvcache, a model of train, infer-MODEL, one of emulate workloads, a TOML file (io)."),
    ("--mode", str, "MODE", "Of infer-MODEL: ram, cold or coldstart (ram)."),
    ("--accelerator", str, "NAME", "h100, a100, b200 or mi355 (h100)."),
    ("--rules", str, "SET", "Edition of the workload: v1.0, v2.0 or v3.0 (the first that has it)."),
    ("--accelerators", int, "N", "Number of accelerators, of all hosts; default: the greatest number that passes."),
    ("--dataset", float, "GIB", "Size of the data set (five times the memory)."),
    ("--memory", float, "GIB", "Memory of each host (2048)."),
    ("--threads", int, "N", "Hardware threads of each host (208)."),
    ("--gpus", str, "SYSTEM", "System whose GPUs train, for dlrm (D74H-7U)."),
    ("--sample-bytes", float, "BYTES", "Size of a sample, for job, dlrm (912) and models."),
    ("--samples-per-s", float, "RATE", "Rate of one accelerator that never waits, for job and models."),
    ("--option", int, "1|2|3", "MLPerf Storage v3.0's option, for kvcache (1)."),
    ("--users", int, "N", "Users of each rank, for kvcache (the option's)."),
    ("--model", str, "NAME", "Language model, for kvcache (the option's)."),
    ("--ranks", int, "N", "Clients, each with users of its own, for kvcache (1)."),
    ("--admission", int, "N", "Entries written at once by each rank, for kvcache (the option's)."),
)


# What was read of --runs already: a pipe can't be read twice.
RUNS_TEXT = "runs_text"


def system_options(less: tuple[str, ...] = ()) -> Callable[[Any], Any]:
    """A file's settings and the flags above; a flag wins over the file."""

    def add(function: Any) -> Any:
        for name, kind, metavar, text in reversed(OPTIONS):
            if name not in less:
                function = click.option(name, type=kind, metavar=metavar, help=text)(function)
        function = CALIBRATION(function)
        function = click.option("--runs", metavar="FILE", help="Your own runs on one such drive, to calibrate with.")(function)
        return click.argument("file", required=False, metavar="[TOML]")(function)

    return add


def prepared(values: dict[str, Any], takes_demand: bool = True) -> tuple[Any, Any, list[Any]]:
    """The planner, the system and the user's drives, out of a command's flags, which are taken away. `takes_demand`: runs of a
    training among --runs are the workload."""
    from forebay.plan import calibrate as calibration
    from forebay.plan import catalogue as sheets
    from forebay.plan import models, saved, trained
    from forebay.plan import system as systems
    from forebay.plan.jobs import IO
    from forebay.plan.planner import published
    from forebay.plan.simulation.verb import of_file as of_simulation

    file, runs, path, text = (values.pop(name, None) for name in ("file", "runs", "catalogue", RUNS_TEXT))
    kept, more = calibration_of(values.pop("calibration"), runs), catalogue_of(path)
    settings = {**(systems.read(file) if file else {}), **{k: v for k, v in values.items() if v is not None}}
    if file and (hosts := of_simulation(file).get("hosts")) is not None:
        settings.setdefault("hosts", hosts)
    if kept:
        settings.setdefault("drive", kept.drive.name)
        more = [kept.drive, *more]
    found = None
    if runs:
        text = text or sheets.read_text(runs, "--runs")
        # Plain reads are asked for: of what else was run, nothing is needed.
        takes_demand = takes_demand and not (settings.get("workload") == IO and trained.has_others(text))
        if takes_demand and (found := trained_in(text, f"--runs {runs}")) is not None:
            settings = models.asked_of(found, settings)
            runs = runs if trained.has_others(text) else None
    system = systems.make(settings, more, file or "plan")
    planner = published().with_drives(more) if more else published()
    if runs:
        read = calibration.read(text, runs, system.drive, None)
        planner = saved.planner(planner, read, sheets.drive(system.drive, more), more)
    elif kept:
        planner = saved.planner(planner, kept.runs, kept.drive, more)
        if kept.drive.name != system.drive:
            planner.notes.append(f"calibrated by runs of {kept.drive.name}: {system.drive} is predicted from its data sheet")
    if found is not None:
        # The planner may be everybody's.
        planner = copy.copy(planner)
        planner.demand = found
    return planner, system, more


def left_out(file: str | None) -> list[str]:
    """Returns what an answer by formulas alone says of a file's [simulate], of which it only takes the hosts."""
    from forebay.plan.simulation.verb import of_file

    keys = [key for key in of_file(file) if key != "hosts"]
    return [f"[simulate] is left out ({', '.join(keys)}): forebay plan run {file} --simulate plays it"] if keys else []


def trained_in(text: str, where: str) -> Any:
    """Demand of a GPU by the runs of training or inference among others; None where there are none."""
    from forebay.plan import trained

    found = [one for kind in ("train", "infer") if (one := trained.read(text, where, kind)) is not None]
    if len(found) > 1:
        raise RequestError(where, "has runs of training and of inference", "a file with those of one")
    return found[0] if found else None


def calibration_of(path: str | None, runs: str | None = None) -> Any:
    """The saved calibration; None without one. RequestError where runs are given beside it."""
    from forebay.plan import catalogue, saved

    if path is None:
        return None
    if runs is not None:
        raise RequestError("--calibration with --runs", "both say what was measured", "one of them")
    return saved.read(catalogue.read_text(path, "--calibration"), path)


@command.command(name="run")
@system_options()
@simulation_options
@click.option("--explain", is_flag=True, help="Also show the parameters, and what more of each thing would bring.")
@CATALOGUE
@JSON
def run(as_json: bool, explain: bool, **values: Any) -> int:
    """Predicts one system: throughput, latency, CPU, accelerators or minutes, each with an 80 % interval.

    --simulate also simulates it in virtual time: jitter, barriers over many hosts, drives and hosts that fail,
    and several jobs on the same drives.
    """
    from forebay.plan import answer, assume, show

    simulated, flags = taken(values)
    if flags and not simulated:
        raise RequestError("--" + next(iter(flags)), "applies only to a simulation", "add --simulate")
    file, calibrated = values["file"], values["runs"] is not None or values["calibration"] is not None
    planner, system, more = prepared(values)
    if system.caches:
        return run_kvcache(planner, system, simulated, calibrated, as_json)
    if not simulated:
        row = answer.answer(planner, system)
        row["warnings"] += left_out(file)
        click.echo(json.dumps(row) if as_json else show.run(row, explain))
        return DONE
    from forebay.plan.simulation import verb
    from forebay.plan.simulation.show import text

    system = assume.with_requests(planner, system)
    asked = verb.asked_for(system, flags, more, file)
    row = answer.answer(planner, system)
    row["simulation"] = verb.simulate(planner, asked)
    click.echo(json.dumps(row) if as_json else show.run(row, explain) + "\n\n" + text(row["simulation"]))
    return INTERRUPTED if row["simulation"]["interrupted"] else DONE


def run_kvcache(planner: Any, system: Any, simulated: bool, calibrated: bool, as_json: bool) -> int:
    """`plan run` of a KV cache, which is played in virtual time."""
    from forebay import simulate
    from forebay.bench.interrupt import Interrupt
    from forebay.plan import kvcache, show

    if simulated:
        raise RequestError("--simulate", "a KV cache is played in virtual time as it is", "no --simulate")
    with Interrupt():
        row = kvcache.plan(planner, system, simulate.kvcache, simulate.kvcache_option, calibrated)
    click.echo(json.dumps(row) if as_json else show.kvcache(row))
    return DONE


def recommend_kvcache(
    planner: Any, system: Any, asked: Any, pool: list[Any], needs: Any, by: str, sources: list[str], as_json: bool
) -> int:
    """`plan recommend --kv-users`: each drive is tried in virtual time."""
    from forebay import simulate
    from forebay.bench.interrupt import Interrupt
    from forebay.plan import kvusers, show
    from forebay.plan.simulation.verb import Bar

    with Interrupt(), Bar() as bar:
        play, option = simulate.kvcache, simulate.kvcache_option
        found = kvusers.recommend(planner, system, asked, pool, play, option, bar.show, needs, by, sources)
    click.echo(json.dumps(found) if as_json else show.kvusers(found))
    return DONE if found["choices"] else CHECK_FAILED


@command.command(name="recommend")
@system_options(less=("--drive", "--drives", "--accelerators", "--users"))
@click.option("--kv-users", type=int, metavar="N", help="Target: users of a KV cache, of each rank, that are served in time.")
@click.option("--p95", metavar="TIME", help="For --kv-users: P95 from a request's arrival to its end, as 10s or 500ms (10s).")
@click.option("--accelerators", type=int, metavar="N", help="Target: number of accelerators that must pass.")
@click.option("--gib-s", type=float, metavar="RATE", help="Target: GiB/s.")
@click.option("--minutes", type=float, metavar="TIME", help="Target: minutes to train (dlrm).")
@click.option("--seconds", type=float, metavar="TIME", help="Target: seconds to load, to start, or for a checkpoint.")
@click.option("--drive", "only", metavar="NAME,...", help="Only these drives (the catalogue's).")
@click.option("--capacity", type=float, metavar="TB", help="Capacity that the data drives must have together.")
@click.option("--parity", type=int, metavar="N", help="Drives of each RAID that may fail, 0 to 2: bought in addition (0).")
@click.option("--writes", type=float, metavar="TB", help="Terabytes written a day, which the drives must endure.")
@click.option("--years", type=float, metavar="N", help="For so many years (5).")
@click.option("--bays", type=int, metavar="N", help="Drives that fit into a host (24).")
@click.option("--host-price", type=float, metavar="PRICE", help="Price of a host without drives, for --by price (0).")
@click.option("--by", default="drives", show_default=True, metavar="WHAT", help="What to minimize: drives, price or watts.")
@CATALOGUE
@JSON
def recommend(
    as_json: bool, accelerators: int | None, gib_s: float | None, minutes: float | None, seconds: float | None,
    kv_users: int | None, p95: str | None, by: str, only: str | None, **values: Any,
) -> int:  # fmt: skip
    """The cheapest complete system that meets a target: drives, hosts, requests in flight, DPU queues; and the alternatives.

    What you don't give is a result. A choice qualifies if the 10 % end of its interval meets the target. Prices, watts and
    endurance come only from your catalogue.
    """
    from forebay.plan import catalogue as sheets
    from forebay.plan import recommend as advice
    from forebay.plan import show
    from forebay.plan.jobs import IO

    if by not in advice.BY:
        raise RequestError(f"--by {by}", "is not a measure", "one of " + ", ".join(advice.BY))
    trained, drive_runs = demand_of(values)
    if trained is None and values["runs"] is not None and values["workload"] is not None:
        # The runs may be of that model's, and of no drive.
        drive_runs = has_drive_runs(values)
    target, needs = advice.Target(accelerators, gib_s, minutes, seconds), needs_of(values)
    if trained is not None:
        target = target_of(trained, target, kv_users, values)
    asked = kv_target(target, kv_users, p95, values)
    if asked is not None and needs.bays != advice.BAYS:
        raise RequestError("--kv-users with --bays", "is asked of one host, however many drives it holds", "no --bays")
    if asked is None:
        target.check()
    names = [name.strip() for name in only.split(",")] if only else []
    if values["file"] is None and drive_runs and len(names) != 1:
        raise RequestError("recommend --runs", "doesn't say which drive the runs read", "--drive NAME, of the runs")
    if names:
        values["drive"] = names[0]
    elif values["file"] is None and values["calibration"] is None:
        values["drive"] = next(iter(sheets.drives().values())).name
    file, flags = values["file"], [(flag, values[flag]) for flag in ("runs", "calibration", "catalogue")]
    planner, system, more = prepared(values, trained is None)
    sources = [*([file] if system.pcie else []), *(part for flag, path in flags if path for part in (f"--{flag}", path))]
    if trained is not None and drive_runs:
        # Runs of training among them would be the workload.
        sources += ["--workload", IO]
    system = replace(system, given=system.given - {"drive", "drives"}, drives=1 if system.location == "remote" else system.hosts)
    pool = more if by != "drives" and more else list({d.name: d for d in [*sheets.drives().values(), *more]}.values())
    pool = [sheets.drive(name, more) for name in names] if names else pool
    if asked is not None:
        advice.ranked(by, pool)
        return recommend_kvcache(planner, system, asked, pool, needs, by, sources, as_json)
    document = advice.recommend(planner, system, target, by, pool, needs, sources)
    document["warnings"] += left_out(file)
    if trained is not None:
        gpus = accelerators or trained.gpus
        document["demand"] = trained.document(gpus)
        document["rests_on_runs"] = trained.rests(gpus, names[0] if drive_runs else None)
        document["decision"] = f"{trained.words(gpus)}: {document['decision']}"
        published = trained.as_published(document["choices"][0]["drive"], gpus) if document["choices"] else None
        document["advice"] += [published] if published else []
    click.echo(json.dumps(document) if as_json else show.recommend(document))
    return DONE if document["choices"] else CHECK_FAILED


def demand_of(values: dict[str, Any]) -> tuple[Any, bool]:
    """The demand that --runs measured in training, and whether the file has runs of drives as well; else there are none to
    calibrate with, and the flag is taken away."""
    from forebay.plan import catalogue as sheets
    from forebay.plan import models, trained

    # With a model of the table as its workload, the runs say what a GPU takes, and the target is in GPUs or seconds.
    if values["runs"] is None or models.known(values["workload"] or ""):
        return None, False
    path = values["runs"]
    text = values[RUNS_TEXT] = sheets.read_text(path, "--runs")
    found = trained.read(text, f"--runs {path}")
    if found is None:
        return None, True
    if not trained.has_others(text):
        values["runs"] = values[RUNS_TEXT] = None
    return found, values["runs"] is not None


def has_drive_runs(values: dict[str, Any]) -> bool:
    """Returns whether --runs has runs of drives; its text is kept, for a pipe can't be read again."""
    from forebay.plan import catalogue as sheets
    from forebay.plan import trained

    text = values[RUNS_TEXT] = values.get(RUNS_TEXT) or sheets.read_text(values["runs"], "--runs")
    return trained.has_others(text)


def target_of(trained: Any, given: Any, kv_users: int | None, values: dict[str, Any]) -> Any:
    """N times the demand of a GPU, N being --accelerators, or the GPUs that shared the runs' supply. RequestError beside
    another target."""
    from forebay.plan.recommend import Target

    gpus = given.accelerators
    if any(value is not None for value in (given.gibps, given.longest, kv_users)):
        found = f"the runs train {trained.model}, whose demand is the target"
        raise RequestError("recommend --runs with another target", found, "--accelerators 8, or runs of forebay bench")
    if values["workload"] is not None:
        found = f"contradicts the runs, which train {trained.model}"
        raise RequestError(f"--workload {values['workload']}", found, "no --workload, or runs of forebay bench")
    if values["gpus"] is not None:
        found = "names a published system whose GPUs train; of these runs it is their own, as many as --accelerators says"
        number = values["gpus"] if values["gpus"].isdigit() else "8"
        raise RequestError(f"--gpus {values['gpus']}", found, f"--accelerators {number}")
    if gpus is not None and gpus < 1:
        raise RequestError(f"--accelerators {gpus}", "is below 1", "--accelerators 8")
    return Target(gibps=(gpus or trained.gpus) * trained.gib_s)


def needs_of(values: dict[str, Any]) -> Any:
    """Requirements of a purchase besides its target, out of a command's flags, which are taken away."""
    from forebay.plan.recommend import Needs

    flags = {"capacity": "capacity_tb", "writes": "writes_tb_day", "parity": "parity", "years": "years", "bays": "bays"}
    flags |= {"host_price": "host_price"}
    given = {name: value for flag, name in flags.items() if (value := values.pop(flag)) is not None}
    return Needs(**given)


def kv_target(target: Any, users: int | None, p95: str | None, values: dict[str, Any]) -> Any:
    """What --kv-users asks for, whose workload is then kvcache; None without it."""
    from forebay.plan import kvusers
    from forebay.units import parse_seconds

    if users is None:
        if p95 is not None:
            raise RequestError(f"--p95 {p95}", "belongs to --kv-users", "--kv-users 50")
        return None
    if any(v is not None for v in target.__dict__.values()):
        raise RequestError("--kv-users", "is a target of its own", "no other target")
    if values["workload"] not in (None, "kvcache"):
        raise RequestError(f"--workload {values['workload']}", "contradicts --kv-users", "--workload kvcache, or none")
    asked = kvusers.Asked(users, kvusers.P95_S if p95 is None else parse_seconds(p95, "--p95"))
    asked.check()
    values["workload"] = "kvcache"
    return asked


@command.command(name="whatif")
@system_options()
@click.option(
    "--vary", multiple=True, metavar="SETTING=RANGE",
    help="drives=1:8 doubles, drives=1:8:1 goes by ones, io-size=64k,1m; repeat it for more axes.",
)  # fmt: skip
@click.option("--page", metavar="HTML", help="Write one page with sliders and curves; it needs no network.")
@simulation_options
@CATALOGUE
@JSON
def whatif(as_json: bool, vary: tuple[str, ...], page: str | None, **values: Any) -> int:
    """The same over ranges of settings, in every combination; or a page with sliders. --simulate also simulates each."""
    from forebay.plan import show
    from forebay.plan import whatif as varied

    simulated, flags = taken(values)
    if (flags and not simulated) or (simulated and not vary):
        raise RequestError("--" + next(iter(flags), "simulate"), "applies only to simulated points", "--simulate and --vary")
    file = values["file"]
    if not vary and not page:
        raise RequestError("whatif", "varies nothing", "--vary drives=1:8, or --page whatif.html")
    if page:
        output.check("--page", page, output.PAGE)
    own = values["runs"] is not None or values["calibration"] is not None
    planner, system, more = prepared(values)
    if system.caches:
        raise RequestError("whatif with workload kvcache", "isn't planned over ranges", "plan run for each, or plan recommend")
    if page:
        from forebay.plan import explore

        output.write("--page", page, explore.page(planner, system, own), output.PAGE)
        click.echo(f"forebay: page written to {page}", err=True)
    if not vary:
        if as_json:
            click.echo(json.dumps({"schema": "forebay.whatif/1", "axes": {}, "points": [], "page": page}))
        return DONE
    axes = [varied.axis(text) for text in vary]
    asked = varied.systems(system, axes, more)
    rows, whole = varied.points(planner, asked), True
    if simulated:
        from forebay.plan.simulation import verb

        rows, whole = verb.simulate_points(planner, asked, rows, lambda s: verb.asked_for(s, flags, more, file))
    for text in () if simulated else left_out(file):
        click.echo(f"forebay: {text}", err=True)
    document = {"schema": "forebay.whatif/1", "axes": {n: v for n, v in axes}, "points": rows}
    click.echo(json.dumps(document) if as_json else show.whatif([n for n, _ in axes], rows))
    return DONE if whole else INTERRUPTED


@command.command(name="compare")
@system_options(less=("--drive", "--drives", "--location", "--path"))
@click.option("--drive", "drive_list", metavar="NAME,...", help="Drive models to compare.")
@click.option("--drives", "drives_list", default="1,2,4,8", show_default=True, metavar="N,...", help="Numbers of drives, or 1:8.")
@click.option("--location", "location_list", default="local,remote", show_default=True, metavar="WHERE,...", help="Places.")
@click.option("--path", "path_list", default="gds,bounce", show_default=True, metavar="PATH,...", help="Data paths.")
@CATALOGUE
@JSON
def compare(as_json: bool, **values: Any) -> int:
    """Local or remote, with GPUDirect Storage or without: one table for a workload, and what each choice costs."""
    from forebay.plan import compare as compared
    from forebay.plan import show

    axes, file = compared.axes({key: values.pop(f"{key}_list") for key in compared.AXES}, values), values["file"]
    planner, system, more = prepared(values)
    for text in left_out(file):
        click.echo(f"forebay: {text}", err=True)
    document = compared.compare(planner, system, axes, more)
    click.echo(json.dumps(document) if as_json else show.compare(document))
    return DONE


@command.command(name="calibrate")
@click.argument("runs", nargs=-1, required=True, metavar="RUNS...")
@click.option("--drive", required=True, metavar="NAME", help="The drive that the runs read: a model in the catalogue.")
@click.option("--drives", type=click.IntRange(1), metavar="N", help="Number of drives, as RAID 0 (a stripe's members, else 1).")
@click.option("--out", metavar="FILE", help="Save the calibration, for --calibration of the other verbs.")
@CATALOGUE
@JSON
def calibrate(
    runs: tuple[str, ...], drive: str, drives: int | None, out: str | None, catalogue: str | None, as_json: bool
) -> int:
    """Fit the parameters to your own runs: records, gdsio's output lines, fio's JSON.

    Says which parameters the runs determine, which they can't, and which measurement would add most.
    """
    from forebay.plan import calibrate as calibration
    from forebay.plan import catalogue as sheets
    from forebay.plan import saved, show

    if out:
        output.check("--out", out, output.CALIBRATION, runs)
    more = catalogue_of(catalogue)
    sheet = sheets.drive(drive, more)
    found = [r for path in runs for r in calibration.read(sheets.read_text(path, "runs"), path, sheet.name, drives)]
    document = saved.document(calibration.calibrate(found, sheet, more)[1], found, sheet)
    if out:
        output.write("--out", out, json.dumps(document, indent=1) + "\n", output.CALIBRATION, runs)
        click.echo(f"forebay: calibration written to {out}; use it as --calibration {out}", err=True)
    click.echo(json.dumps(document) if as_json else show.calibration(document))
    return DONE


@command.command(name="predict")
@click.option("--query", required=True, metavar="CSV", help="A table in a published format; its blank cells are predicted.")
@click.option("--out", metavar="CSV", help="Where to write the completed table. Default: stdout.")
@CALIBRATION
@CATALOGUE
@JSON
def predict(query: str, out: str | None, calibration: str | None, catalogue: str | None, as_json: bool) -> int:
    """Fill the blanks of a table, each with its 80 % interval and the bottleneck.

    The table is recognised by its columns; rows may be in any order, and unknown columns are kept.
    """
    from forebay.plan import catalogue as sheets
    from forebay.plan import saved
    from forebay.plan.planner import published
    from forebay.plan.predict import predict_text

    if as_json and not out:
        raise RequestError("--json", "would mix with the table on stdout", "--out predicted.csv")
    if out is not None:
        output.check("--out", out, output.TABLE, (query,))
    more = catalogue_of(catalogue)
    planner = published().with_drives(more) if more else published()
    kept = calibration_of(calibration)
    if kept:
        planner = saved.planner(planner, kept.runs, kept.drive, [kept.drive, *more])
    text, document = predict_text(sheets.read_text(query, "--query"), query, planner)
    if out is None:
        click.echo(text, nl=False)
        return DONE
    output.write("--out", out, text, output.TABLE, (query,))
    document["out"] = out
    if as_json:
        click.echo(json.dumps(document))
    else:
        said = f"{document['predicted_cells']} blank cells of {document['rows']} rows predicted, as {document['table']}"
        click.echo(f"{said}; written to {out}", err=True)
    return DONE


@command.command(name="backtest")
@click.argument("folder", required=False, metavar="[DIR]")
@click.option("--page", metavar="MD", help="Write the documentation page to this file.")
@CATALOGUE
@JSON
def backtest(folder: str | None, page: str | None, catalogue: str | None, as_json: bool) -> int:
    """Score the planner on tables of measurements, predicting each cell without it and similar ones.

    DIR holds tables of the published forms, as CSV; without it, the published tables that come with Forebay.
    What calibrates is always the published tables, less what is being predicted.
    """
    from forebay.plan import backtest as tests
    from forebay.plan import page as pages
    from forebay.plan.planner import TABLES
    from forebay.plan.published import table

    if page:
        output.check("--page", page, output.BACKTEST)
    known = {name: table(name) for name in TABLES}
    cells = tests.folder(folder) if folder else known
    results = tests.run(cells, known, more=catalogue_of(catalogue))
    if not results:
        raise RequestError(f"{folder}", "holds no measured cell in a known format", "tables as docs/plan.md shows them")
    if page:
        output.write("--page", page, pages.markdown(results), output.BACKTEST)
    if as_json:
        click.echo(json.dumps(pages.document(results, folder)))
    else:
        click.echo(pages.text(results))
        if page:
            click.echo(f"forebay: page written to {page}", err=True)
    return DONE
