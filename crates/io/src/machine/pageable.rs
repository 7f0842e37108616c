//! Detection of GPUs that read unregistered host memory: through the host's own page tables (ATS, where a GPU hangs on
//! NVLink-C2C), or because the kernel mirrors them for the driver (HMM).

use super::kernel::{has_kernel_option, kernel_config};
use super::roots::Roots;
use crate::gpu::cuda;
use serde::Serialize;
use std::time::Duration;

/// Initialising the driver takes longer than looking at files.
const LIMIT: Duration = Duration::from_secs(5);
/// CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS and …_USES_HOST_PAGE_TABLES.
const READS: i32 = 88;
const HOST_TABLES: i32 = 100;
/// Kernel options that HMM requires.
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
pub(crate) fn facts(roots: &Roots, asks: bool) -> Pageable {
    let module = roots.sys("module/nvidia_uvm");
    let parameter = |name: &str| Roots::line(&module.join("parameters").join(name));
    let config = kernel_config(roots);
    let mut found = Pageable {
        uvm_loaded: module.exists(),
        hmm_disabled: parameter("uvm_disable_hmm").map(|value| matches!(value.as_str(), "Y" | "1")),
        ats_mode: parameter("uvm_ats_mode").and_then(|value| value.parse().ok()),
        kernel_has_hmm: config
            .map(|config| KERNEL_OPTIONS.iter().all(|name| has_kernel_option(&config, name))),
        ..Pageable::default()
    };
    if asks {
        match super::with_time_limit(LIMIT, ask) {
            Some(Ok(gpus)) => found.gpus = gpus,
            Some(Err(why)) => found.refused = Some(why),
            None => found.refused = Some(format!("no answer in {} s", LIMIT.as_secs())),
        }
    }
    found
}

/// No context is made for it.
fn ask() -> Result<Vec<PageableGpu>, String> {
    let (count, why) = cuda::cuda_devices();
    if let Some(why) = why {
        return Err(why);
    }
    let of = |index| {
        let says = |number| cuda::attribute_of(index, number).map(|value| value != 0);
        Ok(PageableGpu { index, reads: says(READS)?, host_tables: says(HOST_TABLES)? })
    };
    (0..count).map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

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
