//! `_core.Reader`, `_core.Pending` and what goes with them: addresses in, bytes there. The package checks buffers
//! and keeps them alive; see python/forebay/buffers.py.

#![allow(unsafe_code, reason = "filling memory that Python lends, by address")]

use crate::{array, raise};
use forebay_io::{settle_in_process, Cuda, CudaEvent, CudaStream};
use forebay_model::{safetensors, Error, Kind};
use forebay_reader::{
    Address, Blocks, Copied, Given, HostMemory, Layout, Opening, Range, ReadPath, Request, SourceReader,
};
use forebay_training::{
    index_archive, index_data_sets, index_plain_columns, index_records, index_shard, Damage, ReadAt,
};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use std::fs::File;
use std::io;
use std::os::fd::IntoRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{mpsc, Arc, Mutex};
use std::time::{Duration, Instant};

/// A waiting thread looks after signals this often.
const SIGNALS_EVERY: Duration = Duration::from_millis(50);

/// (bytes, staged, mapped, direct, uncached, seconds, repeated)
pub(crate) type Counts = (u64, u64, u64, u64, u64, f64, u64);

/// An open file, or source of any kind.
#[pyclass(module = "forebay._core", frozen)]
pub struct Reader(Mutex<Option<Opened>>);

/// What a `Reader` reads.
#[derive(Clone)]
enum Opened {
    File(Arc<forebay_reader::Reader>),
    /// Read by a worker of its own: ranges and rows by numbers on the host, which is all that it does.
    Source(Arc<SourceReader>),
}

/// What has become of rows that were asked for.
pub(crate) enum Begun {
    Ended(Counts),
    UnderWay(Arc<Request>),
}

impl Reader {
    fn from_opened(opened: Opened) -> Reader {
        Reader(Mutex::new(Some(opened)))
    }

    /// For a thread that has the GIL: none of the others has the lock then when this one forks.
    fn open(&self) -> Result<Opened, Error> {
        let open = self.0.lock().expect("no holder panics").clone();
        open.ok_or_else(|| Error::request("a File", "it is closed", "forebay.open() it again"))
    }

    /// Rows of an open file to host memory, by so many numbers at an address; both are held by the caller, who has room for all.
    /// None, and nothing done, where one of them isn't in the file, or it is a source of another kind. `waits`: the caller will
    /// wait for the end.
    pub(crate) fn rows_to_host(
        &self,
        py: Python<'_>,
        (numbers, count): (usize, usize),
        (row_bytes, start): (usize, u64),
        to: usize,
        waits: bool,
    ) -> PyResult<Option<Begun>> {
        let Ok(Some(reader)) = self.file() else { return Ok(None) };
        let layout = Layout { start, step: row_bytes as u64, row_bytes };
        let few = || reader.copy_few(numbers, count, layout, to);
        if let Some(report) = waits.then(|| py.detach(few)).flatten() {
            return Ok(Some(Begun::Ended(counts(&report))));
        }
        let begun = py.detach(|| {
            let numbers = Copied::from_address(numbers, count);
            let (to, workers) = (Address::Host(to as u64), forebay_reader::threads());
            if !numbers.are_below(u64::MAX) {
                return Ok(None);
            }
            match Request::of_rows(&reader, numbers, layout, to, Vec::new(), workers) {
                Ok(request) => forebay_reader::begin(&request, waits).map(|()| Some(request)),
                Err(error) if error.kind == Kind::Request => Ok(None),
                Err(error) => Err(error),
            }
        });
        let Some(request) = begun.map_err(|e| raise(py, e))? else { return Ok(None) };
        if waits && request.is_done() {
            let report = request.outcome().map_err(|e| raise(py, e))?;
            return Ok(Some(Begun::Ended(counts(&report))));
        }
        Ok(Some(Begun::UnderWay(request)))
    }

