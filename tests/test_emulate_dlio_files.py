"""DLIO's workload files: read key by key, with every key accounted for; and the part of YAML that they use."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fake_machine import typed
from fake_storage import FakeStorage
from forebay.emulate import dlio, yaml_subset
from forebay.emulate.workloads import TRAINING, load
from forebay.errors import RequestError
from hypothesis import given
from hypothesis import strategies as st
from properties import examples

# The keys of DLIO's 3D U-Net as v2.0 spells them, in a text of ours.
UNET = """\
model:
  name: unet3d
  type: cnn
  model_size: 499153191
framework: pytorch
workflow: {generate_data: False, train: True, checkpoint: True}
dataset:
  data_folder: data/unet3d/      # where the files are
  format: npz
  num_files_train: 168
  num_samples_per_file: 1
  record_length_bytes: 146600628
  record_length_bytes_stdev: 68341808
  record_length_bytes_resize: 2097152
reader:
  data_loader: pytorch
  batch_size: 7
  read_threads: 4
  file_shuffle: seed
  sample_shuffle: "seed"
train:
    epochs: 5
    computation_time: 0.323
checkpoint:
  checkpoint_folder: checkpoints/unet3d
  checkpoint_after_epoch: 5
metric:
  au: 0.90
"""
# The same in v1.0's spelling: the model a word and its size among the checkpoint's keys, the record's length without unit.
UNET_V1 = (
    UNET.replace("model:\n  name: unet3d\n  type: cnn\n  model_size: 499153191\n", "model: unet3d\n")
    .replace("_length_bytes", "_length")
    .replace("reader:", "data_reader:")
    .replace("_after_epoch: 5\n", "_after_epoch: 5\n  model_size: 499153191\n")
)
DLRM = """\
model: {name: dlrm}
dataset:
  format: parquet
  num_files_train: 1024
  num_samples_per_file: 4718592
  record_length_bytes: 761
  compression: none
  parquet:
    row_group_size: 6144
    read_mode: row_group
    columns:
      - name: a
        dtype: float16
        read: false
      - {name: b, dtype: float, size: 3}
      -
        name: c
        dtype: int8
reader:
  data_loader: pytorch
  batch_size: 16384
  prefetch_size: 2
  file_shuffle: seed
train:
  epochs: 1
  computation_time: {mean: 3.75e-4}
