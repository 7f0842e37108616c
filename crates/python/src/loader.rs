//! `_core.Loader`, and the batches that it hands out.

use crate::dlpack::{Column, Kind, Layout};
use crate::{json, raise};
use forebay_model::feed::{Share, Shuffle};
use forebay_model::Error;
use forebay_reader::{CacheUse, Elsewhere, Lease, Memory, Next, Part, ReadPath, RecordFacts, Spec};
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A waiting thread looks after signals this often.
const SIGNALS_EVERY: Duration = Duration::from_millis(50);

/// (name, column, offset, step, DLPack's code, bits, typestr, shape)
type Field = (String, usize, usize, usize, u8, u8, String, Vec<i64>);

/// What a caller counted, in the parts that `record` names.
type Counted = ((f64, f64), (u64, u64, u64, u64), (u64, u64), Vec<(u64, u64)>, (u32, u64), (u64, u64));

fn counted(of: Counted) -> Elsewhere {
    let ((seconds, waited_s), (batches, samples, bytes, hash), (epoch, position), waits, memory, lengths) =
        of;
    let ((prefetch, memory_bytes), (sample_bytes, data_bytes)) = (memory, lengths);
    Elsewhere {
        seconds,
        waited_s,
        batches,
        samples,
        bytes,
        hash,
        waits,
        epoch,
        position,
        prefetch,
        memory_bytes,
        sample_bytes,
        data_bytes,
    }
}

/// Batches of a data set, read ahead.
#[pyclass(module = "forebay._core", frozen)]
pub struct Loader {
    loader: Mutex<Option<Arc<forebay_reader::Loader>>>,
    fields: Arc<Vec<Layout>>,
}

impl Loader {
    fn open(&self, py: Python<'_>) -> PyResult<Arc<forebay_reader::Loader>> {
        let open = self.loader.lock().expect("no holder panics").clone();
        open.ok_or_else(|| {
            raise(py, Error::request("a Loader", "it is closed", "another Loader of the same data set"))
        })
    }
}

