"""Row numbers in any form that callers have: checked, and converted to an array in host memory."""

from __future__ import annotations

import operator
import struct
from typing import TYPE_CHECKING, Any

from forebay import _core
from forebay.buffers import AT_ONCE, CUDA, CUDA_MANAGED, Memory, contiguous, current_stream, of_dlpack
from forebay.errors import RequestError

if TYPE_CHECKING:
    import numpy

INTEGERS = "integers in one dimension: numpy.array([0, 1])"


def check_whole(value: Any, what: str, next: str = "a number inside the file") -> int:
    """The value as an integer that 64 bits hold. Raises RequestError naming the parameter."""
    try:
        number = operator.index(value)
    except TypeError:
        raise RequestError(f"{what}={value!r:.80}", f"is of type {type(value).__name__}", "a whole number") from None
    if number >= 1 << 64:
        raise RequestError(f"{what}={number}", "is beyond 64 bits", next)
    return number


def whole_numbers(values: Any, what: str) -> Any:
    """The values as an array of integers in one dimension in host memory, none negative. Raises RequestError.

    Those on a GPU are copied from there, once the work is done that their stream was given so far.
    """
    found = integers(values, what)
    check_signs(found, what)
    return found


def integers(values: Any, what: str) -> Any:
    """As `whole_numbers`, whatever their signs."""
    there = on_gpu(values, what)
    if there is not None:
        found = copied(*there)
    else:
        try:
            found = packed(values)
        except (TypeError, ValueError, RuntimeError) as error:  # ragged lists, tensors of a type that NumPy lacks
            raise RequestError(what, str(error), INTEGERS) from None
    check_kind(found.dtype, found.ndim, found.size, what)
    return found


def packed(values: Any) -> Any:
    """The values as an array, of any kind."""
    import numpy as np

    if isinstance(values, range):
        return np.arange(values.start, values.stop, values.step)
    if isinstance(values, (list, tuple)):
        if not values:
            return np.empty(0, np.int64)
        # A tenth of what NumPy takes, which looks at each value for its type first.
        if type(values) is list and (plain := _core.bytes_of_list(values)) is not None:
            return np.frombuffer(plain, np.int64)
        if type(values[0]) is int:
            try:
                return np.frombuffer(struct.pack(f"{len(values)}q", *values), np.int64)
            except struct.error:  # one isn't an integer, or is too long
                pass
    return np.asarray(values)


def words_of(numbers: Any) -> Any:
    """Integers as 64 bits each without a sign, side by side; negative ones are greater than any other. No copy where they
    are that long."""
    import numpy as np

    if numbers.dtype == np.int64:
        return np.ascontiguousarray(numbers).view(np.uint64)
    return np.ascontiguousarray(numbers, np.uint64)


def check_signs(found: Any, what: str) -> None:
    import numpy as np

    if found.size and found.dtype.kind == "i" and int(found.min()) < 0:
        first = int(np.argmax(found < 0))
        raise RequestError(what, f"one is negative: {what}[{first}] is {int(found[first])}", "0 or more")


def check_kind(kind: numpy.dtype[Any], dimensions: int, count: int, what: str) -> None:
    if dimensions != 1 or (count and kind.kind not in "iu"):
        raise RequestError(what, f"an array of {kind} in {dimensions} dimensions", INTEGERS)


def on_gpu(values: Any, what: str) -> tuple[Memory, numpy.dtype[Any]] | None:
    """Returns the address of one-dimensional integers on a GPU, and their type; None where they don't lie there. Raises
    RequestError."""
    try:
        interface = getattr(values, "__cuda_array_interface__", None)
    except Exception:  # PyTorch: of a tensor on the host, or of a type it lacks
        interface = None
    if interface is not None:
        return by_interface(values, interface, what)
    if not hasattr(values, "__dlpack_device__") or int(values.__dlpack_device__()[0]) not in (CUDA, CUDA_MANAGED):
        return None
    import numpy as np

    try:
        # JAX's, whose interface names no type that NumPy lacks.
        kind = np.dtype(str(values.dtype))
    except (AttributeError, TypeError):
        found = "they are on a GPU, and NumPy has no such dtype"
        raise RequestError(what, found, "a tensor of PyTorch, CuPy or JAX") from None
    check_kind(kind, len(values.shape), int(np.prod(values.shape)), what)
    return of_dlpack(values), kind