metric: {au: .7}
"""


def read(tmp_path: Path, text: str, name: str = "unet3d_h100.yaml", **flags: Any) -> Any:
    file = tmp_path / name
    file.write_text(text)
    return dlio.load(str(file), flags.get("accelerator"), flags.get("rules"))


@pytest.mark.promise("EMU-9")
@pytest.mark.parametrize("text", [UNET, UNET_V1, UNET.replace("\n", "\r\n"), "---\n" + UNET], ids=["v2", "v1", "crlf", "dashes"])
def test_dlios_file_is_the_published_workload(text: str, tmp_path: Path) -> None:
    workload, rules, more = read(tmp_path, text)
    published, _ = load("unet3d", "h100")
    assert rules == "v1.0" and more == {"files": 168, "data": ("data/unet3d/",)}
    ours = {k: getattr(workload, k) for k in TRAINING if k not in ("rules", "status", "title", "note")}
    assert ours == {k: getattr(published, k) for k in ours}


def test_parquet_columns_and_a_mean_computation_are_read(tmp_path: Path) -> None:
    workload, rules, _ = read(tmp_path, DLRM, "dlrm_b200.yaml")
    assert rules == "v3.0" and workload.accelerator == "b200" and workload.compute_s == 3.75e-4
    assert [(c.name, c.type, c.values, c.read) for c in workload.columns] == [
        ("a", "float16", 1, False),
        ("b", "float32", 3, True),
        ("c", "int8", 1, True),
    ]
    assert (workload.row_group, workload.au_pct_min, workload.read_threads) == (6144, 70.0, 1)


def test_what_is_absent_is_dlios_default(tmp_path: Path) -> None:
    workload, _, more = read(tmp_path, "train: {computation_time: 1}\n", "mine.yaml")
    assert (workload.record_bytes, workload.files, workload.batch, workload.prefetch, workload.epochs) == (65536, 8, 1, 2, 1)
    assert (workload.format, workload.loader, workload.au_pct_min, workload.name) == ("tfrecord", "tensorflow", 90.0, "mine")
    assert workload.accelerator == "own" and more == {"files": 8} and not workload.file_shuffle


def test_the_run_that_a_file_asks_for(tmp_path: Path) -> None:
    text = UNET.replace("epochs: 5", "epochs: 5\n    total_training_steps: 20\n    seed: 7")
    text = text.replace("batch_size: 7", "batch_size: 7\n  transfer_size: 262144\n  odirect: True")
    _, _, more = read(tmp_path, text)
    assert more.pop("files") == 168
    assert more == {"data": ("data/unet3d/",), "steps": 20, "seed": 7, "transfer_bytes": 262144, "cache": "bypass"}


def test_shuffling_is_off_by_either_spelling(tmp_path: Path) -> None:
    for spelled in ("off", "'off'", "False", "OFF"):
        assert not read(tmp_path, UNET.replace("file_shuffle: seed", f"file_shuffle: {spelled}"))[0].file_shuffle
    assert read(tmp_path, UNET.replace("file_shuffle: seed", "file_shuffle: random"))[0].file_shuffle


@pytest.mark.promise("EMU-9")
def test_keys_without_effect_are_told(tmp_path: Path, capsys: Any) -> None:
    read(tmp_path, UNET)
    reported = capsys.readouterr().err
    assert "without effect on training: model.type, model.model_size, workflow.checkpoint" in reported
    assert "batch_size" not in reported


@pytest.mark.promise("EMU-9")
def test_a_shuffle_that_is_to_stay_the_same_is_said_not_to(tmp_path: Path, capsys: Any) -> None:
    text = UNET.replace("epochs: 5", "epochs: 5\n    seed_change_epoch: False")
    read(tmp_path, text)
    assert "shuffles every epoch anew" in capsys.readouterr().err
    read(tmp_path, text.replace("_epoch: False", "_epoch: True"))
    read(tmp_path, text.replace("epochs: 5", "epochs: 1"))
    assert "anew" not in capsys.readouterr().err


@pytest.mark.promise("EMU-9")
def test_a_run_by_dlios_file(capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file's folder and constants; flags win; what it changes counts in a division."""
    monkeypatch.chdir(tmp_path)
    fake = FakeStorage(10.0).install(monkeypatch)
    train = tmp_path / "data" / "unet3d" / "train"
    train.mkdir(parents=True)
    for number in range(170):
        (train / f"img_{number:03d}_of_170.npz").touch()
    file = tmp_path / "unet3d_h100.yaml"
    file.write_text(UNET.replace("epochs: 5", "epochs: 3"))
    code, out, err = typed(capsys, "emulate", "run", "--dlio", file, "--json")
    spec = fake.specs[-1]
    assert code == 0 and json.loads(out)["training"]["workload"] == "unet3d"
    assert (spec["data"], spec["epochs"], spec["workload"]["files"]) == (["data/unet3d/"], 3, 168)
    assert "of 170 files the first 168 are read; --files 170 for all" in err
    code, _, err = typed(capsys, "emulate", "run", "--dlio", file, "--data", tmp_path / "data", "--epochs", 1, "--files", 169)
    assert fake.specs[-1]["data"] == [str(tmp_path / "data")] and fake.specs[-1]["epochs"] == 1
    assert fake.specs[-1]["workload"]["files"] == 169 and "are read" not in err
    for number in range(10):
        (train / f"img_{number:03d}_of_170.npz").unlink()
    for verb in ("run", "search"):
        code, _, err = typed(capsys, "emulate", verb, "--dlio", file)
        assert code == 2 and "holds 160 .npz files, and dataset.num_files_train is 168" in err and "--files 160" in err
    code, _, err = typed(capsys, "emulate", "run", "--dlio", file, "--closed")
    assert code == 2 and "train.epochs is 3, not 5 [parameters]" in err
    code, _, err = typed(capsys, "emulate", "run", "--dlio", tmp_path / "none.yaml")
    assert code == 2 and "--dlio" in err


