"""Data sets of the models that are trained for speed: rows of the benchmark's bytes a sample, from a seed.

Where no quality is asked for they are made, not collected: text is log-uniform over the words, images are noise over a pattern
of their class. Values don't change a speed. There is something to learn in them, so that a loss falls; nothing is known of the
best that can be reached. Rows of real data are those of `forebay.train.real`, and have a file of others to evaluate on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forebay.errors import RequestError
from forebay.numbers import whole
from forebay.train import forms
from forebay.train.data import (
    ABOUT,
    EVALUATE,
    TRAIN,
    another_seed,
    check_length,
    chunks,
    files_together,
    refuse,
    refuse_other_rows,
    unread,
)

if TYPE_CHECKING:
    import numpy

    Array = numpy.ndarray[Any, Any]

SCHEMA = "forebay.train.samples/1"
# The side of the patterns of images, in cells.
CELLS = 4


@dataclass(frozen=True)
class About:
    """Description of a data set, as the file beside it has it."""

    folder: Path
    form: forms.Form
    seed: int
    rows: int
    # Of real data: what they were made of, and the digest of the first rows.
    sources: dict[str, Any] | None = None
    first: str | None = None

    # No best is known, and rows look nothing up in tables.
    best_auc = table_rows = None

    @property
    def metric(self) -> str | None:
        return self.form.quality.name if self.form.quality else None

    @property
    def target_auc(self) -> float | None:
        """The target where none is given, by the name that requests of all models have for it."""
        return self.form.quality.target if self.form.quality else None

    @property
    def evaluation_rows(self) -> int:
        return self.form.quality.rows if self.form.quality else 0

    @property
    def model(self) -> str:
        return self.form.model

    @property
    def row_bytes(self) -> int:
        return self.form.row_bytes

    @property
    def row(self) -> dict[str, Any]:
        """The loader's schema: 32-bit words, whatever they hold."""
        return {"row": ("<i4", (self.form.words,))}

    def make(self, folder: str) -> str:
        """The command that makes such a data set."""
        return f"forebay train datagen {self.model} --dir {folder}{self.form.flag}"

    def identity(self) -> dict[str, Any]:
        """As records have it."""
        return {
            "folder": str(self.folder), "seed": self.seed, "rows": self.rows, "table_rows": None, "form": self.form.size,
            "row_bytes": self.row_bytes, "evaluation_rows": self.evaluation_rows,
            **({"sources": self.sources} if self.sources else {}),
        }  # fmt: skip

    def document(self) -> dict[str, Any]:
        found = {
            "schema": SCHEMA, "model": self.model, "form": self.form.size, "seed": self.seed, "rows": self.rows,
            "row_bytes": self.row_bytes, "fields": self.form.document(),
        }  # fmt: skip
        if self.form.quality:
            found |= {"evaluation_rows": self.evaluation_rows, "sources": self.sources, "first_rows": self.first}
        return found

    def evaluation(self) -> Callable[[Any], float]:
        """The quality of a model on the rows that are kept for it. Raises RequestError for rows that can't be read."""
        import numpy as np

        path = self.folder / EVALUATE
        rows = np.fromfile(path, np.int32).reshape(-1, self.form.words)
        wrong = faults(self.form, rows)
        if wrong:
            raise RequestError(f"the data set {self.folder}", f"{EVALUATE}: {wrong}", self.make("ANOTHER"))
        return lambda model: model.quality_of(rows)

    def first_fault(self) -> str | None:
        """The first fault of the rows, if they have one; reads them all."""
        import numpy as np

        path = self.folder / TRAIN
        words = np.memmap(path, np.int32, "r").reshape(-1, self.form.words)
        for at in range(0, len(words), self.form.chunk):
            found = faults(self.form, words[at : at + self.form.chunk], at)
            if found:
                return f"{path}: {found}"
        return None


def fields_of(form: forms.Form, words: Array) -> Array:
    """Rows by the names of their fields."""
    import numpy as np

    found: Array = np.ascontiguousarray(words).view(np.dtype(form.row()))[:, 0]
    return found


def faults(form: forms.Form, words: Array, first: int = 0) -> str | None:
    """The first number that can't be read, of (n, words) rows, of which the first is sample `first`."""
    import numpy as np

    rows = fields_of(form, words)
    for each in form.fields:
        values = rows[each.name].reshape(len(rows), -1)
        if each.kind == "f4":
            wrong, reported = ~np.isfinite(values), "is not a number"
        elif each.low is not None and each.high is not None:
            wrong, reported = (values < each.low) | (values >= each.high), f"is not from {each.low} to {each.high - 1}"
        else:
            continue
        if wrong.any():
            row, column = (int(found[0]) for found in np.nonzero(wrong))
            return f"sample {whole(first + row)}: {each.name}[{column}] is {values[row, column]}, which {reported}"
    return None


