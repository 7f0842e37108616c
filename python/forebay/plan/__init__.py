"""`forebay plan`: predicts machines nobody here has, says how sure it is, and what to change."""

from forebay.plan.verb import command

__all__ = ["command"]
