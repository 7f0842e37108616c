//! One read request: its destinations, its progress and its result.

use super::by_cufile::KnownFile;
use super::choice::{Load, Noted};
use super::file::{Reader, Reading, Rowwise, Stamp};
use super::gpu_numbers::{Given, GpuNumbers};
use super::numbers::Copied;
use super::pages::{Blocks, By, Pages};
use super::place::{
    aligned, are_for_a_queue, cut, cut_for_queue, Address, Range, PART_BYTES_MIN, TOGETHER_BYTES,
};
use super::processors::{self, ALL_MAX, TO_PAGES_MAX, WORKERS_MAX};
use super::rows::{Fetch, Layout, Numbers, Ordered, Table};
use super::staged::Staged;
use super::{QUEUED_FROM_BYTES, REGISTERED_FOR_BYTES_MIN, SLOT_BYTES};
use forebay_io::{process_id, CudaEvent, CudaStream, Waker};
use forebay_model::Error;
use rustix::fd::OwnedFd;
use std::ops::Range as Span;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Parts of a file that are on their way to the page cache together.
const FILLED_TOGETHER: usize = 32;

pub(super) enum Source {
    One {
        reader: Arc<Reader>,
        before: Stamp,
        _reading: Reading,
    },
    /// Each with its size; opened, read whole and closed by the worker that gets it.
    Many(Vec<(PathBuf, u64)>),
    /// Read by a worker of its own (`source`), which is woken to let go of what was cancelled.
    Apart {
        worker: Arc<Waker>,
        _reading: Reading,
    },
}

impl Source {
    fn new(reader: &Arc<Reader>, before: Stamp) -> Source {
        Source::One { reader: reader.clone(), before, _reading: reader.reading() }
    }

    /// Its file as cuFile knows it, where it is read through that.
    pub(super) fn known(&self) -> Option<&KnownFile> {
        let Source::One { reader, .. } = self else { return None };
        reader.known()
    }

    /// Notes that this thread has copied some of it.
    pub(super) fn note_copied(&self) {
        if let Source::One { reader, .. } = self {
            reader.note_copied();
        }
    }
}

/// Report on how the bytes of a request travelled.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Report {
    pub bytes: u64,
    /// Through pinned slots, or copied by a processor.
    pub staged_bytes: u64,
    /// By DMA from the page cache's own pages.
    pub mapped_bytes: u64,
    /// From storage to their place with no copy on the way.
    pub direct_bytes: u64,
    /// By cuFile, not provably without its compatibility mode.
    pub compat_bytes: u64,
    /// Read past the page cache, whatever way they took from there.
    pub uncached_bytes: u64,
    /// Bytes of rows that came before in the same call, copied by the GPU from there.
    pub repeated_bytes: u64,
    pub seconds: f64,
}

#[derive(Default)]
pub(super) struct Counts {
    pub staged: AtomicU64,
    pub mapped: AtomicU64,
    pub direct: AtomicU64,
    pub compat: AtomicU64,
    pub uncached: AtomicU64,
    pub repeated: AtomicU64,
    /// Sum over samples of an order.
    pub hash: AtomicU64,
}

#[derive(Default)]
struct RequestState {
    /// Parts whose copies are all queued, and parts whose bytes have arrived.
    filled: usize,
    done: usize,
    /// All are filled, from an unchanged file.
    queued: bool,
    failure: Option<Error>,
    seconds: f64,
    /// Parts that are left of each group of pages.
    left: Vec<usize>,
    /// Streams that carry copies of it.
    streams: Vec<Arc<Mutex<CudaStream>>>,
    /// Threads that wait for a change.
    waiting: usize,
    /// Eventfds to be rung at the end.
    wakeups: Vec<OwnedFd>,
}

