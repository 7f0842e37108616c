"""Forebay feeds GPUs from storage, proves how well it does, and says what to change when it doesn't."""

# `typing` would take longer than all that is here, before the command line takes signals (forebay.early).
TYPE_CHECKING = False

if TYPE_CHECKING:
    from forebay import datasets as datasets
    from forebay import feed, safetensors
    from forebay import graphs as graphs
    from forebay import kv as kv
    from forebay import torch as torch
    from forebay.checksum import crc32c
    from forebay.reader import File, FilesRead, Future, Report, open, read_files, release
    from forebay.tables import Table

    __version__: str

__all__ = [
    "File", "FilesRead", "Future", "Report", "Table", "crc32c", "feed", "kv", "open", "read_files", "release", "safetensors",
]  # fmt: skip
# Modules that are imported when they are used. Those that need PyTorch aren't among what `import *` brings.
MODULES = ("datasets", "feed", "graphs", "kv", "safetensors", "torch")


def __dir__() -> list[str]:
    """Names to complete, though none is loaded yet."""
    return sorted({*__all__, *MODULES, "__version__"})


def __getattr__(name: str) -> object:
    """Loaded when used, so that the command line starts at once."""
    if name == "__version__":
        return _version()
    from importlib import import_module

    if name in MODULES:
        return _module(name)
    if name in __all__:
        elsewhere = {"crc32c": "forebay.checksum", "Table": "forebay.tables"}
        return getattr(import_module(elsewhere.get(name, "forebay.reader")), name)
    raise AttributeError(f"module 'forebay' has no attribute {name!r}")


def _module(name: str) -> object:
    """AttributeError, as from any module, where something that it needs isn't installed."""
    from importlib import import_module

    from forebay.errors import MachineError

    try:
        return import_module(f"forebay.{name}")
    except (ImportError, MachineError) as error:
        raise AttributeError(f"forebay.{name} can't be imported here: {error}") from None


def _version() -> str:
    # Its import takes as long as that of the whole command line.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("forebay")
    except PackageNotFoundError:  # a source tree that wasn't installed
        return "0+unknown"
