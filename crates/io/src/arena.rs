//! Slots: the buffers that I/Os read into and write from, allocated once per worker.
//!
//! The physical layout matters more than the engine above it: a device needs one descriptor per physically contiguous
//! piece of a transfer, so slots are in huge pages if these are available, and the arena reports which pages it got.

#![allow(unsafe_code, reason = "memory mapped and lent out as slots")]

#[cfg(all(debug_assertions, not(miri)))]
mod freed;
#[cfg(miri)]
mod interpreted;
mod pieces;

pub use pieces::{Piece, PieceList};

use forebay_model::job::Pages;
use forebay_model::Error;
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{MemfdFlags, SealFlags};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

const HUGE: usize = 2 << 20;
const SMALL: usize = 4096;
/// The kernel refuses to register a longer piece.
const PIECE_BYTES_MAX: usize = 1 << 30;
impl Mem {
    /// `piece` of memory that isn't registered with a ring.
    pub const UNREGISTERED: u16 = u16::MAX;
}

/// A location in memory that a queue may write to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mem {
    /// Host memory; `piece` is the ring's registered buffer that contains it.
    Host { at: NonNull<u8>, piece: u16 },
    /// Memory of a GPU: a device address.
    Device { gpu: u32, at: u64 },
    /// Scattered host memory: `count` pieces of a list that outlives the I/O, without the first `skip` bytes. Created
    /// by `Mem::pieces`.
    Pieces { list: NonNull<Piece>, count: u16, skip: u32 },
    /// No memory, for I/Os without payload and for `nil:`.
    None,
}

// It is part of every I/O, and copied at each step of its way.
const _: () = assert!(size_of::<Mem>() == 16);

// SAFETY: Mem is an address; whoever reads or writes through it upholds the arena's rules.
unsafe impl Send for Mem {}

impl Mem {
    /// The location `bytes` further on.
    #[inline]
    pub fn after(self, bytes: usize) -> Mem {
        match self {
            Mem::Host { at, piece } => Mem::Host {
                // SAFETY: callers stay within the slot that this Mem was made for.
                at: unsafe { at.add(bytes) },
                piece,
            },
            Mem::Device { gpu, at } => Mem::Device { gpu, at: at + bytes as u64 },
            Mem::Pieces { list, count, skip } => pieces::after(list, count, skip, bytes),
            Mem::None => Mem::None,
        }
    }

    /// The host address; null if there is none or more than one.
    #[inline]
    pub fn host_ptr(self) -> *mut u8 {
        match self {
            Mem::Host { at, .. } => at.as_ptr(),
            _ => std::ptr::null_mut(),
        }
    }
}

/// The kind of pages that an arena is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Got {
    Hugetlb,
    Thp,
    ThpPartial,
    Small,
}

impl Got {
    pub fn name(self) -> &'static str {
        match self {
            Got::Hugetlb => "hugetlb",
            Got::Thp => "thp",
            Got::ThpPartial => "thp-partial",
            Got::Small => "small",
        }
    }
}

/// `count` slots of `slot_bytes` each, in one mapping, zeroed and touched.
pub struct Arena {
    base: NonNull<u8>,
    mapped_bytes: usize,
    slot_bytes: usize,
    count: usize,
    slots_per_piece: usize,
    /// Looked up when it is first asked for, unless it is known: the kernel walks all memory of the process for it.
    got: OnceLock<Got>,
    registered: bool,
    /// The descriptor that it maps, if a device in another process reads and writes it.
    fd: Option<Arc<OwnedFd>>,
}

// SAFETY: the mapping is owned by the arena, which moves between threads as a whole.
unsafe impl Send for Arena {}

impl Arena {
    /// Slots aligned to 4 KiB; none spans two registered pieces.
    pub fn new(count: usize, bytes_each: usize, pages: Pages) -> Result<Arena, Error> {
        Arena::with_pages(count, bytes_each.max(1).next_multiple_of(SMALL), pages, false)
    }

