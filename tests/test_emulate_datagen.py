"""Data sets as DLIO makes them: names, sizes, and bytes that other libraries read; interrupted, resumed, refused."""

from __future__ import annotations

import binascii
import contextlib
import json
import os
import re
import signal
import struct
import subprocess
import sys
import threading
import time
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import processes
import pytest
from disks_support import until_done
from forebay import _core
from forebay.emulate import datagen
from forebay.errors import CheckFailed, RequestError, RunError
from properties import parametrized

# Sizes that DLIO 1.0 and 2.0 gave their files, made and listed: npz of 3D U-Net, TFRecord of CosmoFlow.
UNET3D = (224093623, 93583333, 139626138, 159582026, 140750564, 206626656, 140829945, 170405474, 111131210, 147625962)
COSMOFLOW = (2898528, 2768704, 2820574, 2837602, 2819101, 2883204, 2825384, 2847714, 2787112, 2838560)
RESNET50 = 142993053


def spec(data: Path, format: str, **changes: Any) -> dict[str, Any]:
    return {
        "data": str(data), "workload": "test", "format": format, "files": 3, "samples_per_file": 4, "dimension": 200,
        "dimensions": [[200, 210], [190, 200], [210, 220]], "record_bytes": 40000.0, "check": True, **changes,
    }  # fmt: skip


def make(data: Path, format: str, **changes: Any) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(_core.emulate_datagen(json.dumps(spec(data, format, **changes))))
    return record


def planned(workload: str, files: int) -> int:
    asked = datagen.spec_of(datagen.workload_of(workload)[0], "nowhere", files=files, dry_run=True)
    return int(json.loads(_core.emulate_datagen(json.dumps(asked)))["bytes"])


@pytest.mark.promise("EMU-22")
@pytest.mark.parametrize(
    ("workload", "sizes"), [("unet3d", UNET3D), ("cosmoflow", COSMOFLOW), ("resnet50", (RESNET50,) * 10)]
)
def test_files_are_as_long_as_those_of_dlio(workload: str, sizes: tuple[int, ...]) -> None:
    for files in (1, 3, len(sizes)):
        assert planned(workload, files) == sum(sizes[:files])


def as_zip64(path: Path) -> bytes:
    """An npz file's bytes as Python from 3.11.4 on writes them: with zip64's version, and sizes in its field alone."""
    raw = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as found:
        offsets, directory = [member.header_offset for member in found.infolist()], found.start_dir
    for at in offsets:
        raw[at + 4], raw[at + 18 : at + 26] = 45, b"\xff" * 8
    for _ in offsets:
        raw[directory + 4] = raw[directory + 6] = 45
        directory += 46 + sum(struct.unpack_from("<3H", raw, directory + 28))
    return bytes(raw)


@pytest.mark.promise("EMU-22")
def test_npz_files_are_those_of_numpy_byte_for_byte(tmp_path: Path) -> None:
    make(tmp_path, "npz")
    files = sorted((tmp_path / "train").iterdir())
    assert [f.name for f in files] == [f"img_{n}_of_3.npz" for n in range(3)]
    for number, path in enumerate(files):
        assert zipfile.ZipFile(path).testzip() is None
        arrays = numpy.load(path)
        assert arrays["x"].shape == (*spec(tmp_path, "npz")["dimensions"][number], 4)
        again = tmp_path / "again.npz"
        numpy.savez(again, x=arrays["x"], y=[0] * 4)
        assert as_zip64(again) == path.read_bytes()


def test_npy_files_are_those_of_numpy(tmp_path: Path) -> None:
    make(tmp_path, "npy")
    array = numpy.load(tmp_path / "train" / "img_1_of_3.npy")
    assert array.shape == (190, 200, 4) and array.dtype == numpy.uint8
    raw = array.tobytes()
    assert len(zlib.compress(raw)) > 0.98 * len(raw)


