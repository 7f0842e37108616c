//! Targets of the suite: for each row of `SOURCES` those that exercise it, over files whose content is known by other
//! means.

use forebay_io::{memlock_limit, Op, Reactor, RingOptions};
use forebay_model::content;
use forebay_model::device::DriveModel;
use forebay_model::job::Engine;
pub use forebay_rigs::gpu::home;
use forebay_storage::{
    FileAccess, FileTarget, OpenFileSource, OpenModel, OpenNil, OpenStripe, SharedDrive, Target,
};
use rustix::fs::FallocateFlags;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

pub const ENGINES: [(&str, Engine); 4] =
    [("uring", Engine::Uring), ("pread", Engine::Pread), ("inline", Engine::Inline), ("map", Engine::Map)];

/// Rings and registered slots are locked in memory: those of all tests, and of others of this user.
const LOCKED_BYTES: u64 = 8 << 20;

/// Why rings would fail once in a while; None where there is enough memory to lock.
fn little_to_lock() -> Option<String> {
    let limit = memlock_limit()?;
    (limit < LOCKED_BYTES)
        .then(|| format!("only {limit} bytes may be locked for io_uring: ulimit -l {}", LOCKED_BYTES >> 10))
}

/// Why `engine` can't run here; None if it can.
pub fn lacking(engine: Engine) -> Option<String> {
    match engine {
        Engine::Uring => little_to_lock().or_else(|| {
            let ring = Reactor::with_ring(RingOptions { depth: 8, ..RingOptions::default() });
            ring.err().map(|e| format!("the kernel refuses io_uring: {e}"))
        }),
        Engine::Map if !forebay_io::GUARDED_COPIES => Some("the guarded copy needs x86-64".into()),
        _ => None,
    }
}

/// Returns whether the file system under `home` makes zeroes this way: tmpfs, for one, only punches holes.
pub fn makes_zeroes(op: Op) -> bool {
    static ZERO_RANGE: LazyLock<bool> = LazyLock::new(|| tried(FallocateFlags::ZERO_RANGE));
    static PUNCH_HOLE: LazyLock<bool> =
        LazyLock::new(|| tried(FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE));
    match op {
        Op::WriteZeroes => *ZERO_RANGE,
        Op::Deallocate => *PUNCH_HOLE,
        _ => false,
    }
}

fn tried(flags: FallocateFlags) -> bool {
    let file = tempfile::tempfile_in(home().path()).unwrap();
    file.set_len(8192).unwrap();
    let answer = rustix::fs::fallocate(&file, flags, 0, 4096);
    answer.inspect_err(|e| eprintln!("SKIPPED: zeroes are written, since fallocate {flags:?}: {e}")).is_ok()
}

/// Bytes that repeat nowhere.
pub fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut data = vec![0; bytes];
    content::fill(&mut data, seed, seed ^ 0x5bd1_e995, 0);
    data
}

/// A file with this content, open. O_DIRECT where the file system has it and the engine can use it.
pub fn file(path: &Path, data: &[u8], engine: Engine, direct: bool) -> Target {
    std::fs::write(path, data).unwrap();
    let writes = engine != Engine::Map;
    let direct = direct && engine != Engine::Map;
    let target = FileTarget::open(path, FileAccess { write: writes, direct }).unwrap();
    let name = ENGINES.iter().find(|e| e.1 == engine).map_or("auto", |e| e.0);
    let access = if target.direct { "direct" } else { "buffered" };
    let label = format!("{name} {access} {}", path.file_name().unwrap().to_string_lossy());
    Target::new(label, target.bytes, OpenFileSource { target, engine })
}

pub fn striped(chunk: u64, members: Vec<Target>) -> Target {
    let sizes: Vec<u64> = members.iter().map(|m| m.bytes).collect();
    let names: Vec<&str> = members.iter().map(|m| m.label.as_str()).collect();
    let label = format!("stripe of {} by {chunk} over [{}]", members.len(), names.join(", "));
    Target::new(label, OpenStripe::bytes_of(&sizes, chunk), OpenStripe { chunk, members })
}

pub fn nil(bytes: u64) -> Target {
    Target::new("nil", bytes, OpenNil)
}

/// A drive so fast that the suite doesn't wait for it, over content or none.
pub fn model(over: Option<Target>) -> Target {
    let drive =
        DriveModel::parse("d7-ps1010?latency_us=20&write_latency_us=20&read_mb_s=20000&write_mb_s=20000")
            .unwrap();
    let bytes = over.as_ref().map_or(1 << 20, |t| t.bytes);
    let label = over.as_ref().map_or("model".into(), |t| format!("model over {}", t.label));
    Target::new(label, bytes, OpenModel { drive: SharedDrive::new(&drive, 1, false), over })
}

/// Returns the target's content, by reading its files plainly and putting chunks where RAID0 puts them. None where
/// there is no content.
pub fn truth(target: &Target) -> Option<Vec<u8>> {
    let source = &target.source;
    match source.scheme() {
        "file" => {
            let mut bytes = std::fs::read(&source.descriptor().unwrap().0.path).unwrap();
            bytes.truncate(target.bytes as usize);
            Some(bytes)
        }
        "stripe" => {
            let members = source.parts();
            let parts: Vec<Vec<u8>> = members.iter().map(truth).collect::<Option<_>>()?;
            let (chunk, count) = (source.boundary(target.bytes).unwrap().1 as usize, members.len());
            let at = |i: usize| &parts[i % count][i / count * chunk..][..chunk];
            let whole = (0..target.bytes as usize / chunk).map(at).collect::<Vec<_>>().concat();
            assert_eq!(whole.len() as u64, target.bytes, "whole chunks");
            Some(whole)
        }
        "model" => source.parts().first().and_then(truth),
        "nil" => None,
        _ => Some(crate::served::truth(target)),
    }
}

