"""The page of `forebay plan whatif --page`, in a real browser."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from forebay.plan import explore, flow, system
from forebay.plan.planner import published
from report_browser import Browser, executable

browser = pytest.mark.skipif(executable() is None, reason="needs a browser; try: apt-get install chromium")


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Any:
    page = tmp_path_factory.mktemp("plan") / "whatif.html"
    made = system.make({"drive": "D7-PS1010", "workload": "unet3d"}, [])
    page.write_text(explore.page(published(), made, own=False), encoding="utf-8")
    with Browser() as one:
        yield one, page


def slide(window: Browser, name: str, to: int) -> None:
    window.value(f"(() => {{ const e = $('{name}'); e.value = {to}; e.dispatchEvent(new Event('input')); return 0 }})()")


@pytest.mark.promise("PLN-12")
@browser
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_the_page_fits_its_window_and_asks_for_nothing(shown: Any, width: int, dark: bool) -> None:
    window, page = shown
    window.requests.clear()
    window.open(page, width, 844, dark=dark)
    assert window.value("document.documentElement.scrollWidth") <= width
    assert set(window.requests) <= {Path(page).resolve().as_uri(), "data:,"}
    assert not window.console, window.console


@pytest.mark.promise("PLN-12")
@browser
def test_sliders_move_the_answer_and_it_is_the_planners_own(shown: Any) -> None:
    window, page = shown
    window.open(page, 1280, 844)
    slide(window, "size", explore.SIZES.index(1 << 20))
    slide(window, "drives", 1)
    slide(window, "queues", 0)
    expected = published().flow.predict([flow.Load("D7-PS1010", 1024, 24, drives=2)])[0]
    answer = window.value("$('answer').textContent")
    value, low, high = (float(v) for v in re.findall(r"[\d.]+", answer)[:3])
    assert value == pytest.approx(expected.value, abs=0.02)
    assert (low, high) == (pytest.approx(expected.p10, abs=0.02), pytest.approx(expected.p90, abs=0.02))
    assert window.value("$('size-now').textContent") == "1m"
    slide(window, "queues", 1)
    assert "DPU queues" in window.value("$('answer').textContent")
    few = window.value("$('answer').textContent")
    slide(window, "accelerators", 20)
    assert window.value("$('answer').textContent") != few


@pytest.mark.promise("PLN-12")
@browser
def test_measured_points_lie_on_the_curve_of_what_they_measured(shown: Any) -> None:
    window, page = shown
    window.open(page, 1280, 844)
    slide(window, "drives", 0)
    slide(window, "queues", 0)
    local = [m for m in published().flow.measured if m.load.drive == "D7-PS1010" and not m.load.remote]
    assert window.value("document.querySelectorAll('#plan-rate .seen').length") == len(local) > 0
    slide(window, "drives", 2)
    assert window.value("document.querySelectorAll('#plan-rate .seen').length") == 0
    assert window.value("document.querySelectorAll('#plan-rate .band').length") == 1
