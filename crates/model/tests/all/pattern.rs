//! Patterns through their public face: coverage, bounds, distribution, determinism.

use forebay_model::job::{Distribution, IoMix};
use forebay_model::pattern::{Next, Pattern, PatternSpec, Span};
use proptest::prelude::*;
use std::collections::BTreeSet;

fn spec(bytes: u64, io_bytes: u64) -> PatternSpec {
    PatternSpec {
        spans: vec![Span { target: 0, start: 0, bytes }],
        io_bytes,
        align: io_bytes,
        read_pct: 100,
        seed: 7,
        ..PatternSpec::default()
    }
}

fn by(law: &str) -> Distribution {
    Distribution::parse(law).unwrap()
}

fn take(spec: PatternSpec, count: usize) -> Vec<Next> {
    let mut pattern = Pattern::new(spec).unwrap();
    (0..count).map(|_| pattern.next()).collect()
}

/// The I/Os of the first `passes` passes.
fn passes(spec: PatternSpec, passes: u32) -> Vec<Next> {
    let mut pattern = Pattern::new(spec).unwrap();
    std::iter::from_fn(|| Some(pattern.next())).take_while(|io| io.pass < passes).collect()
}

/// Fails unless the I/Os cover each byte of the spans exactly once.
fn assert_covers_once(spans: &[Span], ios: &[Next]) {
    let mut found: Vec<(u32, u64, u64)> =
        ios.iter().map(|io| (io.target, io.offset, io.offset + u64::from(io.len))).collect();
    found.sort_unstable();
    let mut found = found.into_iter();
    for span in spans.iter().filter(|s| s.bytes > 0) {
        let mut at = span.start;
        while at < span.start + span.bytes {
            let (target, start, end) = found.next().expect("bytes are missing");
            assert_eq!((target, start), (span.target, at));
            at = end;
        }
        assert_eq!(at, span.start + span.bytes);
    }
    assert_eq!(found.next(), None, "a block came twice");
}

fn any_spans() -> impl Strategy<Value = Vec<Span>> {
    prop::collection::vec((0u64..5000, 0u64..3000), 1..8)
        .prop_map(|list| {
            list.into_iter()
                .enumerate()
                .map(|(i, (start, bytes))| Span { target: i as u32, start, bytes })
                .collect::<Vec<_>>()
        })
        .prop_filter("some data", |spans| spans.iter().any(|s| s.bytes > 0))
}

fn any_spec() -> impl Strategy<Value = PatternSpec> {
    let sizes = (1u64..600, prop::option::of(0u64..900), prop::option::of(1u64..300));
    (any_spans(), sizes, 1u64..300, 0u8..=100, any::<u64>(), 0u8..5).prop_map(
        |(spans, (io_bytes, more, step), align, read_pct, seed, order)| PatternSpec {
            spans,
            random: order > 0,
            distribution: by(
                ["uniform", "uniform", "zipf:1.1", "uniform", "zoned:50/5,30/15,20/80"][usize::from(order)]
            ),
            no_repeat: order == 3,
            io_bytes,
            io_bytes_max: more.map(|m| io_bytes + m),
            io_bytes_step: step,
            align,
            read_pct,
            seed,
            ..PatternSpec::default()
        },
    )
}

