//! An emulated run on a modelled drive in virtual time: the same trace, the same scheduler and the same
//! formulas as on storage, and no clock.
//!
//! The client is as good as it can be: reads are handed out in the order in which batches need them, `in_flight`
//! at a time, and parsing takes no time. So utilisation is a bound that the drive sets, not the host.

use super::record::{Latencies, Timing, Training};
use super::scheduler::{Grant, Plan, RankStreams, Scheduler};
use super::spec::{EmulateSpec, Workload};
use super::trace::{Stream, Trace};
use crate::device::{DriveModel, Timeline};
use crate::job::Op;
use crate::random::{derive, Xoshiro256};
use crate::series::Point;
use crate::units::GIB;
use crate::{Error, Latency};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// Files are laid out one after another, each from a multiple of this.
const FILE_ALIGN: u64 = 4096;
/// Some minutes of arithmetic.
const IOS_MAX: u64 = 1 << 31;
const POINTS_MAX: u64 = 1 << 20;
/// I/Os after which the caller is asked whether to go on.
const QUESTION_IOS: u64 = 1 << 16;

/// Setup of the modelled drive's reader.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Bytes of each file.
    pub files: Vec<u64>,
    /// I/Os in flight, of all accelerators together.
    pub in_flight: u32,
    pub io_bytes: u64,
}

/// The result of a simulation.
#[derive(Clone, Debug)]
pub struct Simulated {
    pub training: Training,
    pub read: Latency,
    pub seconds: f64,
    pub bytes: u64,
    pub ios: u64,
    /// Busy share of the drives' bandwidth servers, 0 to 1.
    pub utilisation: f64,
    pub series: Vec<Point>,
    /// It was ended early.
    pub interrupted: bool,
}

/// Sizes of a workload's files as its tool draws them, from random numbers of our own: a sample is a square of bytes
/// whose sides are normally distributed. Without a deviation all are alike.
pub fn file_sizes(workload: &Workload, files: u32, seed: u64) -> Vec<u64> {
    let samples = u64::from(workload.samples_per_file);
    if workload.record_bytes_stdev == 0.0 {
        return vec![(workload.record_bytes * samples as f64).round() as u64; files as usize];
    }
    let side = workload.record_bytes.sqrt();
    let deviation = workload.record_bytes_stdev / 2.0 / side;
    let mut random = Xoshiro256::new(derive(seed, 0x7369_7A65));
    let mut draw = || (side + deviation * normal(&mut random)).max(1.0).floor();
    (0..files).map(|_| (draw() * draw()) as u64 * samples).collect()
}

/// A standard normal variate (Box, Muller 1958).
fn normal(random: &mut Xoshiro256) -> f64 {
    let (a, b) = (1.0 - random.next_f64(), random.next_f64());
    libm::sqrt(-2.0 * libm::log(a)) * libm::cos(std::f64::consts::TAU * b)
}

/// Plays `spec` on `model`. The same result for the same seed. `goes_on` is asked now and then; false ends the play
/// with what came until then.
pub fn simulate(
    spec: &EmulateSpec,
    model: &DriveModel,
    setup: &Setup,
    goes_on: &mut dyn FnMut() -> bool,
) -> Result<Simulated, Error> {
    spec.check()?;
    model.check(Op::Read)?;
    let files = u32::try_from(setup.files.len()).unwrap_or(u32::MAX);
    let trace = Trace::new(spec, files)?;
    check(spec, setup)?;
    let plan = Plan {
        ranks: spec.accelerators,
        batch: spec.workload.batch,
        prefetch: spec.batches_ahead().max(1),
        read_threads: spec.read_threads,
        steps: trace.steps(),
        compute_ns: spec.workload.compute_ns(),
        awaits_others: false,
    };
    let mut world = World::new(spec, model, setup, Scheduler::new(plan));
    let mut training = Training::of_spec(spec, files, trace.steps());
    for epoch in 0..spec.epochs {
        let before = world.bytes;
        world.play(&mut |rank| Box::new(trace.streams(epoch, spec.first_rank + rank)), goes_on);
        let steps = world.scheduler.epoch();
        if steps.iter().all(|accelerator| accelerator.steps > 0) {
            training.push_epoch(steps, world.bytes - before);
        }
        if world.interrupted {
            break;
        }
    }
    Ok(world.finish(training))
}

