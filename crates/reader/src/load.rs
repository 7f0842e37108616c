//! Reading into memory of the host: out of a mapping, out of the page cache without waiting, or from the device,
//! many at a time.
//!
//! It drives a ring of its own, and no `Client`. A client's queue stands for one open file: it has an inbox of its
//! reactor, which keeps it to its own end (`Reactor::token`), and tables as long as it is deep, and is made before the
//! first I/O. A worker reads any of thousands of files, most of them once or twice, by the descriptors that its request
//! brought along: each would cost a queue, and an inbox for as long as the thread lives. And of what a client adds a worker
//! needs nothing: whoever asked owns the memory, no load is given up before it ends (a buffer must not be written to after its
//! request), and a part waits for all of its loads, so that the rest of a short one is read where it stands.

#![allow(unsafe_code, reason = "filling memory that Python lends, by address")]

use super::PAGE;
use forebay_io::{guarded_copy, is_nothing_yet, monotonic_now, CopyStores, CLIENT_GRACE};
use forebay_storage::MADV_POPULATE_READ;
use io_uring::squeue::Entry;
use io_uring::{opcode, types, IoUring};
use std::io::{Error as IoError, Result as IoResult};
use std::ops::Range as Span;
use std::os::fd::RawFd;
use std::time::Duration;

/// Reads under way at a time on one worker's ring.
const RING_ENTRIES: u32 = 256;
/// Loads that are one read where they touch in the file: each read costs the system as much as half a megabyte of a long one.
/// Beyond this length that is little, and a device takes only so many pieces of memory at once.
const JOINED_BYTES_MAX: usize = 2 << 20;
const JOINED_MAX: usize = 64;
/// Ranges that are read into the page cache at a time without a ring.
const FILLED_AT_ONCE: usize = 8;
/// Interval at which completions are polled on a ring that the kernel refuses to enter.
const LOOK: Duration = Duration::from_millis(1);

/// A read that may have to wait for the device.
pub(crate) struct Load {
    pub fd: RawFd,
    pub offset: u64,
    pub at: *mut u8,
    /// Bytes that must arrive, and bytes to request: O_DIRECT needs whole blocks, also where the file ends inside one.
    pub want: usize,
    pub ask: usize,
    pub got: usize,
    /// Past the page cache.
    pub direct: bool,
    /// Its number for the caller.
    pub tag: usize,
}

impl Load {
    /// Returns whether the next one goes on in the file where this ends, so that one read brings both.
    fn goes_on_in(&self, next: &Load) -> bool {
        self.direct
            && self.fd == next.fd
            && self.want == self.ask
            && self.offset + self.ask as u64 == next.offset
    }
}

/// Loads, by their numbers, that are one read each.
fn joined(loads: &[Load]) -> Vec<Span<usize>> {
    let mut reads: Vec<Span<usize>> = Vec::with_capacity(loads.len());
    let mut bytes = 0;
    for (index, load) in loads.iter().enumerate() {
        bytes += load.ask;
        match reads.last_mut() {
            Some(read)
                if bytes <= JOINED_BYTES_MAX
                    && read.len() < JOINED_MAX
                    && loads[index - 1].goes_on_in(load) =>
            {
                read.end += 1;
            }
            _ => {
                reads.push(index..index + 1);
                bytes = load.ask;
            }
        }
    }
    reads
}

/// A range of a mapping that is to be read into the page cache.
pub(crate) struct Fill {
    /// Its address.
    pub at: usize,
    pub bytes: usize,
    /// Once it was tried: 0, or what failed.
    pub errno: Option<i32>,
}

/// Out of a mapping; how many bytes came before its end, if the file was cut.
///
/// # Safety
/// `from` lies in a mapping of `bytes` or more, and `to` has room for them.
pub(crate) unsafe fn out_of_mapping(to: *mut u8, from: *const u8, bytes: usize, stores: CopyStores) -> usize {
    // SAFETY: the caller's promise; a page that is gone ends the copy.
    bytes - unsafe { guarded_copy(to, from, bytes, stores) }
}