    /// Slots that are adjacent whatever their length, for callers that need no alignment.
    pub fn tight(count: usize, bytes_each: usize, pages: Pages) -> Result<Arena, Error> {
        Arena::with_pages(count, bytes_each.max(1), pages, false)
    }

    /// Like `new`, in memory that can also be mapped into an emulated device.
    pub fn shared(count: usize, bytes_each: usize, pages: Pages) -> Result<Arena, Error> {
        Arena::with_pages(count, bytes_each.max(1).next_multiple_of(SMALL), pages, true)
    }

    fn with_pages(count: usize, slot_bytes: usize, pages: Pages, shared: bool) -> Result<Arena, Error> {
        let slots_per_piece = (PIECE_BYTES_MAX / slot_bytes).max(1).min(count.max(1));
        let mapped_bytes =
            slot_bytes.checked_mul(count.max(1)).and_then(|b| b.checked_next_multiple_of(HUGE)).ok_or_else(
                || Error::request("the buffers", "their size overflows", "a smaller ‹depth› or ‹io_bytes›"),
            )?;
        let given = match shared {
            true => shared_memory(mapped_bytes, pages).map(|(base, got, fd)| (base, got, Some(Arc::new(fd)))),
            #[cfg(miri)]
            false => interpreted::memory(mapped_bytes).map(|(base, got)| (base, Some(got), None)),
            #[cfg(not(miri))]
            false => memory(mapped_bytes, pages).map(|(base, got)| (base, got, None)),
        };
        let (base, got, fd) = given.map_err(|e| match pages {
            Pages::Hugetlb => no_huge_pages(mapped_bytes, &e),
            _ => Error::machine(
                format!("{count} buffers of {slot_bytes} bytes"),
                format!("the system has no memory for them: {e}"),
                "a smaller ‹depth›, ‹workers› or ‹io_bytes›",
            ),
        })?;
        let got = got.map_or_else(OnceLock::new, OnceLock::from);
        Ok(Arena { base, mapped_bytes, slot_bytes, count, slots_per_piece, got, registered: false, fd })
    }

    pub fn slot(&self, index: usize) -> Mem {
        assert!(index < self.count, "slot {index} of {}", self.count);
        Mem::Host {
            // SAFETY: index < count, so the slot lies inside the mapping.
            at: unsafe { self.base.add(index * self.slot_bytes) },
            piece: if self.registered { (index / self.slots_per_piece) as u16 } else { Mem::UNREGISTERED },
        }
    }

    /// The bytes of a slot that no I/O uses, to fill or examine them.
    pub fn slot_bytes_mut(&mut self, index: usize) -> &mut [u8] {
        assert!(index < self.count, "slot {index} of {}", self.count);
        // SAFETY: inside the mapping, which was touched when it was made; and nobody else writes there, since no I/O has
        // the slot.
        unsafe {
            let at = self.base.add(index * self.slot_bytes);
            std::slice::from_raw_parts_mut(at.as_ptr(), self.slot_bytes)
        }
    }

    pub fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    pub fn count(&self) -> usize {
        self.count
    }

    /// The kind of pages that it is in.
    pub fn got(&self) -> Got {
        *self.got.get_or_init(|| huge_share(self.base, self.mapped_bytes))
    }

    /// Returns whether its pages are of the system's pool of huge pages, as is known without a walk.
    pub fn is_of_the_huge_page_pool(&self) -> bool {
        self.got.get() == Some(&Got::Hugetlb)
    }

    /// The descriptor that the whole arena maps, from its first byte on; None for private memory of this process.
    pub fn fd(&self) -> Option<&Arc<OwnedFd>> {
        self.fd.as_ref()
    }

    /// From now on slots name the registered piece that contains them.
    pub(crate) fn mark_registered(&mut self) {
        self.registered = true;
    }

    /// The whole mapping.
    pub fn whole(&self) -> (NonNull<u8>, usize) {
        (self.base, self.mapped_bytes)
    }

