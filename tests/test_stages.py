"""Progress of a command that makes many runs: a live bar on a terminal only, and lines that stay."""

from __future__ import annotations

import io

import pytest
from forebay.stages import Stages, format_duration


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


MEASURING = {"phase": "measure", "t_s": 1.0, "duration_s": 2.0, "gib_s": 3.25, "iops": 3328.0}


def test_without_a_terminal_only_the_lines_that_stay_are_written() -> None:
    stream = io.StringIO()
    with Stages(stream) as stages:
        stages.begin("[1/2] depth=1")
        stages.observe(MEASURING)
        stages.say("[1/2] depth=1  3.25 GiB/s")
    assert stream.getvalue() == "[1/2] depth=1  3.25 GiB/s\n"


def test_on_a_terminal_the_run_in_progress_is_shown_and_taken_down() -> None:
    stream = Terminal()
    with pytest.raises(KeyboardInterrupt), Stages(stream) as stages:
        stages.begin("[/1] path=[red]")
        stages.observe({"phase": "prepare", "message": "writing files"})
        stages.observe({**MEASURING, "duration_s": None})
        stages.observe(MEASURING)
        stages._bar.refresh()
        stages.say("kept [/b]")
        raise KeyboardInterrupt
    shown = stream.getvalue()
    assert "3.25 GiB/s" in shown and "[/1] path=[red]" in shown and "kept [/b]" in shown
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l"), "the cursor is back"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "0 s"), (59, "59 s"), (125, "2 min 05 s"), (11_400, "3 h 10 min")]
)
def test_durations_read_well(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
