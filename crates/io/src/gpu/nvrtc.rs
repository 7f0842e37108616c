//! NVRTC: CUDA C compiled for the device at hand, while the program runs.

use super::cuda::{Device, Module};
use super::library::{self, NVRTC};
use forebay_model::Error;
use libloading::Library;
use std::collections::hash_map::{Entry, HashMap};
use std::ffi::{c_char, c_int, c_void, CStr, CString};
use std::sync::{Arc, Mutex, OnceLock, Weak};

type Program = *mut c_void;
type NvrtcResult = c_int;

/// NVRTC_ERROR_COMPILATION: the log says what is wrong with the source.
const COMPILATION: NvrtcResult = 6;
/// Limit on the part of a compiler's log that an error carries.
const LOG_BYTES_MAX: usize = 4000;

macro_rules! nvrtc_calls {
    ($($name:ident: $symbol:literal ($($arg:ty),*);)*) => {
        struct Calls {
            $($name: unsafe extern "C" fn($($arg),*) -> NvrtcResult,)*
        }
        impl Calls {
            /// # Safety
            /// The library is NVRTC (or has its ABI).
            unsafe fn load(library: &Library) -> Result<Calls, libloading::Error> {
                // SAFETY: the caller's promise; the signatures are nvrtc.h's.
                unsafe { Ok(Calls { $($name: *library.get($symbol)?,)* }) }
            }
        }
    };
}

nvrtc_calls! {
    version: b"nvrtcVersion\0" (*mut c_int, *mut c_int);
    arch_count: b"nvrtcGetNumSupportedArchs\0" (*mut c_int);
    archs: b"nvrtcGetSupportedArchs\0" (*mut c_int);
    create: b"nvrtcCreateProgram\0" (*mut Program, *const c_char, *const c_char, c_int, *const *const c_char,
                                     *const *const c_char);
    compile: b"nvrtcCompileProgram\0" (Program, c_int, *const *const c_char);
    destroy: b"nvrtcDestroyProgram\0" (*mut Program);
    log_bytes: b"nvrtcGetProgramLogSize\0" (Program, *mut usize);
    log: b"nvrtcGetProgramLog\0" (Program, *mut c_char);
    cubin_bytes: b"nvrtcGetCUBINSize\0" (Program, *mut usize);
    cubin: b"nvrtcGetCUBIN\0" (Program, *mut c_char);
    ptx_bytes: b"nvrtcGetPTXSize\0" (Program, *mut usize);
    ptx: b"nvrtcGetPTX\0" (Program, *mut c_char);
}

struct Nvrtc {
    calls: Calls,
    /// nvrtcGetErrorString, which returns no result.
    text: unsafe extern "C" fn(NvrtcResult) -> *const c_char,
    version: (i32, i32),
    found_at: String,
    _library: Library,
}

static COMPILER: OnceLock<Result<Nvrtc, String>> = OnceLock::new();

fn compiler() -> Result<&'static Nvrtc, String> {
    COMPILER.get_or_init(open).as_ref().map_err(Clone::clone)
}

fn open() -> Result<Nvrtc, String> {
    let (library, found_at) = library::load(&NVRTC)?;
    let too_old = |e: libloading::Error| format!("{found_at} is too old: {e}");
    // SAFETY: the library is NVRTC.
    let calls = unsafe { Calls::load(&library) }.map_err(too_old)?;
    // SAFETY: as above; nvrtc.h declares it so.
    let text = unsafe { library.get(b"nvrtcGetErrorString\0").map(|symbol| *symbol) }.map_err(too_old)?;
    let mut nvrtc = Nvrtc { calls, text, version: (0, 0), found_at, _library: library };
    let (mut major, mut minor) = (0, 0);
    // SAFETY: fills locals.
    nvrtc.check(unsafe { (nvrtc.calls.version)(&mut major, &mut minor) })?;
    nvrtc.version = (major, minor);
    Ok(nvrtc)
}

