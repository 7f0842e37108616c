use super::*;
use crate::format::write::{Column, FileShape, WriteSpec, Writer};
use crate::format::{row, Parser};
use proptest::prelude::*;

fn made(format: &str, spec: &WriteSpec, shape: FileShape) -> Vec<u8> {
    let mut writer = Writer::new((row(format).expect("a row").layout)(spec), spec.seed);
    let mut file = vec![0; writer.file_bytes(shape) as usize];
    writer.begin(shape);
    assert_eq!(writer.fill(&mut file), file.len());
    file
}

fn picker(format: &str, spec: &PickSpec) -> Box<dyn Picker> {
    (row(format).expect("a row").picker)(spec).expect("a format that is picked from")
}

fn wanted(first: u64, samples: u64) -> Wanted {
    Wanted { first, every: 1, samples }
}

fn parse(samples_per_file: u32) -> PickSpec {
    PickSpec { samples_per_file, checks: true, ..PickSpec::default() }
}

/// Five columns of 400 bytes a row; the tail that is read first can't hold them all.
fn table(rows: u32, row_group: u32) -> Vec<u8> {
    let column = |n: u32| Column { name: format!("c{n}"), kind: "float32".into(), values: 100 };
    let columns = (0..5).map(column).collect();
    let spec = WriteSpec { seed: 3, samples_per_file: rows, dimension: 8, columns, row_group };
    made("parquet", &spec, FileShape { number: 0, rows: 8, columns: 8 })
}

fn named(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_string()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Samples are whole exactly when their row group's columns were read, whatever the pieces, and no other bytes are.
    // promise: TRA-14
    #[test]
    fn columns_that_are_named_are_read_and_no_others(rows in 1u32..300, group in 1u32..80, first in 0u32..300, count in 1u32..300, all: bool, step in 1u64..5000) {
        let first = first % rows;
        let count = count.min(rows - first);
        let file = table(rows, group);
        let columns = if all { Vec::new() } else { named(&["c1", "c2", "c4"]) };
        let mut picker = picker("parquet", &PickSpec { columns, ..parse(rows) });
        picker.begin(file.len() as u64, wanted(first.into(), count.into()), None).unwrap();
        let read = pick_from_memory(&mut *picker, &file, count.into(), step).unwrap();
        prop_assert_eq!(picker.samples(), u64::from(count));
        let tail = picker.pieces()[0].end;
        let groups = (first + count - 1) / group - first / group + 1;
        let rows_read = (groups * group).min(rows - first / group * group);
        let bytes = u64::from(rows_read) * if all { 2000 } else { 1200 };
        prop_assert_eq!(picker.payload_bytes(), bytes);
        // Besides, the footer and some thirty bytes before each page.
        let pages = u64::from(groups) * if all { 5 } else { 3 };
        prop_assert!((tail + bytes..tail + bytes + 40 * pages + 100_000).contains(&read), "{} {}", read, bytes);
        let most = 2 + groups as usize * if all { 1 } else { 2 };
        prop_assert!(picker.pieces().len() <= most);
    }

    /// Half of the samples are whole before all are, in the order of the pieces.
    #[test]
    fn a_goal_is_as_far_as_is_needed(upto in 1u64..100) {
        let file = table(100, 10);
        let mut picker = picker("parquet", &parse(100));
        picker.begin(file.len() as u64, wanted(0, 100), None).unwrap();
        pick_from_memory(&mut *picker, &file, upto, 4096).unwrap();
        prop_assert_eq!(picker.samples(), upto.next_multiple_of(10));
    }
}

// promise: TRA-7
#[test]
fn a_damaged_page_costs_its_row_group_and_no_other() {
    let mut file = table(100, 10);
    let at = file.len() / 2;
    file[at] ^= 1;
    let mut strict = picker("parquet", &parse(100));
    strict.begin(file.len() as u64, wanted(0, 100), None).unwrap();
    let damage = pick_from_memory(&mut *strict, &file, 100, 4096).unwrap_err();
    assert!(damage.what.contains("CRC-32"), "{damage}");
    // It lies in the sixth of ten groups.
    for (first, samples, expected) in [(0, 100, Some(10)), (45, 1, None), (58, 20, Some(2))] {
        let mut picker = picker("parquet", &PickSpec { skips: true, ..parse(100) });
        let wanted = wanted(first, samples);
        picker.begin(file.len() as u64, wanted, None).unwrap();
        pick_from_memory(&mut *picker, &file, samples, 4096).unwrap();
        let mut lost = Vec::new();
        picker.lost(&mut lost);
        assert_eq!(picker.samples(), samples);
        let mine: Vec<u64> = lost.iter().map(|lost| wanted.among(lost.first, lost.records)).collect();
        assert_eq!(mine, expected.into_iter().collect::<Vec<u64>>(), "{lost:?}");
    }
}

