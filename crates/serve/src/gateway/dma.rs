//! The requester's memory, as its client mapped it for DMA: which addresses there are, and where they lie here.
//!
//! A `Map` is one state of that, never changed: threads read it without a lock and are told when there is a newer one.
//! A `Mapping` lives until the last I/O that uses it ends, whatever the client does meanwhile; so that an address once
//! found stays valid memory. The client may still truncate the file behind it: every access of ours is guarded against
//! the SIGBUS that this gives, and the kernel's accesses fail with EFAULT.

#![allow(unsafe_code, reason = "memory of a client that it maps for DMA")]

use forebay_io::{
    aligned_place, guarded_copy, guarded_word_copy, install_copy_guard, CopyStores, Mem, Piece, PieceList,
    GUARDED_COPIES,
};
use rustix::fs::{fcntl_get_seals, fstat, fstatfs, SealFlags};
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// Mappings of one client at most: each is one of the kernel's, of which a process has 65530.
pub(crate) const MAPPINGS_MAX: usize = 32768;
/// Granularity of addresses, lengths and offsets.
pub(crate) const PAGE: u64 = 4096;

/// Magic number of tmpfs and memfd.
const TMPFS: u64 = 0x0102_1994;
/// File systems whose pages come from memory or a local disk. Of others (FUSE, network) a peer could let us wait for a
/// page for ever.
const FILE_SYSTEMS: [u64; 6] = [
    TMPFS,
    0x9584_58f6, // hugetlbfs
    0x444d_4142, // DMA-BUF
    0xef53,      // ext2 to ext4
    0x5846_5342, // XFS
    0x9123_683e, // btrfs
];

/// Kind of access to the requester's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

/// Why an address can't be used. To a host it is a Data Transfer Error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refused {
    #[error("nothing is mapped there")]
    Unmapped,
    #[error("the mapping does not allow that")]
    NotAllowed,
    #[error("it was mapped without memory that can be reached")]
    OutOfReach,
    #[error("the memory behind it is gone")]
    Gone,
}

/// A range of the requester's addresses and the memory behind it.
#[derive(Debug)]
pub(crate) struct Mapping {
    address: u64,
    bytes: u64,
    readable: bool,
    writable: bool,
    /// None: it came without a descriptor (ROM, registers of other devices).
    host: Option<NonNull<u8>>,
    /// File and offset that it was made of, so that another process can make it again.
    file: Option<(Arc<File>, u64)>,
}

// SAFETY: the mapping is of shared memory that no Rust reference points into; all accesses are copies or the kernel's.
unsafe impl Send for Mapping {}
// SAFETY: as above; the struct itself never changes.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn last(&self) -> u64 {
        self.address + (self.bytes - 1)
    }

    pub(crate) fn range(&self) -> (u64, u64) {
        (self.address, self.bytes)
    }

    pub(crate) fn allows(&self) -> (bool, bool) {
        (self.readable, self.writable)
    }

    /// The file and the offset in it, where it came with one.
    pub(crate) fn file(&self) -> Option<(&Arc<File>, u64)> {
        self.file.as_ref().map(|(file, offset)| (file, *offset))
    }

    fn check(&self, access: Access) -> Result<NonNull<u8>, Refused> {
        match access {
            Access::Read if !self.readable => Err(Refused::NotAllowed),
            Access::Write if !self.writable => Err(Refused::NotAllowed),
            _ => self.host.ok_or(Refused::OutOfReach),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if let Some(host) = self.host {
            // SAFETY: mapped by `Mapped::new` with this length; whoever used it kept the `Mapping`.
            unsafe { libc::munmap(host.as_ptr().cast(), self.bytes as usize) };
        }
    }
}

/// Mappings that somebody uses: an I/O keeps those that its payload lies in.
#[derive(Debug, Default)]
pub(crate) struct HeldMappings(Vec<Arc<Mapping>>);

