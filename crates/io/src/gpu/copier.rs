//! Copies between pinned slots and GPU memory, by the device's copy engines.
//!
//! What is asked for side by side travels as one copy, since a copy of 4 KiB costs
//! the device as much time as one of 128 KiB; many short ones apart from each other,
//! and short ones among those of other workers, travel by one launch of a kernel (`scatter`). Completion is looked up, not called
//! back: a callback costs 25 µs of CPU, an event's query a fraction of one.

use super::cuda::{Cuda, Device, Event, Stream};
use super::kernels::Piece;
use super::scatter::{Pulling, Scattering};
use crate::arena::Mem;
use crate::clock;
use crate::queue::Fault;
use forebay_model::Error;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Moves payload between staging slots and the destination. Never blocks on a device: what
/// isn't finished at once is reaped later, and wakes the reactor.
pub trait Copier {
    /// Takes a copy of `bytes`, named by `tag`; it begins with `submit` at the latest.
    fn start(&mut self, tag: u32, from: Mem, to: Mem, bytes: usize);

    /// Separates later copies from earlier ones, even if they lie side by side: their memory was registered apart.
    fn cut(&mut self) {}

    /// Returns whether the device can fetch rows now (`fetch`).
    fn room_for(&self, _rows: usize) -> Room {
        Room::Never
    }

    /// Has the device fetch rows, which begins at once and is named by `tag`. Only where there is room for them.
    fn fetch(&mut self, tag: u32, rows: Fetched) {
        unreachable!("{} rows for {tag}, for which there is no room", rows.offsets.len());
    }

    /// Begins what was taken.
    fn submit(&mut self) {}

    /// Waits until no copy is under way.
    fn finish(&mut self) {}

    /// Appends the tags of finished copies, each with its fault if it failed.
    fn reap(&mut self, done: &mut Vec<(u32, Option<Fault>)>);

    /// Copies that the worker should start before it looks after its reads again: one, where it copies
    /// with its own hands.
    fn at_once(&self) -> usize;

    /// When there may next be something to reap, if nothing wakes the reactor for it.
    fn next_due(&self) -> Option<Instant> {
        None
    }
}

/// Rows that the device fetches by itself out of memory that it may read.
#[derive(Clone, Copy)]
pub struct Fetched<'a> {
    pub base: *const u8,
    /// Start of each row, from `base` on; `ELSEWHERE` for one that comes another way.
    pub offsets: &'a [u64],
    pub row_bytes: u32,
    /// The first goes there, the others behind it.
    pub to: Mem,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    There,
    /// Once something that is under way has ended.
    Later,
    Never,
}

/// A row takes the link as long as this many bytes, however short it is.
const ROW_TAKES_BYTES: usize = 1500;
/// Longer copies gain nothing, and make the first of their I/Os wait for the last.
const COPY_BYTES_MAX: usize = 8 << 20;
/// A batch is first asked for at this share of the time that it should take: never to find it early would keep the
/// estimate from getting better.
const EARLY: f64 = 0.9;
/// One that wasn't done is asked for again after an eighth of that time, within these bounds: each asking costs
/// some µs of CPU, each µs too late leaves a slot idle.
const AGAIN_MIN: Duration = Duration::from_micros(15);
const AGAIN_MAX: Duration = Duration::from_micros(50);
/// No copy is seen to end sooner, however short: asking before that costs a sleep more.
const REACTION: Duration = Duration::from_micros(7);
/// Shorter batches say more about the device's reaction than about the link.
const LEARN_BYTES: usize = 256 << 10;
/// More copies than this cost more than one launch, if they are shorter than that on the average.
const COPIES_MAX: usize = 4;
const SHORT_BYTES: usize = 64 << 10;
/// Before any copy was timed: a PCIe 5.0 link of 16 lanes. A slower one shows at the first copy; a faster one would
/// be found out slowly.
const BYTES_PER_US_AT_FIRST: f64 = 50_000.0;

/// A copy to be: adjacent at both ends.
#[derive(Clone, Copy)]
struct Run {
    from: Mem,
    to: Mem,
    bytes: usize,
}

impl Run {
    /// Returns whether the requested copy continues it.
    fn continues(&self, from: Mem, to: Mem, bytes: usize) -> bool {
        self.bytes + bytes <= COPY_BYTES_MAX
            && same_place(self.from.after(self.bytes), from)
            && same_place(self.to.after(self.bytes), to)
    }
}