#[test]
fn a_footer_that_cannot_be_is_named() {
    let file = table(20, 10);
    let odd = |spec: &PickSpec, file: &[u8]| {
        let mut picker = picker("parquet", spec);
        let begun = picker.begin(file.len() as u64, wanted(0, 20), None);
        begun.and_then(|()| pick_from_memory(&mut *picker, file, 20, 4096).map(drop)).unwrap_err().what
    };
    assert!(odd(&parse(21), &file).contains("20 rows, not 21"));
    let unknown = PickSpec { columns: named(&["c1", "x"]), ..parse(20) };
    assert!(odd(&unknown, &file).contains("its columns are "));
    assert!(odd(&parse(20), &file[..file.len() - 1]).contains("doesn't end"));
    assert!(odd(&parse(20), b"PAR1").contains("no Parquet file"));
    let mut long = file.clone();
    let at = long.len() - 8;
    long[at..at + 4].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(odd(&parse(20), &long).contains("footer says"));
}

// promise: TRA-14
#[test]
fn single_records_are_found_by_their_index() {
    let file: Vec<u8> = (0..100u8).collect();
    let numbers = |list: &[u64]| list.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<u8>>();
    let listed = RecordIndex::read(&numbers(&[0, 10, 50, 90]), &numbers(&[10, 40, 0, 10]), 4, 100).unwrap();
    let even = RecordIndex::read(&numbers(&[0, 25, 50, 75, 9]), &numbers(&[25, 25, 25, 25]), 4, 100).unwrap();
    assert_eq!(even, RecordIndex::Even { record_bytes: 25 });
    for (index, first, samples, read) in [
        (Some(&listed), 1, 1, 40),
        (Some(&listed), 0, 4, 60),
        (Some(&listed), 2, 1, 0),
        (Some(&even), 3, 1, 25),
        (None, 1, 2, 50),
    ] {
        let mut picker = picker("indexed_binary", &parse(4));
        picker.begin(100, wanted(first, samples), index).unwrap();
        assert_eq!(pick_from_memory(&mut *picker, &file, samples, 7).unwrap(), read);
        assert_eq!((picker.samples(), picker.payload_bytes()), (samples, read));
    }
    let mut every_other = picker("indexed_binary", &parse(4));
    every_other.begin(100, Wanted { first: 1, every: 2, samples: 2 }, Some(&even)).unwrap();
    assert_eq!(pick_from_memory(&mut *every_other, &file, 1, 100).unwrap(), 25);
    assert_eq!(every_other.samples(), 1);
    let beyond = RecordIndex::read(&numbers(&[0, 95]), &numbers(&[95, 6]), 2, 100).unwrap_err();
    assert!(beyond.contains("record 1 has 6 bytes at 95"), "{beyond}");
    assert!(RecordIndex::read(&[0; 15], &[0; 16], 2, 100).unwrap_err().contains(".off.idx has 15"));
    assert!(picker("indexed_binary", &parse(3)).begin(100, wanted(0, 1), None).is_err());
}

fn hdf5(samples: u32) -> Vec<u8> {
    let spec = WriteSpec { seed: 5, samples_per_file: samples, dimension: 64, ..WriteSpec::default() };
    made("hdf5", &spec, FileShape { number: 0, rows: 200, columns: 300 })
}

// promise: TRA-15
#[test]
fn every_byte_of_an_hdf5_file_comes_by_and_samples_are_whole_where_they_end() {
    let file = hdf5(4);
    for step in [1, 1000, 1 << 20] {
        let mut tree = picker("hdf5", &parse(4));
        tree.begin(file.len() as u64, wanted(0, 4), None).unwrap();
        for upto in 1..4 {
            assert!(tree.goal(upto) <= (64 << 10).max(2048 + upto * 60_000));
        }
        assert_eq!(pick_from_memory(&mut *tree, &file, 4, step).unwrap(), file.len() as u64);
        assert_eq!(tree.samples(), 4);
        let mut first = picker("hdf5", &parse(4));
        first.begin(file.len() as u64, wanted(1, 1), None).unwrap();
        assert_eq!(pick_from_memory(&mut *first, &file, 1, step).unwrap(), 2048 + 120_000);
    }
}

// promise: TRA-15
#[test]
fn what_leads_nowhere_in_an_hdf5_file_is_named() {
    let file = hdf5(4);
    let odd = |at: usize, byte: u8| {
        let mut broken = file.clone();
        broken[at] = byte;
        let mut tree = picker("hdf5", &parse(4));
        tree.begin(file.len() as u64, wanted(0, 4), None).unwrap();
        let picked = pick_from_memory(&mut *tree, &broken, 4, 4096).map(drop);
        let mut parser = crate::format::hdf5::Hdf5::new(&crate::format::ParseSpec {
            samples_per_file: 4,
            ..Default::default()
        });
        parser.begin(broken.len() as u64);
        let parsed = parser.take(&broken);
        assert_eq!(picked, parsed, "what a run finds, front to back does, too");
        picked.unwrap_err().what
    };
    assert!(odd(0x88, b'X').contains("belong to the tree"));
    assert!(odd(0x2A8, b'X').contains("HEAP"));
    assert!(odd(0x430, b'X').contains("SNOD"));
    assert!(odd(0x2C8 + 8, b'x').contains("no data set 'records'"));
    assert!(odd(0x320, 9).contains("header has version 9"));
    // The first side of `records`: four samples.
    assert!(odd(0x320 + 16 + 8 + 8, 5).contains("'records'"));
    assert!(odd(0x60 + 24 + 7, 1).contains("structure of"));
}
