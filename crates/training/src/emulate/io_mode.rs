//! Manner of reading the data set on this machine: through the page cache or past it, by calls or through a ring, in
//! which pieces and how many at a time.

use super::dataset::{DataSet, Folder};
use super::reading::BLOCK;
use forebay_io::{allowed_cpus, cache_residency, drop_cached, warm_cache};
use forebay_model::job::{Cache, Engine, PathKind};
use forebay_model::training::EmulateSpec;
use forebay_model::Error;
use forebay_storage::{has_rings, DataPath, FileTarget, OpenFileSource, Paths, Target};

/// I/O size for data in memory: a slot stays in a core's own cache while it is parsed.
const CACHED_IO_BYTES: u64 = 256 << 10;
/// I/O size and depth for data on a drive: long enough for its full rate, with 16 MiB in flight per worker.
const DEVICE_IO_BYTES: u64 = 1 << 20;
const DEVICE_DEPTH: u32 = 16;
/// Files that stand for all of them where the page cache is asked about.
const PROBES: usize = 64;
/// Bytes probed of each file, from its beginning: looking at pages takes time.
const PROBED_BYTES: u64 = 8 << 20;
/// Cached share of the probed files from which on all files are taken to be cached.
const CACHED_SHARE: f64 = 0.95;

#[derive(Clone, Debug)]
pub(crate) struct IoMode {
    /// O_DIRECT, and what it wants offsets and lengths to be multiples of.
    pub direct: bool,
    pub align: u32,
    /// Workers read by themselves: the data is in memory, or nothing else is to be had.
    pub is_inline: bool,
    pub has_ring: bool,
    pub io_bytes: u64,
    pub depth: u32,
    pub workers: u32,
    pub in_memory: bool,
    pub resident_before: Result<f64, String>,
    /// In words, for the record.
    pub reason: String,
    /// A file of the data set as a target, or the address space: for meters and the record.
    pub probe: Target,
}

impl IoMode {
    pub(crate) fn choose(
        spec: &EmulateSpec,
        data: &DataSet,
        resident: Result<f64, String>,
        path: PathKind,
    ) -> Result<IoMode, Error> {
        let most = Paths::by_kind(path).readers().workers_max.unwrap_or(u32::MAX);
        let workers = spec.workers.unwrap_or(workers_of(spec).min(most));
        let rings = has_rings(Engine::Auto, false, false, workers)?;
        let io_mode = match data {
            DataSet::Folder(folder) => {
                let probe = folder.probe(0, false)?;
                IoMode::of_files(spec, folder, probe, resident, path, rings)?
            }
            DataSet::Packed(packed) => IoMode::of_space(spec, &packed.target, rings.is_ok()),
        };
        let io_bytes = io_mode.io_bytes.next_multiple_of(BLOCK);
        Ok(IoMode { workers, io_bytes, ..io_mode })
    }

    fn of_files(
        spec: &EmulateSpec,
        folder: &Folder,
        probe: FileTarget,
        resident: Result<f64, String>,
        path: PathKind,
        rings: Result<(), String>,
    ) -> Result<IoMode, Error> {
        let cached = resident.as_ref().is_ok_and(|share| *share >= CACHED_SHARE);
        let readers = Paths::by_kind(path).readers();
        let (mut direct, mut reason) = past_the_cache(spec, Paths::by_kind(path), probe.in_memory, cached);
        let mut probe = probe;
        if direct {
            match folder.probe(0, true) {
                Ok(opened) => probe = opened,
                Err(e) if spec.cache == Cache::Bypass => return Err(e),
                Err(_) => {
                    reason.push_str(", and their file system has no O_DIRECT");
                    direct = false;
                }
            }
        }
        let by_hand = probe.in_memory || (!direct && (cached || spec.cache == Cache::Warm));
        let is_inline = is_inline(spec, by_hand, &rings)?;
        if let Some(why) = rings.as_ref().err().filter(|_| spec.engine == Engine::Auto && !by_hand) {
            reason.push_str(&format!(", and are read inline, since each worker {why}"));
        }
        Ok(IoMode {
            direct,
            align: if direct { probe.align.max(1) } else { 1 },
            is_inline,
            has_ring: rings.is_ok(),
            io_bytes: spec.io_bytes.unwrap_or(match readers.io_bytes {
                Some((least, most)) => probe.bytes.clamp(least, most),
                None if is_inline && !direct => CACHED_IO_BYTES,
                None => DEVICE_IO_BYTES,
            }),
            depth: match readers.depth {
                Some(depth) => spec.depth.unwrap_or(depth),
                None => depth_of(spec),
            },
            workers: 0,
            in_memory: probe.in_memory,
            resident_before: resident,
            reason,
            probe: target_of(probe, is_inline),
        })
    }

    /// One address space, which says for itself how it is read.
    fn of_space(spec: &EmulateSpec, target: &Target, has_ring: bool) -> IoMode {
        let is_inline = target.is_inline();
        IoMode {
            direct: target.files().iter().any(|(file, _)| file.direct),
            align: target.align(),
            is_inline,
            has_ring,
            io_bytes: spec.io_bytes.unwrap_or(if is_inline { CACHED_IO_BYTES } else { DEVICE_IO_BYTES }),
            depth: depth_of(spec),
            workers: 0,
            in_memory: !target.files().is_empty() && target.files().iter().all(|(file, _)| file.in_memory),
            resident_before: Err("the data set lies in one address space".into()),
            reason: "files packed in one address space".into(),
            probe: target.clone(),
        }
    }

