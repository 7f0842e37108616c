"""Power-law graphs for R-GAT, generated from a seed: features of 2 KiB a node as rows of one size, edges by relation, labels.

A node's class is its number modulo the classes. Its features are its class's centre, faint, in noise; of its neighbours
more than by chance are of its class. A share of the labels is drawn anew from all classes: nobody can know those, so the best
accuracy that can be reached is known. Each relation is compressed rows: where a node's neighbours begin, and who they are.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forebay.errors import RequestError
from forebay.model_runs import place_for
from forebay.numbers import bytes_, whole
from forebay.train.data import ABOUT, files_together, refuse_other_rows, unread

if TYPE_CHECKING:
    import numpy

    Array = numpy.ndarray[Any, Any]

SCHEMA = "forebay.train.graph/1"
WIDTH, RELATIONS, CLASSES = 1024, 4, 64
ROW_BYTES = 2 * WIDTH
ROW = {"row": ("<f2", (WIDTH,))}
FEATURES, LABELS = "features.bin", "labels.npy"
NODES, NODES_MIN, NODES_MAX = 1_000_000, 1000, (1 << 31) - 1
# In-edges of a node and relation: at least so many, and few nodes have many, as a Pareto distribution of this exponent.
DEGREE_MIN, DEGREE_MAX, DEGREE_EXPONENT = 4, 1000, 2.2
# Of a node's neighbours, those drawn from its own class; of the labels, those drawn from all.
SAME_CLASS, DRAWN = 0.5, 0.1
# How far the centres of two classes are apart is this times the square root of twice the width, in deviations of the noise.
CENTRE = 0.06
# Nodes made at once, each chunk by a generator of its own.
CHUNK = 16384
# Nodes that are evaluated on: a twentieth of all, and so many at most.
EVALUATION_SHARE, EVALUATION_MAX = 20, 65_536
# Of the way from guessing to the best, how far the target is.
TARGET_SHARE = 0.8


@dataclass(frozen=True)
class About:
    """Description of a graph, as the file beside it has it. `rows`: nodes to train on; `table_rows`: all of them."""

    folder: Path
    seed: int
    table_rows: int
    classes: int
    edges: tuple[int, ...]
    best: float

    @property
    def evaluation_rows(self) -> int:
        return max(1, min(EVALUATION_MAX, self.table_rows // EVALUATION_SHARE))

    @property
    def rows(self) -> int:
        return self.table_rows - self.evaluation_rows

    @property
    def feature_bytes(self) -> int:
        return self.table_rows * ROW_BYTES

    @property
    def best_auc(self) -> float:
        """The best quality, by the name that requests of all models have for it."""
        return self.best

    @property
    def target_auc(self) -> float:
        """The target where none is given."""
        return round(1 / self.classes + TARGET_SHARE * (self.best - 1 / self.classes), 4)

    def document(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "model": "gnn",
            "seed": self.seed,
            "nodes": self.table_rows,
            "evaluation_nodes": self.evaluation_rows,
            "row_bytes": ROW_BYTES,
            "features": ["float16", [WIDTH]],
            "classes": self.classes,
            "relations": [{"edges": edges} for edges in self.edges],
            "best_accuracy": self.best,
            "target_accuracy": self.target_auc,
        }


def begins_of(relation: int) -> str:
    return f"begins-{relation}.npy"


def neighbours_of(relation: int) -> str:
    return f"neighbours-{relation}.npy"


def names() -> list[str]:
    edges = [name for r in range(RELATIONS) for name in (begins_of(r), neighbours_of(r))]
    return [FEATURES, LABELS, *edges, ABOUT]


def stride(nodes: int) -> int:
    """A factor without a common divisor with the number of nodes: times it, modulo their number, nodes change places."""
    found = int(0.6180339887 * nodes) | 1
    while math.gcd(found, nodes) != 1:
        found += 2
    return found


def features(seed: int, classes: int, first: int, count: int) -> Array:
    """Rows of float16 of so many nodes."""
    import numpy as np

    centres = CENTRE * np.random.default_rng([seed, 21]).standard_normal((classes, WIDTH), np.float32)
    made = np.random.default_rng([seed, 22, first]).standard_normal((count, WIDTH), np.float32)
    made += centres[np.arange(first, first + count) % classes]
    return made.astype(np.float16)


def labels(seed: int, nodes: int, classes: int) -> Array:
    import numpy as np

    draw = np.random.default_rng([seed, 23])
    found = np.arange(nodes, dtype=np.int64) % classes
    anew = draw.random(nodes) < DRAWN
    found[anew] = draw.integers(0, classes, int(anew.sum()))
    return found.astype(np.int32)


def edges(seed: int, nodes: int, classes: int, relation: int) -> tuple[Array, Array]:
    """Begins of each node's neighbours by a relation (nodes + 1 numbers), and the neighbours."""
    import numpy as np

    draw = np.random.default_rng([seed, 24, relation])
    degree = DEGREE_MIN * (1 - draw.random(nodes)) ** (-1 / (DEGREE_EXPONENT - 1))
    degrees = np.minimum(degree, min(DEGREE_MAX, nodes - 1)).astype(np.int64)
    begins = np.concatenate([[0], np.cumsum(degrees)])
    total = int(begins[-1])
    # Few nodes are everybody's neighbours, and they lie anywhere.
    popular = (nodes * draw.random(total) ** 2.5).astype(np.int64)
    found = popular * stride(nodes) % nodes
    same = draw.random(total) < SAME_CLASS
    own = np.repeat(np.arange(nodes, dtype=np.int64) % classes, degrees)[same]
    near = found[same] // classes * classes + own
    found[same] = np.where(near < nodes, near, near - classes)
    return begins, found.astype(np.int32)


