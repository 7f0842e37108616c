//! Whether GPUs read host memory that nobody registered: through the host's own page tables (ATS, where a GPU hangs on
//! NVLink-C2C), or because the kernel mirrors them for the driver (HMM). `mapped` registers its windows all the same, and
//! the check says why.

use super::gds::{has_option, kernel_config};
use super::report::{Area, Check, State};
use super::roots::{line, Roots};
use crate::gpu::cuda;
use crate::machine;
use serde::Serialize;
use std::time::Duration;

/// Initialising the driver takes longer than looking at files.
const LIMIT: Duration = Duration::from_secs(5);
/// CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS and …_USES_HOST_PAGE_TABLES.
const READS: i32 = 88;
const HOST_TABLES: i32 = 100;
/// What the kernel must be built with for HMM.
const KERNEL_OPTIONS: [&str; 2] = ["CONFIG_HMM_MIRROR", "CONFIG_DEVICE_PRIVATE"];

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Pageable {
    /// As the driver says of each GPU; empty where it wasn't asked or didn't answer.
    pub gpus: Vec<PageableGpu>,
    /// Why it says nothing.
    pub refused: Option<String>,
    /// The module nvidia_uvm is loaded.
    pub uvm_loaded: bool,
    /// Its parameter uvm_disable_hmm; null where it has none.
    pub hmm_disabled: Option<bool>,
    /// Its parameter uvm_ats_mode: 0 is off; null where it has none.
    pub ats_mode: Option<i64>,
    /// The kernel is built with what HMM needs; null where no configuration could be read.
    pub kernel_has_hmm: Option<bool>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PageableGpu {
    pub index: u32,
    /// It reads memory that nobody registered.
    pub reads: bool,
    /// It does so by the host's page tables.
    pub host_tables: bool,
}

/// `asks`: libcuda can be loaded, so that the driver may be asked.
pub fn facts(roots: &Roots, asks: bool) -> Pageable {
    let module = roots.sys("module/nvidia_uvm");
    let parameter = |name: &str| line(&module.join("parameters").join(name));
    let config = kernel_config(roots);
    let mut found = Pageable {
        uvm_loaded: module.exists(),
        hmm_disabled: parameter("uvm_disable_hmm").map(|value| matches!(value.as_str(), "Y" | "1")),
        ats_mode: parameter("uvm_ats_mode").and_then(|value| value.parse().ok()),
        kernel_has_hmm: config.map(|config| KERNEL_OPTIONS.iter().all(|name| has_option(&config, name))),
        ..Pageable::default()
    };
    if asks {
        match machine::within(LIMIT, ask) {
            Some(Ok(gpus)) => found.gpus = gpus,
            Some(Err(why)) => found.refused = Some(why),
            None => found.refused = Some(format!("no answer in {} s", LIMIT.as_secs())),
        }
    }
    found
}

/// No context is made for it.
fn ask() -> Result<Vec<PageableGpu>, String> {
    let (count, why) = cuda::devices();
    if let Some(why) = why {
        return Err(why);
    }
    let of = |index| {
        let says = |number| cuda::attribute_of(index, number).map(|value| value != 0);
        Ok(PageableGpu { index, reads: says(READS)?, host_tables: says(HOST_TABLES)? })
    };
    (0..count).map(of).collect()
}

/// What follows from it for the paths. `open_modules`: the driver's kernel modules are the open ones.
pub fn check(found: &Pageable, open_modules: Option<bool>) -> Check {
    let check = |state, found: String| {
        Check::new(Area::Gpu, "gpu.pageable", "unregistered memory (HMM, ATS)", state, found)
    };
    let able: Vec<&PageableGpu> = found.gpus.iter().filter(|gpu| gpu.reads).collect();
    if let Some(first) = able.first() {
        let way = if first.host_tables { "by the host's page tables (ATS)" } else { "by HMM" };
        let numbers: Vec<String> = able.iter().map(|gpu| gpu.index.to_string()).collect();
        return check(State::Works, format!("GPU {} reads it {way}", numbers.join(", "))).why(
            "--path mapped registers its windows all the same: where a file shrinks under an unregistered read the GPU's \
             context ends, and a registered page stays",
        );
    }
    if let (Some(why), true) = (&found.refused, found.gpus.is_empty()) {
        return check(State::Unknown, "not reported".into())
            .why(format!("the driver wasn't to be asked: {why}"))
            .next("nvidia-smi -q | grep Addressing   # HMM, ATS or None");
    }
    check(State::NotApplicable, format!("GPUs don't read it: {}", hindrance(found, open_modules))).why(
        "no path needs it: mapped registers what GPUs read from the page cache, bounce copies to pinned buffers",
    )
}

/// The first of the reasons that there may be.
fn hindrance(found: &Pageable, open_modules: Option<bool>) -> &'static str {
    match found {
        _ if open_modules == Some(false) => {
            "the driver's kernel modules aren't the open ones, which HMM needs"
        }
        Pageable { uvm_loaded: false, .. } => "the kernel module nvidia_uvm isn't loaded",
        Pageable { hmm_disabled: Some(true), .. } => "nvidia_uvm is loaded with uvm_disable_hmm=1",
        Pageable { kernel_has_hmm: Some(false), .. } => {
            "the kernel is built without CONFIG_HMM_MIRROR or CONFIG_DEVICE_PRIVATE"
        }
        _ => "the driver says so, and not why (HMM takes Linux 6.1.24, driver 535, a GPU since Turing)",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(index: u32, reads: bool, host_tables: bool) -> PageableGpu {
        PageableGpu { index, reads, host_tables }
    }

    /// All that HMM needs, and a driver that says no.
    fn ready() -> Pageable {
        Pageable {
            gpus: vec![gpu(0, false, false)],
            uvm_loaded: true,
            hmm_disabled: Some(false),
            kernel_has_hmm: Some(true),
            ..Pageable::default()
        }
    }

    #[test]
    fn what_gpus_read_is_named_with_what_follows() {
        let hmm =
            check(&Pageable { gpus: vec![gpu(0, true, false), gpu(1, true, false)], ..ready() }, Some(true));
        assert_eq!((hmm.state, hmm.found.as_str()), (State::Works, "GPU 0, 1 reads it by HMM"));
        assert!(hmm.why.unwrap().contains("registers its windows all the same"));
        let ats = check(&Pageable { gpus: vec![gpu(0, true, true)], ..ready() }, Some(true));
        assert!(ats.found.contains("page tables (ATS)"), "{ats:?}");
    }

    #[test]
    fn each_reason_against_it_is_told_by_itself() {
        let table = [
            (ready(), Some(false), "aren't the open ones"),
            (Pageable { uvm_loaded: false, ..ready() }, Some(true), "nvidia_uvm isn't loaded"),
            (Pageable { hmm_disabled: Some(true), ..ready() }, Some(true), "uvm_disable_hmm=1"),
            (Pageable { kernel_has_hmm: Some(false), ..ready() }, Some(true), "CONFIG_HMM_MIRROR"),
            (ready(), None, "the driver says so"),
        ];
        for (found, open, words) in table {
            let check = check(&found, open);
            assert!(check.state == State::NotApplicable && check.found.contains(words), "{check:?}");
        }
    }

    #[test]
    fn a_driver_that_does_not_answer_is_unknown_not_no() {
        let silent = Pageable { gpus: Vec::new(), refused: Some("no answer in 5 s".into()), ..ready() };
        let check = check(&silent, Some(true));
        assert_eq!(check.state, State::Unknown);
        assert!(check.next.unwrap().contains("nvidia-smi"));
    }

    #[test]
    fn parameters_of_the_module_are_read() {
        let home = tempfile::tempdir().unwrap();
        let roots = Roots::under(home.path());
        assert_eq!(facts(&roots, false), Pageable::default());
        let parameters = home.path().join("sys/module/nvidia_uvm/parameters");
        std::fs::create_dir_all(&parameters).unwrap();
        std::fs::write(parameters.join("uvm_disable_hmm"), "Y\n").unwrap();
        std::fs::write(parameters.join("uvm_ats_mode"), "1\n").unwrap();
        let found = facts(&roots, false);
        assert_eq!((found.uvm_loaded, found.hmm_disabled, found.ats_mode), (true, Some(true), Some(1)));
        // Whatever is there instead of a number is no answer.
        std::fs::write(parameters.join("uvm_ats_mode"), [0xff; 4000]).unwrap();
        assert_eq!(facts(&roots, false).ats_mode, None);
    }
}
