"""`verify`: which section's data is read back and checked, and by what: Forebay's own content, or what fio wrote."""

from __future__ import annotations

import math

from forebay.fio import values
from forebay.fio.data import NOTHING, Data
from forebay.fio.job import CHECK, FioJob
from forebay.units import parse_bytes
from forebay.uri import parsed

# What a job that reads back does without.
WRITES_ALONE = ("sync", "refill", "atomic", "flow", "rate_min_gib_s", "rate_min_iops", "until_steady", "steady")
CHECKED_OTHERWISE = ("verify_backlog", "verify_async", "verify_state_load")
VERIFIED = (
    "md5 crc64 crc32c crc32c-intel crc32 crc16 crc7 xxhash sha512 sha256 sha1 sha3-224 sha3-256 sha3-384 sha3-512 meta"
).split()
# What fio wrote that is checked: its name → the engine's.
FIOS = {kind: kind for kind in "crc64 crc32c crc32 crc16 crc7 xxhash meta pattern".split()}
FIOS |= {"crc32c-intel": "crc32c", "pattern_hdr": "meta"}
HEAD_MAX = 56


class Checks(Data):
    """A section that may be followed by a job that reads back."""

    def __init__(self, name: str, settings: dict[str, str], before: list[FioJob] | None = None) -> None:
        super().__init__(name, settings)
        self.before = before or []
        self.reads_back = False
        self.before_group = 0

    def verify(self) -> None:
        """fio's `verify` as a check of Forebay's own content, written, then read back; or of what fio wrote before."""
        pattern = self.left.pop("verify_pattern", "")
        kind = self.left.pop("verify", "pattern_hdr" if pattern else "0")
        reads_back, only, fields = self.flag("do_verify", True), self.flag("verify_only", False), self.fields
        layout = self.left.pop("verify_interval", ""), self.left.pop("verify_offset", "0")
        if only and (kind in ("0", "none") or "read_pct" in fields):
            self.leave_out("verify_only", "1", "it needs verify, and a job that only reads or only writes")
        if only:
            self.reads_instead()
        if kind in ("0", "none"):
            return
        otherwise = [key for key in CHECKED_OTHERWISE if self.left.pop(key, "0") != "0"]
        if otherwise:
            why = f"written data is read back and checked against Forebay's own content, without {', '.join(otherwise)}"
        elif not (self.is_write() or "read_pct" in fields or self.was_written()):
            self.fios_own(kind, pattern, *layout)
            return
        else:
            why = self.why_not(kind, pattern)
        if why:
            self.leave_out(*(("verify_pattern", pattern) if pattern and not otherwise else ("verify", kind)), why)
            return
        fields["verify"] = True
        self.reads_back = self.is_write() and reads_back
        self.notes.append(f"verify={kind} checks Forebay's own content, which other programs can't check")

    def why_not(self, kind: str, pattern: str) -> str:
        """Why Forebay's own content can't take the place of fio's; empty where it can."""
        if pattern or kind not in VERIFIED:
            other = "a pattern" if pattern else kind
            return f"written data is read back and checked against Forebay's own content, without {other}"
        if not self.is_write() and "read_pct" not in self.fields:
            return ""
        partly = {"read_pct", "duration_s", "limit_bytes", "limit_ios", "skip_bytes", "distribution", "rate_gib_s"}
        held = partly & self.fields.keys()
        if held or self.fields.get("passes") != 1 or self.fields.get("no_repeat") is False:
            return "only a job that writes everything once, at full speed, can be read back and checked"
        return ""

    def reads_instead(self) -> None:
        """`verify_only`: what the same job wrote before is read in its place, in the same order; nothing is written."""
        self.fields.pop("read_pct", None)
        self.fields["op"] = self.fields["op"].replace("write", "read")
        for key in WRITES_ALONE:
            self.fields.pop(key, None)

    def fios_own(self, kind: str, pattern: str, interval: str, offset: str) -> None:
        """A job that reads, and checks, what fio wrote with `verify`."""
        headed = kind in FIOS and FIOS[kind] not in ("meta", "pattern")
        known = None if headed or not pattern else values.pattern(pattern)
        why = None
        if kind not in FIOS:
            why = f"of fio's checksums, {', '.join(FIOS)} are supported"
        elif any(parsed(source).is_idle for source in self.fields["sources"]):
            why = f"ioengine={NOTHING[0]} moves no bytes that could be checked"
        elif pattern and not headed and known is None:
            self.leave_out("verify_pattern", pattern, 'a pattern consists of numbers and "text", up to 512 bytes')
            return
        elif FIOS[kind] == "pattern" and not known:
            why = "needs a pattern: verify_pattern"
        if why:
            self.leave_out("verify", kind, why)
            return
        rule, place = [FIOS[kind], f"interval={self.interval(interval)}"], self.size("verify_offset", offset)
        if 0 < place < HEAD_MAX:
            self.leave_out("verify_offset", offset, f"a header and a checksum take up to {HEAD_MAX} bytes")
        elif place:
            rule.append(f"offset={place}")
        if known:
            rule.append(f"pattern={known.hex()}")
        # Whoever asks for a check of what was written wants no new file.
        self.fields.pop("create", None)
        self.fields["verify_fio"] = ",".join(rule)
        self.notes.append(f"verify={kind} checks what fio wrote, which must exist")

    def interval(self, asked: str) -> int:
        """fio's `verify_interval`: a part of each I/O, and the whole of it where nothing else is said."""
        sizes = [self.fields["io_bytes"], self.fields.get("io_bytes_max") or self.fields["io_bytes"]]
        if "io_mix" in self.fields:
            sizes = [parse_bytes(part.partition("=")[0]) for part in self.fields["io_mix"].split("/")[0].split(",")]
        least, most = min(sizes), max(sizes)
        wanted = min(self.size("verify_interval", asked) if asked else 0, least)
        return wanted if wanted and not least % wanted and not most % wanted else math.gcd(least, most)

    def checks(self) -> list[FioJob]:
        """The job that reads back and checks what this one wrote, in the same order; none without `verify`."""
        if not self.reads_back:
            return []
        kept = {k: v for k, v in self.fields.items() if k not in WRITES_ALONE}
        read = {**kept, "op": self.fields["op"].replace("write", "read")}
        return [FioJob(self.name + CHECK, read, follows=True, group=self.before_group)]

    def was_written(self) -> bool:
        same = ("sources", "file_name", "seed")
        return any(
            job.job.get("verify") and all(job.job.get(k) == self.fields.get(k) for k in same) for job in self.before
        )