fn check(spec: &EmulateSpec, setup: &Setup) -> Result<(), Error> {
    if setup.in_flight == 0 || setup.io_bytes == 0 {
        return Err(Error::request(
            "the simulation",
            "needs at least one I/O in flight of at least one byte",
            "‹depth› 32",
        ));
    }
    let ios: u64 = setup.files.iter().map(|bytes| bytes.div_ceil(setup.io_bytes).max(1)).sum();
    if ios.saturating_mul(u64::from(spec.epochs)) > IOS_MAX {
        return Err(Error::request(
            format!("--epochs {} over {} files", spec.epochs, setup.files.len()),
            "more than two billion I/Os to simulate",
            "fewer --epochs, or a larger ‹io_bytes›",
        ));
    }
    Ok(())
}

/// A stream that is being read: its bytes from `next` to `end` are still to be asked for.
struct Reading {
    grant: Grant<()>,
    next: u64,
    end: u64,
    /// (end, submitted, is done), in file order.
    ios: VecDeque<(u64, u64, bool)>,
    /// Bytes that came without a gap.
    whole: u64,
    /// When the first byte of the next sample was asked for.
    since: u64,
}

struct World<'a> {
    setup: &'a Setup,
    spec: &'a EmulateSpec,
    /// Offset of each file.
    begins: Vec<u64>,
    timeline: Timeline,
    scheduler: Scheduler<()>,
    /// Streams that are being read; the place of one that ended is used again.
    readings: Vec<Option<Reading>>,
    free: Vec<usize>,
    /// Streams with bytes to ask for, in the order in which they were granted.
    asking: VecDeque<usize>,
    /// (done, reading, end of its bytes).
    flying: BinaryHeap<Reverse<(u64, usize, u64)>>,
    now: u64,
    /// When the throttle has handed on what it was given, and its ns per byte.
    handed_ns: f64,
    throttle: Option<f64>,
    read: Latency,
    sample: Latency,
    step: Latency,
    waited_ns: u64,
    bytes: u64,
    ios: u64,
    samples: u64,
    points: Points,
    next_question: u64,
    interrupted: bool,
}

impl<'a> World<'a> {
    fn new(spec: &'a EmulateSpec, model: &DriveModel, setup: &'a Setup, scheduler: Scheduler<()>) -> Self {
        let align = |at: &mut u64, bytes: &u64| {
            let begin = *at;
            *at += bytes.next_multiple_of(FILE_ALIGN);
            Some(begin)
        };
        World {
            setup,
            spec,
            begins: setup.files.iter().scan(0, align).collect(),
            timeline: Timeline::new(model, spec.seed),
            scheduler,
            readings: Vec::new(),
            free: Vec::new(),
            asking: VecDeque::new(),
            flying: BinaryHeap::new(),
            now: 0,
            handed_ns: 0.0,
            throttle: spec.supply_gib_s.map(|rate| 1e9 / (rate * GIB as f64)),
            read: Latency::default(),
            sample: Latency::default(),
            step: Latency::default(),
            waited_ns: 0,
            bytes: 0,
            ios: 0,
            samples: 0,
            points: Points::new(spec.interval_s),
            next_question: QUESTION_IOS,
            interrupted: false,
        }
    }

