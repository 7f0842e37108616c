"""`forebay validate`: runs every path that is waiting for hardware once, and collects the results in one file to send
back."""

from forebay.validate.verb import command

__all__ = ["command"]