    /// The open file; None for a source of another kind.
    fn file(&self) -> Result<Option<Arc<forebay_reader::Reader>>, Error> {
        self.open().map(|opened| match opened {
            Opened::File(reader) => Some(reader),
            Opened::Source(_) => None,
        })
    }
}

#[pymethods]
impl Reader {
    #[new]
    #[pyo3(signature = (path, way, direct=None, once=false, prefer="balance"))]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        way: &str,
        direct: Option<bool>,
        once: bool,
        prefer: &str,
    ) -> PyResult<Reader> {
        let opened = py.detach(|| {
            let opening = Opening {
                way: ReadPath::parse(way)?,
                direct,
                once,
                ahead: false,
                prefer: forebay_reader::preference(prefer)?,
            };
            forebay_reader::Reader::open(&path, opening)
        });
        Ok(Reader::from_opened(Opened::File(Arc::new(opened.map_err(|e| raise(py, e))?))))
    }

    /// Opens what a URI names.
    #[staticmethod]
    #[pyo3(signature = (uri, way, direct=None, prefer="balance"))]
    fn of_source(
        py: Python<'_>,
        uri: String,
        way: &str,
        direct: Option<bool>,
        prefer: &str,
    ) -> PyResult<Reader> {
        let options = || Ok((ReadPath::parse(way)?, forebay_reader::preference(prefer)?));
        let (way, prefer) = options().map_err(|e: Error| raise(py, e))?;
        let opening = Opening { way, direct, prefer, ..Opening::default() };
        let opened = interruptibly(py, "forebay-open", move || SourceReader::open(&uri, opening))?;
        Ok(Reader::from_opened(Opened::Source(Arc::new(opened.map_err(|e| raise(py, e))?))))
    }

    /// The file's size now; a source's when it was opened.
    fn bytes(&self, py: Python<'_>) -> PyResult<u64> {
        let bytes = self.open().and_then(|opened| match opened {
            Opened::File(reader) => reader.bytes(),
            Opened::Source(source) => Ok(source.bytes()),
        });
        bytes.map_err(|e| raise(py, e))
    }

    /// Begins to read (offset, bytes, GPU or None for host memory, address) each. `hold` is let go of at the end.
    /// `after`: (GPU, stream) whose work so far must end before a byte is written.
    fn start(
        &self,
        py: Python<'_>,
        ranges: Vec<(u64, usize, Option<u32>, u64)>,
        hold: Py<PyAny>,
        after: Vec<(u32, u64)>,
    ) -> PyResult<Pending> {
        let range = |&(offset, bytes, gpu, at): &_| Range { file: 0, offset, bytes, to: place(gpu, at) };
        let opened = self.open();
        let begun = py.detach(|| {
            let ranges: Vec<Range> = ranges.iter().map(range).collect();
            match (opened?, marks(after)?) {
                (Opened::Source(source), after) => source.read(&ranges, after),
                (Opened::File(reader), after) => {
                    let request = Request::of_file(&reader, &ranges, after, forebay_reader::threads())?;
                    forebay_reader::submit(&request).map(|()| request)
                }
            }
        });
        begun.map(|request| Pending::new(request, hold)).map_err(|e| raise(py, e))
    }

    /// As `start`, for `size` bytes from each of `count` numbers at address `numbers` (64 bits each; they are copied) × `step`
    /// + `begin`, one behind the other from `at` on. Where all bits of a number are set its place is left as it is; none may
    /// be, and each is below `limit`, where that is given. `waits`: the caller will wait for the end.
    #[allow(clippy::too_many_arguments)]
    fn gather(
        &self,
        py: Python<'_>,
        numbers: usize,
        count: usize,
        begin: u64,
        step: u64,
        size: usize,
        limit: Option<u64>,
        gpu: Option<u32>,
        at: u64,
        hold: Py<PyAny>,
        after: Vec<(u32, u64)>,
        waits: bool,
    ) -> PyResult<Pending> {
        let opened = self.open();
        let begun = py.detach(|| {
            let numbers = Copied::from_address(numbers, count);
            if let Some(limit) = limit.filter(|limit| !numbers.are_below(*limit)) {
                let found = "one of the numbers is negative, or too great";
                return Err(Error::request(format!("{count} rows of {limit}"), found, "rows of the file"));
            }
            let layout = Layout { start: begin, step, row_bytes: size };
            let (to, workers) = (place(gpu, at), forebay_reader::threads());
            match (opened?, marks(after)?) {
                (Opened::Source(source), after) => source.read_rows(&numbers, layout, to, after),
                (Opened::File(reader), after) => {
                    let request = Request::of_rows(&reader, numbers, layout, to, after, workers)?;
                    forebay_reader::begin(&request, waits).map(|()| request)
                }
            }
        });
        begun.map(|request| Pending::new(request, hold)).map_err(|e| raise(py, e))
    }

    /// Reads blocks of `layers` × `pages_each` pages into pages of a GPU's memory. `slots` and `tables` are addresses of 64-bit
    /// numbers: of `count` blocks from byte `start` on, and `pages_each` for each block: the pages of every layer that it goes to,
    /// of which a layer has `pages_of_layer` from the device address `base` on. `by_layer`: layers can be waited for apart.
    #[allow(clippy::too_many_arguments)]
    fn load_blocks(
        &self,
        py: Python<'_>,
        slots: usize,
        tables: usize,
        count: usize,
        start: u64,
        page_bytes: usize,
        layers: usize,
        pages_each: usize,
        gpu: u32,
        base: u64,
        pages_of_layer: u64,
        by_layer: bool,
        hold: Py<PyAny>,
        after: Vec<(u32, u64)>,
    ) -> PyResult<Pending> {
        let reader = self.file();
        let begun = py.detach(|| {
            let Some(reader) = reader? else {
                let found = "pages of blocks are read from files alone";
                return Err(Error::request(format!("{count} blocks"), found, "forebay.open() of a file"));
            };
            let numbers = |address, count| Copied::from_address(address, count).numbers().to_vec();
            let (slots, tables) = (numbers(slots, count), numbers(tables, count * pages_each));
            let blocks = Blocks {
                start,
                page_bytes,
                layers,
                pages_each,
                slots,
                tables,
                base,
                pages_of_layer,
                by_layer,
            };
            let request = Request::of_blocks(&reader, blocks, gpu, marks(after)?)?;
            forebay_reader::submit(&request).map(|()| request)
        });
        begun.map(|request| Pending::new(request, hold)).map_err(|e| raise(py, e))
    }

    /// As `gather`, for arrays of NumPy's in host memory: rows by their numbers, each `row_bytes` long, that the file has from
    /// `start` on. None, and nothing done, where something about them isn't plain or right: whoever asks looks again, and says
    /// what; so too for a source that is no file. `waits`: the caller will wait for the end; a report where that has come already.
    fn gather_arrays(
        &self,
        py: Python<'_>,
        rows: &Bound<'_, PyAny>,
        row_bytes: &Bound<'_, PyAny>,
        start: &Bound<'_, PyAny>,
        out: &Bound<'_, PyAny>,
        waits: bool,
    ) -> PyResult<Option<Py<PyAny>>> {
        let (Some(numbers), Some(room)) = (array::numbers(rows), array::room(out)) else { return Ok(None) };
        let (Ok(row_bytes), Ok(start)) = (row_bytes.extract::<usize>(), start.extract::<u64>()) else {
            return Ok(None);
        };
        let wanted = numbers.count.checked_mul(row_bytes).filter(|wanted| *wanted > 0);
        if wanted.is_none_or(|wanted| wanted > room.count * room.item_bytes) {
            return Ok(None);
        }
        let asked = (numbers.address, numbers.count);
        match self.rows_to_host(py, asked, (row_bytes, start), room.address, waits)? {
            None => Ok(None),
            Some(Begun::Ended(report)) => Ok(Some(report.into_pyobject(py)?.into_any().unbind())),
            Some(Begun::UnderWay(request)) => {
                let hold = PyTuple::new(py, [rows, out])?.into_any().unbind();
                Ok(Some(Py::new(py, Pending::new(request, hold))?.into_any()))
            }
        }
    }

    /// As `gather`, for numbers below `limit` in a GPU's memory, `count` integers of `bytes_each` that their `stream` has
    /// written by now, and which don't leave it. None where that can't be, as of a source that is no file, or one of them is wrong.
    #[allow(clippy::too_many_arguments)]
    fn gather_there(
        &self,
        py: Python<'_>,
        gpu: u32,
        stream: u64,
        numbers: u64,
        bytes_each: usize,
        signed: bool,
        count: usize,
        limit: u64,
        begin: u64,
        step: u64,
        at: u64,
        hold: Py<PyAny>,
        after: Vec<(u32, u64)>,
    ) -> PyResult<Option<Pending>> {
        let reader = self.file();
        let begun = py.detach(|| {
            let Some(reader) = reader? else { return Ok(None) };
            let given = Given { gpu, stream, at: numbers, bytes_each, signed, count };
            let layout = Layout { start: begin, step, row_bytes: step as usize };
            let to = place(Some(gpu), at);
            let request = Request::of_rows_there(&reader, &given, limit, layout, to, marks(after)?)?;
            request.map(|request| forebay_reader::submit(&request).map(|()| request)).transpose()
        });
        begun.map(|request| Some(Pending::new(request?, hold))).map_err(|e| raise(py, e))
    }

    /// Waits for what is being read, and lets go of the file, or for a source's worker to end.
    fn close(&self, py: Python<'_>) {
        let open = self.0.lock().expect("no holder panics").take();
        py.detach(|| match open {
            Some(Opened::File(reader)) => reader.close(),
            Some(Opened::Source(source)) => source.close(),
            None => {}
        });
    }
}