impl HeldMappings {
    pub(crate) fn keep(&mut self, mapping: &Arc<Mapping>) {
        if !self.0.iter().rev().take(4).any(|held| Arc::ptr_eq(held, mapping)) {
            self.0.push(mapping.clone());
        }
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

/// All mappings at one time, ascending.
#[derive(Debug, Default)]
pub(crate) struct Map {
    mappings: Vec<Arc<Mapping>>,
}

impl Map {
    fn find(&self, address: u64) -> Result<&Arc<Mapping>, Refused> {
        let behind = self.mappings.partition_point(|m| m.address <= address);
        let found = behind.checked_sub(1).map(|at| &self.mappings[at]);
        found.filter(|m| address <= m.last()).ok_or(Refused::Unmapped)
    }

    /// Returns the place of `address`, and for how many of `len` bytes it holds.
    fn stretch(&self, address: u64, len: usize, access: Access) -> Result<(Piece, &Arc<Mapping>), Refused> {
        let mapping = self.find(address)?;
        let host = mapping.check(access)?;
        let skip = address - mapping.address;
        let len = (mapping.bytes - skip).min(len as u64) as usize;
        // SAFETY: `find` has seen that the address is within the mapping.
        Ok((Piece { at: unsafe { host.add(skip as usize) }, len }, mapping))
    }

    /// Adds where `len` bytes from `address` on lie, and keeps their mappings in `held`.
    pub(crate) fn gather(
        &self,
        mut address: u64,
        mut len: usize,
        access: Access,
        pieces: &mut PieceList,
        held: &mut HeldMappings,
    ) -> Result<(), Refused> {
        while len > 0 {
            let (piece, mapping) = self.stretch(address, len, access)?;
            held.keep(mapping);
            pieces.push(piece);
            len -= piece.len;
            address = address.wrapping_add(piece.len as u64);
        }
        Ok(())
    }

    /// Copies bytes out of the requester's memory.
    pub(crate) fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Refused> {
        let mut done = 0;
        while done < into.len() {
            let from = address.wrapping_add(done as u64);
            let (piece, _) = self.stretch(from, into.len() - done, Access::Read)?;
            let to = into[done..done + piece.len].as_mut_ptr();
            // SAFETY: both are `piece.len` long; the mapping stays for the call, and pages that are gone are survived.
            let left = unsafe { guarded_copy(to, piece.at.as_ptr(), piece.len, CopyStores::Cached) };
            if left > 0 {
                return Err(Refused::Gone);
            }
            done += piece.len;
        }
        Ok(())
    }

    /// Copies bytes into the requester's memory, in no particular order.
    pub(crate) fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Refused> {
        let mut done = 0;
        while done < bytes.len() {
            let to = address.wrapping_add(done as u64);
            let (piece, _) = self.stretch(to, bytes.len() - done, Access::Write)?;
            // SAFETY: as in `read`, the other way round.
            let left = unsafe {
                guarded_copy(piece.at.as_ptr(), bytes[done..].as_ptr(), piece.len, CopyStores::Cached)
            };
            if left > 0 {
                return Err(Refused::Gone);
            }
            done += piece.len;
        }
        Ok(())
    }

    /// Loads an aligned word at once.
    pub(crate) fn load(&self, address: u64) -> Result<u32, Refused> {
        let at = self.word(address, Access::Read)?;
        let mut value = 0;
        // SAFETY: an aligned word of a mapping that stays for the call; a page that is gone is survived.
        let loaded = unsafe { guarded_word_copy(&mut value, at) };
        std::sync::atomic::fence(Ordering::Acquire);
        loaded.then_some(value).ok_or(Refused::Gone)
    }

    /// Stores an aligned word at once, after all that was written before.
    pub(crate) fn store(&self, address: u64, value: u32) -> Result<(), Refused> {
        let at = self.word(address, Access::Write)?;
        std::sync::atomic::fence(Ordering::Release);
        // SAFETY: as in `load`.
        unsafe { guarded_word_copy(at, &value) }.then_some(()).ok_or(Refused::Gone)
    }

    fn word(&self, address: u64, access: Access) -> Result<*mut u32, Refused> {
        if address % 4 != 0 {
            return Err(Refused::NotAllowed);
        }
        // Mappings are whole pages, so an aligned word lies in one.
        Ok(self.stretch(address, 4, access)?.0.at.as_ptr().cast())
    }

    /// All of the range can be read and written.
    pub(crate) fn covers(&self, mut address: u64, mut bytes: u64) -> bool {
        while bytes > 0 {
            let Ok(mapping) = self.find(address) else { return false };
            if mapping.check(Access::Read).and(mapping.check(Access::Write)).is_err() {
                return false;
            }
            let here = (mapping.last() - address).saturating_add(1).min(bytes);
            bytes -= here;
            let Some(next) = address.checked_add(here) else { return bytes == 0 };
            address = next;
        }
        true
    }

    pub(crate) fn mappings(&self) -> &[Arc<Mapping>] {
        &self.mappings
    }
}

/// Copies out of memory that a `HeldMappings` keeps.
pub(crate) fn copy_out(from: Mem, into: &mut [u8]) -> Result<(), Refused> {
    let mut done = 0;
    for piece in from.each(into.len()) {
        let to = into[done..done + piece.len].as_mut_ptr();
        // SAFETY: both are `piece.len` long, and the mapping is held; a page that is gone is survived.
        let left = unsafe { guarded_copy(to, piece.at.as_ptr(), piece.len, CopyStores::Cached) };
        if left > 0 {
            return Err(Refused::Gone);
        }
        done += piece.len;
    }
    if done == into.len() {
        Ok(())
    } else {
        Err(Refused::Unmapped)
    }
}

/// Copies to memory that a `HeldMappings` keeps.
pub(crate) fn copy_in(into: Mem, bytes: &[u8]) -> Result<(), Refused> {
    let mut rest = bytes;
    for piece in into.each(bytes.len()) {
        let (here, behind) = rest.split_at(piece.len);
        // SAFETY: both are `piece.len` long, and the mapping is held; a page that is gone is survived.
        let left = unsafe { guarded_copy(piece.at.as_ptr(), here.as_ptr(), here.len(), CopyStores::Cached) };
        if left > 0 {
            return Err(Refused::Gone);
        }
        rest = behind;
    }
    if rest.is_empty() {
        Ok(())
    } else {
        Err(Refused::Unmapped)
    }
}

/// Returns whether memory that a `HeldMappings` keeps has these bytes. Memory that is gone has not.
pub(crate) fn is_same(mem: Mem, bytes: &[u8]) -> bool {
    let mut copied = [0; PAGE as usize];
    (0..bytes.len()).step_by(copied.len()).all(|from| {
        let wanted = &bytes[from..bytes.len().min(from + PAGE as usize)];
        let here = &mut copied[..wanted.len()];
        copy_out(mem.after(from), here).is_ok() && here == wanted
    })
}

/// Copies `pattern`, again and again, into `len` bytes of memory that a `HeldMappings` keeps.
pub(crate) fn fill(into: Mem, len: usize, pattern: &[u8]) -> Result<(), Refused> {
    for piece in into.each(len) {
        for from in (0..piece.len).step_by(pattern.len()) {
            let bytes = (piece.len - from).min(pattern.len());
            let at = piece.at.as_ptr().wrapping_add(from);
            // SAFETY: within the piece, whose mapping is held; a page that is gone is survived.
            let left = unsafe { guarded_copy(at, pattern.as_ptr(), bytes, CopyStores::Cached) };
            if left > 0 {
                return Err(Refused::Gone);
            }
        }
    }
    Ok(())
}

/// Mappings that are gone for whoever looks from now on. They are free once nobody uses them.
#[derive(Debug, Default)]
pub(crate) struct Retired(Vec<Arc<Mapping>>);

impl Retired {
    pub(crate) fn is_free(&self) -> bool {
        self.0.iter().all(|mapping| Arc::strong_count(mapping) == 1)
    }
}

/// A range to be mapped, as a client asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    pub address: u64,
    pub bytes: u64,
    /// Within the descriptor's file.
    pub offset: u64,
    pub readable: bool,
    pub writable: bool,
}

/// The mappings of one client: what it has now, and how others notice that this changed.
#[derive(Debug)]
pub(crate) struct Table {
    now: Mutex<Arc<Map>>,
    generation: AtomicU64,
}

impl Default for Table {
    fn default() -> Table {
        install_copy_guard();
        Table { now: Mutex::default(), generation: AtomicU64::new(1) }
    }
}

impl Table {
    fn lock(&self) -> MutexGuard<'_, Arc<Map>> {
        self.now.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    pub(crate) fn map_now(&self) -> Arc<Map> {
        self.lock().clone()
    }

