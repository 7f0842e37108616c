"""`forebay emulate`: how many accelerators a storage keeps busy, by the rules of MLPerf Storage."""

from forebay.emulate.verb import command

__all__ = ["command"]
