//! A file copied out of a mapping: for data that is in memory already, with one
//! copy and no system call. A file that shrinks under the mapping is an error of
//! the read that met it, not the end of the process.

use super::FileTarget;
use crate::copy;
use crate::queue::{Done, Fault, Full, Geometry, Io, Op, Queue, Via};
use crate::reactor::Reactor;
use forebay_model::Error;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;

pub const SUPPORTED: bool = copy::GUARDED;

/// Page tables are filled this far at a time: large enough to cost one call in
/// thousands of I/Os, small enough not to stall the first one.
const WINDOW: u64 = 8 << 20;

pub struct MapQueue {
    map: Map,
    geometry: Geometry,
    pushed: Vec<Io>,
    ready: Vec<Done>,
}

impl MapQueue {
    pub fn new(target: FileTarget, depth: u32) -> Result<Self, Error> {
        if !SUPPORTED {
            return Err(Error::machine(
                "--engine map",
                "needs an x86-64 processor (the guarded copy)",
                "--engine inline",
            ));
        }
        let room = depth as usize;
        let geometry = Geometry { align: 1, mem_align: 1, ..target.geometry(depth) };
        Ok(MapQueue {
            map: Map::new(target)?,
            geometry,
            pushed: Vec::with_capacity(room),
            ready: Vec::with_capacity(room),
        })
    }
}

impl Queue for MapQueue {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn in_flight(&self) -> u32 {
        (self.pushed.len() + self.ready.len()) as u32
    }

    fn push(&mut self, io: Io, _reactor: &mut Reactor) -> Result<(), Full> {
        if self.in_flight() == self.geometry.depth {
            return Err(Full(io));
        }
        self.pushed.push(io);
        Ok(())
    }

    fn submit(&mut self, _reactor: &mut Reactor) {
        for io in self.pushed.drain(..) {
            let (result, via) = match io.op {
                Op::Read => (self.map.read(&io), Via::Mapped),
                Op::Flush => (Ok(0), Via::Nothing),
                _ => (Err(Fault::note(libc::EROFS, "the map engine only reads")), Via::Nothing),
            };
            self.ready.push(Done { tag: io.tag, result, via, copy_ns: 0 });
        }
    }

    fn reap(&mut self, _reactor: &mut Reactor, done: &mut Vec<Done>) {
        done.append(&mut self.ready);
    }

    fn abandon(&mut self, _tag: u32, _reactor: &mut Reactor) {}
}

struct Map {
    at: NonNull<u8>,
    bytes: u64,
    /// A bit per window whose page tables were filled.
    filled: Vec<u64>,
    target: FileTarget,
}

impl Map {
    fn new(target: FileTarget) -> Result<Map, Error> {
        copy::install_guard();
        let bytes = target.bytes.max(1);
        // SAFETY: a fresh read-only mapping of a file that the target holds open.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes as usize,
                libc::PROT_READ,
                libc::MAP_SHARED,
                target.file.as_raw_fd(),
                0,
            )
        };
        if at == libc::MAP_FAILED {
            let e = std::io::Error::last_os_error();
            return Err(Error::machine(
                format!("map {}", target.path.display()),
                e.to_string(),
                "--engine inline",
            ));
        }
        let words = bytes.div_ceil(WINDOW).div_ceil(64);
        Ok(Map {
            at: NonNull::new(at.cast()).expect("mmap gave an address"),
            bytes: target.bytes,
            filled: vec![0; words as usize],
            target,
        })
    }

    /// Bytes copied; fewer than asked for where the file ended when it was opened.
    fn read(&mut self, io: &Io) -> Result<u32, Fault> {
        let len = u64::from(io.len).min(self.bytes.saturating_sub(io.offset));
        if len == 0 {
            return Ok(0);
        }
        for window in io.offset / WINDOW..(io.offset + len).div_ceil(WINDOW) {
            self.fill(window);
        }
        // SAFETY: source and length lie inside the mapping (bounded above); the slot is io.len bytes long and
        // ours. A page that is gone makes the copy stop, which is what `guarded` is for.
        let left = unsafe {
            copy::guarded(io.mem.host_ptr(), self.at.as_ptr().add(io.offset as usize), len as usize)
        };
        if left == 0 {
            return Ok(len as u32);
        }
        let now = self.target.file.metadata().map(|m| m.len()).unwrap_or(0);
        let path = self.target.path.display();
        Err(Fault::note(
            libc::EIO,
            format!(
                "{path} had {} bytes when it was opened and has {now} now: it changed while it was read",
                self.bytes
            ),
        ))
    }

    fn fill(&mut self, window: u64) {
        const MADV_POPULATE_READ: i32 = 22;
        let (word, bit) = ((window / 64) as usize, 1u64 << (window % 64));
        if self.filled[word] & bit != 0 {
            return;
        }
        self.filled[word] |= bit;
        let from = window * WINDOW;
        let len = WINDOW.min(self.bytes - from);
        // SAFETY: the range lies inside our mapping. Refusal (old kernel, a page that is gone) costs only speed:
        // the copy takes the faults itself.
        unsafe {
            libc::madvise(self.at.as_ptr().add(from as usize).cast(), len as usize, MADV_POPULATE_READ)
        };
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: our mapping, and no copy is running: it belongs to one worker.
        unsafe { libc::munmap(self.at.as_ptr().cast(), self.bytes.max(1) as usize) };
    }
}