    /// Bytes that the kernel locks when the pieces are registered: huge pages count as a whole.
    pub fn locked_bytes(&self) -> u64 {
        let used = self.count * self.slot_bytes;
        let unit = if self.got() == Got::Small { SMALL } else { HUGE };
        used.next_multiple_of(unit) as u64
    }

    /// The pieces to register with the kernel.
    pub fn pieces(&self) -> Vec<libc::iovec> {
        let piece_bytes = self.slots_per_piece * self.slot_bytes;
        let used = self.count * self.slot_bytes;
        (0..used.div_ceil(piece_bytes))
            .map(|i| libc::iovec {
                iov_base: self.base.as_ptr().wrapping_add(i * piece_bytes).cast(),
                iov_len: piece_bytes.min(used - i * piece_bytes),
            })
            .collect()
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        #[cfg(miri)]
        if self.fd.is_none() {
            return interpreted::give_back(self.base, self.mapped_bytes);
        }
        // Huge pages of the pool are few, and memory with a descriptor may be another process's, too.
        #[cfg(all(debug_assertions, not(miri)))]
        if self.fd.is_none() && self.got.get() != Some(&Got::Hugetlb) {
            return freed::keep(self.base, self.mapped_bytes);
        }
        // SAFETY: the mapping is ours, and the worker dropped its queues (or forgot the arena) first.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.mapped_bytes) };
    }
}

fn no_huge_pages(bytes: usize, e: &std::io::Error) -> Error {
    Error::machine(
        "‹pages› hugetlb",
        format!("no huge pages are available: {e}"),
        format!("sysctl vm.nr_hugepages={} or ‹pages› thp", bytes / HUGE),
    )
}

impl Arena {
    /// Checks that the pool has the huge pages for `arenas` mappings of `bytes` each. They are reserved for a moment, and
    /// not touched.
    pub fn check_huge_pages(arenas: u64, bytes: u64) -> Result<(), Error> {
        let all = bytes.next_multiple_of(HUGE as u64).saturating_mul(arenas);
        let all = usize::try_from(all).unwrap_or(usize::MAX / HUGE * HUGE);
        let base = map(all, libc::MAP_HUGETLB).map_err(|e| no_huge_pages(all, &e))?;
        // SAFETY: the mapping was made here, and nothing else knows it.
        unsafe { libc::munmap(base.as_ptr().cast(), all) };
        Ok(())
    }
}

/// `bytes` (a multiple of the huge page size) in the best pages that are available, and their kind where it is known by that.
#[cfg_attr(miri, allow(dead_code))]
fn memory(bytes: usize, pages: Pages) -> std::io::Result<(NonNull<u8>, Option<Got>)> {
    if matches!(pages, Pages::Auto | Pages::Hugetlb) {
        match map(bytes, libc::MAP_HUGETLB | libc::MAP_POPULATE) {
            Ok(base) => return Ok((base, Some(Got::Hugetlb))),
            Err(e) if pages == Pages::Hugetlb => return Err(e),
            Err(_) => {}
        }
    }
    let small = pages == Pages::Small;
    let base = if small { map(bytes, 0)? } else { map_aligned(bytes)? };
    let advice = if small { libc::MADV_NOHUGEPAGE } else { libc::MADV_HUGEPAGE };
    // SAFETY: the range is one mapping of ours. Refusal only means smaller pages, which `huge_share` sees.
    unsafe { libc::madvise(base.as_ptr().cast(), bytes, advice) };
    let before = faults_taken();
    touch(base, bytes);
    // A fault each is what huge pages take.
    if !small && faults_taken() - before > (bytes / HUGE) as i64 {
        collapse(base, bytes);
    }
    Ok((base, small.then_some(Got::Small)))
}

