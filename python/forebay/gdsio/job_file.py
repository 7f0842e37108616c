"""`.gdsio` job files: sections of `key=value` as in fio, `[global]` for all and one section per job.

The keys follow configuration files that gdsio's users have published. They are not yet checked against the
samples that come with CUDA.
"""

from __future__ import annotations

import difflib
from typing import Any

from forebay import fio
from forebay.errors import RequestError
from forebay.gdsio.flags import BY_KEY, Flag, refuse_url
from forebay.gdsio.request import Group, Request

EXAMPLE = "[global] with xfer_type, rw, bs and size, then [job1] with directory, num_threads and gpu_dev_id"


def read(path: str) -> Request:
    """The request that the job file at `path` describes; each job section becomes a group of one run.

    Raises RequestError naming the section and the key that is unknown, malformed, or differs between jobs
    though one run can have only one value of it.
    """
    shared: dict[str, str] = {}
    jobs: list[tuple[str, dict[str, str]]] = []
    for section in fio.sections(path):
        settings = _settings(section)
        if section.name == "global":
            shared.update(settings)
        else:
            jobs.append((section.name, {**shared, **settings}))
    if not jobs:
        raise RequestError(path, "has no job section", EXAMPLE)
    parsed = [_parsed(name, settings) for name, settings in jobs]
    fields = [{k: v for k, v in values.items() if not BY_KEY[k].per_group} for values in parsed]
    for (name, _), values in zip(jobs[1:], fields[1:], strict=True):
        key = next((k for k in BY_KEY if values.get(k) != fields[0].get(k)), None)
        if key is not None:
            raise RequestError(
                f"[{name}] {key}",
                f"differs from [{jobs[0][0]}]'s; all jobs of one run share it",
                f"{key} in [global], or one file per run",
            )
    groups = tuple(_group(name, values) for (name, _), values in zip(jobs, parsed, strict=True))
    return Request(groups=groups, **{BY_KEY[k].field: v for k, v in fields[0].items()})


def _settings(section: fio.Section) -> dict[str, str]:
    settings: dict[str, str] = {}
    for key, value in section.settings:
        if key == "name":
            continue
        if key not in BY_KEY:
            near = difflib.get_close_matches(key, BY_KEY, n=1)
            next = f"{near[0]}={value}" if near else f"one of name, {', '.join(BY_KEY)}"
            raise RequestError(f"[{section.name}] {key}", "is not a key of a .gdsio file", next)
        if "$" in value:
            raise RequestError(
                f"[{section.name}] {key}={value}",
                "variables are not expanded here",
                "envsubst < FILE > NEW, then run NEW",
            )
        settings[key] = value
    return settings


def _parsed(name: str, settings: dict[str, str]) -> dict[str, Any]:
    refuse_url(settings.get("url"), f"[{name}] url")
    return {key: _value(BY_KEY[key], value, f"[{name}] {key}") for key, value in settings.items()}


def _value(flag: Flag, text: str, spelled: str) -> Any:
    return flag.parse(text, spelled) if flag.parse else text


def _group(name: str, values: dict[str, Any]) -> Group:
    if ("directory" in values) == ("filename" in values):
        found = (
            "has both a directory and a filename"
            if "directory" in values
            else "has neither a directory nor a filename"
        )
        raise RequestError(f"[{name}]", found, "directory=DIR or filename=FILE")
    is_directory = "directory" in values
    target = values["directory" if is_directory else "filename"]
    rest = {BY_KEY[k].field: values[k] for k in ("gpu_dev_id", "numa_node", "num_threads") if k in values}
    return Group(target, is_directory, **rest)
