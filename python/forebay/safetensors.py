"""safetensors files into memory of a GPU: all tensors of a file are views of one allocation, filled at the link's
rate. The header is checked in full before a byte is read: it may come from anybody."""

from __future__ import annotations

import atexit
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

from forebay import _core
from forebay.buffers import memory_of
from forebay.errors import MachineError, RequestError
from forebay.reader import File, Path, Report, release

# What is let go of in the background is gone before the driver is.
atexit.register(release)

HEADER_BYTES_MAX = 100_000_000
# Where a file's own layout is followed, and where tensors begin otherwise: what wide loads on a GPU need.
ALIGNED, ALIGN_TO = 16, 64

# The format's names → those of PyTorch, and of NumPy with ml_dtypes.
TYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "I16": "int16",
    "U16": "uint16",
    "F16": "float16",
    "BF16": "bfloat16",
    "I32": "int32",
    "U32": "uint32",
    "F32": "float32",
    "C64": "complex64",
    "F64": "float64",
    "I64": "int64",
    "U64": "uint64",
}


@dataclass(frozen=True)
class Tensor:
    """One tensor of a file: its type by the format's name, its shape, and its bytes from `offset` of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    bytes: int


def header(tensors: Mapping[str, tuple[str, tuple[int, ...], int]], metadata: Mapping[str, str] | None = None) -> bytes:
    """The first bytes of a file whose tensors lie one behind the other: of each its type, shape and bytes by name."""
    at = 0
    listed: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    for name, (dtype, shape, count) in tensors.items():
        listed[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + count]}
        at += count
    text = json.dumps(listed, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGN_TO)
    return len(text).to_bytes(8, "little") + text


class SafetensorsFile:
    """An open safetensors file: `tensors` by name in the order of the file, and `metadata`."""

    def __init__(
        self, name: Path, path: str = "auto", direct: bool | None = None, *, once: bool = False, prefer: str | None = None
    ) -> None:
        # Whoever loads a model waits for it: what is read once comes at the full rate unless CPU time is worth more.
        self.file = File(name, path, direct, once=once, prefer=prefer or ("rate" if once else "balance"))
        try:
            header, begin = read_header(self.file)
            listed, metadata = _core.safetensors_header(header, self.file.size - begin)
        except BaseException as error:
            self.file.close()
            if isinstance(error, RequestError):
                error.asked = f"{self.file.name}: {error.asked}"
            raise
        self.metadata: dict[str, str] = dict(metadata)
        self.tensors: dict[str, Tensor] = {
            name: Tensor(name, dtype, tuple(shape), begin + first, end - first)
            for name, dtype, shape, first, end in listed
        }
        self.last_report: Report | None = None

    def __enter__(self) -> SafetensorsFile:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self.file.close()

    def keys(self) -> list[str]:
        return list(self.tensors)

    def read_into(self, name: str, buffer: Any, *, stream: Any = None) -> int:
        """Reads one tensor's bytes into a buffer of at least as many; returns how many."""
        tensor = self._named(name)
        return self.file.read_into(buffer, tensor.offset, tensor.bytes, stream=stream)

    def tensor(self, name: str, device: Any = None, *, framework: str = "torch") -> Any:
        """One tensor, as `load` has it."""
        return self.load([name], device, framework=framework)[name]

    def load(
        self, names: Iterable[str] | None = None, device: Any = None, *, framework: str = "torch"
    ) -> dict[str, Any]:
        """Tensors by name (default: all), as views of one allocation, which lives as long as any of them.

        device     PyTorch's; default: the first GPU, "cuda:0"
        framework  "torch", or "numpy" for arrays in memory of the host, which needs no PyTorch
        """
        allocate, type_of = _numpy(device) if _is_numpy(framework) else _torch(device)
        wanted = list(self.tensors.values()) if names is None else [self._named(n) for n in names]
        wanted.sort(key=lambda t: t.offset)
        types = {t.dtype: type_of(t) for t in wanted}
        places, total = layout(wanted)
        whole = allocate(total)
        self._fill(whole, wanted, places)
        return {
            t.name: whole[at : at + t.bytes].view(types[t.dtype]).reshape(t.shape)
            for t, at in zip(wanted, places, strict=True)
        }

    def _fill(self, whole: Any, wanted: list[Tensor], places: list[int]) -> None:
        memory = memory_of(whole)
        asked: list[tuple[int, int, int | None, int]] = []
        for tensor, at in zip(wanted, places, strict=True):
            address = memory.address + at
            if asked:
                offset, size, gpu, begin = asked[-1]
                if offset + size == tensor.offset and begin + size == address:
                    asked[-1] = (offset, size + tensor.bytes, gpu, begin)
                    continue
            if tensor.bytes:
                asked.append((tensor.offset, tensor.bytes, memory.gpu, address))
        self.last_report = self.file._start(asked, [memory], None).report()

    def _named(self, name: str) -> Tensor:
        if name not in self.tensors:
            some = ", ".join(list(self.tensors)[:5]) or "none"
            raise RequestError(
                f"tensor {name!r} of {self.file.name}",
                f"it has {len(self.tensors)} others: {some}, …",
                "a name from keys()",
            )
        return self.tensors[name]


