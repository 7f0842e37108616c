//! Conditions that software sets: libraries, drivers, settings.

use super::super::gds::udev_commands;
use super::fails;
use super::holds;
use super::open;
use super::version;
use super::FactsView;
use super::Finding;
use forebay_model::units::readable_bytes as size;

pub(super) fn gpu(view: &FactsView) -> Finding {
    let facts = view.gpu;
    if facts.are_present() {
        let names: Vec<&str> = facts.gpus.iter().map(|g| g.gpu.name.as_str()).collect();
        return holds(names.join(", "));
    }
    match facts.without_driver.first() {
        Some(address) => fails(
            format!("the GPU at {address} has no driver"),
            "the kernel module nvidia isn't loaded, or this container wasn't given the GPU",
            "sudo modprobe nvidia   # in a container: start it with --gpus all",
        ),
        None => fails("no NVIDIA GPU", "there is no NVIDIA GPU that could be used", "‹path› host"),
    }
}

pub(super) fn libcuda(view: &FactsView) -> Finding {
    match &view.gpu.libcuda_refused {
        None => holds("loads"),
        Some(refused) => fails(
            refused,
            format!("libcuda doesn't load: {refused}"),
            "sudo ldconfig   # in a container: NVIDIA_DRIVER_CAPABILITIES=compute,utility",
        ),
    }
}

pub(super) fn library(view: &FactsView) -> Finding {
    let Some(first) = view.cufile.libraries.first() else {
        return fails("not found", "libcufile isn't found", "pip install nvidia-cufile");
    };
    match &view.cufile.refused {
        None => holds(first.path.display().to_string()),
        Some(refused) => fails(
            refused,
            format!("libcufile doesn't load: {refused}"),
            format!("ldd {} | grep 'not found'", first.path.display()),
        ),
    }
}

/// The first libcufile of CUDA 13, and the first with counters for each GPU.
pub(super) const LIBCUFILE_13: (u32, u32) = (1, 15);

/// The first driver for CUDA 13.
pub(super) const DRIVER_13: (u32, u32) = (580, 0);

/// The version that the library reports, else the one in its file's name.
pub(super) fn library_version<'a>(view: &FactsView<'a>) -> Option<(&'a str, (u32, u32))> {
    let first = view.cufile.libraries.first();
    let text = first.and_then(|l| l.version.as_ref()).or(view.cufile.api_version.as_ref())?;
    Some((text, version(text)?))
}

pub(super) fn versions(view: &FactsView) -> Finding {
    let (Some((text, library)), Some(driver)) = (library_version(view), &view.gpu.driver) else {
        return Finding::Moot;
    };
    if library >= LIBCUFILE_13 && version(driver).is_some_and(|found| found < DRIVER_13) {
        return open(
            format!("libcufile {text} with driver {driver}"),
            format!("libcufile {text} is CUDA 13's, which needs driver 580, and this is {driver}"),
            "sudo apt install nvidia-open && sudo reboot   # or libcufile of CUDA 12: pip install nvidia-cufile-cu12",
        );
    }
    holds(format!("libcufile {text}, driver {driver}"))
}

pub(super) fn counters(view: &FactsView) -> Finding {
    match library_version(view) {
        Some((text, library)) if library < LIBCUFILE_13 => fails(
            text,
            format!("libcufile {text} has no counters per GPU (1.15 has), so a run can't prove that it was direct"),
            "pip install --upgrade nvidia-cufile   # or CUDA 13",
        ),
        Some((text, _)) => holds(text),
        None => Finding::Moot,
    }
}

pub(super) fn udev(view: &FactsView) -> Finding {
    match view.gds.udev.iter().find(|u| !u.is_complete()) {
        None => holds("knows the file system"),
        Some(udev) => fails(
            format!("no udev entry for {}", udev.device),
            "udev's database lacks the file system's type, and cuFileHandleRegister fails with 5027",
            udev_commands(udev),
        ),
    }
}

pub(super) fn forced(view: &FactsView) -> Finding {
    let config = &view.cufile.config;
    match (config.force_compat_mode, config.forced_by_environment) {
        (false, _) => holds("not forced"),
        (true, true) => fails(
            "CUFILE_FORCE_COMPAT_MODE is set",
            "CUFILE_FORCE_COMPAT_MODE makes every byte go through host memory",
            "unset CUFILE_FORCE_COMPAT_MODE",
        ),
        (true, false) => fails(
            format!("force_compat_mode in {}", config.path.display()),
            "cufile.json makes every byte go through host memory",
            "forebay doctor --write-cufile-json cufile.json && export CUFILE_ENV_PATH_JSON=$PWD/cufile.json",
        ),
    }
}

pub(super) fn gpu_class(view: &FactsView) -> Finding {
    let consumer = |name: &str| name.contains("GeForce") || name.contains("TITAN");
    match view.gpu.gpus.iter().find(|g| consumer(&g.gpu.name)) {
        Some(device) => fails(
            device.gpu.name.clone(),
            format!("NVIDIA's drivers give no direct DMA from storage to a {}", device.gpu.name),
            "‹path› bounce; or a data-centre or professional GPU",
        ),
        None if view.gpu.are_present() => holds("not a consumer GPU"),
        None => Finding::Moot,
    }
}

pub(super) fn bar1(view: &FactsView) -> Finding {
    let windows: Vec<Option<u64>> = view.gpu.gpus.iter().map(|g| g.bar1_bytes).collect();
    if windows.contains(&Some(0)) {
        return fails(
            "none",
            "the GPU shows no BAR1 window through which a drive could reach its memory",
            "turn on 'Above 4G decoding' and Resizable BAR in the firmware set-up",
        );
    }
    match windows.iter().flatten().min() {
        Some(least) => holds(size(*least)),
        None => Finding::Moot,
    }
}
