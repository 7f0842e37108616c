//! NVML by dlopen: a GPU's name, memory, window and power. Absent, it says so.

#![allow(unsafe_code, reason = "calls into libnvidia-ml")]

use libloading::{Library, Symbol};
use serde::Serialize;
use std::ffi::{c_char, c_int, c_uint, c_void, CStr};
use std::sync::{Mutex, PoisonError};

#[derive(Clone, Debug, Default, Serialize)]
pub struct Nvml {
    /// Why it can't be used; null where it can.
    pub refused: Option<String>,
    pub driver: Option<String>,
    #[serde(skip)]
    pub devices: Vec<Device>,
}

#[derive(Clone, Debug, Default)]
pub struct Device {
    pub index: u32,
    pub name: String,
    pub pci: String,
    pub memory_bytes: Option<u64>,
    pub bar1_bytes: Option<u64>,
    pub watts: Option<f64>,
}

const DEVICES_MAX: c_uint = 64;
type Handle = *mut c_void;
type Code = c_int;

// The calls, as nvml.h declares them, and what each asks of its caller.

/// SAFETY: none.
type Plain = unsafe extern "C" fn() -> Code;
/// SAFETY: the buffer has the length that is passed.
type SystemText = unsafe extern "C" fn(*mut c_char, c_uint) -> Code;
/// SAFETY: the number is writable.
type Count = unsafe extern "C" fn(*mut c_uint) -> Code;
/// SAFETY: the handle is writable; what it gets lives as long as the library.
type ByIndex = unsafe extern "C" fn(c_uint, *mut Handle) -> Code;
/// SAFETY: a live handle; the buffer has the length that is passed.
type DeviceText = unsafe extern "C" fn(Handle, *mut c_char, c_uint) -> Code;
/// SAFETY: a live handle; the structure is laid out as in nvml.h.
type DevicePci = unsafe extern "C" fn(Handle, *mut PciInfo) -> Code;
/// SAFETY: a live handle; the call fills a structure of three 64-bit numbers.
type DeviceThree = unsafe extern "C" fn(Handle, *mut Three) -> Code;
/// SAFETY: a live handle; the number is writable.
type DeviceNumber = unsafe extern "C" fn(Handle, *mut c_uint) -> Code;

/// nvmlMemory_t: total, free, used. nvmlBAR1Memory_t: total, free, used.
type Three = [u64; 3];

/// nvmlPciInfo_t (nvml.h, version 3 of the call).
#[repr(C)]
struct PciInfo {
    bus_id_legacy: [c_char; 16],
    numbers: [c_uint; 5],
    bus_id: [c_char; 32],
}

fn load(names: &[&str]) -> Result<Library, String> {
    let mut refused = String::new();
    for name in names {
        // SAFETY: NVIDIA's driver libraries run no initialiser that depends on our state.
        match unsafe { Library::new(name) } {
            Ok(library) => return Ok(library),
            Err(error) => refused = error.to_string(),
        }
    }
    Err(refused)
}

pub(crate) fn read() -> Nvml {
    let read = opened()
        .and_then(|library| Ok(Nvml { refused: None, driver: driver(library), devices: devices(library)? }));
    read.unwrap_or_else(|refused| Nvml { refused: Some(refused), ..Nvml::default() })
}

/// The library after its nvmlInit, once for the process: an nvmlInit talks to every GPU, and whatever an nvmlShutdown
/// doesn't give back would add up with each run.
fn opened() -> Result<&'static Library, String> {
    static OPENED: Mutex<Option<&'static Library>> = Mutex::new(None);
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(library) = *opened {
        return Ok(library);
    }
    let library = load(&["libnvidia-ml.so.1", "libnvidia-ml.so"])?;
    let init: Symbol<Plain> = symbol(&library, b"nvmlInit_v2\0")?;
    // SAFETY: declared as in nvml.h; may be called at any time.
    match unsafe { init() } {
        0 => Ok(opened.insert(Box::leak(Box::new(library)))),
        code => Err(format!("nvmlInit answers {code}{}", init_words(code))),
    }
}

/// nvmlReturn_t.
fn init_words(code: Code) -> &'static str {
    match code {
        4 => " (no permission)",
        9 => " (driver not loaded)",
        12 => " (library not found)",
        18 => " (library and driver versions differ: restart, or update the container's driver libraries)",
        _ => "",
    }
}