    /// One epoch, to the end of its last step.
    fn play(&mut self, streams: &mut dyn FnMut(u32) -> RankStreams, goes_on: &mut dyn FnMut() -> bool) {
        self.scheduler.begin(self.now, streams);
        loop {
            if self.ios >= self.next_question {
                self.next_question = self.ios + QUESTION_IOS;
                if !goes_on() {
                    self.interrupted = true;
                    break;
                }
            }
            self.ask();
            let arrival = self.flying.peek().map(|Reverse((done, _, _))| *done);
            let due = self.scheduler.due();
            match (arrival, due) {
                (Some(arrival), due) if due.is_none_or(|due| arrival <= due) => self.arrive(),
                (_, Some(due)) => {
                    self.now = self.now.max(due);
                    self.scheduler.advance(self.now);
                }
                (_, None) => break,
            }
            self.account();
        }
        debug_assert!(self.scheduler.is_over() || self.interrupted);
        self.now = self.now.max(self.scheduler.end_ns());
    }

    fn account(&mut self) {
        self.waited_ns += self.scheduler.take_waited_ns();
        for length in self.scheduler.take_lengths() {
            self.step.record_n(length, u64::from(self.spec.accelerators));
        }
    }

    /// Asks for bytes while more may be in flight.
    fn ask(&mut self) {
        while self.flying.len() < self.setup.in_flight as usize {
            let Some(at) = self.asking.front().copied().or_else(|| self.begin()) else { return };
            let reading = self.readings[at].as_mut().expect("what asks is read");
            let end = reading.end.min(reading.next + self.setup.io_bytes);
            let file = reading.grant.stream.file as usize;
            let (offset, len) = (self.begins[file] + reading.next, end - reading.next);
            let mut done = self.timeline.complete_at(self.now, Op::Read, offset, len);
            if let Some(ns_per_byte) = self.throttle {
                self.handed_ns = self.handed_ns.max(self.now as f64) + len as f64 * ns_per_byte;
                done = done.max(self.handed_ns.ceil() as u64);
            }
            if reading.ios.is_empty() && reading.whole == reading.next {
                reading.since = self.now;
            }
            reading.ios.push_back((end, self.now, false));
            reading.next = end;
            if reading.next == reading.end {
                self.asking.pop_front();
            }
            self.read.record(done - self.now);
            self.points.add(done, len, done - self.now);
            self.bytes += len;
            self.ios += 1;
            self.flying.push(Reverse((done, at, end)));
        }
    }

    /// Starts the stream that is needed first. None: nothing may be read now.
    fn begin(&mut self) -> Option<usize> {
        let grant = self.scheduler.take()?;
        let (next, end) = self.bytes_of(&grant.stream, grant.done, grant.upto);
        let reading = Reading { grant, next, end, ios: VecDeque::new(), whole: next, since: self.now };
        let at = self.free.pop().unwrap_or_else(|| {
            self.readings.push(None);
            self.readings.len() - 1
        });
        self.readings[at] = Some(reading);
        self.asking.push_back(at);
        Some(at)
    }

    /// Bytes of a file behind sample `done` of a stream and up to the end of sample `upto - 1`: samples are alike.
    /// Where only some records count, what lies between them is read, too.
    fn bytes_of(&self, stream: &Stream, done: u32, upto: u32) -> (u64, u64) {
        let start = match done {
            0 if stream.every > 1 => 0,
            0 => self.record_begin(stream.file, u64::from(stream.first)),
            done => self.sample_end(stream, done),
        };
        (start, self.sample_end(stream, upto).max(start + 1))
    }

    /// End of the bytes of the `count`-th sample.
    fn sample_end(&self, stream: &Stream, count: u32) -> u64 {
        let last = u64::from(stream.first) + u64::from(count - 1) * u64::from(stream.every);
        self.record_begin(stream.file, last + 1)
    }

    fn record_begin(&self, file: u32, record: u64) -> u64 {
        let bytes = u128::from(self.setup.files[file as usize]) * u128::from(record);
        (bytes / u128::from(self.spec.workload.samples_per_file)) as u64
    }

