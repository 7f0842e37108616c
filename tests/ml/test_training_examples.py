"""The examples of training, small, each with the library that it shows (make test-ml)."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.ml

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples" / "training"
# What each needs, its flags, and what it says once it has checked itself.
SMALL = {
    "plain.py": ("torch", ["--rows", "3000", "--batch", "64", "--stop", "30"], "the same weights"),
    "with_lightning.py": ("lightning", ["--rows", "2000", "--batch", "64", "--stop", "17"], "each of 2000 once"),
    "with_trainer.py": ("accelerate", ["--rows", "640", "--batch", "32"], "in the middle 10 batches are left"),
    "jpeg.py": ("torchvision", ["--images", "70", "--batch", "16", "--device", "cpu"], "70 images on cpu, each once"),
}


def test_every_example_of_training_is_run_here() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(SMALL)


@pytest.mark.promise("PYT-20")
@pytest.mark.parametrize("name", SMALL)
def test_an_example_of_training_checks_what_it_did(name: str, tmp_path: Path) -> None:
    needs, flags, says = SMALL[name]
    if importlib.util.find_spec(needs) is None:
        pytest.skip(f"{needs} isn't installed")
    launch = [sys.executable, EXAMPLES / name, "--dir", tmp_path, *flags]
    done = subprocess.run(launch, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert says in done.stdout


@pytest.mark.promise("PYT-20", "FEED-13")
def test_the_plain_example_goes_on_on_two_ranks(tmp_path: Path) -> None:
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    flags = ["--dir", tmp_path, "--rows", "3000", "--batch", "64", "--stop", "15"]
    command = [*launch, EXAMPLES / "plain.py", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the same weights" in done.stdout
