//! A source, from its URI to what is open of it: parsed, examined on this machine with nothing touched, opened.

use super::controller::{ControllerReport, Inquiry};
use super::{MadeOf, OpenSource, SharedDrive, Target};
use forebay_io::{Check, Roots};
use forebay_model::device::DriveModel;
use forebay_model::Error;
use serde::{Serialize, Serializer};
use std::any::Any;
use std::fmt;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A source as its URI names it. Each kind has one, in its own file; whoever uses a source asks what it can do, and
/// never which kind it is.
pub trait Source: Any + fmt::Display + fmt::Debug + Send + Sync {
    /// Returns the scheme of its row in `SOURCES`.
    fn scheme(&self) -> &'static str;

    fn made_of(&self) -> MadeOf;

    /// Sources that it is made of.
    fn parts(&self) -> &[Uri] {
        &[]
    }

    /// Name in this machine's file system, where it has one.
    fn path(&self) -> Option<&Path> {
        None
    }

    /// Bytes that go to each part in turn, where they are dealt out.
    fn chunk(&self) -> Option<u64> {
        None
    }

    /// The drive, by its name and settings, whose times it keeps.
    fn timed(&self) -> Option<&str> {
        None
    }

    /// I/Os take the times of its drive, instead of being played in virtual time.
    fn is_in_real_time(&self) -> bool {
        false
    }

    /// Bytes that it has, where its text says so.
    fn bytes(&self) -> Option<u64> {
        None
    }

    /// The machine across a network that it is reached at.
    fn host(&self) -> Option<&str> {
        None
    }

    /// Returns whether both name the same bytes, whatever else their URIs say.
    fn is_same(&self, _: &dyn Source) -> bool {
        false
    }

    /// Returns `doctor`'s description of a source that isn't in the file system: an object with `kind`.
    fn reported(&self) -> Option<serde_json::Value> {
        None
    }

    /// The checks of `doctor`, for a source that isn't in the file system. `roots`: where the machine describes itself.
    fn checks(&self, _: &Roots) -> Vec<Check> {
        Vec::new()
    }

    /// Asks the NVMe controller behind it what it is; None where there is none. `one`: of its namespaces, for the one that
    /// the source names.
    fn identify(&self, _: &Inquiry, _: bool) -> Option<Result<ControllerReport, Error>> {
        None
    }

    /// Returns the plan of the source here, of which `wanted` bytes are to be used where a number was given.
    ///
    /// # Errors
    /// Those of `examiner`; and where the parts don't fit each other.
    fn examine(&self, examiner: &mut dyn Examiner, wanted: Option<u64>) -> Result<SourcePlan, Error>;

    /// Opens what `examine` planned.
    ///
    /// # Errors
    /// Of `open`.
    fn open(&self, plan: &SourcePlan, open: &dyn Open) -> Result<Arc<dyn OpenSource>, Error>;

    /// Returns its plan for people's programs: an object with `kind`.
    fn document(&self, plan: &SourcePlan) -> serde_json::Value;
}

/// A parsed source.
#[derive(Clone, Debug)]
pub struct Uri(Arc<dyn Source>);

impl<S: Source> From<S> for Uri {
    fn from(source: S) -> Uri {
        Uri(Arc::new(source))
    }
}

impl Deref for Uri {
    type Target = dyn Source;

    fn deref(&self) -> &(dyn Source + 'static) {
        &*self.0
    }
}

/// By all that was read.
impl PartialEq for Uri {
    fn eq(&self, other: &Uri) -> bool {
        format!("{self:?}") == format!("{other:?}")
    }
}

impl Uri {
    /// The source, where it is one of these: for code that is about that kind alone.
    pub(crate) fn of_kind<S: Source>(&self) -> Option<&S> {
        (&*self.0 as &dyn Any).downcast_ref()
    }
}

/// One line for messages: as typed, but for what stands for a default.
impl fmt::Display for Uri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Observer of sources: a job, a server. `wanted`: bytes to be used of it, where somebody said.
pub trait Examiner {
    /// The file or block device of that name; of a folder's name, one in it.
    fn file(&mut self, path: &Path, wanted: Option<u64>) -> Result<FilePlan, Error>;

