//! A run on files: requests come by the clock, workers move what they ask for, meters see the window.

use super::extents;
use super::folder::Folder;
use super::results::Ran;
use super::worker::{Moved, Part, Report, Sums, Transfer, Worker, WorkerMessage};
use super::{job_of, results, Done};
use crate::opened::resources::{spec_of, WorkerResources};
use crate::opened::Direction;
use crate::Barrier;
use forebay_bench::{
    check_memory, guarded, Meters, Observer, Phase, Progress, Readings, Resources, Shared, Threads,
};
use forebay_io::{monotonic_now, settle_thread_in, wall_seconds, Waker};
use forebay_model::job::JobSpec;
use forebay_model::kvcache::service::Key;
use forebay_model::kvcache::{Act, Ended, KvSpec, Service};
use forebay_model::series::Point;
use forebay_model::units::BYTES_PER_GIB as GIB;
use forebay_model::Error;
use forebay_storage::{allow_descriptors, Destination, Paths, SourceMedium};
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, Sender};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Interval at which the caller is asked whether to go on.
const POLL: Duration = Duration::from_millis(100);

enum Answer {
    Ready(Resources, Option<Arc<Waker>>),
    Moved(Moved),
    Failed(Error),
    Finished(Box<Report>),
}

pub(super) fn run(
    spec: &KvSpec,
    command: Vec<String>,
    observer: &mut dyn Observer,
    barrier: Option<&mut dyn Barrier>,
) -> Result<Done, Error> {
    let started = wall_seconds();
    let job = job_of(spec);
    let mut folder = Folder::examine(spec)?;
    if !extents::is_source(spec)? {
        Paths::check(job.path, &spec.dir, &SourceMedium::file())?;
    }
    let destination = Arc::new(Destination::open(&job)?);
    let at_once = u64::from(spec.served_at_once()) * u64::from(spec.ranks_here());
    allow_descriptors(2 * at_once + u64::from(job.workers) * 8);
    let run = Run::gather(spec, &job, &mut folder, destination).and_then(|mut run| {
        run.stock(&mut folder, observer);
        if !barrier.map_or(Ok(true), |barrier| barrier.pass())? {
            run.was_stopped = true;
        }
        if !run.was_stopped && run.failed.is_none() && !run.is_gone {
            run.play(&mut folder, observer);
        }
        Ok(run.end())
    });
    folder.close();
    let ran = run?;
    if ran.sums.ios.load(Ordering::Relaxed) == 0 {
        return Err(ran.failed.unwrap_or_else(|| super::nothing_moved(ran.was_stopped)));
    }
    Ok(results::outcome(spec, job, command, started, &folder, ran))
}

struct Run {
    spec: Arc<KvSpec>,
    shared: Arc<Shared>,
    sums: Arc<Sums>,
    threads: Threads,
    messages: Vec<(Sender<WorkerMessage>, Option<Arc<Waker>>)>,
    answers: Receiver<Answer>,
    resources: Resources,
    services: Vec<Service>,
    acts: Vec<Act>,
    /// Entries that each worker has in hand, and whose they are.
    in_hand: Vec<u64>,
    held_by: std::collections::HashMap<(u32, u32), usize>,
    /// Bytes of the entry that each slot moves.
    bytes_of: std::collections::HashMap<(u32, u32), u64>,
    meters: Meters,
    readings: Option<Readings>,
    points: Vec<Point>,
    begin: Instant,
    window: Duration,
    whole_window: bool,
    drained: bool,
    was_stopped: bool,
    failed: Option<Error>,
    /// A worker has ended although nobody asked it to; it may have told why, or will.
    is_gone: bool,
    reports: Vec<Report>,
    before: (f64, u64, u64),
}

