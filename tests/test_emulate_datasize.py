"""`forebay emulate datasize`: how large the rules want a data set."""

from __future__ import annotations

import json
import math
import os
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_machine import typed
from forebay.emulate import data, datagen, datasize
from forebay.emulate.datasize import size
from forebay.emulate.workloads import load
from forebay.errors import MachineError
from hypothesis import given
from hypothesis import strategies as st
from properties import examples

UNET = ("--workload", "unet3d", "--accelerator", "h100")


@pytest.mark.promise("EMU-6")
@pytest.mark.parametrize(
    ("name", "accelerator", "rules", "accelerators", "memory", "files", "by"),
    [
        # 500 × 7 × 4 samples of one file each; 5 × 64 GiB are 2,343 of them.
        ("unet3d", "h100", "v1.0", 4, 64 << 30, 14000, "steps"),
        # 5 × 1 TiB / 146,600,628 B = 37,500.06
        ("unet3d", "h100", "v1.0", 4, 1 << 40, 37500, "memory"),
        ("unet3d", "h100", "text", 4, 1 << 40, 37501, "memory"),
        # 500 × 400 × 7 / 1251 = 1119.1
        ("resnet50", "h100", "v1.0", 7, 1 << 30, 1119, "steps"),
        ("resnet50", "h100", "v2.0", 7, 1 << 30, 1119, "steps"),
        ("resnet50", "h100", "text", 7, 1 << 30, 1120, "steps"),
        # 5 × 256 GiB / 114,660.07 B = 11,986,644 samples, 1,251 in a file
        ("resnet50", "a100", "v1.0", 8, 256 << 30, 9581, "memory"),
        ("resnet50", "a100", "v2.0", 8, 256 << 30, 9581, "memory"),
        ("cosmoflow", "a100", "v2.0", 16, 128 << 30, 242954, "memory"),
    ],
)
def test_the_data_set_is_as_large_as_the_rules_tools_say(
    name: str, accelerator: str, rules: str, accelerators: int, memory: int, files: int, by: str
) -> None:
    found = size(load(name, accelerator, rules)[0], rules, accelerators, memory)
    assert (found.files, found.by) == (files, by)


@pytest.mark.promise("EMU-6")
@examples(300)
@given(
    which=st.sampled_from([("unet3d", "h100"), ("resnet50", "a100"), ("cosmoflow", "h100")]),
    accelerators=st.integers(1, 4096),
    memory=st.integers(1 << 20, 1 << 44),
)
def test_by_the_text_both_conditions_hold_and_one_file_less_breaks_one(
    which: tuple[str, str], accelerators: int, memory: int
) -> None:
    workload, _ = load(*which)
    found = size(workload, "text", accelerators, memory)

    def holds(files: int) -> bool:
        samples = files * workload.samples_per_file
        steps = samples // (workload.batch * accelerators)
        return steps >= 500 and samples * workload.record_bytes >= 5 * memory * (1 - 1e-12)

    assert holds(found.files) and not holds(found.files - 1)
    for rules in ("v1.0", "v2.0"):
        assert found.files - 1 <= size(workload, rules, accelerators, memory).files <= found.files
    assert found.steps_per_epoch == math.floor(found.samples / (workload.batch * accelerators))


