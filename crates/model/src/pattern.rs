//! Sequence of the byte ranges of I/Os: endless, the same for the same seed on every machine, in constant memory and a
//! few nanoseconds per I/O.
//!
//! Sequential patterns cover the spans in order, or in a random order of spans, optionally with gaps; of a mix, reads and writes each do. Random ones draw aligned positions: uniform,
//! Zipf, by zones, from a list, or as a permutation that visits each block once per pass. Only a permutation with
//! several I/O sizes takes memory: one bit per block.

mod covered;
mod line;
pub(crate) mod permutation;
mod places;
mod sizes;
mod walk;
mod zipf;

use crate::job::{Distribution, IoMix, SizeShare, Zone};
use crate::random::{derive, Below, Xoshiro256};
use crate::units::IO_BYTES_MAX;
use crate::Error;
use covered::{Covered, BLOCKS_MAX};
use line::Line;
use permutation::Permutation;
use places::Places;
use sizes::Sizes;
use walk::Walk;
use zipf::Zipf;

/// Bytes of one target (a file, a device, a stripe) that a pattern may touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub target: u32,
    /// Offset of the first byte in the target.
    pub start: u64,
    pub bytes: u64,
}

/// The parameters of a pattern.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PatternSpec {
    /// Empty spans are skipped; at most 2^63 bytes in all.
    pub spans: Vec<Span>,
    pub random: bool,
    /// Distribution of random positions.
    pub distribution: Distribution,
    /// Random positions are a permutation, new in each pass.
    pub no_repeat: bool,
    /// Sequential: bytes to skip after each I/O or, with `skip_every`, after that many bytes. Negative: to go back.
    pub skip: i64,
    pub skip_every: Option<u64>,
    /// Sequential: spans follow each other in random order, new in each pass. Each is covered from its start to its end.
    pub shuffled: bool,
    /// Bytes per I/O; with `io_bytes_max`, the least.
    pub io_bytes: u64,
    /// Sizes are drawn uniformly from io_bytes, io_bytes + step, … up to this.
    pub io_bytes_max: Option<u64>,
    /// None: io_bytes.
    pub io_bytes_step: Option<u64>,
    /// Sizes by their shares, from `io_bytes` to `io_bytes_max`.
    pub mix: Option<IoMix>,
    /// Random offsets, counted from their span's start, are multiples of this. Sequential ones are contiguous.
    pub align: u64,
    /// Of a mix whose reads and writes have sizes of their own, uniform offsets are multiples of the least of those instead.
    pub aligns_apart: bool,
    /// Share of reads, in per cent.
    pub read_pct: u8,
    pub seed: u64,
    /// Random positions come from this many parts of the data in turn, of equal size; 0: from all of it.
    pub segments: u32,
}

/// One I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Next {
    pub target: u32,
    /// From the start of the target.
    pub offset: u64,
    pub len: u32,
    pub is_read: bool,
    /// Number of times that the data had been covered when this I/O began. Where positions are drawn with repetition,
    /// and where reads and writes have positions of their own: how often that many bytes had been moved.
    pub pass: u32,
}

/// An endless sequence of I/Os. See the module's description.
#[derive(Clone, Debug)]
pub struct Pattern {
    spans: Vec<Span>,
    data_bytes: u64,
    align: u64,
    order: AccessOrder,
    sizes: Sizes,
    /// An I/O reads if 32 random bits are below this.
    read_below: u64,
    random: Xoshiro256,
    pass: u32,
    /// Bytes until the pass ends, where those that are moved count.
    pass_left: u64,
}

#[derive(Clone, Debug)]
enum AccessOrder {
    Sequential(Line),
    /// Lines of writes and of reads.
    Apart([Line; 2]),
    Skipping(Walk),
    Uniform(Uniform),
    Zipf {
        places: Places,
        zipf: Zipf,
        scatter: Permutation,
    },
    Permuted {
        places: Places,
        index: u64,
        permutation: Permutation,
        seed: u64,
    },
    Covered(Covered),
    Zoned {
        places: Places,
        /// Up to which of 100 a drawn number means this zone; its first place, and how many it has.
        zones: Vec<(u64, u64, Below)>,
    },
    Listed {
        places: Places,
        list: List,
    },
    InParts(Parts),
}

