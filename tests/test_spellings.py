"""What hands know from fio, gdsio and elbencho: understood as ours, or answered with it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import click
import processes
import pytest
from forebay import run
from forebay.cli import forebay
from forebay.command_line import answering
from forebay.command_line.spellings import ANSWERS, SAME
from forebay.errors import RequestError
from forebay.fio import keys as fio_keys
from forebay.flags import fields, job_from_flags, parse_settings
from properties import parametrized

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/bench.md").read_text()
VALUES = {
    "io-size": "4k", "depth": "3", "workers": "2", "duration": "5", "op": "randread", "engine": "inline", "file-size": "1m",
    "files": "2", "start": "4k", "align": "4k", "read-pct": "70", "warmup": "1", "passes": "2", "seed": "9",
    "distribution": "zipf:1.1", "rate-iops": "100", "cpus": "0", "gpu": "0",
}  # fmt: skip


def job_of(*arguments: str) -> dict:
    """What `forebay bench nil: ARGUMENTS` would run."""
    from forebay.bench import command

    context = command.make_context("bench", ["nil:", *arguments])
    return job_from_flags(("nil:",), context.params)


@pytest.mark.promise("CMD-20")
@pytest.mark.parametrize("flag", SAME)
def test_each_spelling_makes_the_job_that_our_flag_makes(flag: str) -> None:
    ours = job_of(f"--{flag}", VALUES[flag])
    assert len(ours) > 1
    for spelling in SAME[flag]:
        assert job_of(spelling, VALUES[flag]) == ours, spelling
        if spelling.startswith("--"):
            assert job_of(f"{spelling}={VALUES[flag]}") == ours
            assert {"sources": ["nil:"], **parse_settings(f"{spelling[2:]}={VALUES[flag]}")} == ours


@pytest.mark.promise("CMD-20")
def test_two_names_of_one_flag_agree_or_are_refused() -> None:
    assert job_of("--bs", "4k", "--io-size", "4096")["io_bytes"] == 4096
    assert job_of("--depth", "4", "--depth", "8")["depth"] == 8, "the last of one name counts"
    for words in (("--bs", "4k", "--io-size", "8k"), ("--iodepth", "4", "--depth", "8"), ("-t", "1", "--numjobs=2")):
        with pytest.raises(RequestError, match="two names of one flag") as refused:
            job_of(*words)
        asked = refused.value.asked.split()
        assert asked[0] == words[0] and asked[2] == words[2].partition("=")[0]
        assert job_of(*refused.value.next.split())


def test_no_spelling_is_a_flag_of_ours_or_stands_twice() -> None:
    every = [s for spellings in SAME.values() for s in spellings]
    assert len(every) == len(set(every)) and not set(every) & set(ANSWERS)
    assert not {f"--{f.flag}" for f in fields()} & {*every, *ANSWERS}


def answer_of(words: str) -> str:
    """What stands behind `try:` where `forebay WORDS` is refused."""
    with pytest.raises(RequestError) as refused:
        forebay.main(words.split(), prog_name="forebay", standalone_mode=False)
    assert refused.value.exit_code == 2 and refused.value.asked == re.split("[ =]", words)[-1 - words.count("=")]
    return refused.value.next


@pytest.mark.promise("CMD-20")
@pytest.mark.parametrize("verb", ["bench", "compare", "tune"])
@pytest.mark.parametrize("flag", ["--filename=x", "-x", "--group_reporting", "--hosts=a", "-T"])
def test_a_flag_without_a_counterpart_is_answered(verb: str, flag: str) -> None:
    name = flag.partition("=")[0]
    expected = ANSWERS[name].replace("forebay bench FILE", f"forebay {verb} FILE")
    assert answer_of(f"{verb} nil: {flag}") == expected


@pytest.mark.promise("CMD-20")
@pytest.mark.parametrize(
    ("words", "next"),
    [
        ("files --qd", "--workers N, each of which has one file at a time"),
        ("files -b", "--file-size SIZE: a file is written and read from its first byte to its last"),
        ("files --filename=x", "the file or folder, without a flag: forebay files DIR"),
        ("files --gds", "forebay bench SOURCE --path gds"),
        ("sweep --runtime", "--set duration=SECONDS"),
        ("sweep --rw", "--set op=OP"),
        ("sweep --bs=4k", "--set io-size=SIZE"),
        ("sweep -t", "--set workers=N"),
        ("sweep --depth", "--set depth=N"),
        ("sweep --write", "--set op=write --set create=yes"),
        ("sweep --time_based", "leave it out: duration ends a run by the clock, passes once the data was covered"),
        ("sweep --stonewall", "in forebay bench, a job file with sections: --fio FILE"),
        ("sweep -d", "--set gpu=LIST (gdsio's -d)"),
        ("sweep --status-interval", "--metrics 127.0.0.1:9400"),
        ("gdsio --qd", "-w N: a thread has one I/O in flight; with -x 6 and 7 also -B N"),
        ("gdsio --runtime", "-T SECONDS"),
        ("gdsio --gds", "-x 0-7"),
        ("gdsio --jsonfile", "--record FILE for the record, --json for stdout"),
        ("files --fsync", "--sync"),
        ("compare nil: -i", "--io-size (gdsio's -i), or --repeat (elbencho's)"),
        ("gdsio -r", "-I 0-3 (read, write, randread, randwrite)"),
        ("emulate run --qd", "--depth N"),
        ("emulate search -t", "--workers N"),
        ("emulate run --runtime", "--epochs N, or --steps N"),
        ("emulate checkpoint --iodepth", "--depth N"),
        ("emulate checkpoint --mmap", "--engine auto, uring, pread or inline"),
        ("emulate datagen --qd", "--workers N, each of which has one file at a time"),
        ("emulate check --qd", "forebay emulate run --depth N"),
        ("compare --exitall", "in forebay bench, a job file of fio's, which may have it: --fio FILE"),
        ("checksum --qd", "--workers N, each of which reads one piece of a file at a time"),
        ("checksum --gds", "--path auto, bounce or host"),
        ("serve --numjobs", "--threads N"),
        ("plan whatif --bs", "--io-size SIZE"),
        ("doctor --qd", "forebay bench SOURCE --depth N"),
    ],
)  # fmt: skip
def test_each_verb_answers_with_its_own_flag_of_that_meaning(words: str, next: str) -> None:
    assert answer_of(words) == next


def verbs(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from verbs(command, (*path, name))
        else:
            yield (*path, name), command


@pytest.mark.long
@pytest.mark.promise("CMD-20")
def test_no_verb_answers_with_a_flag_that_neither_it_nor_a_named_command_has() -> None:
    theirs = {*(s for spellings in SAME.values() for s in spellings), *ANSWERS, *(f"--{f.flag}" for f in fields())}
    unanswered, answered = [], 0
    for path, command in verbs(forebay):
        own = {name for p in command.params if isinstance(p, click.Option) for name in (*p.opts, *getattr(p, "spellings", ()))}
        for flag in theirs - own - {"--direct", "--buffered"}:
            context = click.Context(command, info_name=f"forebay {' '.join(path)}")
            said = answering.answer(click.NoSuchOption(flag, ctx=context))
            if said is None:
                unanswered += [f"{path} {flag}"] if flag.startswith("--") else []
                continue
            answered += 1
            elsewhere = said.found.endswith("no such setting")
            here = re.sub(r"(forebay [a-z]+|mpirun )[^;,]*|\(.*?\)", "", said.next)
            named = set(re.findall(r"(?<![\w'-])--?[a-zA-Z][a-z-]*", here))
            if elsewhere:
                assert said.next.startswith(("forebay ", "in forebay bench, ", "mpirun ")), said
            else:
                assert named <= own, f"forebay {' '.join(path)} {flag}: {said.next}"
    assert answered > 1000 and not unanswered, unanswered


@pytest.mark.promise("CMD-20")
@pytest.mark.parametrize(
    ("words", "next"),
    [
        ("bench nil: -bs=4k", "--io-size SIZE"),
        ("bench nil: -q -bs", "--io-size SIZE"),
        ("bench nil: -rw=read", "--op OP"),
        ("bench nil: -iodepth=8", "--depth N"),
        ("bench nil: -size=1m", "--file-size SIZE"),
        ("bench nil: -time_based", ANSWERS["--time_based"]),
        ("bench nil: -filename=x", ANSWERS["--filename"]),
        ("bench nil: -bssplit=4k/60", ANSWERS["--bssplit"]),
        ("bench nil: -direct=1", "--direct (fio's 1), or --buffered (fio's 0)"),
        # -o would save the record to a file called ffset=4k.
        ("bench nil: -offset=4k", "--start SIZE"),
        ("bench nil: -depth=4", "--depth N"),
        ("compare nil: -numjobs=2", "--workers N"),
        ("files /data -bs=4k", "--file-size SIZE: a file is written and read from its first byte to its last"),
        ("sweep -rw=read", "--set op=OP"),
        ("emulate run -iodepth=8", "--depth N"),
    ],
)
def test_a_flag_behind_one_dash_is_answered(words: str, next: str) -> None:
    assert answer_of(words) == next


@pytest.mark.parametrize("words", ["-b 4k -s1m -t2 -q", "-b64k", "--label -bs=4k", "--label -name --bs 4k", "-osaved.jsonl"])
def test_letters_with_their_values_are_still_read(words: str) -> None:
    done = processes.run([*processes.FOREBAY, "bench", "nil:?size=1m", "--dry-run", *words.split()])
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("words", ["doctor -t", "files --typo", "emulate --qd"])
def test_what_may_mean_anything_there_is_left_to_the_usual_words(words: str) -> None:
    with pytest.raises(click.NoSuchOption):
        forebay.main(words.split(), prog_name="forebay", standalone_mode=False)


@parametrized("table", [fio_keys.DONE, fio_keys.HOLDS, fio_keys.REPORTED, fio_keys.REFUSED, fio_keys.ALIASES], kept=(0, 3))
def test_no_key_of_fio_is_unknown_as_a_flag(table: dict[str, str]) -> None:
    from forebay.bench import command

    for key in table:
        try:
            command.make_context("bench", ["nil:", f"--{key}=1"])
        except click.NoSuchOption as error:  # whose suggestion is whatever is spelled alike
            assert answering.answer(error), key
        except click.BadOptionUsage:  # one that is a switch of ours
            pass


@pytest.mark.parametrize(
    ("flag", "next"),
    [
        ("--prio", "--priority"),
        ("--mem=shmhuge", "--pages"),
        ("--lockmem=1g", "leave it out: memory can't be reserved"),
        ("--hugepage-size=2m", "leave it out: the machine's huge page size is used"),
        ("--write_bw_log=x", "leave it out: forebay fio writes them; the record holds the time series"),
        ("--exitall", "a job file of fio's, which may have it: --fio FILE"),
        ("--lat", "leave it out: every record has latencies and their percentiles"),
        ("--s3endpoints=x", "a file, a device, or a remote namespace: object stores are out of scope"),
    ],
)
def test_what_only_others_have_is_answered_with_the_reason(flag: str, next: str) -> None:
    assert answer_of(f"bench nil: {flag}") == next


@pytest.mark.parametrize(("flag", "next"), [("--direct=1", "--direct (fio's 1)"), ("--verify=crc32c", "--verify-fio crc32c")])
def test_a_value_for_a_switch_is_answered(flag: str, next: str) -> None:
    with pytest.raises(RequestError) as refused:
        forebay.main(["bench", "nil:", flag], prog_name="forebay", standalone_mode=False)
    assert refused.value.asked == flag.partition("=")[0] + "=" and next in refused.value.next


@pytest.mark.promise("CMD-20")
@pytest.mark.parametrize(
    ("words", "next"),
    [
        (("--rw", "randrw"), "--op randread --read-pct 50"),
        (("--ioengine", "libaio"), "--engine uring"),
        (("--ioengine=libcufile",), "--path gds"),
    ],
)
def test_values_that_mean_something_else_here_are_answered(words: tuple[str, ...], next: str) -> None:
    done = processes.run([*processes.FOREBAY, "bench", "nil:", "--dry-run", *words])
    assert done.returncode == 2 and next in done.stderr and "Traceback" not in done.stderr


def test_engines_have_fios_names_too() -> None:
    assert [job_of("--ioengine", e)["engine"] for e in ("io_uring", "psync", "mmap", "posixaio")] == [
        "uring", "inline", "map", "pread",
    ]  # fmt: skip


@pytest.mark.promise("CMD-20")
def test_a_typed_line_runs_and_help_keeps_to_one_name() -> None:
    line = ("nil:?size=64m", "--rw=randread", "--bs=64k", "--iodepth=4", "-t", "2", "--loops=1", "--json")
    done = processes.run([*processes.FOREBAY, "bench", *line])
    assert done.returncode == 0, done.stderr
    job = json.loads(done.stdout)["job"]
    assert (job["op"], job["io_bytes"], job["depth"], job["workers"]) == ("randread", 64 << 10, 4, 2)
    help = processes.run([*processes.FOREBAY, "bench", "--help"]).stdout
    assert "--io-size" in help and "--iodepth" not in help and "--bs" not in help


def test_files_knows_them_too() -> None:
    from forebay.files import command

    params = command.make_context("files", ["/data", "-t", "2", "-s", "4k", "--nrfiles", "10"]).params
    assert (params["workers"], params["file_size"], params["files"]) == ("2", "4k", "10")


def test_the_page_lists_them() -> None:
    section = re.search(r"^## Flags of fio, gdsio and elbencho\n(.*?)(?=^## )", PAGE, re.S | re.M)
    assert section
    rows = {r.split("|")[1].strip().strip("`"): r for r in section[1].splitlines() if r.startswith("| `--")}
    assert set(rows) == {f"--{flag}" for flag in SAME}
    for flag, spellings in SAME.items():
        assert re.findall(r"`(-[^`]*)`", rows[f"--{flag}"].split("|")[2]) == list(spellings)


# Whole commands, and flags of others.
NO_FIELDS = r'forebay [a-z]+ [^;,"]*|nvme_[a-z_]+ --[^"]*|container with --cpus|docker: --cpus'


@pytest.mark.parametrize("crate", ["engine", "model"])
def test_the_engine_names_fields_by_their_keys_and_no_flags(crate: str) -> None:
    """How a field is typed is for the face to say that was asked for it: texts name it as ‹io_bytes›."""
    flag = re.compile(rf"{NO_FIELDS}|(--(?:{'|'.join(re.escape(f.flag) for f in fields())})(?![\w-]))")
    keys = {f.key for f in fields()}
    found = []
    for file in (ROOT / "crates" / crate / "src").rglob("*.rs"):
        if "tests" in file.as_posix() or file.name in ("fields.rs", "wording.rs"):
            continue
        code = re.sub(r"//.*", "", file.read_text().split("#[cfg(test)]")[0])
        found += [f"{file.name}: {named}" for named in flag.findall(code) if named]
        found += [f"{file.name}: ‹{key}› is no field" for key in re.findall("‹([^›{]+)›", code) if key not in keys]
    assert not found, found


def test_a_text_with_a_field_leaves_the_engine_as_a_flag() -> None:
    with pytest.raises(RequestError) as refused:
        run.check({"sources": ["nil:"], "depth": 0})
    assert (refused.value.asked, refused.value.next) == ("--depth 0", "--depth 32")
    assert refused.value.marked and refused.value.marked[::2] == ("‹depth› 0", "‹depth› 32")
