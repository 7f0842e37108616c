"""The report as a reader meets it: in a real browser, on a desktop, a phone, in the dark and on paper."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import processes
import pytest
from properties import parametrized
from report_browser import Browser, executable
from report_support import Whole, charts

browser = pytest.mark.skipif(executable() is None, reason="needs a browser; try: apt-get install chromium")


@pytest.fixture(scope="module")
def shown(window: Browser, whole: Whole, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return window, whole.page, tmp_path_factory.mktemp("page")


@pytest.mark.promise("REP-1", "REP-2")
@charts
@browser
@pytest.mark.parametrize(
    ("width", "dark"), [(1280, False), (320, False), *(pytest.param(390, dark, marks=pytest.mark.long) for dark in (False, True))]
)
def test_the_page_fits_its_window_and_asks_for_nothing(shown: Any, width: int, dark: bool) -> None:
    window, page, _ = shown
    window.requests.clear()
    window.console.clear()
    window.open(page, width, 844, dark=dark)
    assert window.value("document.documentElement.scrollWidth") <= width
    assert not window.value(SCROLLS_UNSAID)
    assert set(window.requests) <= {page.resolve().as_uri(), "data:,"}
    assert not window.console, window.console
    background = window.value("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", background)[:3])) < 128) == dark


SCROLLS_UNSAID = """[...document.querySelectorAll('.scroll')].filter(s => {
  const hint = s.nextElementSibling;
  const said = hint && hint.classList.contains('sideways') && getComputedStyle(hint).display != 'none';
  return s.scrollWidth > s.clientWidth + 1 && !said }).map(s => s.querySelector('table').id)"""
SIZES_OF_CHARTS = """[...document.querySelectorAll('figure svg')].map(s => {
  const r = s.getBoundingClientRect();
  return [s.parentElement.id, r.width, r.height, s.querySelectorAll('path, rect, line').length] })"""
TEXT_HEIGHT = """Math.min(...[...document.querySelectorAll('figure text')]
  .map(t => t.getBoundingClientRect().height).filter(h => h))"""
HANDLERS = """[...document.querySelectorAll('*')]
  .filter(e => [...e.attributes].some(a => a.name.startsWith('on'))).length"""
OVER = """[...document.querySelectorAll('table, figure svg, pre')]
  .filter(e => e.getBoundingClientRect().right > innerWidth + 1).map(e => e.id || e.parentElement.id)"""


@pytest.mark.promise("REP-1")
@charts
@browser
def test_charts_are_drawn_and_nothing_in_them_is_cut(shown: Any) -> None:
    window, page, folder = shown
    for width in (1280, 390):
        window.open(page, width, 844)
        sizes = window.value(SIZES_OF_CHARTS)
        assert len(sizes) > 15
        for name, wide, high, marks in sizes:
            assert wide > 250 and high > 60 and marks > 4, (name, wide, high, marks)
        cut = window.value(
            "[...document.querySelectorAll('figure text')].filter(t => { const r = t.getBoundingClientRect();"
            f" return r.width && (r.left < 0 || r.right > {width}); }}).map(t => t.textContent)"
        )
        assert not cut
        small = window.value(TEXT_HEIGHT)
        assert small >= 9, "text in a chart must stay readable"


@charts
@browser
def test_a_browser_finds_no_script_and_no_foreign_element(shown: Any) -> None:
    window, page, _ = shown
    window.open(page)
    assert (
        window.value(
            "document.querySelectorAll('script, img, iframe, object, embed, foreignObject, use').length"
        )
        == 0
    )
    assert window.value(HANDLERS) == 0
    assert window.value(
        "[...document.querySelectorAll('table')].every(t => t.caption && t.caption.textContent.trim())"
    )
    heads = window.value("[...document.querySelectorAll('h1,h2,h3,h4')].map(h => +h.tagName[1])")
    assert (
        heads[0] == 1
        and heads.count(1) == 1
        and all(b - a <= 1 for a, b in zip(heads, heads[1:], strict=False))
    )


CONTRAST = """(() => {
  const linear = x => x <= .03928 ? x / 12.92 : ((x + .055) / 1.055) ** 2.4;
  const light = c => {
    const v = c.match(/[\\d.]+/g).slice(0, 3).map(x => linear(x / 255));
    return .2126 * v[0] + .7152 * v[1] + .0722 * v[2] };
  const under = e => {
    for (; e; e = e.parentElement) {
      const b = getComputedStyle(e).backgroundColor;
      if (!/, 0\\)|transparent/.test(b)) return b }
    return 'rgb(255,255,255)' };
  const contrast = e => {
    const a = light(getComputedStyle(e).color), b = light(under(e));
    return [(Math.max(a, b) + .05) / (Math.min(a, b) + .05), e.tagName + ' ' + e.className + ' ' + e.textContent.slice(0, 30)] };
  return [...document.querySelectorAll('p,td,th,dt,dd,li,h1,h2,h3,a,small,figcaption,code')]
    .filter(e => e.textContent.trim()).map(contrast).sort((x, y) => x[0] - y[0])[0] })()"""


@pytest.mark.promise("REP-2")
@charts
@browser
@parametrized("dark", [False, True], kept=(1,))
def test_text_has_enough_contrast(shown: Any, dark: bool) -> None:
    window, page, _ = shown
    window.open(page, dark=dark)
    ratio, where = window.value(CONTRAST)
    assert ratio >= 4.5, where


@pytest.mark.long
@pytest.mark.promise("REP-2")
@charts
@browser
def test_print_cuts_nothing(shown: Any) -> None:
    window, page, folder = shown
    # the printable width of A4 inside the page's own margins
    window.open(page, 688, 1000, media="print")
    over = window.value(OVER)
    assert not over
    assert window.value(
        "[...document.querySelectorAll('figure')].every(f => getComputedStyle(f).breakInside === 'avoid')"
    )
    window.pdf(folder / "r.pdf")
    assert (folder / "r.pdf").read_bytes().startswith(b"%PDF") and (folder / "r.pdf").stat().st_size > 50_000


@pytest.mark.long
@charts
@browser
def test_chromium_as_a_command_shows_it_too(shown: Any, tmp_path: Path) -> None:
    _, page, _ = shown
    command = [
        str(executable()),
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        f"--user-data-dir={tmp_path}",
        "--dump-dom",
        page.as_uri(),
    ]
    done = processes.run(command)
    assert done.returncode == 0 and done.stdout.count("<figure") > 15 and "forebay report" in done.stdout
