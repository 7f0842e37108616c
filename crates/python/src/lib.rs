//! Glue between Python and the engine: JSON in, JSON out, errors as exceptions.

#![deny(unsafe_code)]

mod array;
mod checkpoint;
mod checksum;
mod dlpack;
mod emulate;
mod feed;
mod files;
mod generate;
mod inspect;
mod kvcache;
mod loader;
mod observe;
mod rooms;
mod scarce;
mod service;
mod simulate;

use forebay_bench::{ask_cufile, examine_machine};
use forebay_io::search_python_packages;
use forebay_model::checkpoint::CheckpointSpec;
use forebay_model::files::FilesSpec;
use forebay_model::job::{self, JobSpec, PathKind};
use forebay_model::kvcache::KvSpec;
use forebay_model::request::Field;
use forebay_model::training::{self, EmulateSpec, RuleSet};
use forebay_model::wording::as_flags;
use forebay_model::{merge, prometheus, reading, record, stats, warnings, Latency, RunRecord};
use forebay_model::{Error, Kind};
use forebay_reader::ReadPath;
use forebay_storage::{Ends, MadeOf, Paths, SourceRow, Uri, PATHS, SOURCES};
use forebay_training::DatagenSpec;
use observe::{stop_requested, Watcher};
use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;
use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

#[global_allocator]
static ALLOCATOR: forebay_io::Allocator = forebay_io::Allocator;

#[pymodule]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    forebay_io::set_build_commit(forebayd::COMMIT);
    search_python_packages(packages(module.py()).unwrap_or_default());
    module.add_function(wrap_pyfunction!(run, module)?)?;
    module.add_function(wrap_pyfunction!(run_beside_others, module)?)?;
    module.add_function(wrap_pyfunction!(stop, module)?)?;
    module.add_function(wrap_pyfunction!(scarce::answer, module)?)?;
    module.add_function(wrap_pyfunction!(plan, module)?)?;
    module.add_function(wrap_pyfunction!(source, module)?)?;
    module.add_function(wrap_pyfunction!(source_kind, module)?)?;
    module.add_function(wrap_pyfunction!(path_abilities, module)?)?;
    module.add_function(wrap_pyfunction!(tables, module)?)?;
    module.add_function(wrap_pyfunction!(record_parts, module)?)?;
    module.add_function(wrap_pyfunction!(prometheus_text, module)?)?;
    module.add_function(wrap_pyfunction!(check, module)?)?;
    module.add_function(wrap_pyfunction!(merge_records, module)?)?;
    module.add_function(wrap_pyfunction!(emulate::emulate_run, module)?)?;
    module.add_function(wrap_pyfunction!(emulate::emulate_check, module)?)?;
    module.add_function(wrap_pyfunction!(simulate::simulate_fleet, module)?)?;
    module.add_function(wrap_pyfunction!(read_record, module)?)?;
    module.add_function(wrap_pyfunction!(buckets, module)?)?;
    module.add_function(wrap_pyfunction!(schema, module)?)?;
    module.add_function(wrap_pyfunction!(student_t, module)?)?;
    module.add_function(wrap_pyfunction!(features, module)?)?;
    module.add_function(wrap_pyfunction!(examine, module)?)?;
    module.add_function(wrap_pyfunction!(cufile_answers, module)?)?;
    module.add_function(wrap_pyfunction!(environment, module)?)?;
    module.add_function(wrap_pyfunction!(files::run, module)?)?;
    module.add_function(wrap_pyfunction!(generate::run, module)?)?;
    module.add_function(wrap_pyfunction!(generate::formats, module)?)?;
    module.add_function(wrap_pyfunction!(checksum::run, module)?)?;
    module.add_function(wrap_pyfunction!(checksum::crc32c, module)?)?;
    module.add_function(wrap_pyfunction!(checksum::crc32c_on_gpu, module)?)?;
    module.add_function(wrap_pyfunction!(checkpoint::run, module)?)?;
    module.add_function(wrap_pyfunction!(checkpoint::plan, module)?)?;
    module.add_function(wrap_pyfunction!(checkpoint::bytes, module)?)?;
    module.add_function(wrap_pyfunction!(kvcache::run, module)?)?;
    module.add_function(wrap_pyfunction!(kvcache::plan, module)?)?;
    module.add_function(wrap_pyfunction!(kvcache::option, module)?)?;
    module.add_function(wrap_pyfunction!(inspect::discover, module)?)?;
    module.add_function(wrap_pyfunction!(inspect::browse, module)?)?;
    module.add_function(wrap_pyfunction!(inspect::identify, module)?)?;
    module.add("NO_SUCH_FLAG", forebayd::NO_SUCH_FLAG)?;
    module.add_function(wrap_pyfunction!(service::run, module)?)?;
    module.add_function(wrap_pyfunction!(service::table, module)?)?;
    module.add_function(wrap_pyfunction!(service::rpcs, module)?)?;
    module.add_class::<feed::Reader>()?;
    module.add_class::<feed::Pending>()?;
    module.add_class::<feed::Lent>()?;
    module.add_class::<loader::Loader>()?;
    module.add_class::<loader::Batch>()?;
    module.add_class::<dlpack::Column>()?;
    module.add_class::<rooms::Batches>()?;
    module.add_function(wrap_pyfunction!(rooms::room, module)?)?;
    module.add_function(wrap_pyfunction!(array::bytes_of_list, module)?)?;
    module.add_function(wrap_pyfunction!(feed::sizes_of, module)?)?;
    module.add_function(wrap_pyfunction!(feed::read_files, module)?)?;
    module.add_function(wrap_pyfunction!(feed::device_of, module)?)?;
    module.add_function(wrap_pyfunction!(feed::device_bytes, module)?)?;
    module.add_function(wrap_pyfunction!(feed::release, module)?)?;
    module.add_function(wrap_pyfunction!(feed::recognise, module)?)?;
    module.add_function(wrap_pyfunction!(feed::safetensors_header, module)?)?;
    module.add_function(wrap_pyfunction!(feed::shard_index, module)?)?;
    module.add_function(wrap_pyfunction!(feed::parquet_index, module)?)?;
    module.add_function(wrap_pyfunction!(feed::record_index, module)?)?;
    module.add_function(wrap_pyfunction!(feed::archive_index, module)?)?;
    module.add_function(wrap_pyfunction!(feed::hdf5_index, module)?)?;
    Ok(())
}