/// Positions of parts of equal size, from one after the other.
#[derive(Clone, Debug)]
struct Parts {
    places: Places,
    each: Below,
    part: u64,
    count: u64,
}

impl Parts {
    fn new(places: Places, count: u64) -> Parts {
        Parts { each: Below::new((places.total() / count).max(1)), places, part: 0, count }
    }

    #[inline]
    fn draw(&mut self, random: &mut Xoshiro256) -> (usize, u64) {
        let first = (u128::from(self.places.total()) * u128::from(self.part) / u128::from(self.count)) as u64;
        self.part = (self.part + 1) % self.count;
        self.places.at(first + self.each.draw(random))
    }
}

/// Positions with repetition, all of them equally likely.
#[derive(Clone, Debug)]
enum Uniform {
    Together(Positions),
    /// Of writes, and of reads.
    Apart(Box<[Positions; 2]>),
}

impl Uniform {
    #[inline]
    fn positions_of(&self, is_read: bool) -> &Positions {
        match self {
            Uniform::Together(positions) => positions,
            Uniform::Apart(both) => &both[usize::from(is_read)],
        }
    }
}

/// Positions that are equally likely, multiples of `align` from their span's start.
#[derive(Clone, Debug)]
struct Positions {
    places: Places,
    below: Below,
    align: u64,
}

impl Positions {
    fn new(places: Places, align: u64) -> Positions {
        Positions { below: Below::new(places.total()), places, align }
    }

    #[inline]
    fn draw(&self, random: &mut Xoshiro256) -> ((usize, u64), u64) {
        (self.places.at(self.below.draw(random)), self.align)
    }
}

/// Blocks in a given order, over and over.
#[derive(Clone, Debug)]
struct List {
    blocks: Vec<u64>,
    /// Offset that a round adds to all blocks.
    step: u64,
    index: usize,
    base: u64,
}

impl List {
    /// The next block, of `total`.
    #[inline]
    fn next(&mut self, total: u64) -> u64 {
        let block = (self.base + self.blocks[self.index]) % total;
        self.index += 1;
        if self.index == self.blocks.len() {
            self.index = 0;
            self.base = (self.base + self.step) % total;
        }
        block
    }
}

/// Hot blocks lie at the same places for every seed, so that workers with seeds
/// of their own share one hot set.
const SCATTER_KEY: u64 = 0x666F_7265_6261_7931;

impl Pattern {
    /// Refuses what has no data, overflows or contradicts itself.
    pub fn new(spec: PatternSpec) -> Result<Pattern, Error> {
        spec.check()?;
        let spans: Vec<Span> = spec.spans.iter().copied().filter(|s| s.bytes > 0).collect();
        let data_bytes = spans.iter().map(|s| s.bytes).sum();
        Ok(Pattern {
            order: spec.order(&spans)?,
            sizes: Sizes::from_spec(&spec),
            read_below: (u64::from(spec.read_pct) << 32) / 100,
            random: Xoshiro256::new(spec.seed),
            align: spec.align,
            pass: 0,
            pass_left: data_bytes,
            data_bytes,
            spans,
        })
    }

    /// Total bytes of all spans.
    pub fn data_bytes(&self) -> u64 {
        self.data_bytes
    }

