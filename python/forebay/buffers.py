"""Memory that a read can fill: its kind, its address, and what keeps it alive.

Accepted are the buffer protocol (bytearray, NumPy), `__cuda_array_interface__` (CuPy, Numba, PyTorch) and DLPack.
No framework is imported: the object itself says where its memory is.
"""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import Any

from forebay.errors import RequestError

NDIM_MAX = 64
# DLDeviceType: what the host reaches, and what the GPU does.
CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13
# Flags of DLManagedTensorVersioned.
READ_ONLY, IS_COPIED = 1, 2
# As `stream`: don't wait for anybody.
AT_ONCE = -1
# A field's name in a buffer's format, which may be any text without a colon.
FIELD_NAME = re.compile(r":[^:]*:")
# DLDataTypeCode kDLOpaqueHandle.
OPAQUE = 3


@dataclass(frozen=True)
class Memory:
    """`bytes` from `address` on, of GPU `gpu` or of the host (None), alive while `hold` is."""

    gpu: int | None
    address: int
    bytes: int
    hold: object
    # On a GPU: where its owner's work is queued.
    stream: int = 0


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class DLManagedTensor(ctypes.Structure):
    _fields_ = [("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class DLManagedTensorVersioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", DLTensor),
    ]


def memory_of(buffer: Any) -> Memory:
    """Returns the address and the length of `buffer`. Raises RequestError for what can't be written to as one run of bytes."""
    try:
        view = memoryview(buffer)
    except (TypeError, ValueError):
        pass
    else:
        return of_host(buffer, view)
    why: list[str] = []
    try:
        interface = getattr(buffer, "__cuda_array_interface__", None)
    except Exception as error:  # PyTorch: of a tensor on the host, that requires a gradient, of a type it lacks
        interface = None
        why.append(str(error))
    if interface is not None:
        return of_interface(buffer, interface)
    if getattr(getattr(buffer, "dtype", None), "kind", "") in ("M", "m"):
        raise refused(buffer, f"its dtype {buffer.dtype} has no buffer", "the same memory as integers: x.view(numpy.int64)")
    if hasattr(buffer, "__dlpack__") and hasattr(buffer, "__dlpack_device__"):
        return of_dlpack(buffer)
    if callable(getattr(buffer, "to_numpy", None)):
        raise refused(buffer, "it has no buffer of its own", "a NumPy array, of which it is made afterwards")
    found = why[0] if why else "it has neither a buffer, nor __cuda_array_interface__, nor __dlpack__"
    raise refused(buffer, found, "a bytearray, a NumPy or CuPy array, or a PyTorch tensor (detached)")


def refused(buffer: object, found: str, next: str) -> RequestError:
    kind = type(buffer)
    return RequestError(f"read into {kind.__module__}.{kind.__qualname__}", found, next)


def holds_objects(buffer: object, dtype: str) -> RequestError:
    """Bytes of a file in the place of references crash the interpreter when it follows them."""
    return refused(buffer, f"its dtype {dtype} holds Python objects", "an array of numbers or bytes: dtype=numpy.uint8")


def of_host(buffer: object, view: memoryview) -> Memory:
    if view.readonly:
        raise refused(buffer, "it is read-only", "a bytearray, or an array that may be written to")
    if not view.c_contiguous:
        next = "a contiguous buffer: part = numpy.empty(x.shape, x.dtype), read into it, then x[...] = part"
        if isinstance(buffer, memoryview):
            next = "a contiguous buffer: part = memoryview(bytearray(x.nbytes)).cast(x.format), read into it, then x[:] = part"
        raise refused(buffer, "it is not contiguous", next)
    if "O" in FIELD_NAME.sub("", view.format):
        raise holds_objects(buffer, str(getattr(buffer, "dtype", view.format)))
    if view.nbytes == 0:
        return Memory(None, 0, 0, view)
    # The only way to a view's address without an extension; it holds the buffer as well.
    first = ctypes.c_char.from_buffer(view)
    return Memory(None, ctypes.addressof(first), view.nbytes, (view, first))


def of_interface(buffer: object, interface: Any) -> Memory:
    """By the CUDA Array Interface, versions 0 to 3."""
    try:
        address, read_only = interface["data"]
        shape = tuple(int(n) for n in interface["shape"])
        kind, item_bytes = interface["typestr"][1:2], int(interface["typestr"][2:])
        strides = interface.get("strides")
        stream = interface.get("stream")
        address = int(address or 0)
        stream = None if stream is None else int(stream)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise refused(
            buffer, f"its __cuda_array_interface__ is malformed: {error!r}", "report this to the library's maintainers"
        ) from None
    if kind == "O":
        raise holds_objects(buffer, interface["typestr"])
    if interface.get("mask") is not None:
        raise refused(buffer, "it is masked", "the array without its mask")
    if read_only:
        raise refused(buffer, "it is read-only", "an array that may be written to")
    check_shape(buffer, shape, item_bytes)
    if strides is not None and not contiguous(shape, tuple(int(s) for s in strides), item_bytes):
        raise refused(buffer, "it is not contiguous", "a contiguous copy of it")
    total = prod(shape) * item_bytes
    if total == 0:
        return Memory(None, 0, 0, buffer)
    from forebay import _core

    gpu = _core.device_of(address)
    if gpu is None:
        raise refused(buffer, f"CUDA doesn't recognise its address {address:#x}", "memory of a GPU")
    return Memory(gpu, address, total, buffer, current_stream(buffer, gpu) if stream is None else stream)


