"""Forebay feeds GPUs from storage, proves how well it does, and says what to change when it doesn't."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("forebay")
except PackageNotFoundError:  # a source tree that wasn't installed
    __version__ = "0+unknown"
