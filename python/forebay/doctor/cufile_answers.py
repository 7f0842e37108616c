"""Answers of cuFile itself about its configuration, for `forebay doctor`.

It is asked in a process of its own: opening its driver takes a CUDA context, libcufile keeps threads, and one that hangs or
crashes must not take the examination with it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

Report = dict[str, Any]

PATIENCE_S = 10
# Key of cufile.json's `properties` → name in the answer.
NAMES = {
    "allow_compat_mode": "allow_compat_mode",
    "use_poll_mode": "poll_mode",
    "max_direct_io_size_kb": "direct_io_max_kib",
    "max_device_cache_size_kb": "device_cache_max_kib",
    "max_device_pinned_mem_size_kb": "pinned_max_kib",
}


def add(report: Report, cufile_json: str | None) -> None:
    """`cufile.properties` and `cufile.properties_refused` of a report, and its lines. `cufile_json`: the file that is examined,
    where that isn't the one that cuFile reads."""
    cufile, properties, refused = report["cufile"], None, None
    usable = report["gpu"]["gpus"] and report["gpu"]["libcuda_refused"] is None
    if not usable or not cufile["libraries"] or cufile["refused"] is not None:
        refused = "there is no GPU, or no libcufile that loads"
    elif cufile_json is not None:
        refused = "--cufile-json names a file that cuFile doesn't read here"
    else:
        properties, refused = ask()
        show(report, properties, refused)
    cufile.update(properties=properties, properties_refused=refused)


def ask() -> tuple[dict[str, Any] | None, str | None]:
    """The answers, or why there are none."""
    # libcufile begins its log, else in the working directory, when its driver is opened.
    environment = {"CUFILE_LOGFILE_PATH": os.devnull, **os.environ}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "forebay.doctor.cufile_answers"],
            env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE_S,
        )  # fmt: skip
        said = json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        return None, f"no answer in {PATIENCE_S} s"
    except (OSError, ValueError, IndexError):
        return None, "libcufile ended the process that asked it"
    return said["properties"], said["refused"]


def show(report: Report, properties: dict[str, Any] | None, refused: str | None) -> None:
    """Writes the answers into the lines that have the configuration."""
    settings = report["cufile"]["config"]["settings"]
    for check in report["checks"]:
        key = check["id"].removeprefix("cufile.")
        if key == check["id"] or key not in NAMES:
            continue
        if refused is not None:
            check["why"] = f"cuFile itself doesn't say: {refused}"
            continue
        value = (properties or {}).get(NAMES[key])
        if value is None:
            continue
        written = settings.get(f"properties.{key}")
        check["found"] = f"{json.dumps(value)}, as cuFile says"
        if written not in (None, value):
            check["found"] += f"; {json.dumps(written)} in {report['cufile']['config']['path']}"


def main() -> None:
    from forebay import _core
    from forebay.errors import ForebayError

    said: dict[str, Any] = {"properties": None, "refused": None}
    try:
        said["properties"] = json.loads(_core.cufile_answers())
    except ForebayError as error:
        said["refused"] = error.found
    print(json.dumps(said))


if __name__ == "__main__":
    main()
