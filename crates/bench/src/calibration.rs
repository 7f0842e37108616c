//! Choice of what a job leaves open, made on the opened targets before anything is measured: the way of each target,
//! and the number of workers. What isn't known is tried for a moment, outside the measured time, and every trial
//! stands in the record.

mod measures;

use super::host_capacity::Unseen;
use super::{fleet, purpose, Observer};
use crate::doctor;
use forebay_io::{allowed_cpus, cache_residency, monotonic_now};
use forebay_model::job::{Cache, Engine, JobSpec, Origin, PathKind, DEPTH_MAX};
use forebay_model::record::Trial;
use forebay_model::units::format_bytes;
use forebay_model::Error;
use forebay_storage::{
    has_rings, reopened, Buffers, Destination, KnownPaths, MappedPath, OpenChoice, PathChoice, PathRate,
    PathSituation, PathTrial, Paths, Route, Target, TrialPasses, PATHS,
};
use measures::Measures;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Measured time of a trial, at most; after a third of that for warming up, where it may.
const TRIAL: Duration = Duration::from_millis(120);
/// Trials of one question take no longer than this together.
const TRIALS: Duration = Duration::from_millis(1300);
/// A job of fewer bytes is done before trials would be.
const BYTES_WORTH_TRYING: u64 = 256 << 20;
/// Workers for each GPU or pair.
const WORKERS: [u32; 7] = [1, 2, 4, 6, 8, 12, WORKERS_MOST];
const WORKERS_MOST: u32 = 16;
/// Number of workers where no trial is needed.
const WORKERS_USUAL: u32 = 4;
/// From this share on a target counts as cached.
const WARM_SHARE: f64 = 0.95;
/// Least ratio of the data to what is in flight.
const PARTS_IN_FLIGHT_MIN: u64 = 8;
/// Number of workers in trials of ways.
const WORKERS_TRYING: u32 = 8;

/// A job with its path, page cache and workers decided, and how they were.
pub(crate) struct Calibrated {
    pub job: JobSpec,
    pub reasons: Vec<String>,
    pub calibration: Vec<Trial>,
}

/// Targets that are in the same situation, and go the same way.
struct Group {
    open: OpenChoice,
    targets: Vec<usize>,
}

/// Settles paths, page cache and workers; the targets come back as they are to be used.
pub(crate) fn on(
    job: &JobSpec,
    targets: &mut [Target],
    seeds: &[u64],
    destination: &Arc<Destination>,
    observer: &mut dyn Observer,
) -> Result<Calibrated, Error> {
    let rings = has_rings(job.engine, job.sqpoll, job.iopoll, job.workers)?;
    let ring = rings.is_ok();
    let bytes = targets.iter().map(|t| t.bytes).fold(0, u64::saturating_add);
    let may_stay = bytes <= MappedPath::limits(job.pin_limit_bytes, 0, 0).cap_bytes;
    let mut settler = Settler {
        job: job.clone(),
        seeds,
        destination,
        observer,
        trials: Vec::new(),
        ring,
        may_stay,
        kept: None,
    };
    let mut reasons = by_target(job, targets, destination)?;
    if job.path.is_found() || job.cache == Cache::Auto {
        let groups = settler.groups(targets);
        let deeper = settler.depth(targets);
        for group in groups {
            reasons.push(settler.choose(&group, targets)?);
        }
        reasons.extend(deeper);
    }
    reasons.extend(settler.reads_fully(bytes));
    reasons.extend(settler.workers(targets)?);
    let by_threads = |t: &Target| t.files().iter().any(|(_, engine)| *engine == Engine::Pread);
    let instead = rings.err().filter(|_| job.engine == Engine::Auto && targets.iter().any(by_threads));
    reasons.extend(instead.map(|why| format!("a pool of threads (engine pread), since each worker {why}")));
    let Settler { mut job, trials, .. } = settler;
    if let Some(first) = targets.first().map(|t| t.route.path) {
        if job.path.is_found() && targets.iter().all(|t| t.route.path == first) {
            job.path = first;
        }
    }
    Ok(Calibrated { job, reasons, calibration: trials })
}

