"""`forebay doctor` as a user runs it, and the shapes in which it answers."""

from __future__ import annotations

import copy
import json
import os
import time
from typing import Any

import pytest
from forebay import doctor
from forebay.doctor import gdscheck
from gpu_stub_support import Gpu, built

STATES = {"works", "limited", "missing", "unknown", "not_applicable"}


@pytest.fixture(scope="module")
def engine() -> None:
    pytest.importorskip("forebay._core", reason="needs the built engine; try: make test")


@pytest.fixture()
def report(engine: None) -> dict[str, Any]:
    return doctor.examine(None)


@pytest.mark.promise("CMD-7")
def test_json_is_one_document_of_the_schema(engine, forebay, tmp_path):
    done = forebay("doctor", tmp_path, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["schema"] == "forebay.doctor/1"
    assert report["environment"]["cores"] == os.cpu_count()
    assert report["filesystems"][0]["path"] == str(tmp_path)
    for check in report["checks"]:
        assert check["state"] in STATES and check["area"] in doctor.AREAS and check["found"]
        if check["state"] in ("limited", "missing", "unknown"):
            assert check["why"], check


def test_the_examination_is_over_within_a_second(engine, tmp_path):
    """Of one try out of 15: it takes some 0.02 s, and other work on the machine only adds to that."""
    assert any(_timed(str(tmp_path)) < 1.0 for _ in range(15))


def _timed(source: str) -> float:
    started = time.perf_counter()
    doctor.examine(source)
    return time.perf_counter() - started


@pytest.mark.promise("DOC-1")
def test_text_groups_the_checks_and_ends_with_the_verdict(engine, forebay, tmp_path):
    done = forebay("doctor", tmp_path)
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and not done.stderr
    assert lines[-1].startswith("Runs: host")
    assert {"SOURCE", "MACHINE", "IO_URING", "FILE SYSTEM", "PATHS"} <= set(lines)
    assert "\x1b" not in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "source", ["/no/such/path", "file:/no/such/path", "stripe:?m=/no/such/path", "stripe:", "nvme+tcp:x"]
)
def test_a_source_that_cannot_be_ends_with_2_and_no_traceback(engine, forebay, source):
    done = forebay("doctor", source)
    assert done.returncode == 2
    assert done.stdout == "" and "Traceback" not in done.stderr
    assert "try:" in done.stderr


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("nil:", "our own loop"),
        ("model:d7-ps1010", "simulated"),
        ("vfio-user:/no/such.sock", "isn't running"),
    ],
)
def test_what_is_not_a_file_says_what_applies(engine, forebay, source, said):
    done = forebay("doctor", source)
    assert done.returncode == 0 and said in done.stdout


def test_a_stripe_shows_its_members_and_chunk(engine, forebay, tmp_path):
    members = [tmp_path / "a", tmp_path / "b"]
    for member in members:
        member.write_bytes(bytes(8192))
    done = forebay("doctor", f"stripe:?chunk=64k&m={members[0]}&m={members[1]}", "--json")
    report = json.loads(done.stdout)
    raid = report["raids"][-1]
    assert (raid["kind"], raid["chunk_bytes"], raid["members"]) == (
        "stripe",
        65536,
        [str(m) for m in members],
    )
    identities = [check["id"] for check in report["checks"]]
    assert len(identities) == len(set(identities))


def test_a_refused_port_names_the_command_for_the_other_side(engine, forebay):
    done = forebay("doctor", "nvme+tcp://127.0.0.1:1/nqn.2026-01.io.example:a?nsid=1")
    assert done.returncode == 0
    assert "forebay serve SOURCE --nqn nqn.2026-01.io.example:a --listen 0.0.0.0:1" in done.stdout


def test_a_configuration_with_comments_is_read_and_shown(engine, forebay, tmp_path):
    config = tmp_path / "cufile.json"
    config.write_text(
        '{ // mine\n "properties": { "allow_compat_mode": false, /* on */ "use_pci_p2pdma": true } }'
    )
    done = forebay("doctor", "--gdscheck", "--cufile-json", config)
    assert done.returncode == 0
    assert " properties.allow_compat_mode : false" in done.stdout
    assert " properties.use_pci_p2pdma : true\n" in done.stdout
    missing = forebay("doctor", "--cufile-json", tmp_path / "nope.json")
    assert missing.returncode == 2 and "nope.json" in missing.stderr


def test_a_broken_configuration_is_told_with_its_line(engine, forebay, tmp_path):
    config = tmp_path / "cufile.json"
    config.write_text('{\n "properties": {,}\n}')
    done = forebay("doctor", "--cufile-json", config)
    assert done.returncode == 0 and "line 2" in done.stdout


def test_two_shapes_at_once_are_refused(forebay):
    assert forebay("doctor", "--json", "--gdscheck").returncode == 2


