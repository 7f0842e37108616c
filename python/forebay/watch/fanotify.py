"""fanotify(7): which files are opened, by which process, on whole file systems. Needs CAP_SYS_ADMIN.

The kernel sends an event and goes on: nobody waits for this process. FAN_ACCESS, an event for each read, is not asked
for: at a million reads a second it would cost the readers something.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import struct
from collections.abc import Iterator

FAN_CLOEXEC, FAN_NONBLOCK = 0x1, 0x2
FAN_MARK_ADD, FAN_MARK_FILESYSTEM, FAN_MARK_MOUNT = 0x1, 0x100, 0x10
FAN_CLOSE_WRITE, FAN_OPEN, FAN_Q_OVERFLOW = 0x8, 0x20, 0x4000
_AT_FDCWD, _NO_FD = -100, -1
_EVENT = struct.Struct("=IBBHQii")
_BUFFER_BYTES = 16384


class Fanotify:
    """Events of opened files. OSError where the kernel or its rights refuse it."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        flags = os.O_RDONLY | os.O_LARGEFILE | os.O_CLOEXEC | os.O_NOATIME | os.O_NONBLOCK
        self.descriptor = self._libc.fanotify_init(FAN_CLOEXEC | FAN_NONBLOCK, flags)
        if self.descriptor < 0:
            raise _error("fanotify_init")
        self._libc.fanotify_mark.argtypes = [
            ctypes.c_int, ctypes.c_uint, ctypes.c_uint64, ctypes.c_int, ctypes.c_char_p,
        ]  # fmt: skip
        self.overflows = 0
        # All that had come was read.
        self.is_drained = False

    def mark(self, path: str) -> None:
        """Adds the file system that `path` lies on. OSError where it has no such events."""
        mask = FAN_OPEN | FAN_CLOSE_WRITE
        for kind in (FAN_MARK_FILESYSTEM, FAN_MARK_MOUNT):
            if self._libc.fanotify_mark(self.descriptor, FAN_MARK_ADD | kind, mask, _AT_FDCWD, os.fsencode(path)) == 0:
                return
        raise _error(path)

    def events(self) -> Iterator[tuple[int, int, int]]:
        """(pid, mask, descriptor) of what is there now. The descriptor is closed behind each."""
        self.is_drained = False
        try:
            buffer = os.read(self.descriptor, _BUFFER_BYTES)
        except BlockingIOError:
            self.is_drained = True
            return
        except OSError as error:
            # A file that can't be opened for us (a device without a driver, too many open files) loses its event.
            if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENXIO, errno.ENODEV, errno.EPERM, errno.ETXTBSY):
                raise
            self.overflows += 1
            return
        self.is_drained = len(buffer) + _EVENT.size <= _BUFFER_BYTES
        at = 0
        while at + _EVENT.size <= len(buffer):
            length, _, _, _, mask, descriptor, pid = _EVENT.unpack_from(buffer, at)
            at += max(length, _EVENT.size)
            if mask & FAN_Q_OVERFLOW:
                self.overflows += 1
            if descriptor == _NO_FD:
                continue
            try:
                yield pid, mask, descriptor
            finally:
                os.close(descriptor)

    def close(self) -> None:
        if self.descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(self.descriptor)
            self.descriptor = -1


def _error(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), what)
