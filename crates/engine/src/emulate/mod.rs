//! Emulated training: accelerators that take batches, compute for as long as real
//! ones would, and wait for each other, fed from real storage by as few threads as
//! that takes.
//!
//! One process emulates any number of accelerators. Nothing sleeps for one: the
//! scheduler (`forebay_model::training`) computes when each step begins from when
//! batches became whole, and a few workers read whatever is needed first. What a run
//! came to is a record with a part `training`.

mod board;
mod conduct;
mod dataset;
mod headroom;
mod how;
mod manifest;
mod reading;
mod record;
mod supply;
mod uring;
mod virtual_time;
mod worker;

pub use conduct::run;

use crate::driver::threads;
use crate::format::{self, FormatRow, ParseSpec};
use board::Board;
use dataset::Folder;
use forebay_model::record::RunRecord;
use forebay_model::training::{EmulateSpec, Level, OnError, Plan, Trace};
use forebay_model::Error;
use how::How;
use reading::Reading;
use serde::Serialize;
use std::time::Instant;
use supply::Supply;

/// Who watches an emulated run, and may end it.
pub trait EmulateObserver {
    fn progress(&mut self, progress: &EmulateProgress);

    /// Asked some twenty times a second; true ends the run, and what was measured is kept.
    fn stop(&mut self) -> bool;
}

/// How a run is doing, once per interval.
#[derive(Clone, Debug, Serialize)]
pub struct EmulateProgress {
    /// `prepare` or `run`.
    pub phase: &'static str,
    /// From 1.
    pub epoch: u32,
    pub epochs: u32,
    pub step: u32,
    pub steps: u32,
    pub t_s: f64,
    /// Of this epoch so far, by the run's rule set; null before it says anything.
    pub au_pct: Option<f64>,
    /// Over the last interval.
    pub gib_s: f64,
    /// Accelerators that wait for a batch now, eight at most.
    pub waiting_ranks: Vec<u32>,
    pub cores_busy: f64,
}

/// A record, and what is wrong with the run that it tells of.
#[derive(Debug)]
pub struct Outcome {
    pub record: RunRecord,
    pub failure: Option<Error>,
}

/// Everything that can be found wrong without touching the data.
pub fn check(spec: &EmulateSpec) -> Result<(), Error> {
    spec.check()?;
    row_of(spec)?;
    how::check_engine(spec.engine)?;
    cpus_of(spec).map(|_| ())
}

fn row_of(spec: &EmulateSpec) -> Result<&'static FormatRow, Error> {
    let name = &spec.workload.format;
    format::row(name).ok_or_else(|| {
        let known: Vec<&str> = format::FORMATS.iter().map(|row| row.name).collect();
        let asked = format!("workload {}: format = {name}", spec.workload.name);
        Error::request(asked, "this version doesn't know the format", known.join(", "))
    })
}

/// Processors that workers are pinned to, in turn; none: they run anywhere.
fn cpus_of(spec: &EmulateSpec) -> Result<Vec<u32>, Error> {
    let Some(text) = &spec.cpus else { return Ok(Vec::new()) };
    let refused = |found: String, next: &str| Error::request(format!("--cpus {text}"), found, next);
    let cpus = threads::parse_cpus(text).map_err(|why| refused(why, "--cpus 0-3,8"))?;
    let allowed = threads::allowed();
    match cpus.iter().find(|cpu| !allowed.contains(cpu)) {
        Some(cpu) => Err(refused(format!("CPU {cpu} isn't one that this process may use"), "taskset -p $$")),
        None => Ok(cpus),
    }
}

/// What all threads of a run share.
pub struct Shared {
    pub spec: EmulateSpec,
    pub row: &'static FormatRow,
    pub files: u32,
    pub data: Folder,
    pub how: How,
    pub plan: Plan,
    pub trace: Trace,
    pub board: Board,
    pub supply: Option<Supply>,
    pub cpus: Vec<u32>,
    pub begin: Instant,
}

impl Shared {
    /// Since the run began, ns.
    pub fn since(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.begin).as_nanos() as u64
    }

    /// What reads a stream, at the level that was asked for.
    pub fn reading(&self) -> Reading {
        let samples_per_file = self.spec.workload.samples_per_file;
        let skips = self.spec.on_error == OnError::Skip;
        let parse = ParseSpec { samples_per_file, skips };
        let parser = (self.spec.level == Level::Parse).then(|| (self.row.parser)(&parse));
        Reading::new(parser, samples_per_file)
    }
}
