"""Are rows that `gather` returns the file's own, whatever happens to the file meanwhile? `python bench/rows_verify.py --dir DIR`.

Threads gather random rows while another rewrites the file by `write`, renames another over it, cuts it short and writes
it anew, and drops it from the page cache. Every word of a row says which row of which version it is. A call that returns
may hold what the file held when it began, or what was being written since; anything else is a wrong row. A call may also
fail, and is counted then.

Into a GPU where there is one (device memory by libcuda itself, no library is needed), else, or with --host, into host memory.
The last line is JSON. Exit: 0 without a wrong row, 1 with one, 2 for flags that can't be, 3 without forebay or NumPy.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import random
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

MIB = 1 << 20
# A word: which version in the upper bits, which word of the file below.
VERSION_SHIFT = 40
PIECE = 4 * MIB
FATES = ["rewritten", "cut", "renamed over", "dropped"]


class Versions:
    """What versions a file of the name may hold: one counter for each file that ever had it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.file = 0
        self.done, self.begun = {0: 1}, {0: 1}
        self.newest = 1

    def span(self, file: int) -> tuple[int, int]:
        with self.lock:
            return self.done[file], self.begun[file]

    def begin(self) -> int:
        with self.lock:
            self.newest += 1
            self.begun[self.file] = self.newest
            return self.newest

    def end(self, version: int) -> None:
        with self.lock:
            self.done[self.file] = version

    def replace(self, by: Path, path: Path, version: int) -> None:
        with self.lock:
            os.replace(by, path)
            self.file += 1
            self.done[self.file] = self.begun[self.file] = version


class Memory:
    """Room for a batch: of the host, or of a GPU, as CuPy would show it."""

    def __init__(self, count: int, gpu: int | None) -> None:
        import numpy

        self.host = numpy.empty(count, numpy.uint8)
        self.cuda = None if gpu is None else ctypes.CDLL(os.environ.get("FOREBAY_LIBCUDA") or "libcuda.so.1")
        if self.cuda is None:
            return
        self.context, self.at = ctypes.c_void_p(), ctypes.c_uint64()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), gpu)
        self.call("cuCtxSetCurrent", self.context)
        self.call("cuMemAlloc_v2", ctypes.byref(self.at), ctypes.c_size_t(count))
        data = {"shape": (count,), "typestr": "|u1", "data": (self.at.value, False), "version": 3}
        self.__dict__["__cuda_array_interface__"] = data

    def call(self, name: str, *arguments: Any) -> None:
        code = getattr(self.cuda, name)(*arguments)
        if code:
            raise RuntimeError(f"{name}: {code}")

    @property
    def target(self) -> Any:
        return self.host if self.cuda is None else self

    def words(self) -> Any:
        if self.cuda is not None:
            self.call("cuCtxSetCurrent", self.context)
            to = ctypes.c_void_p(self.host.ctypes.data)
            self.call("cuMemcpyDtoHAsync_v2", to, self.at, ctypes.c_size_t(self.host.nbytes), None)
            self.call("cuStreamSynchronize", None)
        return self.host.view("=u8")


