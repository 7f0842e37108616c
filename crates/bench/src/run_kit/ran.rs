//! Results of one run, before they become a record.

use super::workers::Resources;
use super::{Readings, Tally};
use forebay_model::record::Errors;
use forebay_model::series::Point;
use forebay_model::Error;

/// The results of one run.
#[derive(Default)]
pub struct Ran {
    pub seconds: f64,
    pub tallies: Vec<Tally>,
    pub points: Vec<Point>,
    pub readings: Readings,
    pub interrupted: bool,
    pub steady_after_s: Option<f64>,
    /// Seconds in which the process stood still.
    pub stood_still_s: f64,
    /// Why a worker ended early.
    pub broken: Option<Error>,
    /// Totals over all workers; the smallest page size that any of them got.
    pub resources: Resources,
}

impl Ran {
    pub fn bytes(&self) -> u64 {
        self.tallies.iter().map(|t| t.bytes()).sum()
    }

    pub fn ios(&self) -> u64 {
        self.tallies.iter().map(|t| t.ios()).sum()
    }

    pub fn errors(&self) -> Errors {
        Errors::sum(self.tallies.iter().map(|t| &t.errors))
    }
}
