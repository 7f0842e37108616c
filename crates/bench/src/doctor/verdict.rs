//! One verdict for each data path: what would carry bytes from a storage location to a GPU
//! here. A forecast: what a run did stands in its record, from cuFile's own counters.

use super::conditions::{FactsView, Finding, Stops, CONDITIONS};
use super::cufile::{self, Surroundings};
use super::drives::DriveFacts;
use super::filesystem::{self, Examined};
use super::{gds, gpu, host, raid, topology};
pub(crate) use forebay_io::Verdicts;
use forebay_io::{GdsThrough, GdsVerdict, Roots, UsableGds, VerdictAnswer, VerdictCause};
use std::path::PathBuf;

/// Predicts `--path gds` for what lies at `paths` (files, directories, block devices) on this machine. Loads
/// libcufile, reads one block of a file with O_DIRECT, writes nothing; takes milliseconds where NVML answers at once.
///
/// For `--path auto` and for the words of an error (`reason`, `next`, `refusal`). It is a
/// forecast from the machine's settings: where cuFile itself has said that a handle is direct,
/// believe cuFile.
pub fn gds_verdict(paths: &[PathBuf]) -> GdsVerdict {
    path_verdicts(paths).gds
}

/// The same for each path to a GPU.
pub(super) fn path_verdicts(paths: &[PathBuf]) -> Verdicts {
    let roots = Roots::host();
    let examine = |path: &PathBuf| filesystem::examine(&roots, path, filesystem::Trial::Read);
    let filesystems = paths.iter().filter_map(examine).collect();
    let facts = Facts::gather(&roots, filesystems, &Surroundings::of_process(None));
    judge(&facts.view(), !paths.is_empty())
}

/// The facts of some storage locations, on their own: less than a whole examination.
#[derive(Clone)]
pub(crate) struct Facts {
    pub gpu: gpu::GpuFacts,
    pub cufile: cufile::Cufile,
    pub gds: gds::Gds,
    pub filesystems: Vec<Examined>,
    pub drives: Vec<DriveFacts>,
    pub raids: Vec<raid::Raid>,
    pub topology: Vec<topology::Distance>,
    pub kernel: String,
}

impl Facts {
    pub(crate) fn gather(roots: &Roots, filesystems: Vec<Examined>, around: &Surroundings) -> Facts {
        let names = super::DriveFacts::behind(roots, filesystems.iter().map(|e| e.device));
        let drives: Vec<DriveFacts> = names.iter().map(|n| DriveFacts::read(roots, n)).collect();
        let gpu = gpu::GpuFacts::gather(roots);
        Facts {
            cufile: cufile::facts(roots, around),
            gds: gds::facts(roots, &filesystems),
            raids: raid::facts(roots, &drives),
            topology: topology::facts(roots, &gpu, &drives, &Default::default()),
            kernel: host::HostFacts::gather(roots).kernel,
            gpu,
            filesystems,
            drives,
        }
    }

    pub(crate) fn view(&self) -> FactsView<'_> {
        FactsView {
            gpu: &self.gpu,
            cufile: &self.cufile,
            gds: &self.gds,
            filesystems: &self.filesystems,
            drives: &self.drives,
            raids: &self.raids,
            topology: &self.topology,
            kernel: &self.kernel,
            arch: std::env::consts::ARCH,
            whole: false,
        }
    }
}

pub(crate) fn judge(view: &FactsView, files: bool) -> Verdicts {
    let no_gpu = no_gpu(view);
    let usable = |because: Option<String>| UsableGds { runs: because.is_none(), because };
    let mapped = match files {
        true => no_gpu.clone(),
        false => Some("only files can be mapped".to_string()),
    };
    Verdicts { gds: gds_of(view), mapped: usable(mapped), bounce: usable(no_gpu) }
}

pub(crate) fn no_gpu(view: &FactsView) -> Option<String> {
    match &view.gpu.libcuda_refused {
        _ if !view.gpu.are_present() => Some("there is no NVIDIA GPU that could be used".into()),
        Some(refused) => Some(format!("libcuda doesn't load: {refused}")),
        None => None,
    }
}

fn gds_of(view: &FactsView) -> GdsVerdict {
    let compat_allowed = view.cufile.config.allow_compat_mode;
    let mut verdict = GdsVerdict { compat_allowed, ..GdsVerdict::default() };
    let mut refused = false;
    for condition in CONDITIONS {
        let (because, next, reported) = match (condition.judge)(view) {
            Finding::Fails { why, next, .. } => (why, next, true),
            Finding::Open { why, next, .. } => (why, next, false),
            Finding::Holds(_) | Finding::Moot => continue,
        };
        let cause = VerdictCause { id: condition.id, because, next };
        match condition.stops {
            _ if !reported => verdict.doubts.push(cause),
            Stops::Nothing => verdict.doubts.push(cause),
            Stops::NvidiaFs => verdict.nvidia_fs.push(cause),
            Stops::P2pdma => verdict.p2pdma.push(cause),
            Stops::Direct => verdict.both.push(cause),
            Stops::Cufile => {
                refused = true;
                verdict.both.push(cause);
            }
        }
    }
    verdict.through = match verdict.both.is_empty() {
        true if verdict.nvidia_fs.is_empty() => Some(GdsThrough::NvidiaFs),
        true if verdict.p2pdma.is_empty() && p2pdma_known(view) => Some(GdsThrough::P2pdma),
        _ => None,
    };
    verdict.answer = match verdict.through {
        Some(_) => VerdictAnswer::Direct,
        None if refused || !verdict.compat_allowed => VerdictAnswer::No,
        None => VerdictAnswer::CompatOnly,
    };
    verdict
}

/// An unread kernel configuration is no proof that P2PDMA is there.
fn p2pdma_known(view: &FactsView) -> bool {
    view.gds.p2pdma.in_kernel == Some(true)
}

/// The way to direct DMA that isn't needed, since the other works.
pub(crate) fn needless(verdict: &GdsVerdict) -> Option<Stops> {
    Some(match verdict.through? {
        GdsThrough::NvidiaFs => Stops::P2pdma,
        GdsThrough::P2pdma => Stops::NvidiaFs,
    })
}
