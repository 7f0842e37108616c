//! Makes what a plan says is missing, opens what it names, and refuses what
//! can't work, before a single byte is measured.

use super::fleet;
use super::manifest::{Content, Held};
use super::plan::{parent_of, Manifests};
use super::{Observer, Phase, Progress};
use crate::identity::{taken, Identity};
use crate::meter::cache;
use crate::path;
use crate::path::auto::Way;
use crate::reactor::{Reactor, RingOptions};
use crate::source::file::{misaligned, FileAccess, FileTarget};
use crate::source::{Action, Backing, Draft, FileBacking, FilePlan, Open, Route, SharedDrive, Target};
use forebay_model::content;
use forebay_model::device::DriveModel;
use forebay_model::job::{Cache, Engine, JobSpec, Op, PathKind, Sync};
use forebay_model::units::format_bytes;
use forebay_model::Error;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What is left free on a file system, so that making files never fills it to the brim.
pub(crate) const KEEP_FREE: u64 = 64 << 20;
const FILL_WORKERS: u32 = 4;
const FILL_IO_BYTES: u64 = 1 << 20;

type Locked = BTreeMap<PathBuf, Held>;
/// Files of ours that this job makes or writes: nothing else is opened by their names.
type Ours = BTreeMap<PathBuf, Identity>;

/// Open targets, and the locks on their directories for as long as they are used.
pub struct Prepared {
    pub targets: Vec<Target>,
    pub content_seeds: Vec<u64>,
    held: Locked,
    /// Files of ours that the job writes.
    written: Vec<Written>,
}

struct Written {
    path: PathBuf,
    made: Identity,
    /// The name that its content carries.
    content: String,
    bytes: u64,
    /// Seed of what it held before, where that was known.
    seed: Option<u64>,
}

pub fn prepare(
    job: &JobSpec,
    drafts: &[Draft],
    manifests: Manifests,
    observer: &mut dyn Observer,
) -> Result<Prepared, Error> {
    let files = drafts.iter().map(|d| d.files().len()).sum::<usize>() as u64;
    allow_descriptors(files.saturating_add(u64::from(job.workers) * 8));
    let mut held = manifests.0;
    match make_and_open(job, drafts, &mut held, observer) {
        Ok((targets, content_seeds, written)) => Ok(Prepared { targets, content_seeds, held, written }),
        Err(e) => {
            held.into_values().for_each(Held::remove_if_empty);
            Err(e)
        }
    }
}

type Opened = (Vec<Target>, Vec<u64>, Vec<Written>);

fn make_and_open(
    job: &JobSpec,
    drafts: &[Draft],
    held: &mut Locked,
    observer: &mut dyn Observer,
) -> Result<Opened, Error> {
    know_what_to_verify(job, drafts, held)?;
    lock_what_changes(job, drafts, held)?;
    let missing: Vec<&FilePlan> =
        drafts.iter().flat_map(Draft::files).filter(|f| f.action == Action::Make).collect();
    check_room(&missing)?;
    let mut ours = still_ours(job, drafts, held)?;
    let mut undo = Undo::default();
    if let Err(e) = make_all(job, drafts, &missing, held, observer, &mut ours, &mut undo) {
        undo.run(held);
        return Err(e);
    }
    let opener = Opener { job, write: job.writes(), ring: has_ring(job)?, ours: &ours };
    let targets = drafts.iter().map(|d| opener.aligned(d)).collect::<Result<Vec<_>, _>>()?;
    let written = note_written(job, drafts, held, &ours)?;
    let known_seed = |d: &Draft| d.files().first().and_then(|f| f.seed).unwrap_or(job.seed);
    let content_seeds = drafts.iter().map(|d| if job.writes() { job.seed } else { known_seed(d) }).collect();
    Ok((targets, content_seeds, written))
}

