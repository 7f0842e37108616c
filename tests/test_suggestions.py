"""What an error suggests for a slip of the fingers: the nearest word, which parses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from forebay import fio, flags, run
from forebay.cli import main
from forebay.errors import RequestError
from forebay.gdsio import job_file
from forebay.serve import config
from forebay.serve import engine as serving
from forebay.snap import engine
from forebay.sweep import file as sweep_file


@pytest.fixture
def snap(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """`forebay snap WORDS` → (what is typed next, the words that a gateway would get)."""
    asked: list[list[str]] = []
    monkeypatch.setattr(engine, "rpc", lambda words: asked.append(words) or "[]")

    def run(*words: str) -> tuple[str, list[list[str]]]:
        asked.clear()
        with pytest.raises(SystemExit) as ended:
            main(["snap", *words])
        said = capsys.readouterr().err
        assert ended.value.code == (2 if said else 0), said
        return said.partition("try: ")[2].strip(), asked

    return run


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["--rpc", "/tmp/p", "rpc", "nvme_controller_list"], ["--socket", "/tmp/p", "nvme_controller_list"]),
        (["--rpc=/tmp/p", "rpc", "snap_stats_get"], ["--socket", "/tmp/p", "snap_stats_get"]),
    ],
)
def test_a_slip_in_an_rpc_is_answered_with_what_parses(snap: Any, typed: list[str], meant: list[str]) -> None:
    import shlex

    next, asked = snap(*typed)
    words = shlex.split(next)
    assert words[:3] == ["forebay", "snap", "rpc"] and words[3:] == meant and not asked
    assert snap(*words[2:]) == ("", [meant])


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
        run.source(typed)
    assert refused.value.next == meant
    run.source(meant)


def test_a_slip_in_a_configuration_or_a_verb_of_rpcs_is_answered_with_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text('[[subsystems]]\nnqm = "nqn.2024-01.test:x"\n')
    with pytest.raises(RequestError) as refused:
        serving.check(config.Asked((tmp_path / "c.toml").read_text(), "toml", tmp_path / "c.toml"))
    assert refused.value.next.startswith("nqn; ")
    for words, meant in ((["nvme_controler_list"], "forebay snap rpc nvme_controller_list"),
                         (["nvme_controller_suspend", "--ctr", "X"], "--ctrl")):  # fmt: skip
        with pytest.raises(RequestError) as refused:
            engine.rpc(words)
        assert refused.value.next == meant


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
