//! Record of a run: bench's, with a repeat for each checkpoint and the part about checkpoints.

use super::thread_pool::StepRan;
use crate::opened::Direction;
use forebay_bench::{compose_record, requirements_of_record, Outcome, RanWindow, RecordContext};
use forebay_io::CpuReading;
use forebay_model::checkpoint::record::{Checkpoint, Phase, Turn};
use forebay_model::checkpoint::rules::{judge, Seen};
use forebay_model::checkpoint::CheckpointSpec;
use forebay_model::job::JobSpec;
use forebay_model::{warnings, Error, Latency};
use forebay_storage::{Destination, Target};
use std::sync::Arc;

/// The results of the run, as far as it got.
#[derive(Default)]
pub(crate) struct Story {
    steps: Vec<(Direction, StepRan)>,
    /// Ended between two checkpoints.
    pub interrupted: bool,
    pub write_to_read_s: Option<f64>,
    pub resident: Option<f64>,
}

impl Story {
    pub(crate) fn add(&mut self, way: Direction, ran: StepRan) {
        self.steps.push((way, ran));
    }

    pub(crate) fn is_unbegun(&self) -> bool {
        self.steps.is_empty()
    }

    /// Nothing was moved.
    pub(crate) fn is_empty(&self) -> bool {
        self.steps.iter().all(|(_, s)| s.ran.bytes() == 0)
    }

    fn phase(&self, way: Direction, spec: &CheckpointSpec) -> Option<Phase> {
        let bytes = spec.sizes().bytes();
        let done: Vec<&StepRan> =
            self.steps.iter().filter(|(w, s)| *w == way && s.is_whole()).map(|(_, s)| s).collect();
        let turns = done.iter().map(|s| turn(s, bytes)).collect();
        let (mut latency, mut fsync) = (Latency::default(), Latency::default());
        let tallies = || done.iter().flat_map(|s| &s.ran.tallies);
        tallies().flat_map(|t| &t.ways).for_each(|way| latency.merge(&way.latency));
        done.iter().for_each(|s| fsync.merge(&s.fsync));
        let verified = tallies().map(|t| t.verified_bytes).sum();
        Phase::from_checkpoints(turns, &latency, Some(&fsync).filter(|f| f.count() > 0), verified)
    }
}

fn turn(step: &StepRan, bytes: u64) -> Turn {
    let (moved, ios) = (step.ran.bytes(), step.ran.ios());
    let cores = forebay_io::online_cpus();
    let reading = step.ran.readings.cpu.as_ref();
    let cpu = reading.map(|r| CpuReading::fill(r, r.wall_s, moved, ios, cores)).unwrap_or_default();
    Turn::new(step.step, bytes, moved, &step.ranks, cpu)
}

pub(crate) struct Context<'a> {
    pub spec: &'a CheckpointSpec,
    pub job: JobSpec,
    pub reason: Option<String>,
    pub command: Vec<String>,
    pub started: u64,
    pub target: Target,
    pub destination: Arc<Destination>,
}

pub(crate) fn outcome(context: Context, story: Story, failed: Option<Error>) -> Outcome {
    let Context { spec, job, reason, command, started, target, destination } = context;
    let part = |way| story.phase(way, spec);
    let (write, read) = (part(Direction::Write), part(Direction::Read));
    let resident = story.resident.ok_or_else(|| "nothing was read".to_string());
    let (interrupted, in_memory) = (story.interrupted, target.files().iter().any(|(f, _)| f.in_memory));
    let write_to_read_s = story.write_to_read_s;
    let seen_resident = story.resident;
    let runs: Vec<RanWindow> = story.steps.into_iter().map(|(_, s)| s.ran).collect();
    let targets = [target];
    let mut record = compose_record(
        RecordContext {
            job: &job,
            command,
            started,
            targets: &targets,
            destination: &destination,
            requested: spec.path,
            reasons: reason.into_iter().collect(),
            calibration: Vec::new(),
            resident_before: resident,
            resident_after: Err("it is examined only before reading".into()),
        },
        &runs,
    );
    record.result.interrupted |= interrupted;
    let sizes = spec.sizes();
    let mut checkpoint = Checkpoint {
        workload: spec.workload.clone(),
        version: spec.version.clone(),
        rule_set: spec.rules,
        mode: spec.mode(),
        model: spec.cut(),
        parameters: spec.model.parameters(),
        ranks: spec.ranks(),
        ranks_whole: spec.model.ranks(),
        hosts: spec.hosts,
        scale: spec.scale,
        bytes: sizes.bytes(),
        model_bytes: sizes.model,
        optimizer_bytes: sizes.optimizer,
        files: sizes.files,
        between_s: spec.between_s,
        fsync: spec.fsync,
        shift: spec.shift,
        depth: spec.depth,
        write,
        read,
        write_to_read_s,
        ..Checkpoint::default()
    };
    let memory_bytes = record.environment.memory_bytes;
    checkpoint.rules = judge(spec, &checkpoint, Seen { memory_bytes, resident: seen_resident, in_memory });
    let unmetered = record.missing.get("result.cpu").cloned();
    note_missing(spec, &checkpoint, unmetered.as_deref(), &mut record.missing);
    record.checkpoint = Some(checkpoint);
    warnings::add(&mut record);
    let failure = failed.or_else(|| requirements_of_record(&job, &record));
    Outcome { record, failure }
}

fn note_missing(
    spec: &CheckpointSpec,
    checkpoint: &Checkpoint,
    unmetered: Option<&str>,
    missing: &mut std::collections::BTreeMap<String, String>,
) {
    let mut note = |field: &str, absent: bool, why: &str| {
        if absent {
            missing.insert(format!("checkpoint.{field}"), why.into());
        }
    };
    let none = |planned: u32| if planned == 0 { "none was requested" } else { "none was completed" };
    note("write", checkpoint.write.is_none(), none(spec.writes));
    note("read", checkpoint.read.is_none(), none(spec.reads));
    note("write_to_read_s", checkpoint.write_to_read_s.is_none(), "writing wasn't followed by reading");
    let no_flush = if spec.fsync { "no file is flushed for reading" } else { "--no-fsync" };
    note("write.fsync_us", checkpoint.write.as_ref().is_some_and(|p| p.fsync_us.is_none()), no_flush);
    note(
        "read.fsync_us",
        checkpoint.read.as_ref().is_some_and(|p| p.fsync_us.is_none()),
        "no file is flushed for reading",
    );
    for (name, phase) in [("write", &checkpoint.write), ("read", &checkpoint.read)] {
        let absent = phase.as_ref().is_some_and(|p| p.cpu_s_per_gib.is_none());
        note(&format!("{name}.cpu_s_per_gib"), absent, unmetered.unwrap_or("no bytes were moved"));
    }
    let unreported = checkpoint.rules.iter().any(|r| r.ok.is_none());
    note("rules[].ok", unreported, "the rule says why it can't be determined");
}
