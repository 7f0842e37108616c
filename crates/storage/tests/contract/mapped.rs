//! The mapped path as a worker opens it: with a GPU where the test has one, else
//! with the host in its part.

use super::arena::Slots;
use forebay_io::{CudaDevice, CudaError};
use forebay_storage::{
    DataPath, DevicePinner, Ends, MappedLimits, MappedRegistry, MemoryPin, MemoryPinner, Target,
};
use std::ptr::NonNull;
use std::sync::Arc;

/// Lets the host play the GPU that reads registered pages.
struct HostPinner;

struct HostPin;

impl MemoryPin for HostPin {}

impl MemoryPinner for HostPinner {
    fn pin(&self, _: NonNull<u8>, bytes: usize) -> Result<Box<dyn MemoryPin>, CudaError> {
        assert_eq!(bytes % 4096, 0, "whole pages");
        Ok(Box::new(HostPin))
    }
}

/// Shorter than an I/O, so that it lies in several.
const WINDOW: u64 = 12 << 10;

/// Registrations under a cap that the larger files are beyond.
pub fn registry(device: Option<&Arc<CudaDevice>>) -> Arc<MappedRegistry> {
    let limits = MappedLimits { cap_bytes: 6 * WINDOW, window_bytes: WINDOW, least_bytes: 1, relays: 0 };
    let pinner: Box<dyn MemoryPinner> = match device {
        Some(device) => Box::new(DevicePinner(device.clone())),
        None => Box::new(HostPinner),
    };
    Arc::new(MappedRegistry::new(pinner, limits).unwrap())
}

/// The path's own slots: as many as it says, but where it would have a few of its own number too few and too short
/// for what goes another way.
pub fn beside(path: &dyn DataPath, depth: u32, io_bytes: usize) -> Option<Slots> {
    let own = path.beside(depth, io_bytes as u64, path.ends() != Ends::Host)?;
    match own.count == depth {
        true => Some(Slots::new(own.count as usize, own.bytes_each as usize)),
        false => Some(Slots::new(2, 8192)),
    }
}

/// Returns whether every file below is opened as the path reads it: from the page cache, past it, or either.
pub fn is_opened_for(path: &dyn DataPath, target: &Target) -> bool {
    path.cached() != Some(true) || target.files().iter().all(|(file, _)| !file.direct)
}
