"""A model's files: samples of one size, made from a seed, a digest of each, and weights as safetensors.

The digests are what an accuracy test compares the rows with, wherever they came from: a sample that was damaged on its way,
or on the disk, is found whatever the model makes of it.
"""

from __future__ import annotations

import functools
import json
import math
import os
import shutil
import stat
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forebay.errors import RequestError, RunError
from forebay.infer import forms, rules
from forebay.model_runs import place_for
from forebay.numbers import bytes_, whole
from forebay.safetensors import header
from forebay.train.data import ROW_BYTES, Teacher, files_together, unread

if TYPE_CHECKING:
    import numpy

    Array = numpy.ndarray[Any, Any]

SCHEMA = "forebay.infer.data/1"
SAMPLES, DIGESTS, WEIGHTS, ABOUT = "samples.bin", "digests.bin", "weights.safetensors", "inference.json"
NAMES = (SAMPLES, DIGESTS, WEIGHTS, ABOUT)
# Bytes of samples made at once; each chunk has a generator of its own.
CHUNK_BYTES = 8 << 20
TOY_PIXELS, IMAGE, TOKENS, VOCABULARY = 3072, 224, 384, 30_522
TABLE_ROWS = 200_000
# User-item pairs of a sample of DLRM: the benchmark's have 100 to 700, and so many on average (89,137,319 in 330,067).
PAIRS = 270
ABOUT_BYTES_MAX = 1 << 20


@dataclass(frozen=True)
class About:
    """Description of a model's files. `table_rows`: of DLRM's large tables; 0 for others. `small`: the form for a CPU. `metric`:
    of samples with labels and trained weights, what their quality is measured by, and `quality`, that which the training had."""

    model: str
    seed: int
    samples: int
    row_bytes: int
    weights_bytes: int
    table_rows: int = 0
    small: bool = False
    metric: str | None = None
    quality: float | None = None

    def document(self) -> dict[str, Any]:
        found = {"schema": SCHEMA, **asdict(self)}
        return found if self.metric else {key: value for key, value in found.items() if key not in ("metric", "quality")}


