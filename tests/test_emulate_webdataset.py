"""Tar shards of WebDataset: what Python's tarfile and the package webdataset write is read, and they read what we write."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import processes
import pytest
from properties import parametrized

SAMPLES, SHARDS = 5, 2
WORKLOAD = f"""
format = "webdataset"
loader = "pytorch"
record_bytes = 1600
samples_per_file = {SAMPLES}
files = {SHARDS}
batch = 1
read_threads = 1
prefetch = 2
epochs = 1
au_pct_min = 0
compute_s = 0.0001
"""
KINDS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


def emulate(tmp_path: Path, verb: str, *flags: str) -> Any:
    (tmp_path / "own.toml").write_text(WORKLOAD)
    words = ["emulate", verb, "--workload", "own.toml", "--data", "data", "--json", *flags]
    return processes.run([*processes.FOREBAY, *words], cwd=tmp_path)


def training(done: Any) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)["training"]
    return found


def shards(tmp_path: Path) -> list[Path]:
    folder = tmp_path / "data"
    folder.mkdir(exist_ok=True)
    return [folder / f"train-{n:06}.tar" for n in range(SHARDS)]


def add(into: tarfile.TarFile, name: str, content: bytes, kind: bytes = tarfile.REGTYPE) -> None:
    info = tarfile.TarInfo(name)
    info.type, info.size, info.linkname = kind, len(content), "x" if kind in (tarfile.SYMTYPE, tarfile.LNKTYPE) else ""
    into.addfile(info, io.BytesIO(content))


@pytest.mark.promise("EMU-51")
@parametrized("kind", KINDS, kept=(0,))
def test_archives_of_tarfile_are_read_by_their_members(tmp_path: Path, kind: str) -> None:
    random, payload = np.random.default_rng(7), 0
    for number, path in enumerate(shards(tmp_path)):
        with tarfile.open(path, "w", format=KINDS[kind]) as into:
            add(into, "a/", b"", tarfile.DIRTYPE)
            add(into, "README", b"no sample's")
            for sample in range(SAMPLES):
                # A name of over a hundred bytes has a prefix, or a header of its own; so has one that isn't ASCII, in pax.
                folder = "d" * 90 + "/" + ("é" if kind != "ustar" else "e") * 20
                key = f"{folder}/{number}-{sample}" if sample % 2 else f"{number}-{sample}"
                for ending in ("jpg", "json", "seg.png"):
                    content = random.bytes(int(random.integers(0, 3000)))
                    add(into, f"{key}.{ending}", content)
                    payload += len(content)
                add(into, f"{key}.link", b"", tarfile.SYMTYPE)
    found = training(emulate(tmp_path, "run"))
    assert (found["samples"], found["payload_bytes"]) == (SAMPLES * SHARDS, payload)
    assert found["read_bytes"] == sum(path.stat().st_size for path in shards(tmp_path))


@pytest.mark.promise("EMU-51")
def test_shards_are_tarfiles_own_byte_for_byte(tmp_path: Path) -> None:
    assert emulate(tmp_path, "datagen", "--check").returncode == 0
    seen = []
    for number in range(SHARDS):
        path = tmp_path / "data" / "train" / f"img_{number}_of_{SHARDS}.tar"
        again = io.BytesIO()
        with tarfile.open(path) as ours, tarfile.open(fileobj=again, mode="w", format=tarfile.USTAR_FORMAT) as theirs:
            for member in ours:
                content = ours.extractfile(member)
                assert content is not None
                info = tarfile.TarInfo(member.name)
                info.size, info.mode = member.size, 0o444
                theirs.addfile(info, content)
                seen.append((member.name, member.size))
        assert again.getvalue() == path.read_bytes()
    of_samples = [[(f"{n:09}.bin", 1600), (f"{n:09}.cls", 1)] for n in range(SAMPLES * SHARDS)]
    assert seen == [member for sample in of_samples for member in sample]
    assert training(emulate(tmp_path, "run"))["samples"] == SAMPLES * SHARDS


@pytest.mark.promise("EMU-51")
def test_a_shard_with_a_broken_header_or_a_sparse_member_is_named(tmp_path: Path) -> None:
    for path in shards(tmp_path):
        with tarfile.open(path, "w") as into:
            for sample in range(SAMPLES):
                add(into, f"{sample}.bin", bytes(600))
    victim = shards(tmp_path)[1]
    whole = victim.read_bytes()
    second = tarfile.BLOCKSIZE * 3
    victim.write_bytes(whole[: second + 100] + b"1" + whole[second + 101 :])
    done = emulate(tmp_path, "run")
    assert done.returncode == 4 and "Traceback" not in done.stderr
    assert victim.name in done.stderr and "record 1 at 1536: the header has checksum" in done.stderr, done.stderr
    with tarfile.open(victim, "w", format=tarfile.PAX_FORMAT) as into:
        info = tarfile.TarInfo("0.bin")
        info.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "0.bin"}
        into.addfile(info)
    done = emulate(tmp_path, "run")
    assert done.returncode == 4 and victim.name in done.stderr, done.stderr
    assert "sparse (GNU's records), which isn't read here" in done.stderr


@pytest.mark.promise("EMU-51")
def test_the_package_webdataset_reads_ours_and_we_read_its_shards(tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset", reason="webdataset isn't installed; try: pip install webdataset")
    assert emulate(tmp_path, "datagen").returncode == 0
    urls = sorted(str(path) for path in (tmp_path / "data" / "train").iterdir())
    found = list(webdataset.WebDataset(urls, shardshuffle=False))
    assert [sample["__key__"] for sample in found] == [f"{n:09}" for n in range(SAMPLES * SHARDS)]
    assert all(len(sample["bin"]) == 1600 and sample["cls"] == b"0" for sample in found)
    for url in urls:
        with webdataset.TarWriter(url) as into:
            for sample in range(SAMPLES):
                into.write({"__key__": f"a.b/{sample}", "bin": bytes(700), "left.cls": sample})
    assert training(emulate(tmp_path, "run"))["payload_bytes"] == SHARDS * SAMPLES * 701