pub struct Request {
    /// Dropped at the end: a request that somebody keeps doesn't keep its file.
    source: Mutex<Option<Arc<Source>>>,
    pieces: Vec<Range>,
    /// Bytes of the pieces.
    bytes: u64,
    /// Start of each part in `pieces`, and the end.
    parts: Vec<u32>,
    /// In place of pieces: rows that a GPU fetches.
    table: Option<Table>,
    /// Likewise: pages that go to places apart from each other.
    pages: Option<Pages>,
    pub(super) counts: Counts,
    /// Work of the destination's user that must end before a byte is written.
    pub(super) after: Vec<Mutex<CudaEvent>>,
    dropped: AtomicBool,
    /// Number of workers that may bring its parts: the first ones.
    workers_max: AtomicUsize,
    copied_to_host: bool,
    /// Its ranges are read into the page cache: their places are those of the mapping.
    fills_cache: bool,
    /// One worker is to read it from its end, by relays, and hasn't begun.
    mixes: AtomicBool,
    /// Its long ranges come past the page cache, many at a time, on their way to a GPU.
    queues_long: bool,
    /// Note of its time.
    noted: Option<Noted>,
    began: Instant,
    process: u32,
    state: Mutex<RequestState>,
    changed: Condvar,
}

impl Request {
    /// Refuses ranges that lie beyond the file's end, before anything is read.
    pub fn of_file(
        reader: &Arc<Reader>,
        ranges: &[Range],
        after: Vec<CudaEvent>,
        workers: usize,
    ) -> Result<Arc<Request>, Error> {
        Ok(Arc::new(Request::of_ranges(reader, ranges, after, workers)?))
    }

    /// As `of_file`, of rows for host memory: what is long and must come from the device is read many at a time, all of it by one
    /// worker where it needs no copy.
    ///
    /// # Errors
    /// As of `of_file`.
    pub(super) fn of_many(
        reader: &Arc<Reader>,
        ranges: &[Range],
        workers: usize,
    ) -> Result<Arc<Request>, Error> {
        let request = Request::of_ranges(reader, ranges, Vec::new(), workers)?;
        let to_its_place = |range: &Range, unit| match range.to {
            Address::Host(at) => aligned(range, at as *mut u8, unit),
            Address::Device { .. } => false,
        };
        let all_are = |(_, unit)| ranges.iter().all(|range| to_its_place(range, unit));
        Ok(Arc::new(match reader.direct_fd().is_some_and(all_are) {
            true => request.many_at_a_time(reader, ranges, usize::MAX),
            false => request.many_by(reader, ranges, workers),
        }))
    }

    /// As `many_at_a_time`, by so many workers.
    fn many_by(self, reader: &Reader, ranges: &[Range], workers: usize) -> Request {
        let each = self.bytes as usize / (2 * workers.max(1));
        self.many_at_a_time(reader, ranges, each.clamp(PART_BYTES_MIN, TOGETHER_BYTES))
    }

    /// Long reads, of which those of a part are under way together.
    fn many_at_a_time(mut self, reader: &Reader, ranges: &[Range], part_bytes: usize) -> Request {
        if are_for_a_queue(ranges) && reader.is_of_the_device() {
            (self.pieces, self.parts) = cut_for_queue(ranges, part_bytes);
        }
        self
    }

    fn of_ranges(
        reader: &Arc<Reader>,
        ranges: &[Range],
        after: Vec<CudaEvent>,
        workers: usize,
    ) -> Result<Request, Error> {
        let before = reader.stamp()?;
        for range in ranges {
            let end = range.offset.checked_add(range.bytes as u64);
            if range.bytes > 0 && end.is_none_or(|end| end > before.bytes) {
                return Err(Error::request(
                    format!("{} bytes from {} of {}", range.bytes, range.offset, reader.path.display()),
                    format!("it has {} bytes", before.bytes),
                    "a range inside the file; File.size says how long it is",
                ));
            }
        }
        let windows = match ranges.iter().all(|r| reader.was_as_long(r.offset + r.bytes as u64)) {
            true => reader.windows_for(ranges)?.map(|w| w.bytes_each),
            false => None,
        };
        let source = Source::new(reader, before);
        let mut request = Request::new(source, ranges, after, workers, windows);
        let bytes = ranges.iter().map(|r| r.bytes).sum();
        if let Some(workers) = reader.copied_at_full_rate(bytes).filter(|_| windows.is_none()) {
            request.workers_max = workers.into();
        }
        request.mixes = AtomicBool::new(windows.is_some() && reader.mixes(bytes));
        let is_long = |range: &Range| range.to.gpu().is_some() && range.bytes >= SLOT_BYTES;
        request.queues_long = windows.is_none()
            && bytes >= QUEUED_FROM_BYTES
            && reader.known().is_none()
            && ranges.iter().all(is_long)
            && reader.direct_fd().is_some()
            && reader.is_of_the_device();
        request.noted = if windows.is_none() { reader.note_ranges(ranges) } else { None };
        Ok(request)
    }

