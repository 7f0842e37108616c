//! One rank in one checkpoint: its files, one after another.

use crate::opened::file::RunFile;
use std::collections::VecDeque;
use std::time::Duration;

/// The progress of a rank through a checkpoint.
#[derive(Debug)]
pub(crate) struct Flow {
    pub rank: u64,
    /// Files that it hasn't opened.
    pub waiting: VecDeque<RunFile>,
    /// The file whose bytes it moves, by its place in the worker's list.
    pub current: Option<usize>,
    /// Files of its that are open: while one is flushed the next is written.
    pub open: u32,
    pub in_flight: u32,
    /// When its last file was closed, since the checkpoint began.
    pub ended: Option<Duration>,
}

impl Flow {
    pub(crate) fn new(rank: u64, places: Vec<RunFile>) -> Flow {
        Flow { rank, waiting: places.into(), current: None, open: 0, in_flight: 0, ended: None }
    }

    /// All files were opened and closed.
    pub(crate) fn is_through(&self) -> bool {
        self.waiting.is_empty() && self.current.is_none() && self.open == 0
    }
}
