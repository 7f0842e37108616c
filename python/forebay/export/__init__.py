"""`forebay export`: runs as a flat table, a row each, for tools that aren't ours."""

from forebay.export.verb import command

__all__ = ["command"]