def training(about: About) -> Callable[[int, int], Array]:
    """Numbers of nodes to train on, by place in an epoch: from a place, so many."""
    return lambda first, count: _scattered(about, first, count)


def evaluation(about: About) -> Array:
    """Nodes to evaluate on: those behind the others."""
    return _scattered(about, about.rows, about.evaluation_rows)


def _scattered(about: About, first: int, count: int) -> Array:
    import numpy as np

    return np.arange(first, first + count, dtype=np.int64) * stride(about.table_rows) % about.table_rows


def generate(folder: Path, seed: int, nodes: int, classes: int = CLASSES, progress: Callable[[str], None] | None = None) -> About:
    """Writes a graph; nothing that is there is replaced. Raises RequestError, RunError. KeyboardInterrupt leaves nothing."""
    import numpy as np

    _refuse(folder, nodes)
    with files_together(folder, names()) as files:
        for done, rows in _chunks(seed, nodes, classes):
            files[0].write(rows.data)
            if progress:
                progress(f"{whole(done)} of {whole(nodes)} nodes of {folder / FEATURES}")
        label = labels(seed, nodes, classes)
        np.save(files[1], label)
        counts = []
        for relation in range(RELATIONS):
            if progress:
                progress(f"edges of relation {relation + 1} of {RELATIONS}")
            begins, found = edges(seed, nodes, classes, relation)
            np.save(files[2 + 2 * relation], begins)
            np.save(files[3 + 2 * relation], found)
            counts.append(len(found))
        about = About(folder, seed, nodes, classes, tuple(counts), 0.0)
        asked = evaluation(about)
        about = About(folder, seed, nodes, classes, tuple(counts), round(float((label[asked] == asked % classes).mean()), 6))
        files[-1].write((json.dumps(about.document(), indent=1) + "\n").encode())
    return about


def _chunks(seed: int, nodes: int, classes: int) -> Iterator[tuple[int, Array]]:
    """Rows in order, made by as many threads as there are processors."""
    begins = range(0, nodes, CHUNK)
    threads = max(1, len(os.sched_getaffinity(0)))
    with ThreadPoolExecutor(threads) as pool:
        for at in range(0, len(begins), threads):
            some = begins[at : at + threads]
            for begin, rows in zip(some, pool.map(lambda b: features(seed, classes, b, min(CHUNK, nodes - b)), some),
                                   strict=True):  # fmt: skip
                yield begin + len(rows), rows


def _refuse(folder: Path, nodes: int) -> None:
    parent = place_for(folder, names())
    if not NODES_MIN <= nodes <= NODES_MAX:
        raise RequestError(f"--nodes {nodes}", f"is not between {whole(NODES_MIN)} and {whole(NODES_MAX)}", f"--nodes {NODES}")
    # Features, and about eight neighbours of four bytes by each relation.
    each = ROW_BYTES + RELATIONS * (8 + 4 * 2 * DEGREE_MIN)
    free, wanted = shutil.disk_usage(parent).free, nodes * each
    if wanted > free:
        found = f"about {bytes_(wanted)} are needed, and {bytes_(free)} are free"
        raise RequestError(f"--dir {folder}", found, f"--nodes {max(NODES_MIN, free // (2 * each))}")


