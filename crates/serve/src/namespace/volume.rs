//! Volume of a namespace: a source, opened once and shared by all threads.

use super::claim::claim;
use super::config::{self, Caching, Namespace};
use super::health::{Busy, Thermometer};
use super::stats::{Counts, NamespaceStats};
use forebay_io::{Queue, Reactor};
use forebay_model::device::DriveModel;
use forebay_model::job::Engine;
use forebay_model::random::derive;
use forebay_model::Error;
use forebay_nvme::controller::subsystem as nvme;
use forebay_nvme::controller::Health;
use forebay_storage::{
    mounted_as, Examiner, FaultPlan, FaultQueue, FileAccess, FilePlan, FileTarget, FoundSource,
    NvmeConnection, OpenFileSource, OpenPlan, OpenSource, PlanAction, QueueNeeds, Route, SharedDrive, Source,
    SourcePlan, SourceWorkers, Target, Uri,
};
use rustix::fs::{flock, FlockOperation};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// Threads of a server at most.
pub(crate) const THREADS_MAX: usize = 256;
/// I/Os that a thread has in flight on one namespace.
pub(crate) const NAMESPACE_QUEUE_DEPTH: u32 = 256;

/// Content of what is read: zeros, or anything else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Every byte of a completed read was written by the source.
    Whole,
    /// Some parts have none: slots are cleared before they are read into.
    Partial,
    /// No content at all: reads are answered with zeros.
    None,
}

#[derive(Debug)]
pub struct Volume {
    pub nsid: u32,
    pub ana_group: u32,
    pub source: String,
    pub target: Target,
    pub block_bytes: u32,
    pub blocks: u64,
    pub writable: bool,
    pub content: Content,
    /// Bytes that were completed as written may still be lost by a power cut, until a Flush.
    pub write_cache: bool,
    pub uuid: [u8; 16],
    faults: Option<FaultPlan>,
    /// Descriptors that hold the locks on its files, where another process took them: that of its own files doesn't.
    locks: Vec<OwnedFd>,
    /// The locks are another process's.
    left: AtomicBool,
    /// Counters of threads that no longer serve it.
    past: Mutex<NamespaceStats>,
    /// Counters of threads that serve it, each for itself.
    live: Box<[Live]>,
    pub busy: Busy,
    /// Temperature of the drives below it.
    pub thermometer: Thermometer,
    #[cfg(test)]
    pub recorded: super::recorded::Recorded,
}

impl Volume {
    /// Opens a source to be served as namespace `nsid` of `nqn`, by so many threads.
    ///
    /// # Errors
    /// `Request`: no such source, one that can't be written to, or that is in use. `Machine`: no O_DIRECT.
    pub fn open(nqn: &str, nsid: u32, given: &config::Namespace, threads: u32) -> Result<Volume, Error> {
        let volume = Volume::unclaimed(nqn, nsid, given, threads)?;
        volume.claim()?;
        Ok(volume)
    }

    /// Locks its files if hosts may write to them. Does no harm a second time.
    pub fn claim(&self) -> Result<(), Error> {
        if !self.writable {
            return Ok(());
        }
        self.target.files().into_iter().try_for_each(|(f, _)| claim(&f.file, &f.path))
    }

    /// The same for a frontend with threads of its own: what is remote is connected to once more, so that these have the
    /// fabric's queues to themselves; everything else is shared.
    ///
    /// # Errors
    /// Of `open`.
    pub fn beside(
        self: &Arc<Volume>,
        nqn: &str,
        given: &config::Namespace,
        threads: u32,
    ) -> Result<Arc<Volume>, Error> {
        if !self.target.connections().any(NvmeConnection::is_shared) {
            return Ok(self.clone());
        }
        // Files below that are written to are claimed by the one that there is.
        let volume = Volume::unclaimed(nqn, self.nsid, given, threads)?;
        volume.target.keep_direct();
        Ok(Arc::new(volume))
    }