/// `13.0 from FILE`, or why there is none.
pub fn find_nvrtc() -> Result<String, String> {
    compiler().map(|n| format!("{}.{} from {}", n.version.0, n.version.1, n.found_at))
}

/// Code that a device can load: machine code for it, or PTX that its driver compiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Target {
    Cubin(i32),
    Ptx(i32),
}

/// `capability` as 90 for sm_90. A device newer than the compiler gets PTX of the newest that it knows.
fn target_for(capability: i32, supported: &[i32]) -> Option<Target> {
    if supported.contains(&capability) {
        return Some(Target::Cubin(capability));
    }
    supported.iter().copied().filter(|arch| *arch < capability).max().map(Target::Ptx)
}

impl Nvrtc {
    /// The one decoder of nvrtcResult.
    fn check(&self, result: NvrtcResult) -> Result<(), String> {
        if result == 0 {
            return Ok(());
        }
        // SAFETY: NVRTC gives a static string for any number.
        let text = unsafe {
            let at = (self.text)(result);
            (!at.is_null()).then(|| CStr::from_ptr(at).to_string_lossy().into_owned())
        };
        Err(format!("{} ({result})", text.unwrap_or_else(|| "NVRTC error".into())))
    }

    fn supported(&self) -> Result<Vec<i32>, String> {
        let mut count = 0;
        // SAFETY: fills a local.
        self.check(unsafe { (self.calls.arch_count)(&mut count) })?;
        let mut archs = vec![0; count.clamp(0, 1024) as usize];
        if count as usize != archs.len() {
            return Err(format!("NVRTC says that it supports {count} architectures"));
        }
        // SAFETY: it fills as many as it has just said.
        self.check(unsafe { (self.calls.archs)(archs.as_mut_ptr()) })?;
        Ok(archs)
    }

    fn compile(&self, name: &str, source: &str, target: Target) -> Result<Vec<u8>, String> {
        let (name, source) = (c_text(name)?, c_text(source)?);
        let mut raw = std::ptr::null_mut();
        // SAFETY: fills a local; both texts end with a zero and are copied.
        self.check(unsafe {
            (self.calls.create)(
                &mut raw,
                source.as_ptr(),
                name.as_ptr(),
                0,
                std::ptr::null(),
                std::ptr::null(),
            )
        })?;
        let program = Compiling { nvrtc: self, raw };
        program.build(target)?;
        program.image(target)
    }
}

fn c_text(text: &str) -> Result<CString, String> {
    CString::new(text).map_err(|_| "a source holds no zero byte".into())
}

/// A program, destroyed when dropped.
struct Compiling<'a> {
    nvrtc: &'a Nvrtc,
    raw: Program,
}

impl Compiling<'_> {
    fn build(&self, target: Target) -> Result<(), String> {
        let arch = match target {
            Target::Cubin(arch) => format!("-arch=sm_{arch}"),
            Target::Ptx(arch) => format!("-arch=compute_{arch}"),
        };
        let options = [c_text(&arch)?];
        let options: Vec<_> = options.iter().map(|o| o.as_ptr()).collect();
        // SAFETY: a live program; the options are as many as said, and end with zeroes.
        let result =
            unsafe { (self.nvrtc.calls.compile)(self.raw, options.len() as c_int, options.as_ptr()) };
        self.nvrtc.check(result).map_err(|why| match result {
            COMPILATION => format!("{why} for {arch}: {}", self.log()),
            _ => format!("{why} for {arch}"),
        })
    }

    /// Returns the compiler's log.
    fn log(&self) -> String {
        let calls = &self.nvrtc.calls;
        let Ok(mut bytes) = self.read(calls.log_bytes, calls.log) else { return "no log".into() };
        bytes.retain(|b| *b != 0);
        bytes.truncate(LOG_BYTES_MAX);
        String::from_utf8_lossy(&bytes).trim().into()
    }

    fn image(&self, target: Target) -> Result<Vec<u8>, String> {
        let calls = &self.nvrtc.calls;
        match target {
            Target::Cubin(_) => self.read(calls.cubin_bytes, calls.cubin),
            Target::Ptx(_) => self.read(calls.ptx_bytes, calls.ptx),
        }
    }

    fn read(
        &self,
        bytes_of: unsafe extern "C" fn(Program, *mut usize) -> NvrtcResult,
        read: unsafe extern "C" fn(Program, *mut c_char) -> NvrtcResult,
    ) -> Result<Vec<u8>, String> {
        let mut bytes = 0;
        // SAFETY: a live program; fills a local.
        self.nvrtc.check(unsafe { bytes_of(self.raw, &mut bytes) })?;
        let mut image = vec![0u8; bytes];
        // SAFETY: it fills as many bytes as it has just said.
        self.nvrtc.check(unsafe { read(self.raw, image.as_mut_ptr().cast()) })?;
        Ok(image)
    }
}

