"""Saving records: to the requested file, or to one with a generated name if a run failed.

One rule for each flag that names such a file. A name that ends in `.jsonl` gets a line for each record, behind those that
it holds. Any other name is one document, which replaces nothing but a document of the same kind. Both are found out
before the run, and again when the file is written.
"""

from __future__ import annotations

import errno
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from forebay import pipes
from forebay.errors import ForebayError, RequestError, RunError

RUN, FILES, COMPARE, TUNE = "forebay.run", "forebay.files", "forebay.compare", "forebay.tune"
# Which files of a directory are ours: its schema is called as that of `forebay files`.
LIST_OF_FILES = ".forebay.json"
# No document of ours comes near; what is larger is somebody else's.
DOCUMENT_BYTES_MAX = 512 << 20
RESCUES_MAX = 100
# What is wrong with a place whatever is written there, and known before: another place has to be named.
_PLACE = {
    errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG,
    errno.ELOOP, errno.EBADF,
}  # fmt: skip
_OURS = re.compile(rb'^[\s\[]*\{\s*"schema"\s*:\s*"forebay\.')


class Output:
    """The file that `flag` names, for documents of one kind. `lines`: a line each, or none, whatever the name."""

    def __init__(self, path: str, kind: str, flag: str = "-o", lines: bool | None = None) -> None:
        """Refuses, before anything runs, what would lose something and a place that can't be written."""
        self.path, self.kind, self.asked = str(path), kind, f"{flag} {path}"
        self.lines = self.path.endswith(".jsonl") if lines is None else lines
        self._target = Path(os.path.realpath(path))
        self._appended = 0
        pipes.refuse_dash(path, self.asked, "--json for standard output")
        pipes.refuse_to_write(path, self.asked)
        self._descriptor = pipes.descriptor_of(path)
        # What was written to a stream can't be replaced, so that it gets a line for each document, too.
        self.lines = self.lines or self._descriptor is not None
        target, self._was_there = self._target, False
        if self._descriptor is not None:
            self._refuse_closed()
        elif target.is_dir():
            raise RequestError(self.asked, "is a directory", f"{flag} {target / 'run.json'}")
        elif target.is_file():
            self._was_there = True
            self._refuse_others()
            if not os.access(target, os.W_OK):
                raise RequestError(self.asked, "can't be written (permission)", f"chmod u+w {path}")
        elif not target.exists():
            folder = target.parent
            if not folder.is_dir():
                raise RequestError(self.asked, f"the directory {folder} doesn't exist", f"mkdir -p {folder}")
            if not os.access(folder, os.W_OK | os.X_OK):
                raise RequestError(self.asked, f"the directory {folder} can't be written", "another directory")

    def _refuse_closed(self) -> None:
        try:
            os.fstat(self._descriptor or 0)
        except OSError as error:
            raise RequestError(self.asked, f"isn't open ({error.strerror})", "a file") from None

    def write(self, documents: list[dict[str, Any]], partial: bool = False, rescues: bool = True) -> None:
        """All documents so far. `partial`: they will be said again, so that they get no line yet.

        RunError where that fails; with `rescues` it says where they are instead.
        """
        try:
            if self.lines:
                if not partial:
                    self._add_lines(documents[self._appended :])
                    self._appended = len(documents)
            else:
                self._put(text_of(documents))
        except (OSError, RequestError) as error:
            found = error.found if isinstance(error, RequestError) else f"can't be written ({error.strerror})"
            if rescues:
                found += f"; {_whereabouts(documents)}"
            raise RunError(self.asked, found, "another file") from error

    def append(self, document: dict[str, Any]) -> None:
        """One more line. RunError where that fails, which says where it is instead."""
        self._appended = 0
        self.write([document])

    def _put(self, text: str) -> None:
        if self._target.exists() and not self._target.is_file():  # a pipe or a device: no renaming there
            self._target.write_text(text)
            return
        try:
            place(self._target, text, self._may_be_replaced if self._was_there else None)
        except FileExistsError:
            self._refuse_others()
            found = "was created by something else during the run, so it isn't overwritten"
            raise RequestError(self.asked, found, "another file name") from None
        self._was_there = True

    def _add_lines(self, documents: list[dict[str, Any]]) -> None:
        text = "".join(json.dumps(d) + "\n" for d in documents)
        if self._descriptor is not None:
            pipes.write(self._descriptor, text.encode())
            return
        if self._target.is_file():
            self._refuse_others()
            if self._target.stat().st_size and _last_byte(self._target) != b"\n":
                text = "\n" + text  # what was cut off stays a line of its own
        with self._target.open("a", encoding="utf-8") as file:
            file.write(text)

    def _refuse_others(self) -> None:
        if self._target.name == LIST_OF_FILES:
            raise RequestError(self.asked, "is Forebay's list of the files it created", "another file name")
        if self.lines and not self._holds_lines():
            found = f"exists and doesn't hold {self.kind} records, one per line, so nothing is appended"
            raise RequestError(self.asked, found, "another file name")
        if not self.lines and not self._may_be_replaced(self._target):
            found = f"exists and isn't a single {self.kind} document, so it isn't overwritten"
            raise RequestError(self.asked, found, "another file name; one that ends in .jsonl keeps them all")

    def _holds_lines(self) -> bool:
        """Empty, or its first line begins as a record of this kind does. Reads 64 bytes."""
        with self._target.open("rb") as file:
            head = file.read(64)
        return not head or re.match(rb'\{"schema": ?"%b/' % re.escape(self.kind.encode()), head) is not None

    def _may_be_replaced(self, target: Path) -> bool:
        """Empty, one document of this kind, or a list of such: what this would write."""
        if target.stat().st_size == 0:
            return True
        found = _documents(target)
        return bool(found) and all(str(d.get("schema")).startswith(f"{self.kind}/") for d in found)