    /// Permits to connect to what the source names, which alone knows what is there; returns who will use it.
    fn may_connect(&mut self, source: &dyn Source) -> Result<Workers, Error>;

    /// Returns the bytes that are used of what was connected to.
    fn part_of(&mut self, source: &dyn Source, found: Found, wanted: Option<u64>) -> Result<u64, Error>;

    /// Checks that the model knows what is asked of it.
    fn model(&mut self, drive: &DriveModel) -> Result<(), Error>;
}

/// Workers that will open queues of a source: for certain, and at most.
#[derive(Clone, Copy, Debug)]
pub struct Workers {
    pub now: u32,
    pub most: u32,
}

/// Extent of what a source connected to.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    pub bytes: u64,
    pub read_only: bool,
}

/// Opener of plans.
pub trait Open {
    fn file(&self, file: &FilePlan) -> Result<Arc<dyn OpenSource>, Error>;

    /// A modelled drive at its beginning.
    fn timed(&self, drive: &DriveModel) -> SharedDrive;

    fn target(&self, plan: &SourcePlan) -> Result<Target, Error>;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// As it stands.
    Use,
    /// It doesn't exist, or is ours and too small: made at the size wanted.
    Make,
}

#[derive(Clone, Debug, Serialize)]
pub struct FilePlan {
    pub path: PathBuf,
    pub action: Action,
    /// It wasn't there when the plan was made, so whatever lies there later is somebody else's.
    pub is_new: bool,
    /// Bytes that are used of it.
    pub bytes: u64,
    pub is_device: bool,
    /// Seed of its content where we know it.
    pub seed: Option<u64>,
    /// Forebay made it, or is about to.
    pub ours: bool,
}

/// A drive whose times a source keeps, whatever its bytes come from.
#[derive(Clone, Debug)]
pub struct Timing {
    /// As the URI has it.
    pub spec: String,
    pub drive: DriveModel,
    /// Its I/Os take that time; else they are played in virtual time.
    pub real_time: bool,
}

/// A target to be: what a source stands for on this machine. `--dry-run` prints it.
#[derive(Clone, Debug)]
pub struct SourcePlan {
    pub source: Uri,
    /// Name in records and messages.
    pub label: String,
    /// The name that the content carries: without directories, so that data can move.
    pub content_name: String,
    /// Bytes that are used of it.
    pub bytes: u64,
    pub parts: Vec<SourcePlan>,
    pub file: Option<FilePlan>,
    pub timing: Option<Timing>,
    /// Open already, where only who connects knows what is there.
    pub connected: Option<Arc<dyn OpenSource>>,
}

impl Serialize for SourcePlan {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.source.document(self).serialize(serializer)
    }
}

impl SourcePlan {
    /// One of a source without content, parts or files.
    pub fn new(source: impl Into<Uri>, label: impl Into<String>, bytes: u64) -> SourcePlan {
        SourcePlan {
            source: source.into(),
            label: label.into(),
            content_name: String::new(),
            bytes,
            parts: Vec::new(),
            file: None,
            timing: None,
            connected: None,
        }
    }

    /// # Errors
    /// Of `Source::open`.
    pub fn open(&self, open: &dyn Open) -> Result<Arc<dyn OpenSource>, Error> {
        self.source.open(self, open)
    }

    /// All files below, depth first.
    pub fn files(&self) -> Vec<&FilePlan> {
        self.file.iter().chain(self.parts.iter().flat_map(SourcePlan::files)).collect()
    }

    /// A device that exists only on paper, played in virtual time.
    pub fn is_virtual(&self) -> bool {
        self.timing.as_ref().is_some_and(|timing| !timing.real_time)
    }

    /// Drives modelled in real time that take part in it, each with the plan that keeps its times.
    pub fn modelled(&self) -> Vec<(&SourcePlan, &Timing)> {
        match &self.timing {
            Some(timing) => timing.real_time.then_some((self, timing)).into_iter().collect(),
            None => self.parts.iter().flat_map(SourcePlan::modelled).collect(),
        }
    }
}
