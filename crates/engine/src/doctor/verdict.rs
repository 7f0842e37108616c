//! One verdict for each data path: what would carry bytes from a storage location to a GPU
//! here. A forecast: what a run did stands in its record, from cuFile's own counters.

use super::conditions::{Finding, Ground, Stops, CONDITIONS};
use super::cufile::{self, Surroundings};
use super::drives::{self, DriveFacts};
use super::filesystem::{self, Examined};
use super::roots::Roots;
use super::{gds, gpu, host, raid, topology};
use forebay_model::Error;
use serde::Serialize;
use std::path::PathBuf;

/// Something that stands in the way, and what to type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cause {
    /// The condition's id, as `nvidia_fs` or `p2pdma_raid`: docs/doctor.md lists them.
    pub id: &'static str,
    /// A clause: "the kernel module nvidia-fs isn't loaded".
    pub because: String,
    pub next: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Through {
    NvidiaFs,
    P2pdma,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// Bytes go from the drive into the GPU.
    Direct,
    /// cuFile runs, through host memory.
    CompatOnly,
    /// cuFile would refuse.
    #[default]
    No,
}

/// What `--path gds` would do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GdsVerdict {
    pub answer: Answer,
    /// Null unless direct.
    pub through: Option<Through>,
    /// In the way of nvidia-fs; of P2PDMA; of both, or of cuFile as a whole.
    pub nvidia_fs: Vec<Cause>,
    pub p2pdma: Vec<Cause>,
    pub both: Vec<Cause>,
    /// What doesn't stop it, but costs speed or couldn't be told.
    pub doubts: Vec<Cause>,
    /// cufile.json and the environment let cuFile fall back.
    pub compat_allowed: bool,
}

/// What `--path mapped` or `--path bounce` would do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Usable {
    pub runs: bool,
    /// Why it doesn't; null where it does.
    pub because: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Verdicts {
    pub gds: GdsVerdict,
    pub mapped: Usable,
    pub bounce: Usable,
}

/// What `--path gds` would do with what lies at `paths` (files, directories, block devices) on
/// this machine. Loads libcufile, reads one block of a file with O_DIRECT, writes nothing; takes
/// milliseconds where NVML answers at once.
///
/// For `--path auto` and for the words of an error (`reason`, `next`, `refusal`). It is a
/// forecast from the machine's settings: where cuFile itself has said that a handle is direct,
/// believe cuFile.
pub fn gds_verdict(paths: &[PathBuf]) -> GdsVerdict {
    path_verdicts(paths).gds
}

/// The same for each path to a GPU.
pub fn path_verdicts(paths: &[PathBuf]) -> Verdicts {
    let roots = Roots::host();
    let examine = |path: &PathBuf| filesystem::examine(&roots, path, filesystem::Trial::Read);
    let filesystems = paths.iter().filter_map(examine).collect();
    let facts = Facts::gather(&roots, filesystems, &Surroundings::of_process(None));
    judge(&facts.ground(), !paths.is_empty())
}

/// The facts of some storage locations, on their own: less than a whole examination.
#[derive(Clone)]
pub struct Facts {
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
    pub fn gather(roots: &Roots, filesystems: Vec<Examined>, around: &Surroundings) -> Facts {
        let names = super::behind(roots, filesystems.iter().map(|e| e.device));
        let drives: Vec<DriveFacts> = names.iter().map(|n| drives::describe(roots, n)).collect();
        let gpu = gpu::facts(roots);
        Facts {
            cufile: cufile::facts(roots, around),
            gds: gds::facts(roots, &filesystems),
            raids: raid::facts(roots, &drives),
            topology: topology::facts(roots, &gpu, &drives, &Default::default()),
            kernel: host::facts(roots).kernel,
            gpu,
            filesystems,
            drives,
        }
    }

