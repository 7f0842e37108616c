//! The layout of ranges in buffers, and the reads that fill them.

#![allow(unsafe_code, reason = "filling memory that Python lends, by address")]

use super::file::Reader;
use super::load::{self, Load};
use super::opened::{self, Opened};
use super::place::{are_many_and_long, Address, Range, Run, LONG};
use super::processors;
use super::request::{Request, Source};
use super::PAGE;
use forebay_io::{CopyChoice, CopyStores};
use forebay_model::Error;
use std::borrow::Cow;
use std::cell::RefCell;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};

/// Layout of a slot that is being filled.
pub(super) struct Layout {
    base: *mut u8,
    slot_bytes: usize,
    used: usize,
    pub loads: Vec<Load>,
    pub runs: Vec<Run>,
}

impl Layout {
    pub(crate) fn new(base: *mut u8, slot_bytes: usize) -> Layout {
        Layout { base, slot_bytes, used: 0, loads: Vec::new(), runs: Vec::new() }
    }

    pub(crate) fn lay(
        &mut self,
        request: &Request,
        source: &Source,
        pieces: &[Range],
        uncached: &mut Vec<Range>,
        past_cache: bool,
        opened: &mut Opened,
    ) -> Result<usize, Error> {
        for (tag, piece) in pieces.iter().enumerate() {
            let manner = match (source, past_cache) {
                (Source::One { reader, .. }, true) => past(reader),
                _ => choose(source, piece, opened)?,
            };
            let past_it = matches!(manner, Manner::Direct(..));
            let (begin, room) = if past_it {
                let head = piece.offset as usize % PAGE;
                (self.used.next_multiple_of(PAGE), (head + piece.bytes).next_multiple_of(PAGE))
            } else {
                (self.used, piece.bytes)
            };
            if begin + room > self.slot_bytes {
                return Ok(tag);
            }
            // SAFETY: begin + room lies inside the slot, as was just checked.
            let at = unsafe { self.base.add(begin) };
            let mut head = 0;
            match manner {
                Manner::Mapped(from) => copy_out(piece, from, at, source, request.bytes())?,
                // SAFETY: as above.
                Manner::Cached(fd) => match unsafe { load::cached(fd, piece.offset, at, piece.bytes) } {
                    Ok(Some(_)) => {}
                    Ok(None) if put_off(source, piece) => {
                        uncached.push(*piece);
                        continue;
                    }
                    Ok(None) => self.loads.push(plain(fd, piece, at, tag)),
                    Err(why) => return Err(failed(source, piece, &why)),
                },
                Manner::Direct(fd, _) => {
                    let (load, skip) = direct(fd, piece, at, tag);
                    head = skip;
                    self.loads.push(load);
                    add(&request.counts.uncached, piece.bytes);
                }
            }
            add(&request.counts.staged, piece.bytes);
            self.used = begin + room;
            self.note(begin + head, piece);
        }
        Ok(pieces.len())
    }

    /// Adjacent at both ends, two pieces travel as one copy.
    fn note(&mut self, from: usize, piece: &Range) {
        let Address::Device { at: to, .. } = piece.to else { unreachable!("parts have one kind of place") };
        match self.runs.last_mut() {
            Some(run) if run.from + run.bytes == from && run.to + run.bytes as u64 == to => {
                run.bytes += piece.bytes;
            }
            _ => self.runs.push(Run { from, to, bytes: piece.bytes }),
        }
    }
}

/// Manner of reading a piece.
pub(super) enum Manner {
    Mapped(*const u8),
    Cached(RawFd),
    /// And the unit of its offsets and addresses.
    Direct(RawFd, usize),
}

pub(super) fn choose(source: &Source, piece: &Range, opened: &mut Opened) -> Result<Manner, Error> {
    match source {
        Source::Many(files) => opened.fd(files, piece).map(Manner::Cached),
        Source::Apart { .. } => unreachable!("its own worker reads it"),
        Source::One { reader, .. } if reader.direct == Some(true) => Ok(past(reader)),
        Source::One { reader, .. } if piece.bytes < LONG => Ok(Manner::Cached(reader.fd())),
        Source::One { reader, .. } => {
            if let Some(from) = reader.resident_again(piece.offset, piece.bytes) {
                return Ok(Manner::Mapped(from));
            }
            Ok(match reader.cached_share(piece.offset, piece.bytes) {
                Some(share) if share > 0.99 => {
                    let mapped = reader.mapped(piece.offset, piece.bytes);
                    mapped.map_or(Manner::Cached(reader.fd()), Manner::Mapped)
                }
                // What is half cached is faster through the cache.
                Some(share) if share < 0.5 => past(reader),
                _ => Manner::Cached(reader.fd()),
            })
        }
    }
}

