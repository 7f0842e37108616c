//! Power meters: which of them are readable, and the requirements of the others.

use forebay_io::{
    counted, ipmi_program, Check, CheckArea, CheckState, Nvml, Roots, REDFISH_PASSWORD_ENV, REDFISH_USER_ENV,
};
use serde::Serialize;
use std::path::PathBuf;

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Power {
    pub rapl: Vec<Zone>,
    pub nvml: bool,
    /// `/dev/ipmi0`, where there is a board controller.
    pub ipmi_device: Option<PathBuf>,
    pub ipmi_readable: bool,
    pub ipmitool: Option<PathBuf>,
    /// FOREBAY_REDFISH_USER and FOREBAY_REDFISH_PASSWORD are set.
    pub redfish_login: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Zone {
    /// `package-0`, `dram`, `psys`.
    pub name: String,
    pub path: PathBuf,
    pub readable: bool,
}

pub(crate) fn facts(roots: &Roots, nvml: &Nvml, search: &[PathBuf]) -> Power {
    let devices = ["ipmi0", "ipmi/0", "ipmidev/0"].map(|n| roots.dev.join(n));
    let ipmi_device = devices.into_iter().find(|d| d.exists());
    let readable = |device: &PathBuf| rustix::fs::access(device, rustix::fs::Access::READ_OK).is_ok();
    Power {
        rapl: zones(roots),
        nvml: nvml.devices.iter().any(|d| d.watts.is_some()),
        ipmi_readable: ipmi_device.as_ref().is_some_and(readable),
        ipmi_device,
        redfish_login: [REDFISH_USER_ENV, REDFISH_PASSWORD_ENV]
            .iter()
            .all(|name| std::env::var_os(name).is_some()),
        ipmitool: search.iter().map(|d| d.join(ipmi_program())).find(|p| p.is_file()),
    }
}

/// Zones of /sys/class/powercap, sub-zones (`intel-rapl:0:0`) included.
fn zones(roots: &Roots) -> Vec<Zone> {
    let base = roots.sys("class/powercap");
    let zone = |n: &String| n.starts_with("intel-rapl:") || n.starts_with("amd-rapl:");
    Roots::names(&base)
        .into_iter()
        .filter(zone)
        .filter_map(|n| {
            let path = base.join(n);
            let name = Roots::line(&path.join("name"))?;
            let readable = std::fs::File::open(path.join("energy_uj")).is_ok();
            Some(Zone { name, path, readable })
        })
        .collect()
}

/// `gpu`: there is a GPU whose power NVML could tell. `guest`: of a hypervisor, which keeps
/// the server's meters to itself.
pub(crate) fn checks(power: &Power, gpu: bool, nvml: &Nvml, guest: bool) -> Vec<Check> {
    vec![rapl(power, guest), nvml_check(power, gpu, nvml), ipmi(power, guest), redfish(power)]
}

fn rapl(power: &Power, guest: bool) -> Check {
    let check = |state, found: String| {
        Check::new(CheckArea::Power, "power.rapl", "RAPL (processor, memory)", state, found)
    };
    let names: Vec<&str> = power.rapl.iter().map(|z| z.name.as_str()).collect();
    if names.is_empty() && guest {
        return check(CheckState::NotApplicable, "hidden from virtual machines".into());
    }
    if names.is_empty() {
        return check(CheckState::Missing, "no zone".into())
            .why("the processor has none, or the module isn't loaded")
            .next("sudo modprobe intel_rapl_msr");
    }
    if power.rapl.iter().all(|z| z.readable) {
        return check(CheckState::Works, names.join(", "));
    }
    check(CheckState::Missing, format!("{}, not readable", names.join(", ")))
        .why("only root may read the energy counters")
        .next("sudo chmod a+r /sys/class/powercap/*/energy_uj")
}

fn nvml_check(power: &Power, gpu: bool, nvml: &Nvml) -> Check {
    let check = |state, found: String| Check::new(CheckArea::Power, "power.nvml", "NVML (GPU)", state, found);
    match (gpu, power.nvml) {
        (false, _) => check(CheckState::NotApplicable, "no NVIDIA GPU here".into()),
        (true, true) => check(CheckState::Works, counted(nvml.devices.len(), "GPU")),
        (true, false) => check(CheckState::Missing, nvml.refused.clone().unwrap_or_else(|| "the GPU doesn't report its power".into()))
            .why("without it the GPU's power is missing from records")
            .next("nvidia-smi --query-gpu=power.draw --format=csv   # in a container: NVIDIA_DRIVER_CAPABILITIES=compute,utility"),
    }
}

fn ipmi(power: &Power, guest: bool) -> Check {
    let check =
        |state, found: &str| Check::new(CheckArea::Power, "power.ipmi", "IPMI (whole server)", state, found);
    match (&power.ipmi_device, &power.ipmitool) {
        (None, _) if guest => check(CheckState::NotApplicable, "hidden from virtual machines"),
        (None, _) => check(CheckState::Missing, "no /dev/ipmi0")
            .why("there is no board controller, or its module isn't loaded")
            .next("sudo modprobe ipmi_devintf ipmi_si"),
        (Some(_), None) => check(CheckState::Missing, "/dev/ipmi0, but no ipmitool")
            .why("ipmitool queries the board controller")
            .next("sudo apt install ipmitool"),
        (Some(_), Some(_)) if !power.ipmi_readable => check(CheckState::Missing, "/dev/ipmi0 not accessible")
            .why("only root may query the board controller")
            .next("sudo forebay …   # or: sudo chmod a+rw /dev/ipmi0"),
        (Some(_), Some(_)) => check(CheckState::Works, "/dev/ipmi0 and ipmitool")
            .why("whether the board controller has a power sensor is known only when it is queried: ipmitool dcmi power reading"),
    }
}

/// Named, never guessed: a login isn't sent to a host that nobody pointed at.
fn redfish(power: &Power) -> Check {
    let check = |found: &str| {
        Check::new(
            CheckArea::Power,
            "power.redfish",
            "Redfish (whole server)",
            CheckState::NotApplicable,
            found,
        )
    };
    if power.redfish_login {
        return check("a login is set; its host is named with ‹power› redfish:HOST")
            .next("forebay bench … --power redfish:HOST");
    }
    check("used only if it is named, and no login is set")
        .next(format!("export {REDFISH_USER_ENV}=… {REDFISH_PASSWORD_ENV}=…"))
}
