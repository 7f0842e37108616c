"""bench/rows_verify.py, small: no row that gather returns is another's, whatever happens to the file."""

# ruff: noqa: F811  (fixtures are imported and named again as arguments)
from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import processes
import pytest
from feed_gpu_support import ON_REAL_GPU, stub  # noqa: F401 - a fixture
from properties import parametrized

SCRIPT = Path(__file__).resolve().parent.parent / "bench/rows_verify.py"
SMALL = ["--batch", "5000", "--file-mib", "8", "--threads", "2", "--every-s", "0.05", "--limit-s", "120"]


@pytest.fixture(scope="module")
def script() -> Any:
    found = importlib.util.spec_from_file_location("rows_verify", SCRIPT)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def study(script: Any, folder: Path, *flags: str) -> Any:
    return script.Study(script.parser().parse_args(["--dir", str(folder), *SMALL, *flags]))


@pytest.mark.promise("PYT-19")
def test_a_row_of_another_place_or_version_is_seen(script: Any, tmp_path: Path) -> None:
    one = study(script, tmp_path)
    rows = np.array([5, 0, 9])
    words = np.stack([one.content(3, 0).reshape(-1, 8)[n] for n in rows])
    one.check(rows, words, 3, 3)
    assert not one.counts["wrong"]
    for at, word in (((1, 7), words[2, 7]), ((0, 0), words[0, 0] + np.uint64(1 << script.VERSION_SHIFT)), ((2, 3), 0)):
        changed = words.copy()
        changed[at] = word
        one.check(rows, changed, 3, 3)
    assert one.counts["wrong"] == 3 and [reported["row"] for reported in one.wrong] == [0, 5, 9]
    # While the fourth version is written it may hold either.
    changed = words.copy()
    changed[0, 0] += np.uint64(1 << script.VERSION_SHIFT)
    one.check(rows, changed, 3, 4)
    assert one.counts["wrong"] == 3


# A page that a file lost ends the stand-in's kernel, which reads by the processor; a GPU's stays pinned.
WAYS = [
    ("host memory", ["--host", "--path", "auto"]),
    ("GPU 0", ["--path", "bounce"]),
    ("GPU 0", ["--path", "mapped", *([] if ON_REAL_GPU else ["--fates", "rewritten", "renamed over", "dropped"])]),
]


@pytest.mark.promise("PYT-19")
@parametrized(("to", "flags"), WAYS, kept=(0,))
def test_no_row_is_wrong_whatever_happens_to_the_file(stub: Path, tmp_path: Path, to: str, flags: list[str]) -> None:
    environment = dict(os.environ)
    if not ON_REAL_GPU:
        environment |= {"FOREBAY_LIBCUDA": str(stub), "FOREBAY_LIBNVRTC": str(stub.with_name("libnvrtc.so.13"))}
    command = [sys.executable, SCRIPT, "--dir", tmp_path, "--rows", "200000", *SMALL, *flags]
    done = processes.run(command, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    reported = json.loads(done.stdout.splitlines()[-1])
    assert reported["wrong"] == 0 and reported["to"] == to, reported
    # Where the machine is busy, the time may be over first.
    assert reported["rows"] >= 200_000 or reported["seconds"] >= 120, reported
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("flags", [["--row-bytes", "12"], ["--batch", "0"], ["--dir", "/nowhere"]])
def test_what_cannot_be_measured_is_refused(tmp_path: Path, flags: list[str]) -> None:
    done = processes.run([sys.executable, SCRIPT, "--dir", tmp_path, *flags])
    assert done.returncode == 2 and "Traceback" not in done.stderr and done.stderr, done.stderr
