//! The PCI configuration space of a drive, as a driver reads and writes it.

use forebay_serve::{ConfigSpace, ConfigWrite, FunctionNames};

/// Of the configuration space of a PCI Express function.
const BYTES: usize = 4096;

fn space() -> ConfigSpace {
    ConfigSpace::new(FunctionNames { vendor: 0x1234, device: 0x5678 }, 0x4000, 32)
}

fn word(space: &ConfigSpace, at: u64) -> u32 {
    let mut bytes = [0; 4];
    space.read(at, &mut bytes);
    u32::from_le_bytes(bytes)
}

#[test]
fn a_driver_finds_an_nvme_function_and_its_capabilities() {
    let space = space();
    assert_eq!((word(&space, 0), word(&space, 8) >> 8), (0x5678_1234, 0x01_08_02));
    let (mut at, mut found) = (word(&space, 0x34) & 0xff, Vec::new());
    while at != 0 && found.len() < 8 {
        found.push(word(&space, at.into()) & 0xff);
        at = word(&space, at.into()) >> 8 & 0xff;
    }
    assert_eq!(found, [0x01, 0x11, 0x10]);
    assert_eq!(word(&space, 0x50) >> 16, 31, "vectors, less one");
    assert_eq!((word(&space, 0x54), word(&space, 0x58)), (4, 0x8004), "both in BAR 4");
}

#[test]
fn a_bar_says_its_size_and_keeps_its_address() {
    let mut space = space();
    for (bar, bytes) in [(0x10, 0x4000u32), (0x20, 0x1_0000)] {
        space.write(bar, &[0xff; 8]);
        assert_eq!(word(&space, bar), !(bytes - 1) | 0b100);
        assert_eq!(word(&space, bar + 4), u32::MAX);
        space.write(bar, &0x8000_0000u64.to_le_bytes());
        assert_eq!(word(&space, bar), 0x8000_0000 | 0b100);
    }
    space.write(0x14 + 4, &[0xff; 4]);
    assert_eq!(word(&space, 0x18), 0, "there is no BAR 2");
}

#[test]
fn only_what_may_be_written_changes() {
    let mut space = space();
    for at in (0..BYTES as u64).step_by(4) {
        if !(0x68..0x6c).contains(&at) {
            assert_eq!(space.write(at, &[0xff; 4]), ConfigWrite::default(), "{at:#x}");
        }
    }
    assert_eq!((word(&space, 0), word(&space, 4)), (0x5678_1234, 0x0010_0406));
    assert!(space.bus_master());
    assert_eq!(word(&space, 0x100), 0, "no extended capabilities");
}

#[test]
fn behind_its_end_there_are_zeros_up_to_the_last_offset() {
    let mut space = space();
    for offset in [BYTES as u64 - 2, BYTES as u64, u64::MAX - 7, u64::MAX - 1, u64::MAX] {
        assert_eq!(space.write(offset, &[0xff; 8]), ConfigWrite::default());
        let mut bytes = [0xff; 8];
        space.read(offset, &mut bytes);
        assert_eq!(bytes, [0; 8], "{offset:#x}");
    }
}

#[test]
fn a_function_level_reset_is_seen_and_undoes_what_was_written() {
    let (mut space, fresh) = (space(), space());
    space.write(4, &[6, 0]);
    assert!(space.write(0x68, &0x8000u16.to_le_bytes()).function_reset);
    assert_eq!(word(&space, 0x68) & 0x8000, 0);
    space.reset(&fresh);
    assert!(!space.bus_master());
}
