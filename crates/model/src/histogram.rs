//! Latency from 1 ns to 24 h at three significant digits, mergeable across
//! workers, hosts and runs. Kept raw in records so that percentiles can be
//! computed again after any merge.

use crate::schema::record;
use crate::Error;
use base64::prelude::{Engine as _, BASE64_STANDARD};
use hdrhistogram::serialization::{Deserializer, Serializer, V2Serializer};
use hdrhistogram::Histogram;

/// 24 h in nanoseconds; anything slower is counted as this.
const HIGHEST_NS: u64 = 24 * 3600 * 1_000_000_000;

/// HdrHistogram's V2 encoding, uncompressed, and the bytes before its payload.
const V2_COOKIE: u32 = 0x1C84_9313;
const HEADER_BYTES: usize = 40;

/// A billion samples a second for a year, and room to merge a few hundred such histograms.
const COUNT_MAX: u64 = 1 << 55;

record! {
    /// A histogram in figures, of microseconds.
    pub struct LatencySummary {
        /// Shortest.
        pub min: f64 = "µs";
        /// Mean.
        pub mean: f64 = "µs";
        /// Standard deviation.
        pub stdev: f64 = "µs";
        /// Median.
        pub p50: f64 = "µs";
        /// 90 % took no longer.
        pub p90: f64 = "µs";
        /// 95 % took no longer.
        pub p95: f64 = "µs";
        /// 99 % took no longer.
        pub p99: f64 = "µs";
        /// 99.9 % took no longer.
        pub p999: f64 = "µs";
        /// 99.99 % took no longer.
        pub p9999: f64 = "µs";
        /// Longest.
        pub max: f64 = "µs";
    }
}

/// A histogram of nanoseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Latency(Histogram<u64>);

impl Default for Latency {
    fn default() -> Self {
        Latency(Histogram::new_with_bounds(1, HIGHEST_NS, 3).expect("the bounds are constants"))
    }
}

impl Latency {
    #[inline]
    pub fn record(&mut self, ns: u64) {
        self.0.saturating_record(ns);
    }

    #[inline]
    pub fn record_n(&mut self, ns: u64, count: u64) {
        self.0.saturating_record_n(ns, count);
    }

    pub fn merge(&mut self, other: &Latency) {
        self.0.add(&other.0).expect("all histograms share one shape");
    }

    pub fn clear(&mut self) {
        self.0.reset();
    }

    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The value at a percentile (0 to 100), in nanoseconds.
    pub fn percentile_ns(&self, percentile: f64) -> u64 {
        self.0.value_at_percentile(percentile)
    }

    pub fn mean_ns(&self) -> f64 {
        self.0.mean()
    }

    pub fn summary(&self) -> LatencySummary {
        if self.0.is_empty() {
            return LatencySummary::default();
        }
        let us = |p: f64| self.0.value_at_percentile(p) as f64 / 1e3;
        LatencySummary {
            min: self.0.min() as f64 / 1e3,
            mean: self.0.mean() / 1e3,
            stdev: self.0.stdev() / 1e3,
            p50: us(50.0),
            p90: us(90.0),
            p95: us(95.0),
            p99: us(99.0),
            p999: us(99.9),
            p9999: us(99.99),
            max: self.0.max() as f64 / 1e3,
        }
    }

    /// HdrHistogram's V2 encoding, base64.
    pub fn encode(&self) -> String {
        let mut bytes = Vec::new();
        V2Serializer::new().serialize(&self.0, &mut bytes).expect("writing to memory");
        BASE64_STANDARD.encode(bytes)
    }

    /// Decodes the output of `encode`. Bounded: a histogram of another shape is refused.
    pub fn decode(text: &str) -> Result<Latency, Error> {
        let bad = |found: String| Error::request("the histogram", found, "a record that forebay wrote");
        // The widest histogram of our shape encodes to well under 2 MiB.
        if text.len() > 4 << 20 {
            return Err(bad(format!("has {} bytes, too many for one histogram", text.len())));
        }
        let bytes = BASE64_STANDARD.decode(text).map_err(|e| bad(e.to_string()))?;
        // Cookie, payload length, normalising index, digits, lowest, highest: check the shape
        // before a decoder allocates for it. The decoder would also inflate a compressed
        // histogram, and believe its length.
        let shape_ok = bytes.len() >= HEADER_BYTES
            && bytes[0..4] == V2_COOKIE.to_be_bytes()
            && bytes[4..8] == ((bytes.len() - HEADER_BYTES) as u32).to_be_bytes()
            && bytes[12..16] == 3u32.to_be_bytes()
            && bytes[16..24] == 1u64.to_be_bytes()
            && bytes[24..32] == HIGHEST_NS.to_be_bytes();
        if !shape_ok {
            return Err(bad("is not of Forebay's shape (1 ns to 24 h, 3 digits)".into()));
        }
        let histogram: Histogram<u64> =
            Deserializer::new().deserialize(&mut bytes.as_slice()).map_err(|e| bad(format!("{e:?}")))?;
        // Sums over buckets, here and after merges, must not overflow.
        let total = histogram.iter_recorded().try_fold(0u64, |sum, v| sum.checked_add(v.count_at_value()));
        if total.is_none_or(|sum| sum > COUNT_MAX) {
            return Err(bad("counts more samples than could ever be taken".into()));
        }
        let mut latency = Latency::default();
        latency.0.add(&histogram).map_err(|e| bad(format!("{e:?}")))?;
        Ok(latency)
    }

    /// (value in ns, count) of every occupied bucket, ascending.
    pub fn buckets(&self) -> Vec<(u64, u64)> {
        self.0.iter_recorded().map(|v| (v.value_iterated_to(), v.count_at_value())).collect()
    }
}