def check(area: str, title: str, state: str, found: str, why: str, next: str) -> dict[str, Any]:
    return {
        "id": title,
        "area": area,
        "title": title,
        "state": state,
        "found": found,
        "why": why,
        "next": next,
    }


def test_on_a_terminal_commands_stay_in_one_line(report, monkeypatch, capsys):
    command = "sudo " + "x" * 300
    report["checks"] = [
        check("memory", "thing", "limited", "found " * 40, "why " * 60, command),
        check("gpu", "none", "not_applicable", "nothing", "w", "n"),
    ]
    monkeypatch.setenv("COLUMNS", "80")
    doctor.show_on_terminal(report)
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.endswith(command)]
    assert all(len(line) <= 80 for line in lines if command not in line)
    assert not any("type: n" in line for line in lines)


# with a GPU, or what stands in for one


def test_a_gpu_is_found_through_libcuda_and_each_condition_of_direct_dma_has_its_line(tmp_path):
    gpu = Gpu(built(), tmp_path)
    found = gpu.forebay("doctor", tmp_path, "--json").record
    assert found["gpu"]["gpus"][0]["name"] == "Stub GPU" and found["gpu"]["libcuda_refused"] is None
    ids = {check["id"]: check for check in found["checks"]}
    assert {"gds.filesystem", "gds.drive", "gds.p2pdma_json", "gds.versions"} & ids.keys()
    amiss = [check for check in found["checks"] if check["state"] == "missing"]
    assert all(check["why"] for check in amiss)
    assert found["verdicts"]["bounce"] == {"runs": True, "because": None}
    assert found["verdicts"]["gds"]["answer"] in ("direct", "compat_only", "no")
    assert not {c["id"] for c in found["verdicts"]["gds"]["both"]} & {"gpu", "libcuda", "library"}


@pytest.mark.promise("GPU-1")
@pytest.mark.parametrize(
    "settings, because",
    [
        ({"cuda": "init=999"}, "gpu"),
        ({"cuda": "gpus=0"}, "gpu"),
        ({"FOREBAY_LIBCUDA": "/no/such/libcuda.so.1"}, "gpu"),
        ({"FOREBAY_LIBCUFILE": "/no/such/libcufile.so.0"}, "library"),
    ],
)
def test_what_cufile_cannot_run_without_is_the_first_cause(tmp_path, settings, because):
    found = Gpu(built(), tmp_path).forebay("doctor", tmp_path, "--json", **settings).record
    verdict = found["verdicts"]["gds"]
    assert verdict["answer"] == "no" and verdict["both"][0]["id"] == because
    assert verdict["both"][0]["because"] and verdict["both"][0]["next"]


def test_a_library_that_is_none_is_named_with_the_loaders_words(tmp_path):
    broken = tmp_path / "libcufile.so.0"
    broken.write_text("not a library")
    found = Gpu(built(), tmp_path).forebay("doctor", "--json", FOREBAY_LIBCUFILE=str(broken)).record
    check = next(c for c in found["checks"] if c["id"] == "gds.libcufile")
    assert check["state"] == "missing" and "doesn't load" in check["why"] and "ldd" in check["next"]


PROPERTIES = [
    "allow_compat_mode", "use_poll_mode", "max_direct_io_size_kb", "max_device_cache_size_kb", "max_device_pinned_mem_size_kb",
]  # fmt: skip


def properties(found: dict[str, Any]) -> dict[str, str]:
    """Key of cufile.json → what its line says."""
    lines = {c["id"].removeprefix("cufile."): c["found"] for c in found["checks"] if c["id"].startswith("cufile.")}
    assert list(lines) == PROPERTIES
    assert all(c["title"] == key for c in found["checks"] for key in PROPERTIES if c["id"] == f"cufile.{key}")
    return lines


def test_cufiles_properties_are_what_it_says_beside_what_is_configured(tmp_path):
    config = tmp_path / "cufile.json"
    config.write_text('{ "properties": { "max_direct_io_size_kb": 8192, "max_device_cache_size_kb": 131072 } }')
    gpu = Gpu(built(), tmp_path)
    found = gpu.forebay("doctor", "--json", CUFILE_ENV_PATH_JSON=str(config)).record
    lines = properties(found)
    assert lines["max_direct_io_size_kb"] == f"16384, as cuFile says; 8192 in {config}"
    assert lines["max_device_cache_size_kb"] == "131072, as cuFile says"
    assert lines["allow_compat_mode"] == "true, as cuFile says" and lines["use_poll_mode"] == "false, as cuFile says"
    reported = found["cufile"]["properties"]
    assert (reported["pinned_max_kib"], reported["batch_max"] > 0) == (33554432, True)
    assert found["cufile"]["properties_refused"] is None
    # A file that cuFile doesn't read is shown alone.
    found = gpu.forebay("doctor", "--json", "--cufile-json", config).record
    assert properties(found)["max_direct_io_size_kb"] == "8192, in cufile.json"
    assert "--cufile-json" in found["cufile"]["properties_refused"] and found["cufile"]["properties"] is None


