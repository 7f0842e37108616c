//! Batches of samples, read ahead in an order that is computed: what `forebay.feed.Loader` stands on.
//!
//! Nobody but the consumer drives it: each batch that is taken has another one begun, which the thread pool reads meanwhile. A
//! batch lies in a slot of memory that goes back to the shelf once the last reference to it has gone.

mod fill;
mod on_gpu;
mod record;
mod shelf;
mod stage;
mod table;

pub use fill::CacheUse;
pub use record::{Elsewhere, RecordFacts};
pub use shelf::{Lease, Memory};
pub use table::{Column, Part};

use crate::by_cufile::ByCufile;
use crate::order_hash::{order_hash, order_samples};
use crate::request::Request;
use crate::rows::{Ordered, COPIED_ROW_BYTES_MAX};
use crate::{processors, thread_pool, Address, Opening, ReadPath, Report};
use fill::{Decision, Fills};
use forebay_io::{last_level_cache_bytes, monotonic_now, CudaEvent};
use forebay_model::feed::{EpochOrder, Share, Shuffle};
use forebay_model::Error;
use on_gpu::OnGpu;
use record::Figures;
use shelf::{Shelf, Taken};
use stage::{FromMemory, Ready, Stages};
use std::collections::VecDeque;
use std::ops::Range as Span;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use table::Table;

/// Bytes that are read ahead at most, as whole batches between these numbers.
const AHEAD_BYTES: usize = 64 << 20;
const AHEAD_BYTES_MIN: usize = 8 << 20;
const AHEAD: std::ops::RangeInclusive<usize> = 2..=16;
/// The least for a GPU: of 38 MB each, two keep its link at 39 of the 44 GiB/s that three reach.
const AHEAD_MIN_GPU: usize = 3;
const PREFETCH_MAX: usize = 1024;
/// Bytes of batches in order that are begun together where they come from a disk: a device may tell of all reads that it has at
/// once, and then stands still until more are handed over.
const TOGETHER_BYTES: usize = 64 << 20;
const TOGETHER_MAX: usize = 64;
/// Batches beside those that are read ahead, for whoever keeps some: the one in use, and a few that are kept.
const KEPT: usize = 4;
/// Without a limit from the user, so much memory is used in any case.
const LIMIT_BYTES_MIN: usize = 1 << 30;

/// Settings of a loader.
pub struct Spec {
    pub parts: Vec<Part>,
    pub columns: Vec<Column>,
    pub memory: Memory,
    pub way: ReadPath,
    pub share: Share,
    pub shuffle: Shuffle,
    pub seed: u64,
    /// Of the data, for the hash.
    pub identity: u64,
    /// Batches read ahead; None: as many as make 64 MiB.
    pub prefetch: Option<usize>,
    /// Bytes of all batches together; None: 1 GiB, or what a few batches need.
    pub limit_bytes: Option<usize>,
    /// Of data that isn't cached.
    pub cache: CacheUse,
}

/// A batch that was read.
pub struct Batch {
    pub rows: usize,
    /// Position of its first sample in the epoch.
    pub first: u64,
    pub epoch: u64,
    pub lease: Arc<Lease>,
    /// Where each column begins in the slot; its rows lie one behind the other.
    pub begins: Vec<usize>,
}

/// What `Loader::next` found.
pub enum Next {
    Batch(Batch),
    /// The epoch is over; the next call begins the one after it.
    End,
    /// The time was over first.
    Wait,
}

struct Flight {
    first: u64,
    rows: usize,
    /// Position that all ranks have come to with it.
    after: u64,
    hash: Hash,
    requests: Vec<Arc<Request>>,
    /// Those of the first batch that was begun together with it, which bring this one, too.
    together: Vec<Arc<Request>>,
    of_several: bool,
    lease: Arc<Lease>,
}

impl Flight {
    fn new(first: u64, rows: usize, after: u64, hash: Hash, lease: Arc<Lease>) -> Flight {
        let (requests, together) = (Vec::new(), Vec::new());
        Flight { first, rows, after, hash, requests, together, of_several: false, lease }
    }

    /// Returns whether all of it has come.
    fn wait(&self, at_most: impl Fn() -> Duration) -> bool {
        let mut all = self.requests.iter().chain(&self.together);
        all.all(|request| request.wait(Some(at_most())))
    }

