//! Relays of the process, while no worker uses them.

use super::windows::Windows;
use super::{RELAYS_MAX, SLOT_BYTES};
use forebay_io::{CudaDevice, PerProcess, Relay, RelayMemory};
use forebay_model::Error;
use std::sync::{Arc, Mutex, MutexGuard};

type Kept = Option<(u32, Vec<Relay>)>;

/// To the GPU of this number. Threads don't survive a fork, and neither do relays.
static KEPT: PerProcess<Mutex<Kept>> = PerProcess::new();

fn kept() -> MutexGuard<'static, Kept> {
    KEPT.lock().expect("no holder panics")
}

/// Gives them back to the driver.
pub(super) fn release() {
    drop(kept().take());
}

/// Relays to a GPU, for the calling worker until `keep`. Those that aren't there yet are opened in a turn with the driver,
/// which would otherwise keep each call waiting for a registration; their memory is got before that, while it registers.
pub(super) fn take(device: &Arc<CudaDevice>, windows: &Windows) -> Result<Vec<Relay>, Error> {
    let before = kept().take();
    let relays = match before {
        Some((gpu, relays)) if gpu == device.index() => relays,
        _ => {
            let memory = RelayMemory::allocate(Relay::useful().min(RELAYS_MAX), SLOT_BYTES)?;
            windows.turn(|| memory.into_iter().map(|m| Relay::open(device, m)).collect::<Result<_, _>>())?
        }
    };
    relays.iter().for_each(Relay::belongs_here);
    Ok(relays)
}

/// Relays to the GPU of this number, with nothing under way, for the next worker that needs some.
pub(super) fn keep(gpu: u32, relays: Vec<Relay>) {
    let whole = !relays.iter().any(Relay::is_broken);
    // What was there before is dropped behind the lock.
    let _before = std::mem::replace(&mut *kept(), whole.then_some((gpu, relays)));
}