impl Prepared {
    /// After the last I/O: says what the files hold now. They hold seeded content where they did before, or
    /// where each of their blocks was written.
    pub fn close(mut self, job: &JobSpec, is_whole: bool) -> Result<(), Error> {
        let in_order = !job.op.is_random() || job.no_repeat;
        let covered = is_whole
            && in_order
            && job.passes.is_some()
            && !job.reads()
            && job.start_bytes == 0
            && job.duration_s.is_none();
        // Some file systems settle a file's times when it is closed.
        self.targets.clear();
        for w in &self.written {
            let Some(held) = self.held.get_mut(&parent_of(&w.path)) else { continue };
            let len = std::fs::metadata(&w.path).map_or(0, |m| m.len());
            let kept = (covered && len == w.bytes) || w.seed == Some(job.seed);
            let seed = ((job.verify || job.refill) && kept).then_some(job.seed);
            // What was measured is the file that was opened, whatever has its name by now.
            let still_there = held.leave(&w.path, w.made, &Content { seed, name: &w.content }).is_ok();
            if still_there && seed.is_none() && (job.verify || job.refill) {
                held.note_part(&w.path, job.seed);
            }
        }
        let saved =
            if self.written.is_empty() { Ok(()) } else { self.held.values_mut().try_for_each(Held::save) };
        self.held.into_values().for_each(Held::remove_if_empty);
        saved
    }
}

/// A read verifies against what was written. Where that is known to be something else, each block would fail.
fn know_what_to_verify(job: &JobSpec, drafts: &[Draft], held: &Locked) -> Result<(), Error> {
    if !job.verify || job.writes() {
        return Ok(());
    }
    let unknown = |f: &&FilePlan| {
        let entry = held.get(&parent_of(&f.path)).and_then(|h| h.entry(&f.path));
        f.action == Action::Use && entry.is_some_and(|e| e.seed.is_none() && e.partly.is_none())
    };
    match drafts.iter().flat_map(Draft::files).find(unknown) {
        Some(file) => Err(Error::request(
            format!("--verify of {}", file.path.display()),
            "it was written without --verify, so that nobody knows what it should hold",
            "write it first: --op write --verify",
        )),
        None => Ok(()),
    }
}

/// Writers hold their directories alone; readers keep the shared lock of the plan.
fn lock_what_changes(job: &JobSpec, drafts: &[Draft], held: &mut Locked) -> Result<(), Error> {
    let changes = |f: &&FilePlan| !f.is_device && (job.writes() || f.action == Action::Make);
    let dirs: BTreeSet<PathBuf> =
        drafts.iter().flat_map(Draft::files).filter(changes).map(|f| parent_of(&f.path)).collect();
    for dir in dirs {
        held.remove(&dir);
        held.insert(dir.clone(), Held::alone(&dir)?);
    }
    Ok(())
}

/// The files of ours that the job changes, looked at again now that nobody else's run may.
fn still_ours(job: &JobSpec, drafts: &[Draft], held: &Locked) -> Result<Ours, Error> {
    let changes = |f: &&FilePlan| f.ours && !f.is_new && (job.writes() || f.action == Action::Make);
    let known = |f: &FilePlan| {
        let found = held.get(&parent_of(&f.path)).and_then(|h| h.identity(&f.path));
        Ok((f.path.clone(), found.ok_or_else(|| taken(&f.path))?))
    };
    drafts.iter().flat_map(Draft::files).filter(changes).map(known).collect()
}

/// Raises the process's soft limit on open files towards its hard one, as far as the job needs: programs that
/// call select(2) elsewhere in the process want it no higher. What isn't enough shows when a file is opened.
pub(crate) fn allow_descriptors(more: u64) {
    use rustix::process::{getrlimit, setrlimit, Resource, Rlimit};
    // For everything else that this process has open.
    const SPARE: u64 = 512;
    let now = getrlimit(Resource::Nofile);
    let wanted = more.saturating_add(SPARE).min(now.maximum.unwrap_or(u64::MAX));
    if now.current.is_some_and(|c| c < wanted) {
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum: now.maximum });
    }
}