    /// The next I/O. It never crosses the end of its span: the last one in a span may be shorter.
    #[inline]
    #[expect(
        clippy::should_implement_trait,
        reason = "endless: an Option would have to be unwrapped everywhere"
    )]
    pub fn next(&mut self) -> Next {
        let (len, is_read) = self.size_and_direction();
        let at = match &mut self.order {
            AccessOrder::Sequential(line) => {
                let (target, offset, len, is_last) = line.next(&self.spans, len);
                let pass = self.pass;
                self.pass = pass.saturating_add(u32::from(is_last));
                return Next { target, offset, len: len as u32, is_read, pass };
            }
            AccessOrder::Apart(lines) => {
                let (target, offset, len, _) = lines[usize::from(is_read)].next(&self.spans, len);
                let pass = self.pass;
                self.count(len);
                return Next { target, offset, len: len as u32, is_read, pass };
            }
            AccessOrder::Skipping(walk) => {
                let (index, inside, len) = walk.next(&self.spans, len);
                let io = self.io((index, inside), len, is_read, self.pass);
                self.count(len);
                return io;
            }
            AccessOrder::Covered(_) => return self.next_covered(len, is_read),
            AccessOrder::Zoned { places, zones } => {
                let at = places.at(in_zone(zones, &mut self.random));
                self.fit_back(at, len)
            }
            AccessOrder::Listed { places, list } => {
                let at = places.at(list.next(places.total()));
                self.fit_back(at, len)
            }
            AccessOrder::InParts(parts) => {
                let at = parts.draw(&mut self.random);
                self.fit_back(at, len)
            }
            AccessOrder::Uniform(drawn) => {
                let (at, align) = drawn.positions_of(is_read).draw(&mut self.random);
                self.fit_anew(at, len, align)
            }
            AccessOrder::Zipf { places, zipf, scatter } => {
                let at = places.at(scatter.at(zipf.draw(&mut self.random)));
                self.fit_back(at, len)
            }
            AccessOrder::Permuted { places, index, permutation, .. } => {
                let (at, pass) = (places.at(permutation.at(*index)), self.pass);
                *index += 1;
                if *index == places.total() {
                    self.next_permutation();
                }
                return self.io(at, len, is_read, pass);
            }
        };
        let io = self.io(at, len, is_read, self.pass);
        self.count(u64::from(io.len));
        io
    }

    #[inline]
    fn next_covered(&mut self, len: u64, is_read: bool) -> Next {
        let pass = self.pass;
        let AccessOrder::Covered(covered) = &mut self.order else { unreachable!("as its caller found") };
        let again = || self.sizes.draw_for(is_read, &mut self.random);
        let (index, inside, len, is_last) = covered.next(&self.spans, len, again);
        if is_last {
            self.pass = pass.saturating_add(1);
            covered.begin(self.pass);
        }
        self.io((index, inside), len, is_read, pass)
    }

    /// A seed's offsets stay what they were: a size that doesn't depend on the direction is drawn before it.
    #[inline]
    fn size_and_direction(&mut self) -> (u64, bool) {
        let len = self.sizes.draw(&mut self.random);
        let is_read = self.read_below >> 32 != 0
            || (self.read_below != 0 && self.random.next_u64() >> 32 < self.read_below);
        match len {
            Some(len) => (len, is_read),
            None => (self.sizes.draw_for(is_read, &mut self.random), is_read),
        }
    }

    #[inline]
    fn io(&self, (index, inside): (usize, u64), len: u64, is_read: bool, pass: u32) -> Next {
        let span = &self.spans[index];
        let len = len.min(span.bytes - inside) as u32;
        Next { target: span.target, offset: span.start + inside, len, is_read, pass }
    }

    /// An I/O too long for its place is given another in the same span: each place
    /// where it fits stays equally likely.
    #[inline]
    fn fit_anew(&mut self, (index, inside): (usize, u64), len: u64, align: u64) -> (usize, u64) {
        let bytes = self.spans[index].bytes;
        if bytes - inside >= len {
            return (index, inside);
        }
        let Some(room) = bytes.checked_sub(len) else {
            return (index, 0);
        };
        (index, Below::new(room / align + 1).draw(&mut self.random) * align)
    }

    /// An I/O too long for its place moves back to the last place where it fits.
    #[inline]
    fn fit_back(&self, (index, inside): (usize, u64), len: u64) -> (usize, u64) {
        let room = self.spans[index].bytes.saturating_sub(len);
        (index, if inside <= room { inside } else { room / self.align * self.align })
    }

    #[inline]
    fn count(&mut self, bytes: u64) {
        if bytes < self.pass_left {
            self.pass_left -= bytes;
        } else {
            self.pass_left += self.data_bytes - bytes;
            self.pass = self.pass.saturating_add(1);
        }
    }

    #[cold]
    fn next_permutation(&mut self) {
        self.pass = self.pass.saturating_add(1);
        if let AccessOrder::Permuted { places, index, permutation, seed } = &mut self.order {
            *index = 0;
            *permutation = Permutation::new(places.total(), derive(*seed, u64::from(self.pass)));
        }
    }
}

