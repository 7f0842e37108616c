"""`forebay doctor --write-cufile-json` and `--fix-udev`: as typed, and on machines made up in a report."""

from __future__ import annotations

import copy
import json
import os

import pytest
from forebay import doctor
from forebay.doctor import cufile_json
from forebay.gdsio import cufile


@pytest.fixture(scope="module")
def report():
    return doctor.examine()


def with_verdict(report, *, p2pdma=(), both=(), in_kernel=True):
    """The report of a machine on which exactly these conditions don't hold."""
    made = copy.deepcopy(report)

    def causes(ids):
        return [{"id": i, "because": f"{i} is amiss", "next": "correct it"} for i in ids]

    made["verdicts"]["gds"].update(p2pdma=causes(p2pdma), both=causes(both))
    made["gds"]["p2pdma"]["in_kernel"] = in_kernel
    return made


def properties(report, allow_compat=None, path=None):
    text = cufile_json.render(report, allow_compat)
    path.write_text(text)
    return cufile.parse(path)["properties"]


# the file, as typed


def test_the_file_is_written_read_back_and_said_how_to_use(forebay, tmp_path):
    target = tmp_path / "mine.json"
    done = forebay("doctor", "--write-cufile-json", target, "--no-compat")
    assert done.returncode == 0, done.stderr
    assert f"export CUFILE_ENV_PATH_JSON={target}" in done.stdout
    config = json.loads(forebay("doctor", "--json", "--cufile-json", target).stdout)["cufile"]["config"]
    assert config["refused"] is None and config["allow_compat_mode"] is False
    assert config["settings"]["properties.force_compat_mode"] is False


@pytest.mark.promise("GPU-2")
def test_a_file_that_is_there_is_kept_unless_said_otherwise(forebay, tmp_path):
    target = tmp_path / "mine.json"
    target.write_text("mine")
    done = forebay("doctor", "--write-cufile-json", target)
    assert done.returncode == 2 and "already exists" in done.stderr and "--overwrite" in done.stderr
    assert target.read_text() == "mine"
    assert forebay("doctor", "--write-cufile-json", target, "--overwrite").returncode == 0
    assert "allow_compat_mode" in target.read_text()
    assert [p.name for p in tmp_path.iterdir()] == ["mine.json"]


def test_json_says_each_setting_with_its_reason(forebay, tmp_path):
    done = forebay("doctor", "--write-cufile-json", tmp_path / "a.json", "--allow-compat", "--json")
    document = json.loads(done.stdout)
    rows = {s["key"]: s for s in document["settings"]}
    assert rows["properties.allow_compat_mode"]["value"] is True
    assert all(row["why"] for row in rows.values()) and document["use"].endswith("a.json")


@pytest.mark.parametrize(
    "target, code, words", [("", 2, "is a directory"), ("no/such/place.json", 2, "can't be written")]
)
def test_a_place_that_takes_no_file_is_named(forebay, tmp_path, target, code, words):
    done = forebay("doctor", "--write-cufile-json", tmp_path / target)
    assert done.returncode == code and words in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("flag", ["--overwrite", "--no-compat", "--allow-compat"])
def test_flags_about_a_file_need_the_file(forebay, flag):
    done = forebay("doctor", flag)
    assert done.returncode == 2 and "--write-cufile-json FILE" in done.stderr


# what is decided


@pytest.mark.promise("GPU-2")
def test_p2pdma_is_asked_for_only_where_all_else_is_ready(report, tmp_path):
    path = tmp_path / "c.json"
    assert properties(with_verdict(report), path=path)["use_pci_p2pdma"] is True
    # What this file itself puts right is no obstacle.
    mended = with_verdict(report, p2pdma=["p2pdma_json"], both=["forced_compat"])
    assert properties(mended, path=path)["use_pci_p2pdma"] is True
    for amiss in (
        with_verdict(report, p2pdma=["p2pdma_json", "p2pdma_registry"]),
        with_verdict(report, both=["drive"]),
        with_verdict(report, in_kernel=None),
    ):
        assert properties(amiss, path=path)["use_pci_p2pdma"] is False
    assert "p2pdma_registry is amiss" in cufile_json.render(
        with_verdict(report, p2pdma=["p2pdma_registry"]), None
    )


def test_the_compatibility_mode_is_as_asked_else_as_in_force(report, tmp_path):
    path = tmp_path / "c.json"
    for asked in (True, False):
        assert properties(report, asked, path)["allow_compat_mode"] is asked
    forbidding = copy.deepcopy(report)
    forbidding["cufile"]["config"]["allow_compat_mode"] = False
    assert properties(forbidding, None, path)["allow_compat_mode"] is False


@pytest.mark.promise("GPU-2")
def test_rdma_and_mounts_of_the_file_in_force_are_left_as_they_are(report, tmp_path):
    old = tmp_path / "old.json"
    old.write_text(
        '{ // a comment\n "properties": {"rdma_dev_addr_list": ["10.0.0.1"], "allow_compat_mode": false,},'
        ' "fs": {"lustre": {"mount_table": {"/l": {"rdma_dev_addr_list": ["10.0.0.2"]}}}}, }'
    )
    made = copy.deepcopy(report)
    made["cufile"]["config"].update(path=str(old), exists=True, refused=None)
    new = tmp_path / "new.json"
    new.write_text(cufile_json.render(made, True))
    content = cufile.parse(new)
    assert content["fs"] == {"lustre": {"mount_table": {"/l": {"rdma_dev_addr_list": ["10.0.0.2"]}}}}
    assert content["properties"]["rdma_dev_addr_list"] == ["10.0.0.1"]
    assert content["properties"]["allow_compat_mode"] is True


def test_a_file_in_force_that_cannot_be_read_is_said_and_left_out(report, tmp_path):
    made = copy.deepcopy(report)
    made["cufile"]["config"].update(exists=True, refused="expected value at line 3", path="/etc/cufile.json")
    text = cufile_json.render(made, None)
    assert "can't be read (expected value at line 3)" in text.splitlines()[0]


def test_each_setting_has_its_reason_above_it(report):
    lines = cufile_json.render(report, None).splitlines()
    for setting in cufile_json.settings(report, None):
        at = next(i for i, line in enumerate(lines) if f'"{setting.key.split(".")[1]}"' in line)
        assert lines[at - 1].strip() == f"// {setting.why}"


# --fix-udev


@pytest.mark.parametrize(("user", "sudo"), [(0, ""), (1000, "sudo ")])
def test_fix_udev_prints_the_commands_for_the_very_device(report, monkeypatch, user, sudo):
    monkeypatch.setattr(os, "geteuid", lambda: user)
    made = copy.deepcopy(report)
    made["gds"]["udev"] = [
        {"device": "254:0", "filesystem": "ext4", "control": False, "filesystem_type": None},
        {"device": "259:1", "filesystem": "xfs", "control": True, "filesystem_type": "xfs"},
    ]
    commands = cufile_json.udev_commands(made)
    assert commands[-1] == (
        r"printf 'E:ID_FS_TYPE=ext4\nE:ID_FS_USAGE=filesystem\nG:systemd\nV:1\n'"
        f" | {sudo}tee /run/udev/data/b254:0"
    )
    assert commands[1] == f"{sudo}touch /run/udev/control" and len(commands) == 3


def test_fix_udev_changes_nothing_and_says_when_there_is_nothing_to_do(forebay, tmp_path, report):
    done = forebay("doctor", tmp_path, "--fix-udev")
    assert done.returncode == 0 and done.stdout.strip()
    made = copy.deepcopy(report)
    made["gds"]["udev"] = []
    assert cufile_json.udev_commands(made) == []