impl Drop for Reader {
    /// The end of a source's worker may take a moment, in which others have the GIL.
    fn drop(&mut self) {
        if let Some(Opened::Source(source)) = self.0.get_mut().expect("no holder panics").take() {
            Python::attach(|py| py.detach(|| drop(source)));
        }
    }
}

/// Does what may wait for a peer on a thread of its own. Where a signal's handler raises meanwhile, that thread is left to itself,
/// and lets go of what it made.
fn interruptibly<T: Send + 'static>(
    py: Python<'_>,
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> PyResult<T> {
    let (tell, finished) = mpsc::sync_channel(1);
    let begun = std::thread::Builder::new().name(name.into()).spawn(move || {
        settle_in_process();
        // Nobody waits any more where it fails.
        drop(tell.send(work()));
    });
    begun.map_err(|why| raise(py, Error::machine("a thread to open with", why.to_string(), "ulimit -u")))?;
    // One thread at a time has it, which the compiler can't know of one that lets others have the GIL.
    let finished = Mutex::new(finished);
    loop {
        match py.detach(|| finished.lock().expect("no holder panics").recv_timeout(SIGNALS_EVERY)) {
            Ok(done) => return Ok(done),
            Err(mpsc::RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                let error = Error::run("open a source", "its thread ended", "forebay doctor");
                return Err(raise(py, error));
            }
        }
    }
}