fn check_room(missing: &[&FilePlan]) -> Result<(), Error> {
    let mut wanted: BTreeMap<u64, (u64, PathBuf)> = BTreeMap::new();
    for file in missing {
        let dir = parent_of(&file.path);
        let have = std::fs::metadata(&file.path).map_or(0, |m| m.len());
        let device = std::fs::metadata(&dir).map_or(0, |m| m.dev());
        let entry = wanted.entry(device).or_insert((0, dir));
        entry.0 = entry.0.saturating_add(file.bytes.saturating_sub(have));
    }
    for (bytes, dir) in wanted.values() {
        let free = rustix::fs::statvfs(dir).map_or(u64::MAX, |s| s.f_bavail.saturating_mul(s.f_frsize));
        if bytes.saturating_add(KEEP_FREE) > free {
            return Err(Error::machine(
                format!("make {} of files in {}", format_bytes(*bytes), dir.display()),
                format!("{} MiB are free there", free >> 20),
                "a smaller --file-size, fewer --files, or another directory",
            ));
        }
    }
    Ok(())
}

/// Files to take away again if making them doesn't end well.
#[derive(Default)]
struct Undo(Vec<(PathBuf, Identity)>);

impl Undo {
    fn run(self, held: &mut Locked) {
        for (path, made) in self.0 {
            let _ = made.remove(&path);
            if let Some(h) = held.get_mut(&parent_of(&path)) {
                h.remove(&path);
            }
        }
        for h in held.values_mut() {
            let _ = h.save();
        }
    }
}