    /// The next bytes come.
    fn arrive(&mut self) {
        let Some(Reverse((done_ns, at, end))) = self.flying.pop() else { return };
        self.now = self.now.max(done_ns);
        let mut reading = self.readings[at].take().expect("what flies is read");
        if let Some(io) = reading.ios.iter_mut().find(|io| io.0 == end) {
            io.2 = true;
        }
        let mut begun = reading.since;
        while let Some(&(end, submitted, true)) = reading.ios.front() {
            reading.whole = end;
            begun = submitted;
            reading.ios.pop_front();
        }
        let done = self.samples_in(&reading);
        if done > reading.grant.done {
            let count = u64::from(done - reading.grant.done);
            self.sample.record_n(self.now - reading.since, count);
            self.samples += count;
            reading.grant.done = done;
            reading.since = reading.ios.front().map_or(begun, |io| io.1);
            self.scheduler.report(reading.grant.rank, reading.grant.slot, done, self.now);
        }
        if reading.whole == reading.end {
            self.scheduler.give_back(reading.grant.rank, reading.grant.slot, ());
            self.free.push(at);
        } else {
            self.readings[at] = Some(reading);
        }
    }

    /// Samples of the stream that are whole, as far as they were granted.
    fn samples_in(&self, reading: &Reading) -> u32 {
        let Grant { stream, done, upto, .. } = &reading.grant;
        if reading.whole == reading.end {
            return *upto;
        }
        // Few samples end in one I/O, or very many: look for the last by halves.
        let (mut low, mut high) = (*done, *upto);
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            if self.sample_end(stream, middle) <= reading.whole {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        low
    }

    fn finish(self, mut training: Training) -> Simulated {
        training.read_bytes = self.bytes;
        training.payload_bytes = self.bytes;
        training.samples = self.samples;
        training.latency = Latencies {
            read: Timing::from_latency(&self.read),
            sample: Timing::from_latency(&self.sample),
            step: Timing::from_latency(&self.step),
        };
        training.waited.storage_s = self.waited_ns as f64 / 1e9;
        training.headroom.why = "virtual time: no client took part".into();
        Simulated {
            training,
            read: self.read,
            seconds: self.now as f64 / 1e9,
            bytes: self.bytes,
            ios: self.ios,
            utilisation: self.timeline.utilisation(self.now),
            series: self.points.finish(self.now),
            interrupted: self.interrupted,
        }
    }
}

/// Bytes over time. I/Os are told when they are submitted and counted when they end.
struct Points {
    interval_ns: u64,
    /// (bytes, I/Os, sum of latencies) of each interval.
    sums: Vec<(u64, u64, u64)>,
}

impl Points {
    fn new(interval_s: f64) -> Self {
        Points { interval_ns: (interval_s * 1e9) as u64, sums: Vec::new() }
    }

    fn add(&mut self, done_ns: u64, bytes: u64, latency_ns: u64) {
        let at = done_ns / self.interval_ns;
        if at >= POINTS_MAX {
            return;
        }
        let at = at as usize;
        if at >= self.sums.len() {
            self.sums.resize(at + 1, (0, 0, 0));
        }
        let sum = &mut self.sums[at];
        *sum = (sum.0 + bytes, sum.1 + 1, sum.2 + latency_ns);
    }

    fn finish(self, end_ns: u64) -> Vec<Point> {
        let interval_ns = self.interval_ns;
        let point = |(n, (bytes, ios, latency)): (usize, (u64, u64, u64))| {
            let begin_ns = n as u64 * interval_ns;
            let length_ns = end_ns.saturating_sub(begin_ns).clamp(1, interval_ns);
            let seconds = length_ns as f64 / 1e9;
            Point {
                t_s: (begin_ns + length_ns) as f64 / 1e9,
                gib_s: bytes as f64 / GIB as f64 / seconds,
                iops: ios as f64 / seconds,
                latency_us_mean: (ios > 0).then(|| latency as f64 / ios as f64 / 1e3),
                ..Point::default()
            }
        };
        self.sums.into_iter().enumerate().map(point).collect()
    }
}