/// As `memory`, mapped from a descriptor.
fn shared_memory(bytes: usize, pages: Pages) -> std::io::Result<(NonNull<u8>, Option<Got>, OwnedFd)> {
    if matches!(pages, Pages::Auto | Pages::Hugetlb) {
        let huge = sealed_memfd(bytes, true);
        match huge.and_then(|fd| map_from(&fd, bytes, None, libc::MAP_POPULATE).map(|base| (base, fd))) {
            Ok((base, fd)) => return Ok((base, Some(Got::Hugetlb), fd)),
            Err(e) if pages == Pages::Hugetlb => return Err(e),
            Err(_) => {}
        }
    }
    let fd = sealed_memfd(bytes, false)?;
    let base = map_shared_memory(&fd, bytes)?;
    let small = pages == Pages::Small;
    let advice = if small { libc::MADV_NOHUGEPAGE } else { libc::MADV_HUGEPAGE };
    // SAFETY: the range is one mapping of ours. Refusal only means smaller pages, which `huge_share` sees.
    unsafe { libc::madvise(base.as_ptr().cast(), bytes, advice) };
    touch(base, bytes);
    if !small {
        collapse(base, bytes);
    }
    Ok((base, small.then_some(Got::Small), fd))
}

/// Moves memory from small pages into huge ones if the kernel (6.1 and newer) finds some. For memory with a
/// descriptor it does so on this call alone: `transparent_hugepage/shmem_enabled` is `never` as a rule.
fn collapse(base: NonNull<u8>, bytes: usize) {
    // SAFETY: the range is one mapping of ours, and its bytes stay what they are.
    unsafe { libc::madvise(base.as_ptr().cast(), bytes, libc::MADV_COLLAPSE) };
}

/// Number of page faults that this thread has taken so far.
fn faults_taken() -> i64 {
    // SAFETY: plain numbers on this frame, which the call fills.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &mut usage);
        usage.ru_minflt
    }
}

/// Memory with a descriptor whose size can't be changed, so that a mapping of it never faults.
pub fn sealed_memfd(bytes: usize, huge: bool) -> std::io::Result<OwnedFd> {
    let kind = if huge { MemfdFlags::HUGETLB } else { MemfdFlags::empty() };
    let fd = rustix::fs::memfd_create("forebay", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | kind)?;
    rustix::fs::ftruncate(&fd, bytes as u64)?;
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(fd)
}

/// All of a descriptor's `bytes`, from a huge page's boundary on.
pub fn map_shared_memory(fd: &OwnedFd, bytes: usize) -> std::io::Result<NonNull<u8>> {
    let place = map_aligned(bytes)?;
    map_from(fd, bytes, Some(place), 0)
}

/// `place`: a mapping of ours that this one takes the place of.
fn map_from(
    fd: &OwnedFd,
    bytes: usize,
    place: Option<NonNull<u8>>,
    flags: i32,
) -> std::io::Result<NonNull<u8>> {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | flags);
    let (at, fixed) = place.map_or((std::ptr::null_mut(), 0), |at| (at.as_ptr().cast(), libc::MAP_FIXED));
    // SAFETY: a fresh mapping, or one that replaces a mapping of ours of the same length that nothing refers to.
    let at = unsafe { libc::mmap(at, bytes, protection, flags | fixed, fd.as_fd().as_raw_fd(), 0) };
    if at == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error());
    }
    Ok(NonNull::new(at.cast()).expect("mmap gave an address"))
}

fn map(bytes: usize, flags: i32) -> std::io::Result<NonNull<u8>> {
    let (protection, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags);
    // SAFETY: a fresh anonymous mapping; no existing memory is touched.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
    if at == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error());
    }
    Ok(NonNull::new(at.cast()).expect("mmap gave an address"))
}

/// A mapping that begins on a huge-page boundary; the excess at both ends is unmapped.
fn map_aligned(bytes: usize) -> std::io::Result<NonNull<u8>> {
    let base = map(bytes + HUGE, 0)?;
    let lead = base.as_ptr().align_offset(HUGE);
    // SAFETY: both ends lie inside the mapping just made and nothing refers to them.
    unsafe {
        if lead > 0 {
            libc::munmap(base.as_ptr().cast(), lead);
        }
        libc::munmap(base.as_ptr().add(lead + bytes).cast(), HUGE - lead);
        Ok(base.add(lead))
    }
}

