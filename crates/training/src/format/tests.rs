mod npz;
mod webdataset;

use super::*;
use npz::{npy_file, npz_file, zip_of, Packing, PACKINGS};
use write::{FileShape, Writer};

/// Feeds a file in pieces of that length.
fn feed(parser: &mut dyn Parser, file: &[u8], piece: usize) -> Result<(), Damage> {
    parser.begin(file.len() as u64);
    file.chunks(piece).try_for_each(|bytes| parser.take(bytes))?;
    parser.end()
}

fn parser(format: &str, samples_per_file: u32) -> Box<dyn Parser> {
    (row(format).expect("a row").parser)(&ParseSpec { samples_per_file, ..ParseSpec::default() })
}

fn field(tag: u8, bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![tag];
    let mut left = bytes.len();
    while left >= 0x80 {
        out.push(left as u8 | 0x80);
        left >>= 7;
    }
    out.push(left as u8);
    out.extend_from_slice(bytes);
    out
}

/// `{image: bytes, size: 338}`, as DLIO makes it.
fn example(image: &[u8]) -> Vec<u8> {
    let entry = |name: &str, feature: Vec<u8>| {
        field(0x0a, &[field(0x0a, name.as_bytes()), field(0x12, &feature)].concat())
    };
    let image = entry("image", field(0x0a, &field(0x0a, image)));
    let size = entry("size", field(0x1a, &field(0x0a, &[0xd2, 0x02])));
    field(0x0a, &[image, size].concat())
}

/// CRC32C bit by bit: shares nothing with the libraries.
fn slow_crc(polynomial: u32, bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ if crc & 1 == 1 { polynomial } else { 0 })
    })
}

fn record(data: &[u8]) -> Vec<u8> {
    let masked = |bytes: &[u8]| {
        let crc = slow_crc(0x82F6_3B78, bytes);
        crc.rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
    };
    let length = (data.len() as u64).to_le_bytes();
    [&length[..], &masked(&length), data, &masked(data)].concat()
}

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| (i * 31 + i / 251) as u8).collect()
}

#[test]
fn sums_agree_with_arithmetic_bit_by_bit() {
    assert_eq!(sums::crc32c(0, b"123456789"), 0xE306_9283);
    assert_eq!(sums::crc32(0, b"123456789"), 0xCBF4_3926);
    for bytes in [0, 1, 255, 256, 257, 5000] {
        let data = pattern(bytes);
        assert_eq!(sums::crc32c(0, &data), slow_crc(0x82F6_3B78, &data), "{bytes}");
        assert_eq!(sums::crc32(0, &data), slow_crc(0xEDB8_8320, &data), "{bytes}");
        let (a, b) = data.split_at(bytes / 3);
        assert_eq!(sums::crc32c(sums::crc32c(0, a), b), sums::crc32c(0, &data), "{bytes}");
        assert_eq!(sums::crc32(sums::crc32(0, a), b), sums::crc32(0, &data), "{bytes}");
    }
}

#[test]
fn tfrecord_counts_samples_whatever_the_pieces() {
    let images = [0, 1, 100, 127, 128, 20_000];
    let file: Vec<u8> = images.iter().flat_map(|n| record(&example(&pattern(*n)))).collect();
    let mut tfrecord = parser("tfrecord", images.len() as u32);
    for piece in [1, 2, 3, 7, 12, 13, 4096, file.len()] {
        feed(&mut *tfrecord, &file, piece).unwrap_or_else(|e| panic!("pieces of {piece}: {e}"));
        assert_eq!(tfrecord.samples(), 6);
        assert_eq!(tfrecord.payload_bytes(), images.iter().map(|n| *n as u64 + 2).sum::<u64>());
    }
}

