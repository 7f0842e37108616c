"""Click logs as DLRMv2 reads them, generated from a seed, with a planted teacher whose best reachable AUC is known.

A row has 912 bytes: a label, 13 dense numbers, and 214 row numbers of 26 tables. Each feature's first row number is drawn
log-uniformly (row k about as often as 1/k); the others are a function of it, as in the benchmark, whose multi-hot data
were made from single-hot ones. The teacher's logit is a sum of one term for each feature's first number and each dense
number; the label is drawn with its probability. So nobody can rank rows better than by that logit.
"""

from __future__ import annotations

import functools
import json
import math
import os
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forebay.errors import RequestError, RunError
from forebay.model_runs import place_for
from forebay.numbers import bytes_, whole

if TYPE_CHECKING:
    import numpy

    Array = numpy.ndarray[Any, Any]

SCHEMA = "forebay.train.data/1"
# What DLRMv2 of MLPerf Training reads (the click logs of the "Terabyte" set): rows of each table, and look-ups in it.
TABLE_ROWS = (
    40_000_000, 39_060, 17_295, 7_424, 20_265, 3, 7_122, 1_543, 63, 40_000_000, 3_067_956, 405_282, 10, 2_209, 11_938, 155, 4,
    976, 14, 40_000_000, 40_000_000, 40_000_000, 590_152, 12_973, 108, 36,
)  # fmt: skip
LOOKUPS = (3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1)
DENSE = 13
WORDS = 1 + DENSE + sum(LOOKUPS)
ROW_BYTES = 4 * WORDS
# The loader's schema: 32-bit words, of which the dense numbers are floats.
ROW = {"row": ("<i4", (WORDS,))}
TRAIN, EVALUATE, ABOUT = "train.bin", "evaluate.bin", "dataset.json"
# Rows made at once; each chunk has a generator of its own, so that the number of threads changes nothing.
CHUNK = 8192
# The logit's standard deviation and mean: with them the best reachable AUC is about 0.81, and a quarter of the labels is 1.
LOGIT_SD, LOGIT_MEAN = 1.5, -1.5
DENSE_SHARE = 0.3
# Of the way from guessing (0.5) to the best, how far the target is.
TARGET_SHARE = 0.9
LABEL, FIRST_DENSE, FIRST_LOOKUP = 0, 1, 1 + DENSE


def tables(cap: int) -> tuple[int, ...]:
    """Rows of each table, of which the large ones have `cap`."""
    return tuple(min(rows, cap) for rows in TABLE_ROWS)


def starts(counts: Sequence[int]) -> list[int]:
    """Begins of spans of these lengths, one behind the other."""
    found = [0]
    for count in counts[:-1]:
        found.append(found[-1] + count)
    return found


@dataclass(frozen=True)
class About:
    """Description of a data set, as the file beside it has it. `best_auc`: of the teacher itself on the evaluation's rows."""

    folder: Path
    seed: int
    rows: int
    evaluation_rows: int
    table_rows: int
    best_auc: float
    expected_auc: float
    positives: float

    # The model whose data these are, and how the loader sees a row.
    model = "dlrm"
    metric = "AUC"
    row_bytes = ROW_BYTES
    row = ROW

    def make(self, folder: str) -> str:
        """The command that makes such a data set."""
        return f"forebay train datagen dlrm --dir {folder}"

    def identity(self) -> dict[str, Any]:
        """As records have it."""
        return {
            "folder": str(self.folder),
            "seed": self.seed,
            "rows": self.rows,
            "table_rows": self.table_rows,
            "evaluation_rows": self.evaluation_rows,
        }

    def first_fault(self) -> str | None:
        return first_fault(self)

    def evaluation(self) -> Callable[[Any], float]:
        """AUC of a model on the rows that are kept for it. Raises RequestError for rows that can't be read."""
        import numpy as np

        rows = np.fromfile(self.folder / EVALUATE, np.int32).reshape(-1, WORDS)
        wrong = faults(rows, self.tables)
        if wrong:
            raise RequestError(f"the data set {self.folder}", f"{EVALUATE}: {wrong}", self.make("ANOTHER"))
        labels = rows[:, LABEL].copy()
        return lambda model: auc(model.scores(rows), labels)

    @property
    def tables(self) -> tuple[int, ...]:
        return tables(self.table_rows)

    @property
    def target_auc(self) -> float:
        """The target where none is given: so far from guessing to the best."""
        return round(0.5 + TARGET_SHARE * (self.best_auc - 0.5), 4)

    def document(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "model": "dlrm",
            "seed": self.seed,
            "rows": self.rows,
            "evaluation_rows": self.evaluation_rows,
            "row_bytes": ROW_BYTES,
            "table_rows": self.table_rows,
            "tables": [{"rows": rows, "lookups": n} for rows, n in zip(self.tables, LOOKUPS, strict=True)],
            "fields": {
                "label": ["int32", [1]],
                "dense": ["float32", [DENSE]],
                "sparse": ["int32", [sum(LOOKUPS)]],
            },
            "best_auc": self.best_auc,
            "best_auc_expected": self.expected_auc,
            "target_auc": self.target_auc,
            "positives": self.positives,
        }