def crc32c(data: bytes) -> int:
    """Bit by bit, to share nothing with what is tested."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data: bytes) -> int:
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


@pytest.mark.promise("EMU-22")
def test_tfrecords_hold_their_checksums_and_an_example(tmp_path: Path) -> None:
    make(tmp_path, "tfrecord", dimensions=[[40, 50]], samples_per_file=2)
    data = (tmp_path / "train" / "img_2_of_3.tfrecord").read_bytes()
    at = 0
    for _ in range(2):
        length, sum_of_length = struct.unpack_from("<QI", data, at)
        assert sum_of_length == masked(data[at : at + 8])
        example = data[at + 12 : at + 12 + length]
        assert struct.unpack_from("<I", data, at + 12 + length)[0] == masked(example)
        # What TensorFlow makes of {size: [200], image: 2000 bytes}.
        head = "0af30f0a0e0a0473697a6512061a040a02c8010ae00f0a05696d61676512d60f0ad30f0ad00f"
        assert example[:-2000].hex() == head
        at += 16 + length
    assert at == len(data)


# The kernel kills whoever makes a file longer than this, as Python itself wouldn't be.
KILLED = """
import resource, signal, sys
from forebay import _core
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
_core.emulate_datagen(sys.argv[1])
"""


@pytest.mark.promise("EMU-23")
def test_a_run_that_was_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    sides = [[100, 100]] * 3 + [[1024, 1024]] + [[100, 100]] * 2
    asked = spec(tmp_path, "npz", files=6, dimensions=sides, workers=1, check=False)
    killed = processes.run([sys.executable, "-c", KILLED, json.dumps(asked)])
    assert killed.returncode == -signal.SIGXFSZ
    found = sorted(f.name for f in (tmp_path / "train").iterdir())
    assert found == [".img_3_of_6.npz.part", *(f"img_{n}_of_6.npz" for n in range(3))]
    assert not (tmp_path / ".forebay-dataset.json").exists()
    record = json.loads(_core.emulate_datagen(json.dumps({**asked, "check": True})))
    assert (record["files_found"], record["files_made"]) == (3, 3)
    assert not list((tmp_path / "train").glob(".*"))
    manifest = json.loads((tmp_path / ".forebay-dataset.json").read_text())
    assert manifest["schema"] == "forebay.dataset/1" and manifest["bytes"] == record["bytes"] > 4 << 20


@pytest.mark.promise("EMU-23")
def test_ctrl_c_keeps_what_is_finished(tmp_path: Path) -> None:
    def observe(progress: str) -> None:
        if json.loads(progress)["files"]:
            raise KeyboardInterrupt

    asked = spec(tmp_path, "npz", files=300, dimensions=[[1024, 1024]], workers=1, check=False)
    with pytest.raises(KeyboardInterrupt) as stopped:
        _core.emulate_datagen(json.dumps(asked), observe)
    assert "of 300 files are finished" in stopped.value.kept  # type: ignore[attr-defined]
    assert 0 < len(list((tmp_path / "train").iterdir())) < 300


def test_a_flipped_bit_is_found_and_named(tmp_path: Path) -> None:
    make(tmp_path, "npz", check=False)
    path = tmp_path / "train" / "img_1_of_3.npz"
    data = bytearray(path.read_bytes())
    data[1000] ^= 1
    path.write_bytes(data)
    with pytest.raises(CheckFailed) as failed:
        make(tmp_path, "npz")
    stored = struct.unpack_from("<I", data, 14)[0]
    found = binascii.crc32(data[30 + 5 + 20 :][: 128 + 190 * 200 * 4])
    assert "img_1_of_3.npz" in failed.value.asked
    assert f"record 0 at 0: the member's data has CRC-32 {found:08x}, and {stored:08x}" in failed.value.found


@pytest.mark.long
@pytest.mark.promise("EMU-23")
@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a tmpfs")
def test_a_disk_that_fills_up_leaves_finished_files(tmp_path: Path) -> None:
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=270m", "tmpfs", tmp_path], capture_output=True).returncode:
        pytest.skip("tmpfs can't be mounted here")
    try:
        asked = spec(tmp_path, "npz", files=200, dimensions=[[512, 2048]], samples_per_file=1, workers=1, check=False)

        def fill() -> None:
            """From the first finished file on: the engine tells of progress only a few times a second."""
            while not list((tmp_path / "train").glob("img_*")):
                time.sleep(0.001)
            with open(tmp_path / "ballast", "wb") as file, contextlib.suppress(OSError):
                for at in range(270):
                    os.posix_fallocate(file.fileno(), at << 20, 1 << 20)

        filler = threading.Thread(target=fill, daemon=True)
        filler.start()
        with pytest.raises(RunError) as full:
            _core.emulate_datagen(json.dumps(asked))
        filler.join(10)
        assert "the file system is full" in full.value.found and "continues" in full.value.next
        kept = list((tmp_path / "train").iterdir())
        assert kept and len({f.stat().st_size for f in kept}) == 1
        (tmp_path / "ballast").unlink()
        assert json.loads(_core.emulate_datagen(json.dumps(asked)))["files_found"] == len(kept)
    finally:
        until_done("umount", tmp_path)


def test_the_verb_says_what_it_would_make_and_makes_it(tmp_path: Path, forebay: Any) -> None:
    toml = tmp_path / "small.toml"
    toml.write_text(
        'title = "small"\nkind = "training"\nformat = "npz"\nloader = "pytorch"\nbatch = 1\ncompute_s = 0.1\nprefetch = 2\n'
        "record_bytes = 40000\nrecord_bytes_stdev = 4000\nsamples_per_file = 1\nfiles = 5\nread_threads = 1\nepochs = 1\n"
        'au_pct_min = 90\n[[variant]]\naccelerator = "own"\n'
    )
    asked = ("emulate", "datagen", "--workload", str(toml), "--data", str(tmp_path / "data"))
    plan = forebay(*asked, "--dry-run")
    assert plan.returncode == 0 and plan.stdout.startswith("would create 5 npz files, 5 samples"), plan.stderr
    assert not (tmp_path / "data").exists()
    made = forebay(*asked, "--subfolders", "2", "--check", "--json")
    assert made.returncode == 0, made.stderr
    record = json.loads(made.stdout)
    assert (record["files_made"], record["check"]["files"]) == (5, 5)
    drawn = numpy.random.RandomState(10).normal(200, 10, 10)
    drawn = numpy.maximum(drawn.astype(int), 1)
    sizes = [(tmp_path / "data" / "train" / str(n % 2) / f"img_{n}_of_5.npz").stat().st_size for n in range(5)]
    assert sizes == [a * b + 498 for a, b in zip(drawn[::2], drawn[1::2], strict=True)]
    again = forebay(*asked, "--subfolders", "2", "--seed", "3")
    assert again.returncode == 2 and "with seed 0 instead of 3" in again.stderr
    assert forebay(*asked, "--files", "0").returncode == 2
    assert forebay(*asked, "--io-size", "1000").returncode == 2


@pytest.mark.long
def test_the_verb_on_ctrl_c_says_what_stays(tmp_path: Path) -> None:
    words = ["emulate", "datagen", "--workload", "cosmoflow", "--files", "400", "--workers", "1"]
    # Small writes past the page cache: so many files take tens of seconds on any disk.
    words += ["--data", str(tmp_path), "--io-size", "4k"]
    with processes.running([*processes.FOREBAY, *words]) as child:
        processes.wait_until(lambda: list((tmp_path / "train").glob("*.tfrecord")), "a finished file", child)
        child.send_signal(signal.SIGINT)
        _, reported = child.communicate(timeout=processes.PATIENCE_S)
    assert child.returncode == 130 and "of 400 files are finished, and are kept" in reported


@pytest.mark.promise("EMU-23")
def test_a_data_set_that_does_not_fit_is_refused(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, forebay: Any) -> None:
    # Few and long: sizes are drawn one by one.
    long = tmp_path_factory.mktemp("workload") / "long.toml"
    long.write_text(
        'title = "long"\nkind = "training"\nformat = "npz"\nloader = "pytorch"\nbatch = 1\ncompute_s = 0.1\nprefetch = 2\n'
        "record_bytes = 140000000000\nsamples_per_file = 1\nfiles = 100\nread_threads = 1\nepochs = 1\nau_pct_min = 90\n"
        '[[variant]]\naccelerator = "own"\n'
    )
    words = ("emulate", "datagen", "--workload", str(long))
    for folder in (tmp_path, tmp_path / "a" / "b"):
        refused = forebay(*words, "--data", str(folder))
        assert refused.returncode == 3 and re.search(r"create 100 files, 1[23]\.\d TiB in all", refused.stderr), refused.stderr
        assert re.search(r": [\d.]+ [KMGT]iB are free there", refused.stderr), refused.stderr
    # So many that drawing their sizes alone would take a minute, and more than there can be.
    words = ("emulate", "datagen", "--workload", "cosmoflow", "--data", str(tmp_path / "new"), "--files")
    refused = forebay(*words, "67108864")
    assert refused.returncode == 3 and "its file system has" in refused.stderr, refused.stderr
    refused = forebay(*words, "67108865")
    assert refused.returncode == 2 and "is not between 1 and 67,108,864" in refused.stderr, refused.stderr
    assert not list(tmp_path.iterdir())


def test_formats_that_cannot_be_made_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datagen, "formats", lambda: ("npz",))
    with pytest.raises(RequestError, match="tfrecord"):
        datagen.spec_of(datagen.workload_of("resnet50")[0], str(tmp_path))


PLANTED = {
    "a file": lambda at, precious: at.write_text("mine"),
    "a link": lambda at, precious: at.symlink_to(precious),
    "a link that leads nowhere": lambda at, precious: at.symlink_to(precious.parent / "nothing"),
    "a hard link": lambda at, precious: at.hardlink_to(precious),
    "a folder": lambda at, precious: at.mkdir(),
}


@pytest.mark.promise("TRA-44")
@parametrized("kind", PLANTED, kept=(0, 2))
@pytest.mark.parametrize(
    "name",
    [
        "index/train/img_0_of_2.tfrecord.idx",
        "index/train/.img_1_of_2.tfrecord.idx.part",
        "train/img_0_of_2.tfrecord",
        "train/.img_1_of_2.tfrecord.part",
        ".forebay-dataset.json",
        ".forebay-dataset.json.part",
        "..forebay-dataset.json.part.part",
    ],
)
def test_nothing_that_is_there_is_replaced_or_written_through(
    forebay: Callable[..., Any], tmp_path: Path, name: str, kind: str
) -> None:
    """Whatever has the name of a file that is to be made, of an auxiliary one, or of one that isn't finished."""
    data, precious = tmp_path / "data", tmp_path / "thesis"
    precious.write_text("precious")
    at = data / name
    at.parent.mkdir(parents=True)
    PLANTED[kind](at, precious)
    before = sorted((p, p.lstat().st_ino, p.lstat().st_mtime_ns) for p in data.rglob("*") if not p.is_dir())
    done = forebay("emulate", "datagen", "--workload", "resnet50", "--data", data, "--files", "2", "-q")
    assert done.returncode == 2 and "try:" in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert precious.read_text() == "precious" and not (tmp_path / "nothing").exists()
    assert sorted((p, p.lstat().st_ino, p.lstat().st_mtime_ns) for p in data.rglob("*") if not p.is_dir()) == before