impl Run {
    /// Everything that can fail before the first request.
    fn gather(
        spec: &KvSpec,
        job: &JobSpec,
        folder: &mut Folder,
        destination: Arc<Destination>,
    ) -> Result<Run, Error> {
        let target = folder.target(job)?;
        check_memory(job, std::slice::from_ref(&target), destination.feeds_gpu())?;
        destination.attach(job, std::slice::from_ref(&target))?;
        let capacity = folder.capacity_bytes().unwrap_or(u64::MAX);
        let services = spec.ranks_of_process().map(|rank| Service::new(spec, rank, capacity));
        let services = services.collect::<Result<Vec<_>, _>>()?;
        let shared = Arc::new(Shared::endless(job, vec![target], vec![spec.seed], destination)?);
        let meters = Meters::new(job, &shared.targets);
        let (sender, answers) = channel();
        let mut run = Run {
            spec: Arc::new(spec.clone()),
            shared,
            sums: Arc::default(),
            threads: Threads::new("workers", job.workers),
            messages: Vec::new(),
            answers,
            resources: Resources { pages: "none", ..Resources::default() },
            services,
            acts: Vec::new(),
            in_hand: vec![0; job.workers as usize],
            held_by: std::collections::HashMap::new(),
            bytes_of: std::collections::HashMap::new(),
            meters,
            readings: None,
            points: Vec::new(),
            begin: monotonic_now(),
            window: Duration::ZERO,
            whole_window: false,
            drained: false,
            was_stopped: false,
            failed: None,
            is_gone: false,
            reports: Vec::new(),
            before: (0.0, 0, 0),
        };
        for index in 0..job.workers {
            run.hire(index, sender.clone())?;
        }
        Ok(run)
    }

    fn hire(&mut self, index: u32, answers: Sender<Answer>) -> Result<(), Error> {
        let (messages, inbox) = channel();
        let (shared, spec, sums) = (self.shared.clone(), self.spec.clone(), self.sums.clone());
        self.threads.start(index, move |_| {
            let work = || attend(index, &shared, spec, sums, &inbox, &answers);
            if let Err(bug) = guarded(format!("worker {index}"), work) {
                shared.stop.store(true, Ordering::Relaxed);
                let _ = answers.send(Answer::Failed(bug));
            }
        })?;
        match self.answers.recv() {
            Ok(Answer::Ready(resources, waker)) => {
                self.resources.add(resources);
                self.messages.push((messages, waker));
                Ok(())
            }
            Ok(Answer::Failed(e)) => Err(e),
            Ok(_) | Err(_) => Err(gone()),
        }
    }

    /// Writes what is to be there before the first request, as many entries at once as may be. None of it is measured.
    fn stock(&mut self, folder: &mut Folder, observer: &mut dyn Observer) {
        let all = self.services.iter().map(|service| (service.rank(), service.stock()));
        let mut waiting: Vec<(u32, Key, u64)> = all
            .flat_map(|(rank, keys)| keys.into_iter().map(move |(key, bytes)| (rank, key, bytes)))
            .collect();
        let (total, mut under_way) = (waiting.len(), std::collections::HashMap::new());
        let mut next_ask = monotonic_now();
        while !(waiting.is_empty() && under_way.is_empty()) && self.failed.is_none() && !self.is_gone {
            while under_way.len() < self.spec.admission as usize {
                let Some((rank, key, bytes)) = waiting.pop() else { break };
                let Ok(extent) = folder.reserve(rank, key, bytes) else {
                    waiting.clear();
                    break;
                };
                under_way.insert((rank, key.user), bytes);
                let (place, way) = (folder.place(rank, key, bytes), Direction::Write);
                self.hand_out(Transfer { rank, slot: key.user, key, place, way, identity: None, extent });
            }
            match self.answers.recv_timeout(POLL) {
                Ok(Answer::Moved(Moved { rank, slot, key, ended, made, .. })) => {
                    if let Some(worker) = self.held_by.remove(&(rank, slot)) {
                        self.in_hand[worker] = self.in_hand[worker].saturating_sub(1);
                    }
                    let bytes = under_way.remove(&(rank, slot)).unwrap_or(0);
                    if let Err(error) = folder.was_written(rank, key, bytes, ended) {
                        self.failed.get_or_insert(error);
                    }
                    if ended == Ended::Whole {
                        made.into_iter().for_each(|made| folder.note(rank, key, made));
                        self.services[(rank - self.spec.first_rank) as usize].is_stocked(key, bytes);
                    }
                    // A full disk has no more room for the others either.
                    if ended == Ended::Full {
                        waiting.clear();
                    }
                }
                Ok(Answer::Failed(error)) => self.failed = Some(error),
                Ok(Answer::Finished(report)) => {
                    self.reports.push(*report);
                    self.is_gone = true;
                }
                Ok(Answer::Ready(..)) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => self.is_gone = true,
            }
            if monotonic_now() >= next_ask {
                next_ask = monotonic_now() + POLL;
                self.renew(folder);
                let point = self.point(monotonic_now());
                let message =
                    format!("{} of {total} entries written", total - waiting.len() - under_way.len());
                let progress = self.progress(&point);
                observer.progress(&Progress { phase: Phase::Prepare, message: Some(message), ..progress });
                if observer.stop() {
                    self.was_stopped = true;
                    return;
                }
            }
        }
        self.forget_stock();
    }

