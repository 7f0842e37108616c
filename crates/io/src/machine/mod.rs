//! Facts about this machine, as its kernel tells them. Whoever needs one reads it here; `doctor` judges them, and
//! advises.
//!
//! They are read through `Roots`, so that tests can hand in a machine made of files.

pub(crate) mod cgroups;
pub(crate) mod drives;
pub(crate) mod environment;
pub(crate) mod filesystem;
pub(crate) mod finding;
pub(crate) mod gpu;
pub(crate) mod host;
pub(crate) mod kernel;
pub(crate) mod memory;
pub(crate) mod nvme_host;
pub(crate) mod nvml;
pub(crate) mod pageable;
pub(crate) mod pci;
pub(crate) mod roots;
pub(crate) mod verdict;

use roots::Roots;
use std::path::Path;
use std::sync::{mpsc, Arc, Mutex};
use std::time::Duration;

/// Degrees Celsius of the warmest drive below this file or block device. None where none has a sensor.
pub fn temperature_c(path: &Path) -> Option<f64> {
    let roots = Roots::host();
    let names = drives::DriveFacts::behind(&roots, drives::device_number(path).into_iter());
    names.iter().filter_map(|name| drives::temperature_of(&roots, name)).reduce(f64::max)
}

/// Bytes of memory that can be had here and now; None where the system doesn't say.
pub fn memory_free_bytes() -> Option<u64> {
    memory::Memory::gather(&Roots::host()).free_bytes()
}

/// Bytes of the last-level cache that the first processor shares; 32 MiB where the system doesn't say.
pub fn last_level_cache_bytes() -> u64 {
    memory::last_level_cache_bytes(&Roots::host()).unwrap_or(32 << 20)
}

/// The NUMA node of the PCI function with this address; None where the firmware doesn't say.
pub fn numa_node_of(pci: &str) -> Option<u32> {
    pci::pci_numa_node(&Roots::host(), pci).and_then(|node| u32::try_from(node).ok())
}

/// Runs `work` on a thread of its own; None when it isn't done in time. The thread
/// then stays behind, waiting for the kernel, and ends with the process. Where the system refuses that thread, the calling
/// one does the work, in as much time as it takes: what wasn't asked is no answer that is late.
pub fn with_time_limit<T: Send + 'static>(
    limit: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (sender, receiver) = mpsc::channel();
    let work = Arc::new(Mutex::new(Some(work)));
    let take = |work: &Mutex<Option<_>>| work.lock().expect("nothing panics while it has it").take();
    let given = work.clone();
    let spawned = std::thread::Builder::new().name("doctor-probe".into()).spawn(move || {
        let _ = take(&given).map(|work| sender.send(work()));
    });
    match spawned {
        Ok(_) => receiver.recv_timeout(limit).ok(),
        Err(_) => take(&work).map(|work| work()),
    }
}