def of_dlpack(buffer: Any) -> Memory:
    """By DLPack, with and without a version. The capsule is kept and not consumed, so its owner's own destructor
    frees it."""
    kind = int(buffer.__dlpack_device__()[0])
    if kind not in (CPU, CUDA, CUDA_HOST, CUDA_MANAGED):
        raise refused(buffer, f"it is on a device of DLPack type {kind}", "memory of the host or of CUDA")
    # -1: we order streams ourselves.
    stream = AT_ONCE if kind in (CUDA, CUDA_MANAGED) else None
    try:
        try:
            capsule = buffer.__dlpack__(stream=stream, max_version=(1, 1), copy=False)
        except TypeError:
            capsule = buffer.__dlpack__(stream=stream)
    except Exception as error:  # BufferError, RuntimeError, what a library likes
        raise refused(buffer, str(error), "tensor.detach(), contiguous and writable") from None
    tensor, flags = unpack(buffer, capsule)
    if flags & READ_ONLY:
        raise refused(buffer, "it is read-only", "a tensor that may be written to")
    if flags & IS_COPIED:
        raise refused(buffer, "its library returns a copy", "a tensor whose __dlpack__ shares its memory")
    if not 0 <= tensor.ndim <= NDIM_MAX or (tensor.ndim and not tensor.shape):
        raise refused(buffer, f"its DLPack has {tensor.ndim} dimensions", "report this to the library's maintainers")
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    if tensor.code == OPAQUE:
        raise refused(buffer, "its elements are opaque handles", "a tensor of numbers")
    item_bits = tensor.bits * tensor.lanes
    if item_bits % 8:
        raise refused(buffer, f"its elements have {item_bits} bits", "its bytes, as uint8")
    check_shape(buffer, shape, item_bits // 8)
    if tensor.strides:
        strides = tuple(tensor.strides[i] for i in range(tensor.ndim))
        if not contiguous(shape, strides, 1):
            raise refused(buffer, "it is not contiguous", "tensor.contiguous()")
    total = prod(shape) * item_bits // 8
    address = (tensor.data or 0) + tensor.byte_offset
    if total == 0:
        return Memory(None, 0, 0, capsule)
    if tensor.device_type in (CPU, CUDA_HOST):
        return Memory(None, address, total, (buffer, capsule))
    gpu = int(tensor.device_id)
    return Memory(gpu, address, total, (buffer, capsule), current_stream(buffer, gpu))


def unpack(buffer: object, capsule: object) -> tuple[DLTensor, int]:
    """The tensor in a capsule, and its flags."""
    api = ctypes.pythonapi
    is_valid, pointer = api.PyCapsule_IsValid, api.PyCapsule_GetPointer
    is_valid.argtypes = pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    is_valid.restype, pointer.restype = ctypes.c_int, ctypes.c_void_p
    if is_valid(capsule, b"dltensor"):
        return DLManagedTensor.from_address(pointer(capsule, b"dltensor")).tensor, 0
    if is_valid(capsule, b"dltensor_versioned"):
        managed = DLManagedTensorVersioned.from_address(pointer(capsule, b"dltensor_versioned"))
        if managed.major == 1:
            return managed.tensor, managed.flags
    raise refused(buffer, "its __dlpack__ returns no capsule of DLPack 0 or 1", "a newer forebay")


def check_shape(buffer: object, shape: tuple[int, ...], item_bytes: int) -> None:
    if item_bytes <= 0 or any(n < 0 for n in shape) or prod(shape) * item_bytes >= 1 << 63:
        raise refused(buffer, f"its shape {shape} of {item_bytes} bytes each is impossible", "another buffer")


def contiguous(shape: tuple[int, ...], strides: tuple[int, ...], item: int) -> bool:
    """Returns whether elements follow each other in C order; `strides` count in units of `item`."""
    if 0 in shape:
        return True
    if len(strides) != len(shape):
        return False
    expected = item
    for n, stride in zip(reversed(shape), reversed(strides), strict=True):
        if n != 1 and stride != expected:
            return False
        expected *= n
    return True


def current_stream(buffer: object, gpu: int) -> int:
    """The stream on which the buffer's library queues work now: PyTorch says; others use the default stream."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(buffer, torch.Tensor):
        return int(torch.cuda.current_stream(gpu).cuda_stream)
    return 0


def stream_handle(stream: Any) -> int:
    """A CUstream: a number, or of PyTorch's, CuPy's, Numba's or anybody's stream object."""
    if isinstance(stream, int):
        return stream
    if hasattr(stream, "__cuda_stream__"):
        protocol = stream.__cuda_stream__
        return int((protocol() if callable(protocol) else protocol)[1])
    for attribute in ("cuda_stream", "ptr", "handle"):
        if (found := getattr(stream, attribute, None)) is not None:
            return int(getattr(found, "value", found) or 0)
    raise RequestError(
        f"stream={stream!r}",
        "it is not a CUDA stream",
        "a number, a stream of PyTorch, CuPy or Numba, or an object with __cuda_stream__",
    )


def streams_before(memories: Iterable[Memory], stream: Any) -> list[tuple[int, int]]:
    """(GPU, stream) pairs whose work so far must end before these memories are written."""
    handle = None if stream is None else stream_handle(stream)
    if handle == AT_ONCE:
        return []
    on_gpu = [m for m in memories if m.gpu is not None]
    return sorted({(m.gpu, m.stream if handle is None else handle) for m in on_gpu if m.gpu is not None})