// promise: EMU-21
#[test]
fn tfrecord_finds_every_flipped_bit_and_names_its_record() {
    let records: Vec<Vec<u8>> = [5, 130].iter().map(|n| record(&example(&pattern(*n)))).collect();
    let file = records.concat();
    let mut tfrecord = parser("tfrecord", 0);
    for bit in 0..file.len() * 8 {
        let mut bad = file.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        let damage = feed(&mut *tfrecord, &bad, 50).expect_err("a flipped bit");
        let (record, offset) = if bit / 8 < records[0].len() { (0, 0) } else { (1, records[0].len() as u64) };
        assert_eq!((damage.record, damage.offset), (record, offset), "bit {bit}: {damage}");
        assert!(damage.what.contains("masked CRC32C"), "bit {bit}: {damage}");
    }
}

#[test]
fn tfrecord_names_what_else_is_wrong() {
    let whole = record(&example(&pattern(300)));
    let damage =
        |file: &[u8], samples| feed(&mut *parser("tfrecord", samples), file, 64).expect_err("damage").what;
    assert_eq!(damage(&whole, 2), "the file holds 1 records, not 2");
    for cut in 1..whole.len() {
        let what = damage(&whole[..cut], 0);
        assert!(what.contains("the file ends"), "{cut}: {what}");
    }
    let odd = damage(&record(&pattern(64)), 0);
    assert!(odd.starts_with("the record's data is no Example: "), "{odd}");
    let beyond = damage(&record(&[0x0a, 5, 0x0a, 9, 0, 0, 0]), 0);
    assert!(beyond.ends_with("a length in its protobuf goes beyond the message around it"), "{beyond}");
    let cut = damage(&record(&[0x0a]), 0);
    assert!(cut.ends_with("a field of its protobuf goes beyond the message around it"), "{cut}");
    let open = damage(&record(&[0x8a]), 0);
    assert!(open.ends_with("its protobuf ends inside a field"), "{open}");
}

#[test]
fn npz_counts_samples_whatever_the_pieces() {
    for packing in PACKINGS {
        let file = npz_file(packing);
        let mut npz = parser("npz", 2);
        for piece in [1, 2, 3, 30, 46, 4096, file.len()] {
            feed(&mut *npz, &file, piece).unwrap_or_else(|e| panic!("pieces of {piece}: {e}"));
            assert_eq!((npz.samples(), npz.payload_bytes()), (2, 4000));
        }
    }
}

// promise: EMU-21
#[test]
fn npz_finds_every_flipped_bit_of_its_data() {
    for packing in PACKINGS {
        let file = npz_file(packing);
        let mut npz = parser("npz", 2);
        let data_ends = file.windows(4).position(|w| w == b"PK\x01\x02").expect("a directory");
        for at in 0..file.len() {
            let mut bad = file.clone();
            bad[at] ^= 1 << (at % 8);
            let found = feed(&mut *npz, &bad, 1000);
            // Of the headers, dates and versions are nobody's business.
            if at > 80 && at < data_ends / 2 {
                let damage = found.expect_err("a flipped bit");
                assert!(damage.record == 0 && damage.offset == 0, "{at}: {damage}");
                let plain = matches!(packing, Packing::Stored | Packing::Stored64);
                assert!(!plain || damage.what.contains("the member's data has CRC-32 "), "{at}: {damage}");
            }
        }
    }
}

// promise: EMU-21
#[test]
fn npz_names_where_a_file_breaks_off() {
    for packing in PACKINGS {
        let file = npz_file(packing);
        let mut npz = parser("npz", 2);
        for cut in 0..file.len() {
            let damage = feed(&mut *npz, &file[..cut], 100).expect_err("a cut file");
            assert!(damage.what.contains("the file ends"), "{cut}: {damage}");
            assert_eq!(npz.samples(), 0);
        }
        let longer = [&file[..], b"x"].concat();
        let damage = feed(&mut *npz, &longer, 100).expect_err("a byte too many");
        assert!(damage.what.contains("follow the end"), "{damage}");
    }
}