/// Memory of the host that a GPU writes to by itself.
#[pyclass(module = "forebay._core", frozen)]
pub struct Lent {
    memory: Mutex<Option<HostMemory>>,
    process: u32,
}

impl Lent {
    /// Unpins it, once the GPU has ended; not in a process that was forked since, which has neither.
    fn end(&self) {
        let memory = self.memory.lock().ok().and_then(|mut memory| memory.take());
        if self.process == std::process::id() {
            drop(memory);
        } else {
            std::mem::forget(memory);
        }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        Python::attach(|py| py.detach(|| self.end()));
    }
}

#[pymethods]
impl Lent {
    /// `bytes` at `address`, both whole pages, which stay mapped until `close`.
    #[new]
    fn new(py: Python<'_>, gpu: u32, address: u64, bytes: usize) -> PyResult<Lent> {
        // SAFETY: the package keeps the mapping for as long.
        let lent = py.detach(|| unsafe { HostMemory::lend(gpu, address, bytes) });
        let memory = Mutex::new(Some(lent.map_err(|e| raise(py, e))?));
        Ok(Lent { memory, process: std::process::id() })
    }

    /// Has the GPU copy `bytes_each` from each of its addresses to each byte of this memory; both are `count` words of 64 bits,
    /// at addresses. `after` as of `Reader.gather`. Waits until all is there.
    fn fill(
        &self,
        py: Python<'_>,
        from_: usize,
        to: usize,
        count: usize,
        bytes_each: usize,
        after: Vec<(u32, u64)>,
    ) -> PyResult<()> {
        let done = py.detach(|| {
            let lent = self.memory.lock().expect("no holder panics");
            let Some(lent) = lent.as_ref() else {
                return Err(Error::request("memory that was lent to a GPU", "it was taken back", ""));
            };
            let (from, to) = (Copied::from_address(from_, count), Copied::from_address(to, count));
            lent.fill(from.numbers(), to.numbers(), bytes_each, &marks(after)?)
        });
        done.map_err(|e| raise(py, e))
    }

