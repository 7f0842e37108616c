"""The requirements of a transfer type, checked before a long run starts."""

from __future__ import annotations

from forebay import run as engine
from forebay.errors import MachineError, RequestError
from forebay.gdsio import cufile
from forebay.gdsio.request import Request

HOST_NEXT = "-x 1 (storage to host memory)"


def check(request: Request, *, allow_host_destination: bool) -> None:
    """Raises MachineError where libcufile or a GPU is missing; both messages name `-x 1`."""
    xfer = request.xfer
    asked = f"-x {xfer.number} ({xfer.name})"
    if xfer.needs_cufile and (why := lacks_cufile()):
        raise MachineError(asked, why, f"{HOST_NEXT}, or -x 2 (storage to host memory, then to a GPU)")
    if xfer.needs_cufile and cufile.library() is None:
        raise MachineError(
            asked,
            "libcufile was not found",
            f"{HOST_NEXT}, or install it: pip install nvidia-cufile, or CUDA with nvidia-gds",
        )
    if xfer.needs_gpu:
        count, reason = gpus()
        if count == 0:
            if allow_host_destination and not xfer.needs_cufile:
                return
            raise MachineError(asked, f"needs a GPU, and {reason}", no_gpu_next(request))
        for gpu in (g.gpu for g in request.groups if g.gpu is not None and g.gpu >= count):
            raise MachineError(
                f"-d {gpu}", f"there {'is one GPU' if count == 1 else f'are {count} GPUs'}", "-d 0"
            )


def lacks_cufile() -> str | None:
    """Why this build's engine makes no cuFile calls, on whatever machine; None where it does."""
    try:
        engine.plan({"sources": ["nil:"], "path": "gds"})
    except MachineError as error:
        return error.found
    except RequestError:  # it has the path, and not for what moves no bytes
        pass
    return None


def copies_to_host(request: Request, allow_host_destination: bool) -> str | None:
    """Why a copy that may go to host memory goes there: there is no GPU. None where there is one, or none is asked for."""
    if not allow_host_destination or request.xfer.needs_cufile or not request.xfer.needs_gpu:
        return None
    count, reason = gpus()
    return None if count else reason


def no_gpu_next(request: Request) -> str:
    """Returns the command to type where there is no GPU."""
    if request.xfer.needs_cufile:
        return HOST_NEXT
    return (
        f"{HOST_NEXT}, or --allow-host-destination to copy to host memory, labelled {request.xfer.host_label}"
    )


def gpus() -> tuple[int, str]:
    """Returns the number of GPUs that the NVIDIA driver shows this process; with 0, the reason."""
    import ctypes
    import os

    library = os.environ.get("FOREBAY_LIBCUDA") or "libcuda.so.1"
    try:
        driver = ctypes.CDLL(library)
    except OSError:
        return 0, f"{library} was not found (the NVIDIA driver is not installed)"
    if (code := driver.cuInit(0)) != 0:
        return 0, f"the NVIDIA driver does not start (cuInit returned {code})"
    count = ctypes.c_int(0)
    if driver.cuDeviceGetCount(ctypes.byref(count)) != 0 or count.value < 1:
        return 0, "the NVIDIA driver shows none"
    return count.value, ""
