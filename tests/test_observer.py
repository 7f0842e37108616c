"""What an observer of a run may do: watch it, interrupt it, and be wrong."""

from __future__ import annotations

import pytest

pytest.importorskip("forebay._core")

from forebay.run import run  # noqa: E402

JOB = {"sources": ["nil:"], "duration_s": 600, "interval_ms": 20}


def test_an_observers_own_error_is_not_swallowed():
    def observer(progress):
        raise ValueError("the observer's own")

    with pytest.raises(ValueError, match="the observer's own") as caught:
        run(JOB, observer=observer)
    assert '"interrupted":true' in caught.value.record


def test_an_observer_may_interrupt():
    def observer(progress):
        raise KeyboardInterrupt

    assert run(JOB, observer=observer)["result"]["interrupted"]