def by_interface(values: Any, interface: Any, what: str) -> tuple[Memory, numpy.dtype[Any]]:
    import numpy as np

    try:
        kind, shape = np.dtype(interface["typestr"]), tuple(int(n) for n in interface["shape"])
        address, strides, stream = int(interface["data"][0] or 0), interface.get("strides"), interface.get("stream")
    except (KeyError, TypeError, ValueError, IndexError) as error:
        found = f"their __cuda_array_interface__ is malformed: {error!r}"
        raise RequestError(what, found, "report this to the library's maintainers") from None
    count = shape[0] if len(shape) == 1 else 1
    check_kind(kind, len(shape), count, what)
    if strides is not None and not contiguous(shape, tuple(int(s) for s in strides), kind.itemsize):
        raise RequestError(what, "they are not contiguous", "rows.contiguous(), or a copy of them")
    if not count:
        return Memory(None, 0, 0, values, 0), kind
    gpu = _core.device_of(address)
    if gpu is None:
        raise RequestError(what, f"CUDA doesn't recognise their address {address:#x}", "memory of a GPU")
    own = current_stream(values, gpu) if stream is None else int(stream)
    return Memory(gpu, address, count * kind.itemsize, values, own), kind


def copied(memory: Memory, kind: numpy.dtype[Any]) -> Any:
    """The values' copy in host memory."""
    import numpy as np

    if memory.gpu is None:
        return np.empty(0, kind)
    own = stream_of(memory)
    return np.frombuffer(_core.device_bytes(memory.gpu, own, memory.address, memory.bytes), kind)


def stream_of(memory: Memory) -> int:
    return 0 if memory.stream == AT_ONCE else memory.stream


def check_row(row_bytes: int, start: int) -> None:
    check_whole(row_bytes, "row_bytes")
    check_whole(start, "start")
    if row_bytes < 1 or start < 0:
        asked = f"row_bytes={row_bytes}, start={start}"
        raise RequestError(asked, "a row has at least one byte and starts within the file", "row_bytes=4096, start=0")


def check_rows(numbers: Any, there: int, name: str, what: str) -> None:
    """Names the first row that isn't there, and how many aren't. `what`: what is there."""
    import numpy as np

    if not numbers.size or int(numbers.max()) < there:
        return
    wrong = numbers >= there
    first = int(np.argmax(wrong))
    found = f"it has {what}; rows[{first}] is the first of {int(wrong.sum())} beyond them"
    raise RequestError(f"row {int(numbers[first])} of {name}", found, "rows of the file; File.size says how long it is")


def begins_of(numbers: Any, offsets: Any, name: str, start: int) -> Any:
    """Returns the offset of each row, by a table of offsets."""
    import numpy as np

    if start:
        raise RequestError(f"start={start} with offsets", "offsets count from the file's first byte", "one of them")
    table = whole_numbers(offsets, "offsets")
    check_rows(numbers, table.size, name, f"{table.size} rows, as many as offsets")
    return table.astype(np.uint64, copy=False)[numbers.astype(np.int64, copy=False)]


def check_inside(numbers: Any, begins: Any, row_bytes: int, size: int, name: str) -> None:
    """Refuses rows that don't lie in the file whole."""
    import numpy as np

    wrong = begins > np.uint64(max(0, size - row_bytes)) if size >= row_bytes else np.ones(begins.shape, bool)
    if not wrong.any():
        return
    first = int(np.argmax(wrong))
    asked = f"row {int(numbers[first])} of {name}, {row_bytes} bytes from {int(begins[first])} on"
    found = f"it has {size} bytes; rows[{first}] is the first of {int(wrong.sum())} beyond them"
    raise RequestError(asked, found, "offsets inside the file; File.size says how long it is")