    /// As `open`, with no lock on its files yet.
    pub(crate) fn unclaimed(
        nqn: &str,
        nsid: u32,
        given: &config::Namespace,
        threads: u32,
    ) -> Result<Volume, Error> {
        let uri = Uri::parse(&given.source)?;
        let faults = given.faults.as_deref().map(FaultPlan::parse).transpose()?;
        let Namespace { writable, cache, block_bytes, .. } = *given;
        let mut opener = Opener { writable, cache, block_bytes, threads, files: BTreeMap::new() };
        let target = opener.open(&uri)?;
        let block_bytes = opener.block_bytes(&target)?;
        let blocks = target.bytes / u64::from(block_bytes);
        if blocks == 0 {
            let found = format!("it has {} bytes, less than one block of {block_bytes}", target.bytes);
            return Err(Error::request(&given.source, found, "a larger file (truncate -s 1g FILE)"));
        }
        let uuid = match &given.uuid {
            Some(text) => config::parse_uuid(text)?,
            None => made_up_uuid(nqn, nsid),
        };
        Ok(Volume {
            ana_group: given.ana_group.unwrap_or(1),
            nsid,
            source: uri.to_string(),
            block_bytes,
            blocks,
            writable: given.writable,
            content: content_of(&target),
            write_cache: given.writable && content_of(&target) != Content::None,
            uuid,
            faults,
            locks: Vec::new(),
            left: AtomicBool::new(false),
            past: Mutex::default(),
            live: (0..THREADS_MAX).map(|_| Live::default()).collect(),
            busy: Busy::default(),
            thermometer: Thermometer::new(
                target.files().into_iter().map(|(file, _)| file.path.clone()).collect(),
            ),
            #[cfg(test)]
            recorded: super::recorded::Recorded::default(),
            target,
        })
    }

    /// As `open`, for a frontend whose payload is memory of others: no source lets it lie elsewhere on its way, where it has
    /// the choice.
    ///
    /// # Errors
    /// Of `open`.
    pub(crate) fn open_direct(
        nqn: &str,
        nsid: u32,
        given: &config::Namespace,
        threads: u32,
    ) -> Result<Volume, Error> {
        Volume::open_direct_locked(nqn, nsid, given, threads, None)
    }

    /// As `open_direct`, of a volume that another process has open, too. `locks`: what holds the locks on its files, which
    /// are that one's until `own`.
    ///
    /// # Errors
    /// Of `open`.
    pub(crate) fn open_direct_locked(
        nqn: &str,
        nsid: u32,
        given: &config::Namespace,
        threads: u32,
        locks: Option<Vec<OwnedFd>>,
    ) -> Result<Volume, Error> {
        let volume = match locks {
            None => Volume::open(nqn, nsid, given, threads)?,
            Some(locks) => {
                let mut volume = Volume::unclaimed(nqn, nsid, given, threads)?;
                (volume.locks, volume.left) = (locks, AtomicBool::new(true));
                volume
            }
        };
        volume.target.keep_direct();
        Ok(volume)
    }

    /// Returns the descriptors that hold the locks on its files, for another process that is to keep them.
    pub fn locks(&self) -> Vec<BorrowedFd<'_>> {
        match (self.writable, self.locks.is_empty()) {
            (false, _) => Vec::new(),
            (true, false) => self.locks.iter().map(AsFd::as_fd).collect(),
            (true, true) => self.target.files().into_iter().map(|(file, _)| file.file.as_fd()).collect(),
        }
    }

    /// Its locks, which came from another process, are this one's.
    pub fn own(&self) {
        self.left.store(false, Ordering::Relaxed);
    }

    /// Its locks stay with whoever was given them.
    pub fn leave(&self) {
        self.left.store(true, Ordering::Relaxed);
    }

    pub fn past(&self) -> MutexGuard<'_, NamespaceStats> {
        self.past.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    pub fn live(&self, thread: usize) -> &Live {
        &self.live[thread]
    }

    /// By all threads, since the server began.
    pub fn counts(&self) -> Counts {
        let mut all = self.past().counts;
        self.live.iter().for_each(|live| all.add(&live.get()));
        all
    }

    /// Its description, and all that threads counted that no longer serve it.
    pub fn stats(&self) -> NamespaceStats {
        NamespaceStats {
            nsid: self.nsid,
            source: self.source.clone(),
            bytes: self.bytes(),
            block_bytes: self.block_bytes,
            writable: self.writable,
            fabric: self.target.reports(),
            ..self.past().clone()
        }
    }

    pub fn bytes(&self) -> u64 {
        self.blocks * u64::from(self.block_bytes)
    }

    /// The source's queue of one thread. `io_bytes_max`: longest transfer of a command.
    pub fn queue(
        &self,
        io_bytes_max: u32,
        thread: u32,
        reactor: &mut Reactor,
    ) -> Result<Box<dyn Queue>, Error> {
        let needs =
            QueueNeeds::new(NAMESPACE_QUEUE_DEPTH, io_bytes_max.into()).then_copied().with_worker(thread);
        let queue = self.target.queue(needs, reactor)?;
        Ok(match self.faults {
            Some(plan) => Box::new(FaultQueue::new(queue, plan, thread)),
            None => queue,
        })
    }

    pub(crate) fn as_namespace(&self) -> nvme::Namespace {
        let in_blocks = |bytes: u32| (bytes / self.block_bytes).min(u32::from(u16::MAX)) as u16;
        nvme::Namespace {
            block_bytes: self.block_bytes,
            blocks: self.blocks,
            read_only: !self.writable,
            volatile_write_cache: self.write_cache,
            deallocate: self.write_cache,
            uuid: Some(self.uuid),
            nguid: None,
            eui64: None,
            ana_group: self.ana_group,
            optimal: nvme::Optimal {
                write_granularity: in_blocks(4096),
                deallocate_granularity: in_blocks(4096),
                ..nvme::Optimal::default()
            },
        }
    }
}