fn same_place(a: Mem, b: Mem) -> bool {
    match (a, b) {
        (Mem::Host { at: a, .. }, Mem::Host { at: b, .. }) => a == b,
        (Mem::Device { gpu: g, at: a }, Mem::Device { gpu: h, at: b }) => (g, a) == (h, b),
        _ => false,
    }
}

/// Copies that one event covers.
struct Batch {
    event: Event,
    /// List of pieces, where it is a launch.
    list: Option<usize>,
    tags: Vec<u32>,
    bytes: usize,
    sent: Instant,
    /// When to ask for it next.
    due: Instant,
    again: Duration,
    /// It was asked for once and wasn't done, so its end is known to within `again`.
    missed: bool,
}

/// Copies of one queue, on a stream of its own or one that queues of its worker share.
pub struct CudaCopier {
    // Field order is drop order: batches hold the device's events.
    batches: VecDeque<Batch>,
    device: Arc<Device>,
    stream: Rc<Stream>,
    runs: Vec<Run>,
    tags: Vec<u32>,
    spare: Vec<(Event, Vec<u32>)>,
    failed: Vec<(u32, Option<Fault>)>,
    /// The next copy begins a run of its own.
    cut: bool,
    /// Mover of many short runs at once, where available.
    scattering: Option<Rc<Scattering>>,
    /// Mover of single short runs, where available.
    pulling: Option<Rc<Pulling>>,
    /// True while accepted copies wait for a list.
    waits: bool,
    bytes_per_us: f64,
    /// When the last batch that was reaped had ended, at the latest.
    ended: Instant,
    /// It ended no more than an `again` before that.
    ended_is_known: bool,
}

impl CudaCopier {
    pub fn new(device: Arc<Device>) -> Result<CudaCopier, Error> {
        let stream = Stream::on(&device).map_err(|why| {
            Error::machine(format!("a stream on GPU {}", device.index()), why.to_string(), "nvidia-smi")
        })?;
        Ok(CudaCopier::on(Rc::new(stream)))
    }

    /// Copies on a stream that others may use too.
    pub fn on(stream: Rc<Stream>) -> CudaCopier {
        CudaCopier {
            batches: VecDeque::new(),
            device: stream.device().clone(),
            stream,
            runs: Vec::new(),
            tags: Vec::new(),
            spare: Vec::new(),
            failed: Vec::new(),
            cut: false,
            scattering: None,
            pulling: None,
            waits: false,
            bytes_per_us: BYTES_PER_US_AT_FIRST,
            ended: clock::monotonic_now(),
            ended_is_known: false,
        }
    }

    /// Many short copies at once go by one launch.
    pub fn with_scattering(mut self, scattering: Option<Rc<Scattering>>) -> CudaCopier {
        self.scattering = scattering;
        self
    }

    /// A single short copy goes by a launch, too: for who competes with other workers for the copy engine.
    pub fn with_pulling(mut self, pulling: Option<Rc<Pulling>>) -> CudaCopier {
        self.pulling = pulling;
        self
    }

    pub fn stream(&self) -> Rc<Stream> {
        self.stream.clone()
    }

    fn queue(&self, run: &Run) -> Cuda<()> {
        // SAFETY: both ends are slots that belong to their I/Os until their batch is reaped.
        unsafe {
            match (run.from, run.to) {
                (Mem::Host { at, .. }, Mem::Device { at: to, .. }) => match &self.pulling {
                    Some(pulling) if Pulling::takes(at.as_ptr(), to, run.bytes) => {
                        pulling.queue(&self.stream, at.as_ptr(), to, run.bytes)
                    }
                    _ => self.stream.copy_to_device(to, at.as_ptr(), run.bytes),
                },
                (Mem::Device { at: from, .. }, Mem::Host { at, .. }) => {
                    self.stream.copy_to_host(at.as_ptr(), from, run.bytes)
                }
                _ => unreachable!("a copy within one memory"),
            }
        }
    }

    /// Returns the mover that takes the runs together, where that is cheaper.
    fn together(&self) -> Option<Rc<Scattering>> {
        if self.runs.len() <= COPIES_MAX {
            return None;
        }
        let scattering = self.scattering.as_ref().filter(|s| self.runs.len() <= s.capacity())?;
        let into = |run: &Run| matches!((run.from, run.to), (Mem::Host { .. }, Mem::Device { .. }));
        let bytes: usize = self.runs.iter().map(|run| run.bytes).sum();
        (bytes < self.runs.len() * SHORT_BYTES && self.runs.iter().all(into)).then(|| scattering.clone())
    }