/// Folders of Python's packages, below which NVIDIA's wheels keep their libraries.
fn packages(py: Python<'_>) -> PyResult<Vec<PathBuf>> {
    let path: Vec<Bound<'_, PyAny>> = py.import("sys")?.getattr("path")?.extract()?;
    let folders = path.iter().filter_map(|entry| entry.extract::<PathBuf>().ok());
    Ok(folders.filter(|f| f.ends_with("site-packages") || f.ends_with("dist-packages")).collect())
}

/// Runs a JobSpec and returns its RunRecord. What broke midway is raised as RunError with the record, as JSON
/// text, in its attribute `record`.
#[pyfunction]
#[pyo3(signature = (job, command, observer=None))]
fn run(py: Python<'_>, job: &str, command: Vec<String>, observer: Option<Py<PyAny>>) -> PyResult<String> {
    let job = JobSpec::from_json(job).map_err(|error| raise(py, error))?;
    stop_requested().store(false, Ordering::Relaxed);
    let mut watcher = Watcher::new(observer);
    let outcome = py.detach(|| forebay_bench::run_job(&job, command, &mut watcher));
    let outcome = outcome.map_err(|error| watcher.interruption().unwrap_or_else(|| raise(py, error)))?;
    ended(py, outcome.record, outcome.failure, watcher.interruption())
}

/// Converts a run's outcome for Python: its record's text, or an exception that carries it in its attribute `record`.
/// `raised`: by an observer, a signal's handler or another call of Python's during the run.
fn ended(
    py: Python<'_>,
    mut record: RunRecord,
    failure: Option<Error>,
    raised: Option<PyErr>,
) -> PyResult<String> {
    // One that comes when all is measured ends nothing, but whoever makes several runs must still hear of it.
    record.result.interrupted |= raised.as_ref().is_some_and(|e| e.is_instance_of::<PyKeyboardInterrupt>(py));
    warnings::add(&mut record);
    let text = json(py, &record)?;
    // A KeyboardInterrupt is told by the record; anything else that was raised is a defect of its own.
    let defect = raised.filter(|e| !e.is_instance_of::<PyKeyboardInterrupt>(py));
    match defect.or_else(|| failure.map(|failure| raise(py, failure))) {
        None => Ok(text),
        Some(raised) => {
            raised.value(py).setattr("record", text)?;
            Err(raised)
        }
    }
}

/// Asks the run in progress to end; safe in a signal handler.
#[pyfunction]
fn stop() {
    stop_requested().store(true, Ordering::Relaxed);
}

/// This process is one of several that use their folders side by side; `written` has the files that it isn't alone in writing.
#[pyfunction]
fn run_beside_others(written: Vec<std::path::PathBuf>) {
    forebay_storage::HeldManifest::run_beside_others(&written);
}

/// A source as its URI reads; `path` null where it is no file or folder, and likewise the rest.
#[derive(serde::Serialize)]
struct Named<'a> {
    scheme: &'static str,
    made_of: MadeOf,
    path: Option<&'a Path>,
    host: Option<&'a str>,
    /// The drive whose times it keeps: its name, and what the URI sets of it.
    drive: Option<&'a str>,
    settings: Vec<(&'a str, &'a str)>,
    real_time: bool,
    bytes: Option<u64>,
    chunk: Option<u64>,
    parts: Vec<Named<'a>>,
}