class Drawn:
    """A tensor of random weights, made piece by piece as it is written: signs and fractions are drawn, and of two powers of two
    the one or the other, so that the mean square is what the layer before would keep. Vectors are the ones of norms, or zeros."""

    PIECE = 1 << 22

    def __init__(self, name: str, shape: tuple[int, ...], kind: str, seed: int, number: int) -> None:
        self.shape, self.dtype, self._key = shape, kind, [seed, 71, number]
        self.count = math.prod(shape)
        self.nbytes = self.count * forms.KINDS[kind]
        self._constant = None if len(shape) > 1 else 0.0 if name.endswith((".bias", "running_mean")) else 1.0
        # Of convolutions behind ReLU half the square is kept; those of a kernel of its own stride add up no neighbours.
        inputs = shape[0] if name.startswith("up.") and len(shape) == 5 else math.prod(shape[1:]) if len(shape) != 3 else shape[2]
        self._spread = (2.0 if len(shape) > 3 else 1.0) ** 0.5 / max(1, inputs) ** 0.5
        if name.startswith(("words.", "vectors.")):
            self._spread = 0.02

    @property
    def parts(self) -> int:
        return -(-self.count // self.PIECE)

    def part(self, number: int) -> Any:
        """The bytes of one piece, which no other decides."""
        import numpy as np

        count = min(self.PIECE, self.count - number * self.PIECE)
        if self._constant is not None:
            found = np.full(count, self._constant, np.float32)
            return ((found.view(np.uint32) >> 16).astype(np.uint16) if self.dtype == "BF16" else found).data
        word, shift = (np.uint16, 7) if self.dtype == "BF16" else (np.uint32, 23)
        # Fractions of 1 to 2 have a mean square of 7/3, and four times that with the next power.
        scale = self._spread / (7 / 3) ** 0.5
        power = math.floor(math.log2(scale))
        share = round(256 * ((scale / 2.0**power) ** 2 - 1) / 3)
        keep = word((1 << (8 * np.dtype(word).itemsize - 1)) | ((1 << shift) - 1))
        draw = np.random.default_rng([*self._key, number])
        drawn = draw.integers(0, 1 << 64, -(-count * word().itemsize // 8), np.uint64).view(word)[:count]
        powers = (drawn >> word(shift)) & word(255)
        powers = (powers < share).astype(word)
        powers += word(127 + power)
        powers <<= word(shift)
        drawn &= keep
        drawn |= powers
        return drawn.data


def drawn(shapes: Mapping[str, tuple[int, ...]], kind: str, seed: int) -> dict[str, Drawn]:
    """Weights of these shapes, none of which is in memory yet."""
    return {name: Drawn(name, shape, kind, seed, number) for number, (name, shape) in enumerate(shapes.items())}


def row_bytes(model: str, small: bool = False) -> int:
    if model in forms.NAMES:
        return forms.form(model, small).row_bytes
    return {"toy": TOY_PIXELS, "resnet50": 3 * IMAGE * IMAGE, "bert": 3 * 4 * TOKENS, "dlrm": PAIRS * ROW_BYTES}[model]


def rows_of(model: str, seed: int, chunk: int, count: int, table_rows: int, small: bool = False) -> Array:
    """Samples of a chunk, as bytes: (count, row_bytes)."""
    import numpy as np

    if model == "dlrm":
        return Teacher(seed, table_rows).rows(2, chunk, count * PAIRS)[0].view(np.uint8).reshape(count, -1)
    draw = np.random.default_rng([seed, 51, chunk])
    if model in forms.NAMES and model != "retinanet":
        return _of_form(forms.form(model, small), draw, count)
    if model == "bert":
        # Token numbers, segments, and the mask of as many tokens as a question with its passage has.
        made = np.zeros((count, 3, TOKENS), np.int32)
        length = draw.integers(64, TOKENS + 1, count)[:, None]
        inside = np.arange(TOKENS)[None] < length
        made[:, 0] = draw.integers(0, VOCABULARY, (count, TOKENS)) * inside
        made[:, 1] = (np.arange(TOKENS)[None] >= draw.integers(8, 64, count)[:, None]) & inside
        made[:, 2] = inside
        return made.view(np.uint8).reshape(count, -1)
    return draw.integers(0, 256, (count, row_bytes(model, small)), np.uint8)


def _of_form(form: forms.Form, draw: Any, count: int) -> Array:
    """Texts with their lengths; scans; states of texts."""
    import numpy as np

    if form.inputs:
        made = np.zeros((count, form.row_bytes // 4), np.int32)
        made[:, 0] = draw.integers(form.inputs // 8, form.inputs + 1, count)
        inside = np.arange(form.inputs)[None] < made[:, :1]
        made[:, 1 : 1 + form.inputs] = draw.integers(0, form.net["vocabulary"], (count, form.inputs)) * inside
        return made.view(np.uint8)
    kind = np.float32 if form.model == "unet3d" else np.float16
    values = draw.standard_normal((count, form.row_bytes // np.dtype(kind).itemsize), np.float32)
    return values.astype(kind).view(np.uint8)


@cache
def odd_numbers(words: int) -> Array:
    """Factors of a row's 64-bit words, as signed numbers."""
    import numpy as np

    return np.random.default_rng(4100).integers(1, 1 << 62, words, dtype=np.int64) | np.int64(1)


def digests(rows: Array) -> Array:
    """A digest of each row: its 64-bit words times odd numbers, modulo 2^64."""
    import numpy as np

    words = np.ascontiguousarray(rows).view(np.int64)
    with np.errstate(over="ignore"):
        return np.einsum("ij,j->i", words, odd_numbers(words.shape[1])).view(np.uint64)


def chunk_samples(about: About) -> int:
    return max(1, CHUNK_BYTES // about.row_bytes)


def chunk(about: About, number: int) -> Array:
    """Samples of one chunk, as they lie in the file."""
    each = chunk_samples(about)
    count = min(each, about.samples - number * each)
    return rows_of(about.model, about.seed, number, count, about.table_rows, about.small)


def generate(
    folder: Path, about: About, weights: Mapping[str, Array | Drawn], progress: Callable[[str], None] | None = None
) -> About:
    """Writes a model's files; nothing that is there is replaced. Raises RequestError, RunError. An interrupt leaves nothing."""
    header = safetensors_header(weights)
    about = About(**{**asdict(about), "weights_bytes": len(header) + sum(w.nbytes for w in weights.values())})
    refuse(folder, about)
    reported = progress or (lambda text: None)
    with files_together(folder, NAMES) as (samples, listed, model, document):
        each, done = chunk_samples(about), 0

        def fill(number: int) -> None:
            rows = chunk(about, number)
            write_at(samples, number * each * about.row_bytes, rows.data)
            write_at(listed, number * each * 8, digests(rows).data)

        # Closed before the files are, whatever ends it: no thread writes any more then.
        with closing(in_threads(functools.partial(fill, number) for number in range(-(-about.samples // each)))) as filled:
            for _ in filled:
                done = min(done + each, about.samples)
                reported(f"{whole(done)} of {whole(about.samples)} samples of {folder}")
        write_at(model, 0, header)
        with closing(in_threads(_pieces(weights, model, len(header)))) as written:
            for name in written:
                reported(f"weights of {folder}: {name}")
        document.write((json.dumps(about.document(), indent=1) + "\n").encode())
    return about


def _pieces(weights: Mapping[str, Array | Drawn], file: Any, at: int) -> Iterator[Callable[[], str]]:
    """Writing of the weights one behind the other, piece by piece; each answers with the tensor's name."""

    def put(name: str, values: Array | Drawn, number: int, at: int) -> str:
        if isinstance(values, Drawn):
            part = values.part(number)
            write_at(file, at + number * Drawn.PIECE * part.itemsize, part)
        else:
            write_at(file, at, values.data)
        return name

    for name, values in weights.items():
        for number in range(values.parts if isinstance(values, Drawn) else 1):
            yield functools.partial(put, name, values, number, at)
        at += values.nbytes


def in_threads(jobs: Iterable[Callable[[], Any]]) -> Generator[Any]:
    """Answers of jobs in their order, by as many threads as there are processors. No more than twice as many have begun."""
    threads = max(1, len(os.sched_getaffinity(0)))
    pool, begun = ThreadPoolExecutor(threads), deque[Future[Any]]()
    try:
        for job in jobs:
            begun.append(pool.submit(job))
            if len(begun) >= 2 * threads:
                yield begun.popleft().result()
        while begun:
            yield begun.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def write_at(file: Any, at: int, part: Any) -> None:
    """All bytes of a buffer, from that byte of the file on."""
    left = memoryview(part).cast("B") if memoryview(part).nbytes else memoryview(b"")
    while left:
        count = os.pwrite(file.fileno(), left, at)
        left, at = left[count:], at + count


def safetensors_header(weights: Mapping[str, Array | Drawn]) -> bytes:
    """The file's first bytes; arrays are of float32."""
    kinds = {name: w.dtype if isinstance(w, Drawn) else "F32" for name, w in weights.items()}
    return header({name: (kinds[name], tuple(w.shape), w.nbytes) for name, w in weights.items()})


def refuse(folder: Path, about: About) -> None:
    """Raises RequestError where a file is there already, or there is no room for these."""
    parent = place_for(folder, NAMES)
    free, wanted = shutil.disk_usage(parent).free, about.samples * (about.row_bytes + 8) + about.weights_bytes
    if wanted > free:
        raise RequestError(f"--dir {folder}", f"{bytes_(wanted)} are needed, and {bytes_(free)} are free", "another --dir")


def values(path: Path, kind: Any, count: int) -> Array:
    """The first numbers of a file that a run found whole as it began. Raises RunError where they aren't there any more."""
    import numpy as np

    next = "restore it, or forebay infer datagen into another --dir; then run again"
    try:
        found = np.fromfile(path, kind, count)
    except OSError as error:
        raise RunError(f"read {path}", f"{error.strerror}; it was there as the run began", next) from None
    if len(found) != count:
        wanted = count * np.dtype(kind).itemsize
        raise RunError(f"read {path}", f"it ends at byte {whole(found.nbytes)} of {whole(wanted)}, and was whole before", next)
    return found


def is_there(folder: Path) -> bool:
    return os.path.lexists(folder / ABOUT)


def model_of(folder: Path) -> str:
    """The model whose files a folder holds. Raises RequestError."""
    try:
        if not (folder / ABOUT).is_file():
            raise ValueError("no file")
        found = str(json.loads((folder / ABOUT).read_bytes()[:ABOUT_BYTES_MAX])["model"])
        if found not in rules.MODELS:
            raise ValueError(f"{found[:40]!r} is no model")
        return found
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        found = f"{ABOUT} can't be read ({error!r:.80})"
        raise RequestError(f"SOURCE {folder}", found, "a folder of forebay infer datagen") from None


def open_folder(folder: Path, model: str) -> About:
    """The files of a model. Raises RequestError where they aren't there, or not what the file beside them says."""
    path, make = folder / ABOUT, f"forebay infer datagen {model} --dir ANOTHER"
    asked = f"--dir {folder}"
    try:
        there = path.stat()
        if not stat.S_ISREG(there.st_mode):
            raise RequestError(asked, f"{ABOUT} is no file", make)
        if there.st_size > ABOUT_BYTES_MAX:
            raise RequestError(asked, f"{ABOUT} is larger than datagen writes it", make)
        found = json.loads(path.read_text())
    except FileNotFoundError:
        found = f"it has no {ABOUT}, so it holds no model's samples"
        raise RequestError(asked, found, f"forebay infer datagen {model} --dir {folder}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise RequestError(asked, f"{ABOUT} can't be read ({error!r:.80})", f"ls -l {path}") from None
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        raise RequestError(asked, f"{ABOUT} is not of schema {SCHEMA!r}", make)
    try:
        seed, samples, size, of_weights, rows = (
            int(found[key]) for key in ("seed", "samples", "row_bytes", "weights_bytes", "table_rows")
        )
        metric, quality = found.get("metric"), found.get("quality")
        small = bool(found.get("small", False))
        of_trained = (None if metric is None else str(metric), None if quality is None else float(quality))
        about = About(str(found["model"]), seed, samples, size, of_weights, rows, small, *of_trained)
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise RequestError(asked, f"{ABOUT} isn't what datagen writes ({unread(error)})", make) from None
    if about.model != model:
        raise RequestError(asked, f"it has the files of {about.model!r}, not of {model}", make)
    if about.row_bytes != row_bytes(model, about.small) or about.samples < 1 or about.table_rows < 0:
        wanted = row_bytes(model, about.small)
        reported = f"{whole(about.samples)} samples of {about.row_bytes} bytes aren't {model}'s, which have {wanted}"
        raise RequestError(asked, reported, make)
    sizes = {SAMPLES: about.samples * about.row_bytes, DIGESTS: about.samples * 8, WEIGHTS: about.weights_bytes}
    for name, bytes_there in sizes.items():
        try:
            size = (folder / name).stat().st_size
        except OSError as error:
            raise RequestError(asked, f"{name}: {error.strerror}", f"ls -l {folder}") from None
        if size != bytes_there:
            raise RequestError(asked, f"{name} has {whole(size)} bytes, not {whole(bytes_there)}", make)
    return about
