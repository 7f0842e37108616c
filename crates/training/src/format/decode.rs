//! Images decoded (`--decode`): what a training pipeline does to a JPEG or PNG once it has read it.
//!
//! An image is held until its framing was found whole, and decoded in one go, to 8 bits a channel. The decoders are
//! libraries; what a file may make them allocate is bounded here.

use super::{Damage, Lost, Parser};
use std::cell::RefCell;
use std::io::Cursor;
use std::panic::{catch_unwind, AssertUnwindSafe};
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::options::DecoderOptions;
use zune_jpeg::JpegDecoder;

/// Limit on a file that is held until it is whole.
const FILE_BYTES_MAX: u64 = 256 << 20;
/// Limit on an image's pixels: some 44 million in colour. A file of a few bytes may announce any number of them.
const PIXEL_BYTES_MAX: usize = 128 << 20;
/// Limit on the scans of a progressive JPEG, each of which goes over all pixels again. Encoders make about ten.
const SCANS_MAX: usize = 100;

thread_local! {
    /// Pixels of the thread's last image, whose memory the next one takes.
    static PIXELS: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Decodes a whole file to at most so many bytes of pixels; what is wrong with it, in a phrase.
pub type Decoder = fn(file: &[u8], most: usize, pixels: &mut Vec<u8>) -> Result<(), String>;

/// A format's parser, and a decoder behind it.
pub(crate) struct Decoding {
    parser: Box<dyn Parser>,
    decoder: Decoder,
    file_bytes: u64,
    file: Vec<u8>,
    is_decoded: bool,
}

impl Decoding {
    pub(crate) fn new(parser: Box<dyn Parser>, decoder: Decoder) -> Decoding {
        Decoding { parser, decoder, file_bytes: 0, file: Vec::new(), is_decoded: false }
    }
}

impl Parser for Decoding {
    fn begin(&mut self, file_bytes: u64) {
        self.parser.begin(file_bytes);
        self.file.clear();
        (self.file_bytes, self.is_decoded) = (file_bytes, false);
    }

    fn take(&mut self, bytes: &[u8]) -> Result<(), Damage> {
        if self.file_bytes > FILE_BYTES_MAX {
            let what = format!("images of up to 256 MiB are decoded, and it has {} bytes", self.file_bytes);
            return Err(Damage::new(0, 0, what));
        }
        self.parser.take(bytes)?;
        self.file.extend_from_slice(bytes);
        Ok(())
    }

    fn end(&mut self) -> Result<(), Damage> {
        self.parser.end()?;
        // A decoder that breaks has met an image that isn't one.
        let decode = || PIXELS.with_borrow_mut(|pixels| (self.decoder)(&self.file, PIXEL_BYTES_MAX, pixels));
        let decoded = catch_unwind(AssertUnwindSafe(decode));
        let decoded = decoded.unwrap_or_else(|_| Err("the decoder broke off".into()));
        decoded.map_err(|what| Damage::new(0, 0, format!("the image can't be decoded: {what}")))?;
        self.is_decoded = true;
        Ok(())
    }

    fn samples(&self) -> u64 {
        if self.is_decoded {
            self.parser.samples()
        } else {
            0
        }
    }

    fn payload_bytes(&self) -> u64 {
        self.parser.payload_bytes()
    }

    fn lost(&mut self, into: &mut Vec<Lost>) {
        self.parser.lost(into);
    }
}

/// Baseline and progressive JPEGs, to RGB.
pub(crate) fn jpeg(file: &[u8], most: usize, pixels: &mut Vec<u8>) -> Result<(), String> {
    let side = usize::from(u16::MAX);
    let options = DecoderOptions::default().set_max_width(side).set_max_height(side).set_strict_mode(true);
    let options = options.jpeg_set_max_scans(SCANS_MAX);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(file), options);
    decoder.decode_headers().map_err(one_line)?;
    make_room(decoder.output_buffer_size(), most, pixels)?;
    decoder.decode_into(pixels).map_err(one_line)
}

/// PNGs of any colour type, of animated ones the first frame.
pub(crate) fn png(file: &[u8], most: usize, pixels: &mut Vec<u8>) -> Result<(), String> {
    let mut decoder = ::png::Decoder::new_with_limits(Cursor::new(file), ::png::Limits { bytes: most });
    decoder.set_transformations(::png::Transformations::normalize_to_color8());
    decoder.set_ignore_text_chunk(true);
    let mut reader = decoder.read_info().map_err(one_line)?;
    make_room(reader.output_buffer_size(), most, pixels)?;
    reader.next_frame(pixels).map_err(one_line)?;
    Ok(())
}

