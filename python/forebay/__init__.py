"""Forebay feeds GPUs from storage, proves how well it does, and says what to change when it doesn't."""

# `typing` would take longer than all that is here, before the command line takes signals (forebay.early).
TYPE_CHECKING = False

if TYPE_CHECKING:
    from forebay import safetensors
    from forebay.checksum import crc32c
    from forebay.reader import File, FilesRead, Future, Report, open, read_files, release
    from forebay.tables import Table

    __version__: str

__all__ = ["File", "FilesRead", "Future", "Report", "Table", "crc32c", "open", "read_files", "release", "safetensors"]


def __getattr__(name: str) -> object:
    """Loaded when used, so that the command line starts at once."""
    if name == "__version__":
        return _version()
    from importlib import import_module

    if name == "safetensors":
        return import_module("forebay.safetensors")
    if name in __all__:
        elsewhere = {"crc32c": "forebay.checksum", "Table": "forebay.tables"}
        return getattr(import_module(elsewhere.get(name, "forebay.reader")), name)
    raise AttributeError(f"module 'forebay' has no attribute {name!r}")


def _version() -> str:
    # Its import takes as long as that of the whole command line.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("forebay")
    except PackageNotFoundError:  # a source tree that wasn't installed
        return "0+unknown"
