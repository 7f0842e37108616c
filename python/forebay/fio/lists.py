"""Lists of I/Os in job files: `read_iolog` with what belongs to it, and `write_iolog`."""

from __future__ import annotations

from forebay.fio.settings import Settings
from forebay.uri import of_file

# What a list says by itself; fio, too, leaves these aside.
OF_LISTS = (
    "rw", "rwmixread", "rwmixwrite", "bs", "bsrange", "bssplit", "ba", "size", "filesize", "filename", "directory", "nrfiles",
    "file_service_type", "norandommap", "random_distribution", "randseed", "allow_file_create",
)  # fmt: skip
# Settings that change a replay here as they do otherwise.
KEPT = (
    "ioengine", "iodepth", "numjobs", "runtime", "number_ios", "startdelay", "name", "direct", "buffered", "invalidate",
    "fadvise_hint", "sync", "end_fsync", "fsync_on_close", "cpus_allowed", "cpus_allowed_policy", "numa_cpu_nodes",
    "numa_mem_policy", "mem", "sqthread_poll", "hipri", "refill_buffers", "prio", "prioclass", "stonewall", "wait_for",
    "exitall", "exit_what", "new_group", "kb_base",
)  # fmt: skip


def written(reader: Settings, threads: int) -> None:
    """`write_iolog=FILE`."""
    text = reader.left.pop("write_iolog", "")
    if not text:
        return
    reader.fields["write_iolog"] = text
    if threads > 1:
        reader.notes.append(f"write_iolog={text}: each of the {threads} jobs has a list of its own, {text}.N")


def replayed(reader: Settings, done: frozenset[str]) -> None:
    """`read_iolog=LOG`: what else of the keys that are `done` would make other I/Os is refused."""
    log = reader.left.pop("read_iolog")
    reader.fields.update(read_iolog=log, op="read", passes=1, sources=[])
    if redirect := reader.left.pop("replay_redirect", ""):
        reader.fields["sources"] = [of_file(redirect)]
    if reader.flag("replay_no_stall", False):
        reader.fields["replay_no_stall"] = True
    scale = reader.number("replay_time_scale", 100)
    if scale != 100:
        reader.fields["replay_time_scale"] = scale
    divisor = reader.number("replay_scale", 0)
    if divisor:
        reader.fields["replay_scale"] = divisor
    if align := reader.left.pop("replay_align", ""):
        reader.fields["replay_align"] = reader.size("replay_align", align)
    if skip := reader.left.pop("replay_skip", ""):
        reader.fields["replay_skip"] = skip
    if reader.flag("read_iolog_chunked", False):
        reader.notes.append("read_iolog_chunked has no effect: a list is always read as it is replayed")
    aside = [key for key in OF_LISTS if reader.left.pop(key, None) is not None]
    if aside:
        reader.notes.append(f"{', '.join(aside)} has no effect with read_iolog, as in fio: the list says which I/Os are done")
    for key in [key for key in reader.left if key in done and key not in KEPT]:
        reader.leave_out(key, reader.left.pop(key), "with read_iolog, the list says which I/Os are done, and when")
    reader.fields["warmup_s"] = 0.0
    if number := reader.number("number_ios", 0):
        reader.fields["limit_ios"] = number
    if runtime := reader.seconds("runtime"):
        reader.fields["duration_s"] = runtime
