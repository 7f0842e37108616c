"""What an error suggests for a slip of the fingers: the nearest word, which parses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from forebay import fio, flags
from forebay.errors import RequestError
from forebay.gdsio import job_file
from forebay.sweep import file as sweep_file
from forebay.uri import parsed


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("nvme+tcp://h:4420/n?hostnqm=nqn.2024-01.t:x&nsid=2", "nvme+tcp://h:4420/n?hostnqn=nqn.2024-01.t:x&nsid=2"),
        ("nvme+tcp://h:4420/n?nsid=2&hostid=xyz", "nvme+tcp://h:4420/n?nsid=2&hostid=1b4e28ba-2fa1-11d2-883f-0016d3cca427"),
        ("nvme+rdma://h:4420/n?queues=many", "nvme+rdma://h:4420/n?queues=8"),
        ("vfio-user:/run/x?nsidd=2", "vfio-user:/run/x?nsid=2"),
        ("stripe:?chnk=512k&m=a", "stripe:?chunk=512k&m=a"),
    ],
)
def test_a_slip_in_a_uri_is_answered_with_the_uri_as_it_was_meant(typed: str, meant: str) -> None:
    with pytest.raises(RequestError) as refused:
        parsed(typed)
    assert refused.value.next == meant
    parsed(meant)


def test_a_slip_in_the_words_or_the_file_of_a_service_is_answered_with_the_nearest(forebay: Any, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text('[[subsystems]]\nnqm = "nqn.2024-01.test:x"\n')
    for words, meant in (
        (["serve", "--check", tmp_path / "c.toml"], "nqn; "),
        (["serve", "nil:", "--nq", "x"], "--nqn"),
        (["snap", "--rpc", "/tmp/p", "rpc", "snap_stats_get"], "forebay snap rpc --socket /tmp/p snap_stats_get"),
        (["snap", "rpc", "nvme_controler_list"], "forebay snap rpc nvme_controller_list"),
        (["snap", "rpc", "nvme_controller_suspend", "--ctr", "X"], "--ctrl"),
    ):
        done = forebay(*words)
        assert done.returncode == 2 and done.stderr.partition("try: ")[2].startswith(meant), done.stderr


def test_a_value_of_a_short_list_is_answered_with_the_nearest() -> None:
    for field in flags.by_name().values():
        for word in field.values:
            slip = word[:-2] + word[-1] if len(word) > 4 else ""
            if not slip or slip in field.values:
                continue
            with pytest.raises(RequestError) as refused:
                field.parse(slip, f"--{field.flag}")
            assert refused.value.next == f"--{field.flag} {word}"
            field.parse(word, f"--{field.flag}")


def test_a_key_of_a_sweep_is_answered_with_the_nearest() -> None:
    for key in sweep_file.TOP_KEYS:
        if len(key) > 3:
            with pytest.raises(RequestError) as refused:
                sweep_file.parse(f"{key[:-2] + key[-1]} = 1\n", "s", "s.toml")
            assert refused.value.next == key


def test_a_key_of_gdsios_job_file_is_answered_with_the_nearest(tmp_path: Path) -> None:
    for key in (key for key in job_file.BY_KEY if len(key) > 4):
        with pytest.raises(RequestError) as refused:
            job_file._settings(fio.Section("job", ((key[:-2] + key[-1], "1"),)))
        assert refused.value.next == f"{key}=1"
