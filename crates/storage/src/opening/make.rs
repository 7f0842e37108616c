//! Makes what a plan says is missing, and takes it away again where that doesn't end well.

use super::manifest::{may_write, Content, HeldManifest};
use super::open::Opener;
use super::plan::parent_of;
use super::undo::Undo;
use super::{Fill, Locked, Ours, Purpose, Written};
use crate::outputs::Outputs;
use crate::source::{Action, FilePlan, SourcePlan, Target};
use forebay_io::{name_taken, FileIdentity};
use forebay_model::content;
use forebay_model::job::{Cache, Engine, PathKind};
use forebay_model::units::{format_bytes, readable_bytes};
use forebay_model::Error;
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// Bytes left free on a file system, so that making files never fills it to the brim.
pub const KEEP_FREE_BYTES: u64 = 64 << 20;
/// Targets, the seeds of their content, and files that are written.
type CreatedTargets = (Vec<Target>, Vec<u64>, Vec<Written>);

pub(super) fn make_and_open(
    purpose: &Purpose,
    plans: &[SourcePlan],
    held: &mut Locked,
    undo: &mut Undo,
    fill: Fill,
) -> Result<CreatedTargets, Error> {
    check_room_and_content(purpose, plans, held)?;
    lock_what_changes(purpose, plans, held)?;
    let missing = missing_of(plans);
    let mut ours = still_ours(purpose, plans, held)?;
    make_all(purpose, plans, &missing, held, fill, &mut ours, undo)?;
    let opener = Opener::new(purpose, &ours)?;
    let targets = plans.iter().map(|p| opener.aligned(p)).collect::<Result<Vec<_>, _>>()?;
    let written = note_written(purpose, plans, held, &ours, undo)?;
    let known_seed = |p: &SourcePlan| p.files().first().and_then(|f| f.seed).unwrap_or(purpose.seed);
    let content_seeds =
        plans.iter().map(|p| if purpose.writes { purpose.seed } else { known_seed(p) }).collect();
    Ok((targets, content_seeds, written))
}

fn missing_of(plans: &[SourcePlan]) -> Vec<&FilePlan> {
    plans.iter().flat_map(SourcePlan::files).filter(|f| f.action == Action::Make).collect()
}

/// Checks room and content before anything is made or locked.
pub(super) fn check_room_and_content(
    purpose: &Purpose,
    plans: &[SourcePlan],
    held: &Locked,
) -> Result<(), Error> {
    know_what_to_verify(purpose, plans, held)?;
    let missing = missing_of(plans);
    let dirs: BTreeSet<PathBuf> = missing.iter().map(|f| parent_of(&f.path)).collect();
    dirs.iter().try_for_each(|dir| may_write(dir))?;
    check_room(&missing)
}

/// A read verifies against what was written. Where that is known to be something else, each block would fail.
fn know_what_to_verify(purpose: &Purpose, plans: &[SourcePlan], held: &Locked) -> Result<(), Error> {
    if !purpose.verify || purpose.writes {
        return Ok(());
    }
    let unknown = |f: &&FilePlan| {
        let entry = held.get(&parent_of(&f.path)).and_then(|h| h.entry(&f.path));
        f.action == Action::Use && entry.is_some_and(|e| e.seed.is_none() && e.partly.is_none())
    };
    match plans.iter().flat_map(SourcePlan::files).find(unknown) {
        Some(file) => Err(Error::request(
            format!("‹verify› of {}", file.path.display()),
            format!("it {}", content::UNVERIFIED),
            "write it first: ‹op› write ‹verify›",
        )),
        None => Ok(()),
    }
}

