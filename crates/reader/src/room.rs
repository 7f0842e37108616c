//! Memory of GPUs that pages pass through, kept from one request to the next.

use forebay_io::{Cuda, CudaDevice, DeviceMemory};
use std::sync::{Arc, Mutex};

/// Rooms that are kept for the next request: taking and freeing memory of a GPU waits for the GPU.
const SPARE_MAX: usize = 2;

static SPARE: Mutex<Vec<DeviceMemory>> = Mutex::new(Vec::new());

/// Memory of a GPU in which runs of the file arrive, before its kernel takes their pages to their places.
pub(crate) struct Room(Option<DeviceMemory>);

impl Room {
    pub(crate) fn take(device: &Arc<CudaDevice>, bytes: usize) -> Cuda<Room> {
        let fits =
            |memory: &DeviceMemory| memory.device().index() == device.index() && memory.bytes() >= bytes;
        let spare = {
            let mut spare = SPARE.lock().expect("no holder panics");
            spare.iter().position(fits).map(|at| spare.swap_remove(at))
        };
        spare.map_or_else(|| device.allocate(bytes), Ok).map(|memory| Room(Some(memory)))
    }

    pub(crate) fn holds(&self, device: &CudaDevice, bytes: usize) -> bool {
        self.0
            .as_ref()
            .is_some_and(|memory| memory.device().index() == device.index() && memory.bytes() >= bytes)
    }

    pub(crate) fn address(&self) -> u64 {
        self.0.as_ref().expect("until it is dropped").address()
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let mut spare = SPARE.lock().expect("no holder panics");
        if spare.len() < SPARE_MAX {
            spare.extend(self.0.take());
        }
    }
}

/// Frees what is kept for the next request.
pub(crate) fn release() {
    SPARE.lock().expect("no holder panics").clear();
}