/// Reads from the page cache without waiting for the device; None if something is missing.
///
/// # Safety
/// `at` has room for `bytes`.
pub(crate) unsafe fn cached(fd: RawFd, offset: u64, at: *mut u8, bytes: usize) -> IoResult<Option<usize>> {
    // SAFETY: the caller's promise.
    match unsafe { read(fd, offset, at, bytes, libc::RWF_NOWAIT) } {
        Ok(got) if got == bytes => Ok(Some(got)),
        // Short: the rest isn't cached, or the file ends. The waiting read tells which.
        Ok(_) => Ok(None),
        Err(e) if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EOPNOTSUPP)) => Ok(None),
        Err(e) => Err(e),
    }
}

/// Bytes that pass at a time: few enough to stay in a processor's own cache until they are copied on.
const PASSING_BYTES: usize = 128 << 10;

/// Reads of this length keep a device busy one by one.
const WAITED_BYTES_MIN: usize = 64 << 10;

/// A buffer in a processor's cache that data pass through on their way out of the page cache, where the system's own copy to
/// their place takes longer than two.
#[derive(Default)]
pub(crate) struct PassThrough(Vec<u8>);

impl PassThrough {
    /// As `cached`, or waiting where the system can't but wait; `copy` (to, from, bytes) brings what was read to its place.
    ///
    /// # Safety
    /// `at` has room for `bytes`.
    pub(crate) unsafe fn cached(
        &mut self,
        fd: RawFd,
        offset: u64,
        at: *mut u8,
        bytes: usize,
        copy: impl Fn(*mut u8, *const u8, usize),
    ) -> IoResult<Option<usize>> {
        self.0.resize(PASSING_BYTES + 2 * PAGE, 0);
        let pages = self.0.as_mut_ptr().wrapping_add(self.0.as_ptr().align_offset(PAGE));
        let (mut done, mut flags) = (0, libc::RWF_NOWAIT);
        while done < bytes {
            // At the place in a page that the bytes have in the file's.
            let place = (offset + done as u64) as usize % PAGE;
            let turn = (bytes - done).min(PASSING_BYTES - place);
            let passing = pages.wrapping_add(place);
            // SAFETY: place + turn bytes are fewer than the buffer has from its first page on.
            let got = match unsafe { read(fd, offset + done as u64, passing, turn, flags) } {
                Ok(got) => got,
                // As of files in memory: there is no other way than to wait, which many short ones do side by side elsewhere.
                Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) && bytes >= WAITED_BYTES_MIN => {
                    flags = 0;
                    continue;
                }
                Err(e) if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EOPNOTSUPP)) => 0,
                Err(e) => return Err(e),
            };
            // Even one that waits may be short, where the file ends. The load that follows tells.
            if got < turn {
                return Ok(None);
            }
            copy(at.wrapping_add(done), passing, turn);
            done += turn;
        }
        Ok(Some(bytes))
    }
}

/// One preadv2, repeated only where a signal came first.
///
/// # Safety
/// `at` has room for `bytes`.
unsafe fn read(fd: RawFd, offset: u64, at: *mut u8, bytes: usize, flags: i32) -> IoResult<usize> {
    let vector = libc::iovec { iov_base: at.cast(), iov_len: bytes };
    loop {
        // SAFETY: the caller says that `at` has room; the vector lies on this frame.
        let got = unsafe { libc::preadv2(fd, &vector, 1, offset as i64, flags) };
        if got >= 0 {
            return Ok(got as usize);
        }
        let error = IoError::last_os_error();
        if error.raw_os_error() != Some(libc::EINTR) {
            return Err(error);
        }
    }
}

/// All of it, out of the page cache, which reads in what it lacks; fewer bytes only where the file ends.
///
/// # Safety
/// `at` has room for `bytes`.
pub(crate) unsafe fn whole(fd: RawFd, offset: u64, at: *mut u8, bytes: usize) -> IoResult<usize> {
    let mut load = Load { fd, offset, at, want: bytes, ask: bytes, got: 0, direct: false, tag: 0 };
    // SAFETY: the caller's promise.
    unsafe { finish(&mut load) }.map(|()| load.got)
}

#[derive(Default)]
pub(crate) struct Loader {
    ring: Option<IoUring>,
    /// Some systems forbid rings, or forbid them meanwhile.
    no_ring: bool,
}