/// Writers hold their directories alone; readers keep the shared lock of the plan.
fn lock_what_changes(purpose: &Purpose, plans: &[SourcePlan], held: &mut Locked) -> Result<(), Error> {
    let changes = |f: &&FilePlan| !f.is_device && (purpose.writes || f.action == Action::Make);
    let dirs: BTreeSet<PathBuf> =
        plans.iter().flat_map(SourcePlan::files).filter(changes).map(|f| parent_of(&f.path)).collect();
    for dir in dirs {
        held.remove(&dir);
        held.insert(dir.clone(), HeldManifest::alone(&dir)?);
    }
    Ok(())
}

/// Files of ours that are to change, looked at again now that nobody else's run may.
fn still_ours(purpose: &Purpose, plans: &[SourcePlan], held: &Locked) -> Result<Ours, Error> {
    let changes = |f: &&FilePlan| f.ours && !f.is_new && (purpose.writes || f.action == Action::Make);
    let known = |f: &FilePlan| {
        let found = held.get(&parent_of(&f.path)).and_then(|h| h.identity(&f.path));
        Ok((f.path.clone(), found.ok_or_else(|| name_taken(&f.path))?))
    };
    plans.iter().flat_map(SourcePlan::files).filter(changes).map(known).collect()
}

/// Space that missing files need on one file system.
#[derive(Default)]
struct Need {
    files: u64,
    /// Beside what the files that are there have.
    bytes: u64,
    /// Space that they have.
    have: u64,
    dir: PathBuf,
}

fn check_room(missing: &[&FilePlan]) -> Result<(), Error> {
    let mut needs: BTreeMap<u64, Need> = BTreeMap::new();
    for file in missing {
        let dir = parent_of(&file.path);
        let have = std::fs::metadata(&file.path).map_or(0, |m| m.len());
        let device = std::fs::metadata(&dir).map_or(0, |m| m.dev());
        let need = needs.entry(device).or_insert_with(|| Need { dir, ..Need::default() });
        need.files += 1;
        need.have = need.have.saturating_add(have);
        need.bytes = need.bytes.saturating_add(file.bytes.saturating_sub(have));
    }
    for need in needs.values() {
        let stat = rustix::fs::statvfs(&need.dir);
        let free = stat.map_or(u64::MAX, |s| s.f_bavail.saturating_mul(s.f_frsize));
        if need.bytes.saturating_add(KEEP_FREE_BYTES) > free {
            return Err(need.refused(free));
        }
    }
    Ok(())
}

impl Need {
    fn refused(&self, free: u64) -> Error {
        let usable = free.saturating_sub(KEEP_FREE_BYTES);
        let each = (self.have.saturating_add(usable) / self.files) >> 20 << 20;
        let next = match (usable >> 20, each) {
            (0, _) => "a directory on a file system with more room: nothing fits here".into(),
            (_, 0) => "fewer files, or a directory on a file system with more room".into(),
            _ => {
                format!("‹file_bytes› {}, or a directory on a file system with more room", format_bytes(each))
            }
        };
        Error::machine(
            format!("create {} of files in {}", format_bytes(self.bytes), self.dir.display()),
            format!(
                "{} are free there, and {} must stay free",
                readable_bytes(free),
                readable_bytes(KEEP_FREE_BYTES)
            ),
            next,
        )
    }
}

