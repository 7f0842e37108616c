//! Emulated training: accelerators that take batches, compute for as long as real
//! ones would, and wait for each other, fed from real storage by as few threads as
//! that takes.
//!
//! One process emulates any number of accelerators. Nothing sleeps for one: the
//! scheduler (`forebay_model::training`) computes when each step begins from when
//! batches became whole, and a few workers read whatever is needed first. What a run
//! came to is a record with a part `training`.

mod dataset;
mod destination;
mod direct;
mod direct_file;
mod headroom;
mod io_mode;
mod manifest;
mod packed;
mod reading;
mod record;
mod route;
mod run;
mod run_state;
mod supply;
mod uring;
mod virtual_time;
mod worker;

pub use run::run_emulation;

use crate::format::pick::PickSpec;
use crate::format::{self, FormatRow, ParseSpec};
use dataset::DataSet;
use direct::DirectReads;
use forebay_io::{named_cpus, Rate};
use forebay_model::record::RunRecord;
use forebay_model::training::{EmulateSpec, Level, OnError, Plan, Trace};
use forebay_model::Error;
use forebay_storage::SharedDrive;
use io_mode::IoMode;
use reading::{FilePart, Reading};
use route::Route;
use run_state::RunState;
use serde::Serialize;
use std::sync::Arc;
use std::time::Instant;

/// Accelerators of other hosts, with which every step ends together.
pub trait StepBarrier: Send {
    /// Returns once all hosts have ended the step. Called by one thread, step by step.
    fn pass(&mut self, epoch: u32, step: u32) -> Result<(), Error>;
}

/// Progress of a run, once per interval.
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
    /// Utilisation of this epoch so far, by the run's rule set; null before it says anything.
    pub au_pct: Option<f64>,
    /// Over the last interval.
    pub gib_s: f64,
    /// Accelerators of this host that wait for a batch now, eight at most.
    pub waiting_ranks: Vec<u32>,
    pub cores_busy: f64,
}

/// A record, and what is wrong with the run that it tells of.
#[derive(Debug)]
pub struct EmulateOutcome {
    pub record: RunRecord,
    pub failure: Option<Error>,
}

/// Everything that can be found wrong without touching the data.
pub fn check_emulation(spec: &EmulateSpec) -> Result<(), Error> {
    spec.check()?;
    let row = row_of(spec)?;
    check_decode(spec, row)?;
    route::check(spec, row)?;
    if dataset::is_files(spec)? {
        io_mode::check_engine(spec.engine)?;
    }
    dataset::check_globs(spec)?;
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

fn check_decode(spec: &EmulateSpec, row: &FormatRow) -> Result<(), Error> {
    if !spec.decode || row.decoder.is_some() {
        return Ok(());
    }
    let images = format::FORMATS.iter().filter(|row| row.decoder.is_some()).map(|row| row.name);
    let next = format!("a workload of {}", images.collect::<Vec<_>>().join(", "));
    Err(Error::request(format!("--decode of {} files", row.name), "they hold no images", next))
}

/// Processors that workers are pinned to, in turn; none: they run anywhere.
fn cpus_of(spec: &EmulateSpec) -> Result<Vec<u32>, Error> {
    let Some(text) = &spec.cpus else { return Ok(Vec::new()) };
    named_cpus("‹cpus›", text)
}

/// State that all threads of a run share.
pub(crate) struct Shared {
    pub spec: EmulateSpec,
    pub row: &'static FormatRow,
    pub files: u32,
    pub data: DataSet,
    pub io_mode: IoMode,
    pub route: Route,
    pub plan: Plan,
    pub trace: Trace,
    // What reads and what they read into go before what both go through.
    pub run_state: RunState,
    pub direct_reads: Option<DirectReads>,
    pub supply: Option<Arc<Rate>>,
    pub model: Option<SharedDrive>,
    pub cpus: Vec<u32>,
    pub begin: Instant,
}

impl Shared {
    /// Since the run began, ns.
    pub(crate) fn since(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.begin).as_nanos() as u64
    }

    /// Returns the reader of a stream at the requested level.
    pub(crate) fn reading(&self) -> Reading {
        let samples_per_file = self.spec.workload.samples_per_file;
        let (checks, skips) = (self.spec.level == Level::Parse, self.spec.on_error == OnError::Skip);
        let columns = self.spec.workload.columns.clone().unwrap_or_default();
        let way = match (self.row.picker)(&PickSpec { samples_per_file, columns, checks, skips }) {
            Some(picker) => FilePart::Picked(picker),
            None => FilePart::Whole(checks.then(|| {
                let spec = ParseSpec { samples_per_file, skips, ..ParseSpec::default() };
                self.row.reader(&spec, self.spec.decode)
            })),
        };
        Reading::new(way, samples_per_file)
    }
}
