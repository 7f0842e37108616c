"""`forebay validate`: every path that waits for hardware, run once, into one file that can be sent back."""

from forebay.validate.verb import command

__all__ = ["command"]
