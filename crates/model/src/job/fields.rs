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
    sources: Vec<String> = Vec::new();
    path: PathKind = PathKind::Host,
        flag("path", Path, "PATH", "How bytes reach the destination: {paths} or auto.");
    /// Preference of `auto`.
    prefer: Prefer = Prefer::Balance,
        flag("prefer", Choice(&["balance", "rate", "cpu"]), "WHAT",
            "What auto favours: balance (the least CPU time among paths that reach 2/3 of the fastest's rate), rate or cpu.");
    op: Op = Op::Read,
        flag("op", Choice(&["read", "write", "randread", "randwrite"]), "OP", "read, write, randread or randwrite.");
    /// Share of reads in a mixed job, in per cent. None: `op` alone.
    read_pct: Option<u8> = None,
        flag("read-pct", Share, "PCT", "Percentage of reads in a mixed job.").within(0.0, 100.0, "must be 0 to 100", "70");
    /// Bytes per I/O. With `io_bytes_max`, the smallest.
    io_bytes: u64 = 1 << 20,
        flag("io-size", Sizes, "SIZE", "Block size: bytes per I/O, e.g. 128k, or a range MIN:MAX[:STEP].");
    /// `given`, `default` or `auto`: the origin of `io_bytes`.
    io_from: Origin = Origin::Given;
    /// Sizes are drawn uniformly from io_bytes, io_bytes + io_bytes_step, … io_bytes_max.
    io_bytes_max: Option<u64> = None;
    io_bytes_step: Option<u64> = None;
    /// Sizes and their shares, `4k=60,64k=40`, or for reads and writes each, `4k=1/64k=1`. It settles the three above.
    io_mix: Option<String> = None,
        flag("io-mix", Text, "MIX",
            "Block sizes with their shares of the I/Os, e.g. 4k=60,64k=40 or 4k=3,64k=2, or READS/WRITES. Instead of --io-size.");
    /// Size of each created file, and the most that is read of each. None: as found, or 1 GiB if created.
    file_bytes: Option<u64> = None,
        flag("file-size", Size, "SIZE",
            "Size of each file that is created, and the most that is read of each. Default: as found, or 1g if created.")
            .within(1.0, ANY, "an empty file can't be read or written", "1g");
    /// Create missing files, also for a read. A write always creates them.
    create: bool = false,
        switch("create", "Create missing files, also for a read. A write always creates them.").not_shown();
    /// Files in a directory. None: all existing ones for a read, or one per worker if created.
    files: Option<u32> = None,
        flag("files", Integer, "N", "Number of files in a directory. Default: all that are found, or one per worker if created.")
            .within(1.0, FILES_MAX as f64, "must be 1 to 10,000,000", "4");
    /// Name of file number N in a directory; `%d` stands for N.
    file_name: String = FILE_NAME_DEFAULT.into(),
        flag("file-name", Text, "NAME", "Name of file N in a directory; %d stands for N.").not_shown();
    /// Patterns of the files of a directory that are read. Empty: all of them.
    glob: Vec<String> = Vec::new(),
        flag("glob", Words, "PATTERN",
            "Read only the files of a directory that match, e.g. '*.jpg' or '**/train/*.{jpg,png}'. May be repeated.");
    /// Each file is read by one worker, from its beginning to its end.
    whole_files: bool = false,
        switch("whole-files", "Read each file by one worker, from beginning to end, file after file.");
    /// Order in which each worker reads whole files, which it implies. None: by name.
    order: Option<FileOrder> = None,
        flag("order", Choice(&["name", "random"]), "ORDER",
            "Read whole files in this order: name (the default of --whole-files), or random, which is new in each pass.");
    /// First byte of the sources that is used.
    start_bytes: u64 = 0,
        flag("start", Size, "SIZE", "Offset of the first byte to use.");
    /// Worker N starts N times so many bytes later, with `clones`.
    start_step_bytes: u64 = 0,
        flag("start-step", Size, "SIZE", "With --clones, worker N starts N times SIZE after --start.");
    /// After each sequential I/O so many bytes are passed over; below 0: gone back from its end.
    skip_bytes: i64 = 0,
        flag("skip", SignedSize, "SIZE", "Bytes to skip after each sequential I/O; if negative, to go back from its end.");
    /// `skip_bytes` are passed over after so many bytes. None: after each I/O.
    skip_every_bytes: Option<u64> = None,
        flag("skip-every", Size, "SIZE", "Skip after this many bytes instead of after each I/O.")
            .within(1.0, ANY, "must be at least 1 byte", "256m");
    /// Alignment of random offsets, instead of the I/O size. None: the I/O size, the least of the direction's own.
    align_bytes: Option<u64> = None,
        flag("align", Size, "SIZE", "Alignment of random offsets. Default: the I/O size.")
            .within(1.0, ANY, "must be at least 1 byte", "4k");
    /// Threads. Each owns its queues and `depth` buffers.
    workers: u32 = 1,
        flag("workers", Workers, "N", "Threads, each with its own queue; auto picks the fewest that reach full speed.")
            .within(1.0, WORKERS_MAX as f64, "must be 1 to 4096", "4");
    /// `given`, `default` or `auto`: the origin of the number of workers.
    workers_from: Origin = Origin::Given;
    /// Each worker covers all of the data instead of a part of it.
    clones: bool = false,
        switch("clones", "Each worker covers all of the data instead of a part of it.");
    /// I/Os in flight per worker.
    depth: u32 = 8,
        flag("depth", Integer, "N", "I/Os in flight per worker.")
            .within(1.0, DEPTH_MAX as f64, "must be 1 to 4096 (I/Os in flight per worker)", "32");
    /// `given`, `default` or `auto`: the origin of `depth`.
    depth_from: Origin = Origin::Given;
    /// I/Os that are one request, as the rows of a batch: they start together, and it ends with the last of them. None: each
    /// is one.
    batch: Option<u32> = None,
        flag("batch", Integer, "N",
            "I/Os per request, like the rows of a batch: they start together, and the request ends with the last. Without --depth two requests are in flight.")
            .within(1.0, DEPTH_MAX as f64, "must be 1 to 4096 (I/Os per request, of those in flight)", "64");
    /// Measured seconds. None: 10 s where no pass or limit ends the run.
    duration_s: Option<f64> = None,
        flag("duration", Seconds, "SECONDS", "Length of the measurement. Default: 10, or as long as --passes or a limit takes.")
            .within(0.001, SECONDS_MAX, SECONDS, "10");
    /// Stop after the data was covered this many times.
    passes: Option<u32> = None,
        flag("passes", Integer, "N", "Stop after N passes over the data.")
            .within(1.0, ANY, "must be at least 1", "1")
            .ending();
    /// Stop once each worker has started I/Os of this many bytes.
    limit_bytes: Option<u64> = None,
        flag("limit-bytes", Size, "SIZE", "Stop once each worker has transferred SIZE bytes.")
            .within(1.0, ANY, "must be at least 1 byte", "1g")
            .ending();
    /// Stop once each worker has started this many I/Os.
    limit_ios: Option<u64> = None,
        flag("limit-ios", Whole, "N", "Stop once each worker has completed N I/Os.")
            .within(1.0, ANY, "must be at least 1", "1000")
            .ending();
    /// Seconds before measuring. None: a tenth of the duration, 2 s at most; 0 with `passes` or a limit.
    warmup_s: Option<f64> = None,
        flag("warmup", Seconds, "SECONDS", "Warm-up time before measuring. Default: a tenth of the duration, at most 2.")
            .within(0.0, SECONDS_MAX, SECONDS, "10");
    /// `uniform`, `zipf:THETA` with 0 < THETA < 3, `zoned:IOS/DATA,…`, `list:BLOCK,…` or `list+:BLOCK,…`.
    distribution: String = "uniform".into(),
        flag("distribution", Text, "NAME",
            "Distribution of random offsets: uniform, zipf:THETA, zoned:IOS/DATA,... (percentages), list:BLOCK,... or list+:BLOCK,...");
    /// Random offsets are a permutation: no block twice in a pass.
    no_repeat: bool = false,
        switch("no-repeat", "Random offsets that never repeat a block within a pass.");
    seed: u64 = 7,
        flag("seed", Seed, "N", "Seed for offsets and content.").not_shown();
    /// Runs of the same job; the record holds each and their summary.
    repeat: u32 = 1,
        flag("repeat", Integer, "N", "Run N times; the record holds each run and their spread.")
            .within(1.0, REPEATS_MAX as f64, "must be 1 to 10,000", "5")
            .not_shown();
    /// Repeat until the 95 % interval of the mean throughput is within this per cent.
    until_ci_pct: Option<f64> = None,
        flag("until-ci", Percent, "PCT", "Repeat until the 95 % confidence interval is within PCT of the mean.")
            .between(0.0, 100.0, "must be between 0 and 100 per cent", "2%")
            .not_shown();
    /// Bound on the repeats of `until_ci_pct`.
    repeat_max: u32 = 20,
        flag("repeat-max", Integer, "N", "Maximum number of repeats for --until-ci.")
            .within(1.0, REPEATS_MAX as f64, "must be 1 to 10,000", "5")
            .not_shown();
    /// End each run once throughput is steady (or at `duration_s`).
    until_steady: bool = false,
        switch("until-steady", "End each run once throughput is steady.").untried();
    /// Criterion of a steady state, with `until_steady`: `iops=10,window=30,skip=10`. None: range and slope of the
    /// throughput.
    steady: Option<String> = None,
        flag("steady", Text, "RULE",
            "Criterion of --until-steady: bw, iops or lat within PCT of the mean, or a slope, e.g. iops=10,window=30,skip=10.")
            .untried();
    /// End each run once the first worker has nothing left to do.
    until_first: bool = false,
        switch("until-first", "End each run once the first worker has nothing left to do.").untried();
    /// Open loop: I/Os start on schedule at this rate and latency counts from the schedule.
    rate_gib_s: Option<f64> = None,
        flag("rate", Number, "GIB_S", "Open loop at this many GiB/s; latency counts from the schedule.")
            .between(0.0, ANY, "must be above 0", "1.5")
            .untried();
    rate_iops: Option<f64> = None,
        flag("rate-iops", Number, "IOPS", "Open loop at this many I/Os per second.")
            .between(0.0, ANY, "must be above 0", "1.5")
            .untried();
    /// The run fails once a worker moves less than its part of this for a second.
    rate_min_gib_s: Option<f64> = None,
        flag("rate-min", Number, "GIB_S", "Fail the run if a worker moves less than its share of this many GiB/s for a second.")
            .between(0.0, ANY, "must be above 0", "0.5")
            .untried();
    rate_min_iops: Option<f64> = None,
        flag("rate-min-iops", Number, "IOPS", "Like --rate-min, in I/Os per second.")
            .between(0.0, ANY, "must be above 0", "500")
            .untried();
    /// `even` or `poisson`: how the I/Os of an open loop follow on each other.
    arrivals: Arrivals = Arrivals::Even,
        flag("arrivals", Choice(&["even", "poisson"]), "LAW",
            "Arrival process of an open loop: even (fixed intervals) or poisson.").untried();
    /// Each worker pauses for this many seconds, once its I/Os in flight have completed.
    think_s: Option<f64> = None,
        flag("think", Seconds, "SECONDS", "Each worker pauses for this long, after its I/Os in flight have completed.")
            .within(0.0, SECONDS_MAX, "must be a number of seconds up to a year", "0.01")
            .untried();
    /// I/Os from one pause to the next. None: 1.
    think_ios: Option<u32> = None,
        flag("think-ios", Integer, "N", "I/Os between two pauses. Default: 1.")
            .within(1.0, ANY, "must be at least 1", "8")
            .untried();
    /// `8@FILE`: weight of each worker's I/Os among all runs that name this file.
    flow: Option<String> = None,
        flag("flow", Text, "WEIGHT@FILE", "Weight of each worker's I/Os among all runs that name FILE, which is created for them.")
            .untried();
    /// CPUs to pin workers to, in turn: `0-3,8`, or those of NUMA nodes, `nodes:0-1`.
    cpus: Option<String> = None,
        flag("cpus", Text, "LIST", "CPUs to pin workers to, in turn, e.g. 0-3,8 or nodes:0-1.");
    /// NUMA node for threads and memory.
    numa: Option<u32> = None,
        flag("numa", Integer, "NODE", "NUMA node for threads and memory.");
    /// Priority of I/Os: `idle`, `be/4`, `20=rt/0`.
    priority: Option<String> = None,
        flag("priority", Text, "RULE", "I/O priority: idle, be/LEVEL or rt/LEVEL, or for a percentage of I/Os, e.g. 20=rt/0.");
    /// NUMA nodes over which buffers are interleaved, page by page: `0-1`.
    numa_interleave: Option<String> = None,
        flag("numa-interleave", Text, "NODES", "NUMA nodes to spread buffers over, page by page, e.g. 0-1.");
    cache: Cache = Cache::Bypass,
        flag("cache", Choice(&["auto", "bypass", "drop", "allow", "warm"]), "POLICY",
            "Page cache: bypass (O_DIRECT), drop, allow, warm, or auto (depends on what is cached).");
    engine: Engine = Engine::Auto,
        flag("engine", Choice(&["auto", "uring", "pread", "inline", "map"]), "NAME",
            "I/O engine: auto, uring (io_uring), pread, inline or map (mmap).");
    pages: Pages = Pages::Auto,
        flag("pages", Choice(&["auto", "hugetlb", "thp", "small"]), "KIND",
            "Page size of the buffers: auto, hugetlb, thp or small.");
    sqpoll: bool = false,
        switch("sqpoll", "Use io_uring with a kernel thread that polls for submissions.");
    iopoll: bool = false,
        switch("iopoll", "Use io_uring and poll the device for completions.");
    sync: Sync = Sync::None,
        flag("sync", Choice(&["none", "end", "each"]), "WHEN", "Durability of writes: none, end (fdatasync) or each (DSYNC).");
    /// Each write is either complete or absent after a power failure (RWF_ATOMIC).
    atomic: bool = false,
        switch("atomic", "Atomic writes (RWF_ATOMIC), on Linux 6.11 or newer and devices that offer them.");
    /// Check every byte read against seeded content (and write that content).
    verify: bool = false,
        switch("verify", "Check every byte against seeded content.").untried();
    /// Check what fio wrote with `verify=`: `crc32c,interval=4k`.
    verify_fio: Option<String> = None,
        flag("verify-fio", Text, "RULE",
            "Check the headers and checksums of what fio wrote with verify=, e.g. crc32c or crc32c,interval=4k.")
            .untried();
    /// Fill write buffers anew, from the seed, for each write.
    refill: bool = false,
        switch("refill", "New content for each write.");
    /// Content of writes, each anew: `compress=50,dedupe=30`.
    content: Option<String> = None,
        flag("content", Text, "RULE", "Content of writes: compress=PCT,chunk=BYTES and dedupe=PCT,set=N. New for each write.");
    /// An I/O unfinished after this many seconds fails the run.
    timeout_s: f64 = 30.0,
        flag("timeout", Seconds, "SECONDS", "Fail the run if an I/O takes longer than this.")
            .within(0.001, SECONDS_MAX, SECONDS, "10")
            .not_shown();
    /// Files that may be overwritten although Forebay didn't create them.
    overwrite: Vec<String> = Vec::new(),
        flag("overwrite", List, "FILE", "Allow overwriting this file, which Forebay didn't create.").not_shown();
    /// Block devices that may be overwritten.
    overwrite_devices: Vec<String> = Vec::new(),
        flag("overwrite-device", List, "DEVICE", "Allow overwriting this block device.").not_shown();
    /// GPUs to feed; empty: GPU 0 if the path needs one and there is one.
    gpus: Vec<u32> = Vec::new(),
        flag("gpu", Integers, "LIST", "GPUs to feed, e.g. 0,1.");
    /// `GPU=SOURCE`, in place of sources: workers are divided over the pairs, and each reads only its pair's
    /// source into its pair's GPU.
    pairs: Vec<String> = Vec::new(),
        flag("pair", Words, "GPU=SOURCE", "A GPU and the source that feeds it, e.g. 0=/dev/nvme0n1; replaces SOURCE.");
    /// Anything but direct DMA is an error.
    require_direct: bool = false,
        switch("require-direct", "Treat anything but direct DMA as an error.").not_shown();
    /// Advice to the kernel about reads through the page cache.
    hint: Hint = Hint::Auto,
        flag("hint", Choice(&["auto", "none", "random", "sequential"]), "HINT",
            "What the kernel is told of reads through the page cache (fadvise, madvise): auto (as the job reads), none, random or sequential.");
    /// A modelled drive in real time must be within 5 % of its prediction.
    require_model: bool = false,
        switch("require-model", "Exit with 1 if a model in real time deviates by more than 5 % from its prediction.")
            .not_shown();
    /// cuFile's compatibility mode is acceptable.
    allow_compat: bool = false,
        switch("allow-compat", "Allow cuFile's compatibility mode.").not_shown();
    /// Bytes of the page cache that `mapped` may keep registered. None: half of the free memory.
    pin_limit_bytes: Option<u64> = None,
        flag("pin-limit", Size, "SIZE", "Maximum amount of page cache that mapped keeps registered. Default: half of the free memory.");
    /// Interface of cuFile that `gds` calls.
    cufile: CuFileMode = CuFileMode::Sync,
        flag("cufile", Choice(&["sync", "stream", "batch", "batch-stream"]), "MODE",
            "cuFile's interface: sync, stream, batch or batch-stream.");
    /// I/Os per batch. None: half of `depth`, so that two are in flight.
    cufile_batch: Option<u32> = None,
        flag("cufile-batch", Integer, "N", "I/Os per cuFile batch. Default: half of --depth, so that two batches are in flight.")
            .within(1.0, DEPTH_MAX as f64, "must be 1 to 4096 (I/Os per batch)", "32");
    /// Leave buffers unregistered with cuFile, which then goes through its own.
    cufile_unregistered: bool = false,
        switch("cufile-unregistered", "Don't register buffers with cuFile.");
    /// Power meters: `rapl`, `nvml`, `ipmi`, `redfish:HOST`. Empty: whatever answers locally.
    power: Vec<String> = Vec::new(),
        flag("power", List, "METER", "Power meter: rapl, nvml, ipmi or redfish:HOST.").not_shown();
    /// Milliseconds between points of the time series.
    interval_ms: u32 = 500,
        flag("interval", Integer, "MS", "Milliseconds between points of the time series.")
            .within(10.0, ANY, "must be at least 10 ms", "500")
            .not_shown();
    /// Prefix of files that get a line for each I/O: a file for each worker. None: no such files.
    io_log: Option<String> = None,
        flag("io-log", Text, "PREFIX",
            "Write a line per I/O to PREFIX.N.log, for worker N: ms, ns, 0 (read) or 1 (write), bytes, offset.").untried().not_shown();
    /// Milliseconds that a line of `io_log` covers. None: one I/O each.
    io_log_ms: Option<u32> = None,
        flag("io-log-every", Integer, "MS", "With --io-log, a line per interval and direction: its end, mean ns, 0 or 1, bytes, I/Os.")
            .within(1.0, ANY, "must be at least 1 ms", "1000")
            .untried()
            .not_shown();
    /// Queries of dependent reads: `hops=50,beam=4,node=8k,segments=7`. It settles `op`, `io_bytes`, `batch` and `depth`.
    dependent: Option<String> = None,
        flag("pattern", Text, "hops=H,beam=W,node=B,segments=S",
            "Queries of H dependent rounds: W random reads of B bytes in each of S segments, each round after the one before.");
    /// Lists of I/Os as fio writes them, `LOG` or `LOG:LOG` for workers in turn, which are done instead of drawn ones. None: no
    /// such list.
    read_iolog: Option<String> = None,
        flag("read-iolog", Text, "LOG",
            "Replay the I/Os of a list that fio or --write-iolog wrote, or LOG:LOG for workers in turn; in SOURCE, or in its own files.")
            .untried();
    replay_no_stall: bool = false,
        switch("replay-no-stall", "With --read-iolog, start I/Os in order but without their times.").untried();
    /// Per cent of the rate that the list's times make. None: 100.
    replay_time_scale: Option<u32> = None,
        flag("replay-time-scale", Integer, "PCT", "With --read-iolog, replay at this percentage of the recorded rate.")
            .within(1.0, 1e6, "must be 1 to 1,000,000 per cent", "200")
            .untried();
    replay_scale: Option<u32> = None,
        flag("replay-scale", Integer, "N", "With --read-iolog, divide offsets by N.")
            .within(1.0, ANY, "must be at least 1", "2")
            .untried();
    replay_align: Option<u64> = None,
        flag("replay-align", Size, "SIZE", "With --read-iolog, round offsets down to a multiple of SIZE, a power of two.")
            .within(1.0, ANY, "must be at least 1 byte", "4k")
            .untried();
    replay_skip: Option<String> = None,
        flag("replay-skip", Text, "KINDS", "With --read-iolog, leave out these I/Os: read, write, trim, sync, with commas.").untried();
    /// List of the I/Os that were started, as fio writes it; `FILE.N` for worker N of several.
    write_iolog: Option<String> = None,
        flag("write-iolog", Text, "FILE", "List the I/Os in FILE as fio's write_iolog does, or in FILE.N for worker N of several.")
            .untried()
            .not_shown();
    /// Faults to inject (tests): `seed=1,error=0.01,short=0.01,delay_us=100,reorder=1`.
    faults: Option<String> = None,
        flag("faults", Text, "SPEC", "Inject faults, e.g. seed=1,error=0.01,short=0.01,delay_us=100.").untried();
    /// Free text kept in the record.
    label: Option<String> = None,
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
