"""A headless Chromium for tests, spoken to over its debugging pipe: no port, no driver, no network."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import processes

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-default-apps", "--disable-extensions", "--hide-scrollbars",
    "--disable-dev-shm-usage", "--disable-domain-reliability", "--no-pings", "--remote-debugging-pipe",
)  # fmt: skip


def executable() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One page in one browser. Use as a context manager; `requests` holds every URL that it asked for."""

    def __init__(self, timeout_s: float = processes.PATIENCE_S) -> None:
        self.timeout_s = timeout_s
        self.requests: list[str] = []
        self.console: list[str] = []
        self._number = 0
        self._buffer = b""

    def __enter__(self) -> Browser:
        with contextlib.ExitStack() as undo:
            # Everything that it makes lies there, also what it doesn't remove when it is killed.
            self._profile = tempfile.mkdtemp(prefix="forebay-browser-")
            undo.callback(self._remove_profile)
            self._start(undo)
            self._undo = undo.pop_all()
        return self

    def _start(self, undo: contextlib.ExitStack) -> None:
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()

        # The browser reads commands from descriptor 3 and answers on 4. They go through high numbers first,
        # since a pipe may already lie on 3 or 4.
        def place() -> None:
            high_in, high_out = os.dup(theirs_in), os.dup(theirs_out)
            high_in, high_out = (fd if fd > 9 else _raise(fd) for fd in (high_in, high_out))
            os.dup2(high_in, 3)
            os.dup2(high_out, 4)

        command = [executable() or "chromium", *FLAGS, f"--user-data-dir={self._profile}", "about:blank"]
        silent = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        environment = {**os.environ, "TMPDIR": self._profile}
        for mine in (self._out, self._in):
            undo.callback(os.close, mine)
        try:
            self._process = processes.start(
                command, preexec_fn=place, pass_fds=(3, 4), env=environment, **silent
            )
        finally:
            os.close(theirs_in)
            os.close(theirs_out)
        undo.callback(self._end)
        page = processes.wait_until(self._page, "the browser has a page", self._process)
        attached = self._send("Target.attachToTarget", targetId=page["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def __exit__(self, *error: object) -> None:
        self._undo.close()

    def _page(self) -> dict[str, Any] | None:
        """Its first page, which may come up after it answers."""
        targets = self._send("Target.getTargets")["targetInfos"]
        return next((t for t in targets if t["type"] == "page"), None)

    def _end(self) -> None:
        """The browser, and its helpers: they are of its group."""
        processes.kill(self._process)
        self._process.wait()

    def _remove_profile(self) -> None:
        """A helper that is about to die may still write there."""

        def removed() -> bool:
            shutil.rmtree(self._profile, ignore_errors=True)
            return not os.path.exists(self._profile)

        processes.wait_until(removed, f"{self._profile} is removed", within_s=self.timeout_s)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._send(method, self._session, **parameters)

    def open(
        self, path: Path, width: int = 1280, height: int = 900, *, dark: bool = False, media: str = "screen"
    ) -> None:
        """Shows a local file at a size, and waits until it is loaded."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", media=media, features=features)
        self.call("Page.navigate", url=path.resolve().as_uri())
        end = time.monotonic() + self.timeout_s
        while self.value("document.readyState + location.protocol") != "completefile:":
            if time.monotonic() > end:
                raise TimeoutError(f"{path} didn't load")
            time.sleep(0.02)

    def value(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            raise AssertionError(answer["exceptionDetails"])
        return answer["result"].get("value")

    def full_screenshot(self, path: Path, height_max: int | None = None) -> None:
        """The whole page, or its first `height_max` pixels, as wide as the window."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        height = min(size["height"], height_max or size["height"])
        clip = {"x": 0, "y": 0, "width": size["width"], "height": height, "scale": 1}
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(answer["data"]))

    def pdf(self, path: Path) -> None:
        """A4, as the print dialogue would make it."""
        self.call("Emulation.setEmulatedMedia", media="print", features=[])
        answer = self.call(
            "Page.printToPDF",
            paperWidth=8.27,
            paperHeight=11.69,
            printBackground=True,
            preferCSSPageSize=True,
        )
        path.write_bytes(base64.b64decode(answer["data"]))

    def _send(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters} | (
            {"sessionId": session} if session else {}
        )
        os.write(self._out, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + self.timeout_s
        while time.monotonic() < end:
            answer = self._receive(end)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']}")
                return answer["result"]
            self._event(answer)
        raise TimeoutError(f"{method}: the browser gave no answer in {self.timeout_s} s")

    def _event(self, event: dict[str, Any]) -> None:
        if event.get("method") == "Network.requestWillBeSent":
            self.requests.append(event["params"]["request"]["url"])
        if event.get("method") == "Log.entryAdded":
            self.console.append(event["params"]["entry"]["text"])

    def _receive(self, end: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0.0, end - time.monotonic()))
            part = os.read(self._in, 1 << 20) if ready else b""
            if not part:
                raise TimeoutError("the browser closed its pipe" if ready else "the browser gave no answer")
            self._buffer += part
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)


def _raise(descriptor: int) -> int:
    import fcntl

    return fcntl.fcntl(descriptor, fcntl.F_DUPFD, 10)
