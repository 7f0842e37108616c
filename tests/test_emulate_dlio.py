"""Beside DLIO: files that either made are read by the other, sizes agree, and MLCommons' v1.0 script takes our results.

What needs DLIO runs where `DLIO_V1` and `DLIO_V2` name the interpreters that have it (bench/dlio.py says which commits),
where `MLPERF_STORAGE_V1` and `MLPERF_STORAGE_V2` name folders with mlcommons/storage of those versions, and
`MLPERF_STORAGE_REPORT` v1.0's report.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench"))

import dlio  # noqa: E402
from forebay.emulate.workloads import Training, load  # noqa: E402
from side_by_side import Unavailable  # noqa: E402

FILES = 6
# Small records whose sizes differ from file to file, as 3D U-Net's and CosmoFlow's do.
WORKLOAD = """
format = "{format}"
loader = "{loader}"
record_bytes = 65536
record_bytes_stdev = 8192
samples_per_file = {samples}
files = 6
batch = 2
read_threads = 2
file_shuffle = true
sample_shuffle = true
shuffle_samples = 2
epochs = 2
au_pct_min = 1
compute_s = 0.002
"""
# format → samples in a file, and how files become batches
FORMATS = {
    "npz": (4, "pytorch"),
    "npy": (4, "pytorch"),
    "hdf5": (4, "pytorch"),
    "indexed_binary": (4, "pytorch"),
    "jpeg": (1, "pytorch"),
    "png": (1, "pytorch"),
    "tfrecord": (4, "tensorflow"),
}
# Pictures are compressed, so their sizes are those of a compressor.
SIZED = ("npz", "npy", "hdf5", "indexed_binary", "tfrecord")


@dataclass(frozen=True)
class Small:
    """A small workload in a TOML file of its own."""

    file: Path
    training: Training


@pytest.fixture(params=FORMATS)
def small(request: pytest.FixtureRequest, tmp_path: Path) -> Small:
    samples, loader = FORMATS[request.param]
    file = tmp_path / "small.toml"
    file.write_text(WORKLOAD.format(format=request.param, samples=samples, loader=loader))
    return Small(file, load(str(file))[0])


@pytest.fixture(params=["v1.0", "v2.0"])
def peer(request: pytest.FixtureRequest) -> dlio.Dlio:
    try:
        return dlio.installed(request.param)
    except Unavailable as reason:
        pytest.skip(str(reason))


def forebay(*words: str | Path, ends_with: tuple[int, ...] = (0,)) -> Any:
    """Runs a verb of emulate; its JSON."""
    command = [sys.executable, "-m", "forebay.cli", "emulate", *map(str, words), "--json"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ran.returncode in ends_with, ran.stderr
    return json.loads(ran.stdout)


def sizes(data: Path) -> dict[str, int]:
    return {f.name: f.stat().st_size for f in sorted((data / "train").iterdir())}


def indexes(data: Path) -> dict[str, bytes]:
    """What finds records in files: beside them, or in a folder of its own."""
    found = [*data.glob("train/*.idx"), *data.glob("index/train/*.idx")]
    return {str(f.relative_to(data)): f.read_bytes() for f in found}


# How DLIO is driven ----------------------------------------------------------------------------------


def test_settings_are_spelled_as_each_version_does() -> None:
    workload, _ = load("unet3d", "h100", "v1.0")
    old = dlio.settings("v1.0", workload, Path("d"), 7, epochs=2)
    new = dlio.settings("v2.0", workload, Path("d"), 7, epochs=2)
    assert old["dataset"]["record_length"] == new["dataset"]["record_length_bytes"] == 146600628
    assert old["dataset"]["record_length_stdev"] == new["dataset"]["record_length_bytes_stdev"] == 68341808
    assert old["model"] == "unet3d" and new["model"]["name"] == "unet3d"
    assert old["reader"] == new["reader"] and old["reader"]["batch_size"] == 7
    assert new["train"] == {"epochs": 2, "computation_time": 0.323} and new["metric"]["au"] == 0.9


@pytest.mark.parametrize("limit", [0, 1, 2, 3, 5, 8, 36, 100])
def test_the_greatest_number_that_passes_is_found(limit: int) -> None:
    asked: list[int] = []

    def passes(number: int) -> bool:
        asked.append(number)
        return number <= limit

    assert dlio.greatest(passes) == limit
    assert len(asked) == len(set(asked)) <= 2 * (limit.bit_length() + 1)


def test_cpu_of_a_moment_lies_between_two_samples() -> None:
    watched = object.__new__(dlio.Watched)
    watched.samples = [(10.0, 0.0), (12.0, 1.0), (14.0, 5.0)]
    assert [watched.cpu_at(t) for t in (9, 10, 11, 12, 13, 20)] == [0, 0, 0.5, 1, 3, 5]


@pytest.mark.long
def test_a_child_of_a_child_is_counted() -> None:
    burn = "import time\nt = time.process_time()\nwhile time.process_time() - t < 0.4: pass"
    shell = ["sh", "-c", f'"{sys.executable}" -c "$BURN"; sleep 2']
    watched = dlio.execute(shell, {**os.environ, "BURN": burn}, 60, every_s=0.05)
    assert watched.samples[-1][1] >= 0.3


def test_a_peer_that_fails_says_why() -> None:
    with pytest.raises(Unavailable, match="ended with 3: out of luck"):
        dlio.execute(["sh", "-c", "echo out of luck; exit 3"], dict(os.environ), 60)
    # A bar of progress is no line of dashes, as those before mpirun's own words.
    bar, line = "[=====>" + "-" * 50 + "]", "-" * 74
    with pytest.raises(Unavailable, match="out of luck$"):
        dlio.execute(["sh", "-c", f"echo '{bar}'; echo out of luck; echo {line}; echo farewell; exit 3"], dict(os.environ), 60)


def test_dlio_generates_tfrecords_without_dali(tmp_path: Path) -> None:
    theirs = tmp_path / "bin"
    theirs.mkdir()
    env = dlio.indexer({"PATH": str(theirs)}, tmp_path)
    assert subprocess.run(["tfrecord2idx", "a", "b"], env=env).returncode == 0
    (theirs / "tfrecord2idx").write_text("#!/bin/sh\nexit 7\n")
    (theirs / "tfrecord2idx").chmod(0o755)
    assert dlio.indexer({"PATH": str(theirs)}, tmp_path) == {"PATH": str(theirs)}


def test_a_version_that_isnt_named_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DLIO_V2", raising=False)
    with pytest.raises(Unavailable, match="DLIO_V2=PYTHON"):
        dlio.installed("v2.0")


def test_v1_without_its_tracer_is_left_out_with_what_to_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    lacking = "echo \"ModuleNotFoundError: No module named 'dftracer'\" >&2; exit 1"
    python.write_text(f'#!/bin/sh\ncase "$2" in *dftracer*) {lacking};; esac\n')
    python.chmod(0o755)
    monkeypatch.setenv("DLIO_V1", str(python))
    monkeypatch.setenv("DLIO_V2", str(python))
    monkeypatch.setattr(dlio.shutil, "which", lambda name: f"/bin/{name}")
    with pytest.raises(Unavailable, match=f"{python} -m pip install pydftracer==1.0.2"):
        dlio.installed("v1.0")
    assert dlio.installed("v2.0").python == str(python)


# Their workload files -------------------------------------------------------------------------------------

YAML = {
    "v1.0": ("MLPERF_STORAGE_V1", "storage-conf/workload"),
    "v2.0": ("MLPERF_STORAGE_V2", "configs/dlio/workload"),
}


@pytest.mark.promise("EMU-31")
@pytest.mark.parametrize("rules", YAML)
def test_mlcommons_own_files_hold_the_constants_of_our_workloads(rules: str) -> None:
    variable, within = YAML[rules]
    folder = os.environ.get(variable)
    if not folder:
        pytest.skip(f"mlcommons/storage {rules} isn't named; try: {variable}=FOLDER")
    from forebay.emulate import dlio as files

    found = [f for f in sorted((Path(folder) / within).glob("*_[ah]100.yaml"))]
    assert len(found) == 6
    for file in found:
        name, accelerator = file.stem.split("_")
        theirs = files.load(str(file), accelerator, rules)[0]
        mine = load(name, accelerator, rules)[0]
        for key in (
            "format",
            "loader",
            "batch",
            "compute_s",
            "record_bytes",
            "record_bytes_stdev",
            "samples_per_file",
        ):
            assert getattr(theirs, key) == getattr(mine, key), f"{file.name}: {key}"
        for key in ("files", "read_threads", "prefetch", "epochs", "au_pct_min", "computation_threads"):
            assert getattr(theirs, key) == getattr(mine, key), f"{file.name}: {key}"


# What DLIO's own LoadConfig makes of all workload files that it and MLCommons bring: our name → its.
THEIRS = {
    "format": "format", "loader": "data_loader", "batch": "batch_size", "epochs": "epochs", "files": "num_files_train",
    "read_threads": "read_threads", "computation_threads": "computation_threads", "prefetch": "prefetch_size",
    "record_bytes": "record_length", "record_bytes_stdev": "record_length_stdev", "samples_per_file": "num_samples_per_file",
}  # fmt: skip
ASK = f"""
import enum, json, sys
from pathlib import Path
from omegaconf import OmegaConf
from dlio_benchmark.utils.config import ConfigArguments, LoadConfig
from dlio_benchmark.utils.utility import DLIOMPI
DLIOMPI.get_instance().initialize()
said = {{}}
def plain(value):
    return value.value if isinstance(value, enum.Enum) else dict(value) if hasattr(value, "items") else value
