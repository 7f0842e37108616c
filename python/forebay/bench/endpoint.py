"""`--metrics`: live metrics of a run in Prometheus's text format, served over HTTP for as long as the command runs."""

from __future__ import annotations

import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from forebay.errors import MachineError, RequestError
from forebay.export import prometheus

EXAMPLE = "--metrics 127.0.0.1:9400"
# A client has this long for its request.
PATIENCE_S = 5.0


def address(text: str) -> tuple[str, int]:
    """`9400` (of the loopback interface), `HOST:PORT` or `[IPV6]:PORT`. RequestError for anything else."""
    match = re.fullmatch(r"(?:(\[[0-9A-Fa-f:.]+\]|[^\s:\[\]]+):)?([0-9]{1,5})", text)
    if match is None or int(match[2]) > 65535:
        raise RequestError(f"--metrics {text}", "is neither a port nor HOST:PORT", EXAMPLE)
    return (match[1] or "127.0.0.1").strip("[]"), int(match[2])


class Endpoint:
    """Listens from the start on; hands out the latest Progress of the job under way."""

    def __init__(self, text: str) -> None:
        host, port = address(text)
        self._lock = threading.Lock()
        self._samples: list[prometheus.Sample] = []
        self._published: dict[str, Any] = {}
        try:
            self._server = _server(host, port, self.text)
        except OSError as error:
            raise MachineError(f"--metrics {text}", f"can't listen there ({error.strerror or error})", "another port") from error
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self._server.server_address[1]}/metrics"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.2}, daemon=True)
        self._thread.start()

    def see(self, job: dict[str, Any], title: str, progress: dict[str, Any]) -> None:
        """Takes a Progress of `job` in place of the one before."""
        samples = list(prometheus.of_progress(job, title, progress))
        with self._lock:
            self._samples = samples

    def tell(self, **figures: Any) -> None:
        """Takes figures of the whole command, which stay beside those of whichever run is under way. None: not known."""
        with self._lock:
            self._published.update(figures)

    def text(self) -> str:
        with self._lock:
            return prometheus.text([*self._samples, *prometheus.of_command(self._published)])

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _server(host: str, port: int, text: Any) -> ThreadingHTTPServer:
    import socket

    family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]

    class Server(ThreadingHTTPServer):
        address_family = family
        daemon_threads = True
        block_on_close = False  # a client that dawdles holds no run up

        def server_bind(self) -> None:
            # Without HTTPServer's look-up of the machine's name, which may take a resolver's patience.
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.socket.bind(self.server_address)
            self.server_address = self.socket.getsockname()
            self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

        def handle_error(self, request: Any, client_address: Any) -> None:
            """Prints nothing: a client's errors are its own trouble."""

    class Handler(BaseHTTPRequestHandler):
        timeout = PATIENCE_S
        server_version, sys_version = "forebay", ""

        def do_GET(self) -> None:
            there = self.path.split("?")[0] in ("/", "/metrics")
            body = (text() if there else "only /metrics is served here\n").encode(errors="replace")
            self.send_response(200 if there else 404)
            self.send_header("Content-Type", prometheus.CONTENT_TYPE if there else "text/plain; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing: stderr is the run's."""

    return Server((str(place[0]), int(place[1])), Handler)
