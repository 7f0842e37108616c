"""Emulated training on modelled drives in virtual time, through the real engine."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fake_machine import typed

UNET = ("emulate", "run", "--workload", "unet3d", "--accelerator", "h100", "--epochs", "1", "--steps", "30", "--json", "-q")


def record_of(capsys: Any, *arguments: Any) -> tuple[int, dict[str, Any]]:
    code, out, err = typed(capsys, *UNET, *arguments)
    assert code in (0, 1), err
    return code, json.loads(out)


@pytest.mark.long
@pytest.mark.promise("TRA-34")
def test_a_modelled_drive_feeds_what_its_bandwidth_allows_and_says_that_it_is_simulated(capsys: Any) -> None:
    code, few = record_of(capsys, "--accelerators", "4", "--data", "model:d7-ps1010")
    assert code == 0 and few["origin"] == "simulated" and few["training"]["passes"]
    code, many = record_of(capsys, "--accelerators", "8", "--data", "model:d7-ps1010")
    # 14.5 GB/s of the 25.4 that eight of them take.
    assert code == 1 and 50 < many["training"]["au_pct"] < 65
    assert [w["id"] for w in many["warnings"]] == ["simulated"]


@pytest.mark.long
@pytest.mark.promise("TRA-34")
def test_two_modelled_drives_feed_what_one_does_not(capsys: Any) -> None:
    code, striped = record_of(capsys, "--accelerators", "8", "--data", "model:d7-ps1010?drives=2")
    assert code == 0 and striped["training"]["au_pct"] > 90


@pytest.mark.long
def test_the_same_seed_gives_the_same_run(capsys: Any) -> None:
    runs = [record_of(capsys, "--accelerators", "5", "--seed", s, "--data", "model:d7-ps1010")[1] for s in ("1", "1", "2")]
    assert runs[0]["training"] == runs[1]["training"] != runs[2]["training"]


def test_a_model_that_is_none_is_refused_by_name(capsys: Any) -> None:
    code, _, err = typed(capsys, *UNET, "--accelerators", "1", "--data", "model:d9-none")
    assert code == 2 and "model:d9-none" in err and "Traceback" not in err
