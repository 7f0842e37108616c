use std::io::Write;
use std::os::fd::AsRawFd;

use super::Stores;

/// A file of ours, mapped; its bytes tell their place.
fn mapped(bytes: usize) -> (std::fs::File, *mut u8, Vec<u8>) {
    super::install_copy_guard();
    let content: Vec<u8> = (0..bytes).map(|i| (i.wrapping_mul(0x9E37_79B9) >> 24) as u8).collect();
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&content).unwrap();
    // SAFETY: a fresh mapping of our own file, read only through `guarded_copy`.
    let map = unsafe {
        libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0)
    };
    assert_ne!(map, libc::MAP_FAILED);
    (file, map.cast(), content)
}

#[test]
fn every_length_and_place_is_copied_as_it_is_and_not_a_byte_more() {
    const BYTES: usize = 5 * 32768 + 777;
    let (_file, map, content) = mapped(BYTES);
    for stores in [Stores::Cached, Stores::Moved, Stores::Ahead, Stores::Streamed] {
        for (from, to, bytes) in [
            (0, 0, BYTES),
            (0, 0, 4 * 32768),
            (1, 0, 32768),
            (63, 64, 2 * 32768 + 1),
            (4096, 17, 3 * 32768 + 4095),
            (5, 5, 0),
            (0, 128, 32767),
            (3, 1, 64),
            (7, 0, 65),
            (1, 2, 63),
            (4001, 9, 912),
            (4096, 0, 4096),
            (11, 3, 8192),
        ] {
            // Places a few bytes behind the source's in a page are among them.
            let mut slot = vec![0xA5u8; BYTES + 512 + 4096];
            let base = slot.as_ptr().align_offset(4096);
            // SAFETY: both ranges lie inside their memory.
            let left = unsafe {
                super::guarded_copy(slot.as_mut_ptr().add(base + to), map.add(from), bytes, stores)
            };
            assert_eq!(left, 0);
            let at = base + to;
            assert_eq!(slot[at..at + bytes], content[from..from + bytes], "{from} {to} {bytes} {stores:?}");
            assert!(slot[..at].iter().chain(&slot[at + bytes..]).all(|b| *b == 0xA5));
        }
    }
    // SAFETY: our mapping.
    unsafe { libc::munmap(map.cast(), BYTES) };
}

#[test]
fn rows_are_copied_as_they_are_one_behind_the_other_and_not_a_byte_more() {
    const BYTES: usize = 96 * 9000;
    let (_file, map, content) = mapped(BYTES);
    for row_bytes in [1usize, 63, 64, 65, 100, 128, 912, 4096, 8192, 9000] {
        for step in [1, row_bytes] {
            for count in [0u64, 1, 2, 23, 24, 25, 90] {
                let last = ((BYTES - row_bytes - 5) / step) as u64;
                let numbers: Vec<u64> = (0..count).map(|i| (i * 7919 + i * i * 104_729) % last).collect();
                let whole = numbers.len() * row_bytes;
                let mut to = vec![0xA5u8; whole + 128];
                // SAFETY: each row lies in the mapping, and there is room for all.
                let left = unsafe {
                    let rows = (&numbers[..], step as u64);
                    super::guarded_row_copy(to.as_mut_ptr().add(3), map.add(5), rows, row_bytes)
                };
                assert_eq!(left, 0);
                let begin = |number: &u64| 5 + *number as usize * step;
                let wanted: Vec<u8> =
                    numbers.iter().flat_map(|n| &content[begin(n)..begin(n) + row_bytes]).copied().collect();
                assert!(to[3..3 + whole] == wanted, "{row_bytes} {step} {count}");
                assert!(to[..3].iter().chain(&to[3 + whole..]).all(|b| *b == 0xA5));
            }
        }
    }
    // SAFETY: our mapping.
    unsafe { libc::munmap(map.cast(), BYTES) };
}

// promise: FLT-3
#[test]
fn of_a_truncated_file_the_rows_before_the_first_that_is_gone_are_copied() {
    for row_bytes in [60usize, 64, 500, 4096, 8200] {
        const BYTES: usize = 10 * 8200;
        let (file, map, content) = mapped(BYTES);
        file.set_len(20480).unwrap();
        let numbers = [0, 4096, 8192, 40_000, 100];
        let mut to = vec![0u8; numbers.len() * row_bytes];
        // SAFETY: as long as the mapping; pages behind what was kept are gone.
        let left = unsafe { super::guarded_row_copy(to.as_mut_ptr(), map, (&numbers, 1), row_bytes) };
        assert_eq!(left, 2, "{row_bytes}");
        for (i, number) in numbers[..3].iter().map(|n| *n as usize).enumerate() {
            assert!(to[i * row_bytes..][..row_bytes] == content[number..number + row_bytes]);
        }
        // SAFETY: our mapping.
        unsafe { libc::munmap(map.cast(), BYTES) };
    }
}

// promise: FLT-3
#[test]
fn a_truncated_file_stops_the_copy_and_says_what_is_left() {
    for stores in [Stores::Cached, Stores::Moved, Stores::Ahead, Stores::Streamed] {
        for (bytes, kept) in [
            (16384, 8192),
            (4 * 32768, 2 * 32768 + 8192),
            (3 * 32768, 0),
            (8192, 4096),
            (4100, 4096),
            (160, 0),
        ] {
            let (file, map, content) = mapped(bytes);
            file.set_len(kept as u64).unwrap();
            for behind in [0, 16, 64] {
                let mut room = vec![0u8; bytes + 2 * 4096];
                let at = room.as_ptr().align_offset(4096) + behind;
                let to = &mut room[at..];
                // SAFETY: as long as the mapping; the pages behind `kept` are gone.
                assert_eq!(unsafe { super::guarded_copy(to.as_mut_ptr(), map, bytes, stores) }, bytes - kept);
                assert_eq!(to[..kept], content[..kept]);
            }
            // SAFETY: our mapping.
            unsafe { libc::munmap(map.cast(), bytes) };
        }
    }
}
