//! Files of training data: a byte that says which format, one for the samples, two for the length of a piece, the file.

use forebay_engine::format::{Damage, ParseSpec, Parser, FORMATS};

/// Where a file is damaged.
type Place = (u64, u64);

/// Any file is read to its end or damaged in the same place, whatever the pieces; and a parser that met damage reads the
/// next file as a new one does.
pub fn formats(data: &[u8]) {
    let Some(([format, samples, low, high], file)) = data.split_first_chunk::<4>() else { return };
    let row = &FORMATS[usize::from(*format) % FORMATS.len()];
    let spec = ParseSpec { samples_per_file: u32::from(*samples), ..ParseSpec::default() };
    let mut parser = (row.parser)(&spec);
    let piece = usize::from(u16::from_le_bytes([*low, *high])) + 1;
    let in_pieces = seen(&mut *parser, file, piece);
    let at_once = seen(&mut *parser, file, file.len().max(1));
    assert_eq!(in_pieces, at_once, "{}", row.name);
    // Cut short, it is never whole: every format knows its length.
    if at_once.is_ok() && file.len() > 1 {
        parser.begin(file.len() as u64);
        let cut = parser.take(&file[..file.len() - 1]).and_then(|()| parser.end());
        assert!(cut.is_err(), "{}", row.name);
    }
    let mut passing = (row.parser)(&ParseSpec { skips: true, ..spec });
    let passed = seen(&mut *passing, file, piece);
    assert_eq!(passed, seen(&mut *passing, file, file.len().max(1)), "{}", row.name);
    let mut lost = Vec::new();
    passing.lost(&mut lost);
    if at_once.is_ok() {
        assert!(lost.is_empty() && passed == at_once, "{}: nothing is lost of what is good", row.name);
    }
}

/// Samples and payload of a whole file, or where it is damaged.
fn seen(parser: &mut dyn Parser, file: &[u8], piece: usize) -> Result<(u64, u64), Place> {
    parser.begin(file.len() as u64);
    let taken = file.chunks(piece).try_for_each(|bytes| parser.take(bytes)).and_then(|()| parser.end());
    let place = |damage: Damage| (damage.record, damage.offset);
    taken.map(|()| (parser.samples(), parser.payload_bytes())).map_err(place)
}