proptest! {
    #[test]
    fn every_io_lies_in_its_span_aligned_and_of_an_allowed_size(spec in any_spec()) {
        let largest = spec.io_bytes_max.unwrap_or(spec.io_bytes);
        let step = spec.io_bytes_step.unwrap_or(spec.io_bytes);
        for io in take(spec.clone(), 300) {
            let span = spec.spans[io.target as usize];
            let len = u64::from(io.len);
            prop_assert!(len > 0 && len <= largest);
            prop_assert!(io.offset >= span.start && io.offset + len <= span.start + span.bytes);
            if spec.random {
                prop_assert_eq!((io.offset - span.start) % spec.align, 0);
            }
            let ends_span = io.offset + len == span.start + span.bytes;
            let whole = len >= spec.io_bytes && (len - spec.io_bytes) % step == 0;
            // Where each byte comes once, an I/O ends at what was read before.
            let is_cut = spec.no_repeat && spec.io_bytes_max.is_some();
            prop_assert!(whole || ends_span || is_cut, "a short I/O in the middle of a span");
        }
    }

    // promise: BEN-26
    #[test]
    fn a_permuted_pass_covers_all_data_exactly_once(spans in any_spans(), io_bytes in 1u64..500, more in 0u64..900, seed: u64) {
        let sizes = (more > 300).then_some(io_bytes + more);
        let spec = PatternSpec { spans: spans.clone(), random: true, no_repeat: true, io_bytes_max: sizes, seed, ..spec(0, io_bytes) };
        let ios = passes(spec, 3);
        for pass in 0..3 {
            let one: Vec<Next> = ios.iter().copied().filter(|io| io.pass == pass).collect();
            assert_covers_once(&spans, &one);
        }
    }

    #[test]
    fn a_sequential_pass_covers_all_data_in_order(spans in any_spans(), io_bytes in 1u64..500, more in 0u64..500) {
        let spec = PatternSpec { spans: spans.clone(), io_bytes_max: Some(io_bytes + more), io_bytes_step: Some(1), ..spec(0, io_bytes) };
        let ios = passes(spec, 2);
        let (first, second): (Vec<Next>, Vec<Next>) = ios.into_iter().partition(|io| io.pass == 0);
        prop_assert!(first.is_sorted_by_key(|io| (io.target, io.offset)));
        assert_covers_once(&spans, &first);
        assert_covers_once(&spans, &second);
    }

    // promise: BEN-51
    #[test]
    fn shuffled_spans_are_each_covered_in_order_once_a_pass(spans in any_spans(), io_bytes in 1u64..500, seed: u64) {
        let spec = PatternSpec { spans: spans.clone(), shuffled: true, seed, ..spec(0, io_bytes) };
        let ios = passes(spec, 3);
        for pass in 0..3 {
            let one: Vec<Next> = ios.iter().copied().filter(|io| io.pass == pass).collect();
            assert_covers_once(&spans, &one);
            for (before, io) in one.iter().zip(&one[1..]) {
                let goes_on = before.offset + u64::from(before.len) == io.offset;
                let begins = io.offset == spans[io.target as usize].start;
                prop_assert!(if before.target == io.target { goes_on } else { begins }, "{before:?} {io:?}");
            }
        }
    }

    // promise: BEN-27
    #[test]
    fn of_a_sequential_mix_reads_and_writes_each_cover_all_data_in_order(spans in any_spans(), io_bytes in 1u64..500, read_pct in 1u8..100) {
        let all: u64 = spans.iter().map(|s| s.bytes).sum();
        let ios = passes(PatternSpec { spans: spans.clone(), read_pct, ..spec(0, io_bytes) }, 3);
        let moved: u64 = ios.iter().map(|io| u64::from(io.len)).sum();
        prop_assert!(moved >= 3 * all && moved < 3 * all + io_bytes, "a pass is as many bytes as there are");
        for is_read in [true, false] {
            let alone: Vec<(u32, u64, u32)> =
                ios.iter().filter(|io| io.is_read == is_read).map(|io| (io.target, io.offset, io.len)).collect();
            let unmixed = take(PatternSpec { spans: spans.clone(), ..spec(0, io_bytes) }, alone.len());
            let expected: Vec<(u32, u64, u32)> = unmixed.iter().map(|io| (io.target, io.offset, io.len)).collect();
            prop_assert_eq!(alone, expected);
        }
    }

    #[test]
    fn equal_seeds_give_equal_sequences(spec in any_spec()) {
        prop_assert_eq!(take(spec.clone(), 200), take(spec, 200));
    }

    #[test]
    fn the_largest_spans_do_not_overflow(io_bytes in 1u64..1 << 30, align in 1u64..1 << 40, order in 0u8..4, seed: u64) {
        let most = 1u64 << 63;
        let spec = PatternSpec {
            random: order > 0, distribution: by(if order == 2 { "zipf:0.9" } else { "uniform" }), no_repeat: order == 3, align, seed,
            ..spec(most, io_bytes)
        };
        for io in take(spec, 50) {
            prop_assert!(io.offset + u64::from(io.len) <= most);
        }
    }
}

/// Chi-square of counts that should be equal, as a multiple of its standard deviation.
fn deviation(counts: &[u32]) -> f64 {
    let expected = counts.iter().map(|c| f64::from(*c)).sum::<f64>() / counts.len() as f64;
    let statistic: f64 = counts.iter().map(|c| (f64::from(*c) - expected).powi(2) / expected).sum();
    let freedom = counts.len() as f64 - 1.0;
    (statistic - freedom) / (2.0 * freedom).sqrt()
}

