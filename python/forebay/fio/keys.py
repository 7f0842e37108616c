"""fio's keys, and how each is handled: supported, without effect, or refused unless its value is always the case
here.

The names are those of fio's documentation and of `fio --cmdhelp=all`, with the keys of the engines that run here. A key that
stands in no table is refused as unknown.
"""

from __future__ import annotations

# Spellings that fio treats as one key.
ALIASES = {
    "readwrite": "rw",
    "blocksize": "bs",
    "blocksize_range": "bsrange",
    "iomem": "mem",
    "mem_type": "mem",
    "fileoffset": "offset",
    "blockalign": "ba",
    "wait_for_previous": "stonewall",
    "timeout": "runtime",
    "nr_files": "nrfiles",
    "io_limit": "io_size",
    "ratemin": "rate_min",
    "steadystate": "ss",
    "steadystate_duration": "ss_dur",
    "steadystate_ramp_time": "ss_ramp",
    "steadystate_check_interval": "ss_interval",
}

# What fio's document calls a setting that it takes by two names, where that isn't the name above.
SHOWN = {
    "ss": "steadystate", "ss_dur": "steadystate_duration", "ss_ramp": "steadystate_ramp_time",
    "ss_interval": "steadystate_check_interval",
}  # fmt: skip

# Done: key → what it becomes. docs/fio.md says the details.
DONE = {
    "name": "--file-name",
    "filename": "sources",
    "directory": "sources",
    "rw": "--op, --read-pct",
    "rwmixread": "--read-pct",
    "rwmixwrite": "--read-pct",
    "bs": "--io-size",
    "bsrange": "--io-size",
    "bssplit": "--io-mix",
    "ba": "--align",
    "size": "--file-size",
    "filesize": "--file-size",
    "nrfiles": "--files",
    "file_service_type": "how sequential and random jobs go through several files",
    "offset": "--start",
    "offset_increment": "--start-step",
    "zonemode": "--skip, --skip-every",
    "zonesize": "--skip-every",
    "zoneskip": "--skip",
    "zonerange": "--skip-every",
    "allow_file_create": "--create",
    "ioengine": "--engine, sources",
    "iodepth": "--depth",
    "numjobs": "--workers",
    "loops": "--passes",
    "io_size": "--limit-bytes",
    "number_ios": "--limit-ios",
    "startdelay": "when it starts",
    "thinktime": "--think",
    "thinktime_blocks": "--think-ios",
    "thinktime_blocks_type": "--think-ios",
    "thinktime_spin": "--think",
    "thinktime_iotime": "--think",
    "rate_process": "--arrivals",
    "verify": "--verify",
    "do_verify": "a job that reads back",
    "verify_backlog": "--verify",
    "verify_async": "--verify",
    "verify_state_load": "--verify",
    "verify_only": "--verify-fio",
    "verify_interval": "--verify-fio",
    "verify_offset": "--verify-fio",
    "verify_pattern": "--verify-fio",
    "runtime": "--duration",
    "time_based": "--duration without --passes",
    "ramp_time": "--warmup",
    "rate": "--rate",
    "rate_iops": "--rate-iops",
    "rate_min": "--rate-min",
    "rate_iops_min": "--rate-min-iops",
    "ss": "--steady",
    "ss_dur": "--steady",
    "ss_ramp": "--steady",
    "ss_interval": "--steady, --interval",
    "exitall": "which sections end with it",
    "exit_what": "which sections end with it",
    "new_group": "which sections exitall ends",
    "atomic": "--atomic",
    "buffer_compress_percentage": "--content",
    "buffer_compress_chunk": "--content",
    "dedupe_percentage": "--content",
    "dedupe_mode": "--content",
    "dedupe_working_set_percentage": "--content",
    "dedupe_global": "--content",
    "prio": "--priority",
    "prioclass": "--priority",
    "cmdprio": "--priority",
    "cmdprio_class": "--priority",
    "cmdprio_percentage": "--priority",
    "flow": "--flow",
    "flow_id": "--flow",
    "fadvise_hint": "--hint",
    "direct": "--cache",
    "buffered": "--cache",
    "invalidate": "--cache",
    "sync": "--sync each",
    "fsync": "--sync each",
    "fdatasync": "--sync each",
    "end_fsync": "--sync end",
    "fsync_on_close": "--sync end",
    "randseed": "--seed",
    "norandommap": "--no-repeat",
    "random_distribution": "--distribution",
    "random_sequence_stride": "--distribution",
    "refill_buffers": "--refill",
    "mem": "--pages",
    "cpus_allowed": "--cpus",
    "cpus_allowed_policy": "--cpus",
    "numa_cpu_nodes": "--numa",
    "numa_mem_policy": "--numa",
    "sqthread_poll": "--sqpoll",
    "hipri": "--iopoll",
    "gpu_dev_ids": "--gpu",
    "cuda_io": "--path",
    "libblkio_driver": "--engine",
    "libblkio_path": "sources",
    "read_iolog": "--read-iolog",
    "read_iolog_chunked": "--read-iolog",
    "replay_no_stall": "--replay-no-stall",
    "replay_time_scale": "--replay-time-scale",
    "replay_redirect": "sources",
    "replay_scale": "--replay-scale",
    "replay_align": "--replay-align",
    "replay_skip": "--replay-skip",
    "write_iolog": "--write-iolog",
    "stonewall": "order",
    "wait_for": "order",
    "kb_base": "how sizes are read",
}

