"""The location of libcufile and the settings of cufile.json, determined without loading or changing anything."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

from forebay.errors import RequestError

NAMES = ("libcufile.so.0", "libcufile.so")
TOOLKITS = Path("/usr/local")
CACHE = Path("/etc/ld.so.cache")
CONFIG = Path("/etc/cufile.json")
READ_MAX = 16 << 20


def library() -> Path | None:
    """libcufile's file, or None. Only FOREBAY_LIBCUFILE counts where set; else loader, CUDA, wheels."""
    named = os.environ.get("FOREBAY_LIBCUFILE")
    if named is not None:
        return Path(named) if named and Path(named).is_file() else None
    folders = [Path(p) for p in os.environ.get("LD_LIBRARY_PATH", "").split(":") if p]
    folders += [
        f
        for root in sorted(TOOLKITS.glob("cuda*"), reverse=True)
        for f in (*root.glob("targets/*/lib"), root / "lib64")
    ]
    folders += [f for entry in sys.path if entry for f in Path(entry).glob("nvidia/*/lib")]
    return next((f for f in (*_cached(), *(d / n for d in folders for n in NAMES)) if f.is_file()), None)


def _cached() -> list[Path]:
    """The loader's cache holds full paths as C strings."""
    try:
        with CACHE.open("rb") as file:
            data = file.read(READ_MAX)
    except OSError:
        return []
    return [Path(os.fsdecode(m)) for m in re.findall(rb"/[^\0\n]*/libcufile\.so(?:\.0)?(?=\0)", data)]


def config() -> Path | None:
    """The file that cuFile will read: CUFILE_ENV_PATH_JSON's, else /etc/cufile.json; None if missing."""
    named = os.environ.get("CUFILE_ENV_PATH_JSON")
    path = Path(named) if named else CONFIG
    return path if path.is_file() else None


def allows_compat() -> bool:
    """Returns whether cuFile may fall back to POSIX I/O: `properties.allow_compat_mode` of cufile.json.

    True where nothing says otherwise, as in the cufile.json that CUDA installs. The environment variables
    CUFILE_FORCE_COMPAT_MODE and CUFILE_ALLOW_COMPAT_MODE come first. Raises RequestError on a file that
    can't be read.
    """
    for name in ("CUFILE_FORCE_COMPAT_MODE", "CUFILE_ALLOW_COMPAT_MODE"):
        value = os.environ.get(name, "").lower()
        if value in ("true", "1") or (value in ("false", "0") and name.endswith("ALLOW_COMPAT_MODE")):
            return value in ("true", "1")
    path = config()
    if path is None:
        return True
    properties = parse(path).get("properties")
    settings = properties if isinstance(properties, dict) else {}
    return bool(settings.get("force_compat_mode", False)) or bool(settings.get("allow_compat_mode", True))


def parse(path: Path) -> dict[str, object]:
    """cufile.json is JSON with // comments and trailing commas."""
    try:
        with path.open("rb") as file:
            text = file.read(READ_MAX).decode("utf-8", errors="replace")
        value = json.loads(_without_comments(text))
    except (OSError, ValueError, RecursionError) as error:
        raise RequestError(
            f"{path}", f"is not a cufile.json that can be read ({error})", "CUFILE_ENV_PATH_JSON=FILE"
        ) from None
    if not isinstance(value, dict):
        raise RequestError(f"{path}", "is not a JSON object", "CUFILE_ENV_PATH_JSON=FILE")
    return value


_TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|//[^\n]*|/\*.*?\*/|,(?=\s*[}\]])', re.DOTALL)


def _without_comments(text: str) -> str:
    stripped = _TOKEN.sub(lambda m: m[0] if m[0][0] in '",' else " ", text)
    return _TOKEN.sub(lambda m: "" if m[0] == "," else m[0], stripped)