    /// How its bytes came, but for what came together with the first batch's.
    fn outcome(&self) -> Result<Vec<Report>, Error> {
        self.together.iter().try_for_each(|request| request.outcome().map(|_| ()))?;
        self.requests.iter().map(|request| request.outcome()).collect()
    }
}

/// Has a request read, as one of a flight's.
fn submit(flight: &mut Vec<Arc<Request>>, request: Arc<Request>) -> Result<(), Error> {
    thread_pool::submit(&request)?;
    flight.push(request);
    Ok(())
}

impl Drop for Flight {
    fn drop(&mut self) {
        // Its memory goes to the next batch: nothing may write there any more.
        for request in self.requests.iter().chain(&self.together) {
            request.cancel();
        }
    }
}

/// How far reading ahead came.
enum Ahead {
    Begun,
    /// What the next batch is made of is still being read.
    Reading,
}

/// Sum over a batch: computed, or a word of the GPU's that will have it.
#[derive(Clone, Copy)]
enum Hash {
    Here(u64),
    /// The first request's.
    Asked,
    OnGpu(usize),
}

struct Inner {
    order: EpochOrder,
    epoch: u64,
    /// Position that all ranks have come to with what was handed out, and with what was begun.
    given: u64,
    begun: u64,
    /// Position up to which batches are begun one by one: of several together, one couldn't be read.
    one_by_one_to: u64,
    ahead: VecDeque<Flight>,
    samples: Vec<u64>,
    figures: Figures,
    /// Where a GPU computes the order.
    on_gpu: Option<OnGpu>,
    /// Where blocks of short rows are read whole.
    stages: Option<Stages>,
    /// Where what isn't cached is read into the page cache.
    fills: Option<Fills>,
}

impl Inner {
    /// Notes a batch that is handed out. The words of the GPU's sums are read once many of them are used.
    fn note(&mut self, reports: &[Report], rows: u64, hash: Hash) -> Result<(), Error> {
        let hash = match (hash, &mut self.on_gpu) {
            (Hash::Here(hash), _) => hash,
            (Hash::OnGpu(word), Some(on_gpu)) => on_gpu.hand_out(word)?,
            (Hash::OnGpu(_) | Hash::Asked, _) => 0,
        };
        self.figures.note(reports, rows, hash);
        Ok(())
    }

    /// Ends what is read ahead of batches.
    fn clear_reads(&mut self) {
        self.stages.iter_mut().for_each(Stages::clear);
        self.fills.iter_mut().for_each(Fills::clear);
    }

    /// The sum over all that was handed out.
    fn hash(&mut self) -> u64 {
        if let Some(on_gpu) = &mut self.on_gpu {
            self.figures.add_hash(on_gpu.read().unwrap_or(0));
        }
        self.figures.hash()
    }
}

/// Batches of cached samples that are read ahead in host memory, of so many as may be: as many as stay in the last-level cache until
/// they are used, beside one in use and one that is written, and enough for all threads that copy. Each takes less time than its
/// consumer's turn, and memory is what bounds copies (`bench/feed.py --only "samples, in order"`).
fn ahead_of_cached(slot_bytes: usize, prefetch: usize) -> usize {
    let fit = last_level_cache_bytes() as usize / 4 / slot_bytes.max(1);
    fit.max(processors::to_host_soonest() - 1).max(1).min(prefetch)
}

/// Batches from a disk that are begun together: as many as have so many bytes, or as may be ahead twice, so that some are read while
/// others are used.
fn together(bytes: usize, slot_bytes: usize, ahead_max: usize) -> usize {
    bytes.div_ceil(slot_bytes.max(1)).clamp(1, ahead_max.div_ceil(2).clamp(1, TOGETHER_MAX))
}

/// Bytes to be read ahead. In host memory no more than stays in the last-level cache beside their copies until it is used:
/// memory is what bounds copies there.
fn ahead_bytes(memory: Memory) -> usize {
    match memory {
        Memory::Host => (last_level_cache_bytes() as usize / 2).clamp(AHEAD_BYTES_MIN, AHEAD_BYTES),
        Memory::Pinned(_) | Memory::Gpu(_) => AHEAD_BYTES,
    }
}

/// Workers that a batch is cut into parts for, where all batches ahead have parts for all of them: each part costs a wake, a read
/// and a copy of its own, and a batch behind those ahead of it needn't come any sooner.
fn workers_each(workers: usize, prefetch: usize) -> usize {
    (workers / (prefetch + 1)).max(1)
}