    /// Counts changes.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    fn replace(&self, now: &mut Arc<Map>, mappings: Vec<Arc<Mapping>>) {
        *now = Arc::new(Map { mappings });
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// Adds a range. Without a file it is known, but can't be reached.
    ///
    /// # Errors
    /// An errno: EINVAL (not whole pages, beyond the file's end), EEXIST (overlaps another), ENOSPC (too many), EACCES
    /// (the descriptor doesn't allow it, or its file system isn't to be trusted), ENOMEM.
    pub(crate) fn map(&self, asked: Asked, file: Option<OwnedFd>) -> Result<(), i32> {
        let whole = |n: u64| n % PAGE == 0;
        let fits = asked.bytes > 0 && asked.bytes <= isize::MAX as u64;
        if !fits || !whole(asked.address) || !whole(asked.bytes) || !whole(asked.offset) {
            return Err(libc::EINVAL);
        }
        let last = asked.address.checked_add(asked.bytes - 1).ok_or(libc::EINVAL)?;
        let mut now = self.lock();
        let at = now.mappings.partition_point(|m| m.address <= asked.address);
        let overlaps = at > 0 && now.mappings[at - 1].last() >= asked.address
            || now.mappings.get(at).is_some_and(|m| m.address <= last);
        if overlaps {
            return Err(libc::EEXIST);
        }
        if now.mappings.len() >= MAPPINGS_MAX {
            return Err(libc::ENOSPC);
        }
        let file = file.map(|fd| known(&now, fd)).transpose()?;
        let mapping = make(asked, file)?;
        let mut mappings = now.mappings.clone();
        mappings.insert(at, Arc::new(mapping));
        self.replace(&mut now, mappings);
        Ok(())
    }

