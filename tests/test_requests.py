"""Whatever is typed is understood or refused: an error that names it, never a traceback."""

from __future__ import annotations

import contextlib
import json
import math
from pathlib import Path

import pytest
from fake_machine import typed
from forebay import numbers
from forebay import run as engine
from forebay.errors import RequestError
from forebay.flags import fields, parse_settings, set_field
from forebay.units import format_bytes, parse_bytes, parse_gib_s, parse_percent, parse_seconds
from hypothesis import example, given
from hypothesis import strategies as st
from properties import any_text

NUMBERS = st.one_of(st.text("0123456789.eE+-kKmMgGtTpPiIbB% naxif_٣½²", max_size=24), any_text(max_size=12))
VALUES = st.one_of(
    NUMBERS, st.integers(), st.floats(), st.booleans(), st.none(), st.lists(NUMBERS, max_size=3)
)


@pytest.mark.promise("CMD-8")
@given(NUMBERS)
@example("9" * 5000)
@example("9" * 400 + ".5k")
@example("²k")
@example("8p")
@example("8192p")
def test_a_size_is_read_or_refused(text: str) -> None:
    try:
        value = parse_bytes(text, "--io-size")
    except RequestError as error:
        assert error.exit_code == 2 and error.next
    else:
        assert 0 <= value < 1 << 63