fn make_all(
    job: &JobSpec,
    drafts: &[Draft],
    missing: &[&FilePlan],
    held: &mut Locked,
    observer: &mut dyn Observer,
    ours: &mut Ours,
    undo: &mut Undo,
) -> Result<(), Error> {
    for file in missing {
        let dir = held.get_mut(&parent_of(&file.path)).expect("its directory was locked");
        let made = allocate(file, ours.get(&file.path).copied(), undo)?;
        if file.ours {
            dir.begin(&file.path, made, file.bytes, "");
            ours.insert(file.path.clone(), made);
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    held.values_mut().try_for_each(Held::save)?;
    let to_fill: Vec<&Draft> = drafts
        .iter()
        .filter(|d| job.reads() && d.files().iter().any(|f| f.action == Action::Make && f.ours))
        .collect();
    if to_fill.is_empty() {
        return Ok(());
    }
    fill(job, &to_fill, ours, observer)?;
    for draft in to_fill {
        for file in draft.files().into_iter().filter(|f| f.ours) {
            let dir = held.get_mut(&parent_of(&file.path)).expect("its directory was locked");
            let content = Content { seed: Some(job.seed), name: &draft.content_name() };
            dir.leave(&file.path, ours[&file.path], &content)?;
        }
    }
    held.values_mut().try_for_each(Held::save)
}

/// Creates the file (never opening what somebody else just made) and reserves its blocks. `ours`: the file that
/// is to be there already.
fn allocate(file: &FilePlan, ours: Option<Identity>, undo: &mut Undo) -> Result<Identity, Error> {
    let asked = format!("make {} of {} bytes", file.path.display(), file.bytes);
    let opened = std::fs::OpenOptions::new().write(true).create_new(file.is_new).open(&file.path);
    let handle = opened.map_err(|e| match e.raw_os_error() {
        Some(libc::EROFS) => Error::request(
            &asked,
            "the file system is mounted read-only",
            "a directory on a writable file system",
        ),
        Some(libc::EACCES | libc::EPERM) => {
            Error::request(&asked, "permission denied", "a directory of yours")
        }
        Some(libc::EEXIST) => Error::run(
            &asked,
            "somebody else made it meanwhile, or it is a link that leads nowhere",
            format!("ls -l {}; another name", file.path.display()),
        ),
        _ => Error::run(&asked, e.to_string(), "df -h; df -i"),
    })?;
    let made =
        Identity::of(&handle.metadata().map_err(|e| Error::run(&asked, e.to_string(), "df -h; df -i"))?);
    if file.is_new {
        undo.0.push((file.path.clone(), made));
    }
    if ours.is_some_and(|ours| ours != made) {
        return Err(taken(&file.path));
    }
    // SAFETY: fallocate on a descriptor that is open for writing.
    if unsafe { libc::fallocate(handle.as_raw_fd(), 0, 0, file.bytes as i64) } == 0 {
        return Ok(made);
    }
    let e = std::io::Error::last_os_error();
    match e.raw_os_error() {
        Some(libc::EOPNOTSUPP) => {
            handle.set_len(file.bytes).map(|()| made).map_err(|e| Error::run(asked, e.to_string(), "df -h"))
        }
        Some(libc::ENOSPC | libc::EDQUOT) => Err(Error::machine(
            asked,
            "the file system is full",
            "a smaller --file-size, or another directory",
        )),
        Some(libc::EFBIG) => Err(Error::request(
            asked,
            "the file system has no room for a file this large",
            "a smaller --file-size",
        )),
        _ => Err(Error::run(asked, e.to_string(), "df -h")),
    }
}

/// Writes seeded content through the same queues that the job will read with.
fn fill(job: &JobSpec, drafts: &[&Draft], ours: &Ours, observer: &mut dyn Observer) -> Result<(), Error> {
    let write = JobSpec {
        sources: vec!["(files to make)".into()],
        path: PathKind::Host,
        op: Op::Write,
        io_bytes: FILL_IO_BYTES,
        workers: FILL_WORKERS.min(drafts.len() as u32),
        depth: 8,
        passes: Some(1),
        seed: job.seed,
        verify: true,
        sync: Sync::End,
        timeout_s: job.timeout_s.max(30.0),
        interval_ms: 250,
        ..JobSpec::default()
    };
    let ring = has_ring(&write)?;
    let opener = Opener { job: &write, write: true, ring, ours };
    let targets = drafts.iter().map(|d| open_for_fill(d, &opener)).collect::<Result<Vec<_>, _>>()?;
    let total = targets.iter().map(|t| t.bytes).sum();
    let mut filling = Filling { observer, total, done: 0 };
    let ran =
        fleet::run_once(&write, &targets, &vec![job.seed; targets.len()], Arc::default(), &mut filling)?;
    let errors = ran.errors();
    if let Some(e) = ran.broken {
        return Err(e);
    }
    if ran.interrupted {
        return Err(Error::run(
            "making the files",
            "interrupted; they were taken away again",
            "the same command again",
        ));
    }
    if errors.failed + errors.timed_out > 0 {
        return Err(Error::run("making the files", errors.examples.join("; "), "df -h; dmesg | tail"));
    }
    Ok(())
}

/// O_DIRECT where it can be had; a tail that isn't a whole block goes through the page cache.
fn open_for_fill(draft: &Draft, opener: &Opener) -> Result<Target, Error> {
    let direct = opener.target(draft).ok().filter(|t| t.bytes % u64::from(t.align()) == 0);
    match direct {
        Some(target) => Ok(target),
        None => {
            Opener { job: &JobSpec { cache: Cache::Allow, ..opener.job.clone() }, ..*opener }.target(draft)
        }
    }
}

struct Filling<'a> {
    observer: &'a mut dyn Observer,
    total: u64,
    done: u64,
}

impl Observer for Filling<'_> {
    fn progress(&mut self, p: &Progress) {
        self.done += p.interval_bytes;
        let share = 100.0 * self.done as f64 / self.total.max(1) as f64;
        let message = format!("making files: {share:.0} % of {} MiB", self.total >> 20);
        self.observer.progress(&Progress { phase: Phase::Prepare, message: Some(message), ..p.clone() });
    }

    fn stop(&mut self) -> bool {
        self.observer.stop()
    }
}

