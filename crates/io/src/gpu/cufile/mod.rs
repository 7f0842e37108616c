//! libcufile, wrapped: the driver and its properties, files and buffers known to
//! it, its three kinds of I/O, and its counters. Found by dlopen; what an older
//! library lacks is an explained error, or null.

mod calls;
mod error;
mod io;
mod stats;

pub use error::CuFileError;
pub use io::{Batch, BatchIo, Buffer, Event, FileHandle, StreamIo};
pub use stats::Stats;

use calls::{Calls, DriverProperties};
use forebay_model::record::CufileProperties;
use libloading::Library;
use std::ffi::c_int;
use std::sync::{Mutex, OnceLock};

pub(crate) type Cu<T> = Result<T, CuFileError>;

/// Numbers of CUFileBoolConfigParameter_t.
const ALLOW_COMPAT_MODE: c_int = 1;
const FORCE_COMPAT_MODE: c_int = 2;
const USE_PCI_P2PDMA: c_int = 7;

/// Bits of dstatusflags, as names.
const SUPPORTS: [(u32, &str); 11] = [
    (0, "lustre"),
    (1, "wekafs"),
    (2, "nfs"),
    (3, "gpfs"),
    (4, "nvme"),
    (5, "nvmeof"),
    (6, "scsi"),
    (7, "scaleflux"),
    (8, "nvmesh"),
    (9, "beegfs"),
    (11, "nvme-p2p"),
];

/// The library, loaded.
pub struct CuFile {
    calls: Calls,
    /// The file that it was loaded from.
    pub library: String,
    opened: Mutex<Opened>,
    _library: Library,
}

/// The driver's state: one per process, whoever uses it.
#[derive(Default)]
struct Opened {
    users: u32,
    is_open: bool,
    /// Compatibility mode was switched off when it was opened.
    forbidden: bool,
    /// Setting of cufile.json and the environment, once it was switched off over their head.
    configured: Option<bool>,
}

static CUFILE: OnceLock<Result<CuFile, String>> = OnceLock::new();

/// The library, or why there is none.
pub fn cufile() -> Result<&'static CuFile, String> {
    CUFILE.get_or_init(load).as_ref().map_err(Clone::clone)
}

fn load() -> Result<CuFile, String> {
    let (loaded, library) =
        super::library::load(&super::library::CUFILE).map_err(|e| format!("no libcufile: {e}"))?;
    // SAFETY: the library is libcufile.
    let calls = unsafe { Calls::load(&loaded) }.map_err(|e| format!("libcufile is too old: {e}"))?;
    Ok(CuFile { calls, library, opened: Mutex::default(), _library: loaded })
}

/// libcufile's own end of the process crashes over a driver that is still open. Handlers run in the reverse order
/// of their registration, so this one, registered after the library was loaded, comes before the library's.
fn close_at_exit() {
    extern "C" fn close() {
        let Some(Ok(cufile)) = CUFILE.get() else { return };
        // A thread that died with the lock leaves nothing to save here.
        if let Ok(mut opened) = cufile.opened.try_lock() {
            if std::mem::take(&mut opened.is_open) {
                cufile.close();
            }
        }
    }
    static ONCE: std::sync::Once = std::sync::Once::new();
    // SAFETY: a function without arguments, which is there as long as the process.
    ONCE.call_once(|| unsafe {
        libc::atexit(close);
    });
}

impl CuFile {
    /// As 1.15; None where the library doesn't tell.
    pub fn version(&self) -> Option<String> {
        let mut number = 0;
        // SAFETY: fills a local.
        let status = unsafe { (self.calls.version?)(&mut number) };
        (error::check("cuFileGetVersion", status).is_ok() && number > 0)
            .then(|| format!("{}.{}", number / 1000, number % 1000 / 10))
    }

    /// Opens the driver, or joins those who use it. `compat` false: cuFile is told to fail rather than to fall back,
    /// where it has the switch (1.14 and later). It stays open for the process: opening takes up to seconds.
    ///
    /// A CUDA context must be current.
    pub fn open(&'static self, compat: bool) -> Cu<Driver> {
        let mut opened = self.opened.lock().expect("no thread panics while it holds the state");
        if opened.is_open && opened.forbidden == compat {
            if opened.users > 0 {
                return Err(CuFileError::new(
                    "cuFileDriverOpen: another run in this process uses cuFile with the other setting of compatibility mode",
                ));
            }
            self.close();
            opened.is_open = false;
        }
        if !opened.is_open {
            let forbidden = self.set_compat(compat, &mut opened.configured);
            stats::set_level(&self.calls);
            // SAFETY: no arguments.
            match error::check("cuFileDriverOpen", unsafe { (self.calls.driver_open)() }) {
                // Another library of this process opened it, with settings of its own.
                Err(e) if e.code == error::DRIVER_ALREADY_OPEN => opened.forbidden = false,
                Err(e) => return Err(e),
                Ok(()) => opened.forbidden = forbidden,
            }
            opened.is_open = true;
            stats::start(&self.calls);
            close_at_exit();
        }
        opened.users += 1;
        Ok(Driver { cufile: self })
    }

