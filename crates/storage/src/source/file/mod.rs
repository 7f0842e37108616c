//! `file:` — a regular file or a block device, through whichever engine suits it:
//! io_uring for a device, a pool of threads where io_uring is forbidden, a copy
//! out of a mapping (or an inline pread) where the data is already in memory.

mod inline;
mod kind;
mod map;
mod pool;
mod scatter;
mod sync;
mod uring;

pub(crate) use pool::PoolQueue;
pub(crate) use uring::UringQueue;

use super::at_once::AtOnceQueue;
use super::plan::{Examiner, FilePlan, Open, Source, SourcePlan, Uri};
use super::uri::{bad, Text};
use super::{MadeOf, OpenFile, OpenSource, QueueNeeds, SOURCES};
use forebay_io::{Geometry, Queue, Reactor};
use forebay_model::job::{Engine, Hint, Priority};
use forebay_model::units::format_bytes;
use forebay_model::Error;
use rustix::fs::{AtFlags, StatxFlags};
use std::fmt;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

const TMPFS_MAGIC: i64 = 0x0102_1994;
const RAMFS_MAGIC: i64 = 0x8584_58f6;
/// One kernel read or write moves at most this much (MAX_RW_COUNT, rounded down).
const IO_BYTES_MAX: u32 = 1 << 30;

/// Linux has it from 6.11 on.
const RWF_ATOMIC: i32 = 0x40;

/// Mode in which a file is to be opened.
#[derive(Clone, Copy, Debug)]
pub struct FileAccess {
    pub write: bool,
    /// O_DIRECT where the file system has a device below it.
    pub direct: bool,
}

/// A file, open and known: what all workers share.
#[derive(Clone, Debug)]
pub struct FileTarget {
    pub path: PathBuf,
    pub file: Arc<File>,
    pub bytes: u64,
    pub direct: bool,
    /// The file system lives in memory: nothing is below the page cache.
    pub in_memory: bool,
    pub is_device: bool,
    /// Alignment of offsets and lengths, and of memory; 1 where anything goes.
    pub align: u32,
    pub mem_align: u32,
    /// Flags of each write, beside what its I/O asks for: RWF_ATOMIC, or nothing.
    pub write_flags: i32,
    /// Per cent of the I/Os that carry a priority of their own, and which. Only a ring's do.
    pub priority: Option<(u8, Priority)>,
    /// Advice that the kernel got about reads through the page cache.
    pub hint: Hint,
}

/// The path of a file, a folder or a block device.
#[derive(Clone, Debug)]
pub(crate) struct FileUri(pub PathBuf);

/// Parses `file:PATH`, or a path as it is.
pub(crate) fn parse(text: Text) -> Result<Uri, Error> {
    let is_named = text.rest.len() < text.whole.len();
    let path = text.rest.strip_prefix("//").filter(|_| is_named).unwrap_or(text.rest);
    if path.is_empty() {
        return Err(bad(path, "is empty", "a path, stripe:?m=A&m=B, nil: or model:NAME"));
    }
    let scheme = path.split_once(':').map_or("", |(s, _)| s);
    if looks_like_scheme(scheme) && !Path::new(path).exists() {
        let all: Vec<_> = SOURCES.iter().map(|row| row.scheme).collect();
        return Err(bad(
            path,
            &format!("has a scheme that isn't one of {}", all.join(", ")),
            &format!("file:{path} if it is a file"),
        ));
    }
    Ok(FileUri(path.into()).into())
}

fn looks_like_scheme(scheme: &str) -> bool {
    let letters = scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
    scheme.len() > 1 && letters && scheme.starts_with(|c: char| c.is_ascii_alphabetic())
}

impl fmt::Display for FileUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.display())
    }
}

impl Source for FileUri {
    fn scheme(&self) -> &'static str {
        "file"
    }

    fn made_of(&self) -> MadeOf {
        MadeOf::File
    }

    fn path(&self) -> Option<&Path> {
        Some(&self.0)
    }

    fn examine(&self, examiner: &mut dyn Examiner, wanted: Option<u64>) -> Result<SourcePlan, Error> {
        Ok(examiner.file(&self.0, wanted)?.into())
    }

    fn open(&self, plan: &SourcePlan, open: &dyn Open) -> Result<Arc<dyn OpenSource>, Error> {
        open.file(plan.file.as_ref().expect("each plan of a file has it"))
    }

    fn document(&self, plan: &SourcePlan) -> serde_json::Value {
        let mut reported = serde_json::Map::from_iter([("kind".to_string(), "file".into())]);
        if let Ok(serde_json::Value::Object(fields)) = serde_json::to_value(&plan.file) {
            reported.extend(fields);
        }
        reported.into()
    }
}

