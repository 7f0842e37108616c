"""HDF5 files that h5py wrote, contiguous and in chunks, read by emulated training: their trees are followed to every sample.
Those that datagen makes, in h5py's hands."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from properties import parametrized

h5py = pytest.importorskip("h5py", reason="h5py isn't installed; try: pip install h5py")

FILES, SAMPLES, SIDE = 2, 6, 100
WORKLOAD = f"""
format = "hdf5"
loader = "pytorch"
record_bytes = {SIDE * SIDE}
samples_per_file = {SAMPLES}
files = {FILES}
batch = 2
read_threads = 1
prefetch = 2
epochs = 1
au_pct_min = 0
compute_s = 0.001
"""
LAYOUTS = {
    "contiguous": {},
    # As DLIO cuts them: a sample in squares. 9 chunks of a sample, 54 in all, fill more than one node of the tree.
    "chunked": {"chunks": (1, 40, 40)},
    "several samples in a chunk": {"chunks": (4, 30, 100)},
    "packed": {"chunks": (1, 40, 40), "compression": "gzip"},
    "with sums": {"chunks": (4, 30, 100), "fletcher32": True},
    "packed, with sums": {"chunks": (1, 40, 40), "compression": "gzip", "shuffle": True, "fletcher32": True},
    "one chunk": {"chunks": (SAMPLES, SIDE, SIDE)},
    "one packed chunk, with a sum": {"chunks": (SAMPLES, SIDE, SIDE), "compression": "gzip", "fletcher32": True},
    # More than a page of a list of chunks.
    "many chunks": {"chunks": (1, 4, 8)},
    "many packed chunks": {"chunks": (1, 4, 8), "compression": "gzip"},
}
# What wrote the file: HDF5 1.6's structures, 1.8's, 1.10's, and those of the library that is here.
GENERATIONS = (
    "earliest",
    pytest.param("v108", marks=pytest.mark.long),
    pytest.param("v110", marks=pytest.mark.long),
    "latest",
)


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What a run that breaks rescues stays out of the tree."""
    monkeypatch.chdir(tmp_path)


def write(folder: Path, options: dict[str, Any], libver: str = "earliest") -> list[Path]:
    train = folder / "train"
    train.mkdir(parents=True)
    (folder / "valid").mkdir()
    random = np.random.default_rng(7)
    paths = [train / f"img_{n}_of_{FILES}.hdf5" for n in range(FILES)]
    for path in paths:
        with h5py.File(path, "w", libver=libver) as made:
            records = made.create_dataset("records", (SAMPLES, SIDE, SIDE), dtype=np.uint8, **options)
            records[:] = random.integers(0, 255, (SAMPLES, SIDE, SIDE), dtype=np.uint8)
            made.create_dataset("labels", data=[0] * SAMPLES)
    return paths


def run(forebay: Callable[..., Any], tmp_path: Path, *flags: str) -> Any:
    (tmp_path / "h5.toml").write_text(WORKLOAD)
    return forebay("emulate", "run", "--workload", tmp_path / "h5.toml", "--data", tmp_path / "data", "--json", *flags)


@pytest.mark.promise("TRA-15")
@parametrized("libver", GENERATIONS, kept=(1,))
@parametrized("layout", LAYOUTS, kept=(0, 2, 5, 9))
def test_chunks_that_h5py_wrote_are_found(forebay: Callable[..., Any], tmp_path: Path, layout: str, libver: str) -> None:
    paths = write(tmp_path / "data", LAYOUTS[layout], libver)
    done = run(forebay, tmp_path)
    assert done.returncode == 0, done.stderr
    training = json.loads(done.stdout)["training"]
    assert training["samples"] == FILES * SAMPLES and training["skipped"]["count"] == 0
    bytes_of_files = sum(p.stat().st_size for p in paths)
    # What lies behind the first 64 KiB of a file and describes it is read twice.
    described = bytes_of_files if "many" in layout else FILES * 64 * 1024
    assert bytes_of_files <= training["read_bytes"] <= bytes_of_files + described


@pytest.mark.parametrize("layout", ["contiguous", "chunked"])
def test_a_file_that_lost_its_end_or_a_node_is_named(forebay: Callable[..., Any], tmp_path: Path, layout: str) -> None:
    victim = write(tmp_path / "data", LAYOUTS[layout])[1]
    whole = victim.read_bytes()
    victim.write_bytes(whole[:-1000])
    done = run(forebay, tmp_path)
    assert done.returncode == 4 and victim.name in done.stderr and "Traceback" not in done.stderr, done.stderr
    at = whole.rindex(b"TREE")
    victim.write_bytes(whole[:at] + b"XREE" + whole[at + 4 :])
    done = run(forebay, tmp_path)
    assert done.returncode == 4 and victim.name in done.stderr and "belong to the tree" in done.stderr, done.stderr