#[test]
fn random_positions_are_uniform_over_spans_of_any_length() {
    let spans: Vec<Span> = [700u64, 100, 1, 299]
        .iter()
        .enumerate()
        .map(|(i, n)| Span { target: i as u32, start: 64, bytes: n * 64 })
        .collect();
    let firsts = [0usize, 700, 800, 801];
    let mut counts = vec![0u32; 1100];
    for io in take(PatternSpec { spans, random: true, ..spec(0, 64) }, 220_000) {
        counts[firsts[io.target as usize] + (io.offset as usize - 64) / 64] += 1;
    }
    assert!(deviation(&counts).abs() < 5.0, "{}", deviation(&counts));
}

#[test]
fn positions_stay_uniform_for_each_size_of_a_range() {
    let wide = PatternSpec { random: true, io_bytes_max: Some(640), align: 64, ..spec(64 * 40, 64) };
    let ios = take(wide, 400_000);
    for blocks in 1..=10u32 {
        let mut counts = vec![0u32; 41 - blocks as usize];
        let of_size = ios.iter().filter(|io| io.len == blocks * 64);
        of_size.for_each(|io| counts[io.offset as usize / 64] += 1);
        assert!(deviation(&counts).abs() < 5.0, "{blocks}: {}", deviation(&counts));
    }
}

#[test]
fn sizes_of_a_range_are_equally_likely() {
    let mut counts = vec![0u32; 8];
    let range = PatternSpec {
        io_bytes_max: Some(5119),
        io_bytes_step: Some(512),
        random: true,
        align: 1,
        ..spec(1 << 40, 1024)
    };
    take(range, 80_000).iter().for_each(|io| counts[(io.len as usize - 1024) / 512] += 1);
    assert!(deviation(&counts).abs() < 5.0, "{counts:?}");
}

#[test]
fn reads_come_in_the_share_asked_for() {
    for pct in [0u8, 1, 30, 50, 99, 100] {
        let ios = take(PatternSpec { read_pct: pct, ..spec(1 << 40, 4096) }, 100_000);
        let reads = ios.iter().filter(|io| io.is_read).count() as f64 / 1000.0;
        let limit = if pct % 100 == 0 { 1e-9 } else { 0.8 };
        assert!((reads - f64::from(pct)).abs() < limit, "{pct}: {reads}");
    }
}

/// A drawn block that was taken makes way for the next free one: of those that it would be cut to otherwise, many are short.
// promise: BEN-26
#[test]
fn where_each_byte_comes_once_most_ios_are_whole() {
    let mixed = PatternSpec {
        random: true,
        no_repeat: true,
        io_bytes_max: Some(16 << 10),
        io_bytes_step: Some(12 << 10),
        ..spec(64 << 20, 4 << 10)
    };
    let ios = passes(mixed, 1);
    let whole = ios.iter().filter(|io| io.len == 4 << 10 || io.len == 16 << 10).count();
    assert!(whole * 10 > ios.len() * 8, "{whole} of {}", ios.len());
    // 10 KiB each if none were cut; where blocks that were taken are passed over, it is 10,000 I/Os.
    assert!(ios.len() < 9500, "{}", ios.len());
}

/// Near the end of a span, sizes are drawn until one fits.
// promise: BEN-26
#[test]
fn an_io_ends_with_the_data_as_one_of_the_sizes() {
    let sizes = PatternSpec {
        random: true,
        no_repeat: true,
        io_bytes_max: Some(1 << 20),
        io_bytes_step: Some((1 << 20) - 4096),
        ..spec(8 << 20, 4096)
    };
    for seed in 0..50 {
        let first = take(PatternSpec { seed, ..sizes.clone() }, 1)[0];
        assert!(first.len == 4096 || first.len == 1 << 20, "{first:?}");
    }
}