def unwritable(asked: str, error: OSError, what: str = "file") -> ForebayError:
    """Why it can't be written: a wrong place is a wrong request; a disk that is full, or breaks, is a failure midway."""
    found = f"can't be written ({error.strerror or error})"
    if error.errno in _PLACE:
        return RequestError(asked, found, f"a {what} where you can write")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return RunError(asked, found, f"df -h; df -i; a {what} on another file system")
    return RunError(asked, found, f"dmesg | tail; a {what} on another file system")


def write_whole(path: str, content: bytes, may_be_replaced: Callable[[Path], bool]) -> None:
    """A file that a verb makes: to a stream or a device as it is, else whole or not at all. OSError where that fails."""
    descriptor = pipes.descriptor_of(path)
    if descriptor is not None:
        pipes.write(descriptor, content)
    elif (target := Path(os.path.realpath(path))).exists() and not target.is_file():
        target.write_bytes(content)
    else:
        place(target, content, may_be_replaced)


def text_of(documents: list[dict[str, Any]]) -> str:
    return json.dumps(documents if len(documents) > 1 else documents[0], indent=1) + "\n"


def _documents(path: Path) -> list[dict[str, Any]]:
    """The JSON object in the file, or the objects of its list. Empty where it holds anything else."""
    if path.stat().st_size > DOCUMENT_BYTES_MAX:
        return []
    try:
        read = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return []
    found = read if isinstance(read, list) else [read]
    return found if all(isinstance(d, dict) for d in found) else []


def _last_byte(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1)


def write(path: str | Path, documents: list[dict[str, Any]]) -> None:
    """A file that a verb names itself, as in a folder of results: whole or not at all, in place of nothing but our own."""
    write_text(path, text_of(documents))


def write_text(path: str | Path, text: str) -> None:
    """Text that is such a file's already, likewise."""
    asked = f"write {path}"
    pipes.refuse_to_write(path, asked)
    try:
        write_whole(str(path), text.encode(), _is_ours)
    except FileExistsError:
        found = "exists and isn't Forebay's, so it isn't overwritten"
        raise RequestError(asked, found, "another folder, or another file name") from None
    except OSError as error:
        raise unwritable(asked, error) from error


def refuse_to_replace(path: str | Path) -> None:
    """RequestError where `write` would refuse: to be asked before anything is measured."""
    asked = f"write {path}"
    pipes.refuse_to_write(path, asked)
    if os.path.isdir(path):
        raise RequestError(asked, "is a directory", "another folder, or another file name")
    if os.path.isfile(path) and not _is_ours(Path(path)):
        raise RequestError(asked, "exists and isn't Forebay's, so it isn't overwritten", "another folder, or another file name")


def _is_ours(path: Path) -> bool:
    """An empty file, or one whose first document begins with a schema of ours. Reads 4 KiB at most."""
    with path.open("rb") as file:
        head = file.read(4096)
    return not head.strip() or bool(_OURS.match(head))