    /// Takes it back, once the GPU has ended.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.end());
    }
}

/// A read under way.
#[pyclass(module = "forebay._core", frozen)]
pub struct Pending {
    request: Arc<Request>,
    /// Owner that keeps the destinations alive.
    hold: Mutex<Option<Py<PyAny>>>,
    /// A signal's handler raised while somebody waited for it.
    interrupted: AtomicBool,
}

impl Pending {
    pub(crate) fn new(request: Arc<Request>, hold: Py<PyAny>) -> Pending {
        Pending { request, hold: Mutex::new(Some(hold)), interrupted: AtomicBool::new(false) }
    }

    fn let_go(&self) {
        let hold = self.hold.lock().expect("no holder panics").take();
        drop(hold);
    }

    /// Repeats `wait` in short turns and looks after signals between them.
    fn by_turns<T>(
        &self,
        py: Python<'_>,
        timeout: Option<f64>,
        wait: impl Fn(Duration) -> Option<T> + Sync,
    ) -> PyResult<Option<T>>
    where
        T: Send,
    {
        let until = match timeout {
            Some(s) => {
                Duration::try_from_secs_f64(s.max(0.0)).ok().and_then(|d| Instant::now().checked_add(d))
            }
            None => None,
        };
        loop {
            let left = until.map_or(SIGNALS_EVERY, |u| u.saturating_duration_since(Instant::now()));
            if let Some(met) = py.detach(|| wait(left.min(SIGNALS_EVERY))) {
                return Ok(Some(met));
            }
            py.check_signals().inspect_err(|_| self.interrupted.store(true, Ordering::Relaxed))?;
            if until.is_some_and(|u| Instant::now() >= u) {
                return Ok(None);
            }
        }
    }
}

