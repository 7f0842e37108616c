"""`forebay export`: runs as a flat table, one row each, for other tools."""

from forebay.export.verb import command

__all__ = ["command"]
