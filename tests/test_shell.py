"""Completion scripts that shells accept and that answer, manual pages that man can read."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import sys

import processes
import pytest
from forebay.cli import VERBS
from forebay.command_line import shell
from forebay.command_line.complete import _joined


def forebay(*arguments, **environment):
    return processes.run([*processes.FOREBAY, *arguments], env={**os.environ, **environment})


@pytest.mark.parametrize("name", shell.SHELLS)
def test_each_shell_gets_a_script_that_names_forebay(name):
    done = forebay("completion", name)
    assert done.returncode == 0
    assert "_FOREBAY_COMPLETE" in done.stdout and f"{name}_complete" in done.stdout
    assert shell.INSTALL[name] in done.stderr


@pytest.mark.parametrize("name", shell.SHELLS)
def test_the_script_parses(name, tmp_path):
    if shutil.which(name) is None:
        pytest.skip(f"{name} isn't installed")
    script = tmp_path / "script"
    script.write_text(forebay("completion", name).stdout)
    checked = processes.run([name, "-n", script])
    assert checked.returncode == 0, checked.stderr


def test_the_shell_is_found_out_where_none_is_named():
    assert "bash_complete" in forebay("completion", SHELL="/bin/bash").stdout
    done = forebay("completion", SHELL="/bin/tcsh")
    assert done.returncode == 2 and "tcsh" in done.stderr


def complete(words: str) -> list[str]:
    count = str(len(words.split(" ")) - 1)
    done = forebay(_FOREBAY_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD=count)
    return [line.split(",")[1] for line in done.stdout.splitlines()]


@pytest.mark.promise("CMD-21")
def test_tab_completes_flags_of_a_verb():
    assert {"--io-size", "--iopoll"} <= set(complete("forebay bench --io"))
    assert "recommend" in complete("forebay plan re")
    assert "--vary" in complete("forebay plan whatif --va")


DRIVES = {"d7-ps1010", "d7-p5520", "d5-p5336", "d3-s4520", "micron-9300-pro", "gen3-ideal", "gen4-ideal", "gen5-ideal"}
CHECKPOINTS = {f"llama3-{size}" for size in ("8b", "70b", "405b", "1t")}


def offered(words: str) -> list[tuple[str, str]]:
    """(type, value) of each line that the shells' script gets; `file` and `dir` make it complete paths by itself."""
    count = str(len(words.split(" ")) - 1)
    done = forebay(_FOREBAY_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD=count)
    return [tuple(line.split(",", 1)) for line in done.stdout.splitlines()]


@pytest.mark.promise("CMD-21")
@pytest.mark.parametrize(
    ("words", "first", "names"),
    [
        ("forebay bench /mn", ("file", "/mn"), set()),
        ("forebay bench x -o ", ("file", ""), set()),
        ("forebay files ", ("dir", ""), set()),
        ("forebay report ", ("file", ""), set()),
        ("forebay compare /a --path ", None, {"host", "bounce", "mapped", "gds", "auto"}),
        ("forebay sweep mic", ("file", "mic"), {"micron-4k", "micron-io-size"}),
        ("forebay emulate matrix ", None, {"solidigm-mlperf"}),
        ("forebay emulate run --workload res", ("file", "res"), {"resnet50"}),
        ("forebay emulate search --accelerator h", None, {"h100"}),
        ("forebay plan run --drive D7-PS", None, {"D7-PS1010"}),
        ("forebay plan run --path ", None, {"gds", "cpu"}),
        ("forebay man id", None, {"identify"}),
        ("forebay bench --rw ", None, {"read", "write", "randread", "randwrite"}),
        ("forebay bench --ioengine u", None, {"uring"}),
        ("forebay bench model:d7-p", ("file", "model:d7-p"), {"model:d7-ps1010", "model:d7-p5520"}),
        ("forebay doctor model : gen4", ("file", "gen4"), {"gen4-ideal"}),
        ("forebay emulate run --data model :", ("file", ""), DRIVES),
        ("forebay compare --metric latency_p9", None, {f"latency_p{share}" for share in (90, 95, 99, 999, 9999)}),
        ("forebay emulate checkpoint --workload ", None, CHECKPOINTS),
        ("forebay emulate datagen --workload l", ("file", "l"), set()),
        ("forebay plan run --workload j", None, {"job"}),
        ("forebay plan run --workload llama3-4", None, {"llama3-405b"}),
        ("forebay snap r", ("file", "r"), {"rpc"}),
        ("forebay snap rpc nvme_subsystem_", None, {f"nvme_subsystem_{verb}" for verb in ("create", "destroy", "list")}),
        ("forebay snap rpc -s /run/x rpc", None, {"rpc_get_methods"}),
        ("forebay snap rpc nvme_controller_resume --ctrl", None, {"--ctrl", "--ctrl_id"}),
    ],
)
def test_tab_completes_paths_names_and_values(words, first, names):
    found = offered(words)
    assert found[:1] == ([first] if first else found[:1]), found
    assert {value for kind, value in found if kind == "plain"} == names


