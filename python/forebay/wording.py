"""Names a job's fields in the engine's messages as the user types them: by a flag, by a key of a file, or by another tool's
flag. The engine names them by their keys, as in `a smaller ‹depth›`."""

from __future__ import annotations

import re
from collections.abc import Callable

from forebay.errors import ForebayError
from forebay.flags import Field, fields

_FIELD = re.compile("‹([a-z_]+)›")


def said(text: str, word: Callable[[Field], str]) -> str:
    """`text` with `word` of each field that it names."""
    known = {field.key: field for field in fields()}
    return _FIELD.sub(lambda named: word(known[named[1]]) if named[1] in known else named[0], text)


def as_flag(field: Field) -> str:
    """As bench has it: `--io-size`."""
    return f"--{field.flag}"


def as_key(field: Field) -> str:
    """As files of sweeps and settings have it: `io-size`."""
    return field.flag


def in_keys(error: ForebayError) -> ForebayError:
    """The same error as the file of a sweep names fields."""
    return reworded(error, lambda text: said(text, as_key))


def reworded(error: ForebayError, say: Callable[[str], str]) -> ForebayError:
    """The same error, with the record that it may carry; each of its texts is what `say` makes of the engine's."""
    spoken = type(error)(*(say(text) for text in error.marked or (error.asked, error.found, error.next)))
    own = ("asked", "found", "next", "marked")
    spoken.__dict__.update({k: v for k, v in vars(error).items() if k not in own})
    return spoken
