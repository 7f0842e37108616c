"""`forebay watch` on a training with PyTorch's DataLoader, whose script counts what its workers read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from forebay.emulate import workloads
from forebay.watch.fanotify import Fanotify

pytest.importorskip("torch")
pytestmark = pytest.mark.ml

FILES, BATCH = 96, 8
TRAINING = """
import json, os, sys, time
import numpy, torch
from torch.utils.data import DataLoader, Dataset

folder, start, workers, batch, epochs = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
torch.set_num_threads(1)

class Files(Dataset):
    def __init__(self):
        self.paths = [os.path.join(folder, name) for name in sorted(os.listdir(folder))]
        self.read = torch.zeros(2, dtype=torch.int64).share_memory_()
    def __len__(self):
        return len(self.paths)
    def __getitem__(self, index):
        image = torch.from_numpy(numpy.load(self.paths[index]))
        self.read += torch.tensor([os.path.getsize(self.paths[index]), 1])
        return image

def main():
    data = Files()
    loader = DataLoader(data, batch, shuffle=True, num_workers=workers, multiprocessing_context=start if workers else None)
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, 2), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(2), torch.nn.Flatten())
    steps = torch.optim.SGD(net.parameters(), 0.1)
    began, done = time.monotonic(), 0
    for _ in range(epochs):
        for images in loader:
            steps.zero_grad()
            net(images.float() / 255).square().mean().backward()
            steps.step()
            time.sleep(0.02)
            done += 1
    seconds = time.monotonic() - began
    print(json.dumps({"bytes": int(data.read[0]), "opens": int(data.read[1]), "steps": done, "seconds": seconds}))

if __name__ == "__main__":
    main()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Images, each a file; skipped where not every open can be followed."""
    import numpy

    try:
        followed = Fanotify()
        followed.mark(str(tmp_path))
        followed.close()
    except OSError as error:
        pytest.skip(f"fanotify: {error.strerror}")
    made = tmp_path / "images"
    made.mkdir()
    draw = numpy.random.default_rng(7)
    for number in range(FILES):
        numpy.save(made / f"{number:03}.npy", draw.integers(0, 256, (3, 96, 96), dtype=numpy.uint8))
    return made


def watched(folder: Path, *words: object) -> tuple[dict[str, Any], dict[str, Any]]:
    """The record, and the script's own account."""
    script, job = folder.parent / "train.py", folder.parent / "job.toml"
    script.write_text(TRAINING)
    command = [sys.executable, "-c", "import sys; from forebay.cli import main; sys.exit(main(sys.argv[1:]))", "watch"]
    command += ["--batch-size", str(BATCH), "-o", str(job), "--seconds", "300", "--json", "--"]
    command += [sys.executable, str(script), str(folder), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    own, record = done.stdout.strip().splitlines()
    return json.loads(record), json.loads(own)


@pytest.mark.promise("WAT-1", "WAT-2", "WAT-4")
@pytest.mark.parametrize(("start", "workers", "epochs"), [("fork", 0, 2), ("fork", 2, 2), ("spawn", 2, 2)])
def test_a_torch_loaders_files_and_samples_are_those_that_its_workers_read(
    folder: Path, start: str, workers: int, epochs: int
) -> None:
    record, own = watched(folder, start, workers, BATCH, epochs)
    data, derived, sizes = record["files"]["data"], record["derived"], [path.stat().st_size for path in folder.iterdir()]
    assert record["files"]["every_open"] and data["suffix"] == "npy" and data["directory"] == str(folder)
    # Two opens of one file by one process within 20 ms may count as one.
    assert data["files"] == FILES and 0.95 * own["opens"] <= data["opens"] <= own["opens"] == FILES * epochs
    assert data["bytes_mean"] == pytest.approx(sum(sizes) / FILES) and own["bytes"] == sum(sizes) * epochs
    # Besides: the workers' pipes, and what workers that are no forks import; of PyTorch's own modules nothing else.
    moved = record["moved"]
    assert own["bytes"] <= moved["read_call_bytes"] <= own["bytes"] + moved["program_bytes"] + (24 << 20)
    assert (moved["program_bytes"] > 8 << 20) == (start != "fork")
    assert derived["samples"] == "each file that was opened is one sample" and record["workload"]["format"] == "npy"
    # A step slept for 20 ms, and can't have taken longer than the script's own clock says, start of workers and all.
    assert 0.01 < derived["step_s"] < 2 * own["seconds"] / own["steps"] + 0.05
    assert record["workload"]["record_bytes"] == round(sum(sizes) / FILES) and record["answer"]["waiting"] != "yes"
    (made,) = workloads.variants(str(folder.parent / "job.toml"))
    assert isinstance(made, workloads.Training) and made.batch == BATCH and made.files == FILES
