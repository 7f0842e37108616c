//! Targets for whoever needs some: what sources stand for is looked at, files that are missing are made and filled,
//! and all are opened. It is told what they are for, and knows no job; what fills files is the caller's.

pub(crate) mod found;
mod make;
pub(crate) mod manifest;
pub(crate) mod mounts;
mod open;
mod plan;
mod undo;

pub use make::KEEP_FREE_BYTES;
pub use manifest::HeldManifest;
pub use open::{allow_descriptors, has_rings, reopened};
pub use plan::examine;

use crate::source::{Action, SourcePlan, Target};
use forebay_io::FileIdentity;
use forebay_model::glob::Glob;
use forebay_model::job::{Cache, Engine, Hint, PathKind, Priority, FILE_NAME_DEFAULT};
use forebay_model::Error;
use manifest::Content;
use open::Opener;
use plan::{parent_of, Manifests};
use std::collections::BTreeMap;
use std::path::PathBuf;
use undo::Undo;

/// Purpose for which targets are opened, and permitted ways of making them.
#[derive(Clone, Debug)]
pub struct Purpose {
    pub sources: Vec<String>,
    /// Each source is used apart from the others.
    pub by_pairs: bool,
    pub reads: bool,
    pub writes: bool,
    pub random: bool,
    /// Advice to the kernel about reads through the page cache.
    pub hint: Hint,
    /// Missing files may be made.
    pub makes: bool,
    /// If they may not, the user can ask for it. False where another program must have written the data.
    pub could_make: bool,
    /// Size of each file.
    pub file_bytes: Option<u64>,
    /// Files of a directory. None: all that are found, `files_usual` where they are made.
    pub files: Option<u32>,
    pub files_usual: u32,
    /// Name of a file in a directory; `%d` stands for its number.
    pub file_name: String,
    /// Files of a directory that are read; none: all.
    pub globs: Vec<Glob>,
    /// The first byte that is used.
    pub start_bytes: u64,
    /// Files and devices that may be written over though they aren't ours.
    pub overwrite: Vec<String>,
    pub overwrite_devices: Vec<String>,
    /// Path that may determine how files are opened.
    pub path: PathKind,
    pub cache: Cache,
    pub engine: Engine,
    /// Writes are RWF_ATOMIC.
    pub atomic: bool,
    /// Per cent of the I/Os that carry a priority, and which.
    pub priority: Option<(u8, Priority)>,
    pub sqpoll: bool,
    pub iopoll: bool,
    /// Threads that open queues: now, and at most.
    pub workers: u32,
    pub workers_most: u32,
    /// Seed of generated content.
    pub seed: u64,
    /// Reads are compared with the generated content.
    pub verify: bool,
    /// Writes carry the content that `seed` generates.
    pub writes_content: bool,
    /// Offsets and lengths of I/Os that must be aligned, with the flags that set them.
    pub units: Vec<(&'static str, u64)>,
}

/// All of a file by one thread, past the page cache, with nothing made.
impl Default for Purpose {
    fn default() -> Purpose {
        Purpose {
            sources: Vec::new(),
            by_pairs: false,
            reads: true,
            writes: false,
            random: false,
            hint: Hint::None,
            makes: false,
            could_make: true,
            file_bytes: None,
            files: None,
            files_usual: 1,
            file_name: FILE_NAME_DEFAULT.into(),
            globs: Vec::new(),
            start_bytes: 0,
            overwrite: Vec::new(),
            overwrite_devices: Vec::new(),
            path: PathKind::Host,
            cache: Cache::Bypass,
            engine: Engine::Auto,
            atomic: false,
            priority: None,
            sqpoll: false,
            iopoll: false,
            workers: 1,
            workers_most: 1,
            seed: 7,
            verify: false,
            writes_content: false,
            units: Vec::new(),
        }
    }
}

/// Writes content of the purpose's seed over all of these targets. An error has the files taken away again.
pub(crate) type Fill<'a> = &'a mut dyn FnMut(&[Target]) -> Result<(), Error>;

impl Purpose {
    /// For whoever makes no files with content.
    pub fn fills_nothing(_: &[Target]) -> Result<(), Error> {
        Err(Error::run("making files", "nobody fills them", "a path that exists"))
    }
}

/// The plans of all sources; nothing has been changed.
pub struct Examined {
    pub plans: Vec<SourcePlan>,
    /// The pair that each belongs to, where there are pairs.
    pair_of: Vec<Option<u32>>,
    manifests: Manifests,
}

type Locked = BTreeMap<PathBuf, HeldManifest>;
/// Files of ours that are made or written: nothing else is opened by their names.
type Ours = BTreeMap<PathBuf, FileIdentity>;

/// Open targets, and the locks on their directories for as long as they are used.
pub struct Opened {
    pub targets: Vec<Target>,
    /// Seed of each target's content.
    pub content_seeds: Vec<u64>,
    held: Locked,
    undo: Undo,
    /// Files of ours that are written.
    written: Vec<Written>,
    /// Seed of written content.
    seed: Option<u64>,
}

struct Written {
    path: PathBuf,
    made: FileIdentity,
    /// The name that its content carries.
    content: String,
    bytes: u64,
    /// Seed of what it held before, where that was known.
    seed: Option<u64>,
}

impl Examined {
    /// The targets as they would be, with nothing made or changed: what can't work shows before anything is.
    pub fn rehearsed(&self, purpose: &Purpose) -> Result<Vec<Target>, Error> {
        let files = self.plans.iter().map(|p| p.files().len()).sum::<usize>() as u64;
        allow_descriptors(files);
        make::check_room_and_content(purpose, &self.plans, &self.manifests.0)?;
        let ours = Ours::new();
        let opener = Opener::new(purpose, &ours)?.rehearsing();
        self.plans.iter().map(|plan| opener.aligned(plan)).collect()
    }

