"""The page of `forebay plan whatif --page`, in a real browser."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import forebay
import pytest
from forebay.plan import answer, catalogue, decide, explore, system
from forebay.plan.planner import published
from made_once import made_once, of_all_workers
from properties import ALL
from report_browser import Browser, executable

browser = pytest.mark.skipif(executable() is None, reason="needs a browser; try: apt-get install chromium")


# A page of all drives, models, sizes and queues takes a minute of an unoptimised build's time, nearly all of it in the planner.
DRIVES = ("D7-PS1010", "D5-P5336", "D7-P5520")


@pytest.fixture(scope="module", autouse=True)
def of_few_sizes() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if not ALL and "PICTURES" not in os.environ:
            patch.setattr(explore, "SIZES", (65536, 1 << 20, 4 << 20))
            patch.setattr(explore, "QUEUES", (0, 4))
        yield


def _write(page: Path) -> None:
    made = system.make({"drive": "D7-PS1010", "workload": "unet3d"}, [])
    page.write_text(explore.page(published(), made, own=False), encoding="utf-8")


def _write_few(page: Path) -> None:
    few = {name: drive for name, drive in catalogue.drives().items() if drive.name in DRIVES}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(explore, "MLPERF", ("unet3d",))
        patch.setattr(explore, "MODELS", ("bert",))
        patch.setattr(explore, "catalogue", SimpleNamespace(drives=lambda: few))
        _write(page)


@pytest.fixture(scope="module")
def shown(window: Browser, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return window, made_once(of_all_workers(tmp_path_factory) / "plan-page" / "whatif.html", _write_few)


def slide(window: Browser, name: str, to: int) -> None:
    window.value(f"(() => {{ const e = $('{name}'); e.value = {to}; e.dispatchEvent(new Event('input')); return 0 }})()")


@pytest.mark.promise("PLN-12")
@browser
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_the_page_fits_its_window_and_asks_for_nothing(shown: Any, width: int, dark: bool) -> None:
    window, page = shown
    window.requests.clear()
    window.console.clear()
    window.open(page, width, 844, dark=dark)
    assert window.value("document.documentElement.scrollWidth") <= width
    assert set(window.requests) <= {Path(page).resolve().as_uri(), "data:,"}
    assert not window.console, window.console


@pytest.mark.long
@pytest.mark.promise("PLN-12")
@browser
def test_a_page_of_all_drives_and_models_offers_them(window: Browser, tmp_path: Path) -> None:
    _write(tmp_path / "whole.html")
    window.console.clear()
    window.open(tmp_path / "whole.html", 1280, 844)
    offered = [option.strip() for option in window.value("[...$('drive').options].map(o => o.text).join('|')").split("|")]
    assert set(offered) == {drive.name for drive in catalogue.drives().values()}
    assert window.value("$('workload').options.length") == 1 + len((*explore.MLPERF, *explore.MODELS))
    assert not window.console, window.console


def figures(text: str) -> list[float]:
    """Value and ends of the plain reads that the page tells."""
    return [float(v) for v in re.search(r"([\d.]+) GiB/s of plain reads \(([\d.]+) to ([\d.]+)\)", text).groups()]


@pytest.mark.promise("PLN-12", "PLN-21")
@browser
def test_every_control_moves_the_answer_and_it_is_the_commands(shown: Any) -> None:
    window, page = shown
    window.open(page, 1280, 844)
    names = [option.strip() for option in window.value("[...$('drive').options].map(o => o.text).join('|')").split("|")]
    for settings in (
        {"drive": "D7-PS1010", "drives": 2},
        {"drive": "D5-P5336", "drives": 8, "hosts": 2, "path": "cpu", "io_size": 65536},
        {"drive": "D7-P5520", "drives": 4, "hosts": 4, "location": "remote", "queues": 4, "workers": 32 * 4},
    ):
        slide(window, "drive", names.index(settings["drive"]))
        slide(window, "drives", explore.DRIVES.index(settings["drives"]))
        slide(window, "hosts", explore.HOSTS.index(settings.get("hosts", 1)))
        slide(window, "queues", explore.QUEUES.index(settings.get("queues", 0)))
        slide(window, "path", explore.PATHS.index(settings.get("path", "gds")))
        slide(window, "size", explore.SIZES.index(settings.get("io_size", 1 << 20)))
        slide(window, "requests", 3 if "workers" in settings else 0)
        reported = window.value("$('answer').textContent")
        row = answer.answer(published(), system.make(settings, []))
        expected = [row[f"throughput_gib_s{end}"] for end in ("", "_p10", "_p90")]
        assert figures(reported) == pytest.approx(expected, abs=0.006), settings
        row = answer.answer(published(), system.make({**settings, "workload": "unet3d"}, []))
        most = [int(row[f"accelerators_max{end}"]) for end in ("", "_p10", "_p90")]
        assert f"at most {most[0]} H100s ({most[1]} to {most[2]}) pass unet3d" in reported, settings
        assert decide.words(row["bottleneck"]) in reported, settings
    slide(window, "workload", 0)
    assert "H100s" not in window.value("$('answer').textContent")


@pytest.mark.promise("PLN-12", "PLN-21")
@pytest.mark.parametrize(
    "settings",
    [
        {"cores": 1, "drives": 6, "hosts": 3, "path": "cpu"},
        {"location": "remote", "queues": 7, "io_size": 2 << 20, "drives": 3},
        {"drives": 4, "pcie": [{"name": "s0", "gen": 4, "lanes": 8, "drives": 4}]},
    ],
)
def test_controls_begin_at_the_pages_own_system_and_say_what_the_command_says(settings: dict[str, Any]) -> None:
    """Whatever its numbers are; by path where few cores, and with a PCIe tree."""
    made = system.make({"drive": "D7-PS1010", "workload": "unet3d", **settings}, [])
    numbers = explore.of_numbers(made, (1,))
    choices = explore.Choices([made.drive], explore.PATHS, [explore.AUTO], ["io", "unet3d"], **numbers)
    found = explore.document(published(), made, False, choices)
    _, _, count, hosts, queues, path, size = found["first"]
    place = (choices.counts[count], choices.hosts[hosts], choices.queues[queues])
    assert place == (made.drives, made.hosts, made.queues or 0) and choices.sizes[size] == made.io_size
    assert all(n >= sum(s.drives for s in made.pcie) * h for n, h, _ in choices.places)
    row = answer.answer(published(), made)
    of_unet3d, at = found["trained"][0], choices.places.index(place)
    ends = ("", "_p10", "_p90")
    at_path = (path if of_unet3d["paths"] > 1 else 0) * len(choices.places) + at
    assert of_unet3d["greatest"][at_path][:3] == [row[f"accelerators_max{end}"] for end in ends]
    row = answer.answer(published(), system.make({"drive": "D7-PS1010", **settings}, []))
    cells = found["rate"][path * len(choices.places) + at][4 * size :][:3]
    assert cells == [round(100 * row[f"throughput_gib_s{end}"]) for end in ends]


@pytest.mark.promise("PLN-22")
@browser
def test_the_page_says_its_assumptions_version_and_date(shown: Any) -> None:
    window, page = shown
    window.open(page, 1280, 844)
    head = window.value("document.querySelector('header').textContent")
    row = answer.answer(published(), system.make({"drive": "D7-PS1010", "workload": "unet3d"}, []))
    assert row["decision"] in head and all(a["text"] in head for a in row["assumed"])
    assert forebay.__version__ in head and re.search(r"20\d\d-\d\d-\d\d", head) and "--hosts" in head


@pytest.mark.promise("PLN-12")
@browser
def test_measured_points_lie_on_the_curve_of_what_they_measured(shown: Any) -> None:
    window, page = shown
    window.open(page, 1280, 844)
    slide(window, "drives", 0)
    slide(window, "queues", 0)
    rings = "document.querySelectorAll('#plan-rate .seen').length"
    # Of 4, 24 or 32 requests in flight, which the published runs had, and not of another curve.
    assert window.value(rings) == 0
    slide(window, "requests", 1)
    local = [m for m in published().flow.measured if m.load.drive == "D7-PS1010" and not m.load.remote and m.load.path == "gds"]
    assert window.value(rings) == len(local) > 0
    inside = """[...document.querySelectorAll('#plan-rate .seen')].every(r => {
      const p = document.querySelector('#plan-rate .band').points, x = +r.getAttribute('cx'), y = +r.getAttribute('cy');
      const ys = [...p].filter(q => Math.abs(q.x - x) < 0.5).map(q => q.y);
      return ys.length < 2 || (y > Math.min(...ys) - 6 && y < Math.max(...ys) + 6);
    })"""
    assert window.value(inside)
    slide(window, "drives", 2)
    assert window.value(rings) == 0
    assert window.value("document.querySelectorAll('#plan-rate .band').length") == 1


@pytest.mark.promise("PLN-12")
@browser
def test_the_picture_in_the_documentation_is_of_this_page(shown: Any, tmp_path: Path) -> None:
    """`PICTURES=docs/images` keeps it."""
    window, page = shown
    window.open(page, 1120, 1400)
    slide(window, "drives", explore.DRIVES.index(4))
    folder = Path(os.environ.get("PICTURES", tmp_path))
    window.full_screenshot(folder / "plan.png", 1400)
    drawn, kept = ((where / "plan.png").read_bytes() for where in (folder, Path(__file__).parent.parent / "docs/images"))
    assert struct.unpack(">II", drawn[16:24]) == struct.unpack(">II", kept[16:24])