@pytest.mark.promise("EMU-9")
def test_a_data_set_by_dlios_file(capsys: Any, tmp_path: Path) -> None:
    file = tmp_path / "unet3d_h100.yaml"
    # As few files as any disk has room for.
    file.write_text(UNET.replace("num_files_train: 168", "num_files_train: 3"))
    code, out, err = typed(capsys, "emulate", "datagen", "--dlio", file, "--data", tmp_path / "data", "--dry-run")
    assert code == 0 and out.startswith("would create 3 npz files"), err
    code, _, err = typed(capsys, "emulate", "datagen", "--dlio", file, "--workload", "unet3d", "--data", tmp_path)
    assert code == 2 and "both name a workload" in err
    assert typed(capsys, "emulate", "datagen", "--data", tmp_path)[0] == 2


# The keys of v1.0's unet3d_datagen.yaml: nothing trains, and there is no accelerator.
DATAGEN = """\
model: unet3d
framework: pytorch
workflow: {generate_data: True, train: False, checkpoint: False}
dataset:
  data_folder: data/unet3d/
  format: npz
  num_files_train: 12
  num_subfolders_train: 3
  num_samples_per_file: 1
  record_length: 146600628
  record_length_stdev: 68341808
  record_length_resize: 2097152
"""


@pytest.mark.promise("EMU-9")
def test_a_file_that_only_makes_data_makes_them(capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from forebay.emulate import datagen

    made: list[dict[str, Any]] = []
    monkeypatch.setattr(datagen, "run", lambda spec, *_: made.append(spec) or {})
    file = tmp_path / "unet3d_datagen.yaml"
    file.write_text(DATAGEN)
    command = ("emulate", "datagen", "--dlio", file, "--data", tmp_path / "data", "--quiet")
    code, _, err = typed(capsys, *command)
    assert code == 0 and "without effect" in err and "subfolders" not in err
    assert (made[-1]["files"], made[-1]["subfolders"], made[-1]["format"]) == (12, 3, "npz")
    assert typed(capsys, *command, "--subfolders", 0, "--files", 5)[0] == 0
    assert (made[-1]["files"], made[-1]["subfolders"]) == (5, 0)
    code, _, err = typed(capsys, *command, "--accelerators", 4)
    assert code == 2 and "only generates data" in err and len(made) == 2
    code, _, err = typed(capsys, "emulate", "run", "--dlio", file)
    assert code == 2 and f"try: forebay emulate datagen --dlio {file}" in err


# The keys of v2.0's llama3_8b.yaml, in a text of ours: it calls the model llama_8b, and leaves the data parallelism to the
# number of processes.
LLAMA = """\
model:
  name: llama_8b
  type: transformer
  model_size: 30102
  num_layers: 32
  parallelism: {tensor: 1, pipeline: 1, zero_stage: 3}
  transformer:
    vocab_size: 128256
    hidden_size: 4096
    ffn_hidden_size: 14336
    num_attention_heads: 32
    num_kv_heads: 8
framework: pytorch
workflow: {generate_data: False, train: False, checkpoint: True}
checkpoint:
  checkpoint_folder: checkpoints/llama3-8b
  time_between_checkpoints: 5
  num_checkpoints_write: 10
  num_checkpoints_read: 10
  fsync: True
"""


def checkpoint_spec(*flags: str) -> dict[str, Any]:
    from forebay.emulate import checkpoint

    given = checkpoint.command.make_context("checkpoint", ["--dir", "d", *flags]).params
    return checkpoint.spec_of(given)


@pytest.mark.promise("EMU-9")
def test_dlios_checkpoint_file_is_the_published_workload(tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "llama3_8b.yaml"
    published = checkpoint_spec("--workload", "llama3-8b", "--closed")
    for name in ("mine", "llama3-8b", "llama_8b"):
        file.write_text(LLAMA.replace("llama_8b", name))
        assert checkpoint_spec("--dlio", str(file), "--closed") == published
    for verb in ("run", "datagen"):
        code, _, err = typed(capsys, "emulate", verb, "--dlio", file, "--data", tmp_path)
        assert code == 2 and f"try: forebay emulate checkpoint --dlio {file} --dir DIR" in err


@pytest.mark.promise("EMU-9")
def test_the_ranks_of_a_model_of_ones_own_say_how_many_copies_there_are(tmp_path: Path) -> None:
    """As the number of DLIO's processes does."""
    file = tmp_path / "mine.yaml"
    text = LLAMA.replace("num_layers: 32", "num_layers: 31").replace("tensor: 1", "tensor: 4")
    file.write_text(text.replace("llama_8b", "mine"))
    spec = checkpoint_spec("--dlio", str(file), "--ranks", "12")
    assert (spec["workload"], spec["ranks"], spec["model"]["data"]) == ("mine", 12, 3)


# The part of YAML -----------------------------------------------------------------------------------


def values(text: str) -> dict[str, Any]:
    return yaml_subset.parse(text, "f.yaml").values


def test_scalars_are_what_yaml_says() -> None:
    text = """
    a: 1
    b: -2.5      # a remark
    c: 1e-3
    d: yes
    e: Off
    f: ~
    g: "a # b: \\"c\\""
    h: 'it''s'
    i: plain words
    j: 1_000
    k:
    l: a#b
    m: http://host/x
    n: [1, "two, three", [4], {x: 5}]
    o: {}
    p: -
    """
    text = "\n".join(line[4:] for line in text.splitlines())[: -len("p: -\n")].rstrip("p: -\n") + "\n"
    assert values(text) == {
        "a": 1, "b": -2.5, "c": 0.001, "d": True, "e": False, "f": None, "g": 'a # b: "c"', "h": "it's", "i": "plain words",
        "j": 1000, "k": None, "l": "a#b", "m": "http://host/x", "n": [1, "two, three", [4], {"x": 5}], "o": {},
    }  # fmt: skip


def test_lists_and_mappings_nest_by_indentation() -> None:
    text = "a:\n- 1\n- b: 2\n  c:\n    - 3\n    - - 4\n      - 5\nd:\n    e: 6\n    f:\n     g: 7\n"
    assert values(text) == {"a": [1, {"b": 2, "c": [3, [4, 5]]}], "d": {"e": 6, "f": {"g": 7}}}
    assert yaml_subset.parse(text, "f.yaml").lines["d.f.g"] == 11


SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-(10**12), 10**12), st.text("ab #:-'\"[{,&x\\1", max_size=8))
TREES = st.dictionaries(
    st.text("abcxyz_", min_size=1, max_size=6),
    st.recursive(
        SCALARS,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc_", min_size=1, max_size=4), inner, max_size=3),
        max_leaves=12,
    ),
    max_size=5,
)