impl From<FilePlan> for SourcePlan {
    fn from(file: FilePlan) -> SourcePlan {
        let name = file.path.file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned());
        let plan = SourcePlan::new(FileUri(file.path.clone()), file.path.display().to_string(), file.bytes);
        SourcePlan { content_name: name, file: Some(file), ..plan }
    }
}

/// A file, and what reads it.
#[derive(Clone, Debug)]
pub struct OpenFileSource {
    pub target: FileTarget,
    pub engine: Engine,
}

impl OpenSource for OpenFileSource {
    fn scheme(&self) -> &'static str {
        "file"
    }

    fn engine(&self) -> Option<&'static str> {
        Some(match self.engine {
            Engine::Uring | Engine::Auto => "uring",
            Engine::Pread => "pread",
            Engine::Inline => "inline",
            Engine::Map => "map",
        })
    }

    fn made_of(&self) -> MadeOf {
        MadeOf::File
    }

    fn queue(
        &self,
        _: u64,
        needs: QueueNeeds,
        reactor: &mut Reactor,
        open: OpenFile,
    ) -> Result<Box<dyn Queue>, Error> {
        open(&self.target, self.engine, needs, reactor)
    }

    fn descriptor(&self) -> Option<(&FileTarget, Engine)> {
        Some((&self.target, self.engine))
    }

    fn align(&self) -> u32 {
        self.target.align
    }

    fn boundary(&self, bytes: u64) -> Option<(&'static str, u64)> {
        (bytes != self.target.bytes).then_some(("‹file_bytes›", bytes))
    }
}

impl FileTarget {
    pub fn open(path: &Path, access: FileAccess) -> Result<FileTarget, Error> {
        FileTarget::opened(path, access, true)
    }

    /// Without a claim to a device that is written to: servers keep others off by a lock of their own, and hand their
    /// devices on to the next process, so that for a while both have them open.
    pub fn open_unclaimed(path: &Path, access: FileAccess) -> Result<FileTarget, Error> {
        FileTarget::opened(path, access, false)
    }

    /// Returns a target for a file yet to be made, by one without a name in `dir`, which is gone when it is closed.
    /// Where the file system has none such, its alignment isn't known, and is 1.
    pub(crate) fn yet_to_be_made(path: &Path, dir: &Path, access: FileAccess) -> Result<FileTarget, Error> {
        let nameless = |flags: i32| open_with(dir, true, libc::O_TMPFILE | flags);
        let (file, is_file) = match nameless(0) {
            Ok(file) => (file, true),
            Err(_) => (open_with(dir, false, 0).map_err(|e| cannot_open(dir, access, &e))?, false),
        };
        let in_memory = lives_in_memory(&file);
        let direct = access.direct && !in_memory;
        let (align, mem_align) = match direct && is_file {
            true => {
                let file = nameless(libc::O_DIRECT).map_err(|e| no_direct(path, access, &e))?;
                direct_alignment(FileAccess::reported_alignment(&file), false)
                    .ok_or_else(|| buffered(path))?
            }
            false => (1, 1),
        };
        Ok(FileTarget {
            path: path.to_path_buf(),
            file: Arc::new(file),
            bytes: 0,
            direct,
            in_memory,
            is_device: false,
            align,
            mem_align,
            write_flags: 0,
            priority: None,
            hint: Hint::None,
        })
    }

    fn opened(path: &Path, access: FileAccess, claims: bool) -> Result<FileTarget, Error> {
        let refused = |e: std::io::Error| cannot_open(path, access, &e);
        let probe = open_with(path, access.write, 0).map_err(refused)?;
        let kind = probe.metadata().map_err(refused)?;
        let is_device = kind.file_type().is_block_device();
        let endless = FileAccess::is_endless(&kind);
        if !is_device && !endless && !kind.file_type().is_file() {
            return Err(FileAccess::is_neither(path));
        }
        // A device's node lives in devtmpfs, its data don't.
        let in_memory = endless || (!is_device && lives_in_memory(&probe));
        let direct = access.direct && !in_memory;
        // Claimed for as long as it is open, so that nobody mounts what is being written.
        let claim = if claims && is_device && access.write { libc::O_EXCL } else { 0 };
        let file = if direct {
            patiently(|| open_with(path, access.write, libc::O_DIRECT | claim))
                .map_err(|e| no_direct(path, access, &e))?
        } else if claim != 0 {
            patiently(|| open_with(path, access.write, claim)).map_err(refused)?
        } else {
            probe
        };
        let bytes = match (endless, is_device) {
            (true, _) => i64::MAX as u64,
            (_, true) => device_bytes(&file)?,
            _ => kind.len(),
        };
        let (align, mem_align) = match direct {
            true => direct_alignment(FileAccess::reported_alignment(&file), is_device)
                .ok_or_else(|| buffered(path))?,
            false => (1, 1),
        };
        Ok(FileTarget {
            path: path.to_path_buf(),
            file: Arc::new(file),
            bytes,
            direct,
            in_memory,
            is_device: is_device || endless,
            align,
            mem_align,
            write_flags: 0,
            priority: None,
            hint: Hint::None,
        })
    }