fn make_all(
    purpose: &Purpose,
    plans: &[SourcePlan],
    missing: &[&FilePlan],
    held: &mut Locked,
    fill: Fill,
    ours: &mut Ours,
    undo: &mut Undo,
) -> Result<(), Error> {
    for file in missing {
        let dir = held.get_mut(&parent_of(&file.path)).expect("its directory was locked");
        // As long as nothing has changed the file.
        let entry = dir.entry(&file.path).cloned();
        let made = allocate(file, ours.get(&file.path).copied(), undo)?;
        if file.ours {
            undo.begin(&file.path, made, entry);
            dir.begin(&file.path, made, file.bytes, "");
            ours.insert(file.path.clone(), made);
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    held.values_mut().try_for_each(HeldManifest::save)?;
    let to_fill: Vec<&SourcePlan> = plans
        .iter()
        .filter(|p| purpose.reads && p.files().iter().any(|f| f.action == Action::Make && f.ours))
        .collect();
    if to_fill.is_empty() {
        return Ok(());
    }
    // What can't be opened as it is to be used is filled for nothing.
    let opener = Opener::new(purpose, ours)?;
    plans.iter().try_for_each(|plan| opener.aligned(plan).map(drop))?;
    to_fill.iter().flat_map(|p| p.files()).for_each(|file| undo.forget_content(&file.path));
    fill(&opened_to_fill(purpose, &to_fill, ours)?)?;
    for plan in to_fill {
        for file in plan.files().into_iter().filter(|f| f.ours) {
            let dir = held.get_mut(&parent_of(&file.path)).expect("its directory was locked");
            let content = Content { seed: Some(purpose.seed), name: &plan.content_name };
            dir.leave(&file.path, ours[&file.path], &content)?;
        }
    }
    held.values_mut().try_for_each(HeldManifest::save)
}

/// Creates the file (never opening what somebody else just made) and reserves its blocks. `ours`: the file that
/// is to be there already.
fn allocate(file: &FilePlan, ours: Option<FileIdentity>, undo: &mut Undo) -> Result<FileIdentity, Error> {
    let asked = format!("create {} of {} bytes", file.path.display(), file.bytes);
    let opened = match file.is_new {
        true => Outputs::create(&file.path),
        false => Outputs::reopen(&file.path),
    };
    let handle = opened.map_err(|e| match e.raw_os_error() {
        Some(libc::EROFS) => Error::request(
            &asked,
            "the file system is mounted read-only",
            "a directory on a writable file system",
        ),
        Some(libc::EACCES | libc::EPERM) => {
            Error::request(&asked, "permission denied", "a directory that you can write to")
        }
        Some(libc::EEXIST) if file.path.is_symlink() => Error::request(
            &asked,
            "it is a link, and no file is created through one",
            format!("the file that ls -l {} names, or another name", file.path.display()),
        ),
        Some(libc::EEXIST) => Error::run(
            &asked,
            "another process created it in the meantime",
            format!("ls -l {}; another name", file.path.display()),
        ),
        _ => Error::run(&asked, e.to_string(), "df -h; df -i"),
    })?;
    let meta = handle.metadata().map_err(|e| Error::run(&asked, e.to_string(), "df -h; df -i"))?;
    let made = FileIdentity::from_metadata(&meta);
    if ours.is_some_and(|ours| ours != made) {
        return Err(name_taken(&file.path));
    }
    match file.is_new {
        true => undo.made(&file.path, made),
        false => undo.extends(&file.path, made, meta.len()),
    }
    let Err(errno) = rustix::fs::fallocate(&handle, FallocateFlags::empty(), 0, file.bytes) else {
        return Ok(made);
    };
    match errno {
        Errno::OPNOTSUPP => {
            handle.set_len(file.bytes).map(|()| made).map_err(|e| Error::run(asked, e.to_string(), "df -h"))
        }
        Errno::NOSPC | Errno::DQUOT => Err(Error::machine(
            asked,
            "the file system is full",
            "a smaller ‹file_bytes›, or another directory",
        )),
        Errno::FBIG => Err(Error::request(
            asked,
            "the file system has no room for a file this large",
            "a smaller ‹file_bytes›",
        )),
        _ => Err(Error::run(asked, errno.to_string(), "df -h")),
    }
}

/// Opens targets to be filled by the queues that they will be read with, whatever the page cache is to do then.
fn opened_to_fill(purpose: &Purpose, plans: &[&SourcePlan], ours: &Ours) -> Result<Vec<Target>, Error> {
    let purpose = Purpose {
        path: PathKind::Host,
        cache: Cache::Bypass,
        engine: Engine::Auto,
        sqpoll: false,
        iopoll: false,
        writes: true,
        random: false,
        ..purpose.clone()
    };
    let opener = Opener::new(&purpose, ours)?;
    plans.iter().map(|plan| open_to_fill(plan, &opener)).collect()
}

/// O_DIRECT where it can be had; a tail that isn't a whole block goes through the page cache.
fn open_to_fill(plan: &SourcePlan, opener: &Opener) -> Result<Target, Error> {
    let direct = opener.opened(plan).ok().filter(|t| t.bytes % u64::from(t.align()) == 0);
    match direct {
        Some(target) => Ok(target),
        None => opener.through_cache().opened(plan),
    }
}

/// Files of ours that are about to hold something else: until the run has ended well nobody knows what.
fn note_written(
    purpose: &Purpose,
    plans: &[SourcePlan],
    held: &mut Locked,
    ours: &Ours,
    undo: &mut Undo,
) -> Result<Vec<Written>, Error> {
    let mut written = Vec::new();
    if !purpose.writes {
        return Ok(written);
    }
    for plan in plans {
        for file in plan.files().into_iter().filter(|f| !f.is_device && f.ours) {
            let dir = held.get_mut(&parent_of(&file.path)).expect("its directory was locked");
            let (path, made, content) = (file.path.clone(), ours[&file.path], plan.content_name.clone());
            undo.begin(&path, made, dir.entry(&path).cloned());
            dir.begin(&path, made, file.bytes, &content);
            written.push(Written { path, made, content, bytes: file.bytes, seed: file.seed });
        }
    }
    if !written.is_empty() {
        held.values_mut().try_for_each(HeldManifest::save)?;
    }
    Ok(written)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn what_does_not_fit_says_what_would_and_what_stays_free() {
        let need = |files, have| Need { files, have, bytes: 1 << 30, dir: "d".into() };
        let next = |need: Need, free_mib: u64| need.refused(free_mib << 20);
        let nothing = next(need(1, 0), 64);
        assert!(nothing.found == "64 MiB are free there, and 64 MiB must stay free", "{nothing}");
        assert!(nothing.next.contains("nothing fits here"), "{nothing}");
        assert!(next(need(1, 0), 164).next.starts_with("‹file_bytes› 100m,"));
        assert!(next(need(4, 4 << 20), 164).next.starts_with("‹file_bytes› 26m,"), "what they have counts");
        assert!(next(need(300, 0), 164).next.starts_with("fewer files"));
    }

    /// Between making a file and opening it anew to fill it, its name may come to lead elsewhere.
    // promise: FLT-30
    #[test]
    fn what_took_the_name_of_a_file_just_made_is_neither_opened_nor_removed() {
        let home = tempfile::tempdir().unwrap();
        let (users, path) = (home.path().join("users"), home.path().join("ours"));
        fs::write(&users, vec![7u8; 2 << 20]).unwrap();
        let file = FilePlan {
            path: path.clone(),
            action: Action::Make,
            is_new: true,
            bytes: 1 << 20,
            is_device: false,
            seed: None,
            ours: true,
        };
        let mut undo = Undo::default();
        let ours = Ours::from([(path.clone(), allocate(&file, None, &mut undo).unwrap())]);
        let (purpose, plan) = (
            Purpose { cache: Cache::Allow, writes: true, ..Purpose::default() },
            SourcePlan::from(file.clone()),
        );
        let opener = Opener::new(&purpose, &ours).unwrap();
        open_to_fill(&plan, &opener).expect("it is the one that was made");
        fs::rename(&users, &path).unwrap();
        let error = open_to_fill(&plan, &opener).unwrap_err();
        assert!(error.found.contains("another file"), "{error}");
        let again = FilePlan { is_new: false, bytes: 4 << 20, ..file };
        allocate(&again, ours.get(&path).copied(), &mut Undo::default()).expect_err("to make it larger");
        undo.run(&mut Locked::new(), true);
        assert!(fs::read(&path).unwrap() == vec![7u8; 2 << 20]);
    }
}
