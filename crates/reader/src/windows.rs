//! Windows of a file's page cache that GPUs read by themselves: what `path::mapped` registers, for one open file.

use forebay_io::{memory_free_bytes, CudaDevice};
use forebay_model::units::GIB;
use forebay_model::Error;
use forebay_storage::{
    window_bytes, DevicePinner, FileMapping, FileTarget, MappedFile, MappedLimits, MappedPhase,
    MappedRegistry, MappedWakeup,
};
use std::sync::Arc;
use std::time::Duration;

/// Number of windows of a file, where they are neither too small nor too large then.
const WINDOWS_WANTED: u64 = 8;
/// Registered at most where the system doesn't say how much memory is free.
const CAP_BYTES_UNKNOWN: u64 = 4 * GIB;
/// Interval at which a waiting worker checks its copies.
const POLL_INTERVAL: Duration = Duration::from_micros(500);

pub(super) struct Windows {
    registry: MappedRegistry,
    file: Arc<MappedFile>,
    pub bytes_each: u64,
}

impl Windows {
    /// `bytes_max`: of each.
    pub(crate) fn open(
        target: &FileTarget,
        mapping: Option<Arc<FileMapping>>,
        device: Arc<CudaDevice>,
        bytes_max: u64,
    ) -> Result<Windows, Error> {
        let cap_bytes = cap_bytes();
        let bytes_each = window_bytes(target.bytes / WINDOWS_WANTED * 2, cap_bytes).min(bytes_max);
        let limits = MappedLimits {
            cap_bytes,
            window_bytes: bytes_each,
            least_bytes: MappedRegistry::LEAST_BYTES,
            relays: 0,
        };
        let registry = MappedRegistry::new(Box::new(DevicePinner(device)), limits)?;
        let file = registry.file_in(target, mapping).map_err(|fault| {
            Error::run(format!("map {}", target.path.display()), fault.to_string(), "path=\"bounce\"")
        })?;
        Ok(Windows { registry, file, bytes_each })
    }

    /// Returns whether the whole file may stay registered.
    pub(crate) fn fits(target: &FileTarget) -> bool {
        target.bytes <= cap_bytes()
    }

    /// Takes the file as it is now, for reads that begin now; what was registered of another one is dropped.
    pub(crate) fn refresh(&self) -> Result<(), Error> {
        let looked = self
            .registry
            .current_generation(&self.file)
            .or_else(|_| self.registry.current_generation(&self.file));
        looked.map(|_| ()).map_err(|fault| {
            Error::run(format!("map {}", self.file.target.path.display()), fault.to_string(), "open it again")
        })
    }