/// Batches of one data set for one rank. Dropped, it ends what it began; batches that were handed out stay.
pub struct Loader {
    table: Table,
    shelf: Arc<Shelf>,
    prefetch: usize,
    /// Of batches that are cached, so many.
    of_cached: usize,
    /// Of batches that come from a disk, so many.
    of_disk: usize,
    /// Of those, so many are begun together.
    together: usize,
    share: Share,
    shuffle: Shuffle,
    seed: u64,
    identity: u64,
    process: u32,
    /// Where batches come through cuFile.
    cufile: Option<Arc<ByCufile>>,
    /// What becomes of data that isn't cached.
    cold: Decision,
    inner: Mutex<Inner>,
}

impl Loader {
    /// # Errors
    /// `Request`: settings that don't fit the data. `Machine`: no GPU, or a file that can't be opened.
    pub fn open(spec: Spec) -> Result<Loader, Error> {
        let Spec { share, shuffle, seed, identity, .. } = spec;
        if share.batch == 0 || share.world == 0 || share.rank >= share.world {
            let asked = format!("batch_size={}, rank={}, world={}", share.batch, share.rank, share.world);
            return Err(Error::request(
                asked,
                "a batch has a sample or more, and ranks count from 0",
                "rank=0, world=1",
            ));
        }
        let opening = Opening {
            way: if spec.memory.gpu().is_some() { spec.way } else { ReadPath::Host },
            ahead: true,
            ..Opening::default()
        };
        let table = Table::open(spec.parts, spec.columns, opening)?;
        let slot_bytes = table.slot_bytes(share.batch)?;
        let prefetch = spec.prefetch.unwrap_or_else(|| {
            let least = spec.memory.gpu().map_or(*AHEAD.start(), |_| AHEAD_MIN_GPU);
            (ahead_bytes(spec.memory) / slot_bytes.max(1)).clamp(least, *AHEAD.end())
        });
        let of_cached = match (spec.prefetch, spec.memory) {
            (None, Memory::Host) if spec.cache != CacheUse::Bypass => ahead_of_cached(slot_bytes, prefetch),
            _ => prefetch,
        };
        if prefetch > PREFETCH_MAX {
            let found = format!("more than {PREFETCH_MAX} batches ahead gain nothing");
            return Err(Error::request(
                format!("prefetch={prefetch}"),
                found,
                "prefetch=16, or a larger batch_size",
            ));
        }
        let least = slot_bytes.saturating_mul(prefetch + 2);
        let limit = spec.limit_bytes.unwrap_or(LIMIT_BYTES_MIN.max(least + slot_bytes.saturating_mul(KEPT)));
        if limit < slot_bytes.saturating_mul(2) {
            let found =
                format!("two batches take {} bytes: one is used while the next is read", 2 * slot_bytes);
            return Err(Error::request(format!("pin_limit={limit}"), found, format!("pin_limit={least}")));
        }
        let cufile = match spec.memory.gpu() {
            Some(gpu) if spec.way == ReadPath::Gds => Some(table.read_through_cufile(gpu)?),
            _ => None,
        };
        let shelf = Shelf::new(spec.memory, slot_bytes, limit, cufile.clone())?;
        let order = EpochOrder::new(table.rows(), table.sample_bytes(), shuffle, seed, 0, identity);
        let mut inner = Inner {
            order,
            epoch: 0,
            given: 0,
            begun: 0,
            one_by_one_to: 0,
            ahead: VecDeque::new(),
            samples: Vec::new(),
            figures: Figures::default(),
            on_gpu: (table.is_for_gpu() && cufile.is_none())
                .then(|| spec.memory.gpu())
                .flatten()
                .and_then(OnGpu::open),
            stages: None,
            fills: None,
        };
        let step = table.columns().iter().map(|column| column.step).max().unwrap_or(0);
        // Each of several ranks reads the others' rows along with its own: less than its own would take one by one, if they are short.
        let whole = fill::reads_whole(share.world, step) && cufile.is_none();
        let room = spec.limit_bytes.map(|limit| limit.saturating_sub(least));
        let gpu = spec.memory.gpu();
        let stages = whole.then(|| Stages::where_they_pay(&table, &inner.order, room, gpu)).flatten();
        let by_long_reads =
            stages.is_some() && share.world == 1 || fill::are_long_reads(&table, shuffle, &share);
        let into_gpu = gpu.is_some();
        let cold = fill::decide(&table, spec.cache, (shuffle, share.world), step, into_gpu, by_long_reads);
        inner.fills = cold.fills.then(Fills::default);
        inner.stages = stages.filter(|_| !cold.fills);
        let long = |column: &Column| column.bytes >= COPIED_ROW_BYTES_MAX;
        let touch = |column: &Column| column.step == column.bytes as u64;
        // Bytes of this rank whose rows lie next to each other.
        let next_to = match inner.order.window(0) {
            _ if into_gpu || !table.all_are_files() => 0,
            Some(window) if table.columns().iter().all(long) => {
                (window.positions.end.saturating_mul(table.sample_bytes()) / share.world) as usize
            }
            None if shuffle == Shuffle::None && table.columns().iter().all(touch) => TOGETHER_BYTES,
            _ => 0,
        };
        // One more is used, and one more is read than there are ahead.
        let room = (limit / slot_bytes.max(1)).saturating_sub(2);
        let together = together(next_to, slot_bytes, spec.prefetch.unwrap_or(room.max(prefetch)));
        let of_disk = prefetch.max(2 * together - 1);
        let process = std::process::id();
        Ok(Loader {
            table,
            shelf,
            prefetch,
            of_cached,
            of_disk,
            together,
            share,
            shuffle,
            seed,
            identity,
            process,
            cufile,
            cold,
            inner: Mutex::new(inner),
        })
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("no holder panics")
    }

