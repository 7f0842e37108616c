"""Altair charts → inline SVG that needs no script, follows the page's colours, and can be read aloud."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

from forebay import scarce
from forebay.errors import MachineError
from forebay.report.marks import GRID, INK, MUTED, PALETTE, SHADE, Chart

SVG = "http://www.w3.org/2000/svg"
# What Altair draws with → the custom property of page.css that stands for it in light, dark and print.
VARIABLES = {INK: "ink", MUTED: "muted", GRID: "grid", SHADE: "shade"} | {
    colour: f"s{i}" for i, colour in enumerate(PALETTE, start=1)
}
# Labels are a little wider in some readers' fonts than where they were laid out.
PADDING = {"left": 12, "right": 10, "top": 4, "bottom": 4}
FONT = {"labelFont": "sans-serif", "titleFont": "sans-serif"}
CONFIG: dict[str, Any] = {
    "background": "transparent", "font": "sans-serif", "padding": PADDING, "aria": False,
    "view": {"stroke": None},
    "axis": {
        "domainColor": MUTED, "gridColor": GRID, "tickColor": MUTED, "labelColor": MUTED, "titleColor": MUTED,
        "labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal", "titlePadding": 8, "domainWidth": 1,
        "gridWidth": 1, **FONT,
    },
    "axisX": {"grid": False, "labelPadding": 6},
    "axisY": {"domain": False, "ticks": False, "labelPadding": 6},
    "legend": {
        "labelColor": INK, "labelFontSize": 12, "titleColor": INK, "padding": 0, "offset": 8, "columnPadding": 14,
        "rowPadding": 4, **FONT,
    },
}  # fmt: skip
_ALLOWED = {
    "svg",
    "g",
    "path",
    "rect",
    "line",
    "text",
    "tspan",
    "defs",
    "clipPath",
    "title",
    "desc",
    "circle",
}


def check() -> None:
    """Raises MachineError where the drawing library isn't installed."""
    try:
        import altair  # noqa: F401
        import vl_convert  # noqa: F401
    except ModuleNotFoundError as error:
        raise MachineError(
            "charts", f"{error.name} isn't installed", "pip install 'forebay[report]', or --no-charts"
        ) from error
    # Without them it panics, or waits for ever.
    scarce.spare(descriptors=24, threads=12, otherwise="--no-charts")


def draw(chart: Chart) -> str:
    """The chart as an SVG element."""
    import altair as alt
    import vl_convert

    version = ".".join(alt.SCHEMA_VERSION.lstrip("v").split(".")[:2])
    return _page_svg(vl_convert.vegalite_to_svg(specification(chart), vl_version=version), chart)


def specification(chart: Chart, checked: bool = False) -> dict[str, Any]:
    """The chart in Vega-Lite, `checked` by its schema: that takes longer than drawing does, and no record changes it."""
    from altair.utils.schemapi import debug_mode

    with debug_mode(checked):
        made = chart.draw().to_dict(validate=checked)
    # Set here: Altair copies the whole chart at each `configure`.
    own = made.setdefault("config", {})
    for part, settings in CONFIG.items():
        own[part] = {**own.get(part, {}), **settings} if isinstance(settings, dict) else settings
    return made


def _page_svg(text: str, chart: Chart) -> str:
    """The same picture, reduced to shapes and text, with names of its own and the page's colours."""
    ElementTree.register_namespace("", SVG)
    root = ElementTree.fromstring(text)
    _reduce(root)
    for element in root.iter():
        _own_names(element, chart.id)
        _page_colours(element)
    view = root.get("viewBox") or f"0 0 {root.get('width')} {root.get('height')}"
    for name in ("width", "height", "version", "class"):
        root.attrib.pop(name, None)
    root.set("viewBox", view)
    root.set("role", "img")
    root.set("aria-labelledby", f"{chart.id}-t {chart.id}-d")
    for position, (tag, suffix, words) in enumerate((("title", "t", chart.title), ("desc", "d", chart.desc))):
        element = ElementTree.Element(f"{{{SVG}}}{tag}", {"id": f"{chart.id}-{suffix}"})
        element.text = words
        root.insert(position, element)
    return ElementTree.tostring(root, encoding="unicode")


def _reduce(element: ElementTree.Element) -> None:
    """Drops everything but shapes and text: whatever a label held, nothing can run or be fetched."""
    for child in list(element):
        if child.tag.rpartition("}")[2] not in _ALLOWED:
            element.remove(child)
            continue
        _reduce(child)
    for name in list(element.attrib):
        local = name.rpartition("}")[2].lower()
        if local.startswith("on") or local in (
            "href",
            "class",
            "aria-label",
            "aria-roledescription",
            "aria-hidden",
            "role",
            "pointer-events",
        ):
            del element.attrib[name]


def _own_names(element: ElementTree.Element, prefix: str) -> None:
    """Ids are the page's, and every chart has a clip0 of its own."""
    for name, value in element.attrib.items():
        if name == "id":
            element.set(name, f"{prefix}-{value}")
        elif "url(#" in value:
            element.set(name, re.sub(r"url\((['\"]?)#", rf"url(\1#{prefix}-", value))


def _page_colours(element: ElementTree.Element) -> None:
    style = []
    for name in ("fill", "stroke"):
        variable = VARIABLES.get((element.get(name) or "").lower())
        if variable:
            del element.attrib[name]
            style.append(f"{name}:var(--{variable})")
    if style:
        element.set("style", ";".join(filter(None, [element.get("style"), *style])))
    element.attrib.pop("font-family", None)
