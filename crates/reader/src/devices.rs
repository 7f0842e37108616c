//! The GPUs of the process.

use forebay_io::{cuda_devices, CudaDevice};
use forebay_model::Error;
use std::sync::{Arc, Mutex};

/// A GPU, opened once for the process.
pub fn device(gpu: u32) -> Result<Arc<CudaDevice>, Error> {
    static DEVICES: Mutex<Vec<Arc<CudaDevice>>> = Mutex::new(Vec::new());
    let mut devices = DEVICES.lock().expect("no holder panics");
    if let Some(device) = devices.iter().find(|d| d.index() == gpu) {
        return Ok(device.clone());
    }
    let device = CudaDevice::open(gpu).map_err(|e| {
        let next = e.next.replace("‹path› host", "path=\"host\"");
        Error { asked: format!("GPU {gpu}"), next, ..e }
    })?;
    devices.push(device.clone());
    Ok(device)
}

/// The GPU that an address belongs to; None where CUDA doesn't know it.
pub fn device_of(address: u64) -> Result<Option<u32>, Error> {
    let (count, why) = cuda_devices();
    if count == 0 {
        let why = why.unwrap_or_else(|| "there is none".into());
        return Err(Error::machine("memory of a GPU", why, "forebay doctor; host memory needs no GPU"));
    }
    let device = device(0)?;
    device.enter().map_err(|why| {
        Error::run("memory of a GPU", why.to_string(), "a new process, started with the spawn method")
    })?;
    Ok(device.owner_of(address))
}