impl PatternSpec {
    fn check(&self) -> Result<(), Error> {
        let refuse = |asked: String, found: &str, next: &str| Err(Error::request(asked, found, next));
        let largest = self.io_bytes_max.unwrap_or(self.io_bytes);
        if self.io_bytes == 0 || largest > IO_BYTES_MAX || largest < self.io_bytes {
            return refuse(
                format!("‹io_bytes› {}:{largest}", self.io_bytes),
                "must be 1 byte to 1 GiB, the least first",
                "‹io_bytes› 1m",
            );
        }
        if self.io_bytes_step == Some(0) {
            return refuse(
                "‹io_bytes› step 0".into(),
                "the step must be at least 1 byte",
                "‹io_bytes› 4k:1m:4k",
            );
        }
        if self.align == 0 {
            return refuse("‹align_bytes› 0".into(), "must be at least 1 byte", "‹align_bytes› 4k");
        }
        if self.read_pct > 100 {
            return refuse(format!("‹read_pct› {}", self.read_pct), "must be 0 to 100", "‹read_pct› 70");
        }
        self.check_spans()?;
        self.check_order()
    }

    /// Ends, sums and position numbers then fit 64 bits.
    fn check_spans(&self) -> Result<(), Error> {
        const MOST: u64 = 1 << 63;
        let mut total = 0u64;
        for span in &self.spans {
            let end = span.start.checked_add(span.bytes).filter(|e| *e <= MOST);
            total = match (end, total.checked_add(span.bytes)) {
                (Some(_), Some(sum)) if sum <= MOST => sum,
                _ => {
                    return Err(Error::request(
                        format!("{} bytes from {} of target {}", span.bytes, span.start, span.target),
                        "overflows (more than 8 EiB in all)",
                        "a smaller ‹file_bytes›",
                    ))
                }
            };
        }
        if total == 0 {
            return Err(Error::request(
                "the data",
                "has no bytes to read or write",
                "a larger ‹file_bytes› or a smaller ‹start_bytes›",
            ));
        }
        Ok(())
    }

    fn check_order(&self) -> Result<(), Error> {
        let refuse = |asked: String, found: &str, next: &str| Err(Error::request(asked, found, next));
        if let Distribution::Zipf(theta) = self.distribution {
            if !(theta > 0.0 && theta < 3.0) {
                let asked = format!("‹distribution› zipf:{theta}");
                return refuse(asked, "the exponent must lie between 0 and 3", "‹distribution› zipf:1.1");
            }
        }
        if self.distribution != Distribution::Uniform {
            let asked = String::from(match self.distribution {
                Distribution::Zipf(_) => "‹distribution› zipf",
                Distribution::Zoned(_) => "‹distribution› zoned",
                _ => "‹distribution› list",
            });
            if !self.random {
                return refuse(asked, "needs random offsets", "‹op› randread");
            }
            if self.no_repeat {
                return refuse(
                    format!("{asked} ‹no_repeat›"),
                    "some blocks can't be more popular when each comes once",
                    "either alone",
                );
            }
        }
        if self.has_sizes() && self.random && self.no_repeat && self.blocks() > BLOCKS_MAX {
            return refuse(
                "‹no_repeat› with several sizes".into(),
                "it tracks each block of the smallest size, and there are more than 4,294,967,296",
                "no ‹no_repeat›, larger I/Os, or more workers",
            );
        }
        Ok(())
    }

    /// I/Os differ in size.
    fn has_sizes(&self) -> bool {
        self.io_bytes_max.is_some_and(|m| m != self.io_bytes)
    }

    /// The least sizes of writes and of reads, where offsets go by them.
    fn leasts(&self) -> Option<[u64; 2]> {
        let mix = self.mix.as_ref().filter(|_| self.aligns_apart && self.read_pct % 100 != 0)?;
        let least = |shares: &[SizeShare]| shares.iter().map(|s| s.bytes).min();
        let both = [least(&mix.writes)?, least(&mix.reads)?];
        (both[0] != both[1]).then_some(both)
    }

