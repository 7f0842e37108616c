"""One KV cache in three places: `python bench/kv_places.py --dir DIR`.

Option 1 of `forebay emulate kvcache` on a file of DIR, on the same kind of file over NVMe/TCP (`forebay serve`, loopback), and
through the gateway (`forebay snap`, vfio-user), in turn, over and over. All three serve the same stream of requests, which its
hash proves. Exit: 0; a place that can't be had is left out and named.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from peers import installed, run
from side_by_side import Cell, Contender, Figure, Unavailable, arguments, compare, say, spent_s

TITLE = "A key-value cache, local, over NVMe/TCP and through the gateway"
LOCAL, TCP, GATEWAY = "local file", "NVMe/TCP", "gateway, vfio-user"
NQN = "nqn.2026-01.io.example:kv"
PATIENCE_S = 30.0
GATEWAY_TOML = """
[[subsystems]]
nqn = "{nqn}"
[[subsystems.namespaces]]
source = "{file}"
writable = true
[[subsystems.controllers]]
socket = "{socket}"
"""


def made(folder: Path, name: str, gib: float) -> Path:
    file = folder / f"forebay-kv-{name}"
    with open(file, "wb") as out:
        os.posix_fallocate(out.fileno(), 0, int(gib * (1 << 30)))
    return file


@contextlib.contextmanager
def service(words: list[str], ready: str = "", socket: Path | None = None) -> Iterator[str]:
    """Runs until the end of the block; the line with which it said that it was ready, or nothing where its socket says it."""
    with tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen([installed(), *words], stdout=subprocess.PIPE, stderr=err, text=True, start_new_session=True)
        try:
            assert process.stdout is not None
            until, line = time.monotonic() + PATIENCE_S, ""
            while not (socket.exists() if socket is not None else re.search(ready, line)):
                if socket is None:
                    line = process.stdout.readline()
                else:
                    time.sleep(0.05)
                if (socket is None and not line) or process.poll() is not None or time.monotonic() > until:
                    err.seek(0)
                    raise Unavailable(f"{words[0]} wasn't ready: {err.read()[-300:]}")
            yield line
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()


def place(name: str, source: str, flag: str, options: argparse.Namespace) -> Contender:
    words = ["emulate", "kvcache", "--dir", source, flag, source, "--users", str(options.users), "--model", options.model]
    words += ["--json", "-q"]

    def measure(seconds: float) -> Figure:
        record = json.loads(run([installed(), *words, "--duration", str(seconds)], 900).stdout)
        part, result = record["kvcache"], record["result"]
        options.hashes.add((seconds, part["stream_hash"]))
        if len({stream for at, stream in options.hashes if at == seconds}) > 1:
            raise Unavailable("its stream is another one")
        proof: dict[str, Any] = {"read_gib_s": part["read_gib_s"], "write_gib_s": part["write_gib_s"], "limit": part["limit"]}
        return Figure(result["seconds"], result["bytes"], result["ios"], spent_s(result["cpu"]), None, proof)

    return Contender(name, measure, ["forebay", *words])


def cell(options: argparse.Namespace, sources: dict[str, tuple[str, str]]) -> Cell:
    there = Cell("option 1", [], [], ours=LOCAL)
    for name, (source, flag) in sources.items():
        contender = place(name, source, flag, options)
        try:
            contender.measure(1.0)
        except Unavailable as reason:
            say(f"left out: {name}: {reason}")
            there.lost[name] = str(reason)
            continue
        there.contenders.append(contender)
    return there


def main() -> int:
    # Services end with it: SIGTERM unwinds as Ctrl-C does.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    parser = arguments(__doc__ or "", 5.0, only=False)
    parser.add_argument("--users", type=int, default=20, help="users of option 1 (20)")
    parser.add_argument("--model", default="llama3.1-8b", help="as of emulate kvcache (llama3.1-8b)")
    parser.add_argument("--gib", type=float, default=8, help="size of each file (8)")
    options = parser.parse_args()
    options.hashes = set()
    files = [made(options.dir, name, options.gib) for name in ("local", "tcp", "gateway")]
    sources = {LOCAL: (str(files[0]), "--overwrite")}
    try:
        with contextlib.ExitStack() as stack:
            home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="forebay-kv-")))
            try:
                words = ["serve", str(files[1]), "--nqn", NQN, "--listen", "127.0.0.1:0", "--writable"]
                line = stack.enter_context(service(words, r"listening on \S+"))
                address = re.search(r"[\d.]+:\d+", line)
                uri = f"nvme+tcp://{address[0] if address else ''}/{NQN}"
                sources[TCP] = (uri, "--overwrite-device")
                (home / "snap.toml").write_text(GATEWAY_TOML.format(nqn=NQN, file=files[2], socket=home / "s.sock"))
                stack.enter_context(service(["snap", str(home / "snap.toml"), "--rpc", "off"], socket=home / "s.sock"))
                sources[GATEWAY] = (f"vfio-user:{home / 's.sock'}", "--overwrite-device")
            except Unavailable as reason:
                say(str(reason))
            return compare(TITLE, options, [lambda: cell(options, sources)])
    finally:
        for file in files:
            file.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())
