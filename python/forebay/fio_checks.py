"""`verify`: which section's data is read back and checked, and by what."""

from __future__ import annotations

from forebay.fio_data import Data
from forebay.fio_job import CHECK, FioJob

# What a job that reads back does without.
WRITES_ALONE = ("sync", "refill", "atomic", "flow", "rate_min_gib_s", "rate_min_iops", "until_steady", "steady")
CHECKED_OTHERWISE = ("verify_backlog", "verify_async", "verify_state_load")
VERIFIED = (
    "md5 crc64 crc32c crc32c-intel crc32 crc16 crc7 xxhash sha512 sha256 sha1 sha3-224 sha3-256 sha3-384 sha3-512 meta"
).split()


class Checks(Data):
    """A section that may be followed by a job that reads back."""

    def __init__(self, name: str, settings: dict[str, str], before: list[FioJob] | None = None) -> None:
        super().__init__(name, settings)
        self.before = before or []
        self.reads_back = False
        self.before_group = 0

    def verify(self) -> None:
        """fio's `verify` as a check of Forebay's own content: written, then read back."""
        kind = self.left.pop("verify", "0")
        reads_back, fields = self.flag("do_verify", True), self.fields
        if kind in ("0", "none"):
            return
        otherwise = [key for key in CHECKED_OTHERWISE if self.left.pop(key, "0") != "0"]
        why = None
        if kind not in VERIFIED or otherwise:
            why = f"what is written is read back and checked by its own content, without {', '.join(otherwise or [kind])}"
        elif not self.is_write() and not self.was_written():
            why = "a section above must have written it with verify: what fio wrote carries fio's checksums"
        elif self.is_write() or "read_pct" in fields:
            partly = {"read_pct", "duration_s", "limit_bytes", "limit_ios", "skip_bytes", "distribution", "rate_gib_s"}
            held = sorted(partly & fields.keys())
            if held or fields.get("passes") != 1 or fields.get("no_repeat") is False:
                why = "only a job that writes everything once, at full speed, is read back and checked"
        if why:
            self.leave_out("verify", kind, why)
            return
        fields["verify"] = True
        self.reads_back = self.is_write() and reads_back
        self.notes.append(f"verify={kind} is a check of Forebay's own content, which no other program knows")

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