    /// From one block of a permutation to the next.
    fn stride(&self) -> u64 {
        self.io_bytes.div_ceil(self.align) * self.align
    }

    fn blocks(&self) -> u64 {
        self.spans.iter().map(|s| s.bytes.div_ceil(self.stride())).fold(0, u64::saturating_add)
    }

    fn order(&self, spans: &[Span]) -> Result<AccessOrder, Error> {
        if !self.random {
            return Ok(match self.skip {
                0 if self.read_pct % 100 != 0 => AccessOrder::Apart([Line::new(spans), Line::new(spans)]),
                0 if self.shuffled => AccessOrder::Sequential(Line::shuffled(spans, self.seed)),
                0 => AccessOrder::Sequential(Line::new(spans)),
                skip => AccessOrder::Skipping(Walk::new(skip, self.skip_every)),
            });
        }
        if self.no_repeat {
            // Blocks side by side, each aligned; the last of a span may be short.
            let stride = self.stride();
            let places = Places::new(spans, stride, |s| s.bytes.div_ceil(stride));
            if self.has_sizes() {
                return Ok(AccessOrder::Covered(Covered::new(places, stride, self.seed)));
            }
            let permutation = Permutation::new(places.total(), derive(self.seed, 0));
            return Ok(AccessOrder::Permuted { places, index: 0, permutation, seed: self.seed });
        }
        // Every position at which the least I/O fits; one where even that doesn't.
        let places_of =
            |align: u64, least: u64| Places::new(spans, align, |s| s.bytes.saturating_sub(least) / align + 1);
        let places = places_of(self.align, self.io_bytes);
        if self.segments > 0 {
            return Ok(AccessOrder::InParts(Parts::new(places, self.segments.into())));
        }
        Ok(match &self.distribution {
            Distribution::Uniform => AccessOrder::Uniform(match self.leasts() {
                Some(both) => {
                    Uniform::Apart(Box::new(both.map(|least| Positions::new(places_of(least, least), least))))
                }
                None => Uniform::Together(Positions::new(places, self.align)),
            }),
            Distribution::Zipf(theta) => AccessOrder::Zipf {
                zipf: Zipf::new(places.total(), *theta),
                scatter: Permutation::new(places.total(), SCATTER_KEY),
                places,
            },
            Distribution::Zoned(zones) => AccessOrder::Zoned { zones: zoned(zones, places.total()), places },
            Distribution::Listed { blocks, moves_on } => {
                if let Some(beyond) = blocks.iter().find(|b| **b >= places.total()) {
                    return Err(Error::request(
                        format!("‹distribution› list with block {beyond}"),
                        format!("the data has {} blocks, counted from 0", places.total()),
                        "a larger ‹file_bytes›, or lower numbers",
                    ));
                }
                let step = if *moves_on { blocks.len() as u64 } else { 0 };
                AccessOrder::Listed { places, list: List { blocks: blocks.clone(), step, index: 0, base: 0 } }
            }
        })
    }
}

/// A place in one of the zones.
#[inline]
fn in_zone(zones: &[(u64, u64, Below)], random: &mut Xoshiro256) -> u64 {
    let drawn = Below::new(100).draw(random);
    let zone = zones.partition_point(|(end, ..)| *end <= drawn).min(zones.len() - 1);
    let (_, first, within) = zones[zone];
    first + within.draw(random)
}

/// Zones of so many places in all: each has one at least.
fn zoned(zones: &[Zone], places: u64) -> Vec<(u64, u64, Below)> {
    let share = |pct: u64| (u128::from(places) * u128::from(pct) / 100) as u64;
    let (mut ios_pct, mut data_pct) = (0, 0);
    let mut found = Vec::new();
    for zone in zones {
        let first = share(data_pct).min(places - 1);
        ios_pct += u64::from(zone.ios_pct);
        data_pct += u64::from(zone.data_pct);
        found.push((ios_pct, first, Below::new(share(data_pct).saturating_sub(first).max(1))));
    }
    found
}