class Teacher:
    """The planted function, and rows drawn with its labels. A seed and the tables decide it wholly."""

    def __init__(self, seed: int, cap: int) -> None:
        import numpy as np

        self.seed, self.tables = seed, tables(cap)
        draw = np.random.default_rng([seed, 1])
        self._dense = draw.standard_normal(DENSE)
        self._dense *= LOGIT_SD * math.sqrt(DENSE_SHARE) / np.linalg.norm(self._dense)
        # Small tables say more: their rows are seen often enough to be learnt.
        share = 1 / (1 + np.log10(np.asarray(self.tables, float)))
        self._weight = LOGIT_SD * np.sqrt((1 - DENSE_SHARE) * share / share.sum())
        self._salt = draw.integers(1, 1 << 62, len(LOOKUPS), dtype=np.uint64) | np.uint64(1)
        self._step = draw.integers(1, 1 << 31, sum(LOOKUPS), dtype=np.uint64) | np.uint64(1)
        self._shift = draw.integers(0, 1 << 31, sum(LOOKUPS), dtype=np.uint64)
        first = np.asarray(starts(LOOKUPS))
        self._first = first
        self._feature = np.repeat(np.arange(len(LOOKUPS)), LOOKUPS)
        self._later = np.setdiff1d(np.arange(sum(LOOKUPS)), first)

    def rows(self, part: int, chunk: int, count: int) -> tuple[Array, Array]:
        """`count` rows of a part (0: training, 1: evaluation), as (count, 228) words, and the logit of each."""
        import numpy as np

        draw = np.random.default_rng([self.seed, 2 + part, chunk])
        made = np.empty((count, WORDS), np.int32)
        dense = draw.standard_normal((count, DENSE), np.float32)
        counts = np.asarray(self.tables, float)
        first = np.exp(draw.random((count, len(counts))) * np.log(counts + 1)).astype(np.int64) - 1
        first = np.clip(first, 0, np.asarray(self.tables) - 1)
        lookups = np.empty((count, sum(LOOKUPS)), np.int64)
        lookups[:, self._first] = first
        of = self._feature[self._later]
        # A multiplication modulo 2^32 scatters; its upper bits, scaled to the table, are the row.
        mixed = (
            first[:, of].astype(np.uint64) * self._step[self._later] + self._shift[self._later]
        ) & np.uint64(0xFFFFFFFF)
        lookups[:, self._later] = (mixed * np.asarray(self.tables, np.uint64)[of]) >> np.uint64(32)
        logit = LOGIT_MEAN + dense.astype(float) @ self._dense + (self._terms(first) * self._weight).sum(1)
        made[:, LABEL] = draw.random(count) < 1 / (1 + np.exp(-logit))
        made[:, FIRST_DENSE:FIRST_LOOKUP] = dense.view(np.int32)
        made[:, FIRST_LOOKUP:] = lookups
        return made, logit

    def _terms(self, first: Array) -> Array:
        """A number for each row of each table, nearly normal: the sum of four parts of a hash."""
        import numpy as np

        bits = (first.astype(np.uint64) + np.uint64(1)) * self._salt
        bits ^= bits >> np.uint64(29)
        bits *= np.uint64(0xBF58476D1CE4E5B9)
        bits ^= bits >> np.uint64(32)
        bits *= np.uint64(0x94D049BB133111EB)
        total = np.zeros(first.shape)
        for shift in (0, 16, 32, 48):
            total += ((bits >> np.uint64(shift)) & np.uint64(0xFFFF)).astype(float)
        return (total / 65536 - 2) * math.sqrt(3)


