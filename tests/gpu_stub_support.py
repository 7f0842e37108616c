"""Commands that find a GPU: one of the stand-ins of tests/gpu_stubs, or a real one."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import processes
import pytest

ROOT = Path(__file__).resolve().parent.parent
OURS = ("FOREBAY_LIB", "FOREBAY_STUB")


@functools.cache
def built() -> Path:
    """The folder of the stand-ins, made if need be (its shell looks at each source in turn); skips where there is no compiler."""
    compiler = os.environ.get("CC") or "cc"
    if not shutil.which(compiler):
        pytest.skip(f"no C compiler ({compiler}) to build the stand-ins with; try: apt install gcc")
    to = ROOT / "target/gpu-stubs"
    made = subprocess.run([ROOT / "tests/gpu_stubs/build", to], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    return to


@dataclass
class Ran:
    """What a command did; `books` are the stand-in's (None on a real GPU)."""

    exit: int
    out: str
    err: str
    books: dict[str, Any] | None

    @property
    def record(self) -> dict[str, Any]:
        assert self.exit == 0, self.err
        found: dict[str, Any] = json.loads(self.out)
        return found

    def balanced(self, source_changes: bool = False) -> Ran:
        """Nothing is left, nothing was done to memory that isn't there, no slot was reused under its copy (or a file
        was changed on purpose)."""
        if self.books:
            # A kernel, once compiled, stays for the process.
            left = {k: n for k, n in self.books["live"].items() if n and k != "modules"}
            assert not left, f"left behind: {left}"
            for wrong in ("copies_outside", "changed_under_copy", "unknown_frees"):
                by_us = source_changes and wrong == "changed_under_copy"
                assert self.books[wrong] == 0 or by_us, f"{wrong}: {self.books}"
        return self


class Gpu:
    """Runs commands that see this GPU. `stubs` is None for a real one."""

    def __init__(self, stubs: Path | None, home: Path) -> None:
        self.stubs, self.home = stubs, home
        self.books = home / "books.json"

    def environment(self, cuda: str = "", cufile: str = "", nvrtc: str = "", **more: str) -> dict[str, str]:
        """`cuda`, `cufile`, `nvrtc`: settings of the stand-ins."""
        if self.stubs is None:
            assert not (cuda or cufile or nvrtc), "a real GPU takes no settings"
            return {**os.environ, **more}
        plain = {k: v for k, v in os.environ.items() if not k.startswith(OURS)}
        return {
            **plain,
            "FOREBAY_LIBCUDA": str(self.stubs / "libcuda.so.1"),
            "FOREBAY_LIBCUFILE": str(self.stubs / "libcufile.so.0"),
            "FOREBAY_LIBNVRTC": str(self.stubs / "libnvrtc.so.13"),
            "FOREBAY_STUB_CUDA": cuda,
            "FOREBAY_STUB_CUFILE": cufile,
            "FOREBAY_STUB_NVRTC": nvrtc,
            "FOREBAY_STUB_LEDGER": str(self.home / "books.json"),
            **more,
        }

    def begin(self, *arguments: str | Path, **settings: str) -> subprocess.Popen[str]:
        """A command that goes on meanwhile; `ended` waits for it."""
        self.books.unlink(missing_ok=True)
        return processes.start([sys.executable, *arguments], env=self.environment(**settings), cwd=self.home)

    def ended(self, process: subprocess.Popen[str], timeout: float = processes.PATIENCE_S) -> Ran:
        return self._ran(processes.finish(process, timeout))

    def _ran(self, done: subprocess.CompletedProcess[str]) -> Ran:
        assert "Traceback" not in done.stderr, done.stderr
        books = json.loads(self.books.read_text()) if self.books.exists() else None
        return Ran(done.returncode, done.stdout, done.stderr, books)

    def python(self, *arguments: str, timeout: float = processes.PATIENCE_S, **settings: str) -> Ran:
        return self.ended(self.begin(*arguments, **settings), timeout)

    def forebay(self, *arguments: str | Path, **settings: str) -> Ran:
        self.books.unlink(missing_ok=True)
        words = [*processes.FOREBAY, *arguments]
        return self._ran(processes.run(words, env=self.environment(**settings), cwd=self.home))

    def bench(self, source: str | Path, path: str, *flags: str, **settings: str) -> Ran:
        """One quiet `bench` with `--json`; skips, with the reason, a path that can't run here at all."""
        power = () if "--power" in flags else ("--power", "none")
        ran = self.forebay("bench", source, "--path", path, *flags, *power, "--json", "--quiet", **settings)
        # A real GPU may be where cuFile isn't, or doesn't get along with the file system.
        if "this version doesn't have it yet" in ran.err or (self.stubs is None and path == "gds" and ran.exit == 3):
            pytest.skip(ran.err.splitlines()[0])
        return ran
