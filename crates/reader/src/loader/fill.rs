//! What isn't cached of the next batches, read into the page cache ahead of them: each part of a file once, whoever asks for it first.

use super::stage::Ready;
use super::table::{Column, Table};
use crate::file::Reader;
use crate::order_hash::order_samples;
use crate::request::Request;
use crate::rows::COPIED_ROW_BYTES_MAX;
use crate::thread_pool;
use forebay_io::{MemoryFacts, Roots};
use forebay_model::feed::{EpochOrder, Share, Shuffle};
use forebay_model::units::BYTES_PER_GIB as GIB;
use forebay_model::Error;
use std::ops::Range as Span;
use std::sync::Arc;
use std::time::Duration;

/// Read beyond the batch that is asked for, so that the disk is busy while that is copied.
const AHEAD_BYTES: u64 = 128 << 20;
/// Batches that are looked through for it.
const AHEAD_BATCHES: usize = 64;
/// Share of the memory for caches that files may come to, in quarters: the rest is for whoever else reads.
const QUARTERS: u64 = 3;
/// A random read takes a disk about as long as so many bytes of a long one: rows of other ranks between this one's are read along with
/// them where they are no more.
const RANDOM_READ_BYTES: u64 = 32 << 10;

/// What becomes of data that isn't cached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheUse {
    /// `Fill` where the files fit in memory, or ranks share blocks; else, and into a GPU, `Bypass`. What comes past the page cache by
    /// long reads is read there from the second epoch on: many jobs have but one.
    #[default]
    Auto,
    /// It is read into the page cache.
    Fill,
    /// It is read past the page cache, and comes from the disk in every epoch.
    Bypass,
}

impl CacheUse {
    pub const NAMES: &[(&str, CacheUse)] =
        &[("auto", CacheUse::Auto), ("fill", CacheUse::Fill), ("bypass", CacheUse::Bypass)];

    /// # Errors
    /// `Request`: there is no such use.
    pub fn parse(text: &str) -> Result<CacheUse, Error> {
        let named = CacheUse::NAMES.iter().find(|(name, _)| *name == text);
        named.map(|(_, of)| *of).ok_or_else(|| {
            let known: Vec<&str> = CacheUse::NAMES.iter().map(|(name, _)| *name).collect();
            Error::request(format!("cache={text:?}"), "no such use of the page cache", known.join(", "))
        })
    }
}

/// A decision about data that isn't cached, and its reason.
pub(super) struct Decision {
    pub(super) fills: bool,
    /// Not in the loader's first epoch.
    pub(super) later: bool,
    pub(super) why: String,
}

impl Decision {
    /// The decision in a record.
    pub(super) fn text(&self) -> String {
        format!("{}: {}", if self.fills || self.later { "fill" } else { "bypass" }, self.why)
    }
}

/// Decides whether what isn't cached is read into the page cache. `step`: bytes from one row to the next; `by_long_reads`: whether
/// it would come past the cache so.
pub(super) fn decide(
    table: &Table,
    asked: CacheUse,
    (shuffle, world): (Shuffle, u64),
    step: u64,
    into_gpu: bool,
    by_long_reads: bool,
) -> Decision {
    let able = table.all_are_files() && table.files().all(|reader| reader.can_fill_cache());
    let (mut fills, mut why) = match asked {
        CacheUse::Bypass => (false, "cache=\"bypass\"".to_string()),
        _ if !able => (
            false,
            "it can't be filled by mapped ranges here, or the system doesn't tell what is cached".into(),
        ),
        CacheUse::Fill => (true, "cache=\"fill\"".to_string()),
        // A GPU takes them without a copy of a processor's.
        CacheUse::Auto if into_gpu => (false, "samples go past it into a GPU".to_string()),
        CacheUse::Auto => {
            let bytes = table.files().filter_map(|reader| reader.bytes().ok()).sum();
            let shared = shuffle == Shuffle::Blocks && world > 1 && reads_whole(world, step);
            fits(bytes, MemoryFacts::page_cache_room_bytes(&Roots::host()), shared)
        }
    };
    let later = fills && asked == CacheUse::Auto && by_long_reads;
    if later {
        (fills, why) = (false, format!("from the loader's second epoch on; {why}"));
    }
    Decision { fills, later, why }
}