@pytest.mark.promise("CMD-21")
def test_bash_itself_completes_a_path_and_a_value(tmp_path):
    """In a terminal, as a user presses Tab."""
    if shutil.which("bash") is None:
        pytest.skip("bash isn't installed")
    (tmp_path / "unmistakable.bin").write_text("")
    command = tmp_path / "forebay"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m forebay.cli "$@"\n')
    command.chmod(0o755)
    script = tmp_path / "script"
    script.write_text(forebay("completion", "bash").stdout)
    ours, theirs = pty.openpty()
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "TERM": "dumb", "PS1": "$ "}
    bash = processes.start(
        ["bash", "--norc", "--noprofile", "-i"], stdin=theirs, stdout=theirs, stderr=theirs, env=env, cwd=tmp_path
    )
    os.close(theirs)
    said = bytearray()

    def reads(*texts: str) -> bool:
        while select.select([ours], [], [], 0.1)[0]:
            said.extend(os.read(ours, 4096))
        return all(text.encode() in said for text in texts)

    try:
        os.write(ours, f". {script}; echo read''y\n".encode())
        processes.wait_until(lambda: reads("ready"), "the script is read", bash)
        os.write(ours, b"forebay bench ./unmis\t --path mapp\t")
        processes.wait_until(lambda: reads("./unmistakable.bin", "--path mapped"), "both words are whole", bash)
        os.write(ours, b"\x15forebay bench model:d7-ps\t")  # Ctrl-U: a new line
        processes.wait_until(lambda: reads("model:d7-ps1010"), "a word with a colon is whole", bash)
    finally:
        processes.kill(bash)
        os.close(ours)


def test_words_that_bash_cuts_at_colons_are_whole_again():
    cut = ["forebay", "tcp", ":", "//h", ":", "4420", "nil", ":", "--op", "model", ":", ""]
    assert _joined(cut) == ["forebay", "tcp://h:4420", "nil:", "--op", "model:", ""]


def test_other_tools_names_of_a_flag_are_understood_and_not_offered():
    assert [name for _, name in offered("forebay bench --r") if name in ("--rw", "--rate")] == ["--rate"]


def test_every_page_is_made_and_names_its_flags(tmp_path):
    available = [v for v in VERBS if importable(v)]
    assert {"bench", "files", "completion", "man"} <= set(available)
    for verb in available:
        text = shell.page(verb)
        assert f"forebay\\-{verb}" in text and ".SH SYNOPSIS" in text and ".SH EXIT STATUS" in text
    assert "\\-\\-io\\-size" in shell.page("bench")
    assert ".SS whatif" in shell.page("plan") and "\\-\\-vary" in shell.page("plan")
    assert all(v in shell.page() for v in VERBS)


def importable(verb: str) -> bool:
    import importlib.util

    return importlib.util.find_spec(VERBS[verb][0].split(":")[0]) is not None


@pytest.mark.parametrize("verb", [None, "bench", "files", "plan", "man", "completion"])
def test_man_formats_a_page_without_complaint(verb, tmp_path):
    groff = shutil.which("groff")
    if groff is None:
        pytest.skip("groff isn't installed")
    page = tmp_path / "page.1"
    page.write_text(shell.page(verb))
    done = processes.run([groff, "-man", "-Tutf8", "-ww", page])
    assert done.returncode == 0 and done.stderr == "", done.stderr
    plain = re.sub(r".\x08|\x1b\[[0-9;]*m", "", done.stdout)  # bold is overstruck or escaped
    assert "SYNOPSIS" in plain and "EXIT STATUS" in plain


def test_one_page_may_be_printed_and_an_unknown_verb_is_named():
    assert forebay("man", "bench").stdout.startswith('.TH "FOREBAY-BENCH" "1"')
    done = forebay("man", "banch")
    assert done.returncode == 2 and "bench" in done.stderr


def test_pages_are_written_to_a_folder(tmp_path):
    done = forebay("man", "bench", "--out", str(tmp_path / "man1"))
    assert done.returncode == 0 and (tmp_path / "man1" / "forebay-bench.1").exists()
    taken = tmp_path / "file"
    taken.write_text("")
    done = forebay("man", "bench", "--out", str(taken))
    assert done.returncode == 2 and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("text", "escaped"),
    [("a-b", "a\\-b"), (".dot", "\\&.dot"), ("'q", "\\&'q"), ("back\\slash", "back\\eslash")],
)
def test_what_roff_would_misread_is_escaped(text, escaped):
    assert shell.roff(text) == escaped


def test_a_page_leaves_its_verb_as_it_was():
    """click keeps a command's --help from the first context that asked for it."""
    imports = "from forebay import cli\nfrom forebay.command_line import shell\n"
    script = f"{imports}print(shell.page('gdsio')); cli.main(['gdsio', '-h'])"
    done = processes.run([sys.executable, "-c", script])
    assert done.returncode == 0 and "\\-h, \\-\\-help" in done.stdout, done.stderr
