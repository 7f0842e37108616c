"""`forebay discover`, `identify` and `doctor` at a target that lets its host in over TLS alone."""

from __future__ import annotations

import base64
import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from serve_support import NQN, Target, document, toml

HOST = "nqn.2026-01.io.example:keyed"


def key(secret: bytes) -> str:
    """As `nvme gen-tls-key` prints one."""
    crc = zlib.crc32(secret).to_bytes(4, "little")
    return f"NVMeTLSkey-1:0{1 if len(secret) == 32 else 2}:{base64.b64encode(secret + crc).decode()}:"


KEY, OTHER = key(bytes(range(32))), key(bytes(range(1, 33)))


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    folder = tmp_path_factory.mktemp("tls")
    namespaces = ['source = "nil:?size=1g"\nblock_bytes = 512']
    hosts = f'[[subsystems.hosts]]\nnqn = "{HOST}"\ntls_key = "{KEY}"'
    with Target(toml(folder / "serve.toml", namespaces, more=hosts)) as running:
        yield running


def put(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.mark.promise("TLS-6")
def test_discover_takes_the_key_from_a_file_or_the_environment(forebay, target, tmp_path):
    file = put(tmp_path / "key", KEY)
    host = f"nvme+tcp://{target.addresses[0]}"
    for words, env in [
        ([f"{host}?tls_key_file={file}&hostnqn={HOST}"], {}),
        ([f"{host}/?tls=1", "--hostnqn", HOST], {"FOREBAY_TLS_KEY": KEY}),
    ]:
        found = document(forebay("discover", *words, "--json", env=os.environ | env))
        assert (found["host_nqn"], found["address"]) == (HOST, target.addresses[0])
        (record,) = [r for r in found["records"] if r["uri"]]
        assert (record["subnqn"], record["uri"]) == (NQN, target.uri())
        assert (record["sectype"], record["treq"]) == ("tls13", "required")
    shown = forebay("discover", f"{host}?tls_key_file={file}&hostnqn={HOST}")
    assert f"{target.uri()}   (security tls13, secure channel required: tls=1 in the URI)" in shown.stdout.splitlines()


@pytest.mark.promise("TLS-6")
def test_a_key_that_is_not_the_targets_ends_each_look_in_words(forebay, target, tmp_path):
    keys = f"tls_key_file={put(tmp_path / 'key', OTHER)}&hostnqn={HOST}"
    for words in (["discover", f"nvme+tcp://{target.addresses[0]}?{keys}"], ["identify", target.uri(keys)]):
        done = forebay(*words)
        assert done.returncode == 3 and "over TLS: as happens where keys differ" in done.stderr, (words, done.stderr)
        assert "Traceback" not in done.stderr and not done.stdout and "NVMeTLSkey" not in done.stderr
    target.wait_for("no TLS")


@pytest.mark.promise("TLS-6")
@pytest.mark.parametrize(
    ("text", "mode", "said"),
    [(KEY, 0o644, "chmod o="), ("NVMeTLSkey-1:01:x:", 0o600, "the secret in"), (None, 0, "No such file")],
)
def test_a_key_that_cannot_be_used_is_the_requests_fault(forebay, target, tmp_path, text, mode, said):
    file = tmp_path / "key"
    if text is not None:
        put(file, text, mode)
    keys = f"tls_key_file={file}&hostnqn={HOST}"
    for words in (["discover", f"nvme+tcp://{target.addresses[0]}?{keys}"], ["identify", target.uri(keys)]):
        done = forebay(*words)
        assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr, (words, done.stderr)
    checks = doctor(forebay, target.uri(keys))
    assert checks["tls"]["state"] == "missing" and "handshake" not in checks, checks
    assert said in json.dumps(checks["tls"]) and str(file) in checks["tls"]["found"]


def doctor(forebay, uri: str) -> dict[str, Any]:
    """What doctor says of that target, by the names of its checks."""
    report = json.loads(forebay("doctor", uri, "--json").stdout)
    begin = "source.nvme_tcp."
    return {c["id"].split()[0].removeprefix(begin): c for c in report["checks"] if c["id"].startswith(begin)}


@pytest.mark.promise("TLS-6")
def test_doctor_shakes_hands_over_tls(forebay, target, tmp_path):
    file = put(tmp_path / "key", KEY)
    checks = doctor(forebay, target.uri(f"tls_key_file={file}&hostnqn={HOST}&queues=1"))
    assert checks["tls"]["found"] == f"read from {file}"
    assert checks["handshake"]["found"].startswith("over TLS 1.3; ICResp")
    for name in ("tls", "handshake", "digests", "connect", "queues", "transfer", "namespace", "keep_alive", "path", "buffers"):
        assert checks[name]["state"] == "works", checks[name]
    assert "1 GiB" in checks["namespace"]["found"]


@pytest.mark.promise("TLS-6")
def test_doctor_tells_a_key_that_reads_well_from_one_that_the_target_has(forebay, target, tmp_path):
    checks = doctor(forebay, target.uri(f"tls_key_file={put(tmp_path / 'key', OTHER)}&hostnqn={HOST}"))
    assert checks["tls"]["state"] == "works" and checks["handshake"]["state"] == "missing", checks
    assert "where keys differ" in checks["handshake"]["found"] and "connect" not in checks
