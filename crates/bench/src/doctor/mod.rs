//! The examination of this machine: its capabilities, the obstacles, and the commands that remove them.
//!
//! Facts are read first, all through `Roots`, so that tests can hand in a machine
//! made of files; checks are pure functions of facts. What can be tried is tried
//! (rings, direct reads) rather than concluded from a version.

#![allow(unsafe_code, reason = "probing system calls that rustix lacks")]

mod cache;
mod conditions;
mod cufile;
mod drives;
mod fabric;
mod filesystem;
mod gds;
mod gpu;
mod host;
mod memory;
mod nvme_rdma;
mod nvme_tcp;
mod pageable;
mod paths;
mod power;
mod probe;
mod raid;
mod report;
mod source;
mod syscalls;
#[cfg(test)]
mod tests;
mod topology;
mod ublk;
mod uring;
mod verdict;

pub use cufile::ask_cufile;
pub(crate) use forebay_io::Check;
pub(crate) use forebay_io::{Roots, Verdicts};
pub(crate) use report::{Report, SCHEMA};
pub use verdict::gds_verdict;

use cufile::Surroundings;
use drives::DriveFacts;
use filesystem::{Examined, Trial};
use forebay_io::card_of_device;
use forebay_model::Error;
use forebay_storage::DataPath;
use std::path::{Path, PathBuf};

/// Examines this machine, and what `source` names. Fails only where the source can't be one
/// or isn't there; whatever can't be found out is a check whose state is `unknown`.
pub fn examine_machine(source: Option<&str>, cufile_json: Option<&Path>) -> Result<Report, Error> {
    if let Some(path) = cufile_json.filter(|p| !p.is_file()) {
        return Err(Error::request(
            "--cufile-json",
            format!("{} isn't a file", path.display()),
            "/etc/cufile.json",
        ));
    }
    let asked = source::parse(source)?;
    let mut report = examine_with(&Roots::host(), asked, &Surroundings::of_process(cufile_json));
    if rustix::process::geteuid().is_root() {
        for next in report.checks.iter_mut().filter_map(|check| check.next.as_mut()) {
            *next = as_root(next);
        }
    }
    Ok(report)
}

/// A command as root types it: containers often have no sudo.
fn as_root(command: &str) -> String {
    command.strip_prefix("sudo ").unwrap_or(command).replace(" sudo ", " ")
}

fn examine_with(roots: &Roots, asked: source::Asked, around: &Surroundings) -> Report {
    let examined = examined(roots, &asked);
    examine_found(roots, asked, around, examined)
}

fn examine_found(
    roots: &Roots,
    asked: source::Asked,
    around: &Surroundings,
    examined: Vec<Examined>,
) -> Report {
    let whole = asked.kind == "machine";
    let names = match whole {
        true => DriveFacts::all(roots),
        false => DriveFacts::behind(roots, examined.iter().map(|e| e.device)),
    };
    let drives: Vec<DriveFacts> = names.iter().map(|n| DriveFacts::read(roots, n)).collect();
    let mut raids = raid::facts(roots, &drives);
    raids.extend(raid::stripe(&asked));
    let scratch = examined.iter().find(|e| e.kind == "directory").map(|e| e.path.clone());
    let scratch = scratch.filter(|path| !whole && filesystem::writable(path));
    let gpu = gpu::GpuFacts::gather(roots);
    let host = host::HostFacts::gather(roots);
    let fabric = fabric::facts(roots);
    let nvme_rdma = nvme_rdma::facts(roots);
    let nvme_tcp = nvme_tcp::facts(roots, &host.kernel);
    let ublk = ublk::facts(roots, &host.kernel);
    let search: Vec<PathBuf> = std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()).collect();
    let filesystem = examined.iter().find_map(|e| e.filesystem.clone());
    let mut report = Report {
        schema: SCHEMA,
        environment: card_of_device(roots, &host, &gpu, &drives, filesystem),
        verdict: String::new(),
        checks: Vec::new(),
        memory: memory::MemoryFacts::gather(roots),
        uring: uring::facts(roots),
        cache: cache::facts(roots, probe::page_cache(scratch.as_deref())),
        cufile: cufile::facts(roots, around),
        gds: gds::facts(roots, &examined),
        power: power::facts(roots, &gpu.nvml, &search),
        topology: topology::facts(roots, &gpu, &drives, &fabric),
        verdicts: Verdicts::default(),
        source: asked,
        filesystems: examined,
        host,
        drives,
        raids,
        gpu,
        fabric,
        nvme_rdma,
        nvme_tcp,
        ublk,
    };
    report.verdicts = verdict::judge(&view(&report), maps(&report.source));
    report.checks = checks(roots, &report);
    report.verdict = paths::verdict(&report.checks, &report.filesystems);
    report
}