#[pymethods]
impl Loader {
    /// `parts`: (file, rows, first byte of each column) each, a file of None is memory as it is. `columns`: (bytes, step).
    #[new]
    #[pyo3(signature = (
        parts, columns, fields, *, batch, memory, way, shuffle, seed, identity, rank, world, drop_last, prefetch, limit, cache
    ))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        py: Python<'_>,
        parts: Vec<(Option<PathBuf>, u64, Vec<u64>)>,
        columns: Vec<(usize, u64)>,
        fields: Vec<Field>,
        batch: u64,
        memory: (String, u32),
        way: &str,
        shuffle: &str,
        seed: u64,
        identity: u64,
        rank: u64,
        world: u64,
        drop_last: bool,
        prefetch: Option<usize>,
        limit: Option<usize>,
        cache: &str,
    ) -> PyResult<Loader> {
        let part = |(path, rows, begins)| Part { path, rows, begins };
        let column = |(bytes, step)| forebay_reader::Column { bytes, step };
        let opened = py.detach(|| {
            forebay_reader::Loader::open(Spec {
                parts: parts.into_iter().map(part).collect(),
                columns: columns.into_iter().map(column).collect(),
                memory: match memory.0.as_str() {
                    "gpu" => Memory::Gpu(memory.1),
                    "pinned" => Memory::Pinned(memory.1),
                    _ => Memory::Host,
                },
                way: ReadPath::parse(way)?,
                share: Share { batch, rank, world, drop_last },
                shuffle: Shuffle::parse(shuffle)?,
                seed,
                identity,
                prefetch,
                limit_bytes: limit,
                cache: CacheUse::parse(cache)?,
            })
        });
        let field = |(name, column, offset, step, code, bits, typestr, shape): Field| Layout {
            name,
            column,
            offset,
            step,
            kind: Kind { code, bits, typestr },
            shape,
        };
        Ok(Loader {
            loader: Mutex::new(Some(Arc::new(opened.map_err(|e| raise(py, e))?))),
            fields: Arc::new(fields.into_iter().map(field).collect()),
        })
    }

    /// The next batch; None at the epoch's end. Raises what failed.
    fn next(&self, py: Python<'_>) -> PyResult<Option<Batch>> {
        let loader = self.open(py)?;
        loop {
            match py.detach(|| loader.next(SIGNALS_EVERY)).map_err(|e| raise(py, e))? {
                Next::Batch(batch) => {
                    let forebay_reader::Batch { rows, first, epoch, lease, begins } = batch;
                    return Ok(Some(Batch {
                        rows,
                        first,
                        epoch,
                        lease,
                        begins,
                        fields: self.fields.clone(),
                    }));
                }
                Next::End => return Ok(None),
                Next::Wait => py.check_signals()?,
            }
        }
    }

    /// Goes on from a position of an epoch.
    fn seek(&self, py: Python<'_>, epoch: u64, position: u64) -> PyResult<()> {
        let loader = self.open(py)?;
        py.detach(|| loader.seek(epoch, position)).map_err(|e| raise(py, e))
    }

    /// Epoch, and position up to which all ranks were handed samples.
    fn position(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        Ok(self.open(py)?.position())
    }

    /// Samples of an epoch over all ranks, and this rank's batches of it.
    fn lengths(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        let loader = self.open(py)?;
        Ok((loader.samples(), loader.batches()))
    }

    /// The sample at each of `count` positions of an epoch from `first` on.
    fn samples_at(&self, py: Python<'_>, epoch: u64, first: u64, count: usize) -> PyResult<Vec<u64>> {
        let loader = self.open(py)?;
        py.detach(|| loader.samples_at(epoch, first, count)).map_err(|e| raise(py, e))
    }

    /// Sum over all that was handed out.
    fn hash(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.open(py)?.hash())
    }

    /// Share of the files in the page cache; None where the system doesn't tell.
    fn cached_share(&self, py: Python<'_>) -> PyResult<Option<f64>> {
        let loader = self.open(py)?;
        Ok(py.detach(|| loader.cached_share()))
    }

    /// Whether what isn't cached is read into the page cache, and why.
    fn fills_cache(&self, py: Python<'_>) -> PyResult<(bool, String)> {
        let loader = self.open(py)?;
        let (fills, why) = loader.fills_cache();
        Ok((fills, why.into()))
    }

    /// The RunRecord of all that was handed out, as JSON; of samples that the caller read in this order itself with what came
    /// `elsewhere`: (seconds, of them waited), (batches, samples, bytes, hash), (epoch, position), [(ns, batches that took so
    /// long)], (batches ahead, bytes of memory), (mean bytes of a sample, bytes of all).
    #[pyo3(signature = (command, sources, verified=None, interrupted=false, elsewhere=None))]
    fn record(
        &self,
        py: Python<'_>,
        command: Vec<String>,
        sources: Vec<String>,
        verified: Option<u64>,
        interrupted: bool,
        elsewhere: Option<Counted>,
    ) -> PyResult<String> {
        let loader = self.open(py)?;
        let elsewhere = elsewhere.map(counted);
        let reported = RecordFacts { command, sources, verified, interrupted, elsewhere };
        let record = py.detach(|| loader.record(reported));
        json(py, &record)
    }

    /// Ends what is under way and closes the files; batches that were handed out stay.
    fn close(&self, py: Python<'_>) {
        let open = self.loader.lock().expect("no holder panics").take();
        py.detach(|| drop(open));
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        let open = self.loader.get_mut().ok().and_then(Option::take);
        // Waits for threads of ours, none of which needs the GIL; others do meanwhile.
        if open.is_some() {
            Python::attach(|py| py.detach(|| drop(open)));
        }
    }
}

/// A batch by the names of its columns. Its memory isn't used again while it, a column of it, or an array or tensor made of one
/// is referred to.
#[pyclass(module = "forebay._core", frozen, mapping)]
pub struct Batch {
    rows: usize,
    first: u64,
    epoch: u64,
    lease: Arc<Lease>,
    begins: Vec<usize>,
    fields: Arc<Vec<Layout>>,
}

#[pymethods]
impl Batch {
    /// Number of samples.
    #[getter]
    fn rows(&self) -> usize {
        self.rows
    }

    /// Position of the first sample in the epoch; the others follow.
    #[getter]
    fn position(&self) -> u64 {
        self.first
    }

    #[getter]
    fn epoch(&self) -> u64 {
        self.epoch
    }

    fn keys(&self) -> Vec<String> {
        self.fields.iter().map(|field| field.name.clone()).collect()
    }

    fn __len__(&self) -> usize {
        self.fields.len()
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.keys().into_pyobject(py)?.call_method0("__iter__")
    }

    fn __contains__(&self, name: &str) -> bool {
        self.fields.iter().any(|field| field.name == name)
    }

    fn __getitem__(&self, name: &str) -> PyResult<Column> {
        let field = self.fields.iter().find(|field| field.name == name);
        let field = field.ok_or_else(|| {
            PyKeyError::new_err(format!("{name}: the batch has {}", self.keys().join(", ")))
        })?;
        Ok(Column::new(self.lease.clone(), self.begins[field.column], self.rows, field))
    }

    fn __repr__(&self) -> String {
        format!("<batch of {} samples: {}>", self.rows, self.keys().join(", "))
    }
}
