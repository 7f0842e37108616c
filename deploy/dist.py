"""Completes dist/: Debian packages of the wheels and of forebayd, an SPDX list of what is inside, and checksums.

    python deploy/dist.py dist FOREBAY       (FOREBAY: an installed command, which writes man pages and completions)

`make dist` runs it after the wheels and programs are there. Needs dpkg-deb and cargo.
"""

from __future__ import annotations

import configparser
import datetime
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
HOMEPAGE = "https://github.com/forebay/forebay"
MAINTAINER = "Forebay <maintainers@users.noreply.github.com>"
COMPRESSION = "xz"
DEBIAN = {"x86_64": "amd64", "aarch64": "arm64"}
# What Debian 12 calls the dependencies of pyproject.toml, and its libraries of C.
DEPENDS = (
    "python3 (>= 3.10), python3-click (>= 8.1), python3-jinja2 (>= 3.1), python3-numpy, python3-rich (>= 13), "
    "libc6 (>= 2.28)"
)
LOCKED = re.compile(r'name = "([^"]+)"\nversion = "([^"]+)"\nsource = [^\n]+\nchecksum = "([0-9a-f]{64})"')
SHELLS = {
    "bash": "usr/share/bash-completion/completions/forebay",
    "zsh": "usr/share/zsh/vendor-completions/_forebay",
    "fish": "usr/share/fish/vendor_completions.d/forebay.fish",
}
# What Python makes of the modules is made at installation and goes at removal: dpkg keeps what it doesn't know.
COMPILED = {
    "postinst": "#!/bin/sh\nset -e\nif command -v py3compile >/dev/null; then py3compile -p forebay; fi\n",
    "prerm": "#!/bin/sh\nset -e\nif command -v py3clean >/dev/null; then py3clean -p forebay; fi\n",
}
SCRIPT = "#!/usr/bin/python3\nimport sys\n\nfrom {module} import {name}\n\nsys.exit({name}())\n"


def control(package: str, version: str, arch: str, depends: str, what: str) -> str:
    fields = {
        "Package": package, "Version": version, "Architecture": DEBIAN[arch], "Maintainer": MAINTAINER, "Depends": depends,
        "Section": "admin", "Priority": "optional", "Homepage": HOMEPAGE, "Description": what,
    }  # fmt: skip
    return "".join(f"{key}: {value}\n" for key, value in fields.items())


def put(place: Path, content: bytes | str, mode: int = 0o644) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(content.encode() if isinstance(content, str) else content)
    place.chmod(mode)


def pack(tree: Path, out: Path, card: str, scripts: dict[str, str] | None = None) -> None:
    put(tree / "DEBIAN/control", card)
    for name, script in (scripts or {}).items():
        put(tree / "DEBIAN" / name, script, 0o755)
    put(tree / f"usr/share/doc/{out.name.partition('_')[0]}/copyright", (ROOT / "LICENSE").read_text())
    for folder in [tree, *(path for path in tree.rglob("*") if path.is_dir())]:
        folder.chmod(0o755)
    build = ["dpkg-deb", "--root-owner-group", f"-Z{COMPRESSION}", "--build", tree, out]
    subprocess.run(build, check=True, stdout=subprocess.DEVNULL)


def forebay_package(wheel: Path, dist: Path, forebay: str) -> Path:
    """A Debian package of a wheel, with its commands, manual pages and completions."""
    version, arch = wheel.name.split("-")[1], re.search(r"_(x86_64|aarch64)\.whl$", wheel.name)[1]  # type: ignore[index]
    out = dist / f"forebay_{version}_{DEBIAN[arch]}.deb"
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(tree / "usr/lib/python3/dist-packages")
            points = archive.read(next(n for n in archive.namelist() if n.endswith("entry_points.txt"))).decode()
        # Other groups name what other programs look for, such as vLLM its plug-ins.
        commands = configparser.ConfigParser()
        commands.read_string(points)
        for command, place in commands["console_scripts"].items():
            module, _, name = place.partition(":")
            put(tree / "usr/bin" / command, SCRIPT.format(module=module, name=name), 0o755)
        pages = tree / "usr/share/man/man1"
        subprocess.run([forebay, "man", "--out", pages], check=True, stdout=subprocess.DEVNULL)
        for page in pages.iterdir():
            page.chmod(0o644)
        for shell, place in SHELLS.items():
            put(tree / place, subprocess.run([forebay, "completion", shell], check=True, capture_output=True).stdout)
        what = "feeds GPUs from storage, and measures how well that works"
        pack(tree, out, control("forebay", version, arch, DEPENDS, what), COMPILED)
    return out