/// Returns whether batches of so many rows come past the page cache by long reads, but for blocks that are read whole: of long
/// rows, or of rows in order that a rank has to itself. Shorter reads go by way of the cache.
pub(super) fn are_long_reads(table: &Table, shuffle: Shuffle, share: &Share) -> bool {
    let long = |bytes: u64| bytes >= COPIED_ROW_BYTES_MAX as u64;
    let in_order = |column: &Column| {
        let touch = column.step == column.bytes as u64;
        touch && long(share.batch.min(table.rows()).saturating_mul(column.step))
    };
    let alone = shuffle == Shuffle::None && share.world == 1;
    table.columns().iter().all(|column| long(column.bytes as u64) || alone && in_order(column))
}

/// Returns whether blocks are worth reading whole by each of so many ranks, of rows that lie so far apart.
pub(super) fn reads_whole(world: u64, step: u64) -> bool {
    world == 1 || world.saturating_mul(step) <= RANDOM_READ_BYTES
}

/// Returns whether files of so many bytes are read into the page cache, and why. `room`: bytes that may be cached; `shared`: ranks
/// read the same blocks.
fn fits(bytes: u64, room: Option<u64>, shared: bool) -> (bool, String) {
    let Some(room) = room else {
        return (false, "the system doesn't tell how much memory is available".into());
    };
    let gib = |bytes: u64| bytes as f64 / GIB;
    let sizes = format!("the files have {:.1} GiB, {:.1} GiB of memory are available", gib(bytes), gib(room));
    match bytes <= room / 4 * QUARTERS {
        true => (true, sizes),
        false if shared => (true, format!("{sizes}, and ranks share blocks")),
        false => (false, sizes),
    }
}

struct Fill {
    positions: Span<u64>,
    bytes: u64,
    requests: Vec<Arc<Request>>,
}

impl Fill {
    fn is_done(&self) -> bool {
        self.requests.iter().all(|request| request.is_done())
    }
}

impl Drop for Fill {
    fn drop(&mut self) {
        for request in &self.requests {
            request.cancel();
        }
    }
}

/// Parts of files that are being read into the page cache.
#[derive(Default)]
pub(super) struct Fills {
    fills: Vec<Fill>,
    samples: Vec<u64>,
    /// What isn't cached comes by huge pages.
    by_huge_pages: bool,
}

impl Fills {
    pub(super) fn clear(&mut self) {
        self.fills.clear();
    }

    /// Has what isn't cached of a batch read, and what the `next` ones lack. A part that can't be read is left to the batch, whose
    /// error says where.
    ///
    /// # Errors
    /// A file changed, or can't be looked at.
    pub(super) fn ready(
        &mut self,
        table: &Table,
        order: &EpochOrder,
        of: &Span<u64>,
        next: impl Iterator<Item = Span<u64>>,
    ) -> Result<Ready, Error> {
        table.files().for_each(|reader| reader.look_again());
        if table.files().all(|reader| reader.whole().is_some()) {
            self.clear();
            // Pages that were read so would be the first that the system takes back.
            self.read_by_huge_pages(table, false);
            return Ok(Ready::Yes);
        }
        self.fills.retain(|fill| fill.positions.end > of.start);
        self.cover(table, order, of)?;
        for following in next.take(AHEAD_BATCHES) {
            let ahead = self.fills.iter().filter(|fill| fill.positions.start >= of.end && !fill.is_done());
            if ahead.map(|fill| fill.bytes).sum::<u64>() >= AHEAD_BYTES {
                break;
            }
            self.cover(table, order, &following)?;
        }
        let waits = |fill: &Fill| fill.positions.start < of.end && !fill.is_done();
        Ok(if self.fills.iter().any(waits) { Ready::Wait } else { Ready::Yes })
    }