    /// Returns the length to request: O_DIRECT needs whole blocks, also where the file ends inside one.
    pub(crate) fn ask(&self, bytes: u32) -> u32 {
        bytes.next_multiple_of(self.align)
    }

    pub(crate) fn engine(&self) -> &'static str {
        self.probe.source.engine().unwrap_or_else(|| self.probe.source.scheme())
    }

    pub(crate) fn policy(&self, spec: &EmulateSpec) -> &'static str {
        match spec.cache {
            _ if self.in_memory => "memory",
            _ if self.direct => "bypass",
            Cache::Drop => "drop",
            Cache::Warm => "warm",
            _ => "allow",
        }
    }
}

/// Decides whether to use O_DIRECT, with the reason.
fn past_the_cache(spec: &EmulateSpec, path: &dyn DataPath, in_memory: bool, cached: bool) -> (bool, String) {
    let (direct, why) = match (spec.cache, path.cached()) {
        _ if in_memory => (false, "the files live in memory"),
        (_, Some(true)) => return (false, format!("{} takes them from the page cache", path.name())),
        (Cache::Auto, Some(false)) => return (true, format!("{} bypasses the page cache", path.name())),
        (Cache::Bypass, _) => (true, "‹cache› bypass"),
        (Cache::Allow, _) => (false, "‹cache› allow"),
        (Cache::Warm, _) => (false, "‹cache› warm"),
        (Cache::Drop, _) => (false, "‹cache› drop"),
        (Cache::Auto, None) if cached => (false, "the files are in the page cache"),
        (Cache::Auto, None) => (true, "the files aren't in the page cache"),
    };
    (direct, why.into())
}

/// Decides whether workers read by calls of their own.
fn is_inline(spec: &EmulateSpec, by_hand: bool, rings: &Result<(), String>) -> Result<bool, Error> {
    match (spec.engine, rings) {
        (Engine::Uring, Err(why)) => Err(Error::machine(
            "‹engine› uring",
            format!("each worker {why}"),
            "‹engine› inline, or forebay doctor for the reason",
        )),
        (Engine::Uring, Ok(())) => Ok(false),
        (Engine::Auto, _) => Ok(by_hand || rings.is_err()),
        (Engine::Inline | Engine::Pread | Engine::Map, _) => Ok(true),
    }
}

/// Refuses engines by which a folder's files aren't read. A source that holds them all has those of its own.
pub(crate) fn check_engine(engine: Engine) -> Result<(), Error> {
    let name = match engine {
        Engine::Pread => "pread",
        Engine::Map => "map",
        Engine::Auto | Engine::Uring | Engine::Inline => return Ok(()),
    };
    let found = "an emulated run reads with uring or inline";
    Err(Error::request(format!("‹engine› {name}"), found, "‹engine› uring, inline or auto"))
}

/// Threads that read: as many as may run at once.
pub(crate) fn workers_of(spec: &EmulateSpec) -> u32 {
    spec.workers.unwrap_or_else(|| allowed_cpus().len().max(1) as u32)
}

pub(crate) fn depth_of(spec: &EmulateSpec) -> u32 {
    spec.depth.unwrap_or(DEVICE_DEPTH)
}

fn target_of(file: FileTarget, is_inline: bool) -> Target {
    let engine = if is_inline { Engine::Inline } else { Engine::Uring };
    Target::new(file.path.display().to_string(), file.bytes, OpenFileSource { target: file, engine })
}

/// Share of the files' pages that are in the page cache, by files from all over the data set; and what the cache
/// policy asks for.
pub(crate) fn residency(spec: &EmulateSpec, data: &DataSet) -> Result<Result<f64, String>, Error> {
    if matches!(spec.cache, Cache::Drop | Cache::Warm) {
        set_cache(spec, data)?;
    }
    Ok(residency_now(data))
}

pub(crate) fn residency_now(data: &DataSet) -> Result<f64, String> {
    let DataSet::Folder(folder) = data else { return Err("the data set lies in one address space".into()) };
    let count = folder.len();
    let step = count.div_ceil(PROBES).max(1);
    let (mut pages, mut all) = (0.0, 0.0);
    for file in (0..count).step_by(step) {
        let Ok((open, bytes)) = folder.open_file(file as u32, false) else { continue };
        let looked = bytes.min(PROBED_BYTES);
        match cache_residency(&open, 0, looked) {
            Ok(share) => (pages, all) = (pages + share * looked as f64, all + looked as f64),
            Err(_) if bytes == 0 => {}
            Err(why) => return Err(why),
        }
    }
    if all > 0.0 {
        Ok(pages / all)
    } else {
        Err("no file could be examined".into())
    }
}

/// Empties the page cache of the files, or fills it.
pub(crate) fn set_cache(spec: &EmulateSpec, data: &DataSet) -> Result<(), Error> {
    let DataSet::Folder(folder) = data else { return Ok(()) };
    for file in 0..folder.len() as u32 {
        let Ok((open, bytes)) = folder.open_file(file, false) else { continue };
        let done = match spec.cache {
            Cache::Drop => drop_cached(&open, 0, bytes).map(|_| ()),
            Cache::Warm => warm_cache(&open).map(|_| ()),
            _ => Ok(()),
        };
        let asked = || format!("‹cache› on {}", folder.path(file).display());
        done.map_err(|why| Error::machine(asked(), why, "‹cache› bypass"))?;
    }
    Ok(())
}