for file in sys.argv[1:]:
    ConfigArguments._ConfigArguments__instance = None
    args = ConfigArguments.get_instance()
    LoadConfig(args, OmegaConf.load(file))
    names = {sorted(THEIRS.values())!r} + ["computation_time", "au", "seed", "total_training_steps", "file_shuffle",
        "sample_shuffle", "record_length_resize", "do_train", "num_layers", "num_checkpoints_write", "fsync", "odirect"]
    said[file] = {{name: plain(getattr(args, name, None)) for name in names}}
print("said " + json.dumps(said))
"""


def workload_files(peer: dlio.Dlio) -> list[Path]:
    """All that DLIO brings, and MLCommons' of that version, where it is named."""
    found = subprocess.run(
        [peer.python, "-c", "import dlio_benchmark as d; print('at', *d.__path__)"], capture_output=True, text=True, check=True
    )
    folders = [Path(found.stdout.split("at ")[-1].strip(), "configs/workload")]
    variable, within = YAML[peer.version]
    if os.environ.get(variable):
        folders.append(Path(os.environ[variable], within))
    files = [file for folder in folders for file in sorted(folder.glob("*.yaml"))]
    assert len(files) >= 10
    return files


@pytest.mark.promise("EMU-9")
def test_every_file_of_theirs_is_read_as_they_read_it(peer: dlio.Dlio, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is a training workload, or one that only makes data, or one of checkpoints; or a key of it is refused by its line."""
    import yaml
    from forebay.emulate import dlio as reader
    from forebay.emulate import dlio_checkpoint, yaml_subset
    from forebay.errors import RequestError

    files = workload_files(peer)
    asked = [peer.python, "-c", ASK, *map(str, files)]
    done = subprocess.run(asked, env=dlio.environment(peer), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.split("said ")[-1])
    refused = {}
    for file in files:
        theirs = said[str(file)]
        values = yaml_subset.parse(file.read_text(), file.name).values
        assert values == yaml.safe_load(file.read_text()), file
        try:
            if "transformer" in values["model"]:
                model = dlio_checkpoint.load(str(file), 64)
                assert (model.layers, model.writes) == (theirs["num_layers"], max(theirs["num_checkpoints_write"], 0)), file
                continue
            ours, _, run = reader.load(str(file), None, peer.version, needs_training=theirs["do_train"])
        except RequestError as error:
            refused[file.name] = str(error)
            continue
        odd = {key: (getattr(ours, key), theirs[name]) for key, name in THEIRS.items() if getattr(ours, key) != theirs[name]}
        if theirs["format"] == "mmap_indexed_binary":  # one format has two readers there
            odd.pop("format")
        if not theirs["do_train"]:  # what reads isn't said
            odd.pop("loader", None)
        assert not odd, f"{file}: {odd}"
        time = theirs["computation_time"]
        assert ours.compute_s == (time.get("mean", 0) if isinstance(time, dict) else time), file
        assert ours.au_pct_min == pytest.approx(100 * theirs["au"]), file
        assert (ours.record_bytes_resize or 0) == theirs["record_length_resize"], file
        assert (ours.file_shuffle, ours.sample_shuffle) == tuple(theirs[k] != "off" for k in ("file_shuffle", "sample_shuffle"))
        assert run.get("seed", 123) == theirs["seed"] and run.get("steps", -1) == theirs["total_training_steps"]
        assert run["files"] == theirs["num_files_train"] and (run.get("cache") == "bypass") == bool(theirs["odirect"])
    # DeepSpeed's state a list of their layers' sizes.
    assert all("megatron_deepspeed" in name and "layer_parameters" in why for name, why in refused.items()), refused


# Data of each, in the hands of the other ---------------------------------------------------------------


@pytest.mark.promise("EMU-31", "TRA-14")
def test_dlio_trains_on_our_data(small: Small, peer: dlio.Dlio, tmp_path: Path) -> None:
    data = tmp_path / "ours"
    forebay("datagen", "--workload", small.file, "--data", data, "--files", str(FILES))
    played = dlio.play(peer, small.training, data, FILES, 1, 2)
    batches = FILES * small.training.samples_per_file // small.training.batch
    assert played.samples == 2 * batches * small.training.batch and played.au_pct > 0


@pytest.mark.promise("EMU-31", "TRA-14")
def test_we_train_on_dlios_data(small: Small, peer: dlio.Dlio, tmp_path: Path) -> None:
    data = tmp_path / "theirs"
    dlio.generate(peer, small.training, data, FILES)
    training = forebay("run", "--workload", small.file, "--data", data, "--rules", peer.version)["training"]
    assert training["samples"] == 2 * FILES * small.training.samples_per_file
    assert training["level"] == "parse" and training["skipped"]["count"] == 0


@pytest.mark.promise("EMU-31")
def test_sizes_are_dlios(small: Small, peer: dlio.Dlio, tmp_path: Path) -> None:
    if small.training.format not in SIZED:
        pytest.skip("a compressor decides the sizes of pictures")
    dlio.generate(peer, small.training, tmp_path / "theirs", FILES)
    forebay("datagen", "--workload", small.file, "--data", tmp_path / "ours", "--files", str(FILES))
    assert sizes(tmp_path / "ours") == sizes(tmp_path / "theirs")
    found, theirs = indexes(tmp_path / "ours"), indexes(tmp_path / "theirs")
    # DALI's program makes those of TFRecords, where it is installed.
    assert found == theirs or (small.training.format == "tfrecord" and not theirs)
    assert len(found) == FILES * {"indexed_binary": 2, "tfrecord": 1}.get(small.training.format, 0)


@pytest.mark.promise("EMU-31")
def test_cosmoflows_sizes_are_dlios(peer: dlio.Dlio, tmp_path: Path) -> None:
    workload, _ = load("cosmoflow", "h100", peer.version)
    dlio.generate(peer, workload, tmp_path / "theirs", 12)
    forebay(
        "datagen",
        "--workload",
        "cosmoflow",
        "--accelerator",
        "a100",
        "--data",
        tmp_path / "ours",
        "--files",
        "12",
    )
    assert sizes(tmp_path / "ours") == sizes(tmp_path / "theirs")


# Their script, over our results -------------------------------------------------------------------------


@pytest.mark.promise("EMU-31")
@pytest.mark.parametrize("verb", ["run", "search"])
def test_the_report_script_of_v1_takes_our_results(verb: str, tmp_path: Path) -> None:
    script, python = os.environ.get("MLPERF_STORAGE_REPORT"), os.environ.get("DLIO_V1")
    if not script or not python:
        pytest.skip(
            "MLPERF_STORAGE_REPORT names no report.py of mlcommons/storage v1.0, or DLIO_V1 no Python for it"
        )
    data, results, exported = (tmp_path / name for name in ("data", "results", "exported"))
    # Its steps are the longest: a machine that is busy feeds one accelerator, too.
    workload = ["--workload", "resnet50", "--accelerator", "a100"]
    forebay("datagen", *workload, "--data", data, "--files", "4")
    words = [*workload, "--data", data, "--rules", "v1.0", "--epochs", "1", "--results", results]
    if verb == "run":
        records = forebay("run", *words, "--runs", "5", ends_with=(0, 1))
        rates = [r["training"]["samples_per_s"] for r in records]
        passed = all(r["training"]["passes"] for r in records)
    else:
        passed = forebay("search", *words, "--max", "1", ends_with=(0, 1))["search"]["accelerators"] == 1
    if not passed:
        pytest.skip("this machine is too busy to feed one accelerator, and the script takes no run that failed")
    if verb == "search":
        lines = [json.loads(line) for line in (results / "search.jsonl").read_text().splitlines()]
        full = [line["record"]["training"] for line in lines if line.get("key") == "full-1"]
        rates = [training["samples_per_s"] for training in full]
    words = [sys.executable, "-m", "forebay.cli", "emulate", "export", str(results), str(exported)]
    subprocess.run(words, check=True, timeout=60)
    ran = subprocess.run(
        [python, script, "-rd", str(exported)], capture_output=True, text=True, cwd=tmp_path, timeout=120
    )
    assert ran.returncode == 0, ran.stderr
    reported = json.loads((tmp_path / "mlperf_storage_report.json").read_text())["overall"]
    assert reported["model"] == "resnet50" and reported["accelerator"] == "a100" and reported["num_benchmark_runs"] == 5
    assert float(reported["train_throughput_mean_samples_per_second"]) == pytest.approx(sum(rates) / 5, rel=1e-3)
