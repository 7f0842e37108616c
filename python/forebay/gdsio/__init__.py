"""gdsio's own command line over Forebay's engine: its flags, its job files, its one line of output.

The line says what ran: `GPUD` is printed only where the bytes went from storage to the GPU by DMA.
"""

from forebay.gdsio.verb import command

__all__ = ["command"]
