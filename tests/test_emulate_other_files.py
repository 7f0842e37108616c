"""Files of a user's own: what they are is said by their first bytes, and nothing but what Forebay made is to be removed."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import zipfile
from pathlib import Path

import processes
import pytest

TOML = """title = "mine"
format = "{}"
loader = "pytorch"
record_bytes = 500
record_bytes_stdev = 0
samples_per_file = 1
files = 2
batch = 1
read_threads = 1
prefetch = 2
epochs = 1
au_pct_min = 1
[[variant]]
accelerator = "h100"
compute_s = 0.001
"""
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 9887654321\n"


def packed(method: int) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", method) as into:
        into.writestr("x.npy", bytes(1000))
    return made.getvalue()


def said(tmp_path: Path, format: str, name: str, content: bytes) -> str:
    """What a run by parsing says of two files of that content."""
    data = tmp_path / "data" / "train"
    data.mkdir(parents=True)
    for number in range(2):
        (data / name.format(number)).write_bytes(content)
    (tmp_path / "w.toml").write_text(TOML.format(format))
    run = ("emulate", "run", "--workload", "w.toml", "--accelerator", "h100", "--data", "data", "--rules", "v2.0")
    done = processes.run([*processes.FOREBAY, *run, "--level", "parse", "-q"], cwd=tmp_path)
    assert done.returncode == 4 and "Traceback" not in done.stderr, done.stderr
    assert "rm " not in done.stderr
    return done.stderr


@pytest.mark.parametrize(
    ("format", "name", "content", "words"),
    [
        ("tfrecord", "img_{}_of_2.tfrecord", gzip.compress(bytes(5000), mtime=0), ("it is gzip", "gunzip")),
        ("tfrecord", "{}.tfrec", LFS, ("a pointer of git-lfs", "git lfs pull")),
        ("hdf5", "{}.h5", b"<!DOCTYPE html><html>404</html>" + bytes(4000), ("a page of HTML", "download it again")),
        ("jpeg", "{}.jpg", b"\x89PNG\r\n\x1a\n" + bytes(4000), ("it is png",)),
        ("jpeg", "{}.JPG", b"RIFF\0\0\0\0WEBPVP8 " + bytes(4000), ("it is webp",)),
        ("hdf5", "{}.hdf5", bytes(512) + b"\x89HDF\r\n\x1a\n" + bytes(4000), ("user block", "h5unjam")),
        ("npz", "img_{}_of_2.npz", packed(zipfile.ZIP_LZMA), ("packed by LZMA, which isn't read here", "--level bytes")),
        ("npz", "{}.npz", packed(zipfile.ZIP_STORED)[:-40], ("--on-error skip",)),
    ],
)
def test_a_file_that_is_something_else_is_named_and_never_to_be_removed(
    tmp_path: Path, format: str, name: str, content: bytes, words: tuple[str, ...]
) -> None:
    reported = said(tmp_path, format, name, content)
    assert all(word in reported for word in words), reported


def test_what_a_manifest_says_is_ours_may_be_made_again(tmp_path: Path) -> None:
    (tmp_path / "w.toml").write_text(TOML.format("npz"))
    flags = ("--workload", "w.toml", "--accelerator", "h100", "--data", "data")
    made = processes.run([*processes.FOREBAY, "emulate", "datagen", *flags, "-q"], cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    first = sorted((tmp_path / "data/train").iterdir())[0]
    first.write_bytes(first.read_bytes()[:-30] + bytes(30))
    done = processes.run([*processes.FOREBAY, "emulate", "run", *flags, "--level", "parse", "-q"], cwd=tmp_path)
    assert done.returncode == 4 and "rm that file" in done.stderr, done.stderr


def test_what_to_type_next_is_about_what_was_typed(tmp_path: Path) -> None:
    (tmp_path / "a b.toml").write_text(TOML.format("npz"))
    flags = ("--workload", "a b.toml", "--accelerator", "h100", "--data", "gone")
    missing = processes.run([*processes.FOREBAY, "emulate", "run", *flags], cwd=tmp_path)
    assert "try: forebay emulate datagen --workload 'a b.toml' --accelerator h100 --data gone" in missing.stderr
    processes.run([*processes.FOREBAY, "emulate", "datagen", *flags, "-q"], cwd=tmp_path)
    (tmp_path / "other.toml").write_text(TOML.format("npz").replace("record_bytes = 500", "record_bytes = 900"))
    flags = ("--workload", "other.toml", "--accelerator", "h100", "--data")
    other = processes.run([*processes.FOREBAY, "emulate", "run", *flags, "gone"], cwd=tmp_path)
    assert other.returncode == 2
    assert "try: forebay emulate datagen --workload other.toml --accelerator h100 --data DIR" in other.stderr
    for step in ("datagen", "run"):
        done = processes.run([*processes.FOREBAY, "emulate", step, *flags, "DIR", "-q"], cwd=tmp_path)
        assert done.returncode in (0, 1), done.stderr


@pytest.mark.promise("EMU-50")
def test_shards_of_any_extension_are_read_as_a_whole(tmp_path: Path) -> None:
    held = 0
    for shard in range(3):
        path = tmp_path / "data" / "shards" / f"train-{shard}.tar"
        path.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(path, "w") as into:
            for member in range(4):
                info = tarfile.TarInfo(f"{shard}-{member}.jpg")
                info.size = 700 * (1 + shard + member)
                into.addfile(info, io.BytesIO(bytes(info.size)))
        held += path.stat().st_size
    (tmp_path / "data" / "index.json").write_text("{}")
    own = TOML.format("raw").replace("samples_per_file = 1", "samples_per_file = 4").replace("files = 2", "files = 3")
    (tmp_path / "w.toml").write_text(own)
    run = ("emulate", "run", "--workload", "w.toml", "--accelerator", "h100", "--data", "data", "--rules", "v2.0", "--json")
    done = processes.run([*processes.FOREBAY, *run, "--glob", "train-*.tar"], cwd=tmp_path)
    record = json.loads(done.stdout)
    assert record["result"]["bytes"] == held and record["training"]["samples"] == 12, done.stderr
    assert record["job"]["glob"] == ["train-*.tar"]
    for more, said in (
        (("--glob", "*.tgz"), "3 .tar, 1 .json"),
        (("--glob", "*.tar", "--closed"), "--closed --glob '*.tar'"),
        (("--glob", "["), "has a [ without its ]"),
    ):
        done = processes.run([*processes.FOREBAY, *run, *more], cwd=tmp_path)
        assert done.returncode == 2 and said in done.stderr, done.stderr