@pytest.mark.parametrize(
    "settings, why",
    [
        ("fail=cuFileDriverOpen:1+:5001", "cuFileDriverOpen"),
        ("fail=cuFileDriverGetProperties:1+:5", "cuFileDriverGetProperties"),
    ],
)
def test_where_cufile_doesnt_say_its_configuration_is_shown_with_the_reason(tmp_path, settings, why):
    config = tmp_path / "cufile.json"
    config.write_text('{ "properties": { "allow_compat_mode": false, "use_poll_mode": true } }')
    found = Gpu(built(), tmp_path).forebay("doctor", "--json", cufile=settings, CUFILE_ENV_PATH_JSON=str(config)).record
    assert why in found["cufile"]["properties_refused"]
    lines = properties(found)
    assert lines["allow_compat_mode"] == "false, in cufile.json" and lines["use_poll_mode"] == "true, in cufile.json"
    assert lines["max_direct_io_size_kb"] == "not set in cufile.json: cuFile's default"
    assert all(why in c["why"] for c in found["checks"] if c["id"].startswith("cufile."))


@pytest.mark.promise("VER-4")
def test_the_compiler_of_kernels_is_found_or_said_to_be_missing(tmp_path):
    def check(**settings):
        found = Gpu(built(), tmp_path).forebay("doctor", "--json", **settings).record
        return next(c for c in found["checks"] if c["id"] == "gpu.nvrtc")

    assert check()["state"] == "works" and "13.0 from" in check()["found"]
    missing = check(FOREBAY_LIBNVRTC="/no/such/libnvrtc.so.13")
    assert missing["state"] == "limited" and "host" in missing["why"] and "nvidia-cuda-nvrtc" in missing["next"]


# --gdscheck


def ready(report: dict[str, Any], driver: str | None) -> dict[str, Any]:
    """The report of a machine that has all that direct DMA takes, through nvidia-fs or P2PDMA."""
    report = copy.deepcopy(report)
    report["gpu"].update(
        driver="580.159.03", gpus=[{"index": 0, "name": "NVIDIA L40S", "bar1_bytes": 64 << 30}]
    )
    library = {"path": "/x/libcufile.so.0", "place": "CUDA toolkit", "version": "1.15.1"}
    report["cufile"].update(libraries=[library], refused=None, api_version="1.15")
    report["gds"]["nvidia_fs"] = {
        "loaded": driver is not None,
        "version": "2.27.3",
        "drivers": [driver] if driver else [],
    }
    for check in report["checks"]:
        if check["id"] in ("gds.p2pdma", "path.gds"):
            check["state"] = "works"
    return report


def gdscheck_values(report: dict[str, Any]) -> dict[str, str]:
    pairs = (line.split(":", 1) for line in gdscheck.render(report).splitlines() if ":" in line)
    return {name.strip(): value.strip() for name, value in pairs}


def test_gdscheck_has_the_headings_that_scripts_look_for(report):
    text = gdscheck.render(report)
    headings = ["DRIVER CONFIGURATION:", "CUFILE CONFIGURATION:", "GPU INFO:", "PLATFORM INFO:"]
    assert [line.strip() for line in text.splitlines() if line.strip() in headings] == headings
    assert text.startswith(" GDS release version: ")


def test_gdscheck_says_supported_only_where_a_direct_path_is_ready(report):
    bare = copy.deepcopy(report)
    bare["gpu"]["gpus"] = []
    bare["gds"]["nvidia_fs"]["drivers"] = ["nvme"]
    assert gdscheck_values(bare)["NVMe"] == "Unsupported"
    served = gdscheck_values(ready(report, "nvme"))
    assert (served["NVMe"], served["NVMeOF"], served["nvidia_fs version"][:6]) == (
        "Supported",
        "Unsupported",
        "2.27.3",
    )
    peer = gdscheck_values(ready(report, None))
    assert (peer["NVMe P2PDMA"], peer["NVMe"]) == ("Supported", "Unsupported")


def test_gdscheck_verifies_the_platform_only_when_gds_would_run(report):
    assert "Platform verification succeeded" in gdscheck.render(ready(report, "nvme"))
    failed = ready(report, "nvme")
    for check in failed["checks"]:
        if check["id"] == "path.gds":
            check.update(state="limited", found="compatibility mode only", why="because", next="do this")
    text = gdscheck.render(failed)
    assert "Platform verification failed: compatibility mode only; because" in text and "Try: do this" in text


def test_gdscheck_shows_the_gpus_window(report):
    assert "GPU index 0 NVIDIA L40S bar:1 bar size (MiB):65536 ready for direct DMA" in gdscheck.render(
        ready(report, "nvme")
    )
