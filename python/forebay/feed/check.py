"""Samples of a batch compared with their files, read a second time by other code: NumPy's own mapping of the file."""

from __future__ import annotations

from typing import Any

from forebay import _core
from forebay.feed.dataset import Dataset
from forebay.feed.samples import Samples
from forebay.headers import masked

# Rows that are compared at a time, in bytes.
PIECE_BYTES = 16 << 20
SUM_BYTES = 4


def check_of(data: Any) -> Check | CheckOfSamples:
    """The comparison that a data set needs."""
    return CheckOfSamples(data) if isinstance(data, Samples) else Check(data)


class CheckOfSamples:
    """Files of samples of different sizes. The ranges that samples are must be what a batch holds."""

    def __init__(self, data: Samples) -> None:
        self.data = data

    def differences(self, batch: Any, samples: list[int]) -> list[str]:
        """A line for each field of a sample that isn't as its file has it, with file and offset."""
        found = []
        for at, number in enumerate(samples):
            name = self.data.names[int(self.data.file[number])]
            with open(name, "rb", buffering=0) as file:
                for column, field in enumerate(self.data.fields):
                    offset, size = int(self.data.offsets[number, column]), int(self.data.sizes[number, column])
                    file.seek(offset)
                    content, sum = file.read(size), file.read(SUM_BYTES) if self.data.has_sums else None
                    if content != bytes(batch[field][at]):
                        found.append(f"{name}: {size} bytes from {offset} of {field} differ from the file")
                    elif sum is not None and int.from_bytes(sum, "little") != masked(_core.crc32c(content)):
                        found.append(f"{name}: {size} bytes from {offset} of {field} aren't those of which the file has the sum")
        return found


class Check:
    """Files of a data set, mapped. Their rows are what a batch must hold."""

    def __init__(self, dataset: Dataset) -> None:
        import numpy as np

        self.dataset = dataset
        self._maps: list[Any] = []
        self._firsts: list[int] = []
        first = 0
        opened: dict[str, Any] = {}
        for part in dataset.parts:
            self._firsts.append(first)
            if part.name is not None and part.rows and part.name not in opened:
                opened[part.name] = np.memmap(part.name, np.uint8, "r")
            self._maps.append(opened.get(part.name or "") if part.rows else None)
            first += part.rows

    def differences(self, batch: Any, samples: list[int]) -> list[str]:
        """A line for each sample of the batch that isn't as its file has it, with file and offset."""
        import numpy as np

        numbers = np.asarray(samples, np.int64)
        which = np.searchsorted(np.asarray(self._firsts), numbers, side="right") - 1
        found: list[str] = []
        for column in range(len(self.dataset.columns)):
            got = self._column(batch, column)
            for file in np.unique(which):
                if self._maps[file] is None:
                    continue
                places = np.flatnonzero(which == file)
                found += self._compare(got, places, numbers[places] - self._firsts[file], int(file), column)
        return found

    def _compare(self, got: Any, places: Any, rows: Any, file: int, column: int) -> list[str]:
        import numpy as np

        (size, step), part = self.dataset.columns[column], self.dataset.parts[file]
        begin, found = part.begins[column], []
        table = np.lib.stride_tricks.as_strided(self._maps[file][begin:], (part.rows, size), (step, 1), writeable=False)
        each = max(1, PIECE_BYTES // size)
        for at in range(0, len(places), each):
            some = slice(at, at + each)
            wrong = (got[places[some]] != table[rows[some]]).any(axis=1)
            for row in rows[some][wrong]:
                found.append(f"{part.name}: {size} bytes from {begin + int(row) * step} differ from the file")
        return found

    def _column(self, batch: Any, column: int) -> Any:
        """The batch's bytes of a column, (rows, bytes), in host memory."""
        import numpy as np

        size = self.dataset.columns[column][0]
        field = next(field for field in self.dataset.fields if field.column == column)
        own = batch[field.name]
        address, device = own.address - field.offset, own.__dlpack_device__()
        if device[0] != 1:
            copied = _core.device_bytes(device[1], 0, address, batch.rows * size)
            return np.frombuffer(copied, np.uint8).reshape(batch.rows, size)
        return np.asarray(_Bytes(address, batch.rows, size, own))


class _Bytes:
    def __init__(self, address: int, rows: int, size: int, hold: object) -> None:
        self.hold = hold
        self.__array_interface__ = {
            "shape": (rows, size), "typestr": "|u1", "data": (address, True), "version": 3
        }  # fmt: skip
