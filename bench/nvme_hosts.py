"""As much of an NVMe/TCP host as it takes to hold connections: ICReq, Connect, enable. One socket per queue.

Layouts: NVMe/TCP transport 1.0 section 3.6 (PDUs), NVMe base 2.0 section 6 (fabrics commands).
"""

from __future__ import annotations

import socket
import struct
import uuid

ADMIN_ENTRIES, IO_ENTRIES = 32, 32


class Host:
    """One host's controller: an admin queue and some I/O queues, all idle once they stand."""

    def __init__(self, address: tuple[str, int], subsystem: str, nqn: str) -> None:
        self.address, self.subsystem, self.nqn = address, subsystem, nqn
        self.id = uuid.uuid5(uuid.NAMESPACE_URL, nqn).bytes
        self.admin = self._connection()
        self.controller = self._connect(self.admin, 0, 0xFFFF, ADMIN_ENTRIES)
        self.queues: list[socket.socket] = []
        self._enable()

    def open_queue(self) -> socket.socket:
        connection = self._connection()
        self._connect(connection, len(self.queues) + 1, self.controller, IO_ENTRIES)
        self.queues.append(connection)
        return connection

    def close(self) -> None:
        for connection in (*self.queues, self.admin):
            connection.close()

    def _connection(self) -> socket.socket:
        connection = socket.create_connection(self.address, timeout=30)
        connection.sendall(struct.pack("<BBBBIHBBI112x", 0, 0, 128, 0, 128, 0, 0, 0, 0))
        answer = exactly(connection, 128)
        assert answer[0] == 1, f"ICResp expected, PDU type {answer[0]} came"
        return connection

    def _connect(self, connection: socket.socket, queue: int, controller: int, entries: int) -> int:
        data = struct.pack(
            "<16sH238x256s256s256x", self.id, controller, self.subsystem.encode(), self.nqn.encode()
        )
        fields = struct.pack("<HHHBBI", 0, queue, entries - 1, 0, 0, 0)
        sqe = struct.pack("<BBHB19x", 0x7F, 0x40, 0, 0x01) + in_capsule(len(data)) + fields.ljust(24, b"\0")
        result = answered(connection, sqe, data)
        return result & 0xFFFF

    def _enable(self) -> None:
        """Property Set of CC (offset 14h): EN, and entries of 64 and 16 bytes."""
        value = 1 | 6 << 16 | 4 << 20
        sqe = struct.pack("<BBHB35xB3xIQ8x", 0x7F, 0x40, 1, 0x00, 0, 0x14, value)
        answered(self.admin, sqe, b"")


def in_capsule(length: int) -> bytes:
    return struct.pack("<QI3xB", 0, length, 0x01)


def answered(connection: socket.socket, sqe: bytes, data: bytes) -> int:
    """The result of a command whose response is all that comes."""
    assert len(sqe) == 64, len(sqe)
    offset = 72 if data else 0
    connection.sendall(struct.pack("<BBBBI", 4, 0, 72, offset, 72 + len(data)) + sqe + data)
    answer = exactly(connection, 24)
    result, _, _, _, status = struct.unpack("<QHHHH", answer[8:])
    if answer[0] != 5 or status >> 1:
        raise ConnectionRefusedError(f"PDU type {answer[0]}, status {status >> 1:#x}")
    return int(result)


def exactly(connection: socket.socket, count: int) -> bytes:
    got = b""
    while len(got) < count:
        more = connection.recv(count - len(got))
        if not more:
            raise ConnectionError("the target closed the connection")
        got += more
    return got
