//! The four data paths: which of them run here, on this source.

use super::cufile::Cufile;
use super::filesystem::Examined;
use super::gds::{p2pdma_ready, Gds};
use super::gpu::GpuFacts;
use super::report::{count, Area, Check, State};
use super::source::Asked;

/// What decides: the facts of the other areas.
pub struct Ground<'a> {
    pub asked: &'a Asked,
    pub gpu: &'a GpuFacts,
    pub cufile: &'a Cufile,
    pub gds: &'a Gds,
    /// Kinds of the drives behind the source.
    pub kinds: Vec<String>,
    pub arch: &'a str,
}

pub fn checks(ground: &Ground) -> Vec<Check> {
    vec![host(), bounce(ground), mapped(ground), gds(ground)]
}

fn check(name: &str, state: State, found: impl Into<String>) -> Check {
    Check::new(Area::Paths, format!("path.{name}"), name, state, found)
}

fn host() -> Check {
    check("host", State::Works, "storage to host memory")
}

/// A GPU that libcuda can reach.
fn usable(ground: &Ground) -> bool {
    super::gpu::present(ground.gpu) && ground.gpu.libcuda_refused.is_none()
}

fn bounce(ground: &Ground) -> Check {
    if usable(ground) {
        return check("bounce", State::Works, "storage to pinned host memory to the GPU");
    }
    check("bounce", State::Limited, "its destination is host memory, and records say so").why(no_gpu(ground))
}

fn no_gpu(ground: &Ground) -> String {
    match &ground.gpu.libcuda_refused {
        Some(refused) if super::gpu::present(ground.gpu) => format!("libcuda doesn't load: {refused}"),
        _ => "there is no NVIDIA GPU that could be used".into(),
    }
}

fn mapped(ground: &Ground) -> Check {
    let files = ground.asked.kind == "machine" || !ground.asked.paths.is_empty();
    if !files {
        return check("mapped", State::NotApplicable, "only files can be mapped");
    }
    if usable(ground) {
        return check(
            "mapped",
            State::Works,
            "page cache to the GPU without a CPU copy, for data that is cached",
        );
    }
    check("mapped", State::Missing, "needs a GPU").why(no_gpu(ground))
}

fn gds(ground: &Ground) -> Check {
    if !super::gpu::present(ground.gpu) {
        return check("gds", State::Missing, "needs a GPU").why(no_gpu(ground));
    }
    let cufile = ground.cufile;
    if cufile.libraries.is_empty() || cufile.refused.is_some() {
        return check("gds", State::Missing, "needs libcufile")
            .why(cufile.refused.clone().unwrap_or_else(|| "it isn't found".into()))
            .next("pip install nvidia-cufile   # meanwhile: --path bounce");
    }
    let nvfs = !ground.gds.nvidia_fs.drivers.is_empty();
    let p2p = p2pdma_ready(ground.gds, ground.gpu, &cufile.config, ground.arch);
    let nvme = ground.kinds.iter().any(|k| k == "nvme");
    let layered = ground.kinds.iter().any(|k| k == "md" || k == "dm");
    match (!cufile.config.force_compat_mode && (nvfs || (p2p && !layered)), nvme) {
        (true, true) => check(
            "gds",
            State::Works,
            format!(
                "storage to GPU memory directly, through {}",
                if nvfs { "nvidia-fs" } else { "PCI P2PDMA" }
            ),
        ),
        (direct, _) => compatibility(ground, direct),
    }
}

/// cuFile would go through host memory, or not run at all.
fn compatibility(ground: &Ground, direct: bool) -> Check {
    let why = match direct {
        true => "no NVMe drive is behind this".to_string(),
        false if ground.cufile.config.force_compat_mode => "CUFILE_FORCE_COMPAT_MODE is set".into(),
        false => "neither nvidia-fs nor PCI P2PDMA is ready".into(),
    };
    if !ground.cufile.config.allow_compat_mode {
        return check("gds", State::Missing, "no direct DMA, and cufile.json forbids the compatibility mode")
            .why(why)
            .next("--path bounce");
    }
    if ground.gds.udev.iter().any(|u| !u.is_complete()) {
        return check("gds", State::Missing, "cuFile would refuse the file (error 5027)")
            .why("udev's database lacks the file system's type")
            .next(super::gds::udev_commands(
                ground.gds.udev.iter().find(|u| !u.is_complete()).expect("found just above"),
            ));
    }
    check("gds", State::Limited, "cuFile's compatibility mode only: records say gds-compat")
        .why(why)
        .next("--path bounce, which does the same with its stages overlapped")
}

/// One sentence: the paths that run, and how much there is to do.
pub fn verdict(checks: &[Check], examined: &[Examined]) -> String {
    let named = |state: State| -> Vec<&str> {
        let paths = checks.iter().filter(|c| c.area == Area::Paths && c.state == state);
        paths.map(|c| c.title.as_str()).collect()
    };
    let mut parts = Vec::new();
    for (words, state) in
        [("Runs: ", State::Works), ("In part: ", State::Limited), ("Not here: ", State::Missing)]
    {
        if !named(state).is_empty() {
            parts.push(format!("{words}{}.", named(state).join(", ")));
        }
    }
    if examined.iter().any(|e| e.direct.as_ref().is_some_and(|d| d.timed_out)) {
        parts.push("The storage doesn't answer.".into());
    }
    parts.push(match checks.iter().filter(|c| c.wants_action()).count() {
        0 => "Nothing to improve.".into(),
        n => format!("{} could be improved.", count(n, "thing")),
    });
    parts.join(" ")
}
