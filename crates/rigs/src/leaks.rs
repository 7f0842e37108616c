//! What a process holds: a test compares it before and after.

use forebay_io::CudaDevice;
use std::fmt::Debug;

/// Resources that a process may leak: open descriptors, mappings, threads, GPU memory.
#[derive(Debug)]
pub struct ProcessResources {
    descriptors: Vec<String>,
    threads: usize,
    gpu_bytes_used: u64,
    locked_kib: u64,
}

/// What this process holds now; GPU memory is that of the first GPU.
pub fn held() -> ProcessResources {
    let count = |dir: &str| std::fs::read_dir(dir).unwrap().count();
    let (free, total) = CudaDevice::open(0).unwrap().memory_info().unwrap();
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let locked = status.lines().find_map(|l| l.strip_prefix("VmLck:")).unwrap();
    let open = std::fs::read_dir("/proc/self/fd").unwrap().map(|fd| std::fs::read_link(fd.unwrap().path()));
    let mut descriptors: Vec<String> = open.flatten().map(|to| to.to_string_lossy().into_owned()).collect();
    descriptors.sort();
    ProcessResources {
        descriptors,
        threads: count("/proc/self/task"),
        gpu_bytes_used: total - free,
        locked_kib: locked.trim().trim_end_matches(" kB").parse().unwrap(),
    }
}

impl ProcessResources {
    /// The driver's own threads and memory come and go: fewer than before is no leak.
    fn is_within(&self, before: &ProcessResources) -> bool {
        self.descriptors.len() <= before.descriptors.len()
            && self.threads <= before.threads
            && self.gpu_bytes_used <= before.gpu_bytes_used
            && self.locked_kib <= before.locked_kib
    }
}

/// Threads end a moment after what they did, and on a real GPU other tests hold memory meanwhile.
pub fn assert_no_more_than(first: &ProcessResources, what: impl Debug) {
    let mut now = held();
    for _ in 0..3000 {
        if now.is_within(first) {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
        now = held();
    }
    panic!("{what:?}: {now:?} after, {first:?} before");
}
