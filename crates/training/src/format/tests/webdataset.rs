//! Tar archives of all kinds of headers, made by hand: what Python's tarfile makes is in tests/test_emulate_webdataset.py.

use super::*;
use tar::{padding, sums, BLOCK_BYTES, GROUP, KIND, MAGIC, MODE, NAME, SIZE, SUM, USER, USTAR};

/// A header of that kind, whose magic says GNU where `gnu`.
fn head(kind: u8, name: &str, size: &[u8], gnu: bool) -> Vec<u8> {
    let mut block = vec![0; BLOCK_BYTES];
    let mut put = |(at, _): (usize, usize), value: &[u8]| block[at..at + value.len()].copy_from_slice(value);
    put(NAME, name.as_bytes());
    put(MODE, b"0000644\0");
    put(USER, b"0001750\0");
    put(GROUP, b"0001750\0");
    put(SIZE, size);
    put(MAGIC, if gnu { b"ustar  \0" } else { USTAR });
    put((KIND, 1), &[kind]);
    let sum = format!("{:06o}\0 ", sums(&block).0);
    block[SUM.0..SUM.0 + 8].copy_from_slice(sum.as_bytes());
    block
}

/// A header, what follows, and the padding.
fn entry(kind: u8, name: &str, content: &[u8], gnu: bool) -> Vec<u8> {
    let size = format!("{:011o}\0", content.len());
    let pad = vec![0; padding(content.len() as u64) as usize];
    [head(kind, name, size.as_bytes(), gnu), content.to_vec(), pad].concat()
}

fn file(name: &str, bytes: usize) -> Vec<u8> {
    entry(b'0', name, &pattern(bytes), false)
}

fn pax(records: &[(&str, &str)]) -> Vec<u8> {
    entry(b'x', "PaxHeaders/x", &of_records(records), false)
}

/// `LENGTH KEY=VALUE\n` each, where the length has its own digits in it.
fn of_records(records: &[(&str, &str)]) -> Vec<u8> {
    let one = |(key, value): &(&str, &str)| {
        let rest = format!(" {key}={value}\n");
        let length =
            (1..).find(|digits| (rest.len() + digits).to_string().len() == *digits).expect("a length");
        format!("{}{rest}", rest.len() + length)
    };
    records.iter().map(one).collect::<String>().into_bytes()
}

fn archive(entries: &[Vec<u8>]) -> Vec<u8> {
    [entries.concat(), vec![0; 2 * BLOCK_BYTES]].concat()
}

fn damage(file: &[u8], samples: u32) -> Damage {
    feed(&mut *parser("webdataset", samples), file, 100).expect_err("damage")
}

/// Three samples of five files, and members of other kinds between them.
fn mixed() -> Vec<u8> {
    let long = format!("{}/000.txt", "d".repeat(180));
    archive(&[
        entry(b'g', "pax_global_header", &of_records(&[("comment", "made by hand")]), false),
        entry(b'5', "a/", &[], false),
        file("a/000.jpg", 700),
        file("a/000.cls", 1),
        entry(b'2', "a/001.link", &[], false),
        file("README", 30),
        entry(b'L', "././@LongLink", format!("{long}\0").as_bytes(), true),
        entry(b'0', &long[..99], &pattern(9), true),
        entry(b'K', "././@LongLink", &[b'x'; 300], true),
        entry(b'1', "a/002.hard", &[], true),
        entry(b'0', &long[..99], &[], true),
        pax(&[("path", "\u{e9}/2.json"), ("mtime", "1.5"), ("size", "512")]),
        file("e/3.json", 512),
        file("\u{e9}/2.cls", 0),
        file("__meta__/x.json", 40),
    ])
}

// promise: EMU-51
#[test]
fn samples_are_neighbours_of_one_key_whatever_the_pieces() {
    let mixed = mixed();
    let mut parser = parser("webdataset", 3);
    for piece in [1, 7, 511, 512, 513, 4096, mixed.len()] {
        feed(&mut *parser, &mixed, piece).unwrap_or_else(|e| panic!("pieces of {piece}: {e}"));
        assert_eq!((parser.samples(), parser.payload_bytes()), (3, 700 + 1 + 9 + 512));
    }
    assert_eq!(damage(&mixed, 4).what, "the shard holds 3 samples, not 4");
    let empty = archive(&[]);
    feed(&mut *super::parser("webdataset", 0), &empty, 100).expect("an archive without members");
}