    pub fn ground(&self) -> Ground<'_> {
        Ground {
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

pub fn judge(ground: &Ground, files: bool) -> Verdicts {
    let no_gpu = no_gpu(ground);
    let usable = |because: Option<String>| Usable { runs: because.is_none(), because };
    let mapped = match files {
        true => no_gpu.clone(),
        false => Some("only files can be mapped".to_string()),
    };
    Verdicts { gds: gds_of(ground), mapped: usable(mapped), bounce: usable(no_gpu) }
}

pub fn no_gpu(ground: &Ground) -> Option<String> {
    match &ground.gpu.libcuda_refused {
        _ if !super::gpu::present(ground.gpu) => Some("there is no NVIDIA GPU that could be used".into()),
        Some(refused) => Some(format!("libcuda doesn't load: {refused}")),
        None => None,
    }
}

fn gds_of(ground: &Ground) -> GdsVerdict {
    let compat_allowed = ground.cufile.config.allow_compat_mode;
    let mut verdict = GdsVerdict { compat_allowed, ..GdsVerdict::default() };
    let mut refused = false;
    for condition in CONDITIONS {
        let (because, next, told) = match (condition.judge)(ground) {
            Finding::Fails { why, next, .. } => (why, next, true),
            Finding::Open { why, next, .. } => (why, next, false),
            Finding::Holds(_) | Finding::Moot => continue,
        };
        let cause = Cause { id: condition.id, because, next };
        match condition.stops {
            _ if !told => verdict.doubts.push(cause),
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
        true if verdict.nvidia_fs.is_empty() => Some(Through::NvidiaFs),
        true if verdict.p2pdma.is_empty() && p2pdma_known(ground) => Some(Through::P2pdma),
        _ => None,
    };
    verdict.answer = match verdict.through {
        Some(_) => Answer::Direct,
        None if refused || !verdict.compat_allowed => Answer::No,
        None => Answer::CompatOnly,
    };
    verdict
}

/// An unread kernel configuration is no proof that P2PDMA is there.
fn p2pdma_known(ground: &Ground) -> bool {
    ground.gds.p2pdma.in_kernel == Some(true)
}

/// A command with one more thing said behind it, where a shell won't read it.
pub fn remark(command: &str, more: &str) -> String {
    match command.contains("   # ") {
        true => format!("{command}; {more}"),
        false => format!("{command}   # {more}"),
    }
}

impl GdsVerdict {
    pub fn is_direct(&self) -> bool {
        self.answer == Answer::Direct
    }

    /// The way to direct DMA that isn't needed, since the other works.
    pub fn needless(&self) -> Option<Stops> {
        Some(match self.through? {
            Through::NvidiaFs => Stops::P2pdma,
            Through::P2pdma => Stops::NvidiaFs,
        })
    }

    /// Why it isn't direct, in one clause: what stops both ways, else what stops each.
    pub fn reason(&self) -> Option<String> {
        if self.is_direct() {
            return None;
        }
        let first = |causes: &[Cause]| causes.first().map(|c| c.because.clone());
        let more = |causes: &[Cause]| match causes.len() {
            0 | 1 => String::new(),
            n => format!(" (and {} more)", n - 1),
        };
        if let Some(because) = first(&self.both) {
            return Some(because + &more(&self.both));
        }
        let ways = [&self.nvidia_fs, &self.p2pdma].map(|causes| Some(first(causes)? + &more(causes)));
        let ways: Vec<String> = ways.into_iter().flatten().collect();
        Some(match ways.is_empty() {
            true => "the kernel's configuration can't be read, so P2PDMA isn't sure to be there".into(),
            false => ways.join("; "),
        })
    }

    /// What to type: for what stops both ways, else for the way with the fewest steps.
    pub fn next(&self) -> Option<String> {
        if self.is_direct() {
            return None;
        }
        if let Some(cause) = self.both.first() {
            return Some(cause.next.clone());
        }
        let ways = [&self.nvidia_fs, &self.p2pdma];
        let shortest = ways.into_iter().filter(|causes| !causes.is_empty()).min_by_key(|c| c.len())?;
        // One step at a time: some end in a restart.
        Some(match shortest.len() {
            1 => shortest[0].next.clone(),
            n => remark(&shortest[0].next, &format!("then forebay doctor again: {} more", n - 1)),
        })
    }

    /// `direct, through nvidia-fs`, or `compat only, because …`, or `no, because …`.
    pub fn words(&self) -> String {
        let because = self.reason().unwrap_or_default();
        match (self.answer, self.through) {
            (Answer::Direct, Some(Through::NvidiaFs)) => "direct, through nvidia-fs".into(),
            (Answer::Direct, _) => "direct, through PCI P2PDMA".into(),
            (Answer::CompatOnly, _) => format!("compat only, because {because}"),
            (Answer::No, _) if self.compat_allowed => format!("no, because {because}"),
            (Answer::No, _) => {
                format!("no, because {because}, and cufile.json forbids the compatibility mode")
            }
        }
    }

    /// The error that `--path gds` ends with where direct DMA can't run; None where it can, or
    /// where the compatibility mode would run and `allow_compat` takes it.
    pub fn refusal(&self, asked: &str, allow_compat: bool) -> Option<Error> {
        match self.answer {
            Answer::Direct => None,
            Answer::CompatOnly if allow_compat => None,
            Answer::CompatOnly => Some(Error::machine(
                asked,
                format!("cuFile would run in its compatibility mode, because {}", self.reason()?),
                format!("{}; or --allow-compat, or --path bounce", self.next().unwrap_or_default()),
            )),
            Answer::No => Some(Error::machine(
                asked,
                format!("cuFile can't run here: {}", self.words()),
                format!("{}; or --path bounce", self.next().unwrap_or_default()),
            )),
        }
    }
}