def place(target: Path, content: str | bytes, may_be_replaced: Callable[[Path], bool] | None = None) -> None:
    """Makes a file whole or not at all. FileExistsError where one is there, unless `may_be_replaced` says yes to it."""
    whole = content.encode() if isinstance(content, str) else content
    if _place_unnamed(target, whole, may_be_replaced):
        return
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(whole)
            file.flush()
            os.fsync(file.fileno())
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(name, 0o666 & ~mask)
        try:
            _claim(name, target)
        except FileExistsError:
            if may_be_replaced is None or target.is_symlink() or not target.is_file() or not may_be_replaced(target):
                raise
            os.replace(name, target)
    finally:
        Path(name).unlink(missing_ok=True)


def _place_unnamed(target: Path, content: bytes, may_be_replaced: Callable[[Path], bool] | None) -> bool:
    """As `place`, by a file that has no name until it is whole: whatever ends the process leaves nothing of it behind.

    False where the file system has no such files. A file that is replaced needs a name for the moment of it.
    """
    try:
        descriptor = os.open(target.parent, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o666)
    except OSError:
        return False
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
        # With a descriptor, absolute as the name is, Python follows the link that /proc has to the file.
        name_it = partial(os.link, f"/proc/self/fd/{descriptor}", src_dir_fd=descriptor, follow_symlinks=True)
        try:
            name_it(target)
            return True
        except FileExistsError:
            if may_be_replaced is None or target.is_symlink() or not target.is_file() or not may_be_replaced(target):
                raise
        except OSError:  # no /proc, or no links
            return False
        between = target.with_name(f".{target.name}.{os.getpid()}.{os.urandom(4).hex()}")
        try:
            name_it(between)
            os.replace(between, target)
        finally:
            between.unlink(missing_ok=True)
        return True


def _claim(name: str, target: Path) -> None:
    """Gives the file its name, which nobody may have."""
    try:
        os.link(name, target)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        os.replace(name, target)


def put_aside(path: Path) -> Path:
    """Gives a file of ours the first of the names FILE.1, FILE.2, … that nothing has, and returns it."""
    for number in range(1, 100_000):
        aside = path.with_name(f"{path.name}.{number}")
        try:
            os.link(path, aside, follow_symlinks=False)
        except FileExistsError:
            continue
        except OSError:  # a file system without links
            if os.path.lexists(aside):
                continue
            os.rename(path, aside)
            return aside
        os.unlink(path)
        return aside
    raise RequestError(f"--restart with -o {path}", "has 99,999 older files beside it", "rm some of them")


@contextmanager
def unless_said(documents: Sequence[dict[str, Any]], out: object = None) -> Iterator[None]:
    """Around what prints them: where the output takes no more, or is closed, RunError names the files that keep what was
    measured. `out`: they are saved anyway."""
    try:
        yield
    except OSError as error:
        if isinstance(error, BrokenPipeError) and (out or not documents):
            raise
        found = f"{error.strerror}; {_whereabouts(documents)}" if documents else str(error.strerror)
        raise RunError("writing the output", found, "df -h; -o FILE on another file system") from error
    # Of forebay.pipes.Nowhere.
    if documents and not out and getattr(sys.stdout, "lost", False):
        raise RunError("writing the output", f"standard output is closed; {_whereabouts(documents)}", "-o FILE")


def conclude(record: dict[str, Any], output: Output | None, as_json: bool, text: str | None) -> None:
    """Shows a run's record, saves it, and prints it: `text` for people (None: none), which makes way for JSON. RunError where the
    output takes no more, which says what keeps the record."""
    import click

    with unless_said([record], output):
        if text is not None:
            click.echo(text, err=as_json)
        sys.stdout.flush()
    if output:
        output.write([record])
    if as_json:
        with unless_said([record], output):
            click.echo(json.dumps(record, indent=1))


def _whereabouts(documents: Sequence[dict[str, Any]]) -> str:
    kept = [rescue(document, f"-{n}" if n else "") for n, document in enumerate(documents)]
    if None in kept:
        return "what was measured could not be saved"
    return f"what was measured is in {', '.join(map(str, kept))}"


def rescue(document: dict[str, Any], suffix: str = "") -> Path | None:
    """Saves a broken run to ./forebay-ID.json, else in the temporary directory. None: neither took it."""
    known = document.get("id")
    stem = f"forebay-{re.sub(r'[^0-9a-zA-Z]', '', str(known or 'run'))}{suffix}"

    def is_the_same(path: Path) -> bool:
        return known is not None and [d.get("id") for d in _documents(path)] == [known]

    for folder in (Path("."), Path(tempfile.gettempdir())):
        for name in (stem, *(f"{stem}-{n}" for n in range(2, RESCUES_MAX))):
            target = folder / f"{name}.json"
            try:
                place(target, text_of([document]), is_the_same)
                return target
            except FileExistsError:
                continue
            except OSError:
                break
    return None