// promise: BEN-2
#[test]
fn zipf_heat_follows_the_law_and_lies_scattered() {
    let blocks = 1000usize;
    let mut counts = vec![0u32; blocks];
    for seed in 0..4 {
        let spec = PatternSpec {
            random: true,
            distribution: by("zipf:1"),
            seed,
            ..spec(4096 * blocks as u64, 4096)
        };
        take(spec, 100_000).iter().for_each(|io| counts[io.offset as usize / 4096] += 1);
    }
    let mut hottest: Vec<usize> = (0..blocks).collect();
    hottest.sort_unstable_by_key(|b| std::cmp::Reverse(counts[*b]));
    let harmonic: f64 = (1..=blocks).map(|r| 1.0 / r as f64).sum();
    // One hot set for all seeds: the share of the top ranks adds up.
    for rank in 1..=5 {
        let share = f64::from(counts[hottest[rank - 1]]) / 400_000.0;
        let law = 1.0 / rank as f64 / harmonic;
        assert!((share / law - 1.0).abs() < 0.05, "rank {rank}: {share} of {law}");
    }
    let near = hottest[..10].iter().filter(|b| hottest[..10].contains(&(*b + 1))).count();
    assert!(near <= 1, "hot blocks are neighbours: {:?}", &hottest[..10]);
}

// promise: BEN-2
#[test]
fn a_seed_means_these_offsets_for_ever() {
    let offsets = |law, no_repeat| {
        let spec = PatternSpec { random: true, distribution: by(law), no_repeat, ..spec(1 << 40, 4096) };
        take(spec, 3).iter().map(|io| io.offset / 4096).collect::<Vec<_>>()
    };
    assert_eq!(offsets("uniform", false), PINNED_UNIFORM);
    assert_eq!(offsets("zipf:1.1", false), PINNED_ZIPF);
    assert_eq!(offsets("uniform", true), PINNED_PERMUTED);
}

/// Change these only with the record's schema: they make old seeds mean something else.
const PINNED_UNIFORM: [u64; 3] = [14860704, 46201997, 192622875];
const PINNED_ZIPF: [u64; 3] = [130878769, 109669258, 17152470];
const PINNED_PERMUTED: [u64; 3] = [28727380, 60293789, 237642892];

#[test]
fn drawn_passes_count_the_bytes_moved() {
    let ios = take(PatternSpec { random: true, ..spec(10 * 4096, 4096) }, 30);
    let counted: Vec<u32> = ios.iter().map(|io| io.pass).collect();
    assert_eq!(counted, (0..30).map(|i| i / 10).collect::<Vec<u32>>());
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    let cases: Vec<(&str, PatternSpec)> = vec![
        ("the data", spec(0, 4096)),
        ("‹io_bytes›", spec(1, 0)),
        ("‹io_bytes›", PatternSpec { io_bytes_max: Some(1), ..spec(9, 2) }),
        ("‹io_bytes›", spec(9, (1 << 30) + 1)),
        ("‹align_bytes›", PatternSpec { align: 0, ..spec(9, 1) }),
        ("‹read_pct›", PatternSpec { read_pct: 101, ..spec(9, 1) }),
        ("‹distribution›", PatternSpec { distribution: by("zipf:1"), ..spec(9, 1) }),
        (
            "‹distribution›",
            PatternSpec { distribution: Distribution::Zipf(f64::NAN), random: true, ..spec(9, 1) },
        ),
        (
            "‹distribution›",
            PatternSpec { distribution: by("zoned:100/100"), random: true, no_repeat: true, ..spec(9, 1) },
        ),
        (
            "‹no_repeat› with several sizes",
            PatternSpec { random: true, no_repeat: true, io_bytes_max: Some(8), ..spec(1 << 40, 4) },
        ),
        (
            "‹distribution› list with block 2",
            PatternSpec { random: true, distribution: by("list:1,2"), ..spec(8, 4) },
        ),
        ("9223372036854775809 bytes", spec((1 << 63) + 1, 1)),
        (
            "2 bytes from 9223372036854775807",
            PatternSpec { spans: vec![Span { target: 3, start: (1 << 63) - 1, bytes: 2 }], ..spec(9, 1) },
        ),
    ];
    for (asked, spec) in cases {
        let error = Pattern::new(spec).unwrap_err();
        assert!(error.asked.starts_with(asked), "{asked}: {error}");
    }
}

fn offsets_of(ios: &[Next]) -> Vec<u64> {
    ios.iter().map(|io| io.offset).collect()
}