@pytest.mark.promise("EMU-6")
def test_datagen_makes_as_many_files_as_the_rules_want(
    capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[dict[str, Any]] = []
    monkeypatch.setattr(datagen, "run", lambda spec, *_: made.append(spec) or {})
    command = ("emulate", "datagen", *UNET, "--data", tmp_path, "--quiet", "--accelerators")
    assert typed(capsys, *command, 4, "--hosts", 2, "--memory", "1g")[0] == 0 and made[-1]["files"] == 14000
    assert typed(capsys, *command, 4, "--memory", "1t")[0] == 0 and made[-1]["files"] == 37500
    refused = [
        ((*command, 4, "--files", 9), "both say how many"),
        ((*command, 5, "--hosts", 2), "the same number"),
        ((*command[:-1], "--memory", "1g"), "needs --accelerators"),
        (("emulate", "datagen", "--workload", "unet3d", "--data", tmp_path, "--accelerators", 4), "runs on several accelerators"),
    ]
    for words, reported in refused:
        code, _, err = typed(capsys, *words)
        assert code == 2 and reported in err and len(made) == 2, err


@pytest.mark.promise("EMU-6")
def test_datasize_names_the_workload_as_it_was_typed(capsys: Any, tmp_path: Path) -> None:
    from test_emulate_dlio_files import UNET as DLIO
    from test_emulate_workloads import OWN

    (tmp_path / "my own.toml").write_text(OWN)
    (tmp_path / "unet3d_h100.yaml").write_text(DLIO)
    for typed_as in (("--workload", tmp_path / "my own.toml"), ("--dlio", tmp_path / "unet3d_h100.yaml")):
        code, out, err = typed(capsys, "emulate", "datasize", *typed_as, "--memory", "1g")
        assert code == 0 and f"emulate datagen {typed_as[0]} {shlex.quote(str(typed_as[1]))} --files" in out, err


def test_datasize_says_what_asks_for_most_and_what_to_type(capsys: Any) -> None:
    code, out, _ = typed(capsys, "emulate", "datasize", *UNET, "--accelerators", 4, "--memory", "1t")
    assert code == 0 and "37,500, because of 5 × the memory" in out
    assert "emulate datagen --workload unet3d --files 37500" in out
    code, out, _ = typed(capsys, "emulate", "datasize", *UNET, "--accelerators", 4, "--hosts", 2, "--memory", "1g", "--json")
    document = json.loads(out)
    assert code == 0 and document["files"] == 14000 and document["by"] == "steps" and document["steps_per_epoch"] == 500
    assert document["seconds_min"] == pytest.approx(500 * 5 * 0.323)
    code, _, err = typed(capsys, "emulate", "datasize", *UNET, "--accelerators", 5, "--hosts", 2)
    assert code == 2 and "the same number" in err
    code, out, _ = typed(capsys, "emulate", "datasize", "--workload", "retinanet", "--accelerator", "b200", "--memory", "1t")
    assert code == 0 and "folders" in out


@pytest.mark.parametrize(
    ("reported", "limits", "lowest"),
    [
        ("0::/", {"memory.max": "1048576"}, 1 << 20),
        ("0::/a.slice/b.scope", {"a.slice/memory.max": "2097152", "a.slice/b.scope/memory.max": "max"}, 2 << 20),
        ("0::/a.slice/b.scope", {"a.slice/memory.max": "max", "a.slice/b.scope/memory.max": "3145728"}, 3 << 20),
        ("0::/host/path", {"memory.max": "4194304"}, 4 << 20),
        ("0::/../other", {"memory.max": "max"}, None),
        ("5:cpu:/x\n4:memory:/docker/c", {"memory/docker/c/memory.limit_in_bytes": "5242880"}, 5 << 20),
        ("4:memory:/docker/c", {"memory/memory.limit_in_bytes": "6291456"}, 6 << 20),
        ("4:cpu,memory:/up/c\n0::/", {"memory/up/memory.limit_in_bytes": "7340032"}, 7 << 20),
        ("4:memory:/", {"memory/memory.limit_in_bytes": "9223372036854771712"}, None),
        (":\n::\nodd\n", {"memory.max": "\u0663"}, None),
    ],
)
def test_memory_is_the_lowest_limit_of_the_groups_above(
    tmp_path: Path, reported: str, limits: dict[str, str], lowest: int | None
) -> None:
    for name, text in {"proc/self/cgroup": reported, **{f"sys/fs/cgroup/{k}": v for k, v in limits.items()}}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert datasize.memory_of_this_host(str(tmp_path)) == (lowest or whole)
    files = [f"{tmp_path}/sys/fs/cgroup/{name}" for name, text in limits.items() if text.isdigit()]
    assert datasize.memory_and_limit(str(tmp_path))[1] in (files if lowest else [None])


def test_batches_beyond_a_containers_limit_name_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = SimpleNamespace(destination="host", prefetch=2, workload=SimpleNamespace(batch_bytes=1 << 30))
    for limit, said in (("/sys/fs/cgroup/a/memory.max", "the limit in /sys/fs/cgroup/a/memory.max"), (None, "of memory")):
        monkeypatch.setattr(data, "memory_and_limit", lambda limit=limit: (1 << 30, limit))
        with pytest.raises(MachineError, match="2.0 GiB of batches") as refused:
            data.check_memory(asked, 1)  # type: ignore[arg-type]
        assert refused.value.found.endswith(said) and ("docker run --memory" in refused.value.next) == bool(limit)
