//! `forebay checksum`: CRC32C of files, computed on a GPU from bytes that were
//! brought there, or on the host.
//!
//! Files are cut into pieces that threads take in turn, so that one large file
//! is read as fast as many; what the pieces give is joined by arithmetic.

use super::run_kit::{Stop, Team};
use forebay_io::{cuda_devices, monotonic_now, CpuTimes, CudaDevice, CudaError, GpuSummer, SummedRanges};
use forebay_model::crc32c::{joined, product, shift};
use forebay_model::record::Build;
use forebay_model::units::BYTES_PER_GIB;
use forebay_model::Error;
use serde::{Deserialize, Serialize};
use std::fs::{File, Metadata};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::Duration;

pub(crate) const SCHEMA: &str = "forebay.checksum/1";
/// Bytes that a thread reads at once: long for the link, short enough that a thread's slots stay in the cache.
const PIECE_BYTES: u64 = 4 << 20;
/// One is read while another is copied and a third waits its turn.
const SLOTS: usize = 3;
const WORKERS_MAX: u32 = 256;
/// Interval at which the caller is asked whether to go on.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Request for checksums.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ChecksumSpec {
    pub files: Vec<String>,
    /// None: the first GPU, or the host where there is none.
    #[serde(default)]
    pub gpu: Option<u32>,
    /// On the host, whatever there is.
    #[serde(default)]
    pub host: bool,
    /// Threads; None: up to eight.
    #[serde(default)]
    pub workers: Option<u32>,
}

#[derive(Clone, Debug, Serialize)]
pub struct ChecksumRecord {
    pub schema: &'static str,
    pub forebay: Build,
    pub files: Vec<FileSum>,
    pub bytes: u64,
    /// Before the first byte: opening the GPU and compiling its kernel.
    pub setup_s: f64,
    /// Time for the reads and checksums, after set-up.
    pub seconds: f64,
    pub throughput_gib_s: Option<f64>,
    /// User and system time of the process.
    pub cpu_s: f64,
    /// `gpu:0` or `host`.
    pub computed_on: String,
    /// `bounce` (through pinned buffers into GPU memory) or `host`.
    pub path: &'static str,
    /// Why the host, where nobody asked for it.
    pub reason: Option<String>,
    pub workers: u32,
}

#[derive(Clone, Debug, Serialize)]
pub struct FileSum {
    pub file: String,
    pub bytes: u64,
    /// Eight hexadecimal digits.
    pub crc32c: String,
}

impl ChecksumSpec {
    pub fn from_json(text: &str) -> Result<ChecksumSpec, Error> {
        let spec: ChecksumSpec = serde_json::from_str(text).map_err(|e| {
            Error::request("the checksum's settings", e.to_string(), "forebay checksum --help")
        })?;
        let workers = spec.workers.unwrap_or(1);
        if workers == 0 || workers > WORKERS_MAX {
            let asked = format!("‹workers› {workers}");
            return Err(Error::request(asked, format!("is not between 1 and {WORKERS_MAX}"), "‹workers› 8"));
        }
        if spec.host && spec.gpu.is_some() {
            return Err(Error::request("‹path› host with ‹gpus›", "the host has no GPU", "one of them"));
        }
        if spec.files.is_empty() {
            return Err(Error::request("forebay checksum", "names no file", "forebay checksum FILE"));
        }
        Ok(spec)
    }
}

/// Sums up the files. `go_on` is asked some twenty times a second; false ends it with an error.
pub fn run_checksum(spec: &ChecksumSpec, go_on: &mut dyn FnMut() -> bool) -> Result<ChecksumRecord, Error> {
    let sources = spec.files.iter().map(|name| Source::open(name)).collect::<Result<Vec<_>, _>>()?;
    let asked = monotonic_now();
    let (device, reason) = place(spec)?;
    let began = monotonic_now();
    let cpu_before = CpuTimes::of_process().total_s();
    let work = Work::new(&sources, device.clone());
    let workers = spec.workers.unwrap_or_else(|| workers_by_default(work.pieces.len()));
    work.all(workers, go_on)?;
    sources.iter().try_for_each(Source::is_unchanged)?;
    let seconds = began.elapsed().as_secs_f64();
    let bytes = sources.iter().map(|s| s.bytes).sum::<u64>();
    Ok(ChecksumRecord {
        schema: SCHEMA,
        forebay: forebay_io::current_build(),
        files: work.sums(&sources),
        bytes,
        setup_s: began.duration_since(asked).as_secs_f64(),
        seconds,
        throughput_gib_s: (seconds > 0.0 && bytes > 0).then(|| bytes as f64 / BYTES_PER_GIB / seconds),
        cpu_s: CpuTimes::of_process().total_s() - cpu_before,
        computed_on: device.as_ref().map_or("host".into(), |d| format!("gpu:{}", d.index())),
        path: if device.is_some() { "bounce" } else { "host" },
        reason,
        workers,
    })
}