#[test]
fn npz_compares_directory_and_members() {
    let y = npy_file("(2,)", &[0, 0]);
    let two = |x: Vec<u8>| zip_of(&[("x.npy", x), ("y.npy", y.clone())], Packing::Stored);
    let what = |file: &[u8], samples| feed(&mut *parser("npz", samples), file, 100).expect_err("damage").what;
    let whole = two(npy_file("(2, 2, 1)", &[1; 4]));
    assert_eq!(what(&whole, 3), "the array holds 1 samples, not 3");
    let short = two(npy_file("(2, 2, 2)", &[1; 4]));
    assert!(what(&short, 0).contains("its .npy header says 136 bytes in all, and it has 132"));
    let huge = two(npy_file("(4294967296, 4294967296, 2)", &[1; 4]));
    assert!(what(&huge, 0).contains("more bytes than any file"));
    let listed = whole.windows(4).position(|w| w == b"PK\x01\x02").expect("a directory");
    // The name, a checksum, the offset.
    for at in [46, 16, 42] {
        let mut bad = whole.clone();
        bad[listed + at] ^= 1;
        assert!(what(&bad, 0).starts_with("the directory lists a member at"), "{at}");
    }
    let text = zip_of(&[("x.txt", vec![7; 9])], Packing::Stored);
    assert_eq!(what(&text, 0), "the zip holds no .npy array");
}

#[test]
fn npy_headers_of_all_versions() {
    let file = npy_file("(3, 4, 5)", &pattern(60));
    let mut npy = parser("npy", 5);
    for piece in [1, 9, 11, 4096] {
        feed(&mut *npy, &file, piece).unwrap_or_else(|e| panic!("pieces of {piece}: {e}"));
        assert_eq!((npy.samples(), npy.payload_bytes()), (5, 60));
    }
    let text = b"{'descr': '<U3', 'fortran_order': True, 'shape': (2,), }\n";
    let wide = [&b"\x93NUMPY\x03\x00"[..], &(text.len() as u32).to_le_bytes(), text, &[0; 24]].concat();
    feed(&mut *parser("npy", 1), &wide, 5).expect("version 3");
    let what = |file: &[u8]| feed(&mut *parser("npy", 0), file, 100).expect_err("damage").what;
    assert!(what(&file[..file.len() - 1]).contains("and the file has"));
    assert!(what(b"PK\x03\x04 not npy").contains("magic"));
    assert!(
        what(&[&b"\x93NUMPY\x02\x00"[..], &[0xff; 4]].concat()).contains("says that it has 4294967295 bytes")
    );
    assert_eq!(what(b"\x93NUM"), "the file ends inside the .npy header");
}

#[test]
fn raw_spreads_its_samples() {
    let mut raw = parser("raw", 4);
    raw.begin(100);
    raw.take(&[0; 24]).expect("bytes");
    assert_eq!(raw.samples(), 0);
    raw.take(&[0; 51]).expect("bytes");
    assert_eq!(raw.samples(), 3);
    assert!(raw.end().expect_err("25 are missing").what.contains("75 of 100"));
    raw.take(&[0; 25]).expect("bytes");
    raw.end().expect("all");
    assert_eq!((raw.samples(), raw.payload_bytes()), (4, 100));
}

/// The whole of a file, asked for in pieces of that length.
fn made(format: &str, spec: &WriteSpec, shape: FileShape, piece: usize) -> Vec<u8> {
    let mut writer = Writer::new((row(format).expect("a row").layout)(spec), spec.seed);
    writer.begin(shape);
    let mut file = Vec::new();
    let mut buffer = vec![0; piece];
    loop {
        let filled = writer.fill(&mut buffer);
        file.extend_from_slice(&buffer[..filled]);
        if filled < piece {
            assert_eq!(writer.file_bytes(shape), file.len() as u64, "{format} {shape:?}");
            return file;
        }
    }
}

// promise: EMU-22
#[test]
fn sizes_are_those_of_dlio() {
    let shape = FileShape { number: 0, rows: 15865, columns: 14125 };
    let bytes = |format: &str, samples_per_file, dimension, shape| {
        (row(format).expect("a row").layout)(&WriteSpec {
            samples_per_file,
            dimension,
            ..WriteSpec::default()
        })
        .file_bytes(shape)
    };
    assert_eq!(bytes("npz", 1, 12107, shape), 224_093_623);
    assert_eq!(
        bytes("npz", 4, 256, FileShape { rows: 139, columns: 150, ..shape }),
        139 * 150 * 4 + 32 + 490
    );
    assert_eq!(bytes("tfrecord", 1251, 338, FileShape { rows: 338, columns: 338, ..shape }), 142_993_053);
    assert_eq!(bytes("tfrecord", 1, 1681, FileShape { rows: 1709, columns: 1696, ..shape }), 2_898_528);
}