def daemon_package(program: Path, version: str, dist: Path) -> Path:
    """A Debian package of forebayd, with its services and examples of their configuration."""
    arch = program.name.partition("-")[2]
    out = dist / f"forebayd_{version}_{DEBIAN[arch]}.deb"
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        put(tree / "usr/bin/forebayd", program.read_bytes(), 0o755)
        for unit in ROOT.glob("deploy/*.service"):
            if "avahi" not in unit.name:
                text = unit.read_text().replace("/usr/local/bin/forebay ", "/usr/bin/forebayd ")
                put(tree / "usr/lib/systemd/system" / unit.name, text)
        for example in ("serve.toml", "snap.toml"):
            put(tree / "usr/share/doc/forebayd/examples" / example, (ROOT / "deploy" / example).read_text())
        what = "NVMe over Fabrics target and gateway of emulated drives"
        pack(tree, out, control("forebayd", version, arch, "libc6 (>= 2.28)", what))
    return out


def trim_lock(source: Path) -> None:
    """Takes out of the lock file in a source distribution what nothing there uses.

    maturin leaves out the crates that the library doesn't use, and cargo, told to be `locked`, refuses a lock file that
    names more than is there: nobody could build from it.
    """
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(source) as archive:
            archive.extractall(folder)
            entries = archive.getmembers()
        (tree,) = Path(folder).iterdir()
        command = ["cargo", "metadata", "--offline", "--format-version", "1"]
        subprocess.run(command, cwd=tree, check=True, stdout=subprocess.DEVNULL)
        # The same bytes from the same source: gzip would note when.
        with gzip.GzipFile(source, "wb", mtime=0) as packed, tarfile.open(fileobj=packed, mode="w") as archive:
            for entry in (entry for entry in entries if entry.isfile()):
                content = (Path(folder) / entry.name).read_bytes()
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))


def inventory(version: str) -> dict[str, Any]:
    """SPDX 2.3: each crate that is linked into the library and the daemon, with version, licence and checksum."""
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", "x86_64-unknown-linux-gnu"]
    found = json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout)
    by_id = {package["id"]: package for package in found["packages"]}
    nodes = {node["id"]: node for node in found["resolve"]["nodes"]}
    left = [i for i, package in by_id.items() if package["name"] in ("forebay-python", "forebayd")]
    linked: set[str] = set()
    while left:
        package = left.pop()
        if package not in linked:
            linked.add(package)
            normal = (d for d in nodes[package]["deps"] if any(kind["kind"] is None for kind in d["dep_kinds"]))
            left += [d["pkg"] for d in normal]
    sums = {(name, version): sum for name, version, sum in LOCKED.findall((ROOT / "Cargo.lock").read_text())}
    packages = []
    for package in sorted((by_id[i] for i in linked), key=lambda p: (p["name"], p["version"])):
        entry = {
            "SPDXID": f"SPDXRef-{re.sub(r'[^A-Za-z0-9.-]', '-', package['name'])}-{package['version']}",
            "name": package["name"],
            "versionInfo": package["version"],
            "downloadLocation": package["repository"] or "NOASSERTION",
            "licenseDeclared": (package["license"] or "NOASSERTION").replace("/", " OR "),
            "licenseConcluded": "NOASSERTION",
            "copyrightText": "NOASSERTION",
            "filesAnalyzed": False,
        }
        if sum := sums.get((package["name"], package["version"])):
            entry["checksums"] = [{"algorithm": "SHA256", "checksumValue": sum}]
        packages.append(entry)
    made = datetime.datetime.fromtimestamp(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), datetime.timezone.utc)
    return {
        "spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": f"forebay-{version}",
        "documentNamespace": f"{HOMEPAGE}/spdx/{version}",
        "creationInfo": {"created": made.strftime("%Y-%m-%dT%H:%M:%SZ"), "creators": ["Tool: forebay deploy/dist.py"]},
        "packages": packages,
        "relationships": [
            {"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES", "relatedSpdxElement": p["SPDXID"]}
            for p in packages if p["name"] in ("forebay-python", "forebayd")
        ],
    }  # fmt: skip


def main() -> int:
    if len(sys.argv) != 3 or not Path(sys.argv[1]).is_dir():
        print("usage: python deploy/dist.py DIST FOREBAY", file=sys.stderr)
        return 2
    dist, forebay = Path(sys.argv[1]), sys.argv[2]
    if shutil.which("dpkg-deb") is None:
        print("dist.py: dpkg-deb is not here; try: apt install dpkg", file=sys.stderr)
        return 3
    wheels = sorted(dist.glob("*.whl"))
    version = wheels[0].name.split("-")[1]
    trim_lock(dist / f"forebay-{version}.tar.gz")
    for wheel in wheels:
        forebay_package(wheel, dist, forebay)
    for program in sorted(dist.glob("forebayd-*")):
        daemon_package(program, version, dist)
    (dist / f"forebay-{version}.spdx.json").write_text(json.dumps(inventory(version), indent=1) + "\n")
    made = sorted(path for path in dist.iterdir() if path.name != "SHA256SUMS")
    (dist / "SHA256SUMS").write_text("".join(f"{hashlib.sha256(p.read_bytes()).hexdigest()}  {p.name}\n" for p in made))
    for path in made:
        print(f"{path.stat().st_size:>11,}  {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