/// Returns the path of each target of a job by one path; most take that one. Says what decided otherwise.
fn by_target(job: &JobSpec, targets: &mut [Target], destination: &Destination) -> Result<Vec<String>, Error> {
    let Some(path) = Paths::find(job.path) else { return Ok(Vec::new()) };
    let mut said = Vec::new();
    for target in targets {
        let why;
        (target.route.path, why) = path.resolve(job, target, destination)?;
        said.extend(why);
    }
    said.dedup();
    Ok(said)
}

struct Settler<'a> {
    job: JobSpec,
    seeds: &'a [u64],
    destination: &'a Arc<Destination>,
    observer: &'a mut dyn Observer,
    trials: Vec<Trial>,
    /// io_uring can be had.
    ring: bool,
    /// All targets together may stay registered with a GPU.
    may_stay: bool,
    /// Trials of one number of workers after the other register once.
    kept: Option<Arc<Destination>>,
}

impl Settler<'_> {
    fn groups(&self, targets: &[Target]) -> Vec<Group> {
        let mut known = KnownPaths::by(doctor::gds_verdict);
        let mut groups: Vec<Group> = Vec::new();
        for (t, target) in targets.iter().enumerate() {
            let open = self.open(target, &mut known);
            match groups.iter_mut().find(|g| g.open.ways == open.ways) {
                Some(group) => group.targets.push(t),
                None => groups.push(Group { open, targets: vec![t] }),
            }
        }
        groups
    }

    /// The ways that the path asked for leaves; it runs as asked even where `auto` wouldn't take it.
    fn open(&self, target: &Target, known: &mut KnownPaths) -> OpenChoice {
        let situation = self.situation(target, known);
        let mut open = situation.open();
        if let Some(why) = situation.no_direct().filter(|_| target.is_by_card()) {
            open.because = why;
        }
        if let Some(path) = Paths::find(self.job.path) {
            let cached = path.cached().unwrap_or_else(|| open.ways.iter().all(|w| w.cached));
            open.ways = vec![PathChoice { path: target.route.path, cached }];
        }
        open
    }

    fn situation(&self, target: &Target, known: &mut KnownPaths) -> PathSituation {
        let job = &self.job;
        let files = target.files();
        let medium = target.medium();
        let mut cannot = BTreeMap::new();
        // What the path asked for can't do shows when it is tried.
        for path in PATHS.iter().filter(|_| job.path.is_found() && self.destination.feeds_gpu()) {
            let able = match path.accepts(&medium) {
                true => path.can(target, self.destination, known),
                false => Err(format!("it can only serve {}", path.serves())),
            };
            able.err().and_then(|why| cannot.insert(path.kind(), why));
        }
        PathSituation {
            gpu: self.destination.feeds_gpu(),
            writes: job.writes(),
            bytes: files.iter().map(|(f, _)| f.bytes).min().unwrap_or(0),
            io_bytes: job.io_bytes,
            is_random: job.op.is_random(),
            tried: true,
            may_stay: self.may_stay,
            resident: resident(target),
            cache: job.cache,
            direct: files.iter().any(|(f, _)| f.direct) || files.is_empty(),
            cannot,
            require_direct: job.require_direct,
        }
    }

    /// Settles the way of a group: the only one, or the best of those tried.
    fn choose(&mut self, group: &Group, targets: &mut [Target]) -> Result<String, Error> {
        let OpenChoice { ways, because } = &group.open;
        if self.job.require_direct && !Paths::by_kind(ways[0].path).may_go_direct() {
            return Err(Error::machine(
                "‹require_direct› with ‹path› auto",
                because.clone(),
                "forebay doctor",
            ));
        }
        let bytes: u64 = group.targets.iter().map(|t| targets[*t].bytes).sum();
        let tries = ways.len() > 1 && self.is_worth_trying(bytes);
        let (way, shown) =
            if tries { self.try_ways(group, targets)? } else { (self.untried(ways), String::new()) };
        for t in &group.targets {
            targets[*t] = self.routed(&targets[*t], way)?;
        }
        let which = match group.targets.len() {
            n if n == targets.len() => String::new(),
            1 => format!(" for {}", targets[group.targets[0]].label),
            n => format!(" for {n} targets"),
        };
        let short = if ways.len() > 1 && !tries { "; too few bytes for a trial" } else { "" };
        let chose = if self.job.path.is_found() { "auto chose" } else { "‹cache› auto:" };
        if targets[group.targets[0]].files().is_empty() {
            let because = match targets[group.targets[0]].is_by_card() {
                true if self.job.path.is_found() && self.destination.feeds_gpu() => {
                    match Paths::by_kind(way.path).may_go_direct() {
                        true => " (the card takes the GPU's memory, by dma-buf)".to_owned(),
                        false => format!(" ({because})"),
                    }
                }
                _ => String::new(),
            };
            return Ok(format!("{chose} {}{which}{because}", Paths::name_of(way.path)));
        }
        Ok(format!("{chose} {way}{which} ({because}{short}{shown})"))
    }

    /// The way that is taken on trust: for a single pass one that doesn't first pay for later ones.
    fn untried(&self, ways: &[PathChoice]) -> PathChoice {
        let first_free = || ways.iter().find(|way| !keeps_what_it_paid_for(way.path)).copied();
        self.is_one_pass().then(first_free).flatten().unwrap_or(ways[0])
    }

    /// The job comes by the same bytes once only.
    fn is_one_pass(&self) -> bool {
        self.job.passes == Some(1) && self.job.repeat <= 1
    }

    /// The best way, and what each gave, in words. A way that fails in its trial isn't one.
    fn try_ways(&mut self, group: &Group, targets: &[Target]) -> Result<(PathChoice, String), Error> {
        let workers = match self.job.workers_from {
            Origin::Given => self.job.workers,
            _ => WORKERS_TRYING.min(cores()) * self.destination.turns(),
        };
        let (mut tried, mut words, mut refusal) = (Vec::new(), String::new(), None);
        for way in &group.open.ways {
            let own = group.targets.iter().map(|t| self.routed(&targets[*t], *way));
            let own = own.collect::<Result<Vec<_>, _>>();
            match own.and_then(|own| self.try_way(*way, &own, &group.targets, workers)) {
                Ok((found, said)) => {
                    words.push_str(&said);
                    tried.push(found);
                }
                Err(e) => {
                    words.push_str(&format!("; {way} failed: {}", e.found));
                    refusal = Some(e);
                }
            }
        }
        let bytes = group.targets.iter().map(|t| targets[*t].bytes).fold(0, u64::saturating_add);
        let foretold = PathTrial::foretold(&tried, self.passes(bytes, &tried));
        let best = tried.get(PathRate::pick(&foretold, self.job.prefer)).map(|tried| tried.way);
        match (best, refusal) {
            (Some(way), _) => Ok((way, words)),
            (None, Some(e)) => Err(e),
            (None, None) => unreachable!("a group has a way"),
        }
    }

    /// Measures a way, and describes the result. What its first pass pays for, later ones have: both are tried.
    fn try_way(
        &mut self,
        way: PathChoice,
        targets: &[Target],
        numbers: &[usize],
        workers: u32,
    ) -> Result<(PathTrial, String), Error> {
        let keeps = keeps_what_it_paid_for(way.path);
        let of = if keeps { Measures::FirstPass } else { Measures::Steady };
        let mut first = self.trial(of, targets, numbers, workers)?;
        let most = cores().min(WORKERS_MOST) * self.destination.turns();
        let more = self.job.workers_from != Origin::Given && way.cached && !keeps && most > workers;
        if more && Paths::by_kind(way.path).tries_workers() {
            // Who copies by processors may need them all.
            let other = self.trial(of, targets, numbers, most)?;
            first = if other.gib_s > first.gib_s { other } else { first };
        }
        let mut words = format!("; {way} {}", reported(&first));
        let mut later = None;
        if keeps && !self.is_one_pass() {
            let trial = self.trial(Measures::LaterPasses { set_up: false }, targets, numbers, workers)?;
            words.push_str(&format!(" at first, then {}", reported(&trial)));
            later = Some(gave(&trial));
        }
        Ok((PathTrial { way, gave: gave(&first), later }, words))
    }

    /// The target opened for this way.
    fn routed(&self, target: &Target, way: PathChoice) -> Result<Target, Error> {
        let warm = way.cached && resident(target).is_some_and(|share| share > 0.99);
        let opened = reopened(&purpose::of_job(&self.job, workers_most())?, target, way, warm, self.ring)?;
        Ok(Target { route: Route { path: way.path, ..target.route }, ..opened })
    }

    /// Estimates how often the job reads the same bytes, from what was tried.
    fn passes(&self, bytes: u64, tried: &[PathTrial]) -> TrialPasses {
        let repeats = f64::from(self.job.repeat);
        let rates = || tried.iter().flat_map(|t| [Some(t.gave), t.later]).flatten().map(|g| g.gib_s);
        let most = rates().fold(0.0, f64::max);
        let first = tried.iter().filter(|t| t.later.is_some()).map(|t| t.gave.gib_s).fold(most, f64::min);
        let per_pass = |seconds: f64, rate: f64| seconds * rate * super::record::GIB / bytes.max(1) as f64;
        let of_time = self.job.measured_s().map(|seconds| per_pass(seconds, most));
        let of_passes = self.job.passes.map(f64::from);
        let measured = repeats * [of_time, of_passes].into_iter().flatten().fold(f64::INFINITY, f64::min);
        let unmeasured = per_pass(self.job.warmup_seconds(), first);
        TrialPasses { all: measured + unmeasured, unmeasured }
    }

    /// Short random reads out of the page cache, of which nobody said how many are in flight, are as many as keep a GPU busy.
    fn depth(&mut self, targets: &[Target]) -> Option<String> {
        let job = &mut self.job;
        let bypasses = matches!(job.cache, Cache::Bypass | Cache::Drop) || job.require_direct;
        let cached = |t: &Target| resident(t).is_some_and(|share| share >= WARM_SHARE);
        if bypasses || !self.destination.feeds_gpu() || !targets.iter().all(cached) {
            return None;
        }
        *job = deeper(job)?;
        Some(format!("‹depth› {}: short reads of cached data go to the GPU together", job.depth))
    }

    /// Sets the I/O size and depth that the path needs for its full rate, where they were left open.
    fn reads_fully(&mut self, bytes: u64) -> Option<String> {
        let job = &mut self.job;
        let path = Paths::find(job.path)?;
        let (io_bytes, in_flight) = path.full_rate(job)?;
        if job.depth_from != Origin::Default || job.batch.is_some() {
            return None;
        }
        let room = bytes / PARTS_IN_FLIGHT_MIN / u64::from(job.workers.max(1));
        let free = job.io_from == Origin::Default && in_flight <= room;
        let each = if free { io_bytes } else { job.io_bytes_largest().max(1) };
        let depth = (in_flight.min(room) / each).min(DEPTH_MAX.into()) as u32;
        if depth <= job.depth && !free {
            return None;
        }
        let mut said = format!("‹depth› {depth}");
        if free && each != job.io_bytes {
            (job.io_bytes, job.io_from) = (each, Origin::Auto);
            said = format!("‹io_bytes› {}, {said}", format_bytes(each));
        }
        (job.depth, job.depth_from) = (depth, Origin::Auto);
        Some(format!("{said}: what {} needs for its full rate", path.name()))
    }

    /// Passes over little data end before trials would.
    fn is_worth_trying(&self, bytes: u64) -> bool {
        let passes = match (self.job.passes, self.job.duration_s) {
            (Some(passes), None) => u64::from(passes) * u64::from(self.job.repeat),
            _ => return true,
        };
        bytes.saturating_mul(passes) >= BYTES_WORTH_TRYING
    }

    /// Decides the number of workers: as requested, or as trials find.
    fn workers(&mut self, targets: &[Target]) -> Result<Option<String>, Error> {
        if !self.finds_workers(targets) {
            return Ok(None);
        }
        let turns = self.destination.turns().max(self.job.pairs.len() as u32);
        self.job.workers_from = Origin::Auto;
        let most = self.workers_most(targets);
        self.job.workers = (WORKERS_USUAL.min(cores()).max(1) * turns).min(most);
        let bytes = targets.iter().map(|t| t.bytes).fold(0, u64::saturating_add);
        if !self.is_worth_trying(bytes) {
            return Ok(Some(format!("{} workers: too few bytes for a trial", self.job.workers)));
        }
        if self.job.cache == Cache::Drop || targets.iter().any(would_warm) {
            let found = "a trial would bring the data into the page cache";
            return Ok(Some(format!("{} workers: {found}", self.job.workers)));
        }
        let all: Vec<usize> = (0..targets.len()).collect();
        let pays = targets.iter().any(|t| keeps_what_it_paid_for(t.route.path));
        let mut of = match (pays, self.is_one_pass()) {
            (true, true) => Measures::FirstPass,
            (true, false) => Measures::LaterPasses { set_up: false },
            (false, _) => Measures::Steady,
        };
        // What the first of these trials registers, the others find.
        let all_keep = targets.iter().all(|t| keeps_what_it_paid_for(t.route.path));
        self.kept = (pays && all_keep).then(|| Arc::new(self.destination.afresh()));
        let (mut tried, mut began): (Vec<(u32, f64)>, Instant) = (Vec::new(), monotonic_now());
        let few = |w: &u32| *w <= most.max(turns);
        for workers in WORKERS.iter().filter(|w| **w <= cores()).map(|w| w * turns).filter(few) {
            let spent = began.elapsed();
            // One trial alone tells nothing.
            let late = tried.len() >= 2 && spent + spent / tried.len() as u32 > TRIALS;
            if PathChoice::is_flat(&tried) || late || self.observer.stop() {
                break;
            }
            tried.push((workers, self.trial(of, targets, &all, workers)?.gib_s));
            if of.sets_up() {
                began = monotonic_now();
            }
            of = of.again();
        }
        self.kept = None;
        let Some(found) = PathChoice::fewest(&tried) else { return Ok(None) };
        self.job.workers = found;
        let from: Vec<String> = tried.iter().map(|(w, rate)| format!("{w}: {rate:.3}")).collect();
        Ok(Some(format!("{found} workers, the fewest within 2 % of the best of {} GiB/s", from.join(", "))))
    }

    /// The most workers that these targets can serve at once.
    fn workers_most(&self, targets: &[Target]) -> u32 {
        let each = targets.iter().map(Target::workers_most).min().unwrap_or(u32::MAX);
        let each = if self.job.whole_files { each.min(targets.len() as u32) } else { each };
        each.saturating_mul(self.job.pairs.len().max(1) as u32)
    }

    fn finds_workers(&self, targets: &[Target]) -> bool {
        let by_copies = |t: &Target| Paths::by_kind(t.route.path).tries_workers();
        match self.job.workers_from {
            Origin::Given => false,
            Origin::Auto => true,
            Origin::Default => self.destination.feeds_gpu() && targets.iter().any(by_copies),
        }
    }

    /// The job for a moment, with so many workers, on these of its targets; for longer where nothing came in it.
    fn trial(
        &mut self,
        of: Measures,
        targets: &[Target],
        numbers: &[usize],
        workers: u32,
    ) -> Result<Trial, Error> {
        let workers = workers.min(self.workers_most(targets));
        let mut trial = self.trial_of(of, TRIAL, (targets, numbers), workers)?;
        for longer in [4, 16] {
            if trial.gib_s > 0.0 {
                break;
            }
            trial = self.trial_of(of, TRIAL * longer, (targets, numbers), workers)?;
        }
        self.trials.push(trial.clone());
        Ok(trial)
    }

    fn trial_of(
        &mut self,
        of: Measures,
        time: Duration,
        (targets, numbers): (&[Target], &[usize]),
        workers: u32,
    ) -> Result<Trial, Error> {
        let seeds: Vec<u64> = numbers.iter().map(|n| self.seeds[*n]).collect();
        let most = of.bytes_of_each(&self.job, targets.len());
        // A group may lack the targets of a pair, whose workers then take those of others.
        let together = numbers.len() < self.seeds.len();
        let anybodys = |t: &Target| match together {
            true => Target { route: Route { pair: None, ..t.route }, ..t.clone() },
            false => t.clone(),
        };
        let own: Vec<Target> = targets.iter().map(anybodys).collect();
        let own: Vec<Target> = own.into_iter().map(|t| Target { bytes: t.bytes.min(most), ..t }).collect();
        let bytes = own.iter().map(|t| t.bytes).fold(0, u64::saturating_add);
        let job = of.job(&self.job, bytes, time, workers);
        let kept = self.kept.clone().filter(|_| of.keeps());
        let destination = kept.unwrap_or_else(|| Arc::new(self.destination.afresh()));
        destination.attach(&job, &own)?;
        let ran = fleet::run_once(&job, &own, &seeds, destination, &mut Unseen(self.observer))?;
        if let Some(e) = &ran.broken {
            return Err(e.clone());
        }
        let errors = ran.errors();
        if errors.failed + errors.timed_out > 0 {
            return Err(Error::run("a trial", errors.examples.join("; "), "forebay doctor"));
        }
        Ok(super::record::trial_of(&own, &ran, job.workers))
    }
}