impl Loader {
    /// Runs all loads to their end; each says what it `got`. The first failure is returned once none is under way.
    ///
    /// # Safety
    /// Each `at` has room for what is asked for.
    pub(crate) unsafe fn run(&mut self, loads: &mut [Load]) -> Result<(), (usize, IoError)> {
        let mut failed = None;
        if loads.len() > 1 {
            for group in loads.chunks_mut(RING_ENTRIES as usize) {
                let reads = joined(group);
                let vector = |load: &Load| libc::iovec { iov_base: load.at.cast(), iov_len: load.ask };
                let vectors: Vec<libc::iovec> = group.iter().map(vector).collect();
                let entry = |read: &Span<usize>| {
                    let (load, fd) = (&group[read.start], types::Fd(group[read.start].fd));
                    if read.len() > 1 {
                        let vectors = vectors[read.clone()].as_ptr();
                        return opcode::Readv::new(fd, vectors, read.len() as u32)
                            .offset(load.offset)
                            .build();
                    }
                    opcode::Read::new(fd, load.at, load.ask as u32).offset(load.offset).build()
                };
                let entries: Vec<Entry> = reads.iter().map(entry).collect();
                let done = |index: usize, result: i32| match result {
                    got if got >= 0 => {
                        let mut left = got as usize;
                        for load in &mut group[reads[index].clone()] {
                            load.got = left.min(load.ask);
                            left -= load.got;
                        }
                    }
                    // The waiting read does it anew; of several, it finds the one that fails.
                    errno if matches!(-errno, libc::EAGAIN | libc::EINTR) || reads[index].len() > 1 => {}
                    errno => {
                        let first = (group[reads[index].start].tag, IoError::from_raw_os_error(-errno));
                        failed.get_or_insert(first);
                    }
                };
                // SAFETY: the caller's promise.
                unsafe { self.through_ring(entries, done) };
            }
        }
        if let Some(failed) = failed {
            return Err(failed);
        }
        // What the ring didn't take or left short.
        for load in loads {
            // SAFETY: the caller's promise.
            unsafe { finish(load) }.map_err(|e| (load.tag, e))?;
        }
        Ok(())
    }

    /// Has ranges of mappings read into the page cache, several at a time where there is a ring: each waits for the device in a
    /// thread of the kernel's.
    ///
    /// # Safety
    /// They are whole pages of mappings, which stay until this returns.
    pub(crate) unsafe fn fill(&mut self, ranges: &mut [Fill]) {
        if ranges.len() > 1 {
            for group in ranges.chunks_mut(RING_ENTRIES as usize) {
                let entry = |range: &Fill| {
                    let bytes = range.bytes as libc::off_t;
                    opcode::Madvise::new(range.at as *const _, bytes, MADV_POPULATE_READ).build()
                };
                let entries: Vec<Entry> = group.iter().map(entry).collect();
                // SAFETY: the caller's promise.
                unsafe { self.through_ring(entries, |index, result| group[index].errno = Some(-result)) };
            }
        }
        // What the ring didn't take or left for a moment.
        let again = |errno| matches!(errno, libc::EAGAIN | libc::EINTR);
        let left = ranges.iter_mut().filter(|range| range.errno.is_none_or(again));
        fill_by_threads(&mut left.collect::<Vec<_>>());
    }

    fn ring(&mut self) -> Option<&mut IoUring> {
        if self.ring.is_none() && !self.no_ring {
            // Completions that don't interrupt whoever waits for all of them, where the kernel can (6.1).
            let deferred = IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(RING_ENTRIES);
            self.ring = deferred.or_else(|_| IoUring::new(RING_ENTRIES)).ok();
            self.no_ring = self.ring.is_none();
        }
        self.ring.as_mut()
    }

    /// Has operations done, and each one's result told by its number. Of what isn't told of nothing was begun, or a filter of system
    /// calls holds back the news of its end.
    ///
    /// # Safety
    /// What they read or write stays until this returns; they are at most `RING_ENTRIES`.
    unsafe fn through_ring(&mut self, entries: Vec<Entry>, mut tell: impl FnMut(usize, i32)) {
        let Some(ring) = self.ring() else { return };
        let mut left = entries.len();
        for (index, entry) in entries.into_iter().enumerate() {
            // SAFETY: the buffer stays until the completion is reaped below; the ring has an entry for each.
            unsafe { ring.submission().push(&entry.user_data(index as u64)) }.expect("an entry for each");
        }
        let mut refused = None;
        while left > 0 {
            match ring.submit_and_wait(left).map_err(|e| e.raw_os_error()) {
                Ok(_) => {}
                // Out of memory for the moment, say, or the completions must be reaped first.
                Err(Some(errno)) if is_nothing_yet(errno) => std::thread::yield_now(),
                // A filter of system calls may come at any time. What the kernel has by then it completes all the same,
                // into memory that is lent to it: there are twice as many places for completions as for reads. The
                // rest is never begun, and is left to the waiting calls.
                Err(_) => {
                    let since = *refused.get_or_insert_with(|| {
                        left -= ring.submission().len();
                        monotonic_now()
                    });
                    // Of what completes without a call a ring that defers doesn't tell: by then a device has written it, unless it
                    // stands still, and nothing can be known of that any more.
                    if ring.params().is_setup_single_issuer() && since.elapsed() > CLIENT_GRACE {
                        break;
                    }
                    std::thread::sleep(LOOK);
                }
            }
            for done in ring.completion() {
                left -= 1;
                tell(done.user_data() as usize, done.result());
            }
        }
        if refused.is_some() {
            let ring = self.ring.take();
            self.no_ring = true;
            if left > 0 {
                // Closed, it would go on with what waits for a call.
                std::mem::forget(ring);
            }
        }
    }
}

