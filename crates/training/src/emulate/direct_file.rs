//! A file that goes directly into a GPU, while anybody reads it.

use forebay_storage::{DirectMeans, FileTarget};
use std::sync::Arc;

/// A file that the means know, as long as anybody has this.
pub(crate) struct DirectFile {
    pub target: FileTarget,
    means: Arc<dyn DirectMeans>,
}

impl Drop for DirectFile {
    fn drop(&mut self) {
        self.means.forget(&self.target);
    }
}

impl DirectFile {
    /// The means know it already.
    pub(crate) fn new(target: FileTarget, means: Arc<dyn DirectMeans>) -> DirectFile {
        DirectFile { target, means }
    }
}
