//! By which way batches get to where they end: as was asked for, or, of the ways that
//! are open, the likeliest. Nothing is tried: what is known of the files decides.

use super::dataset::DataSet;
use crate::format::pick::PickSpec;
use crate::format::FormatRow;
use forebay_bench::gds_verdict;
use forebay_io::CudaDevice;
use forebay_model::job::{Engine, PathKind};
use forebay_model::training::{EmulateSpec, Level};
use forebay_model::Error;
use forebay_storage::{
    Destination, Ends, FileTarget, KnownPaths, OpenFileSource, PathSituation, Paths, Target, PATHS,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Reads of files that pass the workers' slots by, where nobody says otherwise.
const IO_BYTES: u64 = 1 << 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    /// Never one that is yet to be found.
    pub path: PathKind,
    /// Reason of a path that was chosen here.
    pub because: Option<String>,
}

impl Route {
    /// Bytes never lie in a slot of the host.
    pub(crate) fn passes_host(&self) -> bool {
        passes_host(self.path)
    }
}

fn passes_host(path: PathKind) -> bool {
    Paths::find(path).is_some_and(|path| path.ends() == Ends::Gpu)
}

/// Refuses what can't be on any machine: bytes that the host must see, by a path that passes it.
pub(crate) fn check(spec: &EmulateSpec, row: &FormatRow) -> Result<(), Error> {
    if !passes_host(spec.path) {
        return Ok(());
    }
    match host_needs(spec, row) {
        Some(found) => Err(Error::request(asked(spec), found, "‹path› bounce")),
        None => Ok(()),
    }
}

fn asked(spec: &EmulateSpec) -> String {
    format!("‹path› {} of {} files", Paths::name_of(spec.path), spec.workload.format)
}

/// Returns the host's use of bytes on their way, if any.
fn host_needs(spec: &EmulateSpec, row: &FormatRow) -> Option<String> {
    if spec.level == Level::Parse {
        return Some("the host checks samples on their way (level parse)".into());
    }
    let pick = PickSpec { samples_per_file: spec.workload.samples_per_file, ..PickSpec::default() };
    (row.picker)(&pick)
        .map(|_| "the host determines which parts of them are read as they pass through it".into())
}

/// `devices`: empty where batches don't end on a GPU. `resident`: share of the files in the page cache.
pub(crate) fn choose(
    spec: &EmulateSpec,
    row: &FormatRow,
    data: &DataSet,
    resident: &Result<f64, String>,
    devices: &[Arc<CudaDevice>],
) -> Result<Route, Error> {
    if devices.is_empty() {
        return Ok(Route { path: PathKind::in_host_memory(), because: None });
    }
    let folder = match data {
        DataSet::Folder(folder) => Some(folder),
        DataSet::Packed(_) => None,
    };
    if !spec.path.is_found() {
        if passes_host(spec.path) && folder.is_none() {
            let found = "the data set lies in one address space: these paths read files";
            return Err(Error::request(
                format!("‹path› {} from --data {}", Paths::name_of(spec.path), spec.data.join(" ")),
                found,
                "‹path› bounce, or a folder",
            ));
        }
        return Ok(Route { path: spec.path, because: None });
    }
    let needs = host_needs(spec, row);
    let needs = needs.or_else(|| folder.is_none().then(|| "the data set lies in one address space".into()));
    let (Some(folder), None) = (folder, &needs) else {
        let because = needs.unwrap_or_default();
        if spec.require_direct {
            return Err(Error::request("‹require_direct› with ‹path› auto", because, "no ‹require_direct›"));
        }
        let (path, because) = PathKind::through_host(&because);
        return Ok(Route { path, because: Some(because) });
    };
    let situation = situation(spec, &folder.probe(0, false)?, folder.probe(0, true).ok(), resident, devices);
    let open = situation.open();
    let path = open.ways[0].path;
    if spec.require_direct && !Paths::by_kind(path).may_go_direct() {
        return Err(Error::machine("‹require_direct› with ‹path› auto", open.because, "forebay doctor"));
    }
    let name = Paths::name_of(path);
    Ok(Route { path, because: Some(format!("auto chose {name} ({})", open.because)) })
}

fn situation(
    spec: &EmulateSpec,
    probe: &FileTarget,
    direct: Option<FileTarget>,
    resident: &Result<f64, String>,
    devices: &[Arc<CudaDevice>],
) -> PathSituation {
    let destination = Destination::on(devices.to_vec());
    let target = target_of(probe.clone());
    let (mut cannot, mut known) = (BTreeMap::new(), KnownPaths::by(gds_verdict));
    for path in PATHS {
        let able = path.can(&target, &destination, &mut known);
        able.err().and_then(|why| cannot.insert(path.kind(), why));
    }
    let resident = if probe.in_memory { Some(1.0) } else { resident.as_ref().ok().copied() };
    PathSituation {
        gpu: true,
        writes: false,
        bytes: probe.bytes,
        io_bytes: spec.io_bytes.unwrap_or(IO_BYTES),
        is_random: false,
        tried: false,
        may_stay: true,
        resident,
        cache: spec.cache,
        direct: direct.is_some_and(|file| file.direct),
        cannot,
        require_direct: spec.require_direct,
    }
}

fn target_of(file: FileTarget) -> Target {
    let label = file.path.display().to_string();
    Target::new(label, file.bytes, OpenFileSource { target: file, engine: Engine::Inline })
}
