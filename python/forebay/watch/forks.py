"""Which process started which, as it happens: the kernel's process events (connector, netlink). Needs CAP_NET_ADMIN.

Without it, one that lives for a few milliseconds may be gone before /proc is asked whose it was.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
from collections.abc import Iterator

_CONNECTOR, _CN_IDX_PROC, _LISTEN, _FORK = 11, 1, 1, 1
# nlmsghdr, cn_msg, and of proc_event: what, cpu, time, then of a fork the parent's and the child's thread and process.
_NETLINK, _MESSAGE, _EVENT, _FORKED = (
    struct.Struct("=IHHII"),
    struct.Struct("=IIIIHH"),
    struct.Struct("=IIQ"),
    struct.Struct("=IIII"),
)
_RECEIVE_BYTES = 4 << 20
_SO_RCVBUFFORCE = 33


class Forks:
    """Forks of the whole machine since this was made. `refused`: why they can't be had."""

    def __init__(self) -> None:
        self.refused: str | None = None
        self._socket: socket.socket | None = None
        try:
            made = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK, _CONNECTOR)
            self._socket = made
            made.bind((0, _CN_IDX_PROC))
            with contextlib.suppress(OSError):
                made.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _RECEIVE_BYTES)
            wish = struct.pack("=I", _LISTEN)
            message = _MESSAGE.pack(_CN_IDX_PROC, 1, 0, 0, len(wish), 0) + wish
            made.send(_NETLINK.pack(_NETLINK.size + len(message), 3, 0, 0, os.getpid()) + message)
        except OSError as error:
            self.refused = f"process events: {error.strerror}: needs CAP_NET_ADMIN"
            self.close()

    def new(self) -> Iterator[tuple[int, int]]:
        """(process, its child) of each fork that has come; threads are none."""
        while self._socket is not None:
            try:
                text = self._socket.recv(4096)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno == errno.ENOBUFS:  # some were dropped
                    continue
                return
            at = _NETLINK.size + _MESSAGE.size
            if len(text) < at + _EVENT.size + _FORKED.size or _EVENT.unpack_from(text, at)[0] != _FORK:
                continue
            _, parent, thread, child = _FORKED.unpack_from(text, at + _EVENT.size)
            if thread == child:
                yield parent, child

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