/// Counts that one thread writes and all may read, apart from those of other threads.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct Live([AtomicU64; 8]);

impl Live {
    pub fn set(&self, c: &Counts) {
        let [reads, writes] = [(c.reads, c.read_bytes), (c.writes, c.write_bytes)];
        let all = [reads.0, reads.1, writes.0, writes.1, c.flushes, c.others, c.errors, c.media_errors];
        self.0.iter().zip(all).for_each(|(to, from)| to.store(from, Ordering::Relaxed));
    }

    pub fn get(&self) -> Counts {
        let [reads, read_bytes, writes, write_bytes, flushes, others, errors, media_errors] =
            std::array::from_fn(|i| self.0[i].load(Ordering::Relaxed));
        Counts { reads, read_bytes, writes, write_bytes, flushes, others, errors, media_errors }
    }
}

/// A ring keeps the files that it was told of, and with them their locks, until it is closed itself.
impl Drop for Volume {
    fn drop(&mut self) {
        if self.left.load(Ordering::Relaxed) {
            return;
        }
        for file in self.locks() {
            let _ = flock(file, FlockOperation::Unlock);
        }
    }
}

struct Opener {
    writable: bool,
    cache: Caching,
    block_bytes: Option<u32>,
    threads: u32,
    /// Files that were looked at, which stay open: their size is what hosts are told.
    files: BTreeMap<PathBuf, FileTarget>,
}

impl Examiner for Opener {
    fn file(&mut self, path: &Path, _wanted: Option<u64>) -> Result<FilePlan, Error> {
        let file = self.open_file(path)?;
        let plan = FilePlan {
            path: path.into(),
            action: PlanAction::Use,
            is_new: false,
            bytes: file.bytes,
            is_device: file.is_device,
            seed: None,
            ours: false,
        };
        self.files.insert(path.into(), file);
        Ok(plan)
    }

    fn may_connect(&mut self, _source: &dyn Source) -> Result<SourceWorkers, Error> {
        Ok(SourceWorkers { now: self.threads, most: self.threads })
    }

    fn part_of(
        &mut self,
        source: &dyn Source,
        found: FoundSource,
        _wanted: Option<u64>,
    ) -> Result<u64, Error> {
        if self.writable && found.read_only {
            let found = "the controller says that the namespace is write protected";
            return Err(Error::request(format!("serve {source} to write"), found, "writable = false"));
        }
        Ok(found.bytes)
    }

    fn model(&mut self, _drive: &DriveModel) -> Result<(), Error> {
        Ok(())
    }
}

impl OpenPlan for Opener {
    fn file(&self, file: &FilePlan) -> Result<Arc<dyn OpenSource>, Error> {
        let target = self.files[&file.path].clone();
        let engine = target.choose(Engine::Auto, !self.writable, false, true);
        Ok(Arc::new(OpenFileSource { target, engine }))
    }

    /// Hosts live in real time, whatever the URI says.
    fn timed(&self, drive: &DriveModel) -> SharedDrive {
        SharedDrive::new(drive, 7, false)
    }

