"""What a newcomer types by mistake: each is answered with what to type, and never with a traceback."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import processes
import pytest
from forebay.cli import VERBS
from other_user import OtherUser, somebody  # noqa: F401
from properties import parametrized

ROOT = Path(__file__).parent.parent


def forebay(*arguments: str | bytes, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if k not in ("HOME", "COLUMNS")}
    return processes.run([*processes.FOREBAY, *arguments], cwd=cwd, env={**kept, **env})


def test_the_first_commands_of_readme_are_those_that_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """bench/first_measurement.py takes them from the page."""
    monkeypatch.syspath_prepend(ROOT / "bench")
    spec = importlib.util.spec_from_file_location("first_measurement", ROOT / "bench/first_measurement.py")
    assert spec is not None and spec.loader is not None
    first = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = first  # its data classes look for their module there
    spec.loader.exec_module(first)
    typed = first.steps("URL", Path("scratch"), (ROOT / "README.md").read_text())
    assert typed[:2] == ["git clone --quiet URL scratch/clone", "pip install ."]
    assert [words.split()[:3] for words in typed[2:]] == [["forebay", verb, "scratch/data"] for verb in ("doctor", "bench")]
    with pytest.raises(ValueError, match="## Install"):
        first.commands("# Forebay\n")


@pytest.mark.promise("CMD-9")
def test_a_misspelt_verb_is_answered_with_the_right_one(tmp_path: Path) -> None:
    done = forebay("bnech", cwd=tmp_path)
    assert done.returncode == 2 and "Did you mean 'bench'?" in done.stderr
    assert forebay("xyzzy", cwd=tmp_path).returncode == 2


@pytest.mark.promise("CMD-6", "CMD-9")
@pytest.mark.parametrize("verb", [v for v in VERBS if v not in ("doctor", "demo", "completion", "man", "discover")])
def test_a_verb_alone_says_what_it_needs(tmp_path: Path, verb: str) -> None:
    done = forebay(verb, cwd=tmp_path)
    assert done.returncode == 2 and done.stderr and not done.stdout
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.promise("CMD-9")
@pytest.mark.parametrize("verb", VERBS)
def test_a_flag_that_is_none_is_named(tmp_path: Path, verb: str) -> None:
    done = forebay(verb, "--no-such-flag", cwd=tmp_path)
    assert done.returncode == 2 and "no-such-flag" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.promise("CMD-9")
@parametrized("name", ["with space", "ünïcødé", "new\nline", "100%41", "a&b?c#d", "-dash", "c:d"], kept=(2, 4, 5))
def test_any_name_is_a_path(tmp_path: Path, name: str) -> None:
    job = ("--file-size", "1m", "--passes", "1", "--cache", "allow", "--io-size", "64k", "--verify", "--json")
    path = f"./{name}"
    assert forebay("bench", path, "--op", "write", *job, cwd=tmp_path).returncode == 0
    done = forebay("bench", path, *job, cwd=tmp_path, LC_ALL="C")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["result"]["verified_bytes"] == 1 << 20
    assert (tmp_path / name).stat().st_size == 1 << 20


@pytest.mark.promise("CMD-9")
def test_a_name_that_is_not_utf8_is_refused_by_name(tmp_path: Path) -> None:
    done = forebay("bench", b"d\xff", "--create", "--file-size", "1m", cwd=tmp_path)
    assert done.returncode == 2 and r"'d\xff'" in done.stderr and "Traceback" not in done.stderr


def test_the_folder_that_was_measured_may_be_reported_on(tmp_path: Path) -> None:
    """The list of made files that bench keeps there is no damaged record."""
    job = (".", "--create", "--file-size", "1m", "--passes", "1", "--cache", "allow", "--json", "-o", "run.json")
    assert forebay("bench", *job, cwd=tmp_path).returncode == 0
    done = forebay("report", ".", "-o", "page.html", "--no-charts", cwd=tmp_path)
    assert done.returncode == 0 and "forebay.json" not in done.stderr, done.stderr


@pytest.mark.promise("FLT-2")
@pytest.mark.root
def test_somebody_without_rights_measures_and_is_told_what_is_forbidden(somebody: OtherUser) -> None:  # noqa: F811
    done = somebody.run("bench", "nil:?size=1g", "--passes", "1", "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["result"]["ios"] > 0
    closed = somebody.shared / "closed"
    closed.mkdir()
    closed.chmod(0o755)
    done = somebody.run("bench", closed, "--create", "--file-size", "1m")
    assert done.returncode == 2 and "permission denied" in done.stderr
    assert list(closed.iterdir()) == []
