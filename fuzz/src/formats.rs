//! Files of training data: a byte that says which format, one for the samples, two for the length of a piece, the file.

use forebay_training::{
    index_archive, index_data_sets, index_plain_columns, index_records, index_shard, pick_from_memory,
    ArchiveArray, Damage, Decoder, FormatRow, ParseSpec, Parser, PickSpec, Picker, RecordIndex, Wanted,
    FORMATS,
};

const PIXEL_BYTES: usize = 1 << 14;

/// Place of a file's damage.
type Place = (u64, u64);

/// Any file is read to its end or damaged in the same place, whatever the pieces; and a parser that met damage reads the
/// next file as a new one does.
pub fn formats(data: &[u8]) {
    let Some(([format, samples, low, high], file)) = data.split_first_chunk::<4>() else { return };
    let row = &FORMATS[usize::from(*format) % FORMATS.len()];
    let spec = ParseSpec { samples_per_file: u32::from(*samples), ..ParseSpec::default() };
    let piece = usize::from(u16::from_le_bytes([*low, *high])) + 1;
    front_to_back(row, &spec, file, piece);
    if row.name == "webdataset" {
        front_to_back(row, &spec, &with_sums(file), piece);
        indexed_shard(row, file);
        indexed_shard(row, &with_sums(file));
    }
    if row.name == "parquet" {
        indexed_columns(file);
    }
    match row.name {
        "tfrecord" => indexed_records(row, file),
        "npz" => indexed_arrays(file),
        "hdf5" => indexed_data_sets(file),
        _ => {}
    }
    if let Some(decoder) = row.decoder {
        decode(decoder, file);
    }
    for skips in [false, true] {
        let columns = Vec::new();
        let spec = PickSpec { samples_per_file: u32::from(*samples), columns, checks: true, skips };
        if let Some(mut picker) = (row.picker)(&spec) {
            pick_all(&mut *picker, file, u64::from(*samples), u64::from(*low));
        }
    }
}