fn named(uri: &Uri) -> Named<'_> {
    let drive = uri.timed().map(|timed| timed.split_once('?').unwrap_or((timed, "")));
    let settings = drive.map_or("", |(_, settings)| settings).split('&').filter(|one| !one.is_empty());
    Named {
        scheme: uri.scheme(),
        made_of: uri.made_of(),
        path: uri.path(),
        host: uri.host(),
        drive: drive.map(|(name, _)| name),
        settings: settings.map(|one| one.split_once('=').unwrap_or((one, ""))).collect(),
        real_time: uri.is_in_real_time(),
        bytes: uri.bytes(),
        chunk: uri.chunk(),
        parts: uri.parts().iter().map(named).collect(),
    }
}

/// Returns the scheme of a text that may be a source or not, whether its kind is reached by a connection, and what readers of
/// files read in its place, where it is no file's name.
#[pyfunction]
fn source_kind(text: &str) -> (&'static str, bool, Option<&'static str>) {
    let row = SourceRow::for_text(text);
    let connects = row.named().is_ok_and(|uri| matches!(uri.made_of(), MadeOf::Card | MadeOf::Elsewhere));
    (row.scheme, connects, SourceRow::instead_of(text))
}

/// Abilities of the data path of that name, which may be `auto`: its bytes get to a GPU, only to a GPU, only out of the page
/// cache; it may have pages of files registered, or bytes go by DMA from a device; readers of files take it, and loaders do. None:
/// there is no such path.
#[pyfunction]
fn path_abilities(name: &str) -> Option<[bool; 7]> {
    let way = ReadPath::NAMES.iter().find(|(way, _)| *way == name).map(|(_, way)| *way);
    let (read, feeds) = (way.is_some_and(ReadPath::reads_files), way.is_some());
    match PathKind::named(name)? {
        kind if kind.is_found() => Some([true, false, false, true, true, read, feeds]),
        kind => {
            let (path, ends) = (Paths::by_kind(kind), Paths::by_kind(kind).ends());
            let cached = path.cached() == Some(true);
            let [maps, direct] = [kind.may_map(), kind.may_go_direct()];
            Some([ends != Ends::Host, ends == Ends::Gpu, cached, maps, direct, read, feeds])
        }
    }
}

/// Returns the parts of a source's URI, as JSON. Looks at nothing.
#[pyfunction]
fn source(py: Python<'_>, uri: &str) -> PyResult<String> {
    let uri = Uri::recognise(uri).map_err(|error| raise(py, error))?;
    json(py, &named(&uri))
}

/// A request's table: {fields, defaults}.
fn request<R: serde::Serialize>(fields: &[Field<R>], defaults: R) -> serde_json::Value {
    serde_json::json!({"fields": fields, "defaults": defaults})
}

/// The tables of sources, of data paths and of the fields of each request, as JSON.
#[pyfunction]
fn tables(py: Python<'_>) -> PyResult<String> {
    let sources = SOURCES.iter().map(|s| {
        serde_json::json!({"scheme": s.scheme, "example": s.example, "what": s.what, "available": s.available.is_ok(),
            "names": (s.names)()})
    });
    let paths = PATHS.iter().map(|p| {
        serde_json::json!({"name": p.name(), "what": p.what(), "needs": p.needs(), "schemes": Paths::schemes(*p),
            "into_gpu": p.ends() != Ends::Host})
    });
    let tables = serde_json::json!({
        "sources": sources.collect::<Vec<_>>(),
        "paths": paths.collect::<Vec<_>>(),
        "requests": {
            "job": request(JobSpec::FIELDS, JobSpec::default()),
            "files": request(FilesSpec::FIELDS, FilesSpec::default()),
            "datagen": request(DatagenSpec::FIELDS, DatagenSpec::default()),
            "checkpoint": request(CheckpointSpec::FIELDS, CheckpointSpec::default()),
            "emulate": request(EmulateSpec::FIELDS, EmulateSpec::default()),
            "kvcache": request(KvSpec::FIELDS, KvSpec::default()),
        },
        "rules": RuleSet::ALL,
        "duration_default_s": job::DURATION_DEFAULT_S,
    });
    json(py, &tables)
}

/// The tables of a record's parts, as JSON.
#[pyfunction]
fn record_parts(py: Python<'_>) -> PyResult<String> {
    json(py, &[record::PARTS, training::record::PARTS].concat())
}

/// A family of samples: name, type, help, and labels and value of each sample.
type Family = (String, String, String, Vec<(Vec<(String, String)>, String)>);