@pytest.mark.long
@pytest.mark.promise("EMU-9")
@examples(300)
@given(TREES, st.booleans())
def test_it_reads_what_a_yaml_library_writes(tree: dict[str, Any], flow: bool) -> None:
    yaml = pytest.importorskip("yaml")
    text = yaml.safe_dump(tree, default_flow_style=flow or None, width=10**6, sort_keys=False)
    if "? " in text:
        return
    try:
        found = values(text)
    except RequestError as refused:
        # Scalars that the library folds or tags are no part of the subset.
        assert any(mark in text for mark in ("|", ">", "&", "!", "\\", "? ")), (text, str(refused))
        return
    assert found == yaml.safe_load(text) == tree


@examples(500)
@given(st.text("ab:- \n#'\"[]{},\t&*0.1e|>\\", max_size=80))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        assert isinstance(values(text), dict)
    except RequestError as refused:
        assert str(refused).startswith("f.yaml:")


@pytest.mark.promise("EMU-9")
@examples(150)
@given(st.data())
def test_any_change_of_a_line_is_a_workload_or_refused(data: st.DataObject) -> None:
    lines = UNET.splitlines()
    at = data.draw(st.integers(0, len(lines) - 1))
    lines[at] = data.draw(st.text("abc:- #{}[]0.9xyz_\"'", max_size=20)) if data.draw(st.booleans()) else lines[at][:-2]
    import tempfile

    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write("\n".join(lines))
        file.flush()
        try:
            dlio.load(file.name, "h100", None)
        except RequestError as refused:
            assert file.name in str(refused) or "--dlio" in str(refused)
