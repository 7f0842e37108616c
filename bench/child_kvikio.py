"""KvikIO, through its Python interface, as bench/child.py asks it: `child_kvikio.py FILE [SMALL_FILES_FOLDER]`.

The destination is one CuPy array, allocated before anything is measured. A request may hold
  threads, task        KvikIO's pool and task size
  mode                 whole (default), futures or threads (random reads), files (a handle for each small file)
  block                bytes of a random read
  cold                 drop the file from the page cache first, and read on from there
  direct               KvikIO's own O_DIRECT reads (auto_direct_io_read)
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from child import Answer, Stopwatch, drop, repeated, serve
from small_files import names

IN_FLIGHT = 256
PIECE = 1 << 30


def prepare(arguments: Sequence[str]) -> Callable[[dict[str, Any]], Answer]:
    import cupy
    import kvikio
    import kvikio.defaults

    path = arguments[0]
    small = names(arguments[1]) if len(arguments) > 1 else []
    size = os.path.getsize(path) if path != "-" else sum(os.path.getsize(f) for f in small)
    destination = cupy.empty(size, dtype=cupy.uint8)
    position = 0

    def whole(request: dict[str, Any]) -> Answer:
        with kvikio.CuFile(path, "r") as file:
            return repeated(lambda: file.read(destination), request["seconds"])

    def cold(request: dict[str, Any]) -> Answer:
        """Goes on where the last run ended, so that nothing is read twice while it may still be cached."""
        nonlocal position
        drop(path)
        with kvikio.CuFile(path, "r") as file:
            watch = Stopwatch()
            moved = 0
            while watch.seconds() < request["seconds"]:
                want = min(PIECE // 4, size - position)
                moved += file.read(destination[position : position + want], want, position)
                position = (position + want) % size
            return watch.answer(moved, moved // request["task"])

    def reads(request: dict[str, Any]) -> Answer:
        if request.get("cold"):
            drop(path)
        block = request["block"]
        views = [destination[i * block : (i + 1) * block] for i in range(IN_FLIGHT)]
        shape = {"futures": by_futures, "threads": by_threads}[request["mode"]]
        with kvikio.CuFile(path, "r") as file:
            return shape(file, views, block, size // block, request)

    def files(request: dict[str, Any]) -> Answer:
        return each_file(kvikio.CuFile, small, destination, request)

    def measured(request: dict[str, Any]) -> Answer:
        mode = request.get("mode", "whole")
        if mode == "files":
            return files(request)
        if mode != "whole":
            return reads(request)
        return cold(request) if request.get("cold") else whole(request)

    def run(request: dict[str, Any]) -> Answer:
        configure(kvikio.defaults, request)
        answer = measured(request)
        # Whether it went through cuFile (OFF) or its own threads (ON), if it chose for itself (AUTO).
        mode = str(kvikio.defaults.get("compat_mode"))
        return answer | {"proof": {"compat_mode": mode, "preferred": kvikio.defaults.is_compat_mode_preferred()}}

    if path != "-":
        configure(kvikio.defaults, {"threads": 8, "task": 4 << 20})
        with kvikio.CuFile(path, "r") as file:
            file.read(destination[: min(size, PIECE)])
    return run


def configure(defaults: Any, request: dict[str, Any]) -> None:
    settings = {"num_threads": request["threads"], "task_size": request["task"]}
    defaults.set(settings | {"auto_direct_io_read": bool(request.get("direct"))})


def by_futures(file: Any, views: list[Any], block: int, blocks: int, request: dict[str, Any]) -> Answer:
    """KvikIO's own pool, IN_FLIGHT reads at a time."""
    draw = random.Random(request.get("seed", 7)).randrange
    watch = Stopwatch()
    flying: deque[Any] = deque()
    done = 0
    while watch.seconds() < request["seconds"]:
        for _ in range(64):
            if len(flying) == IN_FLIGHT:
                flying.popleft().get()
                done += 1
            flying.append(file.pread(views[(done + len(flying)) % IN_FLIGHT], block, draw(blocks) * block))
    while flying:
        flying.popleft().get()
        done += 1
    return watch.answer(done * block, done)


def by_threads(file: Any, views: list[Any], block: int, blocks: int, request: dict[str, Any]) -> Answer:
    """As many Python threads, each with one blocking read at a time."""
    threads = request["threads"]
    counts = [0] * threads
    stop = threading.Event()

    def go(number: int) -> None:
        draw = random.Random(number).randrange
        view = views[number % IN_FLIGHT]
        done = 0
        while not stop.is_set():
            file.read(view, block, draw(blocks) * block)
            done += 1
        counts[number] = done

    pool = [threading.Thread(target=go, args=(n,)) for n in range(threads)]
    watch = Stopwatch()
    for thread in pool:
        thread.start()
    time.sleep(request["seconds"])
    stop.set()
    for thread in pool:
        thread.join()
    return watch.answer(sum(counts) * block, sum(counts))


def each_file(opened: Any, small: list[str], destination: Any, request: dict[str, Any]) -> Answer:
    """Opens, reads and closes every file once, shared out over Python threads. Views are made beforehand."""
    threads = request["threads"]
    bytes_each = os.path.getsize(small[0])
    wanted = small[: request.get("files", len(small))]
    views = [destination[i * bytes_each : (i + 1) * bytes_each] for i in range(len(wanted))]
    moved = [0] * threads
    failed: list[BaseException] = []

    def go(number: int) -> None:
        total = 0
        try:
            for i in range(number, len(wanted), threads):
                with opened(wanted[i], "r") as file:
                    total += file.read(views[i])
        except BaseException as error:
            failed.append(error)
        moved[number] = total

    pool = [threading.Thread(target=go, args=(n,)) for n in range(threads)]
    watch = Stopwatch()
    for thread in pool:
        thread.start()
    for thread in pool:
        thread.join()
    answer = watch.answer(sum(moved), len(wanted))
    if failed:
        raise failed[0]
    return answer


if __name__ == "__main__":
    sys.exit(serve(prepare))