    /// Switches compatibility mode off, or back to what is configured; true where it is off now by our doing.
    fn set_compat(&self, compat: bool, configured: &mut Option<bool>) -> bool {
        if !compat {
            *configured = configured.or_else(|| self.bool(ALLOW_COMPAT_MODE));
            return self.set_bool(ALLOW_COMPAT_MODE, false);
        }
        if let Some(value) = *configured {
            self.set_bool(ALLOW_COMPAT_MODE, value);
        }
        false
    }

    fn close(&self) {
        if let Some(close) = self.calls.driver_close.or(self.calls.driver_close_v1) {
            // SAFETY: nobody uses the driver: the count says so.
            unsafe { close() };
        }
    }

    fn set_bool(&self, parameter: c_int, value: bool) -> bool {
        // SAFETY: plain values.
        self.calls.set_bool.is_some_and(|set| unsafe { set(parameter, value) }.code == 0)
    }

    fn bool(&self, parameter: c_int) -> Option<bool> {
        let mut value = 0u8;
        // SAFETY: fills a byte, which is what C's bool is.
        let status = unsafe { (self.calls.get_bool?)(parameter, &mut value) };
        (status.code == 0).then_some(value != 0)
    }

    fn missing(&self, call: &str) -> CuFileError {
        let version = self.version().map_or_else(String::new, |v| format!(" {v}"));
        CuFileError::new(format!("{call}: {}{version} hasn't got it", self.library))
    }
}

/// The driver, open for as long as this is.
pub struct Driver {
    cufile: &'static CuFile,
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.cufile.opened.lock().expect("no thread panics while it holds the state").users -= 1;
    }
}

impl Driver {
    pub fn cufile(&self) -> &'static CuFile {
        self.cufile
    }

    /// cuFile was told to fail rather than to fall back.
    pub fn forbids_compat(&self) -> bool {
        self.cufile.opened.lock().expect("no thread panics while it holds the state").forbidden
    }

    /// Returns whether cuFile allows compatibility mode; None where it can't be asked (before 1.14).
    pub fn allows_compat(&self) -> Option<bool> {
        let force = self.cufile.bool(FORCE_COMPAT_MODE);
        self.cufile.bool(ALLOW_COMPAT_MODE).map(|allow| allow || force == Some(true))
    }

    pub fn forces_compat(&self) -> Option<bool> {
        self.cufile.bool(FORCE_COMPAT_MODE)
    }

    pub fn uses_p2pdma(&self) -> Option<bool> {
        self.cufile.bool(USE_PCI_P2PDMA)
    }

    pub fn properties(&self) -> Cu<CufileProperties> {
        // Room for a structure that a newer library has made longer.
        #[repr(C)]
        struct Roomy(DriverProperties, [u64; 64]);
        let mut reported = Roomy(DriverProperties::default(), [0; 64]);
        // SAFETY: fills the structure.
        let status = unsafe { (self.cufile.calls.driver_properties)(&mut reported.0) };
        error::check("cuFileDriverGetProperties", status)?;
        let p = reported.0;
        Ok(CufileProperties {
            nvidia_fs: format!("{}.{}", p.major, p.minor),
            direct: SUPPORTS
                .iter()
                .filter(|(bit, _)| p.supports >> bit & 1 == 1)
                .map(|(_, name)| (*name).to_string())
                .collect(),
            poll_mode: p.controls & 1 == 1,
            poll_threshold_kib: p.poll_threshold_kib as u64,
            direct_io_max_kib: p.direct_io_max_kib as u64,
            device_cache_max_kib: u64::from(p.device_cache_max_kib),
            buffer_cache_kib: u64::from(p.buffer_cache_kib),
            pinned_max_kib: u64::from(p.pinned_max_kib),
            batch_max: p.batch_max,
            batch_timeout_ms: p.batch_timeout_ms,
        })
    }

    /// (bytes, count) of the host buffers that compatibility mode stages through, smallest first.
    pub fn posix_slabs(&self) -> Vec<(u64, u64)> {
        // As in the cufile.json that CUDA installs, by the smallest counts that were seen.
        const USUAL: [(u64, u64); 3] = [(4 << 10, 128), (1 << 20, 64), (16 << 20, 32)];
        const SLABS_MAX: usize = 16;
        let Some(get) = self.cufile.calls.get_slabs else { return USUAL.to_vec() };
        for len in [3].into_iter().chain((1..=SLABS_MAX).filter(|n| *n != 3)) {
            let (mut kib, mut count) = ([0usize; SLABS_MAX], [0usize; SLABS_MAX]);
            // SAFETY: both hold `len` numbers; a wrong `len` is an error, and nothing is written.
            let status = unsafe { get(kib.as_mut_ptr(), count.as_mut_ptr(), len as c_int) };
            if status.code == 0 && count[0] > 0 {
                let pairs = kib.iter().zip(count).take(len);
                return pairs.map(|(kib, n)| (*kib as u64 * 1024, n as u64)).collect();
            }
        }
        USUAL.to_vec()
    }
}