def auc(scores: Array, labels: Array) -> float:
    """The share of pairs (one labelled 1, one 0) that the scores put in order; ties count half. Raises ValueError on one kind."""
    import numpy as np

    _, rank, counts = np.unique(scores, return_inverse=True, return_counts=True)
    upto = np.cumsum(counts)
    middle = (upto - counts + 1 + upto) / 2
    positive = np.asarray(labels, bool)
    ones, zeros = int(positive.sum()), int((~positive).sum())
    if not ones or not zeros:
        raise ValueError("all labels are the same")
    return float((middle[rank][positive].sum() - ones * (ones + 1) / 2) / (ones * zeros))


def expected_auc(chances: Array) -> float:
    """The AUC to expect of ranking by the true chance, over all labels that could have been drawn."""
    import numpy as np

    ordered = np.sort(np.asarray(chances, float))
    below = np.concatenate([[0.0], np.cumsum(1 - ordered)[:-1]])
    pairs = ordered.sum() * (1 - ordered).sum() - (ordered * (1 - ordered)).sum()
    return float((ordered * below).sum() / pairs)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """A few moments in which no signal ends what must be done as a whole."""
    kept = {}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        with suppress(ValueError):  # another thread than the main one, which gets no signals
            kept[number] = signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


class Unnamed:
    """A file of a folder that has no name until it is whole: whatever ends the process leaves nothing of it behind."""

    def __init__(self, folder: Path) -> None:
        self._hidden: Path | None = None
        try:
            self.file = os.fdopen(os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o666), "wb")
        except OSError:  # a file system without such files
            self._hidden = folder / f".{os.getpid()}.{os.urandom(4).hex()}"
            self.file = self._hidden.open("xb")

    def name(self, target: Path) -> None:
        """FileExistsError where something has it."""
        self.file.flush()
        if self._hidden is not None:
            os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            os.replace(self._hidden, target)
            return
        os.link(
            f"/proc/self/fd/{self.file.fileno()}", target, src_dir_fd=self.file.fileno(), follow_symlinks=True
        )

    def close(self) -> None:
        self.file.close()
        if self._hidden is not None:
            self._hidden.unlink(missing_ok=True)


@contextmanager
def files_together(folder: Path, names: Sequence[str]) -> Iterator[list[Any]]:
    """Files of a folder, open for writing, which get their names together once all are whole. Nothing that is there is replaced,
    and whatever ends it leaves nothing. Raises RunError."""
    made_folder, named, parts = not folder.exists(), [], []
    try:
        folder.mkdir(exist_ok=True)
        parts = [Unnamed(folder) for _ in names]
        yield [part.file for part in parts]
        with uninterrupted():
            for part, name in zip(parts, names, strict=True):
                part.name(folder / name)
                named.append(name)
    except FileExistsError as error:
        raise RunError(f"write {folder}", "another run made these files meanwhile", "run again") from error
    except OSError as error:
        raise RunError(f"write {folder}", str(error.strerror or error), "df -h; another --dir") from error
    finally:
        with uninterrupted():
            for part in parts:
                part.close()
            if len(named) < len(names):
                for name in named:
                    (folder / name).unlink()
                if made_folder and folder.is_dir():
                    with suppress(OSError):
                        folder.rmdir()


def generate(
    folder: Path, seed: int, rows: int, evaluation_rows: int, cap: int, progress: Any = None
) -> About:
    """Writes a data set; nothing that is there is replaced. Raises RequestError, RunError. KeyboardInterrupt leaves nothing."""
    refuse(folder, (TRAIN, EVALUATE, ABOUT), rows + evaluation_rows, ROW_BYTES)
    with files_together(folder, (TRAIN, EVALUATE, ABOUT)) as files:
        return _fill(folder, files, Teacher(seed, cap), (rows, evaluation_rows), cap, progress)