/// Returns families of samples in Prometheus's text format.
#[pyfunction]
fn prometheus_text(families: Vec<Family>) -> String {
    let mut out = String::new();
    for (name, kind, help, samples) in &families {
        let samples = samples
            .iter()
            .map(|(pairs, value)| (prometheus::labels(pairs.iter().map(|(n, v)| (n, v))), value));
        prometheus::family(&mut out, (name, kind, help), samples);
    }
    out
}

/// Returns the plan of `run`. Touches nothing.
#[pyfunction]
fn plan(py: Python<'_>, job: &str) -> PyResult<String> {
    let planned = JobSpec::from_json(job).and_then(|job| py.detach(|| forebay_bench::plan_job(&job)));
    json(py, &planned.map_err(|error| raise(py, error))?)
}

/// The job with its defaults.
#[pyfunction]
fn check(py: Python<'_>, job: &str) -> PyResult<String> {
    let job = JobSpec::from_json(job).and_then(|job| forebay_bench::check_job(&job).map(|()| job));
    json(py, &job.map_err(|error| raise(py, error))?)
}

/// One record out of those of several hosts that ran together.
#[pyfunction]
#[pyo3(name = "merge")]
fn merge_records(py: Python<'_>, records: Vec<String>) -> PyResult<String> {
    let read: Result<Vec<_>, _> = records.iter().map(|text| reading::read(text)).collect();
    let merged = read.and_then(merge::merge);
    json(py, &merged.map_err(|error| raise(py, error))?)
}

/// A record of this or an older schema, brought up to date: fields that it lacks have their defaults, which `missing`
/// says, and one without `warnings` is judged.
#[pyfunction]
fn read_record(py: Python<'_>, text: &str) -> PyResult<String> {
    json(py, &reading::read(text).map_err(|error| raise(py, error))?)
}

/// (ns, count) of each occupied bucket of a record's histogram.
#[pyfunction]
fn buckets(py: Python<'_>, histogram: &str) -> PyResult<Vec<(u64, u64)>> {
    Latency::decode(histogram).map(|latency| latency.buckets()).map_err(|error| raise(py, error))
}

/// The t that a Student variable stays within, either side, with probability `confidence`; `freedom` from 1 on.
#[pyfunction]
fn student_t(freedom: u32, confidence: f64) -> f64 {
    stats::student_t(confidence, freedom)
}

/// The schema that this build writes.
#[pyfunction]
fn schema() -> &'static str {
    record::SCHEMA
}

/// Version, commit and build features.
#[pyfunction]
fn features(py: Python<'_>) -> PyResult<String> {
    json(py, &forebay_io::current_build())
}

/// The doctor's findings.
#[pyfunction]
#[pyo3(name = "doctor", signature = (source, cufile_json=None))]
fn examine(py: Python<'_>, source: Option<String>, cufile_json: Option<PathBuf>) -> PyResult<String> {
    let report = py.detach(|| examine_machine(source.as_deref(), cufile_json.as_deref()));
    json(py, &report.map_err(|error| raise(py, error))?)
}

/// Returns cuFile's answers about its configuration. Loads libcufile and opens its driver.
#[pyfunction]
fn cufile_answers(py: Python<'_>) -> PyResult<String> {
    json(py, &py.detach(ask_cufile).map_err(|error| raise(py, error))?)
}

/// The environment part of a record.
#[pyfunction]
fn environment(py: Python<'_>, paths: Vec<PathBuf>) -> PyResult<String> {
    json(py, &py.detach(|| forebay_io::gather_environment(&paths)))
}

fn json(py: Python<'_>, value: &impl serde::Serialize) -> PyResult<String> {
    const NEXT: &str = "report this: it is a bug in Forebay";
    serde_json::to_string(value)
        .map(in_flags)
        .map_err(|error| raise(py, Error::run("writing JSON", error.to_string(), NEXT)))
}

/// A text, or a document of texts, that names fields of a job: as the command line does.
fn in_flags(text: String) -> String {
    match as_flags(&text) {
        Cow::Borrowed(_) => text,
        Cow::Owned(said) => said,
    }
}

/// As an exception of forebay.errors, so that the exit code follows. It speaks as the command line does; `marked` has its
/// texts with the keys of fields, for faces that speak otherwise.
fn raise(py: Python<'_>, error: Error) -> PyErr {
    let name = match error.kind {
        Kind::Request => "RequestError",
        Kind::Check => "CheckFailed",
        Kind::Machine => "MachineError",
        Kind::Run => "RunError",
    };
    let marked = (error.asked, error.found, error.next);
    let said = (as_flags(&marked.0), as_flags(&marked.1), as_flags(&marked.2));
    let made = py.import("forebay.errors").and_then(|errors| {
        let made = errors.getattr(name)?.call1((&*said.0, &*said.1, &*said.2))?;
        made.setattr("marked", &marked)?;
        Ok(made)
    });
    made.map_or_else(|failed| failed, PyErr::from_value)
}
