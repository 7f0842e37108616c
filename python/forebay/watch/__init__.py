"""`forebay watch`: whether a running training waits for storage, and a workload made of what it reads."""

from forebay.watch.verb import command

__all__ = ["command"]