proptest::proptest! {
    // promise: EMU-22
    #[test]
    fn what_is_made_reads_back_whatever_the_pieces(
        format in 0..FORMATS.len(), seed: u64, number: u32, samples in 1..6u32, rows in 1..90u32, columns in 1..90u32,
        make in 1..70_000usize, take in 1..20_000usize, flip: proptest::sample::Index,
    ) {
        let format = &FORMATS[format];
        let samples = if matches!(format.name, "jpeg" | "png") { 1 } else { samples };
        let spec = WriteSpec { seed, samples_per_file: samples, dimension: rows, ..WriteSpec::default() };
        let shape = FileShape { number, rows, columns };
        let mut file = made(format.name, &spec, shape, make);
        assert_eq!(file, made(format.name, &spec, shape, 1 << 20));
        let mut parser = parser(format.name, samples);
        feed(&mut *parser, &file, take).unwrap_or_else(|damage| panic!("{}: {damage}", format.name));
        assert_eq!(parser.samples(), u64::from(samples));
        assert!(parser.payload_bytes() >= shape.sample_bytes() * u64::from(samples));
        let at = flip.index(file.len());
        file[at] ^= 1;
        let _ = feed(&mut *parser, &file, take);
    }
}

#[test]
fn content_differs_by_seed_file_and_sample() {
    let spec = |seed| WriteSpec { seed, samples_per_file: 2, dimension: 64, ..WriteSpec::default() };
    let shape = |number| FileShape { number, rows: 64, columns: 64 };
    let file = made("raw", &spec(1), shape(1), 4096);
    assert_ne!(file, made("raw", &spec(2), shape(1), 4096));
    assert_ne!(file, made("raw", &spec(1), shape(2), 4096));
    assert_ne!(file[..4096], file[4096..]);
}

fn one(format: &str, rows: u32, columns: u32) -> Vec<u8> {
    let spec = WriteSpec { seed: 3, samples_per_file: 1, dimension: 8, ..WriteSpec::default() };
    made(format, &spec, FileShape { number: 0, rows, columns }, 1000)
}

// promise: EMU-21
#[test]
fn images_that_break_off_or_go_wrong_are_named() {
    for format in ["png", "jpeg"] {
        let file = one(format, 100, 101);
        let mut image = parser(format, 1);
        for cut in (0..file.len()).step_by(7) {
            let damage = feed(&mut *image, &file[..cut], 100).expect_err("a cut file");
            assert!(damage.what.contains("the file ends"), "{format} {cut}: {damage}");
            assert_eq!(image.samples(), 0);
        }
        assert!(feed(&mut *image, b"GIF89a and more", 3)
            .expect_err("no image")
            .what
            .contains("doesn't begin"));
        assert!(feed(&mut *parser(format, 2), &file, 99)
            .expect_err("one image")
            .what
            .contains("1 samples, not 2"));
    }
}

// promise: EMU-21
#[test]
fn png_finds_every_flipped_bit() {
    let file = one("png", 9, 7);
    let mut png = parser("png", 1);
    for bit in 0..file.len() * 8 {
        let mut bad = file.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        feed(&mut *png, &bad, 11).expect_err("a flipped bit");
    }
    let mut bad = file.clone();
    bad[70] ^= 1;
    let damage = feed(&mut *png, &bad, 11).expect_err("a flipped bit");
    assert!(
        damage.record == 1 && damage.offset == 33 && damage.what.starts_with("chunk IDAT has CRC-32 "),
        "{damage}"
    );
}

