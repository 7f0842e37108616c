//! The series of a run: its figures in intervals, one after another.

use crate::schema::record;

record! {
    pub struct Point {
        /// Seconds since the first I/O; the end of the interval.
        pub t_s: f64 = "s";
        /// In the interval.
        pub gib_s: f64 = "GiB/s";
        /// In the interval.
        pub iops: f64 = "1/s";
        /// Null if no I/O completed.
        pub latency_us_mean: Option<f64> = "µs, or null";
        /// Null if no I/O completed.
        pub latency_us_p99: Option<f64> = "µs, or null";
        /// The interval's reads; absent, like `write`, unless it had both.
        pub read: Option<PointPart> = "object" [skip_serializing_if = "Option::is_none"];
        /// The interval's writes.
        pub write: Option<PointPart> = "object" [skip_serializing_if = "Option::is_none"];
        /// Cores kept busy by this process.
        pub cores_busy: Option<f64> = "cores, or null";
        /// Whether it is before the measured time.
        pub warmup: bool = "true or false";
        /// From 0.
        pub repeat: u32 = "number";
    }
}

record! {
    /// The I/Os of one direction in an interval.
    pub struct PointPart {
        /// Of this direction, in the interval.
        pub gib_s: f64 = "GiB/s";
        /// Of this direction, in the interval.
        pub iops: f64 = "1/s";
        /// Of this direction, in the interval.
        pub latency_us_mean: Option<f64> = "µs, or null";
    }
}
