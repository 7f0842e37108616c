//! Histograms of latency: exact to three digits after any merge, small, and safe to read from strangers.

use base64::prelude::{Engine as _, BASE64_STANDARD};
use forebay_model::Latency;
use proptest::prelude::*;

const PERCENTILES: [f64; 9] = [0.1, 1.0, 10.0, 50.0, 90.0, 99.0, 99.9, 99.99, 99.999];
const DAY_NS: u64 = 24 * 3600 * 1_000_000_000;

fn latency_of(values: &[(u64, u64)]) -> Latency {
    let mut latency = Latency::default();
    values.iter().for_each(|(ns, count)| latency.record_n(*ns, *count));
    latency
}

/// (ns, count) in any order; times from 1 ns to about 20 hours.
fn samples() -> impl Strategy<Value = Vec<(u64, u64)>> {
    prop::collection::vec((0u32..46, any::<u64>(), 1u64..1 << 20), 0..50).prop_map(|list| {
        list.into_iter().map(|(shift, bits, count)| ((1 << shift) | (bits % (1 << shift)), count)).collect()
    })
}

/// The exact quantile of a list sorted by time: the least time that `percentile` per cent don't exceed.
fn exact(sorted: &[(u64, u64)], percentile: f64) -> u64 {
    let total: u64 = sorted.iter().map(|s| s.1).sum();
    let rank = ((percentile / 100.0 * total as f64).ceil() as u64).clamp(1, total);
    let mut below = 0;
    let at = sorted.iter().find(|(_, count)| {
        below += count;
        below >= rank
    });
    at.expect("the rank lies within the total").0
}

/// Twelve hours of a fast drive: 64 workers, 10⁹ I/Os with a log-uniform body from
/// 50 µs to 5 ms and one in ten thousand a hundred times slower.
fn worker(number: u64) -> Vec<(u64, u64)> {
    let step = |i: u64| 50e3 * 100f64.powf((i * 64 + number) as f64 / (64.0 * 2000.0));
    let body = (0..2000).map(|i| (step(i) as u64, 7811));
    let tail = (0..20).map(|i| (step(i * 100) as u64 * 100, 78));
    // What is left of a 64th of a billion.
    body.chain(tail).chain([(90_000, 1_440)]).collect()
}

#[test]
fn a_billion_samples_of_64_workers_merge_to_exact_percentiles() {
    let workers: Vec<Vec<(u64, u64)>> = (0..64).map(worker).collect();
    let mut merged = Latency::default();
    workers.iter().for_each(|samples| merged.merge(&latency_of(samples)));
    let mut all: Vec<(u64, u64)> = workers.concat();
    all.sort_unstable();
    let total: u64 = all.iter().map(|s| s.1).sum();
    assert_eq!((total, merged.count()), (1_000_000_000, total));
    for percentile in PERCENTILES {
        let (found, right) = (merged.percentile_ns(percentile), exact(&all, percentile));
        let off = (found as f64 / right as f64 - 1.0).abs();
        assert!(off < 1e-3, "p{percentile}: {found} for {right}");
    }
}

#[test]
fn sixty_four_histograms_stay_under_64_mib() {
    // Buckets are 64-bit counts: 2048 for the first two powers' worth, 1024 for each further power of two.
    let powers = 64 - (DAY_NS / 2048).leading_zeros() as usize;
    let bytes = (2048 + 1024 * powers) * 8;
    assert!(64 * bytes < 64 << 20, "{bytes} bytes each");
    // The encoding runs over all buckets up to the last used one: it shows the true shape.
    let full = latency_of(&[(DAY_NS, u64::MAX / 2)]);
    let every = (0..powers as u32).flat_map(|p| (1024..2048u64).map(move |b| (b << p, 1 << 40)));
    let dense = latency_of(&every.collect::<Vec<_>>());
    assert!(full.encode().len() < 4096);
    assert!(dense.encode().len() < bytes * 3 / 2 && dense.buckets().len() == 1024 * powers);
}