    fn target(&self, plan: &SourcePlan) -> Result<Target, Error> {
        let (label, source) = (plan.label.clone(), plan.open(self)?);
        Ok(Target { label, content_id: 0, bytes: plan.bytes, source, route: Route::default() })
    }
}

impl Opener {
    fn open(&mut self, uri: &Uri) -> Result<Target, Error> {
        let plan = uri.examine(self, None)?;
        Ok(Target { label: uri.to_string(), ..self.target(&plan)? })
    }

    fn open_file(&self, path: &Path) -> Result<FileTarget, Error> {
        if path.is_dir() {
            let next = format!("a file below {}, or a stripe: over several", path.display());
            return Err(Error::request(path.display().to_string(), "is a directory", next));
        }
        self.is_there(path)?;
        let access = FileAccess { write: self.writable, direct: self.cache != Caching::Allow };
        let file = match FileTarget::open_unclaimed(path, access) {
            Ok(file) if self.cache == Caching::Auto && !self.suits(&file) => {
                FileTarget::open_unclaimed(path, FileAccess { direct: false, ..access })
            }
            Err(_) if self.cache == Caching::Auto => {
                FileTarget::open_unclaimed(path, FileAccess { direct: false, ..access })
            }
            other => other,
        }?;
        if self.writable && file.is_device {
            if let Some(why) = mounted_as(path) {
                let next = "writable = false, or a device that nothing uses";
                return Err(Error::request(format!("serve {} to write", path.display()), why, next));
            }
        }
        Ok(file)
    }

    /// Checks that there is such a file, and that it has a size.
    fn is_there(&self, path: &Path) -> Result<(), Error> {
        match std::fs::metadata(path) {
            Ok(found) if FileAccess::is_endless(&found) => {
                let found = "a character device has no size to serve";
                let next = "nil:?size=1g, which reads as zeros and takes writes";
                Err(Error::request(path.display().to_string(), found, next))
            }
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                let asked =
                    format!("open {} to {}", path.display(), if self.writable { "write" } else { "read" });
                let next = format!("a path that exists, or truncate -s 1g {}", path.display());
                Err(Error::request(asked, "there is no such file", next))
            }
            _ => Ok(()),
        }
    }

    /// O_DIRECT takes every block that a host may ask for.
    fn suits(&self, file: &FileTarget) -> bool {
        file.align <= self.block_bytes.unwrap_or(4096) && file.mem_align <= 4096
    }

    /// Returns the requested block size, or the least that the source takes.
    fn block_bytes(&self, target: &Target) -> Result<u32, Error> {
        let align = target.align();
        let block_bytes = self.block_bytes.unwrap_or(if align > 512 { 4096 } else { 512 });
        if align > block_bytes {
            return Err(Error::request(
                format!("block_bytes = {block_bytes} on {}", target.label),
                format!("O_DIRECT needs a multiple of {align} bytes here"),
                "block_bytes = 4096, or cache = \"allow\"",
            ));
        }
        Ok(block_bytes)
    }
}

fn content_of(target: &Target) -> Content {
    match (target.moves_bytes(), target.lacks_bytes()) {
        (true, false) => Content::Whole,
        (true, true) => Content::Partial,
        (false, _) => Content::None,
    }
}

/// The same at each start: a version-8 UUID (RFC 9562) of a name and a number.
pub(crate) fn made_up_uuid(name: &str, number: u32) -> [u8; 16] {
    let seed = name.bytes().fold(name.len() as u64, |seed, byte| derive(seed, byte.into()));
    let mut uuid = [0; 16];
    uuid[..8].copy_from_slice(&derive(seed, u64::from(number) << 1).to_be_bytes());
    uuid[8..].copy_from_slice(&derive(seed, u64::from(number) << 1 | 1).to_be_bytes());
    uuid[6] = uuid[6] & 0x0f | 0x80;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    uuid
}

/// Since each was opened. A controller is as busy as its busiest namespace, and as warm as its warmest drive.
pub(crate) fn health<'a>(volumes: impl Iterator<Item = &'a Volume>) -> Health {
    let (mut total, mut minutes, mut kelvin) = (Counts::default(), 0, 0);
    for volume in volumes {
        total.add(&volume.counts());
        minutes = minutes.max(volume.busy.minutes());
        kelvin = kelvin.max(volume.thermometer.kelvin());
    }
    Health { busy_minutes: minutes.into(), temperature: kelvin, ..total.health() }
}

#[cfg(test)]
mod tests;