@pytest.mark.promise("TRA-43")
@parametrized("libver", GENERATIONS, kept=(0,))
@parametrized("layout", ["with sums", "packed, with sums", "one packed chunk, with a sum"], kept=(1,))
def test_a_chunk_that_lost_a_bit_is_told_by_its_sum(
    forebay: Callable[..., Any], tmp_path: Path, layout: str, libver: str
) -> None:
    victim = write(tmp_path / "data", LAYOUTS[layout], libver)[1]
    with h5py.File(victim) as file:
        chunk = file["records"].id.get_chunk_info(5 if "one" not in layout else 0)
    whole = bytearray(victim.read_bytes())
    for at in (chunk.byte_offset, chunk.byte_offset + chunk.size - 1):
        damaged = bytearray(whole)
        damaged[at] ^= 4
        victim.write_bytes(damaged)
        done = run(forebay, tmp_path)
        assert done.returncode == 4 and victim.name in done.stderr and "Fletcher-32" in done.stderr, done.stderr
        assert str(chunk.byte_offset) in done.stderr and run(forebay, tmp_path, "--level", "bytes").returncode == 0


@pytest.mark.promise("TRA-43")
@parametrized("libver", GENERATIONS, kept=(0,))
@parametrized("where", ["nowhere", "another file", "another data set", "a soft link", "a link into another file"], kept=(0, 2, 4))
def test_samples_that_are_not_in_the_file_are_refused(
    forebay: Callable[..., Any], tmp_path: Path, where: str, libver: str
) -> None:
    shape = (SAMPLES, SIDE, SIDE)
    for path in write(tmp_path / "data", {}, libver):
        raw = tmp_path / f"{path.stem}.raw"
        raw.write_bytes(bytes(SAMPLES * SIDE * SIDE))
        with h5py.File(path, "w", libver=libver) as made:
            if where == "another data set":
                layout = h5py.VirtualLayout(shape=shape, dtype=np.uint8)
                layout[:] = h5py.VirtualSource("other.hdf5", "records", shape=shape)
                made.create_virtual_dataset("records", layout)
            elif "link" in where:
                made["records"] = h5py.SoftLink("/data") if "soft" in where else h5py.ExternalLink("other.hdf5", "/records")
            else:
                more = {} if where == "nowhere" else {"external": [(str(raw), 0, h5py.h5f.UNLIMITED)]}
                made.create_dataset("records", shape, dtype=np.uint8, **more)
    done = run(forebay, tmp_path)
    assert done.returncode == 4 and "isn't in this file" in done.stderr and "rm " not in done.stderr, done.stderr
    # Without a look at the files, what was read says it.
    done = run(forebay, tmp_path, "--level", "bytes")
    training = json.loads(done.stdout)["training"]
    reported = {rule["id"]: rule["why"] for rule in training["rules"] if not rule["ok"]}
    assert done.returncode == 1 and not training["passes"] and "each" in reported["delivered"], training["rules"]


@pytest.mark.promise("TRA-15")
@pytest.mark.parametrize(
    ("layout", "said"),
    [({"maxshape": (None, SIDE, SIDE)}, "extensible array"), ({"maxshape": (None, None, SIDE)}, "tree of the second version")],
)
def test_a_list_of_chunks_that_is_not_read_is_named(
    forebay: Callable[..., Any], tmp_path: Path, layout: dict[str, Any], said: str
) -> None:
    write(tmp_path / "data", {"chunks": (1, 40, 40), **layout}, "v110")
    done = run(forebay, tmp_path)
    assert done.returncode == 4 and said in done.stderr and "h5repack" in done.stderr, done.stderr


@pytest.mark.promise("TRA-15")
def test_what_describes_a_newer_file_is_held_against_its_checksums(forebay: Callable[..., Any], tmp_path: Path) -> None:
    victim = write(tmp_path / "data", LAYOUTS["many chunks"], "v110")[1]
    whole = victim.read_bytes()
    for mark in (b"OHDR", b"FAHD", b"FADB"):
        at = whole.rindex(mark) + 12
        victim.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        done = run(forebay, tmp_path)
        assert done.returncode == 4 and victim.name in done.stderr and "Traceback" not in done.stderr, done.stderr


@pytest.mark.promise("EMU-22")
def test_h5py_reads_our_files(forebay: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "h5.toml").write_text(WORKLOAD)
    made = forebay("emulate", "datagen", "--workload", tmp_path / "h5.toml", "--data", tmp_path / "data")
    assert made.returncode == 0, made.stderr
    contents = set()
    for number in range(FILES):
        with h5py.File(tmp_path / "data" / "train" / f"img_{number}_of_{FILES}.hdf5") as file:
            assert file["records"].shape == (SAMPLES, SIDE, SIDE) and file["records"].dtype == np.uint8
            assert list(file["labels"]) == [0] * SAMPLES
            contents |= {sample.tobytes() for sample in file["records"]}
    assert len(contents) == FILES * SAMPLES