    /// Returns whether `open` makes or changes a file.
    pub fn changes(&self, purpose: &Purpose) -> bool {
        purpose.writes || self.plans.iter().flat_map(SourcePlan::files).any(|f| f.action == Action::Make)
    }

    /// Makes what is missing, and opens everything. The locks of what was looked at go over.
    pub fn open(&mut self, purpose: &Purpose, fill: Fill) -> Result<Opened, Error> {
        let files = self.plans.iter().map(|p| p.files().len()).sum::<usize>() as u64;
        allow_descriptors(files.saturating_add(u64::from(purpose.workers) * 8));
        let (mut held, mut undo) = (std::mem::take(&mut self.manifests).0, Undo::default());
        match make::make_and_open(purpose, &self.plans, &mut held, &mut undo, fill) {
            Ok((mut targets, content_seeds, written)) => {
                targets.iter_mut().zip(&self.pair_of).for_each(|(target, pair)| target.route.pair = *pair);
                let seed = purpose.writes_content.then_some(purpose.seed);
                Ok(Opened { targets, content_seeds, held, undo, written, seed })
            }
            Err(e) => {
                undo.run(&mut held, true);
                held.into_values().for_each(HeldManifest::remove_if_empty);
                Err(e)
            }
        }
    }
}

impl Opened {
    /// Nothing was measured: files and lists are as they were before `open`, as far as `wrote` allows. `takes_files`:
    /// those that were made go, too.
    pub fn take_back(mut self, takes_files: bool, wrote: bool) {
        self.targets.clear();
        if wrote {
            self.undo.forget_contents();
        }
        self.undo.run(&mut self.held, takes_files);
        self.held.into_values().for_each(HeldManifest::remove_if_empty);
    }