    /// Has these ranges in place of all others. What can't be mapped any more is known, and out of reach.
    ///
    /// # Errors
    /// They overlap, aren't whole pages, or are too many.
    pub(crate) fn restore(&self, ranges: Vec<(Asked, Option<Arc<File>>)>) -> Result<(), &'static str> {
        let mut mappings: Vec<Arc<Mapping>> = Vec::with_capacity(ranges.len().min(MAPPINGS_MAX));
        for (asked, file) in ranges {
            let whole = [asked.address, asked.bytes, asked.offset].iter().all(|n| n % PAGE == 0);
            let last = asked.bytes.checked_sub(1).and_then(|rest| asked.address.checked_add(rest));
            let behind = mappings.last().is_none_or(|before| before.last() < asked.address);
            let fits = asked.bytes <= isize::MAX as u64 && mappings.len() < MAPPINGS_MAX;
            if !whole || last.is_none() || !behind || !fits {
                return Err("memory that cannot be mapped so");
            }
            let Asked { address, bytes, offset, readable, writable } = asked;
            let kept = file.clone().map(|file| (file, offset));
            let bare = |_| Mapping { address, bytes, readable, writable, host: None, file: kept };
            mappings.push(Arc::new(make(asked, file).unwrap_or_else(bare)));
        }
        self.replace(&mut self.lock(), mappings);
        Ok(())
    }