    /// Waits for what isn't there yet.
    pub(super) fn wait(&self, at_most: Duration) -> bool {
        let mut requests = self.fills.iter().flat_map(|fill| &fill.requests);
        requests.find(|request| !request.is_done()).is_none_or(|request| request.wait(Some(at_most)))
    }

    fn read_by_huge_pages(&mut self, table: &Table, wanted: bool) {
        if std::mem::replace(&mut self.by_huge_pages, wanted) != wanted {
            table.files().for_each(|reader| reader.read_by_huge_pages(wanted));
        }
    }

    /// Begins to read what positions lack, with what they are mixed with.
    fn cover(&mut self, table: &Table, order: &EpochOrder, of: &Span<u64>) -> Result<(), Error> {
        let mut position = of.start;
        while position < of.end {
            if let Some(known) = self.fills.iter().find(|fill| fill.positions.contains(&position)) {
                position = known.positions.end;
                continue;
            }
            let (positions, missing) = match order.window(position) {
                Some(window) => (window.positions, missing(table, window.runs)?),
                None if order.is_as_they_lie() => (of.clone(), missing(table, [of.clone()])?),
                None => {
                    self.samples.resize((of.end - of.start) as usize, 0);
                    order_samples(order, of.start, &mut self.samples);
                    (of.clone(), missing(table, self.samples.iter().map(|sample| *sample..*sample + 1))?)
                }
            };
            position = positions.end;
            if !missing.is_empty() {
                self.read_by_huge_pages(table, true);
            }
            self.fills.push(begin(positions, missing)?);
        }
        Ok(())
    }
}

/// Ranges of a file that aren't cached.
struct Lacking {
    reader: Arc<Reader>,
    spans: Vec<Span<u64>>,
}

/// Parts of files that these samples lie in and that aren't cached.
fn missing(table: &Table, runs: impl IntoIterator<Item = Span<u64>>) -> Result<Vec<Lacking>, Error> {
    let mut touched: Vec<(usize, u64)> = Vec::new();
    for (file, rows, _) in runs.into_iter().flat_map(|run| table.pieces(run)) {
        for column in 0..table.columns().len() {
            let (span, _) = table.extent(file, &(column..column + 1), &rows);
            touched.extend(Reader::cache_parts(&span).map(|part| (file, part)));
        }
    }
    touched.sort_unstable();
    touched.dedup();
    let mut lacking = Vec::new();
    for of in touched.chunk_by(|a, b| a.0 == b.0) {
        let reader = table.unchanged(of[0].0)?;
        let spans: Vec<Span<u64>> = of.iter().filter_map(|(_, part)| reader.lacks_part(*part)).collect();
        if !spans.is_empty() {
            lacking.push(Lacking { reader: reader.clone(), spans });
        }
    }
    Ok(lacking)
}

fn begin(positions: Span<u64>, missing: Vec<Lacking>) -> Result<Fill, Error> {
    let mut fill = Fill { positions, bytes: 0, requests: Vec::new() };
    for Lacking { reader, spans } in missing {
        fill.bytes += spans.iter().map(|span| span.end - span.start).sum::<u64>();
        let request = Request::of_fill(&reader, &spans)?;
        // Held first: what was begun ends with the fill.
        fill.requests.push(request.clone());
        thread_pool::submit(&request)?;
    }
    Ok(fill)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_fit_in_memory_and_blocks_that_ranks_share_are_read_into_the_page_cache() {
        for (bytes, room, shared, fills) in [
            (3 << 30, Some(4 << 30), false, true),
            ((3 << 30) + 1, Some(4 << 30), false, false),
            (1 << 40, Some(4 << 30), true, true),
            (1, None, true, false),
        ] {
            let (found, why) = fits(bytes, room, shared);
            assert_eq!(found, fills, "{bytes} of {room:?}: {why}");
        }
        assert!(fits(5 << 30, Some(4 << 30), false).1.contains("5.0 GiB, 4.0 GiB"));
    }
}
