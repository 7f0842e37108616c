"""`forebay bench`: one job, one record, a short summary."""

from forebay.bench.verb import command

__all__ = ["command"]
