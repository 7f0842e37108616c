"""The full-screen view: its frames at any size, and the real thing in a pseudo-terminal and in tmux."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import select
import shlex
import shutil
import signal
import struct
import sys
import termios
import time
from pathlib import Path

import fake_engine
import processes
import pytest
from forebay.bench import live
from hypothesis import given
from hypothesis import strategies as st
from properties import examples

HERE = Path(__file__).parent
JOB = {"sources": ["/data"], "op": "read", "io_bytes": 1 << 20, "workers": 2, "depth": 8, "path": "host"}
DRIVER = f"""
import sys; sys.path.insert(0, {str(HERE)!r})
import fake_engine, forebay.run, forebay.cli
from pathlib import Path
forebay.run.run = fake_engine.slow_run(3600, over=Path(sys.argv[1]).exists)
forebay.cli.main(["bench", "/data", "--live"])
"""


@examples(150)
@given(
    width=st.integers(1, 250),
    height=st.integers(1, 80),
    workers=st.integers(0, 200),
    targets=st.integers(0, 70),
    history=st.lists(st.floats(0, 100), max_size=400),
)
def test_a_frame_fits_every_terminal(width, height, workers, targets, history):
    rate = {"gib_s": 1.0, "iops": 10.0}
    parts = {
        "workers": [rate] * workers,
        "targets": [{"target": f"/a/long/path/{i}", **rate} for i in range(targets)],
    }
    lines = live.frame(JOB, fake_engine.progress(**parts), history, width, height)
    assert len(lines) <= height and all(len(line) <= width for line in lines)


def test_a_frame_shows_rates_latency_cpu_parts_history_and_time_left():
    text = "\n".join(live.frame(JOB, fake_engine.progress(), [1.0, 2.0], 100, 30))
    for expected in (
        "2.00 GiB/s",
        "2,048",
        "1.80 ms",
        "0.400 cores",
        "9.0 s left",
        "worker 1",
        "/data/b",
        "▅█",
    ):
        assert expected in text


def test_bars_are_as_long_as_their_rates():
    lines = live.frame(JOB, fake_engine.progress(), [], 100, 30)
    bars = [line.count("█") for line in lines if line.startswith("worker")]
    assert bars[0] == pytest.approx(3 * bars[1], abs=2) and bars[1] > 0


def test_a_part_whose_ios_are_not_counted_claims_no_iops():
    parts = {"workers": [], "targets": [{"target": t, "gib_s": 1.0, "iops": 0} for t in ("/a", "/b")]}
    lines = live.frame(JOB, fake_engine.progress(**parts), [], 100, 30)
    assert [line.endswith("1.00 GiB/s") for line in lines if line.startswith("/")] == [True, True]


def test_what_does_not_fit_is_counted():
    many = [{"gib_s": 1.0, "iops": 10.0}] * 40
    text = "\n".join(live.frame(JOB, fake_engine.progress(workers=many, targets=[]), [], 80, 24))
    shown = text.count("worker ")
    rest = int(re.search(r"and (\d+) workers more", text)[1])
    assert shown + rest == 40


def test_where_there_is_no_terminal_the_reason_is_given(monkeypatch):
    assert live.unavailable(io.StringIO()) == "stderr is not a terminal"
    monkeypatch.setenv("TERM", "dumb")
    stream = io.StringIO()
    stream.isatty = lambda: True
    assert "TERM is dumb" in live.unavailable(stream)


@pytest.fixture
def over(tmp_path):
    """A file that ends the run once it is there."""
    return tmp_path / "over"


def test_a_pipe_gets_the_reason_and_the_summary(over):
    over.touch()
    done = processes.run([sys.executable, "-c", DRIVER, over])
    assert done.returncode == 0
    assert "--live: stderr is not a terminal" in done.stderr and "\x1b" not in done.stderr
    assert "2.00 GiB/s" in done.stdout


class Terminal:
    """A process in a pseudo-terminal of a given size, ended with the block."""

    def __init__(self, arguments, columns, rows, cwd):
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            os.chdir(cwd)
            # Spelled out: readline, which pytest loads, sets COLUMNS and LINES behind os.environ's back.
            environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
            os.execve(sys.executable, [sys.executable, *arguments], {**environment, "TERM": "xterm-256color"})
        self.resize(columns, rows)
        self.seen = b""
        self.code = None

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        if self.code is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.master)

    def resize(self, columns, rows):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read(self) -> bytes:
        """What there is next; nothing at the end."""
        ready = select.select([self.master], [], [], processes.PATIENCE_S)[0]
        assert ready, f"hangs after {self.seen[-2000:]!r}"
        try:
            chunk = os.read(self.master, 65536)
        except OSError:
            chunk = b""
        self.seen += chunk
        return chunk

    def read_until(self, wanted: bytes) -> bytes:
        """What came since the last call, up to and with `wanted`."""
        end = time.monotonic() + processes.PATIENCE_S
        fresh = b""
        while wanted not in fresh:
            chunk = self.read()
            fresh += chunk
            assert chunk, f"ended before {wanted!r}: {fresh[-2000:]!r}"
            assert time.monotonic() < end, f"{wanted!r} not seen in {fresh[-2000:]!r}"
        return fresh

    def drain(self) -> int:
        """Reads to the end; the exit code."""
        while self.read():
            pass
        self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.code


def test_in_a_terminal_it_takes_the_screen_and_gives_it_back(tmp_path, over):
    with Terminal(["-c", DRIVER, str(over)], 100, 30, tmp_path) as terminal:
        terminal.read_until(b"worker 1")
        assert b"\x1b[?1049h" in terminal.seen
        over.touch()
        assert terminal.drain() == 0
    after = terminal.seen.rpartition(b"\x1b[?1049l")[2].decode()
    assert "2.00 GiB/s" in after and "warning" in after, "the summary follows on the normal screen"
    assert b"\x1b[?25h" in terminal.seen, "the cursor is back"


def test_a_resized_terminal_gets_frames_that_fit(tmp_path, over):
    with Terminal(["-c", DRIVER, str(over)], 120, 40, tmp_path) as terminal:
        terminal.read_until(b"worker 1")
        terminal.resize(40, 12)
        os.kill(terminal.pid, signal.SIGWINCH)
        shapes = []
        for _ in range(200):  # frames of the old size may still be on their way
            fresh = terminal.read_until(b"Ctrl-C stops and keeps")
            frame = fresh.rpartition(b"\x1b[H")[2].decode(errors="ignore")
            lines = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", frame).split("\n")
            shapes.append((max(len(line.rstrip("\r")) for line in lines), len(lines)))
            if shapes[-1] == (40, 12):
                break
        assert shapes[-1] == (40, 12), shapes
        over.touch()
        terminal.read_until(b"\x1b[?1049l")
        assert terminal.drain() == 0


def test_ctrl_c_in_the_view_gives_the_screen_back_and_saves(tmp_path, over):
    with Terminal(["-c", DRIVER, str(over)], 80, 24, tmp_path) as terminal:
        terminal.read_until(b"worker 1")
        os.write(terminal.master, b"\x03")
        assert terminal.drain() == 130
    assert terminal.seen.rindex(b"\x1b[?1049l") < terminal.seen.rindex(b"what was measured is in")
    assert len(list(tmp_path.glob("forebay-*.json"))) == 1


@pytest.mark.promise("BEN-21")
def test_q_ends_as_ctrl_c_does_and_the_terminal_is_as_it_was(tmp_path, over):
    with Terminal(["-c", DRIVER, str(over)], 80, 24, tmp_path) as terminal:
        before = termios.tcgetattr(terminal.master)
        terminal.read_until(b"worker 1")
        processes.wait_until(lambda: not termios.tcgetattr(terminal.master)[3] & termios.ICANON, "keys are read")
        os.write(terminal.master, b"xq")
        while b"record" not in terminal.seen and b"what was measured is in" not in terminal.seen:
            assert terminal.read()
        assert termios.tcgetattr(terminal.master)[3] == before[3]
        assert terminal.drain() == 130
    assert len(list(tmp_path.glob("forebay-*.json"))) == 1


@pytest.mark.promise("BEN-21")
def test_the_view_shows_three_percentiles():
    text = "\n".join(live.frame(JOB, fake_engine.progress(), [], 100, 30))
    for name, value in (("p50", "480 µs"), ("p99", "1.80 ms"), ("p99.9", "2.50 ms")):
        assert re.search(rf"latency {name} +{value}", text), text


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux isn't installed")
def test_in_tmux_the_screen_reads_as_meant(tmp_path, over):
    script = tmp_path / "driver.py"
    script.write_text(DRIVER)

    def tmux(*arguments):
        # Relative: the path of a socket has 107 bytes, and that of a test's folder may have more.
        return processes.run(["tmux", "-S", "socket", *arguments], cwd=tmp_path)

    def screen():
        return tmux("capture-pane", "-p").stdout

    # As wide as tmux makes it, not as the tests' environment says.
    driver = shlex.join(["env", "-u", "COLUMNS", "-u", "LINES", sys.executable, str(script), str(over)])
    started = tmux("new-session", "-d", "-x", "90", "-y", "28", driver)
    if started.returncode:
        pytest.skip(f"tmux doesn't start here: {started.stderr.strip()}")
    try:
        # Its last line: of a frame that is being drawn, only the top is there.
        whole = processes.wait_until(lambda: (s := screen()).count("Ctrl-C") and "worker 1" in s and s, "a frame")
        lines = whole.split("\n")
        assert lines[0].startswith("forebay /data")
        assert any(line.startswith("worker 0") and "█" in line for line in lines)
        assert any(line.startswith("q or Ctrl-C") for line in lines)
    finally:
        tmux("kill-server")