/// CRC32C of bytes whose checksum is `before`, followed by `bytes`.
pub fn checksum_bytes(before: u32, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(before, bytes)
}

/// Returns the checksum of `bytes` of GPU memory from `address` on, after what is queued on `stream`, its owner's. The
/// memory is checked to be that GPU's.
pub fn checksum_device_memory(gpu: u32, address: u64, bytes: u64, stream: u64) -> Result<u32, Error> {
    let device = CudaDevice::open(gpu)?;
    forebay_io::GpuCrc32c::open(&device)?.checksum(
        &forebay_io::CudaStream::borrowed(&device, stream),
        address,
        bytes,
    )
}

fn workers_by_default(pieces: usize) -> u32 {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    cores.min(8).min(pieces.max(1)) as u32
}

/// The GPU to compute on; else why it is the host. One that was asked for and can't is an error.
fn place(spec: &ChecksumSpec) -> Result<(Option<Arc<CudaDevice>>, Option<String>), Error> {
    if spec.host {
        return Ok((None, None));
    }
    if let (None, (0, why)) = (spec.gpu, cuda_devices()) {
        return Ok((None, Some(why.unwrap_or_else(|| "there is no GPU".into()))));
    }
    let opened = CudaDevice::open(spec.gpu.unwrap_or(0));
    let usable = opened.and_then(|device| forebay_io::GpuCrc32c::open(&device).map(|_| device));
    match (usable, spec.gpu) {
        (Ok(device), _) => Ok((Some(device), None)),
        (Err(why), None) => Ok((None, Some(format!("{}: {}", why.asked, why.found)))),
        (Err(why), Some(_)) => Err(why),
    }
}

/// A file as it was when it was first looked at.
struct Source {
    name: String,
    bytes: u64,
    seen: Metadata,
}

impl Source {
    fn open(name: &str) -> Result<Source, Error> {
        let refused = |why: String, next: &str| Error::request(name, why, next);
        let file = File::open(name).map_err(|e| refused(e.to_string(), "ls -l"))?;
        let seen = file.metadata().map_err(|e| refused(e.to_string(), "ls -l"))?;
        if !seen.is_file() {
            return Err(refused("isn't a regular file".into(), "the files in it, by name"));
        }
        Ok(Source { name: name.into(), bytes: seen.len(), seen })
    }

    fn is_unchanged(&self) -> Result<(), Error> {
        let stamp = |m: &Metadata| (m.dev(), m.ino(), m.len(), m.mtime(), m.mtime_nsec());
        match std::fs::metadata(&self.name) {
            Ok(now) if stamp(&now) == stamp(&self.seen) => Ok(()),
            Ok(_) => Err(self.broke("changed while it was read".into())),
            Err(e) => Err(self.broke(e.to_string())),
        }
    }

    fn broke(&self, why: String) -> Error {
        Error::run(format!("CRC32C of {}", self.name), why, "the same command again; dmesg | tail")
    }
}

#[derive(Clone, Copy)]
struct Piece {
    source: usize,
    offset: u64,
    bytes: u64,
}

struct Work<'a> {
    sources: &'a [Source],
    device: Option<Arc<CudaDevice>>,
    pieces: Vec<Piece>,
    /// By piece.
    sums: Vec<AtomicU32>,
    next: AtomicUsize,
    stop: Stop,
}