def _fill(
    folder: Path, files: Sequence[Any], teacher: Teacher, counts: tuple[int, int], cap: int, progress: Any
) -> About:
    import numpy as np

    logits, labels, positives = [], [], 0
    for part, (file, count) in enumerate(zip(files, counts, strict=False)):
        done = 0
        for made, logit in chunks(functools.partial(teacher.rows, part), count, CHUNK):
            file.write(made.data)
            done += len(made)
            if part:
                logits.append(logit)
                labels.append(made[:, LABEL].copy())
            else:
                positives += int(made[:, LABEL].sum())
            if progress:
                progress(f"{whole(done)} of {whole(count)} rows of {folder / (TRAIN, EVALUATE)[part]}")
    score, label = np.concatenate(logits), np.concatenate(labels)
    if label.all() or not label.any():
        found = f"all {whole(len(label))} labels of the evaluation's rows are the same, so no AUC is known"
        raise RequestError(f"--evaluation-rows {len(label)}", found, "--evaluation-rows 8192")
    about = About(
        folder, teacher.seed, *counts, cap, round(auc(score, label), 6),
        round(expected_auc(1 / (1 + np.exp(-score))), 6), round(positives / counts[0], 6),
    )  # fmt: skip
    files[2].write((json.dumps(about.document(), indent=1) + "\n").encode())
    return about


def chunks(make: Callable[[int, int], Any], count: int, size: int) -> Iterator[Any]:
    """Results of `make` for (number, rows) of each chunk, in order, by as many threads as there are processors."""
    sizes = [min(size, count - at) for at in range(0, count, size)]
    threads = max(1, len(os.sched_getaffinity(0)))
    with ThreadPoolExecutor(threads) as pool:
        for begin in range(0, len(sizes), threads):
            some = range(begin, min(begin + threads, len(sizes)))
            yield from pool.map(lambda n: make(n, sizes[n]), some)


def refuse(folder: Path, names: Sequence[str], rows: int, row_bytes: int) -> None:
    """Raises RequestError where so many rows can't be written in a folder that has none of these files."""
    parent = place_for(folder, names)
    free, wanted = shutil.disk_usage(parent).free, rows * row_bytes
    if wanted > free:
        found = f"{bytes_(wanted)} are needed, and {bytes_(free)} are free"
        raise RequestError(f"--dir {folder}", found, f"--rows {max(1, free // (2 * row_bytes))}")


def unread(error: Exception) -> str:
    """Reason why a description can't be read, for an error."""
    return f"it has no {error}" if isinstance(error, KeyError) else f"{str(error):.80}"


def open_folder(folder: Path) -> About:
    """The data set in a folder. Raises RequestError where there is none, or not what the file beside it says."""
    path = folder / ABOUT
    # What lies in a folder isn't overwritten.
    make = "forebay train datagen dlrm --dir ANOTHER"
    try:
        text = path.read_text()
    except FileNotFoundError:
        next = f"forebay train datagen dlrm --dir {folder}" if not (folder / TRAIN).exists() else make
        raise RequestError(f"--dir {folder}", f"it has no {ABOUT}, so it is no data set", next) from None
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"--dir {folder}", f"{ABOUT} can't be read ({error})", f"ls -l {path}") from None
    try:
        found = json.loads(text)
        if (
            not isinstance(found, dict)
            or found.get("schema") != SCHEMA
            or found.get("row_bytes") != ROW_BYTES
        ):
            schema = found.get("schema") if isinstance(found, dict) else "no object"
            row = found.get("row_bytes") if isinstance(found, dict) else None
            reported = f"is of schema {schema!r} with rows of {row} bytes; the model reads {SCHEMA!r} with rows of {ROW_BYTES}"
            raise RequestError(f"the data set {folder}", reported, f"another --dir, or {make}")
        about = About(
            folder, int(found["seed"]), int(found["rows"]), int(found["evaluation_rows"]), int(found["table_rows"]),
            float(found["best_auc"]), float(found["best_auc_expected"]), float(found["positives"]),
        )  # fmt: skip
        lookups = [int(each["lookups"]) for each in found["tables"]]
        counts = [int(each["rows"]) for each in found["tables"]]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise RequestError(
            f"the data set {folder}", f"{ABOUT} isn't what datagen writes ({unread(error)})", make
        ) from None
    if tuple(lookups) != LOOKUPS or tuple(counts) != about.tables:
        reported = f"it has {len(counts)} tables and {sum(lookups)} look-ups, not the model's {len(LOOKUPS)} and {sum(LOOKUPS)}"
        if tuple(lookups) == LOOKUPS:
            reported = f"its tables aren't those of the benchmark, cut to {whole(about.table_rows)} rows"
        raise RequestError(f"the data set {folder}", reported, make)
    for name, rows in ((TRAIN, about.rows), (EVALUATE, about.evaluation_rows)):
        check_length(folder / name, rows, ROW_BYTES, f"another --dir, or {make}")
    return about