#[test]
fn jpeg_scans_end_at_a_marker() {
    let frame = [&[0xFF, 0xD8, 0xFF, 0xC0, 0, 4, 8, 8, 0xFF, 0xDA, 0, 2][..]].concat();
    let with = |scan: &[u8]| feed(&mut *parser("jpeg", 1), &[&frame[..], scan].concat(), 3);
    with(&[1, 2, 0xFF, 0, 3, 0xFF, 0xD3, 0xFF, 0xFF, 0xD9]).expect("stuffed zeroes, restarts, filling");
    with(&[1, 0xFF, 0xC4, 0, 3, 9, 0xFF, 0xDA, 0, 2, 5, 0xFF, 0xD9]).expect("two scans");
    with(&[1, 0xFF, 0xD9, 7, 7]).expect("cameras append");
    assert!(with(&[1, 0xFF, 0xC4, 0xFF, 0xFF, 9]).expect_err("long").what.contains("says 65535 bytes"));
    let early = feed(&mut *parser("jpeg", 1), &[0xFF, 0xD8, 0xFF, 0xDA, 0, 2], 9).expect_err("no frame");
    assert_eq!((early.record, early.offset), (1, 2));
}

#[test]
fn hdf5_is_as_long_as_it_says() {
    let file = one("hdf5", 30, 30);
    let what = |file: &[u8]| feed(&mut *parser("hdf5", 1), file, 64).expect_err("damage").what;
    assert!(what(&file[..file.len() - 1]).contains("says 2956 bytes, and the file has 2955"));
    assert_eq!(what(&file[..30]), "the file ends inside its superblock");
    assert!(what(&[0; 100]).contains("doesn't begin"));
    let head = |sum: u32| {
        let head = [
            &b"\x89HDF\r\n\x1a\n\x02\x08\x08\x00"[..],
            &[0; 16],
            &100u64.to_le_bytes(),
            &48u64.to_le_bytes(),
        ]
        .concat();
        let sum = super::hdf5::newer::lookup3(&head) ^ sum;
        [&head[..], &sum.to_le_bytes(), b"OHDR\x02\x00", &[0; 46]].concat()
    };
    assert_eq!(what(&head(1)), "its superblock doesn't have the checksum that is stored behind it");
    assert_eq!(what(&head(0)), "an object's header doesn't have the checksum that is stored behind it");
}

fn table(rows: u32, row_group: u32) -> Vec<u8> {
    let column =
        |name: &str, kind: &str, values| write::Column { name: name.into(), kind: kind.into(), values };
    let columns = vec![
        column("a", "float32", 1),
        column("b", "uint8", 1),
        column("long", "float32", 37),
        column("n", "int64", 1),
    ];
    let spec = WriteSpec { seed: 5, samples_per_file: rows, dimension: 1, columns, row_group };
    made("parquet", &spec, FileShape { number: 2, rows: 1, columns: 1 }, 999)
}

// promise: EMU-21
#[test]
fn parquet_finds_every_flipped_bit_of_its_pages() {
    let file = table(10, 4);
    let mut parquet = parser("parquet", 10);
    for piece in [1, 2, 17, 4096] {
        feed(&mut *parquet, &file, piece).unwrap_or_else(|e| panic!("pieces of {piece}: {e}"));
        assert_eq!((parquet.samples(), parquet.payload_bytes()), (10, 10 * (4 + 1 + 37 * 4 + 8)));
    }
    let mut named = 0;
    for bit in 0..file.len() * 8 {
        let mut bad = file.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        let found = feed(&mut *parquet, &bad, 50);
        named += u32::from(found.is_err_and(|damage| damage.what.starts_with("the page has CRC-32 ")));
    }
    // All bits of pages; those of their headers are mostly found by other means, or mean nothing to us.
    assert!(named >= 10 * (4 + 1 + 37 * 4 + 8) * 8, "{named}");
}