    fn queue_runs(&self, together: Option<(&Scattering, usize)>) -> Cuda<()> {
        let Some((scattering, list)) = together else {
            return self.runs.iter().try_for_each(|run| self.queue(run));
        };
        let pieces = self.runs.iter().map(|run| match (run.from, run.to) {
            (Mem::Host { at: from, .. }, Mem::Device { at: to, .. }) => {
                Piece { from: from.as_ptr() as u64, to, bytes: run.bytes as u64 }
            }
            _ => unreachable!("only what goes into the device goes together"),
        });
        // SAFETY: as for the copies; the list is given back with its batch.
        unsafe { scattering.queue(&self.stream, list, pieces) }
    }

    /// Hands the runs to the driver, with an event behind them. Those that want a list of which all are in use wait until
    /// `reap`.
    fn send(&mut self) -> Cuda<()> {
        let together = self.together();
        let list = match &together {
            Some(scattering) => match scattering.take() {
                Some(list) => Some(list),
                None => {
                    self.waits = true;
                    return Ok(());
                }
            },
            None => None,
        };
        let sent = self.send_with(together.as_deref().zip(list));
        if let (Err(_), Some(scattering), Some(list)) = (&sent, &together, list) {
            // The failed batch is waited for before anything else is queued.
            let _ = self.stream.synchronize();
            scattering.give(list);
        }
        sent
    }

    fn send_with(&mut self, together: Option<(&Scattering, usize)>) -> Cuda<()> {
        let (event, mut tags) = self.event()?;
        self.queue_runs(together).and_then(|()| self.stream.record(&event))?;
        let list = together.map(|(_, list)| list);
        let bytes = self.runs.drain(..).map(|run| run.bytes).sum();
        std::mem::swap(&mut tags, &mut self.tags);
        self.is_sent(event, list, tags, bytes);
        Ok(())
    }

    fn send_rows(&mut self, tag: u32, scattering: &Scattering, list: usize, rows: Fetched) -> Cuda<()> {
        let Mem::Device { at: to, .. } = rows.to else { unreachable!("rows on their way into the device") };
        let (event, mut tags) = self.event()?;
        let row_bytes = rows.row_bytes.into();
        // SAFETY: the rows stay readable, and their places are this I/O's, until its batch is reaped; the list is given
        // back with it.
        unsafe {
            scattering.queue_rows(&self.stream, list, (rows.base, rows.offsets), (to, row_bytes))?;
        }
        self.stream.record(&event)?;
        tags.push(tag);
        let each = (rows.row_bytes as usize).max(ROW_TAKES_BYTES);
        self.is_sent(event, Some(list), tags, rows.offsets.len() * each);
        Ok(())
    }

    fn event(&mut self) -> Cuda<(Event, Vec<u32>)> {
        match self.spare.pop() {
            Some(spare) => Ok(spare),
            None => Ok((Event::on(&self.device)?, Vec::new())),
        }
    }

    /// Registers an event: the copies before it are on their way.
    fn is_sent(&mut self, event: Event, list: Option<usize>, tags: Vec<u32>, bytes: usize) {
        let sent = clock::monotonic_now();
        let from = self.batches.back().map_or(sent, |b| b.due.max(sent));
        let takes = self.takes(bytes);
        let due = (from + takes.mul_f64(EARLY)).max(sent + REACTION);
        let again = (takes / 8).clamp(AGAIN_MIN, AGAIN_MAX);
        self.batches.push_back(Batch { event, list, tags, bytes, sent, due, again, missed: false });
    }

    fn takes(&self, bytes: usize) -> Duration {
        Duration::from_nanos((bytes as f64 / self.bytes_per_us * 1e3) as u64)
    }

    /// Some copies may have started: their slots are safe again once the stream has run dry.
    fn fail(&mut self, why: &str) {
        let _ = self.stream.synchronize();
        self.runs.clear();
        let fault = |tag| (tag, Some(Fault::note(libc::EIO, why)));
        self.failed.extend(self.tags.drain(..).map(fault));
    }

    /// Learns the link's rate, for the next guess of when a batch ends. One that was found done at once may have been
    /// so for long: it shows no more than that the link is at least as fast. Where nobody knows when it began, it
    /// shows nothing.
    fn learn(&mut self, batch: &Batch, now: Instant) {
        let began_is_known = self.ended_is_known || batch.sent >= self.ended;
        let us = now.saturating_duration_since(self.ended.max(batch.sent)).as_secs_f64() * 1e6;
        let rate = batch.bytes as f64 / us.max(1.0);
        if batch.bytes >= LEARN_BYTES && began_is_known && (batch.missed || rate > self.bytes_per_us) {
            self.bytes_per_us += 0.2 * (rate - self.bytes_per_us);
        }
        self.ended = now;
        self.ended_is_known = batch.missed;
    }

