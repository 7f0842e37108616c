"""What shakes hands for Linux's NVMe/TCP over TLS: `tlshd` of Debian's ktls-utils, brought into a running guest with its
libraries and its loader, as tests/vm/emulator.py does with QEMU; and the keys that both ends derive from one secret."""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.server
import io
import re
import shutil
import struct
import tarfile
import threading
import zlib
from pathlib import Path

from . import linux
from .emulator import LIBRARIES, LOADER
from .guest import HOST, Guest
from .packages import CACHE, Apt, Unavailable, locked

SUITE = "trixie"
PROGRAMS = {"tlshd": "usr/sbin/tlshd", "keyctl": "usr/bin/keyctl"}
WANTED = re.compile(r"lib.*|zlib1g|ktls-utils|keyutils")
PLACE = "/opt/tls"
CIPHERS = ("aesni-intel", "ghash_generic", "ctr", "gcm")
# Below a library folder, what no shared library of these programs is.
LEFT_OUT = re.compile(r".*\.(a|py|o)$|.*/(gconv|perl.*|systemd|gio)/.*")
CONFIG = """[debug]
loglevel=1
tls=0
nl=0
[authenticate]
keyrings=.nvme
[authenticate.client]
[authenticate.server]
"""


def fetched() -> Path:
    """Debian's packages of both programs, unpacked below target/vm. Raises Unavailable."""
    place = CACHE / "tlshd"
    with locked("tlshd"):
        if not (place / "complete").is_file():
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir(parents=True)
            apt = Apt(SUITE)
            apt.update()
            names = {name for package in ("ktls-utils", "keyutils") for name in apt.closure(package)}
            apt.download(sorted(name for name in names if WANTED.fullmatch(name)), place)
            shutil.rmtree(place / "usr/share", ignore_errors=True)
            shutil.rmtree(apt.folder)
            (place / "complete").touch()
    return place


def packed(place: Path) -> bytes:
    """A tar of the programs and their libraries, with a script for each below bin/ that starts it."""
    folders = [part for part in LIBRARIES if (place / part).is_dir()]
    loader = next((f"{part}/{LOADER}" for part in folders if (place / part / LOADER).exists()), None)
    if not loader or not all((place / path).is_file() for path in PROGRAMS.values()):
        raise Unavailable(f"{place}: no tlshd with its {LOADER} in what was fetched")
    path = ":".join(f"{PLACE}/{part}" for part in folders)
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for part in [*folders, *PROGRAMS.values()]:
            tar.add(place / part, f"{PLACE[1:]}/{part}", filter=lambda t: None if LEFT_OUT.match(t.name) else t)
        for name, program in PROGRAMS.items():
            text = f'#!/bin/sh\nexec {PLACE}/{loader} --library-path {path} {PLACE}/{program} "$@"\n'.encode()
            entry = tarfile.TarInfo(f"{PLACE[1:]}/bin/{name}")
            entry.size, entry.mode = len(text), 0o755
            tar.addfile(entry, io.BytesIO(text))
    return out.getvalue()


def bring(guest: Guest) -> None:
    """Puts both programs into the guest, and starts `tlshd`. Raises Unavailable where Debian doesn't have them."""
    if not guest.run(f"[ -x {PLACE}/bin/tlshd ]", check=False).ok:
        body = packed(fetched())

        class Once(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        with http.server.HTTPServer(("127.0.0.1", 0), Once) as server:
            threading.Thread(target=server.handle_request, daemon=True).start()
            guest.run(f"wget -q -O - http://{HOST}:{server.server_port}/ | tar -x -C /", timeout=120)
    config = linux.words("printf", "%s", CONFIG)
    # The kernel would ask for its ciphers by /sbin/modprobe, which a guest doesn't have.
    guest.run(f"modprobe -a {' '.join(CIPHERS)} 2>/dev/null; modprobe tls && modprobe nvme-tcp")
    guest.run(f"{config} >/run/tlshd.conf")
    if not guest.run("pidof tlshd || pgrep -f sbin/tlshd", check=False).ok:
        guest.run(f"setsid {PLACE}/bin/tlshd -s -c /run/tlshd.conf >/run/tlshd.out 2>&1 </dev/null &")
        guest.until("pgrep -f sbin/tlshd || true", bool, 20)


def interchange(key: bytes) -> str:
    """A secret as `nvme gen-tls-key --hmac=1` spells it: base64 of it and its CRC-32."""
    return f"NVMeTLSkey-1:01:{base64.b64encode(key + struct.pack('<I', zlib.crc32(key))).decode()}:"


def _expand(key: bytes, label: str, context: bytes) -> bytes:
    """HKDF-Expand-Label of HKDF-Extract with no salt (RFC 8446, section 7.1), SHA-256, 32 bytes."""
    secret = hmac.digest(bytes(32), key, "sha256")
    named = b"tls13 " + label.encode()
    info = struct.pack(">H", 32) + bytes([len(named)]) + named + bytes([len(context)]) + context
    return hmac.digest(secret, info + b"\1", "sha256")


def session(key: bytes, host: str, subsystem: str) -> tuple[str, bytes]:
    """Identity (version 1) and pre-shared key of a session, from a secret of 32 bytes (tcp, section 3.6.1.3)."""
    retained = _expand(key, "HostNQN", host.encode())
    named = f"{host} {subsystem} NVMe-over-Fabrics".encode()
    digest = base64.b64encode(hmac.new(retained, named, hashlib.sha256).digest()).decode()
    return f"NVMe1R01 {host} {subsystem} {digest}", _expand(retained, "nvme-tls-psk", f"01 {digest}".encode())


def hand_over(guest: Guest, identity: str, key: bytes) -> str:
    """Puts a session's key into the guest's .nvme keyring. Returns its serial number."""
    octal = "".join(f"\\{byte:03o}" for byte in key)
    put = linux.words(f"{PLACE}/bin/keyctl", "padd", "psk", identity, "%:.nvme")
    return guest.run(f"printf '{octal}' | {put}").output.strip()