    fn renew(&mut self, folder: &mut Folder) {
        if let Err(error) = folder.renew(monotonic_now()) {
            self.failed.get_or_insert(error);
        }
    }

    /// What was moved so far isn't the run's.
    fn forget_stock(&mut self) {
        self.sums.bytes.iter().for_each(|sum| sum.store(0, Ordering::Relaxed));
        self.sums.ios.store(0, Ordering::Relaxed);
        self.sums.last_ns.store(0, Ordering::Relaxed);
        self.before = (0.0, 0, 0);
    }

    /// From the first request to the end of the last, or to wherever the run is stopped.
    fn play(&mut self, folder: &mut Folder, observer: &mut dyn Observer) {
        self.begin = monotonic_now();
        let window_end = self.begin + Duration::from_nanos(self.spec.window_ns());
        let latest = self.begin + Duration::from_nanos(self.spec.counted_until_ns());
        for (messages, _) in &self.messages {
            let _ = messages.send(WorkerMessage::Begin(window_end));
        }
        self.meters.start();
        let (mut next_point, mut next_ask) = (self.begin + self.shared.interval, self.begin + POLL);
        loop {
            let now = monotonic_now();
            if !self.whole_window && now >= window_end {
                self.whole_window = true;
                self.close_window(window_end);
            }
            self.serve(folder, self.since(now));
            let is_over = self.services.iter().all(|service| service.is_over(self.since(now)));
            self.drained = is_over && self.whole_window;
            if self.drained || self.failed.is_some() || self.is_gone || now >= latest {
                break;
            }
            if now >= next_point {
                next_point = now + self.shared.interval;
                let point = self.point(now);
                observer.progress(&self.progress(&point));
                self.points.extend((!self.whole_window).then_some(point));
            }
            if now >= next_ask {
                next_ask = now + POLL;
                self.renew(folder);
                if observer.stop() {
                    self.was_stopped = true;
                    break;
                }
            }
            let mut until = next_point.min(next_ask).min(latest);
            if !self.whole_window {
                until = until.min(window_end);
            }
            let arrivals = self.services.iter().filter_map(Service::next_arrival_ns).min();
            until = until.min(arrivals.map_or(until, |ns| self.begin + Duration::from_nanos(ns)));
            self.listen(folder, until.saturating_duration_since(now));
        }
        if !self.whole_window {
            self.close_window(monotonic_now().min(window_end));
        }
    }

    fn close_window(&mut self, at: Instant) {
        self.readings = Some(self.meters.stop());
        self.window = at.saturating_duration_since(self.begin);
    }