def check_length(path: Path, rows: int, row_bytes: int, make: str) -> None:
    """Raises RequestError for a file that hasn't so many rows."""
    try:
        size = path.stat().st_size
    except OSError as error:
        raise RequestError(
            f"the data set {path.parent}", f"{path.name}: {error.strerror}", f"ls -l {path.parent}"
        ) from None
    if size != rows * row_bytes:
        found = f"{path.name} has {whole(size)} bytes; {whole(rows)} rows of {row_bytes} are {whole(rows * row_bytes)}"
        raise RequestError(f"the data set {path.parent}", found, make)


def faults(words: Array, counts: Sequence[int], first: int = 0) -> str | None:
    """The first fault of these rows, if they have one: (n, 228) words, of which the first is sample `first`."""
    import numpy as np

    wrong = np.flatnonzero((words[:, LABEL] != 0) & (words[:, LABEL] != 1))
    if len(wrong):
        at = int(wrong[0])
        return f"sample {whole(first + at)} has the label {words[at, LABEL]}, which is neither 0 nor 1"
    row, column = np.nonzero(
        (words[:, FIRST_LOOKUP:] < 0) | (words[:, FIRST_LOOKUP:] >= np.repeat(counts, LOOKUPS))
    )
    if len(row):
        table = int(np.repeat(np.arange(len(counts)), LOOKUPS)[column[0]])
        asked = words[row[0], FIRST_LOOKUP + column[0]]
        return f"sample {whole(first + int(row[0]))} looks up row {asked} of table {table}, which has {whole(counts[table])} rows"
    return None


def first_fault(about: About) -> str | None:
    """The first fault of a data set's training part, if it has one; reads all of it."""
    import numpy as np

    path = about.folder / TRAIN
    words = np.memmap(path, np.int32, "r").reshape(-1, WORDS)
    for at in range(0, len(words), CHUNK):
        found = faults(words[at : at + CHUNK], about.tables, at)
        if found:
            return f"{path}: {found}"
    return None


def refuse_another_seed(about: About) -> None:
    """Raises RequestError where the training part isn't of the seed that the file beside it says."""
    made, _ = Teacher(about.seed, about.table_rows).rows(0, 0, min(CHUNK, about.rows))
    refuse_other_rows(about.folder / TRAIN, made, about.seed, "forebay train datagen dlrm --dir ANOTHER")


def refuse_other_rows(path: Path, made: Array, seed: int, make: str) -> None:
    """Raises RequestError where most of a file's first rows aren't those made of the seed: somebody else's of the same length."""
    import numpy as np

    there = np.fromfile(path, made.dtype, made.size)
    if there.size != made.size or (made != there.reshape(made.shape)).any(axis=1).sum() > len(made) // 2:
        raise another_seed(path, seed, make)


def another_seed(path: Path, seed: int, make: str) -> RequestError:
    found = f"{path.name} doesn't hold the rows of seed {seed}, as {ABOUT} has it"
    return RequestError(f"the data set {path.parent}", found, make)