#[test]
fn times_out_of_range_are_counted_at_its_ends() {
    let latency = latency_of(&[(0, 1), (u64::MAX, 1)]);
    assert_eq!(latency.count(), 2);
    let top = latency.percentile_ns(100.0) as f64;
    assert!((top / DAY_NS as f64 - 1.0).abs() < 1e-3, "{top}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn percentiles_are_exact_to_three_digits(samples in samples().prop_filter("some", |s| !s.is_empty())) {
        let mut sorted = samples.clone();
        sorted.sort_unstable();
        let latency = latency_of(&samples);
        for percentile in PERCENTILES {
            let (found, right) = (latency.percentile_ns(percentile) as f64, exact(&sorted, percentile) as f64);
            prop_assert!((found / right - 1.0).abs() < 1e-3, "p{}: {} for {}", percentile, found, right);
        }
    }

    // promise: REC-3
    #[test]
    fn merging_is_associative_and_commutative(a in samples(), b in samples(), c in samples()) {
        let merge = |x: &Latency, y: &Latency| {
            let mut sum = x.clone();
            sum.merge(y);
            sum
        };
        let (x, y, z) = (latency_of(&a), latency_of(&b), latency_of(&c));
        prop_assert_eq!(merge(&x, &y), merge(&y, &x));
        prop_assert_eq!(merge(&merge(&x, &y), &z), merge(&x, &merge(&y, &z)));
        prop_assert_eq!(merge(&merge(&x, &y), &z), latency_of(&[a, b, c].concat()));
    }

    // promise: REC-3
    #[test]
    fn encoding_comes_back_whole(samples in samples()) {
        let latency = latency_of(&samples);
        let back = Latency::decode(&latency.encode()).unwrap();
        prop_assert_eq!(back.buckets(), latency.buckets());
        prop_assert_eq!(back.summary(), latency.summary());
    }

    #[test]
    fn decoding_arbitrary_text_never_panics(text in ".{0,200}") {
        let _ = Latency::decode(&text);
    }

    #[test]
    fn decoding_arbitrary_bytes_after_a_good_header_never_panics(
        tail in prop::collection::vec(any::<u8>(), 0..400),
        keep in 0usize..48,
        honest_length: bool,
    ) {
        let mut bytes = BASE64_STANDARD.decode(latency_of(&[(5000, 3), (70_000, 1)]).encode()).unwrap();
        bytes.truncate(keep);
        bytes.extend(&tail);
        if honest_length && bytes.len() >= 40 {
            let length = bytes.len() as u32 - 40;
            bytes[4..8].copy_from_slice(&length.to_be_bytes());
        }
        let _ = Latency::decode(&BASE64_STANDARD.encode(bytes));
    }

    #[test]
    fn a_damaged_encoding_is_refused_or_still_a_histogram(samples in samples(), at: prop::sample::Index, flip in 1u8..=255) {
        let mut bytes = BASE64_STANDARD.decode(latency_of(&samples).encode()).unwrap();
        let at = at.index(bytes.len());
        bytes[at] ^= flip;
        if let Ok(latency) = Latency::decode(&BASE64_STANDARD.encode(bytes)) {
            latency.summary();
            latency.buckets();
        }
    }
}

#[test]
fn counts_that_would_overflow_are_refused() {
    let absurd = latency_of(&[(5000, 1 << 62), (6000, 1 << 62), (7000, 1 << 62)]);
    let error = Latency::decode(&absurd.encode()).unwrap_err();
    assert!(error.found.contains("samples"), "{error}");
}

#[test]
fn foreign_shapes_are_refused() {
    let bytes = BASE64_STANDARD.decode(latency_of(&[(5000, 3)]).encode()).unwrap();
    // Digits, lowest and highest value: a decoder would allocate by these.
    for (at, value) in [(15, 5u8), (23, 2), (24, 0x7F)] {
        let mut foreign = bytes.clone();
        foreign[at] = value;
        let error = Latency::decode(&BASE64_STANDARD.encode(foreign)).unwrap_err();
        assert!(error.found.contains("shape"), "{error}");
    }
    // A compressed histogram, which could inflate without end, and a payload said to be 4 GiB long.
    for (at, value) in [(3, 0x14u8), (4, 0xFF), (7, 0xFF)] {
        let mut foreign = bytes.clone();
        foreign[at] = value;
        assert!(Latency::decode(&BASE64_STANDARD.encode(foreign)).is_err());
    }
    let long = "A".repeat((4 << 20) + 4);
    assert!(Latency::decode(&long).unwrap_err().found.contains("too many"));
    for damaged in ["", "!", "AAAA"] {
        assert!(Latency::decode(damaged).is_err());
    }
}