    /// Waits until a window may be read, and holds it; None where its bytes must go another way. `go_on` is asked
    /// meanwhile. Ends with `queued`, once its copy is.
    pub(crate) fn hold(
        &self,
        offset: u64,
        wakeup: &Arc<MappedWakeup>,
        mut go_on: impl FnMut() -> bool,
    ) -> Option<HeldWindow<'_>> {
        let number = self.file.window_of(offset);
        let window = self.file.window(number);
        window.hold();
        let mut phase = self.registry.ask(&self.file, number, true, Some(wakeup));
        while phase == MappedPhase::Pending && go_on() {
            std::thread::park_timeout(POLL_INTERVAL);
            phase = window.phase();
        }
        let seen = self.registry.current_generation(&self.file);
        match seen {
            // What is ready after the look was registered in this generation.
            Ok(generation) if window.phase() == MappedPhase::Ready => {
                let at = self.file.address(offset).as_ptr();
                Some(HeldWindow { windows: self, number, at, generation })
            }
            _ => {
                window.release();
                self.registry.answered(wakeup);
                None
            }
        }
    }

    /// Calls the driver with the registrar out of the way.
    pub(crate) fn turn<T>(&self, call: impl FnOnce() -> T) -> T {
        let _turn = self.registry.turns().enter();
        call()
    }

    /// Has all windows registered, in the background, that aren't and don't wait for it; `gently`: with rests, in which
    /// others come to the driver.
    pub(crate) fn ask_for_all(&self, gently: bool) {
        for number in 0..self.count() {
            match self.file.window(number).phase() {
                MappedPhase::Ready | MappedPhase::Pending => {}
                _ if gently => self.registry.ask_gently(&self.file, number),
                _ => drop(self.registry.ask(&self.file, number, false, None)),
            }
        }
    }

    /// The share of the windows that may be read; None while some wait to be registered.
    pub(crate) fn ready_share(&self) -> Option<f64> {
        let mut ready = 0;
        for number in 0..self.count() {
            match self.file.window(number).phase() {
                MappedPhase::Pending => return None,
                MappedPhase::Ready => ready += 1,
                _ => {}
            }
        }
        Some(f64::from(ready) / f64::from(self.count().max(1)))
    }

    /// Returns whether nothing of the file is registered or about to be.
    pub(crate) fn is_untouched(&self) -> bool {
        (0..self.count()).all(|n| self.file.window(n).phase() == MappedPhase::Cold)
    }

    pub(crate) fn count(&self) -> u32 {
        self.file.windows()
    }

    /// Returns the window of a byte.
    pub(crate) fn number_of(&self, offset: u64) -> u32 {
        self.file.window_of(offset)
    }

    /// Returns the address of the file's first byte in memory. Only what lies in a window that is held may be read.
    pub(crate) fn base(&self) -> *const u8 {
        self.file.address(0).as_ptr()
    }

    /// Returns whether the windows of a range may be read.
    pub(crate) fn are_ready(&self, offset: u64, bytes: usize) -> bool {
        let last = self.number_of(offset + (bytes as u64).max(1) - 1);
        (self.number_of(offset)..=last).all(|n| self.file.window(n).phase() == MappedPhase::Ready)
    }

    /// Returns whether all windows may be read.
    pub(crate) fn is_whole(&self) -> bool {
        (0..self.count()).all(|n| self.file.window(n).phase() == MappedPhase::Ready)
    }

    /// Holds all windows, if all of them may be read.
    pub(crate) fn hold_whole(&self) -> Option<Gathered> {
        if !self.is_whole() {
            return None;
        }
        let numbers: Vec<u32> = (0..self.count()).collect();
        let held: Vec<u32> = numbers.iter().copied().take_while(|n| self.hold_ready(*n)).collect();
        if held.len() < numbers.len() {
            held.iter().for_each(|number| self.file.window(*number).release());
            return None;
        }
        self.settled(held)
    }

    /// Has these windows registered, each wanted for so many bytes, and holds those that are; None where none is, or
    /// the file changed. `go_on` is asked meanwhile. Nothing is held while it waits: two that wait for each other's
    /// windows would wait for ever.
    pub(crate) fn hold_all(
        &self,
        wanted: &[(u32, u64)],
        wakeup: &Arc<MappedWakeup>,
        mut go_on: impl FnMut() -> bool,
    ) -> Option<Gathered> {
        let phase = |number: &u32| self.file.window(*number).phase();
        for (number, bytes) in wanted {
            let asks = match phase(number) {
                MappedPhase::Ready => false,
                MappedPhase::Pending => true,
                _ => self.registry.pays(&self.file, *number, *bytes, false),
            };
            if asks {
                self.registry.ask(&self.file, *number, false, Some(wakeup));
            }
        }
        while wanted.iter().any(|(number, _)| phase(number) == MappedPhase::Pending) && go_on() {
            std::thread::park_timeout(POLL_INTERVAL);
        }
        let held = wanted.iter().map(|(number, _)| *number).filter(|n| self.hold_ready(*n)).collect();
        let settled = self.settled(held);
        if settled.is_none() {
            self.registry.answered(wakeup);
        }
        settled
    }

    /// Returns the held windows with their generation; releases them if the file changed.
    fn settled(&self, held: Vec<u32>) -> Option<Gathered> {
        let seen = self.registry.current_generation(&self.file);
        // What is ready after the look was registered in this generation.
        let ready = |n: &u32| self.file.window(*n).phase() == MappedPhase::Ready;
        match seen {
            Ok(generation) if !held.is_empty() && held.iter().all(ready) => {
                Some(Gathered { numbers: held, generation })
            }
            _ => {
                held.iter().for_each(|number| self.file.window(*number).release());
                None
            }
        }
    }

    /// Holds a window if it may be read.
    fn hold_ready(&self, number: u32) -> bool {
        let window = self.file.window(number);
        let ready = window.hold() == MappedPhase::Ready;
        if !ready {
            window.release();
        }
        ready
    }

    /// Queues what reads windows that are held, with the registrar out of the way.
    pub(crate) fn queue<T>(&self, wakeup: &MappedWakeup, read: impl FnOnce() -> T) -> T {
        let done = {
            let _turn = self.registry.turns().enter();
            read()
        };
        self.registry.answered(wakeup);
        done
    }

    /// `release` for several.
    pub(crate) fn release_all(&self, held: &Gathered) -> bool {
        held.numbers.iter().for_each(|number| self.file.window(*number).release());
        matches!(self.registry.current_generation(&self.file), Ok(now) if now == held.generation)
    }

    /// Lets go of a window whose copy has ended; false where the file changed since it was queued.
    pub(crate) fn release(&self, number: u32, generation: u64) -> bool {
        self.file.window(number).release();
        matches!(self.registry.current_generation(&self.file), Ok(now) if now == generation)
    }
}

/// A window that stays registered until `Windows::release`.
pub(super) struct HeldWindow<'a> {
    windows: &'a Windows,
    pub number: u32,
    /// Address of the requested byte.
    pub at: *const u8,
    pub generation: u64,
}

impl HeldWindow<'_> {
    /// Queues its copy, with the registrar out of the way.
    pub(crate) fn queue<T>(&self, wakeup: &MappedWakeup, copy: impl FnOnce() -> T) -> T {
        self.windows.queue(wakeup, copy)
    }
}

/// Windows that one launch reads from; they stay registered until `Windows::release_all`.
pub(super) struct Gathered {
    pub numbers: Vec<u32>,
    pub generation: u64,
}

/// Returns the limit on registered bytes: half of the memory that is free.
pub(super) fn cap_bytes() -> u64 {
    memory_free_bytes().map_or(CAP_BYTES_UNKNOWN, |free| free / 2)
}