class Study:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.path = options.dir / "forebay-rows-verify.dat"
        self.table_bytes = options.file_mib * MIB // options.row_bytes * options.row_bytes
        self.versions = Versions()
        self.stop = threading.Event()
        self.until = time.monotonic() + options.limit_s
        self.lock = threading.Lock()
        self.counts: Counter[str] = Counter()
        self.wrong: list[dict[str, Any]] = []
        self.failure: BaseException | None = None

    # The file's fate -----------------------------------------------------------------------------

    def content(self, version: int, offset: int) -> Any:
        import numpy

        count = min(PIECE, self.table_bytes - offset) // 8
        words = numpy.arange(offset // 8, offset // 8 + count, dtype=numpy.uint64)
        return words | numpy.uint64(version << VERSION_SHIFT)

    def write(self, fd: int, version: int) -> None:
        for offset in range(0, self.table_bytes, PIECE):
            os.pwrite(fd, self.content(version, offset).tobytes(), offset)

    def made(self, path: Path, version: int) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            self.write(fd, version)
        finally:
            os.close(fd)

    def rewritten(self, cut: bool = False) -> None:
        version = self.versions.begin()
        fd = os.open(self.path, os.O_WRONLY)
        try:
            if cut:
                os.ftruncate(fd, self.table_bytes // 2)
                time.sleep(0.01)
            self.write(fd, version)
        finally:
            os.close(fd)
        self.versions.end(version)

    def renamed_over(self) -> None:
        other = self.path.with_suffix(".next")
        with self.versions.lock:
            self.versions.newest += 1
            version = self.versions.newest
        self.made(other, version)
        self.versions.replace(other, self.path, version)

    def dropped(self) -> None:
        fd = os.open(self.path, os.O_RDONLY)
        try:
            os.fdatasync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)

    def disturb(self) -> None:
        draw = random.Random(self.options.seed)
        fates = {
            "rewritten": self.rewritten,
            "cut": lambda: self.rewritten(cut=True),
            "renamed over": self.renamed_over,
            "dropped": self.dropped,
        }
        names = [name for name in fates if name in (self.options.fates or list(fates))]
        while not self.stop.wait(draw.uniform(0, 2) * self.options.every_s):
            name = draw.choice(names)
            fates[name]()
            self.count(name)

    # Who reads it --------------------------------------------------------------------------------

    def count(self, what: str, by: int = 1) -> None:
        with self.lock:
            self.counts[what] += by

    def opened(self) -> tuple[Any, int]:
        """The file that has the name now, and which of them it is."""
        import forebay

        with self.versions.lock:
            return forebay.open(self.path, self.options.path), self.versions.file

    def read(self, number: int) -> None:
        import numpy
        from forebay.errors import ForebayError

        row, batch = self.options.row_bytes, self.options.batch
        draw = numpy.random.default_rng([self.options.seed, number]).integers
        memory = Memory(batch * row, None if self.options.host else self.options.gpu)
        file, which = self.opened()
        while not self.stop.is_set():
            rows = draw(self.table_bytes // row, size=batch)
            oldest = self.versions.span(which)[0]
            try:
                file.gather(rows, row, memory.target)
            except ForebayError as error:
                self.count(f"failed: {type(error).__name__}")
                self.look_at_the_clock()
                file.close()
                file, which = self.opened()
                continue
            newest = self.versions.span(which)[1]
            self.check(rows, memory.words().reshape(batch, row // 8), oldest, newest)
            self.count("calls")
            self.count("rows", batch)
            self.look_at_the_clock()
        file.close()

    def look_at_the_clock(self) -> None:
        if self.counts["rows"] >= self.options.rows or time.monotonic() > self.until:
            self.stop.set()

    def check(self, rows: Any, words: Any, oldest: int, newest: int) -> None:
        import numpy

        each = words.shape[1]
        mask = numpy.uint64((1 << VERSION_SHIFT) - 1)
        wanted = rows.astype(numpy.uint64)[:, None] * numpy.uint64(each) + numpy.arange(each, dtype=numpy.uint64)
        versions = words >> numpy.uint64(VERSION_SHIFT)
        bad = ((words & mask) != wanted) | (versions < numpy.uint64(oldest)) | (versions > numpy.uint64(newest))
        found = numpy.flatnonzero(bad.any(axis=1))
        if found.size:
            first = int(found[0])
            some = [hex(int(word)) for word in words[first][:4]]
            reported = {"row": int(rows[first]), "words": some, "versions": [oldest, newest]}
            with self.lock:
                self.counts["wrong"] += int(found.size)
                self.wrong.append(reported)

    def guarded(self, work: Any, *arguments: Any) -> None:
        try:
            work(*arguments)
        except BaseException as error:
            self.failure = self.failure or error
            self.stop.set()

    def run(self) -> None:
        self.made(self.path, 1)
        threads = [threading.Thread(target=self.guarded, args=(self.read, n)) for n in range(self.options.threads)]
        threads.append(threading.Thread(target=self.guarded, args=(self.disturb,)))
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            self.stop.set()
            self.path.unlink(missing_ok=True)
            self.path.with_suffix(".next").unlink(missing_ok=True)
        if self.failure is not None:
            raise self.failure


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument("--dir", type=Path, required=True, help="a folder on the storage; the file is made there")
    made.add_argument("--rows", type=int, default=1_000_000_000, help="rows to look at (10^9)")
    made.add_argument("--row-bytes", type=int, default=64, help="a multiple of 8 (64)")
    made.add_argument("--batch", type=int, default=500_000, help="rows of a call (500,000)")
    made.add_argument("--file-mib", type=int, default=256, help="size of the file (256)")
    made.add_argument("--threads", type=int, default=6, help="that gather at once (6)")
    made.add_argument("--every-s", type=float, default=0.5, help="seconds between two changes, on average (0.5)")
    made.add_argument("--limit-s", type=float, default=540, help="end after so many seconds (540)")
    made.add_argument("--path", default="mapped", help="as for forebay.open (mapped)")
    made.add_argument("--gpu", type=int, default=0)
    made.add_argument("--host", action="store_true", help="into host memory")
    made.add_argument("--fates", nargs="*", choices=FATES, help="what happens to the file (all of it)")
    made.add_argument("--seed", type=int, default=7)
    return made


def main() -> int:
    options = parser().parse_args()
    if options.row_bytes < 8 or options.row_bytes % 8 or min(options.batch, options.threads, options.file_mib) < 1:
        print("rows are multiples of 8 bytes; --batch, --threads and --file-mib are 1 or more", file=sys.stderr)
        return 2
    if not options.dir.is_dir():
        print(f"{options.dir} is no folder; try: mkdir -p {options.dir}", file=sys.stderr)
        return 2
    if not os.path.exists("/dev/nvidiactl") and "FOREBAY_LIBCUDA" not in os.environ:
        options.host = True
    try:
        import forebay  # noqa: F401
        import numpy  # noqa: F401
    except ImportError as missing:
        print(f"{missing}; try: pip install forebay numpy", file=sys.stderr)
        return 3
    study = Study(options)
    began = time.monotonic()
    study.run()
    seconds = round(time.monotonic() - began, 1)
    reported = {"seconds": seconds, "row_bytes": options.row_bytes, "path": options.path, "seed": options.seed}
    reported |= {"to": "host memory" if options.host else f"GPU {options.gpu}", "wrong": study.counts["wrong"]}
    print(json.dumps(reported | dict(study.counts) | {"examples": study.wrong[:5]}))
    return 1 if study.counts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
