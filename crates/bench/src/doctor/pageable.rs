//! Detection of GPUs that read unregistered host memory: through the host's own page tables (ATS, where a GPU hangs on
//! NVLink-C2C), or because the kernel mirrors them for the driver (HMM). `mapped` registers its windows all the same,
//! and the check says why.

use forebay_io::{Check, CheckArea, CheckState, PageableGpu, PageableMemory};

/// Reports the consequences for the paths. `open_modules`: the driver's kernel modules are the open ones.
pub(crate) fn check(found: &PageableMemory, open_modules: Option<bool>) -> Check {
    let check = |state, found: String| {
        Check::new(CheckArea::Gpu, "gpu.pageable", "unregistered memory (HMM, ATS)", state, found)
    };
    let able: Vec<&PageableGpu> = found.gpus.iter().filter(|gpu| gpu.reads).collect();
    if let Some(first) = able.first() {
        let way = if first.host_tables { "by the host's page tables (ATS)" } else { "by HMM" };
        let numbers: Vec<String> = able.iter().map(|gpu| gpu.index.to_string()).collect();
        return check(CheckState::Works, format!("GPU {} reads it {way}", numbers.join(", "))).why(
            "‹path› mapped registers its windows nevertheless: if a file shrank during an unregistered read, the GPU's \
             context would be destroyed, whereas a registered page stays",
        );
    }
    if let (Some(why), true) = (&found.refused, found.gpus.is_empty()) {
        return check(CheckState::Unknown, "not reported".into())
            .why(format!("the driver couldn't be queried: {why}"))
            .next("nvidia-smi -q | grep Addressing   # HMM, ATS or None");
    }
    check(CheckState::NotApplicable, format!("GPUs don't read it: {}", hindrance(found, open_modules))).why(
        "no path needs it: mapped registers what GPUs read from the page cache, bounce copies to pinned buffers",
    )
}

/// The first of the reasons that there may be.
fn hindrance(found: &PageableMemory, open_modules: Option<bool>) -> &'static str {
    match found {
        _ if open_modules == Some(false) => {
            "the driver's kernel modules aren't the open ones, which HMM needs"
        }
        PageableMemory { uvm_loaded: false, .. } => "the kernel module nvidia_uvm isn't loaded",
        PageableMemory { hmm_disabled: Some(true), .. } => "nvidia_uvm is loaded with uvm_disable_hmm=1",
        PageableMemory { kernel_has_hmm: Some(false), .. } => {
            "the kernel is built without CONFIG_HMM_MIRROR or CONFIG_DEVICE_PRIVATE"
        }
        _ => "the driver gives no reason (HMM takes Linux 6.1.24, driver 535, a GPU since Turing)",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(index: u32, reads: bool, host_tables: bool) -> PageableGpu {
        PageableGpu { index, reads, host_tables }
    }

    /// All that HMM needs, and a driver that says no.
    fn ready() -> PageableMemory {
        PageableMemory {
            gpus: vec![gpu(0, false, false)],
            uvm_loaded: true,
            hmm_disabled: Some(false),
            kernel_has_hmm: Some(true),
            ..PageableMemory::default()
        }
    }

    #[test]
    fn what_gpus_read_is_named_with_what_follows() {
        let hmm = check(
            &PageableMemory { gpus: vec![gpu(0, true, false), gpu(1, true, false)], ..ready() },
            Some(true),
        );
        assert_eq!((hmm.state, hmm.found.as_str()), (CheckState::Works, "GPU 0, 1 reads it by HMM"));
        assert!(hmm.why.unwrap().contains("registers its windows nevertheless"));
        let ats = check(&PageableMemory { gpus: vec![gpu(0, true, true)], ..ready() }, Some(true));
        assert!(ats.found.contains("page tables (ATS)"), "{ats:?}");
    }

    #[test]
    fn each_reason_against_it_is_told_by_itself() {
        let table = [
            (ready(), Some(false), "aren't the open ones"),
            (PageableMemory { uvm_loaded: false, ..ready() }, Some(true), "nvidia_uvm isn't loaded"),
            (PageableMemory { hmm_disabled: Some(true), ..ready() }, Some(true), "uvm_disable_hmm=1"),
            (PageableMemory { kernel_has_hmm: Some(false), ..ready() }, Some(true), "CONFIG_HMM_MIRROR"),
            (ready(), None, "the driver gives no reason"),
        ];
        for (found, open, words) in table {
            let check = check(&found, open);
            assert!(check.state == CheckState::NotApplicable && check.found.contains(words), "{check:?}");
        }
    }

    #[test]
    fn a_driver_that_does_not_answer_is_unknown_not_no() {
        let silent = PageableMemory { gpus: Vec::new(), refused: Some("no answer in 5 s".into()), ..ready() };
        let check = check(&silent, Some(true));
        assert_eq!(check.state, CheckState::Unknown);
        assert!(check.next.unwrap().contains("nvidia-smi"));
    }
}