impl Drop for Compiling<'_> {
    fn drop(&mut self) {
        // SAFETY: created by `compile`, destroyed once.
        unsafe { (self.nvrtc.calls.destroy)(&mut self.raw) };
    }
}

/// Compiled code, by target and name, kept for good; and loaded code, by device and name, kept while in use.
#[derive(Default)]
struct Built {
    images: HashMap<(Target, &'static str), Vec<u8>>,
    modules: HashMap<(u32, &'static str), Weak<Module>>,
}

static BUILT: OnceLock<Mutex<Built>> = OnceLock::new();

/// CUDA C on a device: compiled the first time that it is asked for. `name` stands for `source` from then on.
pub(crate) fn module(device: &Arc<Device>, name: &'static str, source: &str) -> Result<Arc<Module>, Error> {
    let asked = || format!("kernel {name} on GPU {}", device.index());
    let compiler = compiler().map_err(|why| {
        let next = "pip install nvidia-cuda-nvrtc, or a CUDA toolkit; FOREBAY_LIBNVRTC=FILE names another";
        Error::machine(asked(), format!("NVRTC, which compiles it, can't be loaded: {why}"), next)
    })?;
    // Held while compiling, so that the other workers wait for the first instead of compiling too.
    let mut built = BUILT.get_or_init(Mutex::default).lock().unwrap_or_else(|e| e.into_inner());
    if let Some(module) = built.modules.get(&(device.index(), name)).and_then(Weak::upgrade) {
        return Ok(module);
    }
    let module = built.load(compiler, device, name, source);
    module.map_err(|why| Error::machine(asked(), why, "a CUDA toolkit as new as the GPU; forebay doctor"))
}

impl Built {
    fn load(
        &mut self,
        nvrtc: &Nvrtc,
        device: &Arc<Device>,
        name: &'static str,
        source: &str,
    ) -> Result<Arc<Module>, String> {
        let (major, minor) = device.compute_capability()?;
        let supported = nvrtc.supported()?;
        let target = target_for(major * 10 + minor, &supported).ok_or_else(|| {
            let (major_of, minor_of) = nvrtc.version;
            let least = supported.iter().min().unwrap_or(&0);
            format!(
                "NVRTC {major_of}.{minor_of} compiles for sm_{least} at least, the GPU is sm_{major}{minor}"
            )
        })?;
        let image = match self.images.entry((target, name)) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert(nvrtc.compile(name, source, target)?),
        };
        let module = Module::load(device, image)?;
        self.modules.insert((device.index(), name), Arc::downgrade(&module));
        Ok(module)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_gets_its_own_code_or_the_newest_ptx_that_it_understands() {
        let supported = [75, 80, 86, 89, 90, 100];
        assert_eq!(target_for(90, &supported), Some(Target::Cubin(90)));
        assert_eq!(target_for(121, &supported), Some(Target::Ptx(100)));
        assert_eq!(target_for(87, &supported), Some(Target::Ptx(86)));
        assert_eq!(target_for(70, &supported), None);
    }
}