// promise: BEN-26
#[test]
fn holes_lie_between_sequential_ios_and_a_pass_moves_as_much_as_the_data_holds() {
    let forwards = PatternSpec { skip: 8, ..spec(40, 4) };
    let ios = passes(forwards, 1);
    assert_eq!(offsets_of(&ios), [0, 12, 24, 36, 0, 12, 24, 36, 0, 12]);
    let backwards = passes(PatternSpec { skip: -8, ..spec(20, 4) }, 1);
    assert_eq!(offsets_of(&backwards), [0, 12, 8, 4, 0]);
    let short = take(PatternSpec { skip: 3, ..spec(9, 4) }, 4);
    assert_eq!(
        short.iter().map(|io| (io.offset, io.len)).collect::<Vec<_>>(),
        [(0, 4), (7, 2), (0, 4), (7, 2)]
    );
}

// promise: BEN-26
#[test]
fn zones_are_read_whole_and_what_lies_between_them_is_not() {
    let ios = take(PatternSpec { skip: 20, skip_every: Some(8), ..spec(64, 4) }, 10);
    assert_eq!(offsets_of(&ios), [0, 4, 28, 32, 56, 60, 0, 4, 28, 32]);
    let cut = take(PatternSpec { skip: 20, skip_every: Some(8), ..spec(60, 4) }, 7);
    assert_eq!(offsets_of(&cut), [0, 4, 28, 32, 56, 0, 4]);
}

// promise: BEN-26
#[test]
fn a_list_of_blocks_is_gone_through_again_and_again_and_may_move_on() {
    let listed = |law| {
        let spec = PatternSpec { random: true, distribution: by(law), ..spec(36, 4) };
        take(spec, 9).iter().map(|io| io.offset / 4).collect::<Vec<_>>()
    };
    assert_eq!(listed("list:2,0,1"), [2, 0, 1, 2, 0, 1, 2, 0, 1]);
    assert_eq!(listed("list+:2,0,1"), [2, 0, 1, 5, 3, 4, 8, 6, 7]);
}

// promise: BEN-26
#[test]
fn zones_get_their_share_of_the_ios() {
    let zoned =
        PatternSpec { random: true, distribution: by("zoned:50/5,30/15,20/80"), ..spec(4096 * 1000, 4096) };
    let mut found = [0u32; 3];
    for io in take(zoned, 100_000) {
        let block = io.offset / 4096;
        found[usize::from(block >= 50) + usize::from(block >= 200)] += 1;
    }
    for (count, share) in found.iter().zip([0.5, 0.3, 0.2]) {
        assert!((f64::from(*count) / 1e5 - share).abs() < 0.01, "{found:?}");
    }
}

// promise: BEN-26
#[test]
fn random_offsets_of_a_direction_with_a_size_of_its_own_are_multiples_of_that() {
    let mix = IoMix::parse("3k=1/4k=1").unwrap();
    let apart = PatternSpec {
        random: true,
        read_pct: 50,
        io_bytes: mix.least(),
        io_bytes_max: Some(mix.most()),
        mix: Some(mix),
        aligns_apart: true,
        ..spec(1 << 20, 3 << 10)
    };
    let ios =
        take(PatternSpec { spans: vec![Span { target: 0, start: 0, bytes: 246 << 10 }], ..apart }, 4000);
    for (is_read, bytes) in [(true, 3u64 << 10), (false, 4 << 10)] {
        let offsets: BTreeSet<u64> =
            ios.iter().filter(|io| io.is_read == is_read).map(|io| io.offset).collect();
        assert!(ios.iter().filter(|io| io.is_read == is_read).all(|io| u64::from(io.len) == bytes));
        let all: BTreeSet<u64> = (0..(246u64 << 10) / bytes).map(|n| n * bytes).collect();
        assert_eq!(offsets, all);
    }
}

// promise: BEN-26
#[test]
fn sizes_of_a_mix_come_by_their_shares_for_reads_and_writes_each() {
    let mix = IoMix::parse("512=10,4k=90/64k=1").unwrap();
    let spec = PatternSpec {
        random: true,
        read_pct: 50,
        io_bytes: mix.least(),
        io_bytes_max: Some(mix.most()),
        align: 512,
        mix: Some(mix),
        ..spec(1 << 30, 512)
    };
    let ios = take(spec, 100_000);
    let (reads, writes): (Vec<Next>, Vec<Next>) = ios.into_iter().partition(|io| io.is_read);
    assert!(writes.iter().all(|io| io.len == 65536));
    let small = reads.iter().filter(|io| io.len == 512).count() as f64 / reads.len() as f64;
    assert!((small - 0.1).abs() < 0.01 && reads.iter().all(|io| io.len == 512 || io.len == 4096), "{small}");
}
