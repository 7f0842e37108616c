"""`forebay emulate export`: records of ours in the layout of MLPerf Storage v1.0, which its report.py reads.

OUT/run1 … runN, each with DLIO's summary.json, per_epoch_stats.json and configs/overrides.yaml. Figures are those of v1.0's
formula, whatever rules the run was judged by. Each summary carries the label, so that none passes for a submitted one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import click

from forebay.bench.save import place
from forebay.emulate import judge, kept, results
from forebay.errors import DONE, RequestError
from forebay.units import GIB

EDITION = "v1.0"
EXAMPLES = """\b
Examples:
  forebay emulate export results mlperf-style
  python report.py --result-dir mlperf-style        (MLCommons' own script, from v1.0)"""


@click.command("export", epilog=EXAMPLES, context_settings={"max_content_width": 110})
@click.argument("folder")
@click.argument("out")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def command(folder: str, out: str, as_json: bool) -> int:
    """Write saved records in the layout of MLPerf Storage v1.0.

    FOLDER holds what `forebay emulate run --results` or `search` saved. OUT must be empty or not exist.
    """
    records = saved(Path(folder))
    counted = judge.counted(records, records[0]["training"]["rule_set"])
    written = write(Path(out), counted)
    label = "MLPerf-style, unverified"
    if as_json:
        runs = [str(place) for place in written]
        click.echo(json.dumps({"schema": "forebay.emulate-export/1", "label": label, "out": out, "runs": runs}))
    else:
        without = " (the warm-up run is left out)" if len(counted) < len(records) else ""
        click.echo(f"{len(written)} run{'s' * (len(written) != 1)} in {out}{without}: {label}")
    return DONE


def saved(folder: Path) -> list[dict[str, Any]]:
    """The records of emulated training in a folder, by their beginning."""
    if not folder.is_dir():
        raise RequestError(str(folder), "there is no such folder", "the folder that --results named")
    found: list[dict[str, Any]] = []
    for file in results.candidates(folder):
        if file.name == results.SUMMARY:
            continue
        try:
            ours = of_file(file)
            for record in ours:
                results.of_record(record, file.name)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, OSError) as error:
            raise RequestError(str(file), results.described(error), "move it out of the folder, or repeat its run") from None
        found += ours
    if not found:
        raise RequestError(str(folder), "holds no record of an emulated run", "forebay emulate run --results DIR")
    return sorted(found, key=lambda r: str(r["started"]))


def of_file(file: Path) -> list[dict[str, Any]]:
    """The records of emulated training in a file: of a search those that confirm its answer."""
    if file.name == kept.FILE:
        named, unreadable = results.searched(file)
        if unreadable:
            raise ValueError(unreadable[0])
        return [record for _, record in named]
    document = results.load(file)
    listed = document if isinstance(document, list) else [document]
    return [r for r in listed if isinstance(r, dict) and r.get("training")]


def write(out: Path, records: Sequence[Mapping[str, Any]]) -> list[Path]:
    """One folder per record; refuses a folder that holds something."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RequestError(str(out), "exists and is not an empty folder", "another name")
    written = []
    for number, record in enumerate(records, 1):
        folder = out / f"run{number}"
        try:
            (folder / "configs").mkdir(parents=True)
            place(folder / "configs" / "overrides.yaml", overrides(record))
            _json(folder / "per_epoch_stats.json", per_epoch(record))
            _json(folder / "summary.json", summary(record))
        except OSError as error:
            raise RequestError(str(folder), error.strerror or str(error), "a folder that can be written") from error
        written.append(folder)
    return written


def _json(file: Path, document: Any) -> None:
    place(file, json.dumps(document, indent=4) + "\n")


def overrides(record: Mapping[str, Any]) -> str:
    """As hydra lists them: what differs from the workload's file."""
    training = record["training"]
    settings = {
        "workload": f"{training['workload']}_{training['accelerator']}",
        "++workload.dataset.num_files_train": training["files"],
        "++workload.reader.read_threads": training["read_threads"],
        "++workload.dataset.data_folder": record["job"]["source"],
    }
    return "".join(f"- {key}={value}\n" for key, value in settings.items())


def summary(record: Mapping[str, Any]) -> dict[str, Any]:
    """DLIO's summary.json. Rates of MiB/s are under its name, which says MB."""
    training, environment = record["training"], record["environment"]
    epochs = [by_edition(e["by_rules"]) for e in training["epochs"]]
    utilisations = [e["au_pct"] for e in epochs if e["au_pct"] is not None]
    rates = [e["samples_per_s"] for e in epochs if e["samples_per_s"] is not None]
    if not utilisations or not rates:
        raise RequestError(
            f"the record of {record['started']}", "has too few steps for v1.0's figures", "a run of at least two steps"
        )
    mib = training["record_bytes"] / (1 << 20)
    hosts = training["hosts"]
    memory = (environment.get("memory_bytes") or 0) / GIB
    begins, ends = span(record)
    return {
        "label": training["label"],
        "start": begins,
        "num_accelerators": training["accelerators"],
        "num_hosts": hosts,
        "hostname": environment.get("host"),
        "metric": {
            "train_au_percentage": utilisations,
            "train_au_mean_percentage": fmean(utilisations),
            "train_au_meet_expectation": "success" if fmean(utilisations) >= training["au_pct_min"] else "fail",
            "train_au_stdev_percentage": pstdev(utilisations),
            "train_throughput_samples_per_second": rates,
            "train_throughput_mean_samples_per_second": fmean(rates),
            "train_throughput_stdev_samples_per_second": pstdev(rates),
            "train_io_mean_MB_per_second": fmean(rates) * mib,
            "train_io_stdev_MB_per_second": pstdev(rates) * mib,
        },
        "num_files_train": training["files"],
        "num_files_eval": 0,
        "num_samples_per_file": training["samples_per_file"],
        "host_cpu_count": [environment.get("cores")] * hosts,
        "host_processor_name": environment.get("cpu") or "",
        "host_memory_GB": [memory] * hosts,
        "data_size_per_host_GB": training["files"] * training["samples_per_file"] * mib / 1024 / hosts,
        "epochs": len(training["epochs"]),
        "end": ends,
        "forebay": {"version": record["forebay"]["version"], "record": record["id"], "level": training["level"]},
    }


def per_epoch(record: Mapping[str, Any]) -> dict[str, Any]:
    """Beginning and end of each epoch, one block in each. Epochs follow each other; pauses between them aren't kept."""
    at = _begin(record)
    found = {}
    for epoch in record["training"]["epochs"]:
        end = at + timedelta(seconds=epoch["seconds"])
        times = {"start": _local(at), "end": _local(end), "duration": f"{epoch['seconds']:.2f}"}
        found[str(epoch["epoch"])] = {**times, "block1": times}
        at = end
    return found


def by_edition(figures: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    for each in figures:
        if each["rule_set"] == EDITION:
            return each
    return {"au_pct": None, "samples_per_s": None}


def span(record: Mapping[str, Any]) -> tuple[str, str]:
    begin = _begin(record)
    return _local(begin), _local(begin + timedelta(seconds=float(record["result"]["seconds"])))


def _begin(record: Mapping[str, Any]) -> datetime:
    return datetime.fromtimestamp(results.timestamp(record["started"]) or 0.0, timezone.utc)


def _local(when: datetime) -> str:
    """Without a zone, as DLIO writes; UTC."""
    return when.replace(tzinfo=None).isoformat(timespec="microseconds")