# Without effect here: why → keys. Nobody misses these, so nothing is said.
_HOLDS = {
    "names the job in fio's own output": "description comm",
    "affects only fio's own output; the record holds everything": "group_reporting unit_base eta significant_figures "
    "unified_rw_reporting clat_percentiles lat_percentiles slat_percentiles percentile_list disk_util "
    "block_error_percentiles error_dump stats",
    "affects only fio's logs; the record holds the time series, and --interval sets its resolution": "per_job_logs log_entries "
    "log_avg_msec log_hist_msec log_hist_coarseness log_max_value log_window_value log_offset log_prio log_compression "
    "log_compression_cpus log_store_compressed log_unix_epoch log_alternate_epoch log_alternate_epoch_clock_id "
    "log_issue_time bwavgtime iopsavgtime job_start_clock_id",
    "has no influence on the cost of measuring here": "gtod_reduce disable_lat disable_clat disable_slat "
    "disable_bw_measurement disable_bw gtod_cpu clocksource",
    "is always the case here": "thread threads registerfiles fixedbufs nonvectored userspace_reap",
    "buffers hold random data, new for each write with refill_buffers": "scramble_buffers",
    "I/Os that may start are submitted before each wait, and all that have completed are collected, together": "iodepth_batch "
    "iodepth_batch_submit iodepth_batch_complete_max",
    "affects which random numbers are drawn, not their distribution": "randrepeat allrandrepeat random_generator",
    "fio's fallback where its map doesn't fit into memory; none is needed here": "softrandommap",
    "files are created before the measurement": "create_serialize create_fsync",
    "only for clients of a fio server": "unique_filename",
    "aligns percentages of a file, and offset isn't one": "offset_align",
    "concerns what fio remembers of its own writes": "verify_state_save verify_header_seed verify_write_sequence verify_policy "
    "verifysort verifysort_nr experimental_verify",
    "has no meaning without verify_async and verify_backlog, which are refused": "verify_async_cpus verify_backlog_batch",
    "everything is checked; any error fails the run and is shown": "verify_fatal verify_dump",
    "has no meaning without trim_percentage, which is refused": "trim_verify_zero trim_backlog trim_backlog_batch",
    "has no meaning without merge_blktrace_file, which is refused": "merge_blktrace_scalars merge_blktrace_iters",
    "has no meaning without zonemode=zbd, which is refused": "zonecapacity read_beyond_wp max_open_zones job_max_open_zones "
    "ignore_zone_limits zone_reset_threshold zone_reset_frequency write_zone_remainder recover_zbd_write_error",
    "has no meaning without latency_target, which is refused": "latency_window latency_percentile latency_run",
    "a job that is ahead of its flow checks again after 0.1 ms": "flow_sleep",
    "has no meaning without cgroup, which is refused": "cgroup_nodelete cgroup_weight",
    "fio itself ignores it": "rwmixcycle percentage_sequential priohint flow_watermark",
}

# Without effect on the load, but something that a user may look for afterwards: said on stderr.
_REPORTED = {
    "forebay fio writes them; the record holds the time series": "write_bw_log write_lat_log write_iops_log",
    "the record holds the whole histogram": "write_hist_log",
    "the files stay": "unlink",
    "a mounted device is never written to": "allow_mounted_write",
}