fn keeps_what_it_paid_for(path: PathKind) -> bool {
    Paths::find(path).is_some_and(|path| path.keeps_what_it_paid_for())
}

fn gave(trial: &Trial) -> PathRate {
    PathRate { gib_s: trial.gib_s, cpu_s_per_gib: trial.cpu_s_per_gib }
}

fn reported(trial: &Trial) -> String {
    let cost = trial.cpu_s_per_gib.map(|c| format!(" at {c:.3} CPU-s/GiB")).unwrap_or_default();
    format!("{:.3} GiB/s{cost}", trial.gib_s)
}

/// The job with as many short random reads in flight as keep a GPU busy, where `auto` may say how many.
pub(crate) fn deeper(job: &JobSpec) -> Option<JobSpec> {
    let open = job.path.is_found() && job.depth_from == Origin::Default;
    let depth = Buffers::depth_of_short(job).filter(|_| open)?;
    Some(JobSpec { depth, depth_from: Origin::Auto, ..job.clone() })
}

/// The most workers for each GPU that trials are run with.
pub(crate) fn workers_most() -> u32 {
    WORKERS.into_iter().filter(|w| *w <= cores()).max().unwrap_or(1).max(WORKERS_TRYING)
}

/// Processors that this process may use.
fn cores() -> u32 {
    (allowed_cpus().len() as u32).max(1)
}

/// Share of the target's pages in the page cache; None where that can't be told.
fn resident(target: &Target) -> Option<f64> {
    let files = target.files();
    let total: u64 = files.iter().map(|(f, _)| f.bytes).sum();
    let of = |f: &forebay_storage::FileTarget| match f.in_memory {
        true => Some(1.0),
        false => cache_residency(&f.file, 0, f.bytes).ok(),
    };
    let shares = files.iter().map(|(f, _)| Some(of(f)? * f.bytes as f64)).sum::<Option<f64>>()?;
    (total > 0).then(|| shares / total as f64)
}

/// Reading it through the page cache would change what a later read finds there.
fn would_warm(target: &Target) -> bool {
    let buffered = target.files().iter().any(|(f, _)| !f.direct && !f.in_memory);
    buffered && resident(target).is_none_or(|share| share < WARM_SHARE)
}
