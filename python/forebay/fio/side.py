"""Content of a section's writes, priority of its I/Os, and its share relative to other sections: `buffer_compress_…`,
`dedupe_…`, `prio…`, `cmdprio…`, `flow`."""

from __future__ import annotations

from forebay.fio.endings import Endings

CLASSES = {1: "rt", 2: "be", 3: "idle"}
FLOW_MAX = 1000


class Sides(Endings):
    """A section that isn't alone on its machine."""

    def sides(self, threads: int) -> None:
        self.content(threads)
        self.priority()
        self.flow()

    def per_cent(self, key: str) -> int:
        """A percentage of `key`; 0 where nobody asks."""
        value = self.number(key, 0)
        if value > 100:
            raise self.wrong(key, str(value), "is above 100", f"{key}=50")
        return value

    def content(self, threads: int) -> None:
        """Sets how far the buffers of writes compress, and how often they come again."""
        compress, dedupe = self.per_cent("buffer_compress_percentage"), self.per_cent("dedupe_percentage")
        chunk = self.size("buffer_compress_chunk", self.left.pop("buffer_compress_chunk", "512"))
        mode, shared = self.left.pop("dedupe_mode", "repeat"), self.flag("dedupe_global", False)
        share = self.number("dedupe_working_set_percentage", 5)
        if mode not in ("repeat", "working_set"):
            raise self.wrong("dedupe_mode", mode, "is neither repeat nor working_set", "dedupe_mode=repeat")
        if not (compress or dedupe) or not (self.is_write() or "read_pct" in self.fields):
            return
        if not 1 <= chunk <= 1 << 20:
            raise self.wrong("buffer_compress_chunk", str(chunk), "is not 1 byte to 1 MiB", "buffer_compress_chunk=4k")
        rule = [f"compress={compress},chunk={chunk}"] if compress else []
        if dedupe:
            rule.append(f"dedupe={dedupe}")
        if dedupe and mode == "working_set":
            if not shared or "file_bytes" not in self.fields or not 1 <= share <= 100:
                why = "the working set must be 1 to 100 % of size, and shared by all jobs: dedupe_global=1"
                self.leave_out("dedupe_mode", mode, why)
                return
            contents = self.fields["file_bytes"] * share // 100 // self.fields["io_bytes"] * threads
            rule.append(f"set={max(contents, 1)}")
        if self.fields.get("verify"):
            self.leave_out("verify", "", "verify checks Forebay's own content, which is neither compressible nor repeated")
            return
        self.fields.update(content=",".join(rule), refill=True)

    def priority(self) -> None:
        """Sets the priority of all of a job's I/Os, or of some of them."""
        rule = self.class_and_level("prioclass", "prio", 0)
        text = self.left.pop("cmdprio_percentage", "0")
        parts = [part.strip() or "0" for part in text.split(",")]
        if len(parts) > 2 or not all(part.isdecimal() and int(part) <= 100 for part in parts):
            raise self.wrong("cmdprio_percentage", text, "is not a percentage", "cmdprio_percentage=20")
        some = self.class_and_level("cmdprio_class", "cmdprio", 1)
        reads, writes = int(parts[0]), int(parts[-1])
        if "read_pct" in self.fields and reads != writes:
            self.leave_out("cmdprio_percentage", text, "reads and writes must have the same percentage of I/Os with a priority")
            return
        share = writes if self.is_write() else reads
        if share and self.fields.get("engine") != "uring":
            self.leave_out("cmdprio_percentage", text, "only I/Os of io_uring and libaio carry a priority of their own")
            return
        of = [rule] if rule else []
        of += [f"{share}={some}"] if share else []
        if of:
            self.fields["priority"] = ",".join(of)

    def class_and_level(self, key: str, level_key: str, usual: int) -> str:
        """`rt/0`; without a class best effort, as in fio, or empty where neither is asked for."""
        asked = key in self.left or level_key in self.left
        kind, level = self.number(key, usual), self.number(level_key, 0)
        if kind > 3 or level > 7:
            raise self.wrong(key, f"{kind}/{level}", "is not class 0 to 3 and level 0 to 7", f"{key}=2")
        if not asked and not usual:
            return ""
        name = CLASSES[kind or 2]
        return name if name == "idle" else f"{name}/{level}"

    def flow(self) -> None:
        """I/Os in proportion to those of other sections with the same `flow_id`, which stands in for a file that all map."""
        weight, group = self.number("flow", 0), self.number("flow_id", 0)
        if weight > FLOW_MAX:
            raise self.wrong("flow", str(weight), f"is above {FLOW_MAX}", "flow=8")
        if weight:
            self.fields["flow"] = f"{weight}@{group}"