    /// The same, with writes that are all there or not at all, and with so many I/Os of a priority.
    pub fn marked(self, atomic: bool, priority: Option<(u8, Priority)>) -> FileTarget {
        FileTarget { write_flags: if atomic { RWF_ATOMIC } else { 0 }, priority, ..self }
    }

    /// Tells the kernel how it is read, once for all who share it: as fio does, so that reads here and there bring no more than they
    /// ask for.
    pub(crate) fn hinted(self, hint: Hint) -> FileTarget {
        let advice = match hint {
            Hint::Random => rustix::fs::Advice::Random,
            Hint::Sequential => rustix::fs::Advice::Sequential,
            Hint::None | Hint::Auto => return FileTarget { hint: Hint::None, ..self },
        };
        if !self.direct && !self.in_memory {
            // Refusal costs only speed.
            let _ = rustix::fs::fadvise(&self.file, 0, None, advice);
        }
        FileTarget { hint, ..self }
    }

    pub fn geometry(&self, depth: u32) -> Geometry {
        Geometry {
            bytes: self.bytes,
            align: self.align,
            mem_align: self.mem_align,
            io_bytes_max: IO_BYTES_MAX,
            depth,
        }
    }

    /// The length to read with: O_DIRECT wants whole blocks even where the file ends inside one, and a slot has
    /// room for them if the I/O begins on a block. What a short read left over need not.
    fn padded(&self, offset: u64, len: u32) -> u32 {
        let at_end = offset + u64::from(len) == self.bytes;
        if at_end && offset % u64::from(self.align) == 0 {
            len.next_multiple_of(self.align)
        } else {
            len
        }
    }

    /// (major, minor) of the device that holds the data.
    pub fn device(&self) -> Option<(u32, u32)> {
        let meta = self.file.metadata().ok()?;
        let dev = if self.is_device { meta.rdev() } else { meta.dev() };
        Some((libc::major(dev), libc::minor(dev)))
    }

    /// The device below takes polled requests. One that doesn't say is believed to.
    pub fn polls(&self) -> bool {
        let Some((major, minor)) = self.device() else { return true };
        let disk = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
        let say = |dir: &str| std::fs::read_to_string(disk.join(dir).join("queue/io_poll")).ok();
        say(".").or_else(|| say("..")).is_none_or(|text| text.trim() != "0")
    }

    /// The engine that `auto` stands for: what is in memory is read where it lies, the rest asynchronously.
    pub fn choose(&self, asked: Engine, reads_only: bool, resident: bool, has_ring: bool) -> Engine {
        match asked {
            Engine::Auto if self.in_memory || (!self.direct && resident) => {
                if reads_only && map::SUPPORTED && !self.is_device {
                    Engine::Map
                } else {
                    Engine::Inline
                }
            }
            Engine::Auto if has_ring => Engine::Uring,
            Engine::Auto => Engine::Pread,
            other => other,
        }
    }

    pub fn queue(
        &self,
        engine: Engine,
        needs: QueueNeeds,
        reactor: &mut Reactor,
    ) -> Result<Box<dyn Queue>, Error> {
        let depth = needs.depth;
        Ok(match engine {
            Engine::Uring | Engine::Auto => Box::new(UringQueue::new(self.clone(), depth, reactor)?),
            Engine::Pread => Box::new(PoolQueue::new(self.clone(), depth, reactor)?),
            Engine::Inline => {
                Box::new(AtOnceQueue::new(inline::Inline::new(self.clone()), self.geometry(depth)))
            }
            Engine::Map => {
                let geometry = Geometry { align: 1, mem_align: 1, ..self.geometry(depth) };
                Box::new(AtOnceQueue::new(map::Map::new(self.clone(), needs.then_copied)?, geometry))
            }
        })
    }
}

fn open_with(path: &Path, write: bool, flags: i32) -> std::io::Result<File> {
    std::fs::OpenOptions::new()
        .read(true)
        .write(write)
        .custom_flags(flags | libc::O_CLOEXEC | libc::O_NONBLOCK)
        .open(path)
}

/// Tries again for a second where the device is claimed: a ring lets go of its files only some time after its end.
pub(crate) fn patiently(open: impl Fn() -> std::io::Result<File>) -> std::io::Result<File> {
    let end = Instant::now() + Duration::from_secs(1);
    loop {
        match open() {
            Err(e) if e.raw_os_error() == Some(libc::EBUSY) && Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(10));
            }
            done => return done,
        }
    }
}