    /// After the last I/O: says what the files hold now. They hold seeded content where they did before, or where each
    /// of their blocks was written, which is what `covered` says.
    pub fn close(mut self, covered: bool) -> Result<(), Error> {
        // Some file systems settle a file's times when it is closed.
        self.targets.clear();
        for w in &self.written {
            let Some(held) = self.held.get_mut(&parent_of(&w.path)) else { continue };
            let len = std::fs::metadata(&w.path).map_or(0, |m| m.len());
            let seed = self.seed.filter(|seed| (covered && len == w.bytes) || w.seed == Some(*seed));
            // What was measured is the file that was opened, whatever has its name by now.
            let still_there = held.leave(&w.path, w.made, &Content { seed, name: &w.content }).is_ok();
            if let (true, None, Some(partly)) = (still_there, seed, self.seed) {
                held.note_part(&w.path, partly);
            }
        }
        let saved = if self.written.is_empty() {
            Ok(())
        } else {
            self.held.values_mut().try_for_each(HeldManifest::save)
        };
        self.held.into_values().for_each(HeldManifest::remove_if_empty);
        saved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn purpose_of(dir: &std::path::Path) -> Purpose {
        Purpose {
            sources: vec![dir.display().to_string()],
            makes: true,
            files: Some(2),
            file_bytes: Some(1 << 20),
            cache: Cache::Allow,
            ..Purpose::default()
        }
    }

    #[test]
    fn files_are_made_and_opened_without_a_job_and_filled_by_the_caller() {
        let home = tempfile::tempdir().unwrap();
        let purpose = purpose_of(home.path());
        let mut filled = Vec::new();
        let opened = examine(&purpose).unwrap().open(&purpose, &mut |targets| {
            filled.extend(targets.iter().map(|t| (t.bytes, t.files()[0].0.path.clone())));
            Ok(())
        });
        let opened = opened.unwrap();
        let opened_are = opened.targets.iter().map(|t| (t.bytes, t.files()[0].0.path.clone()));
        assert_eq!(filled, opened_are.collect::<Vec<_>>());
        assert_eq!((filled.len(), filled[0].0, &opened.content_seeds[..]), (2, 1 << 20, &[7, 7][..]));
        opened.close(false).unwrap();
        let again = examine(&purpose).unwrap().open(&purpose, &mut Purpose::fills_nothing).unwrap();
        assert_eq!(again.targets.len(), 2, "what is there is filled no second time");
    }

    #[test]
    fn files_that_could_not_be_filled_are_taken_away_again() {
        let home = tempfile::tempdir().unwrap();
        let purpose = purpose_of(home.path());
        let error = examine(&purpose).unwrap().open(&purpose, &mut Purpose::fills_nothing).err().unwrap();
        assert!(error.found.contains("nobody fills them"), "{error}");
        assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_nothing_came_of_is_taken_back_with_what_its_list_said() {
        let home = tempfile::tempdir().unwrap();
        let made = purpose_of(home.path());
        examine(&made).unwrap().open(&made, &mut |_| Ok(())).unwrap().close(false).unwrap();
        let list = || std::fs::read_to_string(home.path().join(manifest::NAME)).unwrap();
        let (seeds, lens) = (
            || list().matches("\"seed\": 7").count(),
            || [0, 1].map(|n| home.path().join(format!("forebay.{n}")).metadata().map_or(0, |m| m.len())),
        );
        assert_eq!(seeds(), 2);
        let more = Purpose { files: Some(3), file_bytes: Some(3 << 20), reads: false, writes: true, ..made };
        for wrote in [false, true] {
            let opened = examine(&more).unwrap().open(&more, &mut Purpose::fills_nothing).unwrap();
            assert_eq!((lens(), seeds()), ([3 << 20; 2], 0));
            opened.take_back(true, wrote);
            assert!(!home.path().join("forebay.2").exists());
            let kept = if wrote { ([3 << 20; 2], 0) } else { ([1 << 20; 2], 2) };
            assert_eq!((lens(), seeds()), kept);
            let ours = examine(&more).unwrap().plans;
            assert!(ours.iter().flat_map(SourcePlan::files).all(|f| f.ours), "they are still known as ours");
        }
    }

    #[test]
    fn a_rehearsal_knows_the_targets_and_leaves_nothing() {
        let home = tempfile::tempdir().unwrap();
        let purpose = purpose_of(home.path());
        let looked = examine(&purpose).unwrap();
        let targets = looked.rehearsed(&purpose).unwrap();
        assert_eq!(targets.iter().map(|t| t.bytes).collect::<Vec<_>>(), [1 << 20; 2]);
        assert!(looked.changes(&purpose));
        assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 0);
        let far = Purpose { file_bytes: Some(1 << 60), ..purpose };
        let error = examine(&far).unwrap().rehearsed(&far).err().unwrap();
        assert!(error.asked.contains("of files in"), "{error}");
    }
}