    fn since(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.begin).as_nanos() as u64
    }

    /// Requests that have come by now are taken up.
    fn serve(&mut self, folder: &mut Folder, now_ns: u64) {
        for index in 0..self.services.len() {
            let mut acts = std::mem::take(&mut self.acts);
            self.services[index].advance(now_ns, &mut acts);
            self.act(index, &mut acts, folder);
            self.acts = acts;
        }
    }

    fn act(&mut self, index: usize, acts: &mut Vec<Act>, folder: &mut Folder) {
        let rank = self.services[index].rank();
        let mut waiting: VecDeque<Act> = acts.drain(..).collect();
        while let Some(act) = waiting.pop_front() {
            match act {
                Act::Remove { key } => folder.remove(rank, key),
                Act::Read { slot, key, bytes } => {
                    let (place, way) = (folder.place(rank, key, bytes), Direction::Read);
                    let (identity, extent) = (folder.identity(rank, key), folder.extent(rank, key));
                    self.hand_out(Transfer { rank, slot, key, place, way, identity, extent });
                }
                Act::Write { slot, key, bytes } => match folder.reserve(rank, key, bytes) {
                    Ok(extent) => {
                        let (place, way) = (folder.place(rank, key, bytes), Direction::Write);
                        self.hand_out(Transfer { rank, slot, key, place, way, identity: None, extent });
                    }
                    // As of a file system that is full: there is no run of free bytes as long.
                    Err(()) => {
                        let now_ns = self.since(monotonic_now());
                        self.services[index].ended(slot, Ended::Full, now_ns, acts);
                        waiting.extend(acts.drain(..));
                    }
                },
            }
        }
    }

    /// Gives an entry to the worker that has the fewest in hand.
    fn hand_out(&mut self, transfer: Transfer) {
        let Some((worker, _)) = self.in_hand.iter().enumerate().min_by_key(|(_, n)| **n) else { return };
        self.in_hand[worker] += 1;
        self.bytes_of.insert((transfer.rank, transfer.slot), transfer.place.bytes);
        self.held_by.insert((transfer.rank, transfer.slot), worker);
        let (messages, waker) = &self.messages[worker];
        self.is_gone |= messages.send(WorkerMessage::Move(transfer)).is_err();
        waker.iter().for_each(|waker| waker.wake());
    }

    /// Hears what the workers have done, until `patience` is over or nothing more is there.
    fn listen(&mut self, folder: &mut Folder, patience: Duration) {
        let mut next = self.answers.recv_timeout(patience);
        loop {
            match next {
                Ok(Answer::Moved(moved)) => self.was_moved(moved, folder),
                Ok(Answer::Failed(error)) => {
                    self.failed.get_or_insert(error);
                    return;
                }
                Ok(Answer::Ready(..)) | Err(RecvTimeoutError::Timeout) => return,
                Ok(Answer::Finished(report)) => {
                    self.reports.push(*report);
                    self.is_gone = true;
                    return;
                }
                Err(RecvTimeoutError::Disconnected) => {
                    self.is_gone = true;
                    return;
                }
            }
            next = self.answers.try_recv().map_err(|_| RecvTimeoutError::Timeout);
        }
    }

    fn was_moved(&mut self, moved: Moved, folder: &mut Folder) {
        let Moved { rank, slot, key, way, ended, made } = moved;
        if let Some(worker) = self.held_by.remove(&(rank, slot)) {
            self.in_hand[worker] = self.in_hand[worker].saturating_sub(1);
        }
        if way == Direction::Write {
            let bytes = self.bytes_of.remove(&(rank, slot)).unwrap_or(0);
            if let Err(error) = folder.was_written(rank, key, bytes, ended) {
                self.failed.get_or_insert(error);
            }
        }
        self.forget_lost(folder, rank, key, ended);
        if let Some(made) = made {
            folder.note(rank, key, made);
        }
        let index = (rank - self.spec.first_rank) as usize;
        let now_ns = self.since(monotonic_now());
        let mut acts = std::mem::take(&mut self.acts);
        self.services[index].ended(slot, ended, now_ns, &mut acts);
        self.act(index, &mut acts, folder);
        self.acts = acts;
    }

    /// An entry that is none is not looked for again.
    fn forget_lost(&self, folder: &mut Folder, rank: u32, key: Key, ended: Ended) {
        if ended == Ended::Lost {
            folder.lost.get_or_insert((rank, key));
            folder.remove(rank, key);
        }
    }

    fn point(&mut self, now: Instant) -> Point {
        let t_s = now.saturating_duration_since(self.begin).as_secs_f64();
        let bytes = self.sums.bytes.iter().map(|sum| sum.load(Ordering::Relaxed)).sum::<u64>();
        let ios = self.sums.ios.load(Ordering::Relaxed);
        let span = (t_s - self.before.0).max(1e-9);
        let point = Point {
            t_s,
            gib_s: (bytes - self.before.1) as f64 / GIB / span,
            iops: (ios - self.before.2) as f64 / span,
            ..Point::default()
        };
        self.before = (t_s, bytes, ios);
        point
    }

    fn progress(&self, point: &Point) -> Progress {
        let served: usize = self.services.iter().map(|service| service.served.len()).sum();
        let queued: u64 = self.services.iter().map(Service::queued).sum();
        let message = match self.whole_window {
            false => format!("{served} requests served, {queued} queued"),
            true => format!("the window is over: {served} requests served, those under way go on"),
        };
        Progress {
            phase: Phase::Measure,
            repeat: 0,
            repeats: 1,
            t_s: point.t_s,
            duration_s: Some(self.spec.duration_s),
            gib_s: point.gib_s,
            iops: point.iops,
            bytes: self.before.1,
            ios: self.before.2,
            interval_bytes: (point.gib_s * GIB * self.shared.interval.as_secs_f64()) as u64,
            latency_us_mean: None,
            latency_us_p50: None,
            latency_us_p99: None,
            latency_us_p999: None,
            cores_busy: None,
            workers: Vec::new(),
            targets: Vec::new(),
            message: Some(message),
        }
    }

    /// Lets the threads go, and gathers what they have to say.
    fn end(mut self) -> Ran {
        let last = self.begin.elapsed();
        if !self.drained {
            self.shared.stop.store(true, Ordering::Relaxed);
        }
        for (messages, waker) in std::mem::take(&mut self.messages) {
            drop(messages);
            waker.iter().for_each(|waker| waker.wake());
        }
        let mut reports = std::mem::take(&mut self.reports);
        while reports.len() < self.threads.len() {
            match self.answers.recv() {
                Ok(Answer::Finished(report)) => reports.push(*report),
                Ok(Answer::Failed(error)) => {
                    self.failed.get_or_insert(error);
                }
                Ok(Answer::Moved(_) | Answer::Ready(..)) => {}
                Err(_) => break,
            }
        }
        self.threads.join();
        if self.is_gone {
            self.failed.get_or_insert_with(gone);
        }
        reports.sort_by_key(|report| report.tally.worker);
        Ran {
            services: self.services,
            sums: self.sums,
            reports,
            readings: self.readings.unwrap_or_default(),
            points: self.points,
            resources: self.resources,
            target: self.shared.targets[0].clone(),
            destination: self.shared.destination.clone(),
            failed: self.failed,
            window: self.window,
            whole_window: self.whole_window,
            drained: self.drained,
            was_stopped: self.was_stopped,
            last,
        }
    }
}

