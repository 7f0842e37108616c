"""MLCommons' own checkers on what `forebay train` writes, and on logs with planted faults (make test-ml)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.ml
pytest.importorskip("mlperf_logging")

FOREBAY = [sys.executable, "-c", "import sys; from forebay.cli import main; sys.argv[0] = 'forebay'; main(sys.argv[1:])"]
WORDS = ("--batch-size", "256", "--samples", "1024", "--peak-seconds", "0.05", "-q", "--target-auc", "0.501")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Logs and records of short runs: `log.txt`, `toy.txt`, `package` of ten seeds and their `runs.jsonl`."""
    from forebay.train import data

    made = tmp_path_factory.mktemp("mllog")
    data.generate(made / "clicks", 5, 6000, 1500, 30)
    rows = ("--dir", "clicks", *WORDS, "--evaluate-every", "512")
    run(made, "dlrm", *rows, "--device", "cpu", "--mllog", "log.txt")
    run(made, "toy", *rows, "--mllog", "toy.txt")
    # Ten seeds, as a package has to have; of the toy, which takes less time, and called what it stands for.
    run(made, "toy", *rows, "--seeds", "10", "-o", "runs.jsonl", "--mllog", "package")
    return made


def run(cwd: Path, *words: str) -> None:
    done = subprocess.run([*FOREBAY, "train", *words], capture_output=True, text=True, timeout=280, cwd=cwd)
    assert done.returncode == 0, done.stderr


def valid(path: Path) -> bool:
    from mlperf_logging.compliance_checker import mlp_compliance

    checker = mlp_compliance.make_checker("training", "4.1.0", False, True)
    return bool(mlp_compliance.main(str(path), "training_4.1.0/common.yaml", checker)[0])


@pytest.mark.promise("TRN-50")
def test_the_compliance_checker_takes_our_log_and_objects_to_planted_faults(folder: Path, tmp_path: Path) -> None:
    assert valid(folder / "log.txt")
    lines = (folder / "log.txt").read_text().splitlines()
    needed = (
        "submission_org", "submission_platform", "submission_division", "submission_benchmark", "cache_clear", "init_start",
        "init_stop", "run_start", "run_stop", "eval_accuracy", "train_samples", "eval_samples",
    )  # fmt: skip
    broken = {f"without {key}": [line for line in lines if f'"key": "{key}"' not in line] for key in needed}
    broken["no run_stop's status"] = [line.replace('"status": "success"', '"state": "success"') for line in lines]
    broken["an AUC above 1"] = [line.replace('"value": 0.', '"value": 7.') if "eval_accuracy" in line else line for line in lines]
    broken["a second run_start"] = [*lines, next(line for line in lines if '"run_start"' in line)]
    broken["a line cut off"] = [*lines[:-1], lines[-1][:-20]]
    # Whose data, epsilon and target would be others.
    broken["the closed division"] = [line.replace('"value": "open"', '"value": "closed"') for line in lines]
    stop = next(n for n, line in enumerate(lines) if '"key": "init_stop"' in line)
    broken["the run before its start"] = [*lines[:stop], lines[stop + 1], lines[stop], *lines[stop + 2 :]]
    for number, (fault, text) in enumerate(broken.items()):
        (tmp_path / f"{number}.txt").write_text("\n".join(text) + "\n")
        assert not valid(tmp_path / f"{number}.txt"), fault


@pytest.mark.promise("TRN-50")
def test_the_compliance_checker_takes_the_log_of_a_run_on_real_data(tmp_path: Path) -> None:
    run(tmp_path, "datagen", "bert", "--quality", "--dir", "texts", "--rows", "256", "-q")
    words = ("--batch-size", "16", "--samples", "64", "--evaluate-every", "32", "--target", "0.0001", "--peak-seconds", "0.05")
    run(tmp_path, "bert", "--dir", "texts", *words, "--device", "cpu", "--mllog", "bert.txt", "-q")
    assert valid(tmp_path / "bert.txt")
    text = (tmp_path / "bert.txt").read_text()
    for benchmark in ("ssd", "llama2_70b_lora"):
        named = f'"submission_benchmark", "value": "{benchmark}"'
        (tmp_path / benchmark).write_text(text.replace('"submission_benchmark", "value": "bert"', named))
    assert valid(tmp_path / "ssd")
    # Its list of the open division lacks a benchmark of which it has a file of rules.
    assert not valid(tmp_path / "llama2_70b_lora")


@pytest.mark.promise("TRN-50")
def test_of_the_toys_log_it_has_no_rules_for_the_name_alone(folder: Path, tmp_path: Path) -> None:
    text = (folder / "toy.txt").read_text()
    with pytest.raises(FileNotFoundError, match="open_toy.yaml"):
        valid(folder / "toy.txt")
    (tmp_path / "named.txt").write_text(text.replace('"value": "toy"', '"value": "dlrm_dcnv2"'))
    assert valid(tmp_path / "named.txt")


@pytest.mark.promise("TRN-50")
def test_the_package_checker_takes_a_folder_of_ten_seeds(folder: Path, tmp_path: Path) -> None:
    from mlperf_logging.package_checker import package_checker

    package = renamed(folder, tmp_path)
    assert package_checker.check_systems(str(package), "training", "4.1.0")
    words = (str(package), "training", "4.1.0", False, True, False, False, False)
    assert package_checker.check_training_result_files(*words)
    (one,) = package.glob("results/*/dlrm_dcnv2/result_7.txt")
    one.unlink()
    assert not package_checker.check_training_result_files(*words)


@pytest.mark.promise("TRN-51")
def test_the_rcp_checker_reads_our_points_and_judges_our_runs_by_them(folder: Path, tmp_path: Path) -> None:
    from mlperf_logging.rcp_checker import rcp_checker

    results = next(renamed(folder, tmp_path).glob("results/*/dlrm_dcnv2"))
    records = [json.loads(line) for line in (folder / "runs.jsonl").read_text().splitlines()]
    for record in records:
        record["train"] |= {"model": "dlrm", "optimizer": "torch"}
    (tmp_path / "runs.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    run(tmp_path, "check", "runs.jsonl", "--rcp", "rcp.json")

    def passes(points: Path) -> bool:
        with points.open() as file:
            return bool(rcp_checker.check_directory(str(results), "training", "4.1.0", False, False, file, "full_rcps")[0])

    assert passes(tmp_path / "rcp.json")
    slow = json.loads((tmp_path / "rcp.json").read_text())
    for point in slow.values():
        point["Epochs to converge"] = [9.0 * epochs for epochs in point["Epochs to converge"]]
    (tmp_path / "slow.json").write_text(json.dumps(slow))
    assert not passes(tmp_path / "slow.json"), "runs nine times as fast as the reference"


def renamed(folder: Path, tmp_path: Path) -> Path:
    """The toy's package as DLRM's."""
    package = tmp_path / "package"
    for path in (folder / "package").rglob("*"):
        if path.is_file():
            target = package / str(path.relative_to(folder / "package")).replace("/toy/", "/dlrm_dcnv2/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(path.read_text().replace('"value": "toy"', '"value": "dlrm_dcnv2"'))
    return package