/// Returns the address, as a hint for mmap, at which `bytes` of a file from `offset` on are best mapped: the kernel
/// uses huge pages only where address and offset lie alike within one. Null where it doesn't matter or nothing is
/// known.
pub fn aligned_place(bytes: usize, offset: u64) -> *mut libc::c_void {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let Some(room) = bytes.checked_add(HUGE).filter(|_| bytes >= HUGE) else {
        return std::ptr::null_mut();
    };
    // SAFETY: a fresh mapping that nobody can use, and that is gone again at once.
    let at = unsafe {
        let at = libc::mmap(std::ptr::null_mut(), room, libc::PROT_NONE, flags, -1, 0);
        if at == libc::MAP_FAILED {
            return std::ptr::null_mut();
        }
        libc::munmap(at, room);
        at
    };
    let beyond = (offset as usize).wrapping_sub(at as usize) % HUGE;
    at.wrapping_byte_add(beyond)
}

fn touch(base: NonNull<u8>, bytes: usize) {
    for at in (0..bytes).step_by(SMALL) {
        // SAFETY: at < bytes, inside our mapping.
        unsafe { base.add(at).as_ptr().write_volatile(0) };
    }
}

/// Number of bytes of the mapping in transparent huge pages, according to the kernel.
fn huge_share(base: NonNull<u8>, bytes: usize) -> Got {
    let (from, to) = (base.as_ptr() as usize, base.as_ptr() as usize + bytes);
    let mappings = mappings_now();
    let inside = mappings.iter().filter(|m| m.start < to && m.end > from);
    match inside.map(|m| m.huge_bytes).sum::<usize>() {
        0 => Got::Small,
        n if n >= bytes => Got::Thp,
        _ => Got::ThpPartial,
    }
}

/// A mapping of this process and the number of its bytes in huge pages.
struct Mapping {
    start: usize,
    end: usize,
    huge_bytes: usize,
}

/// The process's mappings at some moment after this call. Concurrent callers share one answer: the kernel walks all
/// memory of the process for each query, and thousands of workers would wait for minutes.
fn mappings_now() -> Arc<Vec<Mapping>> {
    static LAST: Mutex<Option<(Instant, Arc<Vec<Mapping>>)>> = Mutex::new(None);
    let asked = Instant::now();
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    match &*last {
        Some((begun, found)) if *begun > asked => found.clone(),
        _ => {
            let begun = Instant::now();
            let found = Arc::new(mappings(&std::fs::read_to_string("/proc/self/smaps").unwrap_or_default()));
            *last = Some((begun, found.clone()));
            found
        }
    }
}

/// Parses the text of `/proc/PID/smaps`: a score of lines a mapping, told apart by their first letter, since each worker's
/// memory is looked up so.
fn mappings(smaps: &str) -> Vec<Mapping> {
    let mut found: Vec<Mapping> = Vec::new();
    for line in smaps.lines() {
        match line.as_bytes().first() {
            Some(b'0'..=b'9' | b'a'..=b'f') => {
                if let Some((start, end)) = range_of(line) {
                    found.push(Mapping { start, end, huge_bytes: 0 });
                }
            }
            Some(b'A' | b'S') => {
                if let (Some(mapping), Some(rest)) = (found.last_mut(), huge_pages_of(line)) {
                    let kib: usize = rest.split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or(0);
                    mapping.huge_bytes += kib * 1024;
                }
            }
            _ => {}
        }
    }
    found
}

/// Returns the rest of a line that counts huge pages, after its name: of memory without a descriptor, and of memory
/// with one.
fn huge_pages_of(line: &str) -> Option<&str> {
    ["AnonHugePages:", "ShmemPmdMapped:"].iter().find_map(|name| line.strip_prefix(name))
}

/// `7f00-7f10 rw-p …` → its addresses; None for a line that isn't the head of a mapping.
fn range_of(line: &str) -> Option<(usize, usize)> {
    let (start, end) = line.split_whitespace().next()?.split_once('-')?;
    Some((usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?))
}

#[cfg(test)]
mod tests;