    /// Rows by their numbers, packed from `to` on; the place of a number that is `ELSEWHERE` stays as it is. A GPU fetches
    /// them by itself where that is asked for or pays; else they are ranges.
    ///
    /// # Errors
    /// `Request`: a row that doesn't lie in the file. Nothing is read then.
    pub fn of_rows(
        reader: &Arc<Reader>,
        numbers: impl Into<Copied>,
        layout: Layout,
        to: Address,
        after: Vec<CudaEvent>,
        workers: usize,
    ) -> Result<Arc<Request>, Error> {
        let before = reader.stamp()?;
        let numbers: Copied = numbers.into();
        let mut mapped = true;
        if let Some(last) = numbers.last().filter(|_| layout.row_bytes > 0) {
            let end = layout.end(last);
            mapped = end.is_some_and(|end| reader.was_as_long(end));
            if end.is_none_or(|end| end > before.bytes) {
                return Err(layout.outside(last, &reader.path, before.bytes));
            }
        }
        let (pieces, cut) = match to.gpu() {
            Some(_) if layout.row_bytes < REGISTERED_FOR_BYTES_MIN => layout.in_pieces(numbers.rows()),
            _ => (layout, 1),
        };
        let load = Load { rows: numbers.rows() * cut, row_bytes: pieces.row_bytes, ahead: false };
        let rowwise = if mapped { reader.rows_for(to, load)? } else { Rowwise::default() };
        Request::by_rows(reader, before, numbers, (layout, pieces), to, after, workers, rowwise)
    }

    /// Rows that lie inside, whole or in `pieces`, by the way that was chosen.
    #[allow(clippy::too_many_arguments)]
    fn by_rows(
        reader: &Arc<Reader>,
        before: Stamp,
        numbers: Copied,
        (layout, pieces): (Layout, Layout),
        to: Address,
        after: Vec<CudaEvent>,
        workers: usize,
        Rowwise { fetch, noted }: Rowwise,
    ) -> Result<Arc<Request>, Error> {
        let cut = layout.row_bytes / pieces.row_bytes.max(1);
        let (fetch, numbers, layout) = match fetch {
            Some(fetch) if cut <= 1 => (fetch, numbers, layout),
            Some(fetch) => (fetch, layout.cut(numbers.numbers(), pieces.row_bytes).into(), pieces),
            None => {
                let mut ranges = layout.ranges(numbers.numbers(), to);
                if to.gpu().is_none() {
                    // Those that touch in the file are one read of it, whatever lies between their places.
                    ranges.sort_by_key(|range| range.offset);
                    let mut request = Request::of_ranges(reader, &ranges, after, workers)?;
                    request.noted = noted.or(request.noted);
                    return Ok(Arc::new(request.many_by(reader, &ranges, workers)));
                }
                // Each row is read into a slot by a processor, the first time without a mapping.
                let hands = reader.hands();
                let mut request = Request::of_ranges(reader, &ranges, after, hands)?;
                if hands > workers && request.noted.is_none() {
                    request.workers_max = ALL_MAX.into();
                }
                request.noted = noted.or(request.noted);
                return Ok(Arc::new(request));
            }
        };
        let source = Source::new(reader, before);
        let mut request = Request::new(source, &[], after, workers, None);
        let rows = numbers.rows();
        request.set_table(reader, Table::new(fetch, (Numbers::Here(numbers), rows), layout, to));
        request.noted = noted;
        Ok(Arc::new(request))
    }

    fn set_table(&mut self, reader: &Reader, table: Table) {
        if matches!(table.fetch, Fetch::Processors(_)) {
            self.copied_to_host = table.to.gpu().is_none() && reader.whole().is_some();
            self.workers_max = if self.copied_to_host { reader.to_host() } else { ALL_MAX }.into();
        }
        self.table = Some(if self.copied_to_host { table.in_short_parts() } else { table });
    }

    /// Long ranges to host memory, read by few workers, each part of many reads at once: the other workers copy meanwhile.
    ///
    /// # Errors
    /// As of `of_file`.
    pub(super) fn of_long_reads(reader: &Arc<Reader>, ranges: &[Range]) -> Result<Arc<Request>, Error> {
        let before = reader.stamp()?;
        let cut = cut_for_queue(ranges, usize::MAX);
        let mut request = Request::of_parts(Source::new(reader, before), cut, Vec::new());
        request.workers_max = (processors::threads() / 2).max(1).into();
        Ok(Arc::new(request))
    }