/// With no source named, the working directory's file system is looked at and nothing is tried on it.
fn examined(roots: &Roots, asked: &source::Asked) -> Vec<Examined> {
    if asked.kind == "machine" {
        let here = std::env::current_dir().ok();
        return here.iter().filter_map(|path| filesystem::examine(roots, path, Trial::Nothing)).collect();
    }
    let trial = |path: &Path| if filesystem::writable(path) { Trial::Write } else { Trial::Read };
    asked.paths.iter().filter_map(|path| filesystem::examine(roots, path, trial(path))).collect()
}

fn has_files(asked: &source::Asked) -> bool {
    asked.kind == "machine" || !asked.paths.is_empty()
}

/// `mapped` could serve it: it reads files themselves, and none through something else.
fn maps(asked: &source::Asked) -> bool {
    asked.medium.as_ref().is_none_or(|medium| forebay_storage::MappedPath.accepts(medium))
}

/// The facts that decide about direct DMA.
fn view(report: &Report) -> conditions::FactsView<'_> {
    conditions::FactsView {
        gpu: &report.gpu,
        cufile: &report.cufile,
        gds: &report.gds,
        filesystems: &report.filesystems,
        drives: &report.drives,
        raids: &report.raids,
        topology: &report.topology,
        kernel: &report.host.kernel,
        arch: std::env::consts::ARCH,
        whole: report.source.kind == "machine",
    }
}

/// All checks, in the order in which areas are shown.
fn checks(roots: &Roots, report: &Report) -> Vec<Check> {
    let gpu = report.gpu.are_present();
    let view = view(report);
    let for_gpu = gpu || !report.cufile.libraries.is_empty();
    let mut checks = source::checks(roots, &report.source);
    checks.extend(host::checks(&report.host));
    checks.extend(memory::checks(&report.memory));
    checks.push(memory::loader(&report.memory, gpu));
    checks.extend(uring::checks(&report.uring));
    checks.extend(report.filesystems.iter().flat_map(|e| filesystem::checks(e, for_gpu)));
    checks.extend(drives::checks(&report.drives));
    checks.extend(raid::checks(roots, &report.raids, gpu));
    if has_files(&report.source) {
        checks.extend(cache::checks(&report.cache));
    }
    checks.extend(gpu::checks(&report.gpu));
    checks.extend(cufile::checks(&report.cufile, gpu));
    checks.extend(gds::checks(view.gds, gpu, conditions::p2pdma_check(&view)));
    if gpu {
        checks.extend(conditions::checks(&view, verdict::needless(&report.verdicts.gds)));
    }
    checks.extend(fabric::checks(&report.fabric, gpu));
    checks.extend(nvme_tcp::checks(&report.nvme_tcp, &report.uring));
    checks.push(nvme_rdma::check(&report.nvme_rdma, &report.fabric, &report.memory.locked));
    checks.extend(ublk::checks(report.ublk));
    checks.extend(power::checks(&report.power, gpu, &report.gpu.nvml, report.host.virtualization.is_some()));
    checks.extend(topology::checks(&report.topology, gpu));
    checks.extend(paths::checks(&report.verdicts, report.source.medium.as_ref()));
    // Members of a stripe may share a file system: what is said of it is said once.
    let mut said = std::collections::HashSet::new();
    checks.retain(|check| said.insert(check.id.clone()));
    checks
}