def rows_of(form: forms.Form, seed: int, chunk: int, count: int, part: int = 0) -> Array:
    """`count` rows of a chunk, as (count, words). `part`, of real data: 0 for the training, 1 for the evaluation."""
    import numpy as np

    from forebay.train import real

    draw = np.random.default_rng([seed, 20 + forms.NAMES.index(form.model), chunk, *[part] * (part != real.TRAINING)])
    rows = np.zeros(count, np.dtype(form.row()))
    if form.quality:
        real.FILLERS[form.model](form, part, draw, rows)
    else:
        FILLERS[form.model](form, draw, rows, seed)
    return rows.view(np.int32).reshape(count, form.words)


def _words(draw: Any, shape: tuple[int, ...], words: int) -> Array:
    """Numbers of words, number k about as often as 1/k."""
    import numpy as np

    found = np.exp(draw.random(shape, np.float32) * np.float32(np.log(words))).astype(np.int32)
    return np.minimum(found, words - 1)


def _bert(form: forms.Form, draw: Any, rows: Array, seed: int) -> None:
    import numpy as np

    n, tokens = rows["input"].shape
    words, masked = form.net["vocabulary"], rows["position"].shape[1]
    rows["input"] = _words(draw, (n, tokens), words)
    rows["length"][:, 0] = draw.integers(tokens // 2, tokens + 1, n)
    half = rows["length"] // 2
    place = np.arange(tokens)
    rows["segment"] = (place >= half) & (place < rows["length"])
    rows["next"][:, 0] = draw.integers(0, 2, n)
    # The second segment of those that follow begins with the first one's word.
    follows = np.flatnonzero(rows["next"][:, 0])
    rows["input"][follows, half[follows, 0]] = rows["input"][follows, 0]
    rows["position"] = np.sort((draw.random((n, masked)) * rows["length"]).astype(np.int32), axis=1)
    each = np.arange(n)[:, None]
    rows["masked"] = rows["input"][each, rows["position"]]
    rows["input"][each, rows["position"]] = 0


def _lora(form: forms.Form, draw: Any, rows: Array, seed: int) -> None:
    rows["tokens"] = _words(draw, rows["tokens"].shape, form.net["vocabulary"])


def _diffusion(form: forms.Form, draw: Any, rows: Array, seed: int) -> None:
    rows["text"] = draw.standard_normal(rows["text"].shape, "f4")
    n, channels, side, _ = rows["moments"].shape
    coarse = draw.standard_normal((n, channels // 2, CELLS, CELLS), "f4")
    rows["moments"][:, : channels // 2] = coarse.repeat(side // CELLS, 2).repeat(side // CELLS, 3)
    rows["moments"][:, channels // 2 :] = -4 + draw.standard_normal((n, channels // 2, side, side), "f4")


def _noise(draw: Any, shape: tuple[int, ...]) -> Array:
    import numpy as np

    return np.frombuffer(draw.bytes(int(np.prod(shape))), np.uint8).reshape(shape) >> 1


def _ssd(form: forms.Form, draw: Any, rows: Array, seed: int) -> None:
    import numpy as np

    n, side = rows["image"].shape[:2]
    classes, scale = form.net["classes"], form.net["side"] / side
    colours = np.random.default_rng([seed, 19]).integers(0, 128, (classes, 3), np.uint8)
    rows["image"] = _noise(draw, rows["image"].shape)
    rows["labels"] = -1
    counts = draw.integers(1, forms.BOXES // 2 + 1, n)
    for row, count in enumerate(counts):
        size = draw.integers(side // 8, side // 2, (count, 2))
        corner = (draw.random((count, 2)) * (side - size)).astype(int)
        label = draw.integers(0, classes, count)
        rows["labels"][row, :count] = label
        rows["boxes"][row, :count] = np.concatenate([corner, corner + size], 1) * scale
        for (x, y), (wide, high), of in zip(corner, size, label, strict=True):
            rows["image"][row, y : y + high, x : x + wide] += colours[of]


def _resnet(form: forms.Form, draw: Any, rows: Array, seed: int) -> None:
    import numpy as np

    n, side = rows["image"].shape[:2]
    classes = form.net["classes"]
    patterns = np.random.default_rng([seed, 19]).integers(0, 128, (classes, CELLS, CELLS, 3), np.uint8)
    label = draw.integers(0, classes, n)
    rows["label"][:, 0], rows["check"][:, 0] = label, ~label
    rows["image"] = _noise(draw, rows["image"].shape)
    rows["image"] += patterns[label].repeat(side // CELLS, 1).repeat(side // CELLS, 2)


FILLERS: dict[str, Callable[[forms.Form, Any, Array, int], None]] = {
    "bert": _bert, "lora": _lora, "diffusion": _diffusion, "ssd": _ssd, "resnet": _resnet
}  # fmt: skip


def generate(folder: Path, form: forms.Form, seed: int, rows: int, progress: Any = None) -> About:
    """Writes a data set; nothing that is there is replaced. Raises RequestError, RunError. KeyboardInterrupt leaves nothing."""
    from forebay.train import real

    names = (TRAIN, EVALUATE, ABOUT) if form.quality else (TRAIN, ABOUT)
    refuse(folder, names, rows, form.row_bytes)
    sources = real.sources(form.model) if form.quality else None
    first = _digest(rows_of(form, seed, 0, min(form.chunk, rows))) if form.quality else None
    about = About(folder, form, seed, rows, sources, first)
    with files_together(folder, names) as files:
        done = 0
        for made in chunks(lambda n, count: rows_of(form, seed, n, count), rows, form.chunk):
            files[0].write(made.data)
            done += len(made)
            if progress:
                progress(f"{whole(done)} of {whole(rows)} rows of {folder / TRAIN}")
        if form.quality:
            files[1].write(rows_of(form, seed, 0, form.quality.rows, real.EVALUATION).data)
        files[-1].write((json.dumps(about.document(), indent=1) + "\n").encode())
    return about


def model_of(folder: Path) -> str:
    """The model whose data set a folder has. Raises RequestError."""
    found = _read(folder, "forebay train datagen MODEL")
    model = found.get("model") if isinstance(found, dict) else None
    if model not in ("dlrm", *forms.NAMES):
        raise RequestError(f"the data set {folder}", f"{ABOUT} names no model that is known here", "forebay train datagen --help")
    return str(model)


def _read(folder: Path, make: str) -> Any:
    path = folder / ABOUT
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        # What lies in a folder isn't overwritten.
        where = "ANOTHER" if (folder / TRAIN).exists() else folder
        raise RequestError(f"--dir {folder}", f"it has no {ABOUT}, so it is no data set", f"{make} --dir {where}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"--dir {folder}", f"{ABOUT} can't be read ({error})", f"ls -l {path}") from None
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the data set {folder}", f"{ABOUT} isn't what datagen writes ({unread(error)})", make) from None


def open_folder(folder: Path, model: str) -> About:
    """The data set of a model in a folder. Raises RequestError where there is none, or not what the file beside it says."""
    make = f"forebay train datagen {model} --dir ANOTHER"
    found = _read(folder, f"forebay train datagen {model}")
    reported = found if isinstance(found, dict) else {}
    if reported.get("schema") != SCHEMA or reported.get("model") != model:
        said = f"is of schema {reported.get('schema')!r} for {reported.get('model')!r}; {model} reads {SCHEMA!r} of its own"
        raise RequestError(f"the data set {folder}", said, make)
    try:
        form = forms.form(model, forms.SIZES[forms.SIZES.index(reported["form"])])
        about = About(folder, form, int(reported["seed"]), int(reported["rows"]))
        if form.quality:
            sources = {"name": str(reported["sources"]["name"]), **reported["sources"]}
            about = replace(about, sources=sources, first=str(reported["first_rows"]))
        bytes_ = int(reported["row_bytes"])
    except (ValueError, KeyError, TypeError) as error:
        raise RequestError(f"the data set {folder}", f"{ABOUT} isn't what datagen writes ({unread(error)})", make) from None
    if bytes_ != form.row_bytes or reported.get("fields") != form.document():
        said = f"has rows of {bytes_} bytes, or fields that aren't those of {model}, whose rows have {form.row_bytes}"
        raise RequestError(f"the data set {folder}", said, make)
    check_length(folder / TRAIN, about.rows, form.row_bytes, about.make("ANOTHER"))
    if form.quality:
        check_length(folder / EVALUATE, about.evaluation_rows, form.row_bytes, about.make("ANOTHER"))
    return about


def _digest(rows: Array) -> str:
    return hashlib.sha256(rows.tobytes()).hexdigest()


def refuse_another_seed(about: About) -> None:
    """Raises RequestError where the training part isn't of the seed that the file beside it says."""
    import numpy as np

    form, count, path = about.form, min(about.form.chunk, about.rows), about.folder / TRAIN
    if not form.quality:
        refuse_other_rows(path, rows_of(form, about.seed, 0, count), about.seed, about.make("ANOTHER"))
    # What they were made of may be another here, or absent.
    elif _digest(np.fromfile(path, np.int32, count * form.words)) != about.first:
        raise another_seed(path, about.seed, about.make("ANOTHER"))