    /// Parts of a file that are to be read into the page cache.
    ///
    /// # Errors
    /// The file can't be looked at.
    pub(super) fn of_fill(reader: &Arc<Reader>, spans: &[Span<u64>]) -> Result<Arc<Request>, Error> {
        let range = |span: &Span<u64>| {
            let to = Address::Host(reader.mapped_at(span.start)? as u64);
            Some(Range { file: 0, offset: span.start, bytes: (span.end - span.start) as usize, to })
        };
        let pieces: Vec<Range> = spans.iter().filter_map(range).collect();
        let parts = (0..pieces.len()).step_by(FILLED_TOGETHER).chain([pieces.len()]);
        let parts = parts.map(|at| at as u32).collect();
        let source = Source::new(reader, reader.stamp()?);
        let mut request = Request::of_parts(source, (pieces, parts), Vec::new());
        request.workers_max = 1.into();
        request.fills_cache = true;
        Ok(Arc::new(request))
    }

    /// Returns whether its ranges are read into the page cache, and no further.
    pub(super) fn fills_cache(&self) -> bool {
        self.fills_cache
    }

    /// Rows out of memory that they were read into, each from the place of its number on; whether they came past the page cache.
    ///
    /// # Errors
    /// The file can't be looked at.
    pub(super) fn of_memory(
        reader: &Arc<Reader>,
        (memory, uncached): (Arc<Staged>, bool),
        numbers: Vec<u64>,
        row_bytes: usize,
        to: Address,
        after: Vec<CudaEvent>,
    ) -> Result<Arc<Request>, Error> {
        let mut request = Request::new(Source::new(reader, reader.stamp()?), &[], after, 1, None);
        let whole = Layout { start: 0, step: 1, row_bytes };
        let by_gpu = memory.gpu().filter(|gpu| to.gpu() == Some(*gpu));
        let kernel = by_gpu.and_then(|gpu| reader.rows_on(gpu).ok());
        // Few long rows would keep few of its threads busy.
        let (layout, cut) = match kernel {
            Some(_) => whole.in_pieces(numbers.len()),
            None => (whole, 1),
        };
        let numbers = if cut > 1 { whole.cut(&numbers, layout.row_bytes) } else { numbers };
        let rows = numbers.len();
        let fetch = kernel.map_or(Fetch::Processors(None), Fetch::Gpu);
        let mut table = Table::new(fetch, (Numbers::Here(numbers.into()), rows), layout, to);
        table.memory = Some(memory);
        request.workers_max = if to.gpu().is_some() { ALL_MAX } else { reader.to_host() }.into();
        if uncached {
            request.counts.uncached.store(table.bytes(), Ordering::Relaxed);
        }
        request.table = Some(table);
        Ok(Arc::new(request))
    }

    /// As `of_rows`, for samples of an order that are rows of the file, each computed by the worker that brings it.
    ///
    /// # Errors
    /// As of `of_rows`.
    pub(super) fn of_order(
        reader: &Arc<Reader>,
        of: &Ordered,
        layout: Layout,
        to: Address,
        after: Vec<CudaEvent>,
        workers: usize,
    ) -> Result<Arc<Request>, Error> {
        let before = reader.stamp()?;
        let end = layout.end(of.order.samples() - 1);
        let inside = end.is_some_and(|end| end <= before.bytes && reader.was_as_long(end));
        let whole = to.gpu().is_none() || layout.in_pieces(of.count).1 == 1;
        if inside && whole {
            let load = Load { rows: of.count, row_bytes: layout.row_bytes, ahead: true };
            let rowwise = reader.rows_for(to, load)?;
            if let Rowwise { fetch: Some(fetch), noted } = rowwise {
                let mut request = Request::new(Source::new(reader, before), &[], after, workers, None);
                let table = Table::new(fetch, (Numbers::Ordered(*of), of.count), layout, to);
                request.set_table(reader, table);
                request.noted = noted;
                return Ok(Arc::new(request));
            }
            let (numbers, hash) = of.all();
            let both = (layout, layout);
            let request =
                Request::by_rows(reader, before, numbers.into(), both, to, after, workers, rowwise)?;
            request.counts.hash.store(hash, Ordering::Relaxed);
            return Ok(request);
        }
        let (numbers, hash) = of.all();
        let request = Request::of_rows(reader, numbers, layout, to, after, workers)?;
        request.counts.hash.store(hash, Ordering::Relaxed);
        Ok(request)
    }

