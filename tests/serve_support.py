"""A real target for tests: the installed command on a free port, and what it says of itself."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import processes
from processes import PATIENCE_S

NQN = "nqn.2026-01.io.example:test"


class Target:
    """`forebay serve` from its first line to its end. Both streams are read as they come."""

    def __init__(self, *arguments: str | os.PathLike[str], listen: Sequence[str] = ("127.0.0.1:0",), **environment: str) -> None:
        words = [os.fspath(a) for a in arguments]
        if not words[0].endswith(".toml"):
            words += [w for address in listen for w in ("--listen", address)]
        self.process = processes.start([*processes.FOREBAY, "serve", *words], env={**os.environ, **environment})
        self.out: list[str] = []
        self.err: list[str] = []
        self._readers = [
            threading.Thread(target=lines.extend, args=(stream,), daemon=True)
            for lines, stream in ((self.out, self.process.stdout), (self.err, self.process.stderr))
        ]
        for reader in self._readers:
            reader.start()
        try:
            self.line = self.wait_for(r"listening on .*")
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> Target:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            processes.kill(self.process)
        self.process.wait()
        self._read_out()

    @property
    def addresses(self) -> list[str]:
        return re.findall(r"[\d.]+:\d+|\[[^\]]*\]:\d+", self.line.split(" · ")[0])

    @property
    def port(self) -> int:
        return int(self.addresses[0].rsplit(":", 1)[1])

    def uri(self, query: str = "", nqn: str = NQN, address: str | None = None) -> str:
        return f"nvme+tcp://{address or self.addresses[0]}/{nqn}" + (f"?{query}" if query else "")

    def wait_for(self, pattern: str, since: int = 0) -> str:
        """The first line of either stream that has it."""

        def said_or_over() -> tuple[str | None] | None:
            over = self.process.poll() is not None
            if over:
                self._read_out()
            line = next((line for line in [*self.out[since:], *self.err[since:]] if re.search(pattern, line)), None)
            return (line,) if line is not None or over else None

        (line,) = processes.wait_until(said_or_over, f"{pattern!r} from serve")
        assert line is not None, f"no {pattern!r} from serve (exit {self.process.poll()}):\n{''.join(self.out + self.err)}"
        return str(line).rstrip("\n")

    def _read_out(self) -> None:
        """What it said at last is still on its way."""
        for reader in self._readers:
            reader.join(processes.GRACE_S)

    def end(self, number: int = signal.SIGTERM) -> int:
        """Its exit code after a signal."""
        self.process.send_signal(number)
        code = self.process.wait(PATIENCE_S)
        self._read_out()
        return code

    def metrics(self) -> str:
        where = re.search(r"metrics on (http://\S+)", self.line)
        assert where, self.line
        with urllib.request.urlopen(where[1], timeout=PATIENCE_S) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            return answer.read().decode()


def eventually(check: Callable[[], Any], what: str) -> Any:
    """What `check` returns once it is true."""
    return processes.wait_until(check, what)


def document(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The JSON document of a command that must have succeeded."""
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def toml(path: Path, namespaces: Sequence[str], head: str = "", nqn: str = NQN, more: str = "allow_any_host = true") -> Path:
    """A configuration with one subsystem; each namespace in TOML's words, without its heading."""
    text = f'listen = ["127.0.0.1:0"]\n{head}\n[[subsystems]]\nnqn = "{nqn}"\n{more}\n'
    path.write_text(text + "".join(f"[[subsystems.namespaces]]\n{n}\n" for n in namespaces))
    return path


# Prometheus' text format 0.0.4, as far as a server may write it.
_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_LABELS = r'\{(?:[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*",?)*\}'
_SAMPLE = re.compile(rf"({_NAME})({_LABELS})? ([+-]?(?:[0-9.]+(?:e[+-]?[0-9]+)?|Inf)|NaN)( [0-9]+)?")
_KINDS = {"counter", "gauge", "histogram", "summary", "untyped"}
_PARTS = re.compile(r"_(bucket|sum|count)$")


def parse_metrics(text: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Samples by name. Asserts what Prometheus asks for: names, labels, one TYPE before the samples of a
    family, families in one piece, each series once, buckets that ascend to +Inf and agree with the count."""
    assert text.endswith("\n")
    kinds: dict[str, str] = {}
    helped: set[str] = set()
    closed: set[str] = set()
    current = ""
    samples: dict[str, list[tuple[dict[str, str], float]]] = {}
    seen: set[tuple[str, str]] = set()
    for line in text.splitlines():
        if not line:
            continue
        if line.startswith("# "):
            word, name, rest = line[2:].split(" ", 2)
            assert word in ("HELP", "TYPE") and re.fullmatch(_NAME, name), line
            if word == "TYPE":
                assert rest in _KINDS and name not in kinds, line
                kinds[name] = rest
            else:
                assert name not in helped and rest.strip(), line
                helped.add(name)
            continue
        match = _SAMPLE.fullmatch(line)
        assert match, line
        name, labels, value = match[1], match[2] or "", float(match[3])
        base = _PARTS.sub("", name)
        family = base if kinds.get(base) == "histogram" else name
        assert family in kinds, f"no TYPE before {line}"
        if family != current:
            assert family not in closed, f"{family} in two pieces"
            closed.add(current)
            current = family
        assert (name, labels) not in seen, f"twice: {line}"
        seen.add((name, labels))
        pairs = dict(re.findall(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"', labels))
        assert kinds[family] != "counter" or (value >= 0 and family.endswith("_total")), line
        samples.setdefault(name, []).append((pairs, value))
    for name in (n for n, kind in kinds.items() if kind == "histogram"):
        _check_buckets(name, samples)
    return samples


def _check_buckets(name: str, samples: dict[str, list[tuple[dict[str, str], float]]]) -> None:
    series: dict[tuple[tuple[str, str], ...], list[tuple[float, float]]] = {}
    for labels, value in samples.get(f"{name}_bucket", []):
        key = tuple(sorted((k, v) for k, v in labels.items() if k != "le"))
        series.setdefault(key, []).append((float(labels["le"].replace("+Inf", "inf")), value))
    counts = {tuple(sorted(labels.items())): value for labels, value in samples.get(f"{name}_count", [])}
    assert series.keys() == counts.keys()
    for key, buckets in series.items():
        assert buckets == sorted(buckets) and buckets[-1] == (float("inf"), counts[key]), (name, key)
        assert [v for _, v in buckets] == sorted(v for _, v in buckets), (name, key)