// promise: EMU-51
#[test]
fn a_size_may_come_from_a_pax_header_or_in_binary() {
    let long = 3 * BLOCK_BYTES + 5;
    let content = [pattern(long), vec![0; padding(long as u64) as usize]].concat();
    let by_pax =
        [pax(&[("size", &long.to_string())]), head(b'0', "0.bin", b"00000000000\0", false), content.clone()];
    let binary = [&[0x80, 0, 0, 0][..], &(long as u64).to_be_bytes()].concat();
    for entries in [by_pax.to_vec(), vec![head(b'0', "0.bin", &binary, true), content]] {
        let mut parser = parser("webdataset", 1);
        feed(&mut *parser, &archive(&entries), 1000).expect("good");
        assert_eq!(parser.payload_bytes(), long as u64);
    }
}

// promise: EMU-51
#[test]
fn every_flipped_bit_of_a_header_is_found_and_its_member_named() {
    let first = file("000.jpg", 600);
    let whole = archive(&[first.clone(), file("001.jpg", 10)]);
    let ends = first.len() + BLOCK_BYTES;
    for bit in (0..BLOCK_BYTES * 8).chain(first.len() * 8..ends * 8) {
        // The checksum itself may be written otherwise: with spaces in place of its first zeroes.
        if (SUM.0..SUM.0 + 8).contains(&(bit / 8 % first.len())) {
            continue;
        }
        let mut bad = whole.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        let found = damage(&bad, 0);
        let expected = if bit / 8 < first.len() { (0, 0) } else { (1, first.len() as u64) };
        assert_eq!((found.record, found.offset), expected, "bit {bit}: {found}");
        assert!(found.what.contains("has checksum"), "bit {bit}: {found}");
    }
}

// promise: EMU-51
#[test]
fn shards_that_break_off_are_named() {
    let whole = mixed();
    for cut in (0..whole.len()).step_by(7).chain(whole.len() - 2 * BLOCK_BYTES..whole.len()) {
        let found = damage(&whole[..cut], 0);
        let said = found.what.contains("the file ends") || found.what.starts_with("the archive ends behind");
        assert!(said && found.fault() == Fault::Damaged, "{cut}: {found}");
    }
    let block = vec![0; BLOCK_BYTES];
    let alone = [file("0.jpg", 9), block.clone(), file("1.jpg", 9), block.clone(), block].concat();
    assert!(damage(&alone, 0).what.starts_with("a single block of zeroes"));
    let two = [mixed(), mixed()].concat();
    let found = damage(&two, 0);
    assert_eq!((found.offset, found.fault()), (whole.len() as u64, Fault::Unsupported), "{found}");
    assert!(found.what.starts_with("bytes follow the archive's end"), "{found}");
    let padded = [mixed(), vec![0; 9 * BLOCK_BYTES]].concat();
    feed(&mut *parser("webdataset", 3), &padded, 700).expect("zeroes may follow");
}

// promise: EMU-51
#[test]
fn what_is_not_read_is_refused_by_name_and_lengths_are_bounded() {
    let refused = |entries: &[Vec<u8>]| {
        let found = damage(&archive(entries), 0);
        assert_eq!(found.fault(), Fault::Unsupported, "{found}");
        found.what
    };
    assert!(refused(&[entry(b'S', "0.bin", &[1], true)]).contains("sparse (GNU's header)"));
    let sparse = pax(&[("GNU.sparse.major", "1"), ("GNU.sparse.minor", "0")]);
    assert!(refused(&[sparse, file("0.bin", 9)]).contains("sparse (GNU's records)"));
    assert!(refused(&[entry(b'M', "0.bin", &[1], true)]).contains("another archive"));
    for record in [("path", "x"), ("size", "9")] {
        let global = entry(b'g', "pax_global_header", &of_records(&[record]), false);
        assert!(refused(&[global, file("0.bin", 9)]).contains("a global pax header"));
    }
    assert!(refused(&[entry(b'L', "long", &vec![b'x'; 70_000], true)]).contains("a name of 70000 bytes"));
    let huge = head(b'x', "long", b"77777777777\0", false);
    assert!(refused(&[huge]).contains("a pax header of 8589934591 bytes"));
    let beyond = |size: &[u8]| damage(&archive(&[head(b'0', "0.bin", size, true), vec![0; 512]]), 0).what;
    assert_eq!(beyond(b"00000003001\0"), "the member says 1537 bytes, and the file ends after 1536");
    assert!(beyond(&[&[0x80, 0, 0, 0][..], &[0xff; 8]].concat()).contains("says 18446744073709551615 bytes"));
    assert_eq!(beyond(b"0000000200x\0"), "the header's size is no number");
    let lonely = archive(&[pax(&[("path", "0.bin")])]);
    assert!(damage(&lonely, 0).what.starts_with("the archive ends behind"));
}