#[pymethods]
impl Pending {
    /// Waits for the end; False where `timeout` seconds passed first.
    #[pyo3(signature = (timeout=None))]
    pub(crate) fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        let met = self.by_turns(py, timeout, |turn| self.request.wait(Some(turn)).then_some(()))?.is_some();
        if met {
            self.let_go();
        }
        Ok(met)
    }

    /// Waits for a layer of `load_blocks`, in turns as `wait`. False where what was asked for has failed: `report` says why.
    fn wait_group(&self, py: Python<'_>, group: usize) -> PyResult<bool> {
        self.by_turns(py, None, |turn| self.request.wait_group(group, Some(turn)).then_some(()))?;
        Ok(!self.request.is_dropped())
    }

    fn done(&self) -> bool {
        self.request.is_done()
    }

    /// True if it had not ended; nothing is written once this has returned.
    fn cancel(&self, py: Python<'_>) -> bool {
        let was_under_way = py.detach(|| self.request.cancel());
        self.let_go();
        was_under_way
    }

    /// After the end: (bytes, staged, mapped, direct, uncached, seconds, repeated). Raises what failed.
    pub(crate) fn report(&self, py: Python<'_>) -> PyResult<Counts> {
        self.request.outcome().map(|report| counts(&report)).map_err(|e| raise(py, e))
    }

    /// Orders what is queued on the stream from now on behind the bytes; False where `timeout` seconds passed first.
    #[pyo3(signature = (gpu, stream, timeout=None))]
    fn order(&self, py: Python<'_>, gpu: u32, stream: u64, timeout: Option<f64>) -> PyResult<bool> {
        let ordered = self.by_turns(py, timeout, |turn| {
            let stream = match forebay_reader::device(gpu) {
                Ok(device) => CudaStream::borrowed(&device, stream),
                Err(error) => return Some(Err(error)),
            };
            match self.request.order(&stream, Some(turn)) {
                Ok(false) => None,
                other => Some(other),
            }
        })?;
        ordered.unwrap_or(Ok(false)).map_err(|e| raise(py, e))
    }

    /// A descriptor that becomes readable at the end; the caller closes it.
    fn wakeup(&self, py: Python<'_>) -> PyResult<i32> {
        let next = "ulimit -n 1048576";
        let wakeup = self.request.wakeup();
        wakeup
            .map(IntoRawFd::into_raw_fd)
            .map_err(|e| raise(py, Error::machine("await a read", e.to_string(), next)))
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        // The destinations may not go while somebody writes to them. Who pressed Ctrl-C doesn't wait for a source that is silent.
        if self.request.is_done() {
            return;
        }
        let ends = *self.interrupted.get_mut();
        let end = || if ends { self.request.cancel() } else { self.request.wait(None) };
        Python::attach(|py| py.detach(end));
    }
}

fn counts(report: &forebay_reader::Report) -> Counts {
    let r = report;
    (r.bytes, r.staged_bytes, r.mapped_bytes, r.direct_bytes, r.uncached_bytes, r.seconds, r.repeated_bytes)
}

pub(crate) fn place(gpu: Option<u32>, at: u64) -> Address {
    gpu.map_or(Address::Host(at), |gpu| Address::Device { gpu, at })
}

/// For each (GPU, stream) an event after all that it was given so far.
pub(crate) fn marks(after: Vec<(u32, u64)>) -> Result<Vec<CudaEvent>, Error> {
    let recorded = |stream: CudaStream| -> Cuda<CudaEvent> {
        let event = CudaEvent::on(stream.device())?;
        stream.record(&event)?;
        Ok(event)
    };
    let mark = |(gpu, handle): (u32, u64)| {
        recorded(CudaStream::borrowed(&forebay_reader::device(gpu)?, handle)).map_err(|why| {
            let asked = format!("stream {handle:#x} of GPU {gpu}");
            Error::request(asked, why.to_string(), "a stream of the buffer's GPU")
        })
    };
    after.into_iter().map(mark).collect()
}

/// Sizes of many files.
#[pyfunction]
pub fn sizes_of(py: Python<'_>, paths: Vec<PathBuf>) -> PyResult<Vec<u64>> {
    py.detach(|| forebay_reader::sizes_of(&paths)).map_err(|e| raise(py, e))
}

