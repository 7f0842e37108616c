"""The workloads: every constant as MLPerf Storage states it, and files of users' own."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from fake_machine import typed
from forebay import run as engine
from forebay.emulate import workloads
from forebay.emulate.workloads import Checkpoint, Training
from forebay.errors import RequestError
from hypothesis import given
from hypothesis import strategies as st
from properties import any_text, examples

UNET3D = dict(
    format="npz", loader="pytorch", batch=7, record_bytes=146600628, record_bytes_stdev=68341808,
    record_bytes_resize=2097152, samples_per_file=1, files=168, read_threads=4, computation_threads=1, prefetch=2,
    epochs=5, au_pct_min=90, file_shuffle=True, sample_shuffle=True, shuffle_samples=None,
)  # fmt: skip
RESNET50 = dict(
    format="tfrecord", loader="tensorflow", batch=400, record_bytes=114660.07, record_bytes_stdev=0,
    record_bytes_resize=150528, samples_per_file=1251, files=1024, read_threads=8, computation_threads=8, prefetch=2,
    epochs=5, au_pct_min=90, file_shuffle=False, sample_shuffle=False, shuffle_samples=None,
)  # fmt: skip
COSMOFLOW = dict(
    format="tfrecord", loader="tensorflow", batch=1, record_bytes=2828486, record_bytes_stdev=71311,
    record_bytes_resize=None, samples_per_file=1, files=524288, read_threads=4, computation_threads=1, prefetch=2,
    epochs=5, au_pct_min=70, file_shuffle=True, sample_shuffle=True, shuffle_samples=2,
)  # fmt: skip
RETINANET = dict(
    format="jpeg", loader="pytorch", record_bytes=322957, record_bytes_stdev=0, record_bytes_resize=None,
    samples_per_file=1, files=1170301, read_threads=8, computation_threads=1, prefetch=2, epochs=8, au_pct_min=85,
    file_shuffle=True, sample_shuffle=True,
)  # fmt: skip
DLRM = dict(
    format="parquet", loader="pytorch", batch=16384, record_bytes=761, record_bytes_stdev=0, samples_per_file=4718592,
    files=1024, read_threads=4, computation_threads=1, prefetch=2, epochs=1, au_pct_min=70, file_shuffle=True,
    sample_shuffle=False, row_group=6144,
)  # fmt: skip
FLUX = dict(
    format="parquet", loader="pytorch", record_bytes=2164832, record_bytes_stdev=0, samples_per_file=288, files=4296,
    read_threads=8, computation_threads=1, prefetch=2, epochs=1, au_pct_min=90, file_shuffle=True, sample_shuffle=False,
)  # fmt: skip
OLD, NEW = ("v1.0", "v2.0"), ("v3.0",)
# (workload, accelerator) → rule sets, status, constants, samples/s and MiB/s of one that never waits.
FACTS: dict[tuple[str, str], tuple[tuple[str, ...], str, dict[str, Any], float, float]] = {
    ("unet3d", "a100"): (OLD, "closed", {**UNET3D, "compute_s": 0.636}, 11.0063, 1538.78),
    ("unet3d", "h100"): (OLD, "closed", {**UNET3D, "compute_s": 0.323}, 21.6718, 3029.92),
    ("unet3d", "b200"): (NEW, "closed", {**UNET3D, "compute_s": 0.162, "files": 7200}, 43.2099, 6041.14),
    ("resnet50", "a100"): (OLD, "closed", {**RESNET50, "compute_s": 0.435}, 919.5402, 100.55),
    ("resnet50", "h100"): (OLD, "closed", {**RESNET50, "compute_s": 0.224}, 1785.7143, 195.26),
    ("cosmoflow", "a100"): (OLD, "closed", {**COSMOFLOW, "compute_s": 0.00551}, 181.4882, 489.56),
    ("cosmoflow", "h100"): (OLD, "closed", {**COSMOFLOW, "compute_s": 0.0035}, 285.7143, 770.7),
    ("retinanet", "b200"): (NEW, "closed", {**RETINANET, "batch": 24, "compute_s": 0.04755}, 504.7319, 155.46),
    ("retinanet", "mi355"): (NEW, "closed", {**RETINANET, "batch": 32, "compute_s": 0.0634}, 504.7319, 155.46),
    ("dlrm", "b200"): (NEW, "whatif", {**DLRM, "compute_s": 0.000375}, 43690666.6667, 31708.33),
    ("dlrm", "mi355"): (NEW, "whatif", {**DLRM, "compute_s": 0.0005625}, 29127111.1111, 21138.89),
    ("flux", "b200"): (NEW, "whatif", {**FLUX, "batch": 48, "compute_s": 1.35}, 35.5556, 73.41),
    ("flux", "mi355"): (NEW, "whatif", {**FLUX, "batch": 72, "compute_s": 2.025}, 35.5556, 73.41),
}
LLAMA = dict(
    rules=("v2.0", "v3.0"), status="closed", vocab=128256, model_type="fp16", optimizer_type="fp32", processes_subset=8,
    writes=10, reads=10, pause_s=5, fsync=True,
)  # fmt: skip
SHAPE = ("layers", "hidden", "ffn_hidden", "heads", "kv_heads", "tensor", "pipeline", "data", "zero_stage", "processes")
SIZES = ("model_gib", "optimizer_gib")
CHECKPOINTS = {
    "llama3-8b": ((32, 4096, 14336, 32, 8, 1, 1, 8, 3, 8), (15, 90)),
    "llama3-70b": ((80, 8192, 28672, 128, 8, 8, 1, 8, 3, 64), (130, 781)),
    "llama3-405b": ((126, 16384, 53248, 128, 8, 8, 32, 2, 1, 512), (755, 4533)),
    "llama3-1t": ((128, 25872, 98304, 192, 32, 8, 64, 2, 1, 1024), (2571, 15426)),
}


@pytest.mark.promise("EMU-1")
def test_the_workloads_are_those_that_the_rules_have() -> None:
    assert list(workloads.RULES) == engine.tables()["rules"]
    found = [w for ws in workloads.builtin().values() for w in ws]
    assert {(w.name, w.accelerator) for w in found if isinstance(w, Training)} == set(FACTS)
    assert {w.name for w in found if isinstance(w, Checkpoint)} == set(CHECKPOINTS)


@pytest.mark.promise("EMU-1", "PLN-18")
@pytest.mark.parametrize("which", FACTS, ids="-".join)
def test_each_constant_of_a_training_workload_is_the_published_one(which: tuple[str, str]) -> None:
    rules, status, constants, samples_per_s, mib_s = FACTS[which]
    for asked in rules:
        found, chosen = workloads.load(*which, asked)
        assert (chosen, found.rules, found.status) == (asked, rules, status)
        assert {k: getattr(found, k) for k in constants} == constants
        assert found.samples_per_s == pytest.approx(samples_per_s, abs=5e-5)
        assert found.mib_s == pytest.approx(mib_s, abs=5e-3)


@pytest.mark.promise("EMU-1")
@pytest.mark.parametrize("name", CHECKPOINTS)
def test_each_constant_of_a_checkpoint_workload_is_the_published_one(name: str) -> None:
    found = workloads.load_checkpoint(name)
    shape, sizes = CHECKPOINTS[name]
    expected = {**LLAMA, **dict(zip(SHAPE, shape, strict=True)), **dict(zip(SIZES, sizes, strict=True))}
    assert {k: getattr(found, k) for k in expected} == expected


@pytest.mark.promise("EMU-1")
def test_parquet_columns_make_the_record() -> None:
    dlrm, _ = workloads.load("dlrm", "b200")
    assert sum(c.sample_bytes for c in dlrm.columns) == 761 and len(dlrm.columns) == 200
    assert [c.name for c in dlrm.columns] == [f"feature_{n:03d}" for n in range(200)]
    read = [n for n, c in enumerate(dlrm.columns) if c.read]
    assert len(read) == 40 and read[:5] == [11, 17, 18, 20, 25] and read[-2:] == [189, 195]
    flux, _ = workloads.load("flux", "b200")
    sizes = [("t5_encodings", 524328), ("clip_encodings", 409), ("mean", 8232), ("logvar", 8232), ("timestamp", 7)]
    assert [(c.name, c.values) for c in flux.columns] == sizes
    assert sum(c.sample_bytes for c in flux.columns) == 2164832 and all(c.read for c in flux.columns)


def test_without_rules_the_first_set_that_has_the_accelerator_is_taken() -> None:
    assert workloads.load("unet3d", "h100")[1] == "v1.0"
    assert workloads.load("unet3d", "b200")[1] == "v3.0"
    assert workloads.load("unet3d", None, "v3.0")[0].accelerator == "b200"
    assert workloads.load("resnet50", "h100", "text")[1] == "text"


OWN = """
title = "mine"
format = "raw"
loader = "pytorch"
batch = 2
compute_s = 0.5
record_bytes = 1048576
samples_per_file = 1
files = 10
read_threads = 1
epochs = 1
au_pct_min = 90
"""


@pytest.mark.promise("EMU-2")
def test_a_file_of_ones_own_is_a_workload_for_any_rules(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(OWN)
    for rules in (None, *workloads.RULES):
        found, chosen = workloads.load(str(file), None, rules)
        assert (found.name, found.batch, found.status, found.mib_s) == ("mine", 2, "own", 4.0)
        assert chosen == (rules or "v1.0")


@pytest.mark.promise("EMU-2")
@examples(60)
@given(
    st.dictionaries(
        st.sampled_from([*workloads.TRAINING, "kind", "variant", "tensor", "x"]),
        st.recursive(
            st.one_of(st.integers(), st.floats(), st.booleans(), any_text(max_size=8), st.none()),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(any_text(max_size=4), inner, max_size=3),
            max_leaves=6,
        ),
        max_size=8,
    )
)
def test_whatever_a_file_holds_it_is_a_workload_or_refused(changes: dict[str, Any]) -> None:
    from forebay.plan import catalogue

    whole = {**catalogue.load_toml(OWN, "own"), **changes}
    kept, catalogue.load_toml = catalogue.load_toml, lambda *_: dict(whole)  # type: ignore[assignment]
    try:
        assert workloads.parse("", "mine", "mine.toml")
    except RequestError as refused:
        assert "mine.toml" in str(refused)
    finally:
        catalogue.load_toml = kept  # type: ignore[assignment]


@pytest.mark.promise("EMU-24")
def test_the_verb_lists_and_shows(capsys: Any, tmp_path: Path) -> None:
    code, out, _ = typed(capsys, "emulate", "workloads", "--json")
    document = json.loads(out)
    assert code == 0 and len(document["workloads"]) == len(FACTS) + len(CHECKPOINTS)
    code, out, _ = typed(capsys, "emulate", "workloads")
    assert code == 0 and all(name in out for pair in FACTS for name in pair) and "llama3-1t" in out
    sizes = {row.split()[0]: row[-8:].strip() for row in out.splitlines() if row.startswith("llama3-")}
    # What DLIO 2.0 writes; the rules state 18 TB for the largest.
    assert sizes == {"llama3-8b": "105 GiB", "llama3-70b": "911 GiB", "llama3-405b": "5.17 TiB", "llama3-1t": "15.1 TiB"}
    code, out, _ = typed(capsys, "emulate", "workloads", "show", "llama3-8b")
    assert code == 0 and re.search(r"optimizer_bytes +96,365,", out)
    code, out, _ = typed(capsys, "emulate", "workloads", "show", "resnet50", "--accelerator", "h100")
    assert code == 0 and "114,660.07" in out and "1,251" in out and "0.224" in out and "0.435" not in out
    (tmp_path / "mine.toml").write_text(OWN)
    code, out, _ = typed(capsys, "emulate", "workloads", "show", tmp_path / "mine.toml")
    assert code == 0 and "mine" in out
    for words in (("show",), ("shaw", "unet3d"), ("list", "--accelerator", "tpu")):
        code, _, err = typed(capsys, "emulate", "workloads", *words)
        assert code == 2 and "try:" in err
