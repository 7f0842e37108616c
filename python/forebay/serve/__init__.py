"""`forebay serve`: files, devices and stripes as namespaces that any NVMe/TCP host can use."""

from forebay.serve.verb import command

__all__ = ["command"]
