"""`forebay gdsio` through cuFile, against the stand-ins of tests/gpu_stubs: what ran is what the line says."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from gpu_stub_support import Gpu, Ran, built
from properties import parametrized


@pytest.fixture
def gpu(tmp_path: Path) -> Gpu:
    try:
        os.close(os.open(tmp_path / "probe", os.O_CREAT | os.O_RDWR | os.O_DIRECT))
    except OSError:
        pytest.skip(f"{tmp_path} has no O_DIRECT, so nothing there could go direct")
    return Gpu(built(), tmp_path)


def gdsio(gpu: Gpu, mode: str, *words: str | Path, config: str = "no.such.json") -> Ran:
    return gpu.forebay("gdsio", *words, cufile=f"mode={mode}", CUFILE_ENV_PATH_JSON=config)


@pytest.mark.promise("GIO-1", "GIO-2")
@parametrized(
    ("words", "label", "depth"),
    [
        ("-x 0 -w 2", "GPUD", None),
        ("-x 0 -w 2 -b", "GPUD", None),
        ("-x 5 -w 2", "GPUD_ASYNC", None),
        ("-x 6 -w 2 -B 4", "GPU_BATCH", 4),
        ("-x 7 -w 2 -B 4", "GPU_BATCH_STREAM", 4),
    ],
    kept=(0, 2, 3),
)
@parametrized(("mode", "suffix"), [("p2p", ""), ("compat", "_COMPAT"), ("mixed", "_COMPAT")], kept=(0, 1))
def test_each_type_of_cufile_runs_and_its_line_tells_what_ran(
    gpu: Gpu, words: str, label: str, depth: int | None, mode: str, suffix: str
) -> None:
    for op in ("1", "0"):
        flags = f"{words} -d 0 -s 1M -i 64K -I {op}".split()
        ran = gdsio(gpu, mode, "-D", gpu.home, *flags).balanced()
        assert ran.exit == 0, ran.err
        assert len(ran.out.splitlines()) == 1
        assert re.search(rf"XferType: {label}{suffix} Threads: 2 ", ran.out), ran.out
        assert (f"IoDepth: {depth} " in ran.out) == (depth is not None), ran.out
        assert "DataSetSize: 2048/2048(KiB)" in ran.out


@pytest.mark.promise("GIO-2")
def test_without_leave_to_fall_back_it_exits_3_and_says_what_to_type(gpu: Gpu) -> None:
    config, file = gpu.home / "cufile.json", gpu.home / "f"
    config.write_text('{ // mine\n "properties": { "allow_compat_mode": false } }')
    file.write_bytes(bytes(1 << 20))
    plain = ("-f", file, "-x", "0", "-I", "0")
    for ran in (gdsio(gpu, "compat", *plain, config=str(config)), gdsio(gpu, "compat", *plain, "--require-direct")):
        assert (ran.exit, ran.out) == (3, ""), ran.err
        assert "5001" in ran.err and "-x 1" in ran.err
