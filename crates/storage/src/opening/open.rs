//! Opens what a plan names, and refuses what can't work, before a single byte is moved.

use super::plan::parent_of;
use super::{Ours, Purpose};
use crate::path::{self, auto::PathChoice};
use crate::source::file::{FileAccess, FileTarget};
use crate::source::{
    Action, FilePlan, Open, OpenFileSource, OpenSource, Route, SharedDrive, SourcePlan, Target,
};
use forebay_io::{cache_residency, memlock_refusal, room_for_rings, RingOptions};
use forebay_model::content;
use forebay_model::device::DriveModel;
use forebay_model::job::{Cache, Engine};
use forebay_model::Error;
use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;

/// Raises the process's soft limit on open files towards its hard one, as far as is needed: programs that
/// call select(2) elsewhere in the process want it no higher. What isn't enough shows when a file is opened.
pub fn allow_descriptors(more: u64) {
    use rustix::process::{getrlimit, setrlimit, Resource, Rlimit};
    // For everything else that this process has open.
    const SPARE: u64 = 512;
    let now = getrlimit(Resource::Nofile);
    let wanted = more.saturating_add(SPARE).min(now.maximum.unwrap_or(u64::MAX));
    if now.current.is_some_and(|c| c < wanted) {
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum: now.maximum });
    }
}

/// The target again, with its files opened for this way. `warm`: they are all in the page cache.
pub fn reopened(
    purpose: &Purpose,
    target: &Target,
    way: PathChoice,
    warm: bool,
    ring: bool,
) -> Result<Target, Error> {
    let again = |t: &Target| reopened(purpose, t, way, warm, ring);
    let source: Arc<dyn OpenSource> = match target.source.descriptor() {
        Some((file, _)) => {
            let access = FileAccess { write: purpose.writes, direct: !way.cached };
            let file = match file.direct == (access.direct && !file.in_memory) {
                true => file.clone(),
                false => FileTarget::open(&file.path, access)?
                    .marked(purpose.atomic, purpose.priority)
                    .hinted(purpose.hint),
            };
            match path::Paths::by_kind(way.path).opens(&file) {
                Some(own) => Arc::new(own),
                None => {
                    let engine = file.choose(purpose.engine, !purpose.writes, warm, ring);
                    Arc::new(OpenFileSource { target: file, engine })
                }
            }
        }
        None => {
            let parts = target.source.parts().iter().map(again).collect::<Result<_, _>>()?;
            target.source.of_parts(parts).unwrap_or_else(|| target.source.clone())
        }
    };
    let opened = Target { source, ..target.clone() };
    check_alignment(purpose, &opened)?;
    Ok(opened)
}

/// Returns whether each worker can have a ring, or why not; an error where none can be had, and nothing else would do.
pub fn has_rings(
    engine: Engine,
    sqpoll: bool,
    iopoll: bool,
    workers: u32,
) -> Result<Result<(), String>, Error> {
    let insists = sqpoll || iopoll || engine == Engine::Uring;
    let options = RingOptions { depth: 8, sqpoll, iopoll, one_by_one: false };
    match room_for_rings(workers, options) {
        Ok(()) => Ok(Ok(())),
        Err(e) if insists => {
            Err(memlock_refusal("the run", &e, "forebay doctor for the reason, or ‹engine› pread"))
        }
        Err(e) => Ok(Err(memlock_refusal("a run", &e, "").found)),
    }
}

#[derive(Clone)]
pub(super) struct Opener<'a> {
    purpose: Cow<'a, Purpose>,
    rings: bool,
    ours: &'a Ours,
    /// Nothing is there yet, and nothing is to be changed.
    rehearses: bool,
}

