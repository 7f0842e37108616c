"""`forebay snap`: drives that look local, backed by any source, and the RPCs that change them."""

from forebay.snap.verb import command

__all__ = ["command"]
