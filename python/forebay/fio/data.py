"""Data of a section of a fio job file: its files, how much of them, in which order. `filename`, `size`, `offset`, …"""

from __future__ import annotations

import os
import re

from forebay.errors import RequestError
from forebay.fio import values
from forebay.fio.side import Sides
from forebay.uri import of_file, parsed

# fio's example of an engine in C++ does what null does.
NOTHING = ("null", "cpp_null")


def named_files(filename: str) -> list[str]:
    """`a:b` names two; `\\:` is a colon."""
    return [re.sub(r"\\(.)", r"\1", part) for part in re.split(r"(?<!\\):", filename) if part]


class Data(Sides):
    """A section whose jobs share files, or have one each."""

    # The data aren't a whole number of I/Os.
    uneven = False

    def data(self, engine: str, threads: int) -> None:
        size_pct = values.share(self.left.get("size", ""))
        if size_pct in (0, 100):
            size_pct = None
        size = self.file_size("size") if size_pct is None else None
        self.one_file_size()
        each = self.file_size("filesize")
        count = self.number("nrfiles", 1)
        directory, filename = self.left.pop("directory", ""), self.left.pop("filename", "")
        name = re.sub(r"[/%]", "_", self.left.pop("name", self.name))
        whole = self.whole(filename, directory, each)
        start = self.offset(self.left.pop("offset"), whole) if "offset" in self.left else None
        if threads < 1 or count < 1:
            raise self.wrong("numjobs" if threads < 1 else "nrfiles", "0", "must be at least 1", "numjobs=1")
        if engine in NOTHING:
            self.fields["sources"], count = ["nil:"], 1
            self.share(threads)
        elif filename:
            count = self.files(filename, directory)
            self.share(threads)
        else:
            count = self.directory(directory or ".", name, threads, count)
        self.order_of_files(count)
        if self.left.get("offset_increment", "0") != "0" and threads > 1:
            self.leave_out("offset_increment", self.left.pop("offset_increment"), "each job has a file of its own")
        if start is not None:
            self.fields["start_bytes"] = start
        if size_pct is not None:
            self.shared_size(size_pct, whole, start or 0)
        elif each is not None:
            self.fields["file_bytes"] = self.whole_ios("filesize", each, start or 0)
            if size is not None and size < each * count:
                self.leave_out("size", f"{size}", "a job covers its files whole; filesize alone, or no filesize")
        elif size is not None:
            # fio's size counts from the offset on.
            begin = start or 0
            self.fields["file_bytes"] = self.whole_ios("size", max(size // count, 1) + begin, begin)
            self.stepped_size(size, threads)
        elif self.is_write() and not filename and engine not in NOTHING:
            raise RequestError(f"[{self.name}]", "has no size", "size=1g")
        else:
            self.whole_file(start or 0)
        # fio lays out the files that its jobs read.
        may_make = self.flag("allow_file_create", True)
        if "file_bytes" in self.fields and engine not in NOTHING and not self.is_write() and may_make:
            self.fields["create"] = True
        if not may_make and (self.is_write() or "read_pct" in self.fields):
            self.leave_out("allow_file_create", "0", "a write creates missing files")

    def whole_ios(self, key: str, end: int, start: int) -> int:
        """Returns the end of a job's last whole I/O, as in fio: what is left is less than one, or, in order in a file that
        goes on behind it, has one of its own."""
        least, rest = self.fields["io_bytes"], (end - start) % self.fields["io_bytes"]
        self.uneven = rest != 0
        if 0 < end - start < least:
            raise self.wrong(key, str(end - start), f"is less than an I/O of {least:,} bytes", f"{key}={least}")
        one_size = not {"io_bytes_max", "io_mix"} & self.fields.keys()
        more = end - rest + least
        goes_on = rest and one_size and not self.is_random() and (self.there() or 0) >= more
        return more if goes_on else end - rest

    def whole_file(self, start: int) -> None:
        """The one file that is there, without a last part that no I/O would fill."""
        step = self.fields.get("start_step_bytes", 0)
        in_turn = "read_pct" in self.fields and not self.is_random()
        if step % self.fields["io_bytes"] and not in_turn:
            # The last part would be another for each of the jobs.
            self.leave_out("offset_increment", str(step), "it must be a whole number of I/Os")
        there = self.there()
        if there is not None and there - start >= self.fields["io_bytes"]:
            rest = (there - start) % self.fields["io_bytes"]
            self.uneven = rest != 0
            if rest:
                self.fields["file_bytes"] = there - rest

    def there(self) -> int | None:
        """Bytes of the one file or device that the section names; None where there is none, or more than one."""
        sources = self.fields["sources"]
        if len(sources) != 1 or "file_name" in self.fields:
            return None
        path = parsed(sources[0]).path
        return None if path is None else values.bytes_there(str(path))

    def whole(self, filename: str, directory: str, each: int | None) -> int | None:
        """Returns the whole that shares are of: `filesize`, or the one file or device that is there. None where that isn't
        known."""
        if each is not None or not filename:
            return each
        names = named_files(filename)
        return values.bytes_there(os.path.join(directory, names[0])) if len(names) == 1 else None

    def shared_size(self, size_pct: int, whole: int | None, start: int) -> None:
        """`size=50%`."""
        self.left.pop("size")
        if not whole:
            self.leave_out("size", f"{size_pct}%", values.NO_WHOLE)
            return
        part = values.part_of(whole, size_pct, start, self.fields["io_bytes"])
        if part == 0:
            raise self.wrong("size", f"{size_pct}%", f"is less than an I/O (of {whole:,} bytes)", "size=100%")
        self.fields["file_bytes"] = start + part

    def share(self, threads: int) -> None:
        """Several jobs over the same files: each goes through all of them."""
        if threads > 1:
            self.fields["clones"] = True
        text = self.left.pop("offset_increment", "0")
        if text.endswith("%"):
            self.leave_out("offset_increment", text, "it must be given in bytes")
        elif threads > 1 and self.size("offset_increment", text):
            self.fields["start_step_bytes"] = self.size("offset_increment", text)

    def stepped_size(self, size: int, threads: int) -> None:
        """With `offset_increment` each of the jobs has so much from its own offset on."""
        step = self.fields.get("start_step_bytes", 0)
        if not step:
            return
        self.fields["file_bytes"] += step * (threads - 1)
        if size % self.fields["io_bytes"]:
            self.leave_out("size", str(size), "with offset_increment it must be a whole number of I/Os")
        # Without a limit each would go on to the end of the file.
        self.fields["limit_bytes"] = size
        if self.is_random() or self.left.get("time_based", "0") != "0" or self.left.get("loops", "1") != "1":
            why = "with a size, it is supported only for sequential jobs with a single pass"
            self.leave_out("offset_increment", str(step), why)

    def holes(self) -> None:
        """Refuses holes in a part of a file: there fio goes ways of its own."""
        skip, end = self.fields.get("skip_bytes", 0), self.fields.get("file_bytes")
        there = self.there()
        beyond = end is not None and there is not None and there > end
        if not skip:
            return
        if "skip_every_bytes" in self.fields:
            if beyond:
                why = f"fio's zones continue beyond size, to the end of the file at {there:,}; use io_size instead of size"
                self.leave_out("zoneskip", str(skip), why)
        elif self.fields.get("start_bytes") or self.fields.get("start_step_bytes") or (beyond and skip > 0):
            why = "with holes, fio uses other offsets if offset or size excludes part of the file"
            self.leave_out("rw", self.hole, why)

    def holes_end(self, time_based: bool, loops: int) -> None:
        """With holes, a pass of fio's ends where an I/O ends with the file, or the next one would end behind it; only one that
        would begin behind it begins anew, until as much was moved as there is data."""
        skip, limited = self.fields.get("skip_bytes", 0), {"limit_bytes", "limit_ios"} & self.fields.keys()
        end = self.fields.get("file_bytes") or self.there()
        size = self.fields["io_bytes"]
        if skip < 0 and "skip_every_bytes" not in self.fields:
            self.backwards(end, size)
        if "skip_every_bytes" in self.fields:
            self.zones_end(time_based, loops, end)
            return
        if skip <= 0 or time_based or limited or end is None:
            return
        if {"io_bytes_max", "io_mix"} & self.fields.keys():
            self.leave_out("rw", self.hole, "with several block sizes, where fio's pass ends depends on those that it draws")
            return
        ios = (end - size) // (size + skip) + 1 if end >= size else 0
        last = ios * (size + skip) - skip
        if last + skip >= end and last != end:
            return
        if loops > 1 or self.has_more_files():
            many = "loops" if loops > 1 else "nrfiles"
            self.leave_out("rw", self.hole, f"with {many}, each pass of fio's ends where the next I/O doesn't fit")
            return
        self.fields.pop("passes", None)
        self.fields["limit_ios"] = ios
        self.notes.append(f"rw={self.hole} ends after {ios:,} I/Os, where the next one doesn't fit")

    def has_more_files(self) -> bool:
        """Whether a job goes through several files."""
        return self.fields.get("files", 1) not in (1, self.fields.get("workers", 1))

    def zones_end(self, time_based: bool, loops: int, end: int | None) -> None:
        """With zones, a pass of fio's ends with the file where that ends within a zone; where it ends between two, the zones
        begin anew, until as much was moved as there is data."""
        if time_based or "limit_bytes" in self.fields or end is None:
            return
        size, zone = self.fields["io_bytes"], self.fields["skip_every_bytes"]
        length = end - self.fields.get("start_bytes", 0)
        whole, rest = divmod(length, zone + self.fields["skip_bytes"])
        if not 0 < rest < zone:
            return
        if self.has_more_files() or (loops > 1 and rest % size):
            many = "nrfiles" if self.has_more_files() else "loops"
            self.leave_out("zoneskip", str(self.fields["skip_bytes"]), f"with {many}, each pass of fio's ends in the last zone")
            return
        ios = loops * (whole * (zone // size) + rest // size)
        self.fields.pop("passes", None)
        self.fields["limit_ios"] = min(ios, self.fields.get("limit_ios", ios))
        self.notes.append(f"zonemode=strided ends after {ios:,} I/Os, with the file")

    def backwards(self, end: int | None, size: int) -> None:
        """Refuses walks towards the beginning whose last I/O is a part of one here and whole in fio."""
        most = self.fields.get("limit_bytes", 0)
        if {"io_bytes_max", "io_mix"} & self.fields.keys():
            self.leave_out("rw", self.hole, "backwards with several block sizes, fio goes on where those that it draws end")
        elif self.uneven or (end or 0) % size or most % size:
            self.leave_out("rw", self.hole, "backwards, over data that aren't a whole number of I/Os, fio's last one is whole")

    def more_than_once(self, loops: int) -> None:
        """A sequential mix, once as much has been moved as there is data; and loops over a size that isn't whole I/Os."""
        if loops > 1 and self.uneven and not {"io_bytes_max", "io_mix"} & self.fields.keys():
            self.leave_out("loops", str(loops), "where size isn't a whole number of I/Os, fio's later loops end elsewhere")
        if self.is_random() or "read_pct" not in self.fields:
            return
        why = "reads and writes go on where they are once as much as the data was moved; in fio both begin again"
        end, most = self.fields.get("file_bytes") or self.there(), self.fields.get("limit_bytes")
        if loops > 1:
            self.leave_out("loops", str(loops), why)
        elif most and (end is None or most > end - self.fields.get("start_bytes", 0)):
            self.leave_out("io_size", str(most), why)

    def order_of_files(self, count: int) -> None:
        typed = self.left.pop("file_service_type", "")
        kind = (typed or "roundrobin").removesuffix(":1")
        if count == 1:
            return
        if not self.fields["op"].startswith("rand"):
            if "read_pct" in self.fields:
                why = "with several files, reads and writes each go on to the next; in fio they do together"
                self.leave_out("rw", "rw", why)
            if kind != "sequential":
                why = "" if typed else "fio's default; "
                why += "files are read one after another here; file_service_type=sequential, or a section for each file"
                self.leave_out("file_service_type", kind, why)
        elif kind not in ("roundrobin", "random"):
            self.leave_out("file_service_type", kind, "each I/O may go to any of the files")

    def one_file_size(self) -> None:
        """`filesize=1m-2m`: fio draws a size for each file; a range of one size is that size."""
        least, dash, most = self.left.get("filesize", "").partition("-")
        if not dash:
            least, dash, most = least.partition(":")
        if not dash:
            return
        # As in fio, a second range behind a comma says nothing of files.
        least, most = least.strip(), most.partition(",")[0].strip()
        if self.size("filesize", least) > self.size("filesize", most):
            raise self.wrong("filesize", self.left["filesize"], "is a range that ends below its beginning", f"filesize={least}")
        if self.size("filesize", least) != self.size("filesize", most):
            why = f"fio draws a size for each file, and files of one size are supported; filesize={most}"
            self.leave_out("filesize", self.left["filesize"], why)
        self.left["filesize"] = most

    def file_size(self, key: str) -> int | None:
        """Bytes; None where absent or 100 %: as found."""
        text = self.left.pop(key, None)
        if text is None or text == "100%":
            return None
        value = self.size(key, text)
        if value == 0:
            raise self.wrong(key, text, "an empty file can't be read or written", f"{key}=1g")
        return value

    def offset(self, text: str, whole: int | None) -> int | None:
        """`1g`, or `25%` of the file, from the next I/O on."""
        share = values.share(text)
        if share is None:
            return self.size("offset", text)
        align = self.size("offset_align", self.left["offset_align"]) if "offset_align" in self.left else 0
        if not whole:
            self.leave_out("offset", text, values.NO_WHOLE)
            return None
        return values.start_of(whole, share, align or self.fields["io_bytes"])

    def files(self, filename: str, directory: str) -> int:
        """Named files, which all of the section's jobs share. Returns how many."""
        names = named_files(filename)
        if not names:
            raise self.wrong("filename", filename, "names no file", "filename=FILE")
        paths = [os.path.join(directory, name) for name in names]
        self.fields["sources"] = [of_file(path) for path in paths]
        return len(names)

    def directory(self, directory: str, name: str, threads: int, count: int) -> int:
        """Files called as fio calls them, NAME.JOB.FILE. Returns how many each job has."""
        self.fields["sources"] = [d for d in directory.split(":") if d] or ["."]
        if len(self.fields["sources"]) > 1:
            self.leave_out("directory", directory, "fio gives each job one of the folders; here each has all files")
        if count > 1 and threads > 1:
            self.leave_out("nrfiles", str(count), "with numjobs above 1 each job has one file")
            count = 1
        self.fields.update(
            file_name=f"{name}.0.%d" if count > 1 else f"{name}.%d.0", files=count if count > 1 else threads
        )
        return count