# Refused: why → keys, each with the values that ask for no more than what is always the case here.
_REFUSED = {
    "a pattern begins with each I/O": "verify_pattern_interval=0",
    "nothing is trimmed": "trim_percentage=0 num_range=0,1",
    "blkparse's files aren't merged, and not replayed": "merge_blktrace_file=",
    "I/O sizes are multiples of the smallest": "bs_unaligned=0 blocksize_unaligned=0",
    "sizes are set for reads and for writes": "bs_is_seq_rand=0",
    "offsets are all sequential or all random": "percentage_random=100",
    "offsets are sequential or random": "rw_sequencer=sequential",
    "workers pause without using the CPU": "thinkcycles=0",
    "the schedule catches up after a pause": "rate_ignore_thinktime=0",
    "rates are kept, and minimum rates checked, second by second": "rate_cycle=1000 ratecycle=1000",
    "no latency ends a job; --timeout limits how long an I/O may take": "max_latency=0",
    "forebay tune finds the depth": "latency_target=0",
    "workers submit their own I/Os; with a rate they follow its schedule": "io_submit_mode=inline",
    "each I/O is submitted as soon as another completes": "iodepth_batch_complete_min=1 iodepth_batch_complete=1 iodepth_low=",
    "I/Os of one job may overlap": "serialize_overlap=0",
    "io_size, runtime or loops end a job": "fill_device=0 fill_fs=0",
    "--warmup takes seconds": "ramp_size=0",
    "I/Os start where offset says": "file_append=0",
    "other files would be used": "filename_format= opendir= filetype=",
    "files aren't locked": "lockfile=none",
    "all files stay open": "openfiles=",
    "files are created in full, with fallocate, before the measurement": "fallocate=native,posix,1 create_on_open=0 "
    "create_only=0 overwrite=0",
    "--cache warm reads the files first": "pre_read=0",
    "files are opened once and stay open": "unlink_each_loop=0",
    "the drive gets no hints of how long written data lives": "write_hint=none,0",
    "writes are synced one by one, at the end, or never": "write_barrier=0 sync_file_range= end_syncfs=0",
    "no flags are used other than O_DIRECT, DSYNC and ATOMIC": "uncached=0 nowait=0 force_async=0 cmd_type=",
    "the kernel chooses the page size of a mapping": "thp=0",
    "buffers hold random data": "zero_buffers=0 buffer_pattern= sprandom=0 spr_op= spr_num_regions= spr_cs=",
    "buffers are page-aligned": "iomem_align=0 mem_align=0",
    "the machine's huge page size is used": "hugepage-size=",
    "memory can't be reserved": "lockmem=0",
    "jobs run at the priority of the command; try nice": "nice=0",
    "priorities don't depend on the I/O size": "cmdprio_bssplit=",
    "cpus_allowed takes a list": "cpumask=",
    "the kernel places its polling thread": "sqthread_poll_cpu=",
    "either all I/Os are polled or none": "hipri_percentage=100",
    "use gpu_dev_ids": "gpu_dev_id=",
    "jobs run as the user who types the command": "uid= gid= cgroup=",
    "no other program is started": "exec_prerun= exec_postrun=",
    "the machine's settings aren't changed": "ioscheduler=",
    "an error doesn't end other sections": "exitall_on_error=0",
    "an error ends the run": "continue_on_error=none ignore_error=",
    "fio's built-in tests aren't supported": "profile=",
    "data placement isn't supported": "fdp=0 dataplacement=none dp_scheme= plids= plid_select= fdp_pli= fdp_pli_select= "
    "data_placement=none",
}


_METADATA = "moves no bytes"
_NETWORK = ("sends over a network, and reads no storage", "forebay serve SOURCE, read as nvme+tcp://HOST:PORT/NQN")
_OBJECTS = ("is for object stores, which are out of scope", "a file, a device, stripe:, nvme+tcp: or nvme+rdma:")
# Engines that do something else than our jobs: why, and what to type.
ELSEWHERE: dict[str, tuple[str, str]] = {
    **{f"file{what}": (_METADATA, f"forebay files DIR --files N --file-size SIZE --phases {phases}") for what, phases in (
        ("create", "create"), ("stat", "create,stat"), ("delete", "create,delete"))},
    "dircreate": (_METADATA, "forebay files DIR --files N --phases mkdir"),
    "dirstat": (_METADATA, "forebay files DIR --files N --phases create,stat (of files)"),
    "dirdelete": (_METADATA, "forebay files DIR --files N --phases create,delete (of files)"),
    **dict.fromkeys(("net", "netsplice", "rdma"), _NETWORK),
    "http": _OBJECTS,
    "cpuio": ("burns processor time and moves no bytes", "stress-ng while forebay bench runs"),
}  # fmt: skip


def _spread(table: dict[str, str]) -> dict[str, str]:
    return {key: why for why, keys in table.items() for key in keys.split()}


HOLDS = _spread(_HOLDS)
REPORTED = _spread(_REPORTED)
REFUSED: dict[str, str] = {key.partition("=")[0]: why for key, why in _spread(_REFUSED).items()}
# The values of a refused key that change nothing.
HARMLESS: dict[str, tuple[str, ...]] = {
    key.partition("=")[0]: tuple(v for v in key.partition("=")[2].split(",") if v) for key in _spread(_REFUSED)
}
# Refused keys that concern what is written, and how: a job that only reads means the same without them. fio, too, writes
# missing files of such a job in full before it starts.
OF_WRITES = (
    "buffer_pattern", "end_syncfs", "fallocate", "overwrite", "sync_file_range", "write_barrier", "write_hint", "zero_buffers"
)  # fmt: skip