impl<'a> Opener<'a> {
    pub(crate) fn new(purpose: &'a Purpose, ours: &'a Ours) -> Result<Opener<'a>, Error> {
        let rings = has_rings(purpose.engine, purpose.sqpoll, purpose.iopoll, purpose.workers)?.is_ok();
        Ok(Opener { purpose: Cow::Borrowed(purpose), rings, ours, rehearses: false })
    }

    /// The same for what isn't made yet.
    pub(crate) fn rehearsing(self) -> Opener<'a> {
        Opener { rehearses: true, ..self }
    }

    /// The same through the page cache.
    pub(crate) fn through_cache(&self) -> Opener<'a> {
        let purpose = Purpose { cache: Cache::Allow, ..self.purpose.as_ref().clone() };
        Opener { purpose: Cow::Owned(purpose), ..self.clone() }
    }

    pub(crate) fn opened(&self, plan: &SourcePlan) -> Result<Target, Error> {
        Open::target(self, plan)
    }

    /// The target, past the page cache where that was asked for; left to us, where it can be.
    pub(crate) fn aligned(&self, plan: &SourcePlan) -> Result<Target, Error> {
        let aligned = |opener: &Opener| {
            let opened = opener.opened(plan)?;
            check_alignment(&self.purpose, &opened).map(|()| opened)
        };
        let opened = aligned(self);
        if opened.is_ok() || self.purpose.cache != Cache::Auto {
            return opened;
        }
        aligned(&self.through_cache()).or(opened)
    }
}

/// A file as it would be opened once it is made: itself, or one without a name beside it.
fn stand_in(file: &FilePlan, access: FileAccess) -> Result<FileTarget, Error> {
    // Closing a device that was open for writing has the system look at it anew.
    let access = FileAccess { write: access.write && !file.is_device, ..access };
    let found = match file.is_new {
        true => FileTarget::yet_to_be_made(&file.path, &parent_of(&file.path), access)?,
        false => FileTarget::open_unclaimed(&file.path, access)?,
    };
    let bytes = if file.action == Action::Make { file.bytes } else { found.bytes };
    Ok(FileTarget { bytes, ..found })
}

impl Open for Opener<'_> {
    fn target(&self, plan: &SourcePlan) -> Result<Target, Error> {
        Ok(Target {
            route: Route { path: self.purpose.path, pair: None },
            label: plan.label.clone(),
            content_id: content::file_id(&plan.content_name),
            bytes: plan.bytes,
            source: plan.open(self)?,
        })
    }

    fn timed(&self, drive: &DriveModel) -> SharedDrive {
        SharedDrive::new(drive, self.purpose.seed, self.purpose.random)
    }

    fn file(&self, file: &FilePlan) -> Result<Arc<dyn OpenSource>, Error> {
        let purpose = &*self.purpose;
        let direct = matches!(purpose.cache, Cache::Auto | Cache::Bypass) && purpose.engine != Engine::Map;
        let access = FileAccess { write: purpose.writes, direct };
        let target =
            if self.rehearses { stand_in(file, access) } else { FileTarget::open(&file.path, access) }?;
        let target = target.marked(purpose.atomic, purpose.priority).hinted(purpose.hint);
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
        let resident = match purpose.cache {
            Cache::Warm => true,
            Cache::Allow => cache_residency(&target.file, 0, file.bytes).is_ok_and(|share| share > 0.99),
            Cache::Auto | Cache::Bypass | Cache::Drop => false,
        };
        if let Some(own) = path::Paths::find(purpose.path).and_then(|path| path.opens(&target)) {
            return Ok(Arc::new(own));
        }
        let engine = target.choose(purpose.engine, !purpose.writes, resident, self.rings);
        if engine == Engine::Map && purpose.writes {
            return Err(Error::request("‹engine› map", "it only reads", "‹engine› inline"));
        }
        Ok(Arc::new(OpenFileSource { target, engine }))
    }
}

/// A stripe's chunks, and the end of a file that isn't used to its own.
fn check_pieces(target: &Target, align: u32) -> Result<(), Error> {
    let Some((what, value)) = target.source.boundary(target.bytes) else { return Ok(()) };
    if value % u64::from(align) == 0 {
        return Ok(());
    }
    Err(FileAccess::misaligned(Path::new(&target.label), what, value, align))
}

fn check_alignment(purpose: &Purpose, target: &Target) -> Result<(), Error> {
    let align = target.align();
    target.walk().into_iter().try_for_each(|part| check_pieces(part, align))?;
    let whole = purpose.writes.then_some(("‹file_bytes›", target.bytes));
    match purpose.units.iter().copied().chain(whole).find(|(_, value)| value % u64::from(align) != 0) {
        Some((what, value)) => Err(FileAccess::misaligned(Path::new(&target.label), what, value, align)),
        None => Ok(()),
    }
}