/// As long as the image's pixels, whatever was there.
fn make_room(wanted: Option<usize>, most: usize, pixels: &mut Vec<u8>) -> Result<(), String> {
    match wanted {
        Some(bytes) if bytes <= most => pixels.resize(bytes, 0),
        Some(bytes) => return Err(format!("it has {bytes} bytes of pixels, and {most} are the most")),
        None => return Err("it has more pixels than can be counted".into()),
    }
    Ok(())
}

/// Returns a library's message without line breaks.
fn one_line(error: impl std::fmt::Display) -> String {
    error.to_string().split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::row;
    use crate::format::write::{FileShape, WriteSpec, Writer};
    use crate::format::ParseSpec;

    fn made(format: &str, rows: u32, columns: u32) -> Vec<u8> {
        let spec = WriteSpec { seed: 3, samples_per_file: 1, dimension: 8, ..WriteSpec::default() };
        let mut writer = Writer::new((row(format).unwrap().layout)(&spec), spec.seed);
        let shape = FileShape { number: 0, rows, columns };
        let mut file = vec![0; writer.file_bytes(shape) as usize];
        writer.begin(shape);
        assert_eq!(writer.fill(&mut file), file.len());
        file
    }

    fn read(format: &str, file: &[u8], piece: usize) -> (u64, Result<(), Damage>) {
        let spec = ParseSpec { samples_per_file: 1, ..ParseSpec::default() };
        let mut reader = row(format).unwrap().reader(&spec, true);
        reader.begin(file.len() as u64);
        let taken = file.chunks(piece).try_for_each(|bytes| {
            assert_eq!(reader.samples(), 0, "an image is whole once it was decoded");
            reader.take(bytes)
        });
        let ended = taken.and_then(|()| reader.end());
        (reader.samples(), ended)
    }

    #[test]
    fn pixels_are_those_that_were_written() {
        let mut pixels = vec![7; 5];
        jpeg(&made("jpeg", 40, 51), 1 << 20, &mut pixels).unwrap();
        assert_eq!(pixels, [128; 40 * 51 * 3]);
        let file = made("png", 300, 211);
        png(&file, 1 << 20, &mut pixels).unwrap();
        assert_eq!(pixels.len(), 300 * 211);
        // Rows lie in the file as they are, each behind its filter's byte.
        for row in pixels.chunks(211) {
            assert!(memchr::memmem::find(&file, row).is_some());
        }
    }

    #[test]
    fn a_sample_is_whole_once_it_is_decoded_whatever_the_pieces() {
        for format in ["jpeg", "png"] {
            let file = made(format, 30, 41);
            for piece in [1, 7, 1000, file.len()] {
                assert_eq!(read(format, &file, piece), (1, Ok(())), "{format} {piece}");
            }
        }
    }

    // promise: TRA-19
    #[test]
    fn more_pixels_than_may_be_are_refused_before_memory_is_taken() {
        let mut file = made("jpeg", 30, 41);
        let frame = memchr::memmem::find(&file, &[0xFF, 0xC0]).unwrap();
        file[frame + 5..frame + 9].fill(0xFE);
        let (samples, damage) = read("jpeg", &file, 100);
        let what = damage.unwrap_err().what;
        assert!(samples == 0 && what.contains("134217728 are the most"), "{what}");
        let mut pixels = Vec::new();
        let refused = png(&made("png", 30, 41), 30 * 41 - 1, &mut pixels).unwrap_err();
        assert!(refused.contains("1229 are the most") && pixels.capacity() == 0, "{refused}");
    }

    // promise: TRA-19
    #[test]
    fn an_image_that_goes_wrong_is_damaged_and_the_next_one_is_read() {
        let spec = ParseSpec { samples_per_file: 1, ..ParseSpec::default() };
        let mut reader = row("jpeg").unwrap().reader(&spec, true);
        let whole = made("jpeg", 30, 41);
        let mut tables = whole.clone();
        let table = memchr::memmem::find(&tables, &[0xFF, 0xC4]).unwrap();
        // Codes of one bit each: more than there can be.
        tables[table + 5] = 9;
        for (file, is_good) in [(&whole, true), (&tables, false), (&whole, true)] {
            reader.begin(file.len() as u64);
            let ended = reader.take(file).and_then(|()| reader.end());
            assert_eq!((ended.is_ok(), reader.samples()), (is_good, u64::from(is_good)), "{ended:?}");
        }
    }
}
