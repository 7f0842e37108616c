use super::*;
use rustix::fs::{ftruncate, memfd_create, MemfdFlags};

fn memory(bytes: u64) -> OwnedFd {
    let fd = memfd_create("dma", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&fd, bytes).unwrap();
    fd
}

fn asked(address: u64, bytes: u64) -> Asked {
    Asked { address, bytes, offset: 0, readable: true, writable: true }
}

#[test]
fn bytes_go_where_they_are_sent_and_across_mappings_that_adjoin() {
    let (table, fd) = (Table::default(), memory(3 * PAGE));
    let file = File::from(fd.try_clone().unwrap());
    let second = Asked { offset: 2 * PAGE, ..asked(0x1_1000, PAGE) };
    table.map(asked(0x1_0000, PAGE), Some(fd.try_clone().unwrap())).unwrap();
    table.map(second, Some(fd)).unwrap();
    let map = table.map_now();
    map.write(0x1_0ffc, b"headtail").unwrap();
    let mut read = [0; 8];
    map.read(0x1_0ffc, &mut read).unwrap();
    assert_eq!(&read, b"headtail");
    let mut there = [0; 4];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut there, 2 * PAGE).unwrap();
    assert_eq!(&there, b"tail", "the second page is the file's third");
    map.store(0x1_1004, 77).unwrap();
    assert_eq!((map.load(0x1_1004), map.load(0x1_1002)), (Ok(77), Err(Refused::NotAllowed)));
    assert_eq!(map.read(0x1_1ffc, &mut read), Err(Refused::Unmapped));
    assert_eq!(map.write(u64::MAX - 3, &read), Err(Refused::Unmapped));
}

#[test]
fn nonsense_is_refused_by_its_errno() {
    let table = Table::default();
    table.map(asked(0x10_0000, 2 * PAGE), Some(memory(2 * PAGE))).unwrap();
    let pipe = rustix::pipe::pipe().unwrap().0;
    for (asked, fd, errno) in [
        (asked(0, 0), Some(memory(PAGE)), libc::EINVAL),
        (asked(1, PAGE), Some(memory(PAGE)), libc::EINVAL),
        (asked(0, PAGE + 1), Some(memory(2 * PAGE)), libc::EINVAL),
        (asked(0, 2 * PAGE), Some(memory(PAGE)), libc::EINVAL),
        (asked(0, 1 << 63), None, libc::EINVAL),
        (asked(u64::MAX - PAGE + 1, 2 * PAGE), None, libc::EINVAL),
        (Asked { offset: 5, ..asked(0, PAGE) }, Some(memory(2 * PAGE)), libc::EINVAL),
        (Asked { offset: u64::MAX - PAGE + 1, ..asked(0, PAGE) }, Some(memory(PAGE)), libc::EINVAL),
        (asked(0x10_1000, PAGE), Some(memory(PAGE)), libc::EEXIST),
        (asked(0xf_f000, 2 * PAGE), None, libc::EEXIST),
        (asked(0xf_f000, 64 * PAGE), None, libc::EEXIST),
        (asked(0, PAGE), Some(pipe), libc::EACCES),
    ] {
        assert_eq!(table.map(asked, fd), Err(errno), "{asked:?}");
    }
    for (address, bytes) in [(0x10_0000, PAGE), (0x10_1000, PAGE), (0, u64::MAX)] {
        assert_eq!(table.unmap(address, bytes).unwrap_err(), libc::ENOENT);
    }
}

#[test]
fn what_a_mapping_does_not_allow_is_refused() {
    let table = Table::default();
    table.map(Asked { writable: false, ..asked(0, PAGE) }, Some(memory(PAGE))).unwrap();
    table.map(asked(PAGE, PAGE), None).unwrap();
    let map = table.map_now();
    assert_eq!(map.write(0, &[1]), Err(Refused::NotAllowed));
    assert_eq!(map.read(PAGE, &mut [0]), Err(Refused::OutOfReach));
    assert_eq!(map.read(PAGE - 1, &mut [0; 2]), Err(Refused::OutOfReach));
    let (mut pieces, mut held) = (PieceList::default(), HeldMappings::default());
    assert_eq!(map.gather(0, 64, Access::Write, &mut pieces, &mut held), Err(Refused::NotAllowed));
    assert_eq!(map.gather(0, 64, Access::Read, &mut pieces, &mut held), Ok(()));
}

// promise: GWY-4
#[test]
fn a_mapping_lives_until_its_last_io_ends() {
    let table = Table::default();
    table.map(asked(0, 2 * PAGE), Some(memory(2 * PAGE))).unwrap();
    let (map, mut pieces, mut held) = (table.map_now(), PieceList::default(), HeldMappings::default());
    map.gather(16, 5000, Access::Write, &mut pieces, &mut held).unwrap();
    drop(map);
    let gone = table.unmap(0, 2 * PAGE).unwrap();
    assert!(!gone.is_free());
    assert_eq!(table.map_now().read(16, &mut [0]), Err(Refused::Unmapped), "newcomers don't see it");
    held.clear();
    assert!(gone.is_free());
}

// promise: GWY-4
#[test]
#[cfg(target_arch = "x86_64")]
fn memory_that_its_owner_took_away_is_an_error_and_no_more() {
    let (table, fd) = (Table::default(), memory(2 * PAGE));
    table.map(asked(0, 2 * PAGE), Some(fd.try_clone().unwrap())).unwrap();
    ftruncate(&fd, PAGE).unwrap();
    let map = table.map_now();
    assert_eq!(map.read(PAGE - 4, &mut [0; 8]), Err(Refused::Gone));
    assert_eq!(map.write(PAGE, &[0; 8]), Err(Refused::Gone));
    assert_eq!((map.load(PAGE), map.store(PAGE + 8, 1)), (Err(Refused::Gone), Err(Refused::Gone)));
    map.write(0, &[1; 64]).unwrap();
}