/// A tar archive whose headers have the checksums that they say: few of a changed one would be read otherwise.
fn with_sums(file: &[u8]) -> Vec<u8> {
    let mut file = file.to_vec();
    for block in file.chunks_exact_mut(512).filter(|block| block[257..262] == *b"ustar") {
        block[148..156].fill(b' ');
        let sum: u64 = block.iter().map(|byte| u64::from(*byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    }
    file
}

/// Reads from a file that lies in memory.
fn read_at(file: &[u8]) -> impl FnMut(u64, &mut [u8]) -> std::io::Result<()> + '_ {
    |at, to| {
        to.copy_from_slice(&file[at as usize..at as usize + to.len()]);
        Ok(())
    }
}

/// A shard has an index where it can be read, and its files lie in it.
fn indexed_shard(row: &FormatRow, file: &[u8]) {
    let found = index_shard(file.len() as u64, &mut read_at(file));
    let mut parser = (row.parser)(&ParseSpec::default());
    let whole = seen(&mut *parser, file, file.len().max(1));
    assert_eq!(found.is_ok(), whole.is_ok());
    let (Ok(members), Ok((_, payload))) = (found, whole) else { return };
    assert!(members.iter().all(|m| m.key_bytes < m.name.len() && m.offset + m.bytes <= file.len() as u64));
    assert_eq!(members.iter().map(|m| m.bytes).sum::<u64>(), payload);
}

/// Values of plain columns lie in the file, as many of each as it has rows.
fn indexed_columns(file: &[u8]) {
    let found = index_plain_columns(file.len() as u64, None, &mut read_at(file));
    let Ok((rows, columns)) = found else { return };
    for column in columns {
        assert_eq!(column.runs.iter().map(|(values, _)| values).sum::<u64>(), rows);
        let fits = |(values, begin): &(u64, u64)| begin + values * column.bytes <= file.len() as u64;
        assert!(column.runs.iter().all(fits));
    }
}

/// Records lie in the file one behind the other; where it is read to its end, there are as many.
fn indexed_records(row: &FormatRow, file: &[u8]) {
    let found = index_records(file.len() as u64, &mut read_at(file));
    let mut parser = (row.parser)(&ParseSpec { skips: true, ..ParseSpec::default() });
    let whole = seen(&mut *parser, file, file.len().max(1));
    let Ok(records) = found else { return assert!(whole.is_err()) };
    assert_eq!(whole.map(|(samples, _)| samples), Ok(records.len() as u64));
    let ends = records.iter().map(|(begin, bytes)| begin + bytes + 4);
    assert!(records.iter().skip(1).zip(ends).all(|((begin, _), end)| *begin == end + 12));
}

/// Arrays lie in the file.
fn indexed_arrays(file: &[u8]) {
    let Ok(arrays) = index_archive(file.len() as u64, &mut read_at(file)) else { return };
    let fits = |array: &ArchiveArray| array.offset + array.bytes <= file.len() as u64;
    assert!(arrays.iter().filter(|array| array.altered.is_none()).all(fits));
}

/// Rows of plain data sets lie in the file, as many as its first side says.
fn indexed_data_sets(file: &[u8]) {
    let Ok(sets) = index_data_sets(file.len() as u64, None, &mut read_at(file)) else { return };
    for set in sets {
        assert_eq!(set.runs.iter().map(|(rows, _)| rows).sum::<u64>(), set.dims[0]);
        let fits = |(rows, begin): &(u64, u64)| begin + rows * set.row_bytes <= file.len() as u64;
        assert!(set.runs.iter().all(fits));
    }
}

fn front_to_back(row: &FormatRow, spec: &ParseSpec, file: &[u8], piece: usize) {
    let mut parser = (row.parser)(spec);
    let in_pieces = seen(&mut *parser, file, piece);
    let at_once = seen(&mut *parser, file, file.len().max(1));
    assert_eq!(in_pieces, at_once, "{}", row.name);
    // Cut short, it is never whole: every format knows its length.
    if at_once.is_ok() && file.len() > 1 {
        parser.begin(file.len() as u64);
        let cut = parser.take(&file[..file.len() - 1]).and_then(|()| parser.end());
        assert!(cut.is_err(), "{}", row.name);
    }
    let mut passing = (row.parser)(&ParseSpec { skips: true, ..spec.clone() });
    let passed = seen(&mut *passing, file, piece);
    assert_eq!(passed, seen(&mut *passing, file, file.len().max(1)), "{}", row.name);
    let mut lost = Vec::new();
    passing.lost(&mut lost);
    if at_once.is_ok() {
        assert!(lost.is_empty() && passed == at_once, "{}: nothing is lost of what is good", row.name);
    }
}

/// An image is decoded or isn't, whatever an earlier one left, and takes no more memory than it may. Small ones alone: a
/// large one takes as long as thousands of them.
fn decode(decoder: Decoder, file: &[u8]) {
    let (mut fresh, mut used) = (Vec::new(), vec![0xA5; 100]);
    let first = decoder(file, PIXEL_BYTES, &mut fresh);
    assert_eq!(first.is_ok(), decoder(file, PIXEL_BYTES, &mut used).is_ok());
    assert!(fresh.len() <= PIXEL_BYTES);
}

/// Samples and payload of a whole file, or where it is damaged.
fn seen(parser: &mut dyn Parser, file: &[u8], piece: usize) -> Result<(u64, u64), Place> {
    parser.begin(file.len() as u64);
    let taken = file.chunks(piece).try_for_each(|bytes| parser.take(bytes)).and_then(|()| parser.end());
    let place = |damage: Damage| (damage.record, damage.offset);
    taken.map(|()| (parser.samples(), parser.payload_bytes())).map_err(place)
}

/// Pieces lie in the file, and what they lead to is the same whatever is read at a time: all that is wanted, or damage.
fn pick_all(picker: &mut dyn Picker, file: &[u8], samples: u64, low: u64) {
    let first = low % samples.max(1);
    let wanted =
        Wanted { first, every: 1 + low / 64, samples: samples.saturating_sub(first).div_ceil(1 + low / 64) };
    let lists = file.split_at_checked(8 * samples as usize);
    let index = lists.and_then(|(a, b)| RecordIndex::read(a, b, samples as u32, file.len() as u64).ok());
    let mut picked = |step: u64| -> Result<(u64, u64, usize), Place> {
        let mut lost = Vec::new();
        let read = picker
            .begin(file.len() as u64, wanted, index.as_ref())
            .and_then(|()| pick_from_memory(picker, file, wanted.samples, step));
        picker.lost(&mut lost);
        let read = read.map_err(|damage| (damage.record, damage.offset))?;
        assert_eq!(picker.samples(), wanted.samples, "all that is wanted is whole");
        Ok((read, picker.payload_bytes(), lost.len()))
    };
    assert_eq!(picked(1 + low), picked(u64::MAX));
}
