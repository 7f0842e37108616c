"""What is refused is refused before anything is made or changed, by a dry run, too."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from faults_support import BENCH, Run, content, refused, run  # noqa: F401
from properties import parametrized

REFUSED = {
    "a CPU that isn't there": (("--cache", "allow", "--cpus", "9999"), 2, "CPU 9999"),
    "a NUMA node that isn't there": (("--cache", "allow", "--numa", "999"), 2, "--numa 999"),
    "no room": (("--cache", "allow", "--file-size", "1p"), 3, "create"),
    "more buffers than memory": (
        ("--cache", "allow", "--depth", "4096", "--io-size", "2m", "--workers", "128"), 3, "of memory are free"
    ),
    "pages that the pool hasn't got": (("--cache", "allow", "--pages", "hugetlb", "--io-size", "1g"), 3, "hugetlb"),
    "I/Os that aren't aligned": (("--cache", "bypass", "--io-size", "4000"), 2, "O_DIRECT needs a multiple"),
    "a start that isn't aligned": (("--cache", "bypass", "--start", "7"), 2, "O_DIRECT needs a multiple"),
    "offsets that aren't aligned": (("--cache", "bypass", "--op", "randread", "--align", "7"), 2, "O_DIRECT needs a multiple"),
}


def needs_direct(folder: Path) -> None:
    probe = folder / "probe"
    probe.write_bytes(bytes(4096))
    try:
        os.close(os.open(probe, os.O_RDONLY | os.O_DIRECT))
    except OSError:
        pytest.skip("no O_DIRECT in the temporary folder")
    finally:
        probe.unlink()


@pytest.mark.promise("BEN-7")
@parametrized("dry", [(), ("--dry-run",)], ids=["run", "dry"], kept=(0,))
@pytest.mark.parametrize("why", REFUSED)
def test_a_refused_job_leaves_no_file(run: Run, tmp_path: Path, why: str, dry: tuple[str, ...]) -> None:  # noqa: F811
    flags, code, says = REFUSED[why]
    if "hugetlb" in flags and Path("/proc/sys/vm/nr_hugepages").read_text().strip() != "0":
        pytest.skip("there are huge pages")
    if "bypass" in flags:
        needs_direct(tmp_path)
    sized = () if "--file-size" in flags else ("--file-size", "4m")
    refused(run(*BENCH, "new", "--create", *sized, *flags, *dry), code, says)
    assert content(tmp_path) == {}


def test_a_refused_write_leaves_files_and_their_list_as_they_were(run: Run, tmp_path: Path) -> None:  # noqa: F811
    needs_direct(tmp_path)
    (tmp_path / "d").mkdir()
    assert run(*BENCH, "d", "--create", "--file-size", "64k", "--verify", "--passes", "1").returncode == 0
    before = content(tmp_path)
    for size in ("66001", "60001"):
        done = run(*BENCH, "d", "--op", "write", "--files", "1", "--file-size", size, "--passes", "1")
        refused(done, 2, f"--file-size {size}", "O_DIRECT needs a multiple")
    assert content(tmp_path) == before


@pytest.mark.promise("CMD-9")
@pytest.mark.parametrize(
    "words",
    [("bench",), ("validate", "-o", "v.json"), ("validate", "--dry-run"), ("sweep", "solidigm-gds", "--dry-run"),
     ("sweep", "solidigm-gds", "-o", "s.jsonl"), ("doctor",)],
    ids=" ".join,
)
def test_what_no_job_could_read_is_refused_at_once_by_every_verb(
    run: Run, tmp_path: Path, words: tuple[str, ...]  # noqa: F811
) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "empty").touch()
    before = sorted(tmp_path.iterdir())
    at = 2 if words[0] == "sweep" else 1

    def of(name: str) -> Any:
        return run(*words[:at], name, *words[at:])

    refused(of("fifo"), 2, "is neither a file, a directory")
    refused(of("missing"), 2, "missing")
    if words[0] != "doctor":  # which examines the place, whatever the file holds
        refused(of("empty"), 2, "is empty")
    assert sorted(tmp_path.iterdir()) == before