@pytest.mark.promise("CMD-8")
@pytest.mark.parametrize(
    "words",
    [
        ("bench", "nil:", "-o", ""), ("sweep", "inference-drives", "--models", "toy", "-o", ""), ("train", "toy", "--dir", ""),
        ("train", "toy", "--supply="), ("infer", "toy", "--dir", ""), ("plan", "run", "--workload", ""),
        ("emulate", "run", "--data", ""), ("sweep", "nil:", "--set", ""),
    ],
)  # fmt: skip
def test_a_flag_with_an_empty_value_is_refused(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """It is that of a shell's variable which isn't set, and not the default, nor the current folder."""
    code, _, error = typed(capsys, *words)
    flag = next(word for word in reversed(words) if word.startswith("-")).rstrip("=")
    assert code == 2 and f"forebay: {flag} '': is empty" in error and "try: a value" in error


def test_what_an_empty_value_says_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, error = typed(capsys, "compare", "--a", "", "--b", "")
    assert code == 2 and "SOURCE" in error


@pytest.mark.promise("CMD-8")
@given(st.integers(0, (1 << 63) - 1))
def test_sizes_round_trip(value: int) -> None:
    assert parse_bytes(format_bytes(value)) == value


SIZE = r"[0-9]{0,4}\.?[0-9]{0,3}[kmgtpxKMGTP]?(i?[bB]){0,2}"


@given(st.from_regex(SIZE, fullmatch=True, alphabet="0123456789.kmgtpxKMGTPibB"))
@example("8191.5p")
@example("64kibib")
@example("1.k")
def test_the_engine_reads_sizes_alike(text: str) -> None:
    try:
        here = parse_bytes(text)
    except RequestError:
        here = None
    try:
        there = engine.plan({"sources": [f"nil:?size={text}"]})["targets"][0]["bytes"]
    except RequestError:
        there = None
    assert (here or None) == there, "a size of 0 is refused there for being none"


def test_numbers_read_as_in_the_services() -> None:
    """`forebayd` has its own, and is held to the same table."""
    table = json.loads((Path(__file__).parent / "numbers.json").read_text())
    said = {"bytes": numbers.bytes_, "significant": numbers.significant, "seconds": numbers.seconds}
    said["count"] = lambda value: numbers.count(value, "host")
    for kind, show in said.items():
        assert [show(value) for value, _ in table[kind]] == [words for _, words in table[kind]]
    for text, value in table["times"]:
        try:
            read = parse_seconds(text)
        except RequestError:
            read = None
        assert read == value, text


# What is typed → whether it is a time, a size, a rate and a percentage.
SPELLINGS = {
    "10": "tsrp", " 10 ": "tsrp", "0.5": "trp", ".5": "trp", "5.": "tsrp", ".5s": "t", "5.s": "t", "1.5m": "ts",
    ".5k": "s", "5.k": "s", ".k": "", "1.5GiB": "s",
    "1e3": "rp", "1E3": "rp", "1e-3": "rp", "1e3s": "", "500ms": "t", "10S": "", "10sec": "", "1h": "t", "2M": "s",
    "10%": "p", ".5%": "p",
    "1_000": "", "٣": "", "²": "", "0x10": "", "1,5": "", "inf": "", "nan": "", "": "", ".": "", ".s": "", "1 000": "", "--1": "",
}  # fmt: skip


@pytest.mark.parametrize("text", SPELLINGS)
def test_each_spelling_of_a_number_is_taken_or_refused_by_every_parser(text: str) -> None:
    taken = ""
    for letter, parse in (("t", parse_seconds), ("s", parse_bytes), ("r", parse_gib_s), ("p", parse_percent)):
        try:
            assert math.isfinite(parse(text))
            taken += letter
        except RequestError as error:
            assert error.exit_code == 2 and error.next
    assert taken == SPELLINGS[text]


def test_a_time_with_an_exponent_is_answered_with_the_plain_number() -> None:
    with pytest.raises(RequestError) as refused:
        parse_seconds("1e3", "--duration")
    assert refused.value.next == "1000" and parse_seconds(refused.value.next) == 1000


@given(NUMBERS)
@example("nan")
@example("inf%")
def test_a_time_or_percentage_is_a_number_or_refused(text: str) -> None:
    for parse in (parse_seconds, parse_percent):
        try:
            assert math.isfinite(parse(text))
        except RequestError as error:
            assert error.next


@pytest.mark.promise("CMD-9")
@given(st.sampled_from([f.flag for f in fields()] + [f.key for f in fields()]), VALUES)
@example("read-pct", "nan")
@example("read-pct", "1e999")
@example("workers", "9" * 5000)
@example("io-size", "4k:8k:1k:2k")
@example("gpu", "0,x")
@example("rate", "nan")
def test_any_setting_is_settled_or_refused(field: str, value: object) -> None:
    job: dict[str, object] = {}
    try:
        set_field(job, field, value)
    except RequestError as error:
        assert str(error) and not job
    else:
        assert job and not any(isinstance(v, float) and not math.isfinite(v) for v in job.values())


@pytest.mark.promise("CMD-9")
@given(st.text("abdehpt=- 0123kmxyz-_", max_size=60))
def test_settings_text_is_read_or_refused(text: str) -> None:
    try:
        job = parse_settings(text)
    except RequestError as error:
        assert str(error)
    else:
        assert set(job) <= {f.key for f in fields()} | {"sources", "io_bytes_max", "io_bytes_step"}


@pytest.mark.promise("CMD-9")
@pytest.mark.parametrize("field", [f.flag for f in fields() if f.bound])
def test_the_value_that_is_suggested_is_taken(field: str) -> None:
    [flag] = [f for f in fields() if f.flag == field]
    for wrong in ("x", "1e9", "-1", "99999999999999999999"):
        with contextlib.suppress(RequestError):
            flag.parse(wrong, f"--{field}")
            continue
        with pytest.raises(RequestError) as refused:
            flag.parse(wrong, f"--{field}")
        job = {"sources": ["nil:"]}
        name, _, value = refused.value.next.partition(" ")
        assert name == f"--{field}", refused.value
        set_field(job, field, value)
        try:
            engine.check(job)
        except RequestError as error:  # another field may be needed beside it
            assert "must be" not in error.found or field not in error.asked, error


@pytest.mark.parametrize("text", ["4096.5", "0.5", "4096.5b"])
def test_there_are_no_parts_of_a_byte(text: str) -> None:
    with pytest.raises(RequestError, match="part of a byte"):
        parse_bytes(text)
    with pytest.raises(RequestError, match="part of a byte"):
        engine.plan({"sources": [f"nil:?size={text}"]})
    assert (parse_bytes("4096.0"), parse_bytes("1.5k")) == (4096, 1536)


def test_a_list_that_names_nothing_is_refused() -> None:
    for text in (",", "", ",,"):
        with pytest.raises(RequestError, match="names none"):
            set_field({}, "gpu", text)


def test_a_field_that_is_not_one_names_those_that_are() -> None:
    with pytest.raises(RequestError) as caught:
        set_field({}, "dept", "3")
    assert "dept" in str(caught.value) and "depth" in str(caught.value)
