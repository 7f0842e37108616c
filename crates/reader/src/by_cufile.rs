//! Reading into a GPU's memory through cuFile: what a loader's files share, and what cuFile knows of each.

#![allow(unsafe_code, reason = "handing cuFile memory that Python lends, by address")]

use forebay_io::{CuFileBuffer, CudaDevice, CudaEvent, DeviceMemory, Mem, Via};
use forebay_model::job::{Engine, JobSpec, PathKind};
use forebay_model::record::{Cufile, PathRan};
use forebay_model::Error;
use forebay_storage::{judge_cufile, CuFileSession, DirectBase, FileTarget, GdsFile, OpenFileSource, Target};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// Read of the look beforehand, from each device once.
const LOOK_BYTES: u64 = 1 << 20;

/// The driver, its counters, and the batches' memory that it knows: for all files of a loader.
pub(crate) struct ByCufile {
    session: Arc<CuFileSession>,
    device: Arc<CudaDevice>,
    known: DirectBase,
}

impl ByCufile {
    /// Opens the driver. Where cuFile falls back to its compatibility mode it may, and the record says so.
    pub(crate) fn open(device: &Arc<CudaDevice>) -> Result<Arc<ByCufile>, Error> {
        let job =
            JobSpec { path: PathKind::Gds, io_bytes: LOOK_BYTES, allow_compat: true, ..JobSpec::default() };
        let session = CuFileSession::open(&job, device).map_err(in_python)?;
        Ok(Arc::new(ByCufile { session, device: device.clone(), known: DirectBase::default() }))
    }

    /// Makes a file known to cuFile, and reads once from its device to see how that goes.
    pub(crate) fn know(self: &Arc<Self>, target: &FileTarget) -> Result<KnownFile, Error> {
        let source = OpenFileSource { target: target.clone(), engine: Engine::Inline };
        let whole = Target::new(target.path.display().to_string(), target.bytes, source);
        self.session.attach(&whole, &self.device).map_err(in_python)?;
        let file = self.session.file(target).map_err(in_python)?;
        Ok(KnownFile { file, target: target.clone(), by: self.clone() })
    }

    /// Makes a batch's memory known; None where cuFile has no room for it, and reads by memory of its own.
    pub(crate) fn register(&self, memory: &DeviceMemory) -> Option<CuFileBuffer> {
        match self.session.driver().register_buffer(memory) {
            Ok(buffer) => {
                self.known.add(memory.address(), memory.bytes() as u64);
                Some(buffer)
            }
            Err(why) => {
                self.session.stays_unregistered(&why);
                None
            }
        }
    }

    /// From here on its counters count.
    pub(crate) fn begin(&self) {
        self.session.begin();
    }

    /// Calls bytes what cuFile's counters say of them.
    pub(crate) fn judge(&self, path: &mut PathRan, missing: &mut BTreeMap<String, String>) -> Cufile {
        judge_cufile(&self.session, path.direct_bytes, true, path, missing).0
    }
}

/// A file that cuFile knows, until this is dropped.
pub(crate) struct KnownFile {
    file: GdsFile,
    target: FileTarget,
    by: Arc<ByCufile>,
}

impl Drop for KnownFile {
    fn drop(&mut self) {
        self.by.session.detach(&self.target);
    }
}

impl KnownFile {
    /// Makes the GPU's context current on this thread, and waits for what must end before a byte is written: cuFile follows no
    /// stream.
    pub(crate) fn enter<'a>(&self, after: impl Iterator<Item = &'a Mutex<CudaEvent>>) -> Result<(), Error> {
        let mut ended = after.map(|event| event.lock().expect("no holder panics").synchronize());
        let entered = self.by.device.enter().and_then(|()| ended.try_for_each(|ended| ended));
        entered.map_err(|why| {
            let asked = format!("GPU {}", self.by.device.index());
            Error::run(asked, why.to_string(), "if the CUDA context is gone, a new process; forebay doctor")
        })
    }

    /// Reads `bytes` from `offset` on to `at` in the memory of the GPU: how many came, or why none did.
    ///
    /// # Safety
    /// The memory is the caller's until the call returns, on a thread that has entered.
    pub(crate) unsafe fn read(&self, offset: u64, bytes: usize, gpu: u32, at: u64) -> Result<usize, String> {
        let (base, behind) = self.by.known.place(Mem::Device { gpu, at }).expect("memory of a GPU");
        // SAFETY: the caller's promise.
        let got = unsafe { self.file.handle.read(base, behind, bytes, offset) };
        got.map(|got| got.min(bytes)).map_err(|why| why.to_string())
    }

    /// Notes a read that is about to begin.
    pub(crate) fn note(&self, offset: u64, bytes: usize) {
        self.by.session.count_range(offset, bytes as u64);
    }

    /// Its bytes go by DMA from storage, as far as was seen beforehand.
    pub(crate) fn is_direct(&self) -> bool {
        self.file.via == Via::Direct
    }
}

/// The error as callers in Python type what it names.
fn in_python(error: Error) -> Error {
    let said = |text: &str| {
        let quoted =
            |text: String, path: &str| text.replace(&format!("‹path› {path}"), &format!("path=\"{path}\""));
        ["gds", "bounce", "host"].iter().fold(text.to_string(), |text, path| quoted(text, path))
    };
    Error { asked: said(&error.asked), found: said(&error.found), next: said(&error.next), ..error }
}
