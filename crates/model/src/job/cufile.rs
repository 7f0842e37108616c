//! cuFile's part of a job.

use serde::{Deserialize, Serialize};

/// Interface of cuFile that `gds` calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CuFileMode {
    /// cuFileRead and cuFileWrite, one call per I/O (gdsio's -x 0).
    Sync,
    /// cuFileReadAsync and cuFileWriteAsync, each on a CUDA stream (-x 5).
    Stream,
    /// cuFileBatchIOSubmit (-x 6).
    Batch,
    /// Groups of stream calls with one event behind each (-x 7).
    BatchStream,
}

impl CuFileMode {
    pub fn name(self) -> &'static str {
        match self {
            CuFileMode::Sync => "sync",
            CuFileMode::Stream => "stream",
            CuFileMode::Batch => "batch",
            CuFileMode::BatchStream => "batch-stream",
        }
    }

    pub fn batches(self) -> bool {
        matches!(self, CuFileMode::Batch | CuFileMode::BatchStream)
    }
}
