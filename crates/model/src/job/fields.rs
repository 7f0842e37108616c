//! The fields of a job: a row each, which says all that anybody asks of one. Flags
//! and their help, settings of `compare`, keys of a sweep, checks and records
//! come from here; without a row after its default, a field isn't for users to set.

use super::{
    Arrivals, Cache, CuFileMode, Engine, FileOrder, Hint, Op, Origin, Pages, PathKind, Prefer, Sync,
};
use super::{DEPTH_MAX, FILES_MAX, FILE_NAME_DEFAULT, REPEATS_MAX, SECONDS_MAX, WORKERS_MAX};
use crate::no_numbers;
use crate::request::Kind::*;
use crate::request::{flag, switch, Field, ANY};

const SECONDS: &str = "must be a number of seconds from 0.001 to a year";

no_numbers!(Arrivals, Cache, CuFileMode, Engine, FileOrder, Hint, Op, Pages, PathKind, Prefer, Sync);

crate::request! {
    /// A job as asked for. Sizes in bytes, times in seconds.
    pub struct JobSpec;
    /// Source URIs: a path, `file:`, `stripe:?chunk=512k&m=A&m=B`, `nil:`, `model:NAME`.
    sources: Vec<String> ["list of texts", "SOURCE"] = Vec::new();
    /// A path of [sources.md](sources.md), or `auto`.
    path: PathKind ["one of its words"] = PathKind::Host,
        flag("path", Path, "PATH", "How bytes reach the destination: {paths} or auto.");
    /// `balance`, `rate` or `cpu`: what `auto` favours among paths.
    prefer: Prefer ["one of its words"] = Prefer::Balance,
        flag("prefer", Choice(&["balance", "rate", "cpu"]), "WHAT",
            "What auto favours: balance (the least CPU time among paths that reach 2/3 of the fastest's rate), rate or cpu.");
    /// `read`, `write`, `randread` or `randwrite`.
    op: Op ["one of its words"] = Op::Read,
        flag("op", Choice(&["read", "write", "randread", "randwrite"]), "OP", "read, write, randread or randwrite.");
    /// Share of reads in a mixed job, in per cent. None: `op` alone.
    read_pct: Option<u8> ["%, or null"] = None,
        flag("read-pct", Share, "PCT", "Percentage of reads in a mixed job.").within(0.0, 100.0, "must be 0 to 100", "70");
    /// Bytes per I/O. With `io_bytes_max`, the smallest.
    io_bytes: u64 ["bytes"] = 1 << 20,
        flag("io-size", Sizes, "SIZE", "Block size: bytes per I/O, e.g. 128k, or a range MIN:MAX[:STEP].");
    /// `given`, `default` or `auto`: the origin of `io_bytes`.
    io_from: Origin ["one of its words", "io-size"] = Origin::Given;
    /// Sizes are drawn uniformly from io_bytes, io_bytes + io_bytes_step, … io_bytes_max.
    io_bytes_max: Option<u64> ["bytes, or null", "io-size"] = None;
    /// Likewise.
    io_bytes_step: Option<u64> ["bytes, or null", "io-size"] = None;
    /// Sizes and their shares of the total, `4k=60,64k=40` or `4k=3,64k=2`, or separately for reads and writes, `4k=1/64k=1`.
    /// `io_bytes`, `io_bytes_max` and `io_bytes_step` are then the smallest size, the largest, and a common divisor.
    io_mix: Option<String> ["text, or null"] = None,
        flag("io-mix", Text, "MIX",
            "Block sizes with their shares of the I/Os, e.g. 4k=60,64k=40 or 4k=3,64k=2, or READS/WRITES. Instead of --io-size.");
    /// Size of each created file, and the most that is read of each. None: as found, or 1 GiB if created.
    file_bytes: Option<u64> ["bytes, or null"] = None,
        flag("file-size", Size, "SIZE",
            "Size of each file that is created, and the most that is read of each. Default: as found, or 1g if created.")
            .within(1.0, ANY, "an empty file can't be read or written", "1g");
    /// Create missing files, also for a read. A write always creates them.
    create: bool ["yes or no"] = false,
        switch("create", "Create missing files, also for a read. A write always creates them.").not_shown();
    /// Files in a directory. None: all existing ones for a read, or one per worker if created.
    files: Option<u32> ["count, or null"] = None,
        flag("files", Integer, "N", "Number of files in a directory. Default: all that are found, or one per worker if created.")
            .within(1.0, FILES_MAX as f64, "must be 1 to 10,000,000", "4");
    /// Name of file number N in a directory; `%d` stands for N.
    file_name: String ["text"] = FILE_NAME_DEFAULT.into(),
        flag("file-name", Text, "NAME", "Name of file N in a directory; %d stands for N.").not_shown();
    /// Patterns of the files of a directory that are read; empty: all.
    glob: Vec<String> ["list of texts"] = Vec::new(),
        flag("glob", Words, "PATTERN",
            "Read only the files of a directory that match, e.g. '*.jpg' or '**/train/*.{jpg,png}'. May be repeated.");
    /// Each file is read by one worker, from its beginning to its end.
    whole_files: bool ["true or false"] = false,
        switch("whole-files", "Read each file by one worker, from beginning to end, file after file.");
    /// Order of whole files: `name`, or `random`, new in each pass. Null: by name.
    order: Option<FileOrder> ["text, or null"] = None,
        flag("order", Choice(&["name", "random"]), "ORDER",
            "Read whole files in this order: name (the default of --whole-files), or random, which is new in each pass.");
    /// First byte of the sources that is used.
    start_bytes: u64 ["bytes"] = 0,
        flag("start", Size, "SIZE", "Offset of the first byte to use.");
    /// With `clones`: worker N starts N times this many bytes later. 0: all start at `start_bytes`.
    start_step_bytes: u64 ["bytes"] = 0,
        flag("start-step", Size, "SIZE", "With --clones, worker N starts N times SIZE after --start.");
    /// Bytes to skip after each sequential I/O. Negative: bytes to go back from its end. 0: none.
    skip_bytes: i64 ["bytes"] = 0,
        flag("skip", SignedSize, "SIZE", "Bytes to skip after each sequential I/O; if negative, to go back from its end.");
    /// Skip `skip_bytes` after this many bytes. Null: after each I/O.
    skip_every_bytes: Option<u64> ["bytes, or null"] = None,
        flag("skip-every", Size, "SIZE", "Skip after this many bytes instead of after each I/O.")
            .within(1.0, ANY, "must be at least 1 byte", "256m");
    /// Alignment of random offsets, instead of the I/O size. None: the I/O size.
    align_bytes: Option<u64> ["bytes, or null"] = None,
        flag("align", Size, "SIZE", "Alignment of random offsets. Default: the I/O size.")
            .within(1.0, ANY, "must be at least 1 byte", "4k");
    /// Threads. Each owns its queues and `depth` buffers.
    workers: u32 ["count"] = 1,
        flag("workers", Workers, "N", "Threads, each with its own queue; auto picks the fewest that reach full speed.")
            .within(1.0, WORKERS_MAX as f64, "must be 1 to 4096", "4");
    /// `given`, `default` or `auto`: the origin of the number of workers.
    workers_from: Origin ["one of its words", "workers"] = Origin::Given;
    /// Each worker covers all of the data instead of a part of it.
    clones: bool ["true or false"] = false,
        switch("clones", "Each worker covers all of the data instead of a part of it.");
    /// I/Os in flight per worker.
    depth: u32 ["count"] = 8,
        flag("depth", Integer, "N", "I/Os in flight per worker.")
            .within(1.0, DEPTH_MAX as f64, "must be 1 to 4096 (I/Os in flight per worker)", "32");
    /// `given`, `default` or `auto`: the origin of `depth`.
    depth_from: Origin ["one of its words", "depth"] = Origin::Given;
    /// I/Os per request, like the rows of a batch: they start together, and the request ends with the last. `depth` is a
    /// multiple of it; by default, two batches. With `--path gds`, cuFile's batches unless `--cufile` says otherwise. Null:
    /// each I/O is a request.
    batch: Option<u32> ["count, or null"] = None,
        flag("batch", Integer, "N",
            "I/Os per request, like the rows of a batch: they start together, and the request ends with the last. Without --depth two requests are in flight.")
            .within(1.0, DEPTH_MAX as f64, "must be 1 to 4096 (I/Os per request, of those in flight)", "64");
    /// Measured seconds. Null: 10 s, unless a pass or limit ends the run.
    duration_s: Option<f64> ["s, or null"] = None,
        flag("duration", Seconds, "SECONDS", "Length of the measurement. Default: 10, or as long as --passes or a limit takes.")
            .within(0.001, SECONDS_MAX, SECONDS, "10");
    /// Stop after the data was covered this many times.
    passes: Option<u32> ["count, or null"] = None,
        flag("passes", Integer, "N", "Stop after N passes over the data.")
            .within(1.0, ANY, "must be at least 1", "1")
            .ending();
    /// Stop once each worker has started I/Os of this many bytes.
    limit_bytes: Option<u64> ["bytes, or null"] = None,
        flag("limit-bytes", Size, "SIZE", "Stop once each worker has transferred SIZE bytes.")
            .within(1.0, ANY, "must be at least 1 byte", "1g")
            .ending();
    /// Stop once each worker has started this many I/Os.
    limit_ios: Option<u64> ["count, or null"] = None,
        flag("limit-ios", Whole, "N", "Stop once each worker has completed N I/Os.")
            .within(1.0, ANY, "must be at least 1", "1000")
            .ending();
    /// Seconds before measuring. Null: a tenth of the duration, 2 s at most; 0 with `passes` or a limit.
    warmup_s: Option<f64> ["s, or null"] = None,
        flag("warmup", Seconds, "SECONDS", "Warm-up time before measuring. Default: a tenth of the duration, at most 2.")
            .within(0.0, SECONDS_MAX, SECONDS, "10");
    /// `uniform`; `zipf:THETA` with 0 < THETA < 3; `zoned:50/5,30/15,20/80`, per cent of the I/Os and of the data, from its
    /// start on; `list:2,0,1`, these blocks over and over; `list+:2,0,1`, each round three blocks further on.
    distribution: String ["text"] = "uniform".into(),
        flag("distribution", Text, "NAME",
            "Distribution of random offsets: uniform, zipf:THETA, zoned:IOS/DATA,... (percentages), list:BLOCK,... or list+:BLOCK,...");
    /// Random offsets are a permutation: no block twice in a pass.
    no_repeat: bool ["true or false"] = false,
        switch("no-repeat", "Random offsets that never repeat a block within a pass.");
    /// Of offsets and content.
    seed: u64 ["number"] = 7,
        flag("seed", Seed, "N", "Seed for offsets and content.").not_shown();
    /// Runs of the same job; the record holds each and their summary.
    repeat: u32 ["number"] = 1,
        flag("repeat", Integer, "N", "Run N times; the record holds each run and their spread.")
            .within(1.0, REPEATS_MAX as f64, "must be 1 to 10,000", "5")
            .not_shown();
    /// Repeat until the 95 % interval of the mean throughput is within this per cent.
    until_ci_pct: Option<f64> ["%, or null"] = None,
        flag("until-ci", Percent, "PCT", "Repeat until the 95 % confidence interval is within PCT of the mean.")
            .between(0.0, 100.0, "must be between 0 and 100 per cent", "2%")
            .not_shown();
    /// Bound on the repeats of `until_ci_pct`.
    repeat_max: u32 ["count"] = 20,
        flag("repeat-max", Integer, "N", "Maximum number of repeats for --until-ci.")
            .within(1.0, REPEATS_MAX as f64, "must be 1 to 10,000", "5")
            .not_shown();
    /// End each run once throughput is steady (or at `duration_s`).
    until_steady: bool ["true or false"] = false,
        switch("until-steady", "End each run once throughput is steady.").untried();
    /// What counts as steady, which `until_steady` then waits for. `iops=10,window=30,skip=10`: over 30 s every point of the
    /// series is within 10 % of the mean, excluding the first 10 s. `iops_slope=1`: the least-squares line rises or falls by
    /// less than 1 % of the mean from point to point. Also `bw` and `lat`. Null: range within 5 % and slope within 2.5 % of
    /// the throughput over ten points.
    steady: Option<String> ["text, or null"] = None,
        flag("steady", Text, "RULE",
            "Criterion of --until-steady: bw, iops or lat within PCT of the mean, or a slope, e.g. iops=10,window=30,skip=10.")
            .untried();
    /// End each run once the first worker has nothing left to do.
    until_first: bool ["true or false"] = false,
        switch("until-first", "End each run once the first worker has nothing left to do.").untried();
    /// Open loop: I/Os start on schedule at this rate and latency counts from the schedule.
    rate_gib_s: Option<f64> ["GiB/s, or null"] = None,
        flag("rate", Number, "GIB_S", "Open loop at this many GiB/s; latency counts from the schedule.")
            .between(0.0, ANY, "must be above 0", "1.5")
            .untried();
    /// The same in I/Os per second.
    rate_iops: Option<f64> ["1/s, or null"] = None,
        flag("rate-iops", Number, "IOPS", "Open loop at this many I/Os per second.")
            .between(0.0, ANY, "must be above 0", "1.5")
            .untried();
    /// The run fails if a worker moves less than its share of this rate for a second, after the first two.
    rate_min_gib_s: Option<f64> ["GiB/s, or null"] = None,
        flag("rate-min", Number, "GIB_S", "Fail the run if a worker moves less than its share of this many GiB/s for a second.")
            .between(0.0, ANY, "must be above 0", "0.5")
            .untried();
    /// The same in I/Os per second.
    rate_min_iops: Option<f64> ["1/s, or null"] = None,
        flag("rate-min-iops", Number, "IOPS", "Like --rate-min, in I/Os per second.")
            .between(0.0, ANY, "must be above 0", "500")
            .untried();
    /// Arrival process of an open loop: `even` (fixed intervals) or `poisson`.
    arrivals: Arrivals ["one of its words"] = Arrivals::Even,
        flag("arrivals", Choice(&["even", "poisson"]), "LAW",
            "Arrival process of an open loop: even (fixed intervals) or poisson.").untried();
    /// Each worker pauses for this many seconds, once its I/Os in flight have completed.
    think_s: Option<f64> ["s, or null"] = None,
        flag("think", Seconds, "SECONDS", "Each worker pauses for this long, after its I/Os in flight have completed.")
            .within(0.0, SECONDS_MAX, "must be a number of seconds up to a year", "0.01")
            .untried();
    /// I/Os from one pause to the next. Null: 1.
    think_ios: Option<u32> ["count, or null"] = None,
        flag("think-ios", Integer, "N", "I/Os between two pauses. Default: 1.")
            .within(1.0, ANY, "must be at least 1", "8")
            .untried();
    /// `8@FILE`: weight of each worker's I/Os among all runs that name this file.
    flow: Option<String> ["text, or null"] = None,
        flag("flow", Text, "WEIGHT@FILE", "Weight of each worker's I/Os among all runs that name FILE, which is created for them.")
            .untried();
    /// CPUs to pin workers to, in turn: `0-3,8`, or those of NUMA nodes, `nodes:0-1`.
    cpus: Option<String> ["text, or null"] = None,
        flag("cpus", Text, "LIST", "CPUs to pin workers to, in turn, e.g. 0-3,8 or nodes:0-1.");
    /// NUMA node for threads and memory.
    numa: Option<u32> ["number, or null"] = None,
        flag("numa", Integer, "NODE", "NUMA node for threads and memory.");
    /// I/O priority: `idle`, `be/0` to `be/7`, `rt/0` to `rt/7`; `20=rt/0` for one I/O in five, alone or after the priority
    /// of the others.
    priority: Option<String> ["text, or null"] = None,
        flag("priority", Text, "RULE", "I/O priority: idle, be/LEVEL or rt/LEVEL, or for a percentage of I/Os, e.g. 20=rt/0.");
    /// NUMA nodes over which buffers are interleaved, page by page: `0-1`.
    numa_interleave: Option<String> ["text, or null"] = None,
        flag("numa-interleave", Text, "NODES", "NUMA nodes to spread buffers over, page by page, e.g. 0-1.");
    /// `bypass` (O_DIRECT), `drop`, `allow`, `warm`, or `auto`: bypassed for files that aren't cached, used for those that
    /// are. Absent: `bypass`; `auto` with `--path auto`.
    cache: Cache ["one of its words"] = Cache::Bypass,
        flag("cache", Choice(&["auto", "bypass", "drop", "allow", "warm"]), "POLICY",
            "Page cache: bypass (O_DIRECT), drop, allow, warm, or auto (depends on what is cached).");
    /// `auto`, `uring`, `pread`, `inline` or `map`.
    engine: Engine ["one of its words"] = Engine::Auto,
        flag("engine", Choice(&["auto", "uring", "pread", "inline", "map"]), "NAME",
            "I/O engine: auto, uring (io_uring), pread, inline or map (mmap).");
    /// `auto`, `hugetlb`, `thp` or `small`.
    pages: Pages ["one of its words"] = Pages::Auto,
        flag("pages", Choice(&["auto", "hugetlb", "thp", "small"]), "KIND",
            "Page size of the buffers: auto, hugetlb, thp or small.");
    /// A kernel thread polls for submissions.
    sqpoll: bool ["true or false"] = false,
        switch("sqpoll", "Use io_uring with a kernel thread that polls for submissions.");
    /// The device is polled for completions.
    iopoll: bool ["true or false"] = false,
        switch("iopoll", "Use io_uring and poll the device for completions.");
    /// `none`, `end` (fdatasync) or `each` (DSYNC).
    sync: Sync ["one of its words"] = Sync::None,
        flag("sync", Choice(&["none", "end", "each"]), "WHEN", "Durability of writes: none, end (fdatasync) or each (DSYNC).");
    /// Each write is either complete or absent after a power failure (RWF_ATOMIC).
    atomic: bool ["true or false"] = false,
        switch("atomic", "Atomic writes (RWF_ATOMIC), on Linux 6.11 or newer and devices that offer them.");
    /// Check every byte read against seeded content (and write that content).
    verify: bool ["true or false"] = false,
        switch("verify", "Check every byte against seeded content.").untried();
    /// Check what fio wrote with `verify=`: `crc32c,interval=4k`.
    verify_fio: Option<String> ["text, or null"] = None,
        flag("verify-fio", Text, "RULE",
            "Check the headers and checksums of what fio wrote with verify=, e.g. crc32c or crc32c,interval=4k.")
            .untried();
    /// Refill write buffers, from the seed, for each write.
    refill: bool ["true or false"] = false,
        switch("refill", "New content for each write.");
    /// Content of writes, new for each: `compress=50,chunk=512`: half of every 512 bytes is zeroes; `dedupe=30`: three in ten
    /// repeat the previous content; `dedupe=30,set=1000`: they carry one of 1,000 contents that all workers share.
    content: Option<String> ["text, or null"] = None,
        flag("content", Text, "RULE", "Content of writes: compress=PCT,chunk=BYTES and dedupe=PCT,set=N. New for each write.");
    /// An I/O unfinished after this many seconds fails the run.
    timeout_s: f64 ["s"] = 30.0,
        flag("timeout", Seconds, "SECONDS", "Fail the run if an I/O takes longer than this.")
            .within(0.001, SECONDS_MAX, SECONDS, "10")
            .not_shown();
    /// Files that may be overwritten although Forebay didn't create them.
    overwrite: Vec<String> ["list of texts"] = Vec::new(),
        flag("overwrite", List, "FILE", "Allow overwriting this file, which Forebay didn't create.").not_shown();
    /// Block devices that may be overwritten.
    overwrite_devices: Vec<String> ["list of texts"] = Vec::new(),
        flag("overwrite-device", List, "DEVICE", "Allow overwriting this block device.").not_shown();
    /// GPUs to feed; empty: GPU 0 if the path needs one and there is one.
    gpus: Vec<u32> ["list of numbers"] = Vec::new(),
        flag("gpu", Integers, "LIST", "GPUs to feed, e.g. 0,1.");
    /// `GPU=SOURCE`, instead of sources: each pair has its own workers, which read only its source into its GPU.
    pairs: Vec<String> ["list of texts"] = Vec::new(),
        flag("pair", Words, "GPU=SOURCE", "A GPU and the source that feeds it, e.g. 0=/dev/nvme0n1; replaces SOURCE.");
    /// Anything but direct DMA is an error, even if only the devices' counters or the page cache show it.
    require_direct: bool ["true or false"] = false,
        switch("require-direct", "Treat anything but direct DMA as an error.").not_shown();
    /// `auto`, `none`, `random` or `sequential`: what the kernel is told of reads through the page cache.
    hint: Hint ["one of its words"] = Hint::Auto,
        flag("hint", Choice(&["auto", "none", "random", "sequential"]), "HINT",
            "What the kernel is told of reads through the page cache (fadvise, madvise): auto (as the job reads), none, random or sequential.");
    /// A modelled drive in real time must be within 5 % of its prediction.
    require_model: bool ["true or false"] = false,
        switch("require-model", "Exit with 1 if a model in real time deviates by more than 5 % from its prediction.")
            .not_shown();
    /// cuFile's compatibility mode is acceptable.
    allow_compat: bool ["true or false"] = false,
        switch("allow-compat", "Allow cuFile's compatibility mode.").not_shown();
    /// Bytes of the page cache that `mapped` may keep registered. Null: half of the free memory.
    pin_limit_bytes: Option<u64> ["bytes, or null"] = None,
        flag("pin-limit", Size, "SIZE", "Maximum amount of page cache that mapped keeps registered. Default: half of the free memory.");
    /// Which of cuFile's interfaces `gds` calls: `sync`, `stream`, `batch` or `batch-stream`.
    cufile: CuFileMode ["one of its words"] = CuFileMode::Sync,
        flag("cufile", Choice(&["sync", "stream", "batch", "batch-stream"]), "MODE",
            "cuFile's interface: sync, stream, batch or batch-stream.");
    /// I/Os per batch. Null: half of `depth`, so that two are in flight.
    cufile_batch: Option<u32> ["count, or null"] = None,
        flag("cufile-batch", Integer, "N", "I/Os per cuFile batch. Default: half of --depth, so that two batches are in flight.")
            .within(1.0, DEPTH_MAX as f64, "must be 1 to 4096 (I/Os per batch)", "32");
    /// Leave buffers unregistered with cuFile, which then goes through its own.
    cufile_unregistered: bool ["true or false"] = false,
        switch("cufile-unregistered", "Don't register buffers with cuFile.");
    /// Power meters: `rapl`, `nvml`, `ipmi`, `redfish:HOST`. Empty: whatever answers locally.
    power: Vec<String> ["list of texts"] = Vec::new(),
        flag("power", List, "METER", "Power meter: rapl, nvml, ipmi or redfish:HOST.").not_shown();
    /// Milliseconds between points of the time series.
    interval_ms: u32 ["ms"] = 500,
        flag("interval", Integer, "MS", "Milliseconds between points of the time series.")
            .within(10.0, ANY, "must be at least 10 ms", "500")
            .not_shown();
    /// Prefix of files that got a line for each I/O, `PREFIX.N.log` for worker N.
    io_log: Option<String> ["text, or null"] = None,
        flag("io-log", Text, "PREFIX",
            "Write a line per I/O to PREFIX.N.log, for worker N: ms, ns, 0 (read) or 1 (write), bytes, offset.").untried().not_shown();
    /// Milliseconds that a line of `io_log` covers. Null: one I/O each.
    io_log_ms: Option<u32> ["ms, or null"] = None,
        flag("io-log-every", Integer, "MS", "With --io-log, a line per interval and direction: its end, mean ns, 0 or 1, bytes, I/Os.")
            .within(1.0, ANY, "must be at least 1 ms", "1000")
            .untried()
            .not_shown();
    /// Queries of dependent reads, `hops=50,beam=4,node=8k,segments=7`. It sets `op`, `io_bytes`, `batch` and `depth`.
    dependent: Option<String> ["text, or null"] = None,
        flag("pattern", Text, "hops=H,beam=W,node=B,segments=S",
            "Queries of H dependent rounds: W random reads of B bytes in each of S segments, each round after the one before.");
    /// Lists of I/Os that were [replayed](fio.md#lists-of-ios). `op`, `read_pct`, sizes and sources are then what they say.
    read_iolog: Option<String> ["text, or null"] = None,
        flag("read-iolog", Text, "LOG",
            "Replay the I/Os of a list that fio or --write-iolog wrote, or LOG:LOG for workers in turn; in SOURCE, or in its own files.")
            .untried();
    /// They were replayed without their times.
    replay_no_stall: bool ["true or false"] = false,
        switch("replay-no-stall", "With --read-iolog, start I/Os in order but without their times.").untried();
    /// Their rate, in per cent of the recorded one.
    replay_time_scale: Option<u32> ["%, or null"] = None,
        flag("replay-time-scale", Integer, "PCT", "With --read-iolog, replay at this percentage of the recorded rate.")
            .within(1.0, 1e6, "must be 1 to 1,000,000 per cent", "200")
            .untried();
    /// What their offsets were divided by.
    replay_scale: Option<u32> ["count, or null"] = None,
        flag("replay-scale", Integer, "N", "With --read-iolog, divide offsets by N.")
            .within(1.0, ANY, "must be at least 1", "2")
            .untried();
    /// What their offsets were rounded down to.
    replay_align: Option<u64> ["bytes, or null"] = None,
        flag("replay-align", Size, "SIZE", "With --read-iolog, round offsets down to a multiple of SIZE, a power of two.")
            .within(1.0, ANY, "must be at least 1 byte", "4k")
            .untried();
    /// Kinds of I/Os that were left out.
    replay_skip: Option<String> ["text, or null"] = None,
        flag("replay-skip", Text, "KINDS", "With --read-iolog, leave out these I/Os: read, write, trim, sync, with commas.").untried();
    /// List of the I/Os that were started, in fio's version 3.
    write_iolog: Option<String> ["text, or null"] = None,
        flag("write-iolog", Text, "FILE", "List the I/Os in FILE as fio's write_iolog does, or in FILE.N for worker N of several.")
            .untried()
            .not_shown();
    /// Faults to inject (tests): `seed=1,error=0.01,short=0.01,delay_us=100,reorder=1`.
    faults: Option<String> ["text, or null"] = None,
        flag("faults", Text, "SPEC", "Inject faults, e.g. seed=1,error=0.01,short=0.01,delay_us=100.").untried();
    /// Free text kept in the record.
    label: Option<String> ["text, or null"] = None,
        flag("label", Text, "TEXT", "Free text to store in the record.");
}

