//! `_core.SourceReader`: as `_core.Reader`, of a source that a URI names.

use crate::feed::{marks, place, Pending};
use crate::raise;
use forebay_model::Error;
use forebay_reader::{preference, Copied, Layout, Opening, Range, ReadPath};
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::sync::{Arc, Mutex};

/// An open source.
#[pyclass(module = "forebay._core", frozen)]
pub struct SourceReader(Mutex<Option<Arc<forebay_reader::SourceReader>>>);

impl SourceReader {
    /// For a thread that has the GIL, as `Reader::open`.
    fn open(&self) -> Result<Arc<forebay_reader::SourceReader>, Error> {
        let open = self.0.lock().expect("no holder panics").clone();
        open.ok_or_else(|| Error::request("a File", "it is closed", "forebay.open() it again"))
    }
}

#[pymethods]
impl SourceReader {
    #[new]
    #[pyo3(signature = (uri, way, direct=None, prefer="balance"))]
    fn new(
        py: Python<'_>,
        uri: &str,
        way: &str,
        direct: Option<bool>,
        prefer: &str,
    ) -> PyResult<SourceReader> {
        let opened = py.detach(|| {
            let (way, prefer) = (ReadPath::parse(way)?, preference(prefer)?);
            forebay_reader::SourceReader::open(uri, Opening { way, direct, prefer, ..Opening::default() })
        });
        Ok(SourceReader(Mutex::new(Some(Arc::new(opened.map_err(|e| raise(py, e))?)))))
    }

    /// The bytes that it had when it was opened.
    fn bytes(&self, py: Python<'_>) -> PyResult<u64> {
        self.open().map(|source| source.bytes()).map_err(|e| raise(py, e))
    }

    /// As `Reader.start`.
    fn start(
        &self,
        py: Python<'_>,
        ranges: Vec<(u64, usize, Option<u32>, u64)>,
        hold: Py<PyAny>,
        after: Vec<(u32, u64)>,
    ) -> PyResult<Pending> {
        let range = |&(offset, bytes, gpu, at): &_| Range { file: 0, offset, bytes, to: place(gpu, at) };
        let source = self.open();
        let begun = py.detach(|| {
            let ranges: Vec<Range> = ranges.iter().map(range).collect();
            source?.read(&ranges, marks(after)?)
        });
        begun.map(|request| Pending::new(request, hold)).map_err(|e| raise(py, e))
    }

    /// As `Reader.gather`.
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
        let _ = waits;
        let source = self.open();
        let begun = py.detach(|| {
            let numbers = Copied::from_address(numbers, count);
            if let Some(limit) = limit.filter(|limit| !numbers.are_below(*limit)) {
                let found = "one of the numbers is negative, or too great";
                return Err(Error::request(format!("{count} rows of {limit}"), found, "rows of the source"));
            }
            let layout = Layout { start: begin, step, row_bytes: size };
            source?.read_rows(&numbers, layout, place(gpu, at), marks(after)?)
        });
        begun.map(|request| Pending::new(request, hold)).map_err(|e| raise(py, e))
    }

    /// As `Reader.gather_arrays`, for which a source has no shorter way than `gather`.
    #[pyo3(signature = (*args))]
    fn gather_arrays(&self, args: &Bound<'_, PyTuple>) {
        let _ = args;
    }

    /// As `Reader.gather_there`: numbers of rows come to the host.
    #[pyo3(signature = (*args))]
    fn gather_there(&self, args: &Bound<'_, PyTuple>) {
        let _ = args;
    }

    /// Waits for what is being read, and for the worker to end.
    fn close(&self, py: Python<'_>) {
        let open = self.0.lock().expect("no holder panics").take();
        if let Some(source) = open {
            py.detach(|| source.close());
        }
    }
}

impl Drop for SourceReader {
    /// The worker's end may take a moment, in which others have the GIL.
    fn drop(&mut self) {
        let open = self.0.get_mut().expect("no holder panics").take();
        if let Some(source) = open {
            Python::attach(|py| py.detach(|| drop(source)));
        }
    }
}