/// Begins to read `sizes[i]` bytes, the whole of `paths[i]`, to `addresses[i]`.
#[pyfunction]
#[pyo3(signature = (paths, sizes, gpus, addresses, hold, after))]
pub fn read_files(
    py: Python<'_>,
    paths: Vec<PathBuf>,
    sizes: Vec<u64>,
    gpus: Vec<Option<u32>>,
    addresses: Vec<u64>,
    hold: Py<PyAny>,
    after: Vec<(u32, u64)>,
) -> PyResult<Pending> {
    let begun = py.detach(|| {
        let equal = paths.len() == sizes.len() && paths.len() == addresses.len();
        if !equal || ![1, paths.len()].contains(&gpus.len()) {
            return Err(Error::request("read_files", "a size and a place for each file are needed", ""));
        }
        let gpu_of = |i: usize| gpus[if gpus.len() == 1 { 0 } else { i }];
        let places: Vec<Address> =
            addresses.iter().enumerate().map(|(i, at)| place(gpu_of(i), *at)).collect();
        forebay_reader::read_files(paths, &sizes, &places, marks(after)?)
    });
    begun.map(|request| Pending::new(request, hold)).map_err(|e| raise(py, e))
}

/// The GPU that an address belongs to; None where CUDA doesn't know it.
#[pyfunction]
pub fn device_of(py: Python<'_>, address: u64) -> PyResult<Option<u32>> {
    py.detach(|| forebay_reader::device_of(address)).map_err(|e| raise(py, e))
}

/// `bytes` of a GPU's memory from `address` on, once the work is done that its stream was given so far.
#[pyfunction]
pub fn device_bytes<'py>(
    py: Python<'py>,
    gpu: u32,
    stream: u64,
    address: u64,
    bytes: usize,
) -> PyResult<Bound<'py, PyBytes>> {
    let copied = py.detach(|| {
        let mut copied = vec![0; bytes];
        let stream = CudaStream::borrowed(&forebay_reader::device(gpu)?, stream);
        // SAFETY: the vector is there until the stream has passed; the memory is its owner's promise.
        let done = unsafe { stream.copy_to_host(copied.as_mut_ptr(), address, bytes) };
        done.and_then(|()| stream.synchronize()).map_err(|why| {
            let asked = format!("copy {bytes} bytes from GPU {gpu}");
            Error::run(asked, why.to_string(), "if the CUDA context is gone, a new process; forebay doctor")
        })?;
        Ok(copied)
    });
    copied.map(|copied| PyBytes::new(py, &copied)).map_err(|e: Error| raise(py, e))
}

/// Ends the crew of reading threads, and frees its pinned memory and what is kept for the next; the next read starts it anew.
#[pyfunction]
pub fn release(py: Python<'_>) {
    py.detach(forebay_reader::release);
}

/// What a file is by its first bytes, and what to do about it; None where they say nothing.
#[pyfunction]
pub fn recognise(head: &[u8]) -> Option<(&'static str, &'static str)> {
    forebay_model::first_bytes::recognise(head).map(|seen| (seen.what, seen.next))
}