#[test]
fn parquet_names_what_is_wrong() {
    let file = table(10, 4);
    let what =
        |file: &[u8], samples| feed(&mut *parser("parquet", samples), file, 64).expect_err("damage").what;
    for cut in 0..file.len() {
        let what = what(&file[..cut], 0);
        assert!(what.contains("the file ends"), "{cut}: {what}");
    }
    assert_eq!(what(&file, 11), "the array holds 10 samples, not 11");
    assert!(what(b"PAR2....", 0).contains("doesn't begin"));
    assert!(what(&[b"PAR1", &[0u8][..]].concat(), 0).contains("neither a page, an index nor the footer"));
    assert!(what(&[b"PAR1", &[0x19u8; 40][..]].concat(), 0).contains("structs lie in more than 16 others"));
    let length = file.len() - 8;
    let mut bad = file.clone();
    bad[length] ^= 1;
    assert!(what(&bad, 0).contains("a footer of"));
}

/// Returns the losses of a parser that passes over damage, and whether it came to the file's end.
fn passed_over(
    format: &str,
    samples_per_file: u32,
    file: &[u8],
    piece: usize,
) -> (Vec<Lost>, Result<u64, Damage>) {
    let spec = ParseSpec { samples_per_file, skips: true, ..ParseSpec::default() };
    let mut parser = (row(format).expect("a row").parser)(&spec);
    let fed = feed(&mut *parser, file, piece);
    let mut lost = Vec::new();
    parser.lost(&mut lost);
    (lost, fed.map(|()| parser.samples()))
}

// promise: TRA-7
#[test]
fn a_damaged_record_is_lost_and_those_behind_it_are_not() {
    let records: Vec<Vec<u8>> = (0..5).map(|n| record(&example(&pattern(300 + n)))).collect();
    let begins: Vec<usize> = (0..5).map(|n| records[..n].concat().len()).collect();
    let mut file = records.concat();
    file[begins[1] + 100] ^= 1;
    file[begins[3] + 200] ^= 1;
    for piece in [1, 13, file.len()] {
        let (lost, fed) = passed_over("tfrecord", 5, &file, piece);
        assert_eq!(fed, Ok(5));
        let places: Vec<_> =
            lost.iter().map(|l| (l.damage.record, l.damage.offset, l.first, l.records)).collect();
        assert_eq!(places, [(1, begins[1] as u64, 1, 1), (3, begins[3] as u64, 3, 1)]);
        assert!(lost.iter().all(|l| l.damage.what.contains("masked CRC32C")));
    }
    // Whoever doesn't know how long a record is finds no other.
    file[begins[2]] ^= 1;
    let (lost, fed) = passed_over("tfrecord", 5, &file, 64);
    assert_eq!((lost.len(), fed.unwrap_err().record), (1, 2));
}

// promise: TRA-7
#[test]
fn a_damaged_member_is_lost_with_its_samples_and_no_other_member() {
    let file = npz_file(Packing::Stored);
    let (lost, fed) = passed_over("npz", 0, &file, 100);
    let samples = fed.expect("good");
    assert!(lost.is_empty() && samples > 0);
    let mut found = Vec::new();
    // Somewhere in x's array, and in the last member's, which ends before the directory.
    let directory = file.windows(4).position(|w| w == [0x50, 0x4b, 1, 2]).expect("a directory");
    for at in [300, directory - 1] {
        let mut broken = file.clone();
        broken[at] ^= 1;
        let (lost, fed) = passed_over("npz", 0, &broken, 100);
        assert_eq!(fed, Ok(samples), "the file is read to its end");
        assert!(lost.len() == 1 && lost[0].damage.what.contains("CRC-32"), "{lost:?}");
        found.push(lost[0].records);
    }
    assert_eq!(found, [samples, 0], "labels hold no sample");
}

#[test]
fn files_of_one_shape_are_of_one_length() {
    let column = |n: u32| write::Column { name: format!("c{n}"), kind: "float32".into(), values: 10 };
    let spec = WriteSpec {
        seed: 1,
        samples_per_file: 60,
        dimension: 8,
        columns: (0..5).map(column).collect(),
        row_group: 10,
    };
    for row in FORMATS {
        let writer = Writer::new((row.layout)(&spec), spec.seed);
        let bytes = |number| writer.file_bytes(FileShape { number, rows: 8, columns: 8 });
        assert!((1..200).all(|number| bytes(number) == bytes(0)), "{}", row.name);
    }
}
