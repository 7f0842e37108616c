//! Draft of a source on this machine: looked at, and nothing touched. `--dry-run` prints it.

use super::file::FileBacking;
use super::model::ModelDraft;
use super::nvme_tcp::{self, Remote};
use super::vfio_user::{self, Drive};
use super::{Backing, SharedDrive, Target};
use forebay_model::device::DriveModel;
use forebay_model::Error;
use serde::{Serialize, Serializer};
use std::fmt;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;

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

/// Observer of sources: a job, a server. `wanted`: bytes to be used of it, where somebody said.
pub trait Look {
    /// The file or block device of that name; of a folder's name, one in it.
    fn file(&mut self, path: &Path, wanted: Option<u64>) -> Result<FilePlan, Error>;

    /// A namespace over a fabric, and how much of it is used. Connects to it: only the controller knows what it is.
    fn remote(
        &mut self,
        options: &nvme_tcp::Options,
        wanted: Option<u64>,
    ) -> Result<(Arc<Remote>, u64), Error>;

    /// The same of an emulated drive.
    fn drive(
        &mut self,
        options: &vfio_user::Options,
        wanted: Option<u64>,
    ) -> Result<(Arc<Drive>, u64), Error>;

    /// Checks that the model knows what is asked of it.
    fn model(&mut self, drive: &DriveModel) -> Result<(), Error>;
}

/// Opener of drafts.
pub trait Open {
    fn file(&self, file: &FilePlan) -> Result<FileBacking, Error>;

    /// A modelled drive at its beginning.
    fn timed(&self, drive: &DriveModel) -> SharedDrive;

    fn target(&self, draft: &Draft) -> Result<Target, Error>;
}

/// A draft of one kind of source.
pub trait Drafted: fmt::Debug + Send + Sync {
    /// Name in records and messages.
    fn label(&self) -> String;

    /// The name that the content carries: without directories, so that data can move.
    fn content_name(&self) -> String;

    /// Bytes that are used of it.
    fn bytes(&self) -> u64;

    fn parts(&self) -> &[Draft] {
        &[]
    }

    fn file(&self) -> Option<&FilePlan> {
        None
    }

    fn model(&self) -> Option<&ModelDraft> {
        None
    }

    fn open(&self, open: &dyn Open) -> Result<Arc<dyn Backing>, Error>;

    /// An object for people's programs, with `kind` in it.
    fn document(&self) -> serde_json::Value;
}

/// A target to be.
#[derive(Clone, Debug)]
pub struct Draft(Arc<dyn Drafted>);

impl<D: Drafted + 'static> From<D> for Draft {
    fn from(drafted: D) -> Draft {
        Draft(Arc::new(drafted))
    }
}

impl Deref for Draft {
    type Target = dyn Drafted;

    fn deref(&self) -> &(dyn Drafted + 'static) {
        &*self.0
    }
}

impl Serialize for Draft {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.document().serialize(serializer)
    }
}

impl Draft {
    /// All files below, depth first.
    pub fn files(&self) -> Vec<&FilePlan> {
        let below = self.0.parts().iter().flat_map(Draft::files);
        self.0.file().into_iter().chain(below).collect()
    }

    /// A device that exists only on paper, played in virtual time.
    pub fn is_virtual(&self) -> bool {
        self.0.model().is_some_and(|model| !model.real_time)
    }

    /// Models in real time that take part in it.
    pub fn models(&self) -> Vec<&ModelDraft> {
        match self.0.model() {
            Some(model) => model.real_time.then_some(model).into_iter().collect(),
            None => self.0.parts().iter().flat_map(Draft::models).collect(),
        }
    }
}
