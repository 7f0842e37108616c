use super::*;
use std::mem::ManuallyDrop;

// promise: ENG-5
#[test]
fn slots_are_aligned_apart_and_inside_one_piece() {
    let arena = Arena::new(7, 100_000, Pages::Auto).unwrap();
    let pieces = arena.pieces();
    for i in 0..7 {
        let at = arena.slot(i).host_ptr() as usize;
        assert_eq!(at % SMALL, 0);
        let p = pieces[i / arena.slots_per_piece];
        assert!(at >= p.iov_base as usize);
        assert!(at + arena.slot_bytes() <= p.iov_base as usize + p.iov_len);
    }
}

#[test]
#[cfg_attr(miri, ignore = "asks the kernel for its mappings")]
fn shared_slots_are_the_descriptors_bytes() {
    for pages in [Pages::Small, Pages::Auto] {
        let arena = Arena::shared(3, 5000, pages).unwrap();
        let last = arena.slot(2).host_ptr();
        // SAFETY: the slot is ours, and nothing else looks at it.
        unsafe { last.write(7) };
        let at = last as usize - arena.whole().0.as_ptr() as usize;
        let mut byte = [0];
        rustix::io::pread(arena.fd().unwrap(), &mut byte, at as u64).unwrap();
        assert_eq!(byte, [7]);
        assert!(rustix::fs::ftruncate(arena.fd().unwrap(), 0).is_err(), "sealed");
    }
    assert!(Arena::new(1, 1, Pages::Small).unwrap().fd().is_none());
}

// promise: ENG-16
#[test]
fn no_piece_is_longer_than_the_kernel_registers() {
    let slot_bytes = 300 << 20;
    let arena = ManuallyDrop::new(Arena {
        base: NonNull::dangling(),
        mapped_bytes: 0,
        slot_bytes,
        count: 7,
        slots_per_piece: PIECE_BYTES_MAX / slot_bytes,
        got: Got::Small.into(),
        registered: false,
        fd: None,
    });
    assert!(arena.pieces().iter().all(|p| p.iov_len <= PIECE_BYTES_MAX));
    assert_eq!(arena.pieces().iter().map(|p| p.iov_len).sum::<usize>(), 7 * slot_bytes);
}

// promise: ENG-5
#[test]
#[cfg_attr(miri, ignore = "asks the kernel for its mappings")]
fn memory_with_a_descriptor_lies_in_huge_pages_here_and_where_it_is_mapped_again() {
    // SAFETY: of no bytes; it fails where the kernel doesn't know this advice (before 6.1).
    if unsafe { libc::madvise(std::ptr::null_mut(), 0, libc::MADV_COLLAPSE) } != 0 {
        return;
    }
    let (bytes, read, write) = (4 * HUGE, libc::PROT_READ, libc::PROT_WRITE);
    let (base, got, fd) = shared_memory(bytes, Pages::Thp).unwrap();
    assert_eq!(got, None);
    assert_ne!(huge_share(base, bytes), Got::Small);
    for (from, len) in [(0, bytes), (HUGE + SMALL, bytes - HUGE - SMALL)] {
        let hint = aligned_place(len, from as u64);
        // SAFETY: a fresh mapping of a part of the memory, whose size is sealed.
        let at =
            unsafe { libc::mmap(hint, len, read | write, libc::MAP_SHARED, fd.as_raw_fd(), from as i64) };
        assert_ne!(at, libc::MAP_FAILED);
        let at = NonNull::new(at.cast()).unwrap();
        touch(at, len);
        assert_ne!(huge_share(at, len), Got::Small, "{len} bytes from {from} on");
    }
    assert!(aligned_place(SMALL, 0).is_null());
}

#[test]
fn mappings_are_read_with_their_huge_pages() {
    let text = concat!(
        "7f00-7f10 rw-p 0000 00:00 0\nSize: 4 kB\nAnonHugePages:   2048 kB\nShmemPmdMapped:   0 kB\n",
        "7f10-7f20 r--p 0 0 0 lib\nSize: 4 kB\n",
        "7f20-7f30 rw-s 0 0 0 /memfd:\nAnonHugePages: 0 kB\nShmemPmdMapped: 4096 kB\n",
    );
    let found = mappings(text);
    assert_eq!(
        found.iter().map(|m| (m.start, m.end, m.huge_bytes)).collect::<Vec<_>>(),
        [(0x7f00, 0x7f10, 2 << 20), (0x7f10, 0x7f20, 0), (0x7f20, 0x7f30, 4 << 20)]
    );
}

#[test]
#[cfg_attr(miri, ignore = "asks the kernel for its mappings")]
fn an_answer_is_not_older_than_its_question() {
    let holds = |at: usize| mappings_now().iter().any(|m| m.start <= at && at < m.end);
    for _ in 0..3 {
        let arena = Arena::new(1, HUGE, Pages::Thp).unwrap();
        assert!(holds(arena.whole().0.as_ptr() as usize));
    }
}

// promise: ENG-5
#[test]
#[cfg_attr(miri, ignore = "asks the kernel for its mappings")]
fn the_kind_of_pages_is_looked_up_when_it_is_asked_for_and_kept() {
    let arena = Arena::new(4, HUGE, Pages::Thp).unwrap();
    assert_eq!(arena.got.get(), None);
    let got = arena.got();
    assert!(matches!(got, Got::Thp | Got::ThpPartial | Got::Small));
    assert_eq!(arena.got.get(), Some(&got));
    assert_eq!(got, huge_share(arena.base, arena.mapped_bytes));
}

// promise: ENG-5
#[test]
fn small_pages_are_small() {
    assert_eq!(Arena::new(4, 1 << 20, Pages::Small).unwrap().got(), Got::Small);
}