fn symbol<'a, T>(library: &'a Library, name: &[u8]) -> Result<Symbol<'a, T>, String> {
    // SAFETY: each caller gives the type that nvml.h declares for `name`.
    unsafe { library.get(name) }.map_err(|e| e.to_string())
}

fn driver(library: &Library) -> Option<String> {
    let version: Symbol<SystemText> = symbol(library, b"nvmlSystemGetDriverVersion\0").ok()?;
    let mut text = [0 as c_char; 96];
    // SAFETY: the buffer has the length that is passed.
    (unsafe { version(text.as_mut_ptr(), text.len() as c_uint) } == 0).then(|| words(&text)).flatten()
}

fn devices(library: &Library) -> Result<Vec<Device>, String> {
    let count: Symbol<Count> = symbol(library, b"nvmlDeviceGetCount_v2\0")?;
    let handle: Symbol<ByIndex> = symbol(library, b"nvmlDeviceGetHandleByIndex_v2\0")?;
    let mut number = 0;
    // SAFETY: writes one unsigned integer.
    if unsafe { count(&mut number) } != 0 {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    for index in 0..number.min(DEVICES_MAX) {
        let mut device: Handle = std::ptr::null_mut();
        // SAFETY: writes one handle.
        if unsafe { handle(index, &mut device) } == 0 {
            found.extend(describe(library, index, device));
        }
    }
    Ok(found)
}

fn describe(library: &Library, index: u32, device: Handle) -> Option<Device> {
    let name: Symbol<DeviceText> = symbol(library, b"nvmlDeviceGetName\0").ok()?;
    let pci: Symbol<DevicePci> = symbol(library, b"nvmlDeviceGetPciInfo_v3\0").ok()?;
    let mut text = [0 as c_char; 96];
    let mut info = PciInfo { bus_id_legacy: [0; 16], numbers: [0; 5], bus_id: [0; 32] };
    // SAFETY: the buffer has the length that is passed; PciInfo is laid out as in nvml.h.
    let codes = unsafe { (name(device, text.as_mut_ptr(), text.len() as c_uint), pci(device, &mut info)) };
    if codes != (0, 0) {
        return None;
    }
    Some(Device {
        index,
        name: words(&text)?,
        pci: short_address(&words(&info.bus_id)?),
        memory_bytes: three(library, b"nvmlDeviceGetMemoryInfo\0", device),
        bar1_bytes: three(library, b"nvmlDeviceGetBAR1MemoryInfo\0", device),
        watts: watts(library, device),
    })
}

/// The total of one of the calls that fill three 64-bit numbers.
fn three(library: &Library, name: &[u8], device: Handle) -> Option<u64> {
    let call: Symbol<DeviceThree> = symbol(library, name).ok()?;
    let mut memory: Three = [0; 3];
    // SAFETY: both structures are three unsigned 64-bit numbers.
    (unsafe { call(device, &mut memory) } == 0).then_some(memory[0])
}

fn watts(library: &Library, device: Handle) -> Option<f64> {
    let call: Symbol<DeviceNumber> = symbol(library, b"nvmlDeviceGetPowerUsage\0").ok()?;
    let mut milliwatts = 0;
    // SAFETY: writes one unsigned integer.
    (unsafe { call(device, &mut milliwatts) } == 0).then(|| f64::from(milliwatts) / 1000.0)
}

fn words(text: &[c_char]) -> Option<String> {
    let bytes: Vec<u8> = text.iter().map(|c| *c as u8).collect();
    let text = CStr::from_bytes_until_nul(&bytes).ok()?.to_str().ok()?.trim();
    (!text.is_empty()).then(|| text.to_string())
}

/// NVML writes the domain with eight digits, `00000000:3B:00.0`; sysfs with four.
pub(crate) fn short_address(bus_id: &str) -> String {
    let lower = bus_id.to_lowercase();
    match lower.split_once(':') {
        Some((domain, rest)) if domain.len() == 8 && domain.starts_with("0000") => {
            format!("{}:{rest}", &domain[4..])
        }
        _ => lower,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_as_sysfs_writes_them() {
        assert_eq!(short_address("00000000:3B:00.0"), "0000:3b:00.0");
        assert_eq!(short_address("00010000:3B:00.0"), "00010000:3b:00.0");
        assert_eq!(short_address("é"), "é");
    }

    #[test]
    fn a_machine_without_the_library_is_told_so() {
        assert!(load(&["libforebay-no-such-library.so"]).unwrap_err().contains("libforebay-no-such-library"));
    }
}
