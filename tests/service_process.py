"""A verb that runs until a signal comes, as a process."""

from __future__ import annotations

import os
import signal
import subprocess

from processes import FOREBAY, PATIENCE_S


class Running:
    """`forebay WORDS` with both streams as pipes; killed when it is left."""

    def __init__(self, *words: object, **environment: str) -> None:
        self.process = subprocess.Popen(
            [*FOREBAY, *map(str, words)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def wait_for(self, stream: str, word: str) -> str:
        """The first line of stdout or stderr with `word` in it."""
        for line in getattr(self.process, stream):
            if word in line:
                return line.rstrip("\n")
        raise AssertionError(f"{stream} ended without {word}")

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str, str]:
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, out, err