/// Has ranges of mappings read into the page cache by threads for the moment, which wait for the device side by side.
fn fill_by_threads(ranges: &mut [&mut Fill]) {
    let fill = |range: &mut Fill| {
        // SAFETY: pages of a mapping that stays, by the caller's promise; the kernel writes to none.
        let done = unsafe { libc::madvise(range.at as *mut _, range.bytes, MADV_POPULATE_READ) };
        let errno = || IoError::last_os_error().raw_os_error().unwrap_or(libc::EIO);
        range.errno = Some(if done == 0 { 0 } else { errno() });
    };
    let each = ranges.len().div_ceil(FILLED_AT_ONCE).max(1);
    std::thread::scope(|scope| {
        let mut chunks = ranges.chunks_mut(each);
        let own = chunks.next();
        let others: Vec<_> = chunks.collect();
        for some in others {
            let fill = &fill;
            let one = move || some.iter_mut().for_each(|range| fill(range));
            let _ = std::thread::Builder::new().spawn_scoped(scope, one);
        }
        own.into_iter().flatten().for_each(|range| fill(range));
    });
    // Where no thread was to be had, by this one.
    ranges.iter_mut().filter(|range| range.errno.is_none()).for_each(|range| fill(range));
}

/// Waits for the rest of a load; short only where the file ends.
///
/// # Safety
/// Its `at` has room for what it asks for.
pub(crate) unsafe fn finish(load: &mut Load) -> IoResult<()> {
    while load.got < load.want {
        let (offset, room) = (load.offset + load.got as u64, load.ask - load.got);
        // SAFETY: `at` has room for `ask`, of which `got` are used.
        match unsafe { read(load.fd, offset, load.at.add(load.got), room, 0) } {
            Ok(0) => break,
            Ok(got) => load.got += got,
            // An O_DIRECT read that ended inside a block: there the file ends.
            Err(e) if load.got > 0 && e.raw_os_error() == Some(libc::EINVAL) => break,
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_rigs::seccomp::{forbid_entering, forbid_waiting_on};
    use forebay_storage::{FileAccess, FileMapping, FileTarget};
    use std::io::Write;
    use std::os::fd::AsRawFd;

    const BYTES: usize = 4096;

    fn loads<'a>(fds: &'a [RawFd], into: &'a mut [[u8; BYTES]]) -> Vec<Load> {
        let load = |(tag, (fd, room)): (usize, (&RawFd, &mut [u8; BYTES]))| Load {
            fd: *fd,
            offset: 0,
            at: room.as_mut_ptr(),
            want: BYTES,
            ask: BYTES,
            got: 0,
            direct: false,
            tag,
        };
        fds.iter().zip(into).enumerate().map(load).collect()
    }

    fn file() -> std::fs::File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[7; BYTES]).unwrap();
        file
    }

    // promise: PYT-2
    #[test]
    fn what_passes_through_the_buffer_comes_whole_and_what_a_cut_file_lacks_is_missing() {
        let content: Vec<u8> =
            (0..3 * PASSING_BYTES + 777).map(|i| (i.wrapping_mul(0x9E37_79B9) >> 24) as u8).collect();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&content).unwrap();
        let mut pass = PassThrough::default();
        let mut read = |offset: usize, bytes: usize| {
            let mut to = vec![0xEE; bytes + 1];
            let copy = |to, from, bytes| {
                // SAFETY: the buffer has that much, and `to` room for all.
                unsafe { forebay_io::copy_memory(to, from, bytes, CopyStores::Cached) };
            };
            // SAFETY: `to` has room for them.
            let got = unsafe { pass.cached(file.as_raw_fd(), offset as u64, to.as_mut_ptr(), bytes, copy) };
            assert_eq!(to[bytes], 0xEE);
            to.truncate(bytes);
            got.unwrap().map(|got| (got, to))
        };
        if read(0, 1).is_none() {
            eprintln!("skipped: the file system doesn't read without waiting");
            return;
        }
        for (offset, bytes) in
            [(0, content.len()), (1, PASSING_BYTES), (4095, 4097), (5000, 0), (4096, 2 * PASSING_BYTES)]
        {
            assert!(
                read(offset, bytes) == Some((bytes, content[offset..offset + bytes].to_vec())),
                "{offset} {bytes}"
            );
        }
        file.set_len(2 * PASSING_BYTES as u64 + 5).unwrap();
        assert_eq!(read(4096, 3 * PASSING_BYTES - 4096), None);
    }

    // promise: FEED-1
    #[test]
    fn loads_that_touch_in_the_file_are_one_read_whose_failure_is_of_one_of_them() {
        let content: Vec<u8> = (0..10 * BYTES).map(|i| (i / 100) as u8).collect();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&content).unwrap();
        // From the last to the first, but for the fifth, which isn't read.
        let places: Vec<usize> = (0..10).rev().filter(|page| *page != 4).collect();
        let mut into = vec![[0u8; BYTES]; places.len()];
        let mut loads = loads(&vec![file.as_raw_fd(); places.len()], &mut into);
        for (load, page) in loads.iter_mut().zip(&places) {
            (load.offset, load.direct) = ((page * BYTES) as u64, true);
        }
        loads.sort_by_key(|load| load.offset);
        assert_eq!(joined(&loads), [0..4, 4..9]);
        loads[7].direct = false;
        assert_eq!(joined(&loads), [0..4, 4..8, 8..9]);
        let mut loader = Loader::default();
        // SAFETY: each has as much room as it asks for.
        unsafe { loader.run(&mut loads) }.unwrap();
        for (read, page) in into.iter().zip(&places) {
            assert_eq!(read[..], content[page * BYTES..][..BYTES]);
        }
        file.set_len(6 * BYTES as u64 + 5).unwrap();
        loads.iter_mut().for_each(|load| load.got = 0);
        // SAFETY: as above.
        unsafe { loader.run(&mut loads) }.unwrap();
        let got: Vec<usize> = loads.iter().map(|load| load.got).collect();
        assert_eq!(got, [BYTES, BYTES, BYTES, BYTES, BYTES, 5, 0, 0, 0]);
        loads.iter_mut().for_each(|load| load.got = 0);
        (loads[2].at, loads[2].tag) = (std::ptr::null_mut(), 77);
        // SAFETY: the kernel writes to no page that isn't there.
        let failed = unsafe { loader.run(&mut loads) }.unwrap_err();
        assert_eq!((failed.0, failed.1.raw_os_error()), (77, Some(libc::EFAULT)));
    }

    /// Tests a ring that was entered before, and one that never was.
    // promise: ENG-6
    #[test]
    fn where_rings_may_not_be_entered_any_more_it_reads_on_without() {
        let run = || {
            let file = file();
            let fds = [file.as_raw_fd(); 3];
            let (mut early, mut late) = (Loader::default(), Loader::default());
            for forbidden in [false, true] {
                if forbidden {
                    forbid_entering(libc::EPERM);
                }
                for loader in [&mut early, &mut late].into_iter().take(1 + usize::from(forbidden)) {
                    let mut into = [[0; BYTES]; 3];
                    let mut loads = loads(&fds, &mut into);
                    // SAFETY: each has as much room as it asks for.
                    unsafe { loader.run(&mut loads) }.unwrap();
                    assert_eq!(into, [[7; BYTES]; 3]);
                    assert_eq!(loader.no_ring, forbidden || loader.ring.is_none());
                }
            }
        };
        std::thread::spawn(run).join().unwrap();
    }

    /// Tests a ring, and a process that may have none.
    // promise: FEED-18
    #[test]
    fn ranges_of_a_mapping_are_read_into_the_page_cache_with_a_ring_and_without() {
        const EACH: usize = 64 << 10;
        let run = || {
            let mut file = tempfile::NamedTempFile::new().unwrap();
            file.write_all(&[7; 20 * EACH]).unwrap();
            let target = FileTarget::open(file.path(), FileAccess { write: false, direct: false }).unwrap();
            let mapping = FileMapping::new(&target).unwrap();
            if !mapping.can_populate() {
                eprintln!("skipped: the kernel doesn't fill page tables when asked to");
                return;
            }
            let mut loader = Loader::default();
            for forbidden in [false, true] {
                if forbidden {
                    forbid_entering(libc::EPERM);
                }
                let fill = |i| Fill {
                    at: mapping.address((i * EACH) as u64).as_ptr() as usize,
                    bytes: EACH,
                    errno: None,
                };
                let mut ranges: Vec<Fill> = (0..20).map(fill).collect();
                // SAFETY: whole pages of the mapping.
                unsafe { loader.fill(&mut ranges) };
                assert!(ranges.iter().all(|range| range.errno == Some(0)), "{forbidden}");
            }
            file.as_file().set_len(EACH as u64).unwrap();
            let mut ranges: Vec<Fill> = (0..2)
                .map(|i| Fill {
                    at: mapping.address((i * EACH) as u64).as_ptr() as usize,
                    bytes: EACH,
                    errno: None,
                })
                .collect();
            // SAFETY: as above; of one the file has no page any more.
            unsafe { loader.fill(&mut ranges) };
            assert_eq!([&ranges[0], &ranges[1]].map(|range| range.errno), [Some(0), Some(libc::EFAULT)]);
        };
        std::thread::spawn(run).join().unwrap();
    }

    /// The kernel has a read by then, and completes it when its bytes come, or where its ring defers that, not any more.
    // promise: ENG-6
    #[test]
    fn reads_that_a_refused_ring_has_are_waited_for_or_never_end() {
        extern "C" fn nothing(_: libc::c_int) {}
        // SAFETY: a handler that does nothing.
        unsafe { libc::signal(libc::SIGUSR1, nothing as *const () as libc::sighandler_t) };
        let run = |defers: bool| {
            let mut loader = Loader::default();
            if !defers {
                loader.ring = IoUring::new(RING_ENTRIES).ok();
            }
            if loader.ring().is_none_or(|ring| ring.params().is_setup_single_issuer() != defers) {
                return;
            }
            let (read, write) = rustix::pipe::pipe().unwrap();
            let file = file();
            let fds = [file.as_raw_fd(), read.as_raw_fd()];
            let mut into = [[0; BYTES]; 2];
            let mut loads = loads(&fds, &mut into);
            // SAFETY: of this thread.
            let reads = unsafe { libc::pthread_self() } as usize;
            let (over, is_over) = std::sync::mpsc::channel();
            // Ends the first wait, which a filter would have to come in the middle of.
            let sender = std::thread::spawn(move || {
                for turn in 0.. {
                    // SAFETY: the thread waits for this one.
                    unsafe { libc::pthread_kill(reads as libc::pthread_t, libc::SIGUSR1) };
                    if turn == 10 && !defers {
                        assert_eq!(rustix::io::write(&write, &[9; BYTES]), Ok(BYTES));
                    }
                    if is_over.recv_timeout(Duration::from_millis(5)).is_ok() {
                        return write;
                    }
                }
                unreachable!("turns are endless")
            });
            // A call that hands something over is allowed.
            forbid_waiting_on(libc::EPERM);
            // SAFETY: each has as much room as it asks for.
            let done = unsafe { loader.run(&mut loads) };
            over.send(()).unwrap();
            let write = sender.join().unwrap();
            if !defers {
                assert!(done.is_ok() && into == [[7; BYTES], [9; BYTES]]);
                return;
            }
            assert!(loader.ring.is_none() && loader.no_ring);
            // A pipe can't be read anew, as a file is.
            let failed = done.unwrap_err();
            assert_eq!((failed.0, failed.1.raw_os_error()), (1, Some(libc::ESPIPE)));
            assert_eq!(rustix::io::write(&write, &[9; BYTES]), Ok(BYTES));
            std::thread::sleep(Duration::from_millis(20));
            assert_eq!(
                into,
                [[7; BYTES], [0; BYTES]],
                "something was written to memory that isn't lent any more"
            );
        };
        for defers in [false, true] {
            std::thread::spawn(move || run(defers)).join().unwrap();
        }
    }
}