fn no_direct(path: &Path, access: FileAccess, e: &std::io::Error) -> Error {
    if e.raw_os_error() != Some(libc::EINVAL) {
        return cannot_open(path, access, e);
    }
    without_direct(path, "the file system doesn't offer it")
}

/// O_DIRECT was taken, and would be ignored.
fn buffered(path: &Path) -> Error {
    let found = format!(
        "the file system takes the flag and reads this file through the page cache: {}",
        FileAccess::NO_DIRECT
    );
    without_direct(path, &found)
}

fn without_direct(path: &Path, found: &str) -> Error {
    Error::machine(
        format!("O_DIRECT on {}", path.display()),
        found,
        "--buffered (this uses the page cache, and the record says so)",
    )
}

fn cannot_open(path: &Path, access: FileAccess, e: &std::io::Error) -> Error {
    let asked = format!("open {} to {}", path.display(), if access.write { "write" } else { "read" });
    match e.raw_os_error() {
        Some(libc::ENOENT) => Error::request(
            asked,
            "there is no such file",
            "a path that exists, or ‹create› ‹file_bytes› 1g to create it",
        ),
        Some(libc::EACCES | libc::EPERM) => Error::request(
            asked,
            "permission denied",
            format!("ls -ld {}; sudo, or a directory that you can write to", path.display()),
        ),
        Some(libc::EBUSY) => Error::request(
            asked,
            "the kernel keeps it for a mount, a volume or another program",
            "an unused device, or a file on it",
        ),
        Some(libc::EROFS) => Error::request(
            asked,
            "the file system is mounted read-only",
            "a directory on a writable file system",
        ),
        Some(libc::EMFILE | libc::ENFILE) => {
            Error::machine(asked, "too many open files", "ulimit -n 1048576, or fewer ‹files›")
        }
        _ => Error::run(asked, e.to_string(), "forebay doctor"),
    }
}

fn lives_in_memory(file: &File) -> bool {
    rustix::fs::fstatfs(file).is_ok_and(|stat| matches!(stat.f_type, TMPFS_MAGIC | RAMFS_MAGIC))
}

fn device_bytes(file: &File) -> Result<u64, Error> {
    use std::io::{Seek, SeekFrom};
    let mut handle: &File = file;
    handle.seek(SeekFrom::End(0)).map_err(|e| Error::run("the device's size", e.to_string(), "lsblk -b"))
}

impl FileAccess {
    /// The meaning of an offset alignment of 0 in statx's answer.
    pub const NO_DIRECT: &str =
        "statx gives it no direct I/O (ext4 with data=journal, inline data, encryption, verity)";
}

/// (offset, memory) alignment for O_DIRECT: as statx told, or else the usual block. None: the file has no direct I/O.
fn direct_alignment(reported: Option<(u32, u32)>, is_device: bool) -> Option<(u32, u32)> {
    match reported {
        Some((0, _)) => None,
        Some((offset, memory)) => Some((offset, memory.max(1))),
        None if is_device => Some((512, 512)),
        None => Some((4096, 4096)),
    }
}

impl FileAccess {
    /// (offset, memory) alignment that statx tells, 0 for a file without direct I/O; None where the kernel doesn't say.
    pub fn reported_alignment(file: &impl AsFd) -> Option<(u32, u32)> {
        let stat = rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok();
        let reported = stat.filter(|s| s.stx_mask & StatxFlags::DIOALIGN.bits() != 0)?;
        Some((reported.stx_dio_offset_align, reported.stx_dio_mem_align))
    }

    /// The error for an I/O whose offset or length O_DIRECT can't take.
    pub fn misaligned(path: &Path, what: &str, value: u64, align: u32) -> Error {
        Error::request(
            format!("{what} {} on {}", format_bytes(value), path.display()),
            format!("O_DIRECT needs a multiple of {align} bytes here"),
            format!("a multiple of {}, or --buffered", format_bytes(u64::from(align))),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise: FLT-31
    #[test]
    fn an_offset_alignment_of_0_means_no_direct_io() {
        assert_eq!(direct_alignment(Some((0, 0)), false), None);
        assert_eq!(direct_alignment(Some((0, 4)), true), None);
        assert_eq!(direct_alignment(Some((512, 4)), false), Some((512, 4)));
        assert_eq!(direct_alignment(Some((4096, 0)), false), Some((4096, 1)), "any memory will do");
        // Kernels before 6.1, and file systems that don't say.
        assert_eq!(direct_alignment(None, false), Some((4096, 4096)));
        assert_eq!(direct_alignment(None, true), Some((512, 512)));
        let error = buffered(Path::new("f"));
        assert_eq!(error.kind, forebay_model::Kind::Machine);
        assert!(error.found.contains("statx") && error.next.contains("--buffered"), "{error}");
    }
}