def read_header(file: File) -> tuple[bytes, int]:
    """The header's JSON, and where the data begins."""
    asked, size = f"the safetensors header of {file.name}", file.size
    if size < 8:
        raise RequestError(asked, f"the file has {size} bytes", "a safetensors file")
    prefix = bytearray(8)
    file.read_into(prefix)
    length = int.from_bytes(prefix, "little")
    if length > min(HEADER_BYTES_MAX, size - 8):
        head = bytearray(min(64, size))
        file.read_into(head)
        if seen := _core.recognise(bytes(head)):
            raise RequestError(asked, f"it is {seen[0]}", seen[1])
        raise RequestError(
            asked,
            f"it claims {length} bytes; the file has {size}, and the format allows {HEADER_BYTES_MAX}",
            "a safetensors file, whole",
        )
    header = bytearray(length)
    file.read_into(header, 8)
    return bytes(header), 8 + length


def layout(tensors: list[Tensor]) -> tuple[list[int], int]:
    """Returns the start of each tensor in one allocation, and its bytes: as in the file where that suits a GPU, so that the
    file is read as one range; each on a boundary of its own otherwise."""
    first = tensors[0].offset if tensors else 0
    if all((t.offset - first) % ALIGNED == 0 for t in tensors) and not gaps(tensors):
        return [t.offset - first for t in tensors], sum(t.bytes for t in tensors)
    places, end = [], 0
    for tensor in tensors:
        begin = -(-end // ALIGN_TO) * ALIGN_TO
        places.append(begin)
        end = begin + tensor.bytes
    return places, end


def gaps(tensors: list[Tensor]) -> bool:
    """Returns whether something lies between them that isn't wanted, or one is wanted twice."""
    return any(a.offset + a.bytes != b.offset for a, b in zip(tensors, tensors[1:]))  # noqa: B905


def _is_numpy(framework: str) -> bool:
    names = {"torch": False, "pt": False, "numpy": True, "np": True}
    if not isinstance(framework, str) or framework not in names:
        raise RequestError(f"framework={framework!r:.80}", "is neither torch nor numpy", 'framework="numpy"')
    return names[framework]


def _torch(device: Any) -> tuple[Callable[[int], Any], Callable[[Tensor], Any]]:
    """The function that allocates bytes, and the one that says a tensor's type."""
    torch = import_torch()
    place = "cuda:0" if device is None else device
    return lambda size: torch.empty(size, dtype=torch.uint8, device=place), partial(torch_type, torch)


def _numpy(device: Any) -> tuple[Callable[[int], Any], Callable[[Tensor], Any]]:
    import numpy

    if device not in (None, "cpu"):
        found = "NumPy's arrays are in memory of the host"
        raise RequestError(f"device={device!r:.80}", found, 'device="cpu", or framework="torch"')

    def allocate(size: int) -> Any:
        spare = numpy.empty(size + ALIGN_TO, numpy.uint8)
        skip = -spare.ctypes.data % ALIGN_TO
        return spare[skip : skip + size]

    def type_of(tensor: Tensor) -> Any:
        name = TYPES.get(tensor.dtype, "")
        if hasattr(numpy, name):
            return numpy.dtype(name)
        try:
            return numpy.dtype(getattr(import_module("ml_dtypes"), name))
        except (ImportError, AttributeError):
            found = "NumPy alone has no such type"
            next = 'pip install ml_dtypes; or SafetensorsFile.read_into with your own buffer, or framework="torch"'
            raise MachineError(f"tensor {tensor.name!r} of type {tensor.dtype}", found, next) from None

    return allocate, type_of


def import_torch() -> Any:
    try:
        return import_module("torch")
    except ImportError as error:
        raise MachineError(
            "tensors of PyTorch",
            f"PyTorch can't be imported: {error}",
            "framework=\"numpy\" for arrays; pip install torch; or SafetensorsFile.read_into with your own buffer",
        ) from None


def torch_type(torch: Any, tensor: Tensor) -> Any:
    found = getattr(torch, TYPES.get(tensor.dtype, ""), None)
    if found is None:
        raise MachineError(
            f"tensor {tensor.name!r} of type {tensor.dtype}",
            f"PyTorch {getattr(torch, '__version__', '')} has no such type",
            "a newer PyTorch; or SafetensorsFile.read_into with your own buffer",
        )
    return found


def load(
    name: Path, device: Any = None, *, path: str = "auto", direct: bool | None = None, framework: str = "torch",
    prefer: str = "rate",
) -> dict[str, Any]:  # fmt: skip
    """All tensors of a file, by name, as views of one allocation on `device` ("cuda:0"), or of NumPy's.

    Of a cached file, on 12 processors or more, ten threads bring it nearly at the link's rate. With `prefer="balance"` or "cpu",
    and on fewer processors, the GPU reads a file of at least 256 MiB by itself, for half of the CPU time and at four fifths of
    the rate or less; its pages stay registered until 0.2 s after the last read, or forebay.release().
    """
    with SafetensorsFile(name, path, direct, once=True, prefer=prefer) as file:
        return file.load(device=device, framework=framework)


def open(
    name: Path, *, path: str = "auto", direct: bool | None = None, prefer: str = "balance"
) -> SafetensorsFile:
    """Opens a safetensors file and checks its header. `path`, `direct` and `prefer` as for forebay.open."""
    return SafetensorsFile(name, path, direct, prefer=prefer)
