"""Sizes, offsets, number and timing of a section's I/Os."""

from __future__ import annotations

import re

from forebay.fio.settings import Settings
from forebay.units import format_bytes

# Of fio, for one direction.
SPLITS_MAX = 64
ZONES = ("zonemode", "zonesize", "zoneskip", "zonerange")


class Offsets(Settings):
    """Offsets that follow from `bs` and its like, `random_distribution`, the modifiers of `rw`, zones, limits and pauses."""

    def modifier(self, word: str, text: str) -> None:
        """`rw=read:-8k`: a hole behind each sequential I/O."""
        key = f"{word}:{text}"
        if word.startswith("rand"):
            self.leave_out("rw", key, f"every I/O has a random offset, without the ':{text}'")
        elif word in ("rw", "readwrite"):
            self.leave_out("rw", key, "only reads alone, or writes alone, skip parts of a file")
        else:
            below = text.startswith("-")
            hole = self.size("rw", text.removeprefix("-"))
            if hole:
                self.fields["skip_bytes"], self.hole = -hole if below else hole, key

    def block_sizes(self, mixed: bool) -> None:
        """`bs=8k`, `bs=4k,64k` (reads, writes), `bsrange=4k-64k`, `bssplit=4k/60:64k/40`."""
        key = next((k for k in ("bssplit", "bsrange") if k in self.left), "bs")
        text = self.left.pop(key, "4k")
        for other in ("bs", "bsrange"):
            self.left.pop(other, None)
        parts = [p.strip() for p in text.split(",")]
        if len(parts) > 3:
            found = "has more than three parts"
            if key == "bssplit" and all("/" in part for part in parts):
                raise self.wrong(key, text, f"{found}: sizes are separated by colons", f"{key}={':'.join(parts)}")
            raise self.wrong(key, text, found, f"{key}=128k")
        if key != "bssplit":
            # A part that is left blank is fio's default: `bs=,8k`, `bs=8k,`.
            parts = [part or "4k" for part in parts]
        reads, writes = parts[0], (parts[1] if len(parts) > 1 and parts[1] else parts[0])
        if key == "bssplit":
            self.split(text, reads, writes, mixed)
        elif mixed and reads != writes and key == "bs":
            sizes = self.size(key, reads), self.size(key, writes)
            self.mix("/".join(f"{format_bytes(size)}=1" for size in sizes), *([size] for size in sizes))
        elif mixed and reads != writes:
            found = "gives reads and writes different ranges, which one job can't have"
            raise self.wrong(key, text, found, f"{key}={reads}")
        else:
            side = writes if self.is_write() else reads
            least, dash, most = side.partition("-")
            if not least or (dash and not most):
                raise self.wrong(key, side, "is not a size", f"{key}={'4k-64k' if key == 'bsrange' else '4k'}")
            self.fields["io_bytes"] = self.size(key, least)
            if not self.fields["io_bytes"]:
                raise self.wrong(key, text, "an I/O has at least 1 byte", f"{key}=4k")
            if dash:
                self.fields.update(io_bytes_max=self.size(key, most), io_bytes_step=self.fields["io_bytes"])
        # Alignment of random offsets; sequential ones follow on each other.
        if "ba" in self.left and self.is_random():
            self.fields["align_bytes"] = self.size("ba", self.left.pop("ba"))

    def split(self, text: str, reads: str, writes: str, mixed: bool) -> None:
        if not mixed:
            reads = writes = writes if self.is_write() else reads
        sides = [self.shares(text, side) for side in ((reads, writes) if reads != writes else (reads,))]
        words = (",".join(f"{format_bytes(size)}={share}" for size, share in side) for side in sides)
        self.mix("/".join(words), *([size for size, _ in side] for side in sides))

    def mix(self, text: str, *sides: list[int]) -> None:
        least = [min(side) for side in sides]
        self.fields.update(io_mix=text, io_bytes=min(least))
        if 0 in least:
            raise self.wrong("bs", "0", "an I/O has at least 1 byte", "bs=4k")
        # fio's map has blocks of either size, and ends before all is covered.
        if least[0] != least[-1] and self.is_random() and self.left.get("norandommap", "0") == "0":
            why = "reads and writes have different smallest sizes, so no map can cover each block once; norandommap=1"
            self.leave_out("bs", text, why)

    def shares(self, text: str, side: str) -> list[tuple[int, int]]:
        """`4k/60:64k/` → sizes and their per cents; those that are blank share what is left, as in fio."""
        entries = [entry.partition("/") for entry in side.split(":") if entry]
        if not 0 < len(entries) <= SPLITS_MAX:
            raise self.wrong("bssplit", text, f"must have 1 to {SPLITS_MAX} sizes for a direction", "bssplit=4k/60:64k/40")
        known = self.per_cents("bssplit", text, [share for _, _, share in entries])
        sizes = [self.size("bssplit", size) for size, _, _ in entries]
        return [(size, share) for size, share in zip(sizes, known, strict=True) if share]

    def per_cents(self, key: str, text: str, written: list[str]) -> list[int]:
        """Whole numbers that come to 100; each blank has an equal part of what the others leave."""
        wrong = self.wrong(key, text, "has shares that aren't whole percentages, or don't add up to 100", f"{key} with 60 and 40")
        if not all(re.fullmatch(r"[0-9]{0,3}", share) for share in written):
            raise wrong
        left, blanks = 100 - sum(int(share) for share in written if share), written.count("")
        if left < 0 or (left and not blanks) or (blanks and left % blanks):
            raise wrong
        return [int(share) if share else left // blanks for share in written]

    def random(self) -> None:
        norandommap = self.flag("norandommap", False)
        text = self.left.pop("random_distribution", "random")
        moves_on = self.flag("random_sequence_stride", False)
        if "randseed" in self.left:
            self.fields["seed"] = self.number("randseed", 1)
        if not self.is_random():
            return
        kind, _, rest = text.partition(":")
        if kind == "random" and not rest:
            # Without its own alignment a block has no place in fio's map.
            align = self.fields.get("align_bytes", self.fields["io_bytes"])
            apart = align != self.fields["io_bytes"]
            if align > self.fields["io_bytes"] and not norandommap:
                why = "where it is above bs, fio's map keeps aligned blocks from coming twice before all came; norandommap=1"
                self.leave_out("blockalign", str(align), why)
            self.fields["no_repeat"] = not norandommap and not apart
        elif kind == "zipf" and re.fullmatch(r"[0-9]{0,3}(\.[0-9]{1,9})?", rest or "1.1"):
            self.fields["distribution"] = f"zipf:{rest or '1.1'}"
        elif kind == "zoned" and rest and "," not in rest:
            self.fields["distribution"] = self.zoned(text, rest)
        elif kind == "sequence" and re.fullmatch(r"[0-9]{1,9}(,[0-9]{1,9}){0,63}", rest):
            self.fields["distribution"] = f"{'list+' if moves_on else 'list'}:{rest}"
        else:
            found = "is not one of random, zipf:THETA, zoned:IOS/DATA:… (for reads and writes alike), sequence:BLOCK,…"
            raise self.wrong("random_distribution", text, found, "random_distribution=zipf:1.2")

    def zoned(self, text: str, rest: str) -> str:
        entries = [entry.partition("/") for entry in rest.split(":") if entry]
        ios = self.per_cents("random_distribution", text, [share for share, _, _ in entries])
        data = self.per_cents("random_distribution", text, [share for _, _, share in entries])
        if any(share and not part for share, part in zip(ios, data, strict=True)):
            found = "sends I/Os to an empty zone"
            raise self.wrong("random_distribution", text, found, "random_distribution=zoned:50/5:30/15:20/80")
        return "zoned:" + ",".join(f"{share}/{part}" for share, part in zip(ios, data, strict=True))

    def zones(self) -> None:
        """`zonemode=strided`: so much is read, so much passed over. fio takes a zonesize alone for that too."""
        reported = {key: self.left.pop(key) for key in ZONES if key in self.left}
        size, skip, length = (self.size(key, reported.get(key, "0")) for key in ("zonesize", "zoneskip", "zonerange"))
        mode = reported.get("zonemode", "strided" if size else "none")
        if mode not in ("none", "strided"):
            self.leave_out("zonemode", mode, "zoned devices aren't supported; zonemode=strided is")
        if mode != "strided" or not size:
            return
        first = next(iter(reported.items()))
        if self.is_random() or "read_pct" in self.fields or "skip_bytes" in self.fields:
            self.leave_out(*first, "zones need sequential reads or writes without other gaps")
        elif length not in (0, size) or size % self.fields["io_bytes"] or "io_bytes_max" in self.fields:
            self.leave_out(*first, "a zone is covered once, in whole I/Os of one size")
        elif skip:
            self.fields.update(skip_bytes=skip, skip_every_bytes=size)

    def limits(self, time_based: bool, loops: int) -> None:
        """`io_size` and `number_ios`, which a time takes the place of, as in fio."""
        text, ios = self.left.pop("io_size", "0"), self.number("number_ios", 0)
        if text.endswith("%"):
            self.leave_out("io_size", text, "it must be given in bytes")
            return
        most = self.size("io_size", text)
        if time_based or not (most or ios):
            return
        if loops > 1:
            self.leave_out("loops", str(loops), "a job with io_size or number_ios runs once")
        if most:
            if self.fields.get("start_step_bytes") and most > self.fields.get("limit_bytes", most):
                # Each job has its own part of the file, and would go on behind it.
                self.leave_out("io_size", str(most), "with offset_increment and a size, it must not exceed that")
            # It may be more than the data, which is then gone through again.
            self.fields["limit_bytes"] = min(most, self.fields.get("limit_bytes", most))
            self.fields.pop("passes", None)
        if ios:
            self.fields["limit_ios"] = ios

    def pauses(self) -> None:
        pause = self.seconds("thinktime", "us")
        if not pause:
            return
        every, kind = self.number("thinktime_blocks", 1), self.left.pop("thinktime_blocks_type", "complete")
        for key in ("thinktime_spin", "thinktime_iotime"):
            value = self.left.pop(key, "0")
            if value != "0":
                self.leave_out(key, value, "workers pause without using the CPU, after so many I/Os")
        if kind == "complete" and every > 1 and self.fields["depth"] > 1:
            found = "I/Os are counted as they start; thinktime_blocks_type=issue, or iodepth=1"
            self.leave_out("thinktime_blocks", str(every), found)
        self.fields.update(think_s=pause, think_ios=max(every, 1))