/// Tensors of a safetensors header (its JSON, of a file with `data_bytes` after it): (name, dtype, shape, begin, end)
/// each, in the order of the data, and the metadata.
#[pyfunction]
#[allow(clippy::type_complexity)]
pub fn safetensors_header(
    py: Python<'_>,
    header: &[u8],
    data_bytes: u64,
) -> PyResult<(Vec<(String, &'static str, Vec<u64>, u64, u64)>, Vec<(String, String)>)> {
    let parsed = py.detach(|| safetensors::Header::parse(header, data_bytes)).map_err(|e| raise(py, e))?;
    let tensors =
        parsed.tensors.into_iter().map(|t| (t.name, t.dtype.name, t.shape, t.begin, t.end)).collect();
    Ok((tensors, parsed.metadata))
}

/// Files of samples in a shard of WebDataset: (name, bytes of the name up to its extension, offset, bytes) each.
#[pyfunction]
#[allow(clippy::type_complexity)]
pub fn shard_index(py: Python<'_>, path: PathBuf) -> PyResult<Vec<(Vec<u8>, usize, u64, u64)>> {
    let next = "tar tf FILE; a shard that tar, tarfile or webdataset wrote, whole and not compressed";
    let listed = indexed(py, &path, "the samples of", next, index_shard)?;
    Ok(listed.into_iter().map(|m| (m.name, m.key_bytes, m.offset, m.bytes)).collect())
}

/// Plain columns of a Parquet file, the named or all: its rows, and (name, type, bytes of a value, [(values, byte of the first)])
/// of each column.
#[pyfunction]
#[pyo3(signature = (path, columns=None))]
#[allow(clippy::type_complexity)]
pub fn parquet_index(
    py: Python<'_>,
    path: PathBuf,
    columns: Option<Vec<String>>,
) -> PyResult<(u64, Vec<(String, &'static str, u64, Vec<(u64, u64)>)>)> {
    let next =
        "columns= without it; or written with compression=\"none\", use_dictionary=False, without nulls";
    let (rows, found) = indexed(py, &path, "the columns of", next, |bytes, read| {
        index_plain_columns(bytes, columns.as_deref(), read)
    })?;
    Ok((rows, found.into_iter().map(|c| (c.name, c.kind, c.bytes, c.runs)).collect()))
}

/// Records of a TFRecord file: (offset, bytes) of the data of each.
#[pyfunction]
pub fn record_index(py: Python<'_>, path: PathBuf) -> PyResult<Vec<(u64, u64)>> {
    let next = "a TFRecord file as TensorFlow writes it, whole and not compressed";
    indexed(py, &path, "the records of", next, index_records)
}

/// Members of an .npz archive: (name, offset, bytes, what its bytes went through or None) each.
#[pyfunction]
#[allow(clippy::type_complexity)]
pub fn archive_index(py: Python<'_>, path: PathBuf) -> PyResult<Vec<(String, u64, u64, Option<String>)>> {
    let next = "an .npz of numpy.savez, whole";
    let found = indexed(py, &path, "the arrays of", next, index_archive)?;
    Ok(found.into_iter().map(|a| (a.name, a.offset, a.bytes, a.altered)).collect())
}

/// Data sets of an HDF5 file, the named, or all of the root group, or of all groups where that has none: (name, sides, NumPy's
/// type, bytes of a row, [(rows, byte of the first)]) each.
#[pyfunction]
#[pyo3(signature = (path, columns=None))]
#[allow(clippy::type_complexity)]
pub fn hdf5_index(
    py: Python<'_>,
    path: PathBuf,
    columns: Option<Vec<String>>,
) -> PyResult<Vec<(String, Vec<u64>, String, u64, Vec<(u64, u64)>)>> {
    let next = "columns= without it; or written without compression, in chunks of whole rows or none";
    let found = indexed(py, &path, "the data sets of", next, |bytes, read| {
        index_data_sets(bytes, columns.as_deref(), read)
    })?;
    Ok(found.into_iter().map(|d| (d.name, d.dims, d.item, d.row_bytes, d.runs)).collect())
}

/// An index of a file; raises what is wrong with it, and where. Other threads of Python go on meanwhile.
fn indexed<T: Send>(
    py: Python<'_>,
    path: &Path,
    what: &str,
    next: &str,
    index: impl FnOnce(u64, &mut ReadAt<'_>) -> Result<T, Damage> + Send,
) -> PyResult<T> {
    let asked = format!("{what} {}", path.display());
    let failed =
        |error: io::Error| Error::machine(&asked, error.to_string(), format!("ls -l {}", path.display()));
    let found = py.detach(|| {
        let file = File::open(path).map_err(failed)?;
        let bytes = file.metadata().map_err(failed)?.len();
        let mut read = |at: u64, to: &mut [u8]| file.read_exact_at(to, at);
        let wrong = |damage: Damage| format!("at byte {}: {}", damage.offset, damage.what);
        index(bytes, &mut read).map_err(|damage| Error::request(&asked, wrong(damage), next))
    });
    found.map_err(|error| raise(py, error))
}