/// A field of another request, typed as the job's of that key, and says the same.
pub const fn as_job<R>(key: &str) -> Field<R> {
    let mut at = 0;
    while !same(JobSpec::FIELDS[at].key, key) {
        at += 1;
    }
    let found = &JobSpec::FIELDS[at];
    Field { bound: found.bound, ..flag(found.flag, found.kind, found.metavar, found.help) }
}

const fn same(one: &str, other: &str) -> bool {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    let mut at = 0;
    while at < one.len() && at < other.len() && one[at] == other[at] {
        at += 1;
    }
    at == one.len() && at == other.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{Bound, Kind};
    use serde_json::{json, Value};

    fn job(key: &str, value: Value) -> Result<JobSpec, crate::Error> {
        JobSpec::from_json(&json!({"sources": ["nil:"], "depth": 8, key: value}).to_string())
    }

    fn whole(value: f64) -> Value {
        if value.fract() == 0.0 {
            json!(value as i64)
        } else {
            json!(value)
        }
    }

    /// Just outside, on a side that the field's type can hold.
    fn beyond(bound: &Bound) -> f64 {
        match !bound.with_least {
            true => bound.least,
            false if bound.least >= 1.0 => bound.least - 1.0,
            false => bound.most + 1.0,
        }
    }

    // promise: FLT-6
    #[test]
    fn each_number_is_refused_beyond_its_bounds_and_by_its_flag_alone() {
        let bounded = JobSpec::FIELDS.iter().filter_map(|field| Some((field, field.bound?)));
        assert!(bounded.clone().count() > 20);
        for (field, bound) in bounded {
            let value = beyond(&bound);
            let error = job(field.key, whole(value)).unwrap_err();
            assert_eq!(error.asked, format!("‹{}› {value}", field.key));
            assert_eq!(error.next, format!("‹{}› {}", field.key, bound.example));
            assert!(!bound.holds(f64::NAN) && (bound.most < ANY || bound.with_most || !bound.holds(ANY)));
        }
    }

    #[test]
    fn a_field_takes_the_words_that_its_row_lists_and_no_others() {
        for field in JobSpec::FIELDS {
            let Kind::Choice(words) = field.kind else { continue };
            for word in words {
                let asked = json!({"sources": ["nil:"], "rate_iops": 1.0, field.key: word});
                let job = JobSpec::from_json(&asked.to_string()).unwrap();
                assert_eq!(serde_json::to_value(job).unwrap()[field.key], *word);
            }
            assert!(job(field.key, json!("neither")).unwrap_err().found.contains(words[0]), "{}", field.key);
        }
    }

    #[test]
    fn what_a_row_says_ends_a_run_does() {
        for field in JobSpec::FIELDS.iter().filter(|field| matches!(field.kind, Integer | Whole | Size)) {
            let Ok(job) = job(field.key, json!(10)) else { continue };
            assert_eq!(job.ends_by_count(), field.ends, "{}", field.key);
        }
        assert_eq!(JobSpec::FIELDS.iter().filter(|field| field.ends).count(), 3);
    }

    #[test]
    fn a_trial_leaves_out_what_ends_paces_or_checks_a_run_and_keeps_its_ios() {
        let asked = json!({
            "sources": ["nil:"], "io_bytes": 4096, "depth": 3, "seed": 9, "op": "randread", "passes": 2,
            "rate_iops": 10.0, "arrivals": "poisson", "think_s": 1.0, "think_ios": 4, "verify": true,
            "faults": "error=1", "steady": "iops=10,window=30,skip=10", "until_first": true, "power": ["rapl"],
        });
        let job = JobSpec::from_json(&asked.to_string()).unwrap();
        let kept = json!({"sources": ["nil:"], "io_bytes": 4096, "depth": 3, "seed": 9, "op": "randread"});
        let kept = JobSpec::from_json(&kept.to_string()).unwrap();
        let times = JobSpec { duration_s: Some(0.3), warmup_s: Some(0.1), ..kept };
        assert_eq!(job.trial(0.3, 0.1), JobSpec { power: vec!["none".into()], ..times });
    }

    #[test]
    fn each_flag_is_one_fields() {
        let flags: std::collections::BTreeSet<_> = JobSpec::FIELDS.iter().map(|field| field.flag).collect();
        assert_eq!(flags.len(), JobSpec::FIELDS.len());
        for field in JobSpec::FIELDS {
            assert_eq!(field.metavar.is_empty(), field.kind == Kind::Flag, "{}", field.key);
            assert!(field.help.ends_with('.') && field.help.len() < 170, "{}", field.key);
        }
    }
}