    /// Takes away the range that begins and ends there.
    ///
    /// # Errors
    /// ENOENT: no range is exactly that.
    pub(crate) fn unmap(&self, address: u64, bytes: u64) -> Result<Retired, i32> {
        let mut now = self.lock();
        let at = now.mappings.iter().position(|m| m.range() == (address, bytes)).ok_or(libc::ENOENT)?;
        let mut mappings = now.mappings.clone();
        let gone = mappings.remove(at);
        self.replace(&mut now, mappings);
        Ok(Retired(vec![gone]))
    }

    pub(crate) fn unmap_all(&self) -> Retired {
        let mut now = self.lock();
        let gone = now.mappings.clone();
        self.replace(&mut now, Vec::new());
        Retired(gone)
    }
}

/// The file of a descriptor: one open file serves all mappings of it, so that many don't use up our descriptors.
fn known(now: &Map, fd: OwnedFd) -> Result<Arc<File>, i32> {
    let file = File::from(fd);
    let of = |file: &File| fstat(file).map(|s| (s.st_dev, s.st_ino)).map_err(|e| e.raw_os_error());
    let mode = |file: &File| rustix::fs::fcntl_getfl(file).map(|flags| flags.bits() & 3).ok();
    let id = of(&file)?;
    let same = now
        .mappings
        .iter()
        .rev()
        .take(64)
        .filter_map(|m| m.file.as_ref())
        .find(|(other, _)| of(other).is_ok_and(|other| other == id) && mode(other) == mode(&file));
    Ok(same.map_or_else(|| Arc::new(file), |(other, _)| other.clone()))
}

fn make(asked: Asked, file: Option<Arc<File>>) -> Result<Mapping, i32> {
    let Asked { address, bytes, offset, readable, writable } = asked;
    let host = match &file {
        Some(file) if readable || writable => Some(mapped(file, asked)?),
        _ => None,
    };
    Ok(Mapping { address, bytes, readable, writable, host, file: file.map(|file| (file, offset)) })
}

fn mapped(file: &File, asked: Asked) -> Result<NonNull<u8>, i32> {
    let kind = fstatfs(file).map_err(|e| e.raw_os_error())?.f_type as u64 & 0xffff_ffff;
    if !FILE_SYSTEMS.contains(&kind) {
        return Err(libc::EACCES);
    }
    let sealed = || fcntl_get_seals(file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK));
    if !GUARDED_COPIES && !sealed() {
        return Err(libc::EACCES);
    }
    let size = rustix::fs::seek(file, rustix::fs::SeekFrom::End(0)).map_err(|e| e.raw_os_error())?;
    if asked.offset.checked_add(asked.bytes).is_none_or(|end| end > size) {
        return Err(libc::EINVAL);
    }
    let read = if asked.readable { libc::PROT_READ } else { 0 };
    let write = if asked.writable { libc::PROT_WRITE } else { 0 };
    let (fd, offset) = (file.as_raw_fd(), asked.offset as libc::off_t);
    let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
    // A hint and no more: in place of it the kernel may take any other address.
    let hint =
        if kind == TMPFS { aligned_place(asked.bytes as usize, asked.offset) } else { std::ptr::null_mut() };
    // SAFETY: a fresh mapping where nothing of ours is; nothing of ours is touched.
    let at = unsafe { libc::mmap(hint, asked.bytes as usize, read | write, flags, fd, offset) };
    if at == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::ENOMEM));
    }
    Ok(NonNull::new(at.cast()).expect("mmap gave an address"))
}

#[cfg(test)]
mod tests;