/// A thread's life: opens what it works with, says so, and moves entries until nobody asks for more.
fn attend(
    index: u32,
    shared: &Arc<Shared>,
    spec: Arc<KvSpec>,
    sums: Arc<Sums>,
    messages: &Receiver<WorkerMessage>,
    answers: &Sender<Answer>,
) {
    let worker = spec_of(index, None, None);
    let names = Box::new(|_| None);
    let resources = settle_thread_in(worker.cpu, worker.near)
        .and_then(|()| WorkerResources::open(index, shared, names, Part::nothing(monotonic_now())))
        .and_then(|(mut resources, about)| Ok((resources.reactor.waker()?, resources, about)));
    let (waker, resources, about) = match resources {
        Ok(made) => made,
        Err(e) => {
            let _ = answers.send(Answer::Failed(e));
            return;
        }
    };
    let _ = answers.send(Answer::Ready(Resources { queues: 1, ..about }, Some(waker)));
    let mut worker = Worker::new(resources, index, shared.clone(), spec, sums);
    worker.work(messages, &mut |moved| {
        let _ = answers.send(match moved {
            Ok(moved) => Answer::Moved(moved),
            Err(error) => Answer::Failed(error),
        });
    });
    let report = worker.report();
    let _ = answers.send(Answer::Finished(Box::new(report)));
}

fn gone() -> Error {
    Error::run("the run", "a worker ended early", "forebay doctor")
}