/// Files of ours that are about to hold something else: until the run has ended well nobody knows what.
fn note_written(
    job: &JobSpec,
    drafts: &[Draft],
    held: &mut Locked,
    ours: &Ours,
) -> Result<Vec<Written>, Error> {
    let mut written = Vec::new();
    if !job.writes() {
        return Ok(written);
    }
    for draft in drafts {
        for file in draft.files().into_iter().filter(|f| !f.is_device && f.ours) {
            let dir = held.get_mut(&parent_of(&file.path)).expect("its directory was locked");
            let (path, made, content) = (file.path.clone(), ours[&file.path], draft.content_name());
            dir.begin(&path, made, file.bytes, &content);
            written.push(Written { path, made, content, bytes: file.bytes, seed: file.seed });
        }
    }
    if !written.is_empty() {
        held.values_mut().try_for_each(Held::save)?;
    }
    Ok(written)
}

/// The target again, with its files opened for this way. `warm`: they are all in the page cache.
pub fn reopened(job: &JobSpec, target: &Target, way: Way, warm: bool, ring: bool) -> Result<Target, Error> {
    let again = |t: &Target| reopened(job, t, way, warm, ring);
    let backing: Arc<dyn Backing> = match target.backing.file() {
        Some((file, _)) => {
            let access = FileAccess { write: job.writes(), direct: !way.cached };
            let file = match file.direct == (access.direct && !file.in_memory) {
                true => file.clone(),
                false => FileTarget::open(&file.path, access)?,
            };
            match path::of(way.path).opens(&file) {
                Some(own) => Arc::new(own),
                None => {
                    let engine = file.choose(job.engine, !job.writes(), warm, ring);
                    Arc::new(FileBacking { target: file, engine })
                }
            }
        }
        None => {
            let parts = target.backing.parts().iter().map(again).collect::<Result<_, _>>()?;
            target.backing.of_parts(parts).unwrap_or_else(|| target.backing.clone())
        }
    };
    let opened = Target { backing, ..target.clone() };
    check_alignment(job, &opened)?;
    Ok(opened)
}

pub fn has_ring(job: &JobSpec) -> Result<bool, Error> {
    let insists = job.sqpoll || job.iopoll || job.engine == Engine::Uring;
    match Reactor::with_ring(RingOptions {
        depth: 8,
        sqpoll: job.sqpoll,
        iopoll: job.iopoll,
        one_by_one: false,
    }) {
        Ok(_) => Ok(true),
        Err(e) if insists => Err(Error::machine(
            "io_uring",
            format!("the kernel refuses the ring: {e}"),
            "forebay doctor for the reason, or --engine pread",
        )),
        Err(_) => Ok(false),
    }
}

struct Opener<'a> {
    job: &'a JobSpec,
    write: bool,
    ring: bool,
    ours: &'a Ours,
}

impl Opener<'_> {
    /// The target, past the page cache where that was asked for; left to us, where it can be.
    fn aligned(&self, draft: &Draft) -> Result<Target, Error> {
        let opened = self.target(draft).and_then(|t| check_alignment(self.job, &t).map(|()| t));
        if opened.is_ok() || self.job.cache != Cache::Auto {
            return opened;
        }
        let through = Opener { job: &JobSpec { cache: Cache::Allow, ..self.job.clone() }, ..*self };
        through.target(draft).and_then(|t| check_alignment(self.job, &t).map(|()| t)).or(opened)
    }
}

