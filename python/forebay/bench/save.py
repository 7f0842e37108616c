"""Where records go: the file that was asked for, or one of our naming when a run broke."""

from __future__ import annotations

import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any

from forebay.errors import RequestError

_OURS = re.compile(rb'^[\s\[]*\{\s*"schema"\s*:\s*"forebay\.')


def check_target(path: str) -> None:
    """Refuses, before anything runs, a file that isn't ours or a place that can't be written."""
    target = Path(path)
    asked = f"-o {path}"
    if target.is_dir():
        raise RequestError(asked, "is a directory", f"-o {target / 'run.json'}")
    if target.is_file():
        if not is_ours(target):
            raise RequestError(
                asked, "exists and holds no Forebay record, so it isn't overwritten", "another file name"
            )
        if not os.access(target, os.W_OK):
            raise RequestError(asked, "can't be written (permission)", f"chmod u+w {path}")
    elif not target.exists():
        folder = target.parent
        if not folder.is_dir():
            raise RequestError(asked, f"there is no directory {folder}", f"mkdir -p {folder}")
        if not os.access(folder, os.W_OK | os.X_OK):
            raise RequestError(asked, f"the directory {folder} can't be written", "another directory")


def is_ours(path: Path) -> bool:
    """An empty file, or one whose first document begins with a schema of ours. Reads 4 KiB at most."""
    with path.open("rb") as file:
        head = file.read(4096)
    return not head.strip() or bool(_OURS.match(head))


def write(path: str | Path, documents: list[dict[str, Any]]) -> None:
    """One document as indented JSON, several as one line each. A file is written whole or not at all."""
    if len(documents) == 1:
        text = json.dumps(documents[0], indent=1) + "\n"
    else:
        text = "".join(json.dumps(d) + "\n" for d in documents)
    target = Path(path)
    try:
        if target.exists() and not target.is_file():  # a pipe or a device: no renaming there
            target.write_text(text)
            return
        _replace(target, text)
    except OSError as error:
        raise RequestError(f"-o {path}", f"can't be written ({error.strerror})", "another file") from error


def _replace(target: Path, text: str) -> None:
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(name, 0o666 & ~mask)
        os.replace(name, target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def rescue(document: dict[str, Any], suffix: str = "") -> Path | None:
    """Saves a broken run to ./forebay-ID.json, else in the temporary directory. None: neither took it."""
    name = f"forebay-{re.sub(r'[^0-9a-zA-Z]', '', str(document.get('id') or 'run'))}{suffix}.json"
    for folder in (Path("."), Path(tempfile.gettempdir())):
        target = folder / name
        if target.exists() and not is_ours(target):
            continue
        try:
            write(target, [document])
            return target
        except RequestError:
            continue
    return None