    /// The front begins now at the latest, since what was before it has ended: so it ends no later than this.
    fn bring_forward(&mut self, now: Instant) {
        let Some(bytes) = self.batches.front().map(|b| b.bytes) else { return };
        let latest = now + self.takes(bytes).mul_f64(EARLY);
        let front = &mut self.batches[0];
        front.due = front.due.min(latest.max(front.sent + REACTION));
    }
}

impl Copier for CudaCopier {
    fn start(&mut self, tag: u32, from: Mem, to: Mem, bytes: usize) {
        self.tags.push(tag);
        let cut = std::mem::take(&mut self.cut);
        match self.runs.last_mut().filter(|_| !cut) {
            Some(run) if run.continues(from, to, bytes) => run.bytes += bytes,
            _ => self.runs.push(Run { from, to, bytes }),
        }
    }

    fn cut(&mut self) {
        self.cut = true;
    }

    fn room_for(&self, rows: usize) -> Room {
        match self.scattering.as_ref().filter(|s| rows <= s.capacity()) {
            Some(scattering) if scattering.has_list() => Room::There,
            Some(_) => Room::Later,
            None => Room::Never,
        }
    }

    fn fetch(&mut self, tag: u32, rows: Fetched) {
        let scattering = self.scattering.clone().expect("there was room");
        let list = scattering.take().expect("there was room");
        if let Err(why) = self.send_rows(tag, &scattering, list, rows) {
            // It may have begun: its places are safe again once the stream has run dry.
            let _ = self.stream.synchronize();
            scattering.give(list);
            self.failed.push((tag, Some(Fault::note(libc::EIO, why.to_string()))));
        }
    }

    fn finish(&mut self) {
        // The stream may be others', too, who go on: the events are ours alone. Nobody is in a hurry here, so they are looked up
        // now and then.
        for batch in &self.batches {
            while matches!(batch.event.is_done(), Ok(false)) {
                std::thread::sleep(AGAIN_MAX);
            }
        }
    }

    fn submit(&mut self) {
        if self.tags.is_empty() {
            return;
        }
        if let Err(why) = self.send() {
            self.fail(&why.to_string());
        }
    }

    fn reap(&mut self, done: &mut Vec<(u32, Option<Fault>)>) {
        self.reap_batches(done);
        if std::mem::take(&mut self.waits) {
            self.submit();
        }
        done.append(&mut self.failed);
    }

    /// Starting one takes a microsecond.
    fn at_once(&self) -> usize {
        usize::MAX
    }

    fn next_due(&self) -> Option<Instant> {
        if !self.failed.is_empty() {
            return Some(clock::monotonic_now());
        }
        // The list that it waits for may be given back by others.
        let waits = self.waits.then(|| clock::monotonic_now() + AGAIN_MIN);
        self.batches.front().map(|b| b.due).into_iter().chain(waits).min()
    }
}

impl CudaCopier {
    fn reap_batches(&mut self, done: &mut Vec<(u32, Option<Fault>)>) {
        if self.batches.is_empty() {
            return;
        }
        let mut now = clock::monotonic_now();
        // What was found done at once may have been so for long, and then so may be what is behind it.
        let mut late = false;
        while let Some(batch) = self.batches.front_mut().filter(|b| late || b.due <= now) {
            let fault = match batch.event.is_done() {
                Ok(true) => None,
                Ok(false) => {
                    if batch.due <= now {
                        batch.due = now + batch.again;
                        batch.missed = true;
                    }
                    return;
                }
                Err(why) => Some(Fault::note(libc::EIO, why.to_string())),
            };
            let mut batch = self.batches.pop_front().expect("the front was looked at");
            now = clock::monotonic_now();
            self.learn(&batch, now);
            self.bring_forward(now);
            late = !batch.missed;
            done.extend(batch.tags.drain(..).map(|tag| (tag, fault.clone())));
            if let (Some(scattering), Some(list)) = (&self.scattering, batch.list) {
                scattering.give(list);
            }
            self.spare.push((batch.event, batch.tags));
        }
    }
}

impl Drop for CudaCopier {
    fn drop(&mut self) {
        // Every copy ends before the slots go.
        self.finish();
    }
}
