"""DLRM as `forebay train` left it: its weights, and the rows kept for its evaluation as samples, whose labels are known."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forebay.errors import RequestError
from forebay.infer import data, networks
from forebay.infer import weights as of_file
from forebay.safetensors import SafetensorsFile
from forebay.train import data as rows_of

if TYPE_CHECKING:
    import numpy

    Array = numpy.ndarray[Any, Any]

METRIC = "AUC"


def generate(folder: Path, weights: Path, source: Path, progress: Callable[[str], None] | None = None) -> data.About:
    """Writes the model's files; nothing that is there is replaced. Raises RequestError where weights and rows don't belong
    together, RunError. An interrupt leaves nothing."""
    import numpy as np

    found = rows_of.open_folder(source)
    rows = np.fromfile(source / rows_of.EVALUATE, np.int32).reshape(-1, rows_of.WORDS)
    wrong = rows_of.faults(rows, found.tables)
    if wrong:
        raise RequestError(f"--rows-of {source}", f"{rows_of.EVALUATE}: {wrong}", "another --rows-of")
    many = len(rows) // data.PAIRS
    if not many:
        reported = f"its {len(rows)} evaluation rows make no sample of {data.PAIRS}"
        raise RequestError(f"--rows-of {source}", reported, f"forebay train datagen dlrm --evaluation-rows {64 * data.PAIRS}")
    with SafetensorsFile(weights) as file:
        of_file.refuse_others(weights, file, networks.shapes("dlrm", found.table_rows), "F32")
    size = weights.stat().st_size
    about = data.About(
        "dlrm", found.seed, many, data.row_bytes("dlrm"), size, found.table_rows, metric=METRIC, quality=_quality(weights)
    )
    data.refuse(folder, about)
    samples = rows[: many * data.PAIRS].reshape(many, -1).view(np.uint8)
    with rows_of.files_together(folder, data.NAMES) as (held, listed, model, document), weights.open("rb") as file_:
        held.write(samples.data)
        listed.write(data.digests(samples).data)
        if progress:
            progress(f"weights of {folder}")
        shutil.copyfileobj(file_, model, 16 << 20)
        document.write((json.dumps(about.document(), indent=1) + "\n").encode())
    return about


def _quality(weights: Path) -> float | None:
    """The quality that the training measured, if the file's header says one."""
    with weights.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        reported = json.loads(file.read(length)).get("__metadata__") or {}
    try:
        return float(reported["quality"]) if reported["quality_name"] == METRIC else None
    except (KeyError, ValueError, TypeError):
        return None


def auc(folder: Path, answers: Array) -> float:
    """AUC of (samples, pairs) answers to a folder's first samples. Raises ValueError where all labels are the same."""
    import numpy as np

    shape = (len(answers), data.PAIRS, rows_of.WORDS)
    rows = np.memmap(folder / data.SAMPLES, np.int32, "r", shape=shape)
    return rows_of.auc(answers.reshape(-1), rows[:, :, rows_of.LABEL].reshape(-1))