def open_folder(folder: Path) -> About:
    """The graph in a folder. Raises RequestError where there is none, or not what the file beside it says."""
    # What lies in a folder isn't overwritten.
    make = "forebay train datagen gnn --dir ANOTHER"
    path = folder / ABOUT
    try:
        found = json.loads(path.read_text())
        if not isinstance(found, dict) or found.get("schema") != SCHEMA or found.get("row_bytes") != ROW_BYTES:
            schema = found.get("schema") if isinstance(found, dict) else "no object"
            reported = f"is of schema {schema!r}; gnn reads {SCHEMA!r}"
            raise RequestError(f"the data set {folder}", reported, f"another --dir, or {make}")
        counts = tuple(int(each["edges"]) for each in found["relations"])
        seed, nodes, classes = (int(found[key]) for key in ("seed", "nodes", "classes"))
        about = About(folder, seed, nodes, classes, counts, float(found["best_accuracy"]))
    except FileNotFoundError:
        next = make if (folder / FEATURES).exists() else f"forebay train datagen gnn --dir {folder}"
        raise RequestError(f"--dir {folder}", f"it has no {ABOUT}, so it is no data set", next) from None
    except OSError as error:
        raise RequestError(f"--dir {folder}", f"{ABOUT} can't be read ({error.strerror})", f"ls -l {path}") from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise RequestError(f"the data set {folder}", f"{ABOUT} isn't what datagen writes ({unread(error)})", make) from None
    if len(counts) != RELATIONS or about.table_rows < NODES_MIN or about.classes < 2:
        raise RequestError(f"the data set {folder}", f"{ABOUT} isn't what datagen writes", make)
    _check_length(folder / FEATURES, about.feature_bytes)
    return about


def _check_length(path: Path, wanted: int) -> None:
    try:
        size = path.stat().st_size
    except OSError as error:
        raise RequestError(f"the data set {path.parent}", f"{path.name}: {error.strerror}", f"ls -l {path.parent}") from None
    if size != wanted:
        found = f"{path.name} has {whole(size)} bytes, not {whole(wanted)}"
        raise RequestError(f"the data set {path.parent}", found, "another --dir, or forebay train datagen gnn --dir ANOTHER")


def read(about: About) -> tuple[Array, list[tuple[Array, Array]]]:
    """Labels and relations, checked: no label or neighbour that isn't one. Raises RequestError."""
    import numpy as np

    def refused(name: str, found: str) -> RequestError:
        return RequestError(f"the data set {about.folder}", f"{name}: {found}", "forebay train datagen gnn --dir ANOTHER")

    def array(name: str, length: int) -> Array:
        try:
            found: Array = np.load(about.folder / name, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise refused(name, str(error)[:120]) from None
        if found.shape != (length,) or found.dtype.kind != "i":
            raise refused(name, f"has the shape {found.shape} of {found.dtype}, not {whole(length)} integers")
        return found

    label = array(LABELS, about.table_rows)
    _check_range(label, about.classes, lambda at, n: refused(LABELS, f"node {whole(at)} has the label {n}"))
    relations = []
    for relation, count in enumerate(about.edges):
        begins, found = array(begins_of(relation), about.table_rows + 1), array(neighbours_of(relation), count)
        if begins[0] != 0 or begins[-1] != count or (np.diff(begins) < 0).any():
            raise refused(begins_of(relation), "doesn't rise from 0 to the number of edges")
        name = neighbours_of(relation)
        _check_range(found, about.table_rows, lambda at, n, name=name: refused(name, f"edge {whole(at)} leads to node {n}"))
        relations.append((begins.astype(np.int64, copy=False), found.astype(np.int32, copy=False)))
    return label, relations


def _check_range(numbers: Array, limit: int, wrong: Callable[..., RequestError]) -> None:
    if len(numbers) and not (0 <= int(numbers.min()) and int(numbers.max()) < limit):
        at = int(((numbers < 0) | (numbers >= limit)).argmax())
        raise wrong(at, int(numbers[at]))


def refuse_another_seed(about: About) -> None:
    """Raises RequestError where the features aren't of the seed that the file beside them says."""
    made = features(about.seed, about.classes, 0, 64)
    refuse_other_rows(about.folder / FEATURES, made, about.seed, "forebay train datagen gnn --dir ANOTHER")


def fan_out(text: str) -> tuple[int, ...]:
    """`--fan-out 4,3,1`: neighbours by each relation, a hop each. Raises RequestError."""
    parts: Sequence[str] = text.split(",")
    if not all(part.isascii() and part.isdigit() and 1 <= int(part) <= 1024 for part in parts) or len(parts) > 8:
        raise RequestError(f"--fan-out {text}", "isn't up to 8 numbers from 1 to 1024, one for each hop", "--fan-out 4,3,1")
    return tuple(int(part) for part in parts)