/// The file of a part of many long pieces, of which hardly any is cached: a look for each of them would take as long as a tenth of
/// its read.
pub(super) fn past_by_all<'a>(source: &'a Source, part: &[Range]) -> Option<&'a Reader> {
    let Source::One { reader, .. } = source else { return None };
    (are_many_and_long(part) && reader.direct != Some(true) && reader.is_hardly_cached()).then_some(reader)
}

/// Past the page cache where the file offers it.
pub(super) fn past(reader: &Reader) -> Manner {
    reader.direct_fd().map_or(Manner::Cached(reader.fd()), |(fd, unit)| Manner::Direct(fd, unit))
}

/// Returns whether a short uncached piece is to be read past the cache.
pub(super) fn put_off(source: &Source, piece: &Range) -> bool {
    matches!(source, Source::One { reader, .. } if piece.bytes < LONG && reader.direct_fd().is_some())
}

/// Pieces cut to what a slot holds; as they are where it holds a whole part.
pub(super) fn split(pieces: &[Range], slot_bytes: usize) -> Cow<'_, [Range]> {
    if pieces.iter().all(|p| p.offset as usize % PAGE + p.bytes <= slot_bytes) {
        return Cow::Borrowed(pieces);
    }
    let mut cut = Vec::new();
    for piece in pieces {
        let mut done = 0;
        while done < piece.bytes {
            let offset = piece.offset + done as u64;
            let bytes = (piece.bytes - done).min(slot_bytes - offset as usize % PAGE);
            cut.push(Range { offset, bytes, to: piece.to.after(done), ..*piece });
            done += bytes;
        }
    }
    Cow::Owned(cut)
}

pub(super) fn plain(fd: RawFd, piece: &Range, at: *mut u8, tag: usize) -> Load {
    Load { fd, offset: piece.offset, at, want: piece.bytes, ask: piece.bytes, got: 0, direct: false, tag }
}

/// The whole pages around a piece, and how far into them it begins.
pub(super) fn direct(fd: RawFd, piece: &Range, at: *mut u8, tag: usize) -> (Load, usize) {
    let head = piece.offset as usize % PAGE;
    let want = head + piece.bytes;
    let ask = want.next_multiple_of(PAGE);
    (Load { fd, offset: piece.offset - head as u64, at, want, ask, got: 0, direct: true, tag }, head)
}

/// Copies a piece out of the mapping; `asked`: bytes of the request that it is of.
pub(super) fn copy_out(
    piece: &Range,
    from: *const u8,
    to: *mut u8,
    source: &Source,
    asked: u64,
) -> Result<(), Error> {
    // SAFETY: `from` is the piece's place in the mapping, `to` has room for it.
    let copy = |stores| unsafe { load::out_of_mapping(to, from, piece.bytes, stores) };
    let got = by_fastest(piece.to, (piece.bytes, piece.bytes), asked, copy);
    if got == piece.bytes {
        return Ok(());
    }
    Err(short(source, piece, piece.offset + got as u64))
}

/// Copies by the way that this thread found to be the fastest for `whole` bytes, of which these are a part. None goes past the
/// cache whose user may find it there: on its way to a GPU, or where all that was `asked` for fits.
pub(super) fn by_fastest<T>(
    to: Address,
    (whole, bytes): (usize, usize),
    asked: u64,
    copy: impl FnOnce(CopyStores) -> T,
) -> T {
    thread_local! {
        static KEPT: RefCell<CopyChoice> = const { RefCell::new(CopyChoice::for_staging()) };
        static FINAL: RefCell<CopyChoice> = const { RefCell::new(CopyChoice::for_more_than_the_cache()) };
    }
    let is_kept = to.gpu().is_some() || asked < processors::cache_bytes() as u64;
    let choice = if is_kept { &KEPT } else { &FINAL };
    choice.with_borrow_mut(|choice| choice.copy_piece(whole, bytes, copy))
}

pub(super) fn add(count: &AtomicU64, bytes: usize) {
    count.fetch_add(bytes as u64, Ordering::Relaxed);
}

pub(super) fn asked(source: &Source, piece: &Range) -> String {
    let path = opened::path_of(source, piece.file);
    format!("read {} bytes from {} of {}", piece.bytes, piece.offset, path.display())
}

pub(super) fn failed(source: &Source, piece: &Range, why: &std::io::Error) -> Error {
    Error::run(asked(source, piece), why.to_string(), "dmesg, and the drive's health")
}

pub(super) fn short(source: &Source, piece: &Range, end: u64) -> Error {
    let found = format!("the file ended at {end}: it was truncated while it was read");
    Error::run(asked(source, piece), found, "read again once nothing writes to it")
}
