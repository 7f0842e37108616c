"""What fio wrote with `verify=…`, checked here: its headers and checksums, each kind, and what is wrong with them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import processes
import pytest
from forebay import fio
from forebay import run as engine
from forebay.errors import RequestError
from forebay.fio import checks, values
from properties import parametrized

BYTES = 64 << 10
# What each section of fio's writes with; reading with the same settings checks it.
WRITTEN = {
    **{kind: f"verify={kind} bs=4k" for kind in checks.FIOS if not kind.startswith("pattern")},
    "pattern": "verify=pattern bs=4k verify_pattern=0xaa5501",
    "headed": "verify_pattern=0x1234 bs=8k verify_interval=512",
    "typed": 'verify=meta bs=8k verify_pattern="abc"-10',
    "interval": "verify=crc64 bs=16k verify_interval=4k",
    "aside": "verify=xxhash bs=4k verify_offset=1024",
    "ranged": "verify=crc32c bsrange=4k-16k",
    "later": "verify=crc32 bs=4k offset=8k",
}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the installed fio wrote a file for each section."""
    if shutil.which("fio") is None:
        pytest.skip("fio isn't installed; apt install fio")
    folder = tmp_path_factory.mktemp("written")
    (folder / "write.fio").write_text("[global]\nthread\n" + sections("rw=write\ndo_verify=0"))
    done = processes.run(["fio", "--output=out", "write.fio"], cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr + (folder / "out").read_text()
    return folder


def sections(more: str) -> str:
    text = ""
    for name, settings in WRITTEN.items():
        text += "\n".join([f"[{name}]", f"filename={name}.data", f"size={BYTES}", *settings.split(), more]) + "\n"
    return text


def result(job: dict[str, Any]) -> dict[str, Any]:
    return dict(engine.run({**job, "cache": "allow"})["result"])


@pytest.mark.promise("BEN-32")
@parametrized("order", ["rw=read", "rw=randread", "rw=randwrite\nverify_only"], kept=(0,))
def test_all_that_fio_wrote_holds(written: Path, monkeypatch: pytest.MonkeyPatch, order: str) -> None:
    monkeypatch.chdir(written)
    Path("read.fio").write_text(sections(order))
    before = {path: path.stat().st_mtime_ns for path in written.glob("*.data")}
    for job in fio.jobs("read.fio"):
        found = result(job.job)
        assert not found["errors"]["verify_failed"], (job.name, job.job["verify_fio"], found["errors"]["examples"])
        assert found["verified_bytes"] == found["bytes"] == BYTES, job.name
    assert before == {path: path.stat().st_mtime_ns for path in written.glob("*.data")}


@pytest.mark.promise("BEN-32")
@pytest.mark.parametrize(
    ("name", "spoil", "said"),
    [
        ("crc32c", lambda d: d[:5000] + bytes([d[5000] ^ 1]) + d[5001:], "/crc32c.data has crc32c "),
        ("crc64", lambda d: d[4096:8192] + d[:4096] + d[8192:], "holds the block that belongs at 4096"),
        ("crc7", lambda d: d[:4106] + bytes(4086) + d[8192:], "/crc7.data has a damaged header"),
        ("crc16", lambda d: d[:4096] + bytes(4096) + d[8192:], "holds only zeroes"),
        ("pattern", lambda d: d[:9000] + b"x" + d[9001:], "808 bytes on"),
        ("meta", lambda d: d[4096 * 15 :] * 16, "holds the block that belongs at 61440; "),
    ],
)
def test_what_is_wrong_is_named(written: Path, tmp_path: Path, name: str, spoil: Any, said: str) -> None:
    path = tmp_path / f"{name}.data"
    path.write_bytes(spoil((written / path.name).read_bytes()))
    rule = "pattern,pattern=aa5501" if name == "pattern" else f"{name},interval=4k"
    found = result({"sources": [str(path)], "io_bytes": 65536 if name == "meta" else 4096, "passes": 1, "verify_fio": rule})
    assert found["errors"]["verify_failed"] and not found["errors"]["failed"]
    assert any(said in example for example in found["errors"]["examples"]), found["errors"]["examples"]
    assert found["verified_bytes"] < BYTES


@pytest.mark.promise("BEN-32")
def test_a_section_that_reads_checks_what_fio_wrote_and_one_that_writes_its_own(tmp_path: Path) -> None:
    def read(text: str) -> list[fio.FioJob]:
        (tmp_path / "jobs.fio").write_text(text)
        return fio.jobs(str(tmp_path / "jobs.fio"))

    (job,) = read("[a]\nfilename=/f\nsize=1m\nbs=8k\nverify=crc32c-intel\nverify_interval=512\n")
    assert job.job["verify_fio"] == "crc32c,interval=512" and "create" not in job.job and "verify" not in job.job
    assert "verify=crc32c-intel checks what fio wrote" in job.notes[0]
    (job,) = read("[a]\nfilename=/f\nsize=1m\nbsrange=4k-8k\nverify_pattern=0xabc\nrw=randwrite\nverify_only\nfsync=1\n")
    assert job.job["verify_fio"] == "meta,interval=4096,pattern=0abc" and job.job["op"] == "randread"
    assert "sync" not in job.job
    own, check, again = read("[a]\nfilename=/f\nsize=1m\nrw=write\nverify=md5\n[b]\nstonewall\nfilename=/f\nverify=md5\n")
    assert own.job["verify"] and check.job["verify"] and again.job["verify"] and "verify_fio" not in again.job
    for setting in ("verify=sha256", "verify=pattern", "verify_pattern=%o", "verify=crc64\nverify_offset=8"):
        with pytest.raises(RequestError) as refused:
            read(f"[a]\nfilename=/f\n{setting}\n")
        assert setting.split("\n")[-1] in refused.value.asked


@pytest.mark.parametrize(
    ("text", "bytes_"),
    [
        ("0xdeadbeef", b"\xde\xad\xbe\xef"),
        ("0xFF0X1", b"\xff\x01"),
        ("0xfff", b"\x0f\xff"),
        ('"123"0xFFeeCC', b"123\xff\xee\xcc"),
        ("-1024", b"\x00\xfc\xff\xff"),
        ("66", b"\x42"),
        ("0", b"\x00"),
        ("%o", None),
        ("'file'", None),
        ("0x" + "ab" * 513, None),
        ("4294967296", None),
        ("", None),
    ],
)
def test_patterns_are_what_fio_takes_them_for(text: str, bytes_: bytes | None) -> None:
    assert values.pattern(text) == bytes_


def test_what_fio_must_have_written_is_not_advised_to_be_created(tmp_path: Path) -> None:
    """`--verify-fio` refuses `--create`, so no error of a missing, empty or incomplete source names it."""
    empty, folder = tmp_path / "empty", tmp_path / "folder"
    empty.touch()
    folder.mkdir()
    for source, more, said in (
        (tmp_path / "missing", {}, "there is no such file"),
        (empty, {}, "is empty"),
        (folder, {}, "no file with data"),
        (folder, {"file_name": "f.%d"}, "no file called f"),
    ):
        for rule, create in ((None, True), ("crc32c", False)):
            with pytest.raises(RequestError, match=said) as refused:
                engine.run({"sources": [str(source)], "verify_fio": rule, **more})
            assert ("--create" in refused.value.next) is create, refused.value.next
            assert refused.value.next
    (folder / "f.0").write_bytes(b"x")
    with pytest.raises(RequestError, match="there are 1") as refused:
        engine.run({"sources": [str(folder)], "verify_fio": "crc32c", "files": 3, "file_name": "f.%d"})
    assert refused.value.next == "--files 1"


def test_a_rule_that_no_job_can_have_is_refused() -> None:
    for more, said in (({"verify": True}, "not both"), ({"op": "write"}, "only read"), ({"create": True}, "only read")):
        with pytest.raises(RequestError, match=said):
            engine.run({"sources": ["/nonexistent/f"], "verify_fio": "crc32c", **more})