    fn own(&self) -> Result<MutexGuard<'_, Inner>, Error> {
        if self.process != std::process::id() {
            let found = "it was opened before this process was forked, and its threads are the parent's";
            return Err(Error::request(
                "a Loader",
                found,
                "open one in this process; a Loader needs no worker processes",
            ));
        }
        Ok(self.inner())
    }

    /// Whether what isn't cached is read into the page cache, be it from the second epoch on, and why.
    pub fn fills_cache(&self) -> (bool, &str) {
        (self.cold.fills || self.cold.later, &self.cold.why)
    }

    /// Samples of an epoch, over all ranks.
    pub fn samples(&self) -> u64 {
        self.table.rows()
    }

    /// Batches of this rank in a whole epoch.
    pub fn batches(&self) -> u64 {
        self.share.batches(0, self.samples())
    }

    /// Epoch and position that have been handed out.
    pub fn position(&self) -> (u64, u64) {
        let inner = self.inner();
        (inner.epoch, inner.given)
    }

    /// Goes on from a position of an epoch, whichever number of ranks came there.
    ///
    /// # Errors
    /// `Request`: the data hasn't so many samples.
    pub fn seek(&self, epoch: u64, position: u64) -> Result<(), Error> {
        let mut inner = self.own()?;
        if position > self.samples() {
            let found = format!("the data has {}", self.samples());
            return Err(Error::request(
                format!("sample {position} of an epoch"),
                found,
                "a state of the same data",
            ));
        }
        inner.ahead.clear();
        inner.clear_reads();
        inner.order = self.order_of(epoch);
        (inner.epoch, inner.given, inner.begun, inner.one_by_one_to) = (epoch, position, position, 0);
        Ok(())
    }

    /// The samples at consecutive positions of an epoch.
    ///
    /// # Errors
    /// `Request`: the epoch hasn't so many.
    pub fn samples_at(&self, epoch: u64, first: u64, count: usize) -> Result<Vec<u64>, Error> {
        if first.checked_add(count as u64).is_none_or(|end| end > self.samples()) {
            let asked = format!("{count} samples from position {first} on");
            return Err(Error::request(
                asked,
                format!("an epoch has {}", self.samples()),
                "positions of the epoch",
            ));
        }
        let mut samples = vec![0; count];
        order_samples(&self.order_of(epoch), first, &mut samples);
        Ok(samples)
    }

    fn order_of(&self, epoch: u64) -> EpochOrder {
        EpochOrder::new(
            self.samples(),
            self.table.sample_bytes(),
            self.shuffle,
            self.seed,
            epoch,
            self.identity,
        )
    }

    /// Takes the next batch, and has another one begun. Waits for `at_most`; at the epoch's end the next epoch's first is
    /// begun by the call after it.
    ///
    /// # Errors
    /// What failed, with file and offset; the next call reads the batch again. `Request`: so many batches are kept that there
    /// is no memory for another.
    pub fn next(&self, at_most: Duration) -> Result<Next, Error> {
        let mut inner = self.own()?;
        let asked = monotonic_now();
        inner.figures.begin(asked, self.table.devices());
        while let Ahead::Reading = self.read_ahead(&mut inner)? {
            let left = at_most.saturating_sub(asked.elapsed());
            let staged = inner.stages.as_ref().is_none_or(|stages| stages.wait(left));
            if !staged || !inner.fills.as_ref().is_none_or(|fills| fills.wait(left)) {
                inner.figures.waited(asked);
                return Ok(Next::Wait);
            }
        }
        let Some(flight) = inner.ahead.front() else {
            let epoch = inner.epoch + 1;
            inner.clear_reads();
            if self.cold.later {
                inner.stages = None;
                inner.fills.get_or_insert_default();
            }
            inner.figures.end(asked);
            inner.order = self.order_of(epoch);
            (inner.epoch, inner.given, inner.begun, inner.one_by_one_to) = (epoch, 0, 0, 0);
            return Ok(Next::End);
        };
        let done = flight.wait(|| at_most.saturating_sub(asked.elapsed()));
        inner.figures.waited(asked);
        if !done {
            return Ok(Next::Wait);
        }
        let mut flight = inner.ahead.pop_front().expect("it is the first");
        let reports = match flight.outcome() {
            Ok(reports) => reports,
            Err(error) => {
                // Those behind it are in order, but the consumer may ask for this one again.
                inner.ahead.clear();
                let (given, begun) = (inner.given, inner.begun);
                inner.begun = given;
                if !flight.of_several {
                    return Err(error);
                }
                // It may be another of them that can't be read: each by itself tells.
                inner.one_by_one_to = begun;
                return Ok(Next::Wait);
            }
        };
        let hash = match (flight.hash, flight.requests.first()) {
            (Hash::Asked, Some(request)) => Hash::Here(request.hash()),
            (hash, _) => hash,
        };
        flight.requests.clear();
        flight.together.clear();
        inner.given = flight.after;
        inner.note(&reports, flight.rows as u64, hash)?;
        Ok(Next::Batch(Batch {
            rows: flight.rows,
            first: flight.first,
            epoch: inner.epoch,
            begins: self.table.begins(self.share.batch),
            lease: flight.lease.clone(),
        }))
    }

    /// Begins batches until enough are on their way. The one that is asked for must have memory, the others may wait for it.
    fn read_ahead(&self, inner: &mut Inner) -> Result<Ahead, Error> {
        while inner.ahead.len() <= self.of_disk {
            let Some((positions, after)) = self.share.next(inner.begun, self.samples()) else {
                return Ok(Ahead::Begun);
            };
            if inner.ahead.len() > self.of_cached && self.is_cached_at(inner, &positions) {
                return Ok(Ahead::Begun);
            }
            let of_disk = match (&mut inner.stages, &mut inner.fills) {
                (Some(stages), _) => Some(stages.ready(&self.table, &inner.order, &positions)),
                (None, Some(fills)) => {
                    let mut begun = after;
                    let next = std::iter::from_fn(|| {
                        let (positions, after) = self.share.next(begun, self.samples())?;
                        begun = after;
                        Some(positions)
                    });
                    Some(fills.ready(&self.table, &inner.order, &positions, next))
                }
                (None, None) => None,
            };
            if let Some(ready) = of_disk {
                match ready {
                    Ok(Ready::Yes) => {}
                    Ok(Ready::Wait) if inner.ahead.is_empty() => return Ok(Ahead::Reading),
                    Err(error) if inner.ahead.is_empty() => return Err(error),
                    // What came before it is handed out first.
                    Ok(Ready::Wait) | Err(_) => return Ok(Ahead::Begun),
                }
            }
            let several = self.batches_together(inner);
            // Of a last few, a rank may get none: nothing is at its position.
            if several > 1 && !positions.is_empty() && self.is_uncached_at(inner, positions.start) {
                let room = inner.ahead.len() + several <= self.of_disk + 1;
                if room && self.begin_together(inner, several)? {
                    continue;
                }
                return Ok(Ahead::Begun);
            }
            if inner.ahead.len() > self.prefetch {
                return Ok(Ahead::Begun);
            }
            let Some(lease) = self.take_slot(inner.ahead.is_empty())? else { return Ok(Ahead::Begun) };
            let flight = self.begin(inner, positions, after, lease)?;
            inner.begun = after;
            inner.ahead.push_back(flight);
        }
        Ok(Ahead::Begun)
    }

    /// Memory for a batch. The one that is asked for must have some: it waits for it.
    fn take_slot(&self, must: bool) -> Result<Option<Arc<Lease>>, Error> {
        Ok(match self.shelf.take()? {
            Taken::Slot(lease) => Some(Arc::new(lease)),
            Taken::Busy if must => Some(self.shelf.wait_for_one()?),
            Taken::None if must => return Err(self.shelf.is_empty(self.prefetch)),
            Taken::Busy | Taken::None => None,
        })
    }

    /// Number of batches that are begun together: where each row would be a read of its own and many lie next to those of other
    /// batches, or all of them do. Of those in order the first comes alone, and soon.
    fn batches_together(&self, inner: &Inner) -> usize {
        let past_cache = inner.stages.is_none() && inner.fills.is_none();
        let is_first = inner.ahead.is_empty() && inner.order.is_as_they_lie();
        match past_cache && !is_first && inner.begun >= inner.one_by_one_to {
            true => self.together,
            false => 1,
        }
    }

    fn is_uncached_at(&self, inner: &Inner, position: u64) -> bool {
        self.cached_share_at(inner, position).is_some_and(|share| share < 0.5)
    }

    /// Returns whether some samples of these positions are cached, and others likely, too.
    fn is_cached_at(&self, inner: &Inner, positions: &Span<u64>) -> bool {
        let some =
            [positions.start, positions.start.midpoint(positions.end), positions.end.saturating_sub(1)];
        let is_cached = |position| self.cached_share_at(inner, position).is_some_and(|share| share >= 1.0);
        !positions.is_empty() && some.into_iter().all(is_cached)
    }

    fn cached_share_at(&self, inner: &Inner, position: u64) -> Option<f64> {
        let mut sample = [0];
        order_samples(&inner.order, position, &mut sample);
        self.table.cached_share_of(sample[0])
    }

    /// Begins so many batches, or as many as have memory, whose rows are read in the order of the files. False: none has.
    fn begin_together(&self, inner: &mut Inner, several: usize) -> Result<bool, Error> {
        let mut begun = inner.begun;
        let mut batches: Vec<(Flight, Vec<u64>)> = Vec::with_capacity(several);
        while batches.len() < several {
            let Some((positions, after)) = self.share.next(begun, self.samples()) else { break };
            let Some(lease) = self.take_slot(inner.ahead.is_empty() && batches.is_empty())? else { break };
            let rows = (positions.end - positions.start) as usize;
            let mut samples = vec![0; rows];
            order_samples(&inner.order, positions.start, &mut samples);
            let hash = Hash::Here(order_hash(&inner.order, positions.start, &samples));
            batches.push((Flight::new(positions.start, rows, after, hash, lease), samples));
            begun = after;
        }
        let (begins, mut requests) = (self.table.begins(self.share.batch), Vec::new());
        let place = |flight: &Flight| begins.iter().map(|at| flight.lease.place().after(*at)).collect();
        let all = batches.iter().map(|(flight, samples)| (&samples[..], place(flight)));
        let begin = |request| submit(&mut requests, request);
        let began = self.table.request_together(all, crate::threads(), begin);
        let any = !batches.is_empty();
        for (index, (mut flight, _)) in batches.into_iter().enumerate() {
            flight.of_several = true;
            // Where a request couldn't be made, all of them end here.
            match index {
                0 => flight.requests = requests.clone(),
                _ => flight.together = requests.clone(),
            }
            if began.is_ok() {
                inner.begun = flight.after;
                inner.ahead.push_back(flight);
            }
        }
        began.map(|()| any)
    }

    fn begin(
        &self,
        inner: &mut Inner,
        positions: std::ops::Range<u64>,
        after: u64,
        lease: Arc<Lease>,
    ) -> Result<Flight, Error> {
        let rows = (positions.end - positions.start) as usize;
        if let Some(flight) = self.begin_on_gpu(inner, &positions, after, &lease)? {
            return Ok(flight);
        }
        let mut flight = Flight::new(positions.start, rows, after, Hash::Here(0), lease);
        let places = self.table.begins(self.share.batch).into_iter().map(|at| flight.lease.place().after(at));
        let places: Vec<Address> = places.collect();
        let lease = flight.lease.clone();
        let requests = &mut flight.requests;
        let together = inner.order.is_as_they_lie();
        let of = Ordered { order: inner.order, first: positions.start, count: rows };
        let (workers, after) = (workers_each(crate::threads(), self.prefetch), || lease.after());
        if let Some(stages) = inner.stages.as_ref().filter(|stages| stages.have_read(&positions)) {
            inner.samples.resize(rows, 0);
            order_samples(&inner.order, positions.start, &mut inner.samples);
            flight.hash = Hash::Here(order_hash(&inner.order, positions.start, &inner.samples));
            let read = stages.locate(&self.table, positions.start, &inner.samples)?;
            self.begin_of_windows(read, &inner.samples, (&places, workers), after, requests)?;
            return Ok(flight);
        }
        if !together && self.table.request_ordered(&of, &places, workers, after, |r| submit(requests, r))? {
            flight.hash = Hash::Asked;
            return Ok(flight);
        }
        inner.samples.resize(rows, 0);
        order_samples(&inner.order, positions.start, &mut inner.samples);
        flight.hash = Hash::Here(order_hash(&inner.order, positions.start, &inner.samples));
        let begin = |request| submit(requests, request);
        self.table.request(&inner.samples, together, &places, workers, after, begin)?;
        Ok(flight)
    }

    /// The batch out of windows that were read whole, and of the others, which are cached.
    fn begin_of_windows(
        &self,
        read: Vec<FromMemory>,
        samples: &[u64],
        (places, workers): (&[Address], usize),
        after: impl Fn() -> Vec<CudaEvent>,
        requests: &mut Vec<Arc<Request>>,
    ) -> Result<(), Error> {
        let mut done = 0;
        let spans: Vec<_> = read.iter().map(|from| (from.span.start, from.span.end)).collect();
        for (begin, end) in spans.into_iter().chain([(samples.len(), 0)]) {
            let (rest, columns) = (&samples[done..begin], self.table.columns());
            let there = places.iter().zip(columns).map(|(place, column)| place.after(done * column.bytes));
            let there: Vec<Address> = there.collect();
            self.table.request(rest, false, &there, workers, &after, |request| submit(requests, request))?;
            done = end;
        }
        for from in read {
            from.request(&self.table, places, &after, |request| submit(requests, request))?;
        }
        Ok(())
    }

    /// The batch with its numbers computed by the GPU, where that may read the whole file by itself.
    fn begin_on_gpu(
        &self,
        inner: &mut Inner,
        positions: &std::ops::Range<u64>,
        after: u64,
        lease: &Arc<Lease>,
    ) -> Result<Option<Flight>, Error> {
        let (Some(on_gpu), Some((reader, layout))) = (&mut inner.on_gpu, self.table.alone()?) else {
            return Ok(None);
        };
        let rows = (positions.end - positions.start) as usize;
        if inner.order.permutation().is_none() || layout.in_pieces(rows).1 > 1 {
            return Ok(None);
        }
        let mut word = 0;
        let take = || {
            let taken = on_gpu.take(&inner.order, (positions.start, rows))?;
            Ok(taken.map(|(numbers, event, at)| {
                word = at;
                (numbers, Some(event))
            }))
        };
        let (limit, to) = (self.table.rows(), lease.place());
        let Some(request) = Request::by_gpu(reader, rows, limit, layout, to, lease.after(), true, take)?
        else {
            return Ok(None);
        };
        thread_pool::submit(&request)?;
        let mut flight = Flight::new(positions.start, rows, after, Hash::OnGpu(word), lease.clone());
        flight.requests.push(request);
        Ok(Some(flight))
    }

    /// Ends what is under way and lets go of the files. Batches that were handed out stay.
    pub fn close(&self) {
        if self.process == std::process::id() {
            let mut inner = self.inner();
            inner.ahead.clear();
            inner.clear_reads();
        }
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            // What its requests wrote to is the parent's.
            let inner = self.inner.get_mut().expect("no holder panics");
            std::mem::forget((std::mem::take(&mut inner.ahead), inner.stages.take(), inner.fills.take()));
            return;
        }
        self.close();
        self.table.close();
        thread_pool::release_if_unused();
    }
}

#[cfg(test)]
mod tests;