impl Open for Opener<'_> {
    fn target(&self, draft: &Draft) -> Result<Target, Error> {
        Ok(Target {
            route: Route { path: self.job.path, pair: None },
            label: draft.label(),
            content_id: content::file_id(&draft.content_name()),
            bytes: draft.bytes(),
            backing: draft.open(self)?,
        })
    }

    fn timed(&self, drive: &DriveModel) -> SharedDrive {
        SharedDrive::new(drive, self.job.seed, self.job.op.is_random())
    }

    fn file(&self, file: &FilePlan) -> Result<FileBacking, Error> {
        let job = self.job;
        let direct = matches!(job.cache, Cache::Auto | Cache::Bypass) && job.engine != Engine::Map;
        let target = FileTarget::open(&file.path, FileAccess { write: self.write, direct })?;
        if let Some(made) = self.ours.get(&file.path) {
            made.check(&file.path, &target.file)?;
        }
        if target.bytes < file.bytes {
            let found = format!("it has {} bytes; {} were there a moment ago", target.bytes, file.bytes);
            return Err(Error::run(
                format!("open {}", file.path.display()),
                found,
                "the same command again, with nothing else writing there",
            ));
        }
        let resident = match job.cache {
            Cache::Warm => true,
            Cache::Allow => cache::residency(&target.file, 0, file.bytes).is_ok_and(|share| share > 0.99),
            Cache::Auto | Cache::Bypass | Cache::Drop => false,
        };
        if let Some(own) = path::find(job.path).and_then(|path| path.opens(&target)) {
            return Ok(own);
        }
        let engine = target.choose(job.engine, !self.write, resident, self.ring);
        if engine == Engine::Map && self.write {
            return Err(Error::request("--engine map", "it only reads", "--engine inline"));
        }
        Ok(FileBacking { target, engine })
    }
}

/// A stripe's chunks, and the end of a file that isn't used to its own.
fn check_pieces(target: &Target, align: u32) -> Result<(), Error> {
    let Some((what, value)) = target.backing.boundary(target.bytes) else { return Ok(()) };
    if value % u64::from(align) == 0 {
        return Ok(());
    }
    Err(misaligned(Path::new(&target.label), what, value, align))
}

fn check_alignment(job: &JobSpec, target: &Target) -> Result<(), Error> {
    let align = target.align();
    target.walk().into_iter().try_for_each(|part| check_pieces(part, align))?;
    let step = job.io_bytes_max.map(|_| job.io_bytes_step.unwrap_or(job.io_bytes));
    let checks = [
        ("--io-size", Some(job.io_bytes)),
        ("--io-size up to", job.io_bytes_max),
        ("--io-size in steps of", step),
        ("--start", Some(job.start_bytes)),
        ("--align", job.align_bytes),
        ("--file-size", job.writes().then_some(target.bytes)),
    ];
    let off = |value: &u64| value % u64::from(align) != 0;
    match checks.iter().find_map(|(what, value)| value.filter(off).map(|v| (what, v))) {
        Some((what, value)) => Err(misaligned(Path::new(&target.label), what, value, align)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// Between making a file and opening it anew to fill it, its name may come to lead elsewhere.
    #[test]
    fn what_took_the_name_of_a_file_just_made_is_neither_opened_nor_removed() {
        let home = tempfile::tempdir().unwrap();
        let (users, path) = (home.path().join("users"), home.path().join("ours"));
        fs::write(&users, vec![7u8; 2 << 20]).unwrap();
        let plan = FilePlan {
            path: path.clone(),
            action: Action::Make,
            is_new: true,
            bytes: 1 << 20,
            is_device: false,
            seed: None,
            ours: true,
        };
        let mut undo = Undo::default();
        let ours = Ours::from([(path.clone(), allocate(&plan, None, &mut undo).unwrap())]);
        let (job, draft) = (JobSpec { cache: Cache::Allow, ..JobSpec::default() }, Draft::from(plan.clone()));
        let opener = Opener { job: &job, write: true, ring: false, ours: &ours };
        open_for_fill(&draft, &opener).expect("it is the one that was made");
        fs::rename(&users, &path).unwrap();
        let error = open_for_fill(&draft, &opener).unwrap_err();
        assert!(error.found.contains("another file"), "{error}");
        let again = FilePlan { is_new: false, bytes: 4 << 20, ..plan };
        allocate(&again, ours.get(&path).copied(), &mut Undo::default()).expect_err("to make it larger");
        undo.run(&mut Locked::new());
        assert!(fs::read(&path).unwrap() == vec![7u8; 2 << 20]);
    }
}