    /// Sum over the samples of an order, after the end.
    pub(super) fn hash(&self) -> u64 {
        self.counts.hash.load(Ordering::Relaxed)
    }

    /// As `of_rows`, for numbers below `limit` in the memory of the GPU that the rows go to, which they don't leave. None
    /// where it doesn't go that way, or one of them is wrong: whoever asks has `of_rows` say what is.
    ///
    /// # Errors
    /// The GPU failed.
    pub fn of_rows_there(
        reader: &Arc<Reader>,
        given: &Given,
        limit: u64,
        layout: Layout,
        to: Address,
        after: Vec<CudaEvent>,
    ) -> Result<Option<Arc<Request>>, Error> {
        if to.gpu() != Some(given.gpu) {
            return Ok(None);
        }
        let take = || Ok(GpuNumbers::take(given, limit)?.map(|numbers| (numbers, None)));
        Request::by_gpu(reader, given.count, limit, layout, to, after, false, take)
    }

    /// `count` rows of those below `limit` whose numbers come to lie in the memory of the GPU that the rows go to: `take` is
    /// asked for them where the GPU may read the whole file, and says after which event they are there.
    ///
    /// # Errors
    /// The GPU failed.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn by_gpu(
        reader: &Arc<Reader>,
        count: usize,
        limit: u64,
        layout: Layout,
        to: Address,
        mut after: Vec<CudaEvent>,
        ahead: bool,
        take: impl FnOnce() -> Result<Option<(GpuNumbers, Option<CudaEvent>)>, Error>,
    ) -> Result<Option<Arc<Request>>, Error> {
        let before = reader.stamp()?;
        let end = limit.checked_sub(1).and_then(|last| layout.end(last));
        let inside = end.is_some_and(|end| end <= before.bytes && reader.was_as_long(end));
        let whole = || reader.windows().is_some_and(|windows| windows.is_whole());
        if !inside || count == 0 || !whole() {
            return Ok(None);
        }
        let Some((numbers, there)) = take()? else { return Ok(None) };
        after.extend(there);
        let load = Load { rows: count, row_bytes: layout.row_bytes, ahead };
        let (fetch, noted) = match reader.rows_for(to, load) {
            Ok(Rowwise { fetch: Some(fetch @ Fetch::Gpu(_)), noted }) => (fetch, noted),
            other => {
                numbers.give_back();
                return other.map(|_| None);
            }
        };
        let mut request = Request::new(Source::new(reader, before), &[], after, 1, None);
        let rows = numbers.len();
        request.table = Some(Table::new(fetch, (Numbers::GpuNumbers(numbers), rows), layout, to));
        request.noted = noted;
        Ok(Some(Arc::new(request)))
    }

    /// Blocks, each page of which goes to its place in a GPU's memory.
    ///
    /// # Errors
    /// `Request`: a block that doesn't lie in the file. Nothing is read then.
    pub fn of_blocks(
        reader: &Arc<Reader>,
        blocks: Blocks,
        gpu: u32,
        after: Vec<CudaEvent>,
    ) -> Result<Arc<Request>, Error> {
        let before = reader.stamp()?;
        let layout = Layout {
            start: blocks.start,
            step: blocks.block_bytes() as u64,
            row_bytes: blocks.block_bytes(),
        };
        let mut mapped = true;
        if let Some(last) = blocks.slots.iter().max() {
            let end = blocks.end();
            mapped = end.is_some_and(|end| reader.was_as_long(end));
            if end.is_none_or(|end| end > before.bytes) {
                return Err(layout.outside(*last, &reader.path, before.bytes));
            }
        }
        let pages =
            Layout { start: blocks.start, step: blocks.page_bytes as u64, row_bytes: blocks.page_bytes };
        let count = blocks.count();
        let pieces = pages.in_pieces(count).0;
        let rows = count * (blocks.page_bytes / pieces.row_bytes.max(1));
        let load = Load { rows, row_bytes: pieces.row_bytes, ahead: false };
        let to = Address::Device { gpu, at: 0 };
        let runs = blocks.runs();
        let Rowwise { fetch, noted } =
            if mapped { reader.pages_for(to, load, &runs)? } else { Rowwise::default() };
        let by = match fetch {
            Some(Fetch::Gpu(_)) if reader.is_registered_there(&runs) => By::Gpu,
            Some(Fetch::Gpu(_)) => By::GpuLater,
            _ => By::Processors,
        };
        let scatter = reader.scatter_on(gpu).ok();
        let mut request = Request::new(Source::new(reader, before), &[], after, 1, None);
        let pages = Pages::new((by, scatter), gpu, blocks);
        if matches!(pages.by, By::Processors) {
            request.workers_max = TO_PAGES_MAX.into();
        }
        request.state.get_mut().expect("nobody has it").left = pages.parts_by_group();
        request.pages = Some(pages);
        request.noted = noted;
        Ok(Arc::new(request))
    }

    /// `windows`: bytes of those that long ranges are read through.
    pub(super) fn new(
        source: Source,
        ranges: &[Range],
        after: Vec<CudaEvent>,
        workers: usize,
        windows: Option<u64>,
    ) -> Request {
        Request::of_parts(source, cut(ranges, workers, windows), after)
    }

    /// Ranges that the worker of their source cuts by itself: consecutive ones to one kind of place are a part.
    pub(super) fn apart(
        worker: Arc<Waker>,
        reading: Reading,
        ranges: &[Range],
        after: Vec<CudaEvent>,
    ) -> Arc<Request> {
        let pieces: Vec<Range> = ranges.iter().filter(|range| range.bytes > 0).copied().collect();
        let begins = |at: &usize| *at == 0 || pieces[at - 1].to.gpu() != pieces[*at].to.gpu();
        let begins = (0..pieces.len()).filter(begins).map(|at| at as u32);
        let parts: Vec<u32> = begins.chain([pieces.len() as u32]).collect();
        let is_empty = pieces.is_empty();
        let request = Request::of_parts(Source::Apart { worker, _reading: reading }, (pieces, parts), after);
        if is_empty {
            request.source.lock().expect("no holder panics").take();
        }
        Arc::new(request)
    }

    fn of_parts(source: Source, (pieces, parts): (Vec<Range>, Vec<u32>), after: Vec<CudaEvent>) -> Request {
        Request {
            source: Mutex::new(Some(Arc::new(source))),
            bytes: pieces.iter().map(|piece| piece.bytes as u64).sum(),
            pieces,
            parts,
            table: None,
            pages: None,
            counts: Counts::default(),
            after: after.into_iter().map(Mutex::new).collect(),
            dropped: AtomicBool::new(false),
            workers_max: AtomicUsize::new(WORKERS_MAX),
            copied_to_host: false,
            fills_cache: false,
            mixes: AtomicBool::new(false),
            queues_long: false,
            noted: None,
            began: Instant::now(),
            process: process_id(),
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Returns its source, which is held until its last part is done.
    pub(super) fn source(&self) -> Arc<Source> {
        self.source.lock().expect("no holder panics").clone().expect("a part is left")
    }

    pub(super) fn part_count(&self) -> usize {
        match (&self.pages, &self.table) {
            (Some(pages), _) => pages.parts(),
            (_, Some(table)) => table.parts(),
            _ => self.parts.len() - 1,
        }
    }

    /// Number of times that a worker is to take something of it: once where one tells the GPU all of it.
    pub(super) fn takings(&self) -> usize {
        match &self.pages {
            Some(Pages { by: By::Gpu, .. }) => self.part_count().min(1),
            _ => self.part_count(),
        }
    }

    pub(super) fn pages(&self) -> Option<&Pages> {
        self.pages.as_ref()
    }

    /// Number of workers that may bring its parts: the first ones.
    pub(super) fn workers_max(&self) -> usize {
        self.workers_max.load(Ordering::Relaxed)
    }

    /// Leaves it to so many workers, beside the thread that asks.
    pub(super) fn leave_to(&self, workers: usize) {
        self.workers_max.store(workers, Ordering::Relaxed);
    }

    /// Returns whether all of it is copied between a mapping and host memory.
    pub(super) fn is_copied_to_host(&self) -> bool {
        self.copied_to_host
    }

    /// Returns whether its ranges are read past the page cache, many at a time, on their way to a GPU.
    pub(super) fn is_queued_long(&self) -> bool {
        self.queues_long
    }

    /// Claims the reading from its end for one caller; true for that one.
    pub(super) fn begins_to_mix(&self) -> bool {
        self.mixes.load(Ordering::Relaxed) && self.mixes.swap(false, Ordering::Relaxed)
    }

    pub(super) fn table(&self) -> Option<&Table> {
        self.table.as_ref()
    }

    /// Bytes of its ranges.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn part(&self, index: usize) -> &[Range] {
        &self.pieces[self.parts[index] as usize..self.parts[index + 1] as usize]
    }

    /// Returns whether the rest needn't be read: it was cancelled or has failed.
    pub fn is_dropped(&self) -> bool {
        self.dropped.load(Ordering::Acquire)
    }

    fn state(&self) -> MutexGuard<'_, RequestState> {
        self.state.lock().expect("no holder panics")
    }

    fn own_state(&self) -> Result<MutexGuard<'_, RequestState>, Error> {
        if self.is_of_the_parent() {
            let found = "it was started before this process was forked, and goes on in the parent";
            return Err(Error::run("the result of a read", found, "read it again in the child"));
        }
        Ok(self.state())
    }

    pub(super) fn fail(&self, error: Error) {
        self.dropped.store(true, Ordering::Release);
        self.state().failure.get_or_insert(error);
    }

    /// A part's bytes are read, and their copies queued on `stream`. The last one looks whether the file changed.
    pub(super) fn part_queued(&self, stream: Option<&Arc<Mutex<CudaStream>>>) {
        let last = {
            let mut state = self.state();
            if let Some(stream) = stream.filter(|s| !state.streams.iter().any(|have| Arc::ptr_eq(have, s))) {
                state.streams.push(stream.clone());
            }
            state.filled += 1;
            state.filled == self.part_count()
        };
        if last {
            self.check_unchanged();
            let mut state = self.state();
            state.queued = true;
            self.notify(&state);
        }
    }

    /// The error of a copy out of a window that changed under it. For a request that has a part left.
    pub(super) fn changed(&self) -> Error {
        match &*self.source() {
            Source::One { reader, before, .. } => {
                let now = reader.stamp().map_or(before.bytes, |now| now.bytes);
                changed(&reader.path.display().to_string(), before.bytes, now)
            }
            Source::Many(_) | Source::Apart { .. } => unreachable!("windows are of one file"),
        }
    }

    fn check_unchanged(&self) {
        let source = self.source();
        let Source::One { reader, before, .. } = &*source else { return };
        match reader.stamp() {
            Ok(now) if now == *before => {}
            Ok(now) => self.fail(changed(&reader.path.display().to_string(), before.bytes, now.bytes)),
            Err(error) => self.fail(error),
        }
    }

    pub(super) fn part_done(&self, index: usize) {
        let mut state = self.state();
        state.done += 1;
        let group = self.pages.as_ref().map(|pages| pages.group_of(index));
        let left = group.map(|group| &mut state.left[group]);
        let group_done = left.is_some_and(|left| {
            *left -= 1;
            *left == 0
        });
        if state.done == self.part_count() {
            self.end(&mut state);
        } else if group_done {
            self.notify(&state);
        }
    }

    /// Waits for a group of pages; false where `at_most` passed first. What failed is in `outcome`, after the end.
    pub fn wait_group(&self, group: usize, at_most: Option<Duration>) -> bool {
        self.wait_for(at_most, |state| state.left.get(group).is_none_or(|left| *left == 0))
    }

    /// Ends the request; waiters go on once the state is free: the file is released by then.
    fn end(&self, state: &mut RequestState) {
        state.seconds = self.began.elapsed().as_secs_f64();
        state.streams.clear();
        if let Some(Table { numbers: Numbers::GpuNumbers(numbers), .. }) = &self.table {
            numbers.give_back();
        }
        let source = self.source.lock().expect("no holder panics").take();
        let noted = self.noted.filter(|_| state.failure.is_none());
        if let (Some(noted), Some(Source::One { reader, .. })) = (noted, source.as_deref()) {
            reader.note_end(noted, self.began);
        }
        for wakeup in state.wakeups.drain(..) {
            let _ = rustix::io::write(&wakeup, &1u64.to_ne_bytes());
        }
        self.notify(state);
    }

    /// Wakes who waits; a call to the system where nobody does would cost a short request as much as its rows.
    fn notify(&self, state: &RequestState) {
        if state.waiting > 0 {
            self.changed.notify_all();
        }
    }

    /// Nothing is written to its places any more, or nothing in this process.
    pub fn is_done(&self) -> bool {
        self.is_of_the_parent() || self.state().done >= self.part_count()
    }

    /// Begun before this process was forked: a thread of the parent may have had the lock of its state.
    fn is_of_the_parent(&self) -> bool {
        self.process != process_id()
    }

    /// Waits for the end; false where `at_most` passed first.
    pub fn wait(&self, at_most: Option<Duration>) -> bool {
        self.wait_for(at_most, |state| state.done >= self.part_count())
    }

    fn wait_for(&self, at_most: Option<Duration>, met: impl Fn(&RequestState) -> bool) -> bool {
        if self.is_of_the_parent() {
            return true;
        }
        let until = at_most.and_then(|t| Instant::now().checked_add(t));
        let mut state = self.state();
        while !met(&state) {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return false;
            }
            state.waiting += 1;
            state = match left {
                Some(left) => self.changed.wait_timeout(state, left).expect("no holder panics").0,
                None => self.changed.wait(state).expect("no holder panics"),
            };
            state.waiting -= 1;
        }
        true
    }

    /// Drops what hasn't begun and waits for what has: nothing writes to its places afterwards. False where it had ended.
    pub fn cancel(&self) -> bool {
        if self.is_done() {
            return false;
        }
        self.fail(Error::run("the read", "it was cancelled", ""));
        let source = self.source.lock().expect("no holder panics").clone();
        if let Some(Source::Apart { worker, .. }) = source.as_deref() {
            worker.wake();
        }
        drop(source);
        self.wait(None);
        true
    }

    /// Orders what is queued on `stream` from now on behind the bytes. Waits until the last copy is queued, not until
    /// it has ended; false where `at_most` passed first.
    pub fn order(&self, stream: &CudaStream, at_most: Option<Duration>) -> Result<bool, Error> {
        if !self.wait_for(at_most, |state| state.queued || self.part_count() == 0) {
            return Ok(false);
        }
        let state = self.own_state()?;
        if let Some(failure) = &state.failure {
            return Err(failure.clone());
        }
        for own in &state.streams {
            let own = own.lock().expect("no holder panics");
            let ordered = CudaEvent::on(own.device())
                .and_then(|event| own.record(&event).and_then(|()| stream.wait_for(&event)));
            ordered.map_err(|why| Error::run("ordering a stream", why.to_string(), "Future.result()"))?;
        }
        Ok(true)
    }

    /// After the end: how it went.
    pub fn outcome(&self) -> Result<Report, Error> {
        let state = self.own_state()?;
        if let Some(failure) = &state.failure {
            return Err(failure.clone());
        }
        let count = |n: &AtomicU64| n.load(Ordering::Relaxed);
        Ok(Report {
            bytes: self.bytes
                + self.table.as_ref().map_or(0, Table::bytes)
                + self.pages.as_ref().map_or(0, Pages::bytes),
            staged_bytes: count(&self.counts.staged),
            mapped_bytes: count(&self.counts.mapped),
            direct_bytes: count(&self.counts.direct),
            compat_bytes: count(&self.counts.compat),
            uncached_bytes: count(&self.counts.uncached),
            repeated_bytes: count(&self.counts.repeated),
            seconds: state.seconds,
        })
    }

    /// An eventfd that becomes readable at the end.
    pub fn wakeup(&self) -> std::io::Result<OwnedFd> {
        let wakeup = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)?;
        match self.own_state().ok().filter(|state| state.done < self.part_count()) {
            Some(mut state) => state.wakeups.push(rustix::io::fcntl_dupfd_cloexec(&wakeup, 0)?),
            None => _ = rustix::io::write(&wakeup, &1u64.to_ne_bytes())?,
        }
        Ok(wakeup)
    }
}

pub(super) fn changed(path: &str, before: u64, now: u64) -> Error {
    let found = if before == now {
        "it changed while it was read".into()
    } else {
        format!("it changed while it was read: it had {before} bytes and has {now} now")
    };
    Error::run(format!("read {path}"), found, "read again once nothing writes to it")
}

#[cfg(test)]
mod tests;