/// Returns whether every file below can be written to.
pub fn is_writable(target: &Target) -> bool {
    target.files().iter().all(|(_, engine)| *engine != Engine::Map)
}

/// The targets for one scheme, and (what, why) of those that can't be had here. `dir` is theirs alone.
pub fn targets_of(scheme: &str, dir: &Path) -> (Vec<Target>, Vec<(String, String)>) {
    let mut made = Maker { dir: dir.into(), count: 0, targets: Vec::new(), skipped: Vec::new() };
    match scheme {
        "file" => made.files(),
        "stripe" => made.stripes(),
        "nil" => made.targets.push(nil(1 << 20)),
        "model" => made.models(),
        "nvme+tcp" => made.remotes(),
        "vfio-user" => made.drives(),
        "nvme+rdma" => {
            let why = "without a card nothing connects here: tests/vm/test_linux_rdma.py has soft RoCE";
            made.skipped.push(("a namespace".into(), why.into()));
        }
        other => panic!("{other}: is available, and this suite has no case for it"),
    }
    (made.targets, made.skipped)
}

struct Maker {
    dir: PathBuf,
    count: u64,
    targets: Vec<Target>,
    skipped: Vec<(String, String)>,
}

impl Maker {
    fn file(&mut self, bytes: usize, engine: Engine, direct: bool) -> Target {
        self.count += 1;
        let path = self.dir.join(format!("{}", self.count));
        file(&path, &noise(self.count, bytes), engine, direct)
    }

    /// The engines that run here; the others are noted.
    fn engines(&mut self) -> Vec<Engine> {
        let (can, not): (Vec<_>, Vec<_>) = ENGINES.iter().partition(|(_, e)| lacking(*e).is_none());
        let because =
            |(name, engine): (&str, Engine)| (format!("engine {name}"), lacking(engine).unwrap_or_default());
        self.skipped.extend(not.into_iter().map(because));
        can.into_iter().map(|(_, e)| e).collect()
    }

    fn files(&mut self) {
        for engine in self.engines() {
            for direct in [true, false] {
                // Ends inside a block, so that the tail of a direct read is met.
                let target = self.file((96 << 10) + 777, engine, direct);
                self.targets.push(target);
            }
        }
    }

    fn stripes(&mut self) {
        let engines = self.engines();
        for (turn, engine) in engines.iter().copied().enumerate() {
            // Two of five numbers of members for each, all five in `make test-long`.
            let all = std::env::var_os("FOREBAY_TEST_ALL").is_some();
            for count in (1..=5).filter(|count| all || [turn + 1, 5 - turn].contains(count)) {
                // Members differ in size: the smallest counts, in whole chunks.
                let members = (0..count).map(|i| self.file((40 << 10) + 5000 * i, engine, true)).collect();
                self.targets.push(striped(8192, members));
            }
        }
        for count in [1, 3] {
            // Through the page cache, as `mapped` reads.
            let members = (0..count)
                .map(|i| self.file((40 << 10) + 5000 * i, engines[i % engines.len()], false))
                .collect();
            self.targets.push(striped(8192, members));
        }
        let mixed = (0..4).map(|i| self.file(64 << 10, engines[i % engines.len()], i % 2 == 0)).collect();
        self.targets.push(striped(4096, mixed));
        let inner =
            |made: &mut Maker| striped(4096, (0..2).map(|_| made.file(48 << 10, engines[0], true)).collect());
        let nested = (0..3).map(|_| inner(self)).collect();
        self.targets.push(striped(12288, nested));
        self.targets.push(striped(4096, vec![nil(1 << 18), nil(1 << 18)]));
        let modelled = (0..2).map(|_| model(Some(self.file(64 << 10, engines[0], true)))).collect();
        self.targets.push(striped(4096, modelled));
    }

    fn remotes(&mut self) {
        if let Some(why) = lacking(Engine::Uring) {
            return self.skipped.push(("a remote namespace".into(), why));
        }
        // Longer I/Os than a command may be; several connections for one queue; payload copied once more.
        for (bytes, more) in
            [(96 << 10, "depth=1&queues=3"), (64 << 10, "queues=9&hdgst=1&ddgst=1"), (40 << 10, "bulk=16384")]
        {
            self.count += 1;
            self.targets.push(crate::served::target(noise(self.count, bytes), more));
        }
    }

    fn drives(&mut self) {
        if let Some(why) = lacking(Engine::Uring) {
            return self.skipped.push(("an emulated drive".into(), why));
        }
        // One queue that is rung for each command; several, looked at again and again; doorbells by messages.
        for (bytes, more, plain) in [
            (96 << 10, "depth=1&queues=3", false),
            (64 << 10, "queues=6&spin_us=500", false),
            (40 << 10, "", true),
        ] {
            self.count += 1;
            self.targets.push(crate::served::drive(noise(self.count, bytes), more, plain));
        }
    }

    fn models(&mut self) {
        self.targets.push(model(None));
        for engine in self.engines() {
            let over = self.file((64 << 10) + 777, engine, true);
            self.targets.push(model(Some(over)));
        }
        let members = (0..2).map(|_| self.file(48 << 10, Engine::Inline, true)).collect();
        self.targets.push(model(Some(striped(4096, members))));
    }
}