impl<'a> Work<'a> {
    fn new(sources: &'a [Source], device: Option<Arc<CudaDevice>>) -> Work<'a> {
        let pieces_of = |(source, s): (usize, &Source)| {
            let bytes = s.bytes;
            (0..bytes.div_ceil(PIECE_BYTES)).map(move |n| {
                let offset = n * PIECE_BYTES;
                Piece { source, offset, bytes: PIECE_BYTES.min(bytes - offset) }
            })
        };
        let pieces: Vec<Piece> = sources.iter().enumerate().flat_map(pieces_of).collect();
        Work {
            sources,
            device,
            sums: pieces.iter().map(|_| AtomicU32::new(0)).collect(),
            pieces,
            next: AtomicUsize::new(0),
            stop: Stop::default(),
        }
    }

    /// Does all pieces, with as many threads.
    fn all(&self, workers: u32, go_on: &mut dyn FnMut() -> bool) -> Result<(), Error> {
        let team = Team::new("checksum", workers, &self.stop);
        let (interrupted, _) = team.run(|_, _| self.one_worker(), |lead| lead.watch(POLL_INTERVAL, go_on));
        match self.stop.take_failure() {
            Some(e) => Err(e),
            None if interrupted => {
                Err(Error::run("forebay checksum", "was interrupted", "the same command again"))
            }
            None => Ok(()),
        }
    }

    fn one_worker(&self) -> Result<(), Error> {
        match &self.device {
            Some(device) => self.on_gpu(device),
            None => self.on_host(),
        }
    }

    fn take(&self) -> Option<usize> {
        let index = self.next.fetch_add(1, Ordering::Relaxed);
        (index < self.pieces.len() && !self.stop.is_set()).then_some(index)
    }

    fn on_host(&self) -> Result<(), Error> {
        let mut buffer = vec![0; PIECE_BYTES as usize];
        let mut open = None;
        while let Some(index) = self.take() {
            let bytes = self.read(index, &mut open, &mut buffer)?;
            self.sums[index].store(crc32c::crc32c(&buffer[..bytes]), Ordering::Relaxed);
        }
        Ok(())
    }

    fn on_gpu(&self, device: &Arc<CudaDevice>) -> Result<(), Error> {
        let broke = |why: CudaError| {
            let asked = format!("CRC32C on GPU {}", device.index());
            Error::run(asked, why.to_string(), "nvidia-smi; dmesg | tail")
        };
        let mut summer = GpuSummer::open(device, SLOTS, PIECE_BYTES as usize)?;
        let mut open = None;
        while let Some(index) = self.take() {
            let (before, slot) = summer.slot().map_err(broke)?;
            let bytes = self.read(index, &mut open, slot)?;
            self.keep(before);
            summer.send(bytes, index).map_err(broke)?;
        }
        summer.rest().map_err(broke)?.into_iter().for_each(|sum| self.keep(Some(sum)));
        Ok(())
    }

    fn keep(&self, ended: Option<SummedRanges>) {
        if let Some((index, sum)) = ended {
            self.sums[index].store(sum, Ordering::Relaxed);
        }
    }

    /// Reads piece `index` to the front of `to`. `open` is the file of this thread's last piece.
    fn read(&self, index: usize, open: &mut Option<(usize, File)>, to: &mut [u8]) -> Result<usize, Error> {
        let piece = self.pieces[index];
        let source = &self.sources[piece.source];
        let known = open.take().filter(|(of, _)| *of == piece.source);
        let (_, file) = match known {
            Some(known) => open.insert(known),
            None => open.insert((piece.source, self.reopen(source)?)),
        };
        let to = &mut to[..piece.bytes as usize];
        file.read_exact_at(to, piece.offset).map_err(|e| match e.kind() {
            std::io::ErrorKind::UnexpectedEof => source.broke("became shorter while it was read".into()),
            _ => source.broke(format!("reading {} bytes at {}: {e}", piece.bytes, piece.offset)),
        })?;
        Ok(to.len())
    }

    fn reopen(&self, source: &Source) -> Result<File, Error> {
        let file = File::open(&source.name).map_err(|e| source.broke(e.to_string()))?;
        let now = file.metadata().map_err(|e| source.broke(e.to_string()))?;
        if (now.dev(), now.ino()) != (source.seen.dev(), source.seen.ino()) {
            return Err(source.broke("was replaced while it was read".into()));
        }
        Ok(file)
    }

    fn sums(&self, sources: &[Source]) -> Vec<FileSum> {
        let mut sums = vec![0; sources.len()];
        // `joined`, for pieces of one length.
        let by = shift(PIECE_BYTES);
        for (piece, sum) in self.pieces.iter().zip(&self.sums) {
            let whole = &mut sums[piece.source];
            let sum = sum.load(Ordering::Relaxed);
            *whole = if piece.bytes == PIECE_BYTES {
                product(*whole, by) ^ sum
            } else {
                joined(*whole, sum, piece.bytes)
            };
        }
        let of = |(source, sum): (&Source, u32)| FileSum {
            file: source.name.clone(),
            bytes: source.bytes,
            crc32c: format!("{sum:08x}"),
        };
        sources.iter().zip(sums).map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_model::Kind;
    use forebay_rigs::seccomp::forbid_threads;

    // promise: FLT-14
    #[test]
    fn a_thread_that_the_system_refuses_is_an_error_that_says_what_to_type() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), [7; 4096]).unwrap();
        let files = vec![file.path().display().to_string()];
        let run = move || {
            forbid_threads(libc::EAGAIN);
            super::run_checksum(&ChecksumSpec { files, gpu: None, host: true, workers: Some(3) }, &mut || {
                true
            })
        };
        let error = std::thread::spawn(run).join().expect("no panic").unwrap_err();
        assert_eq!((error.kind, error.asked.as_str()), (Kind::Machine, "‹workers› 3"));
        assert!(error.found.contains("refuses more") && error.next.contains("ulimit -u"), "{error:?}");
    }
}
