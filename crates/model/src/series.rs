//! The series of a run: its figures in intervals, one after another.

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Point {
    /// Seconds since the first I/O; the end of the interval.
    pub t_s: f64,
    pub gib_s: f64,
    pub iops: f64,
    pub latency_us_mean: Option<f64>,
    pub latency_us_p99: Option<f64>,
    /// Of a job that reads and writes: its reads and writes apart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read: Option<PointPart>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write: Option<PointPart>,
    pub cores_busy: Option<f64>,
    /// True before the measured time.
    pub warmup: bool,
    pub repeat: u32,
}

/// The I/Os of one direction in an interval.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PointPart {
    pub gib_s: f64,
    pub iops: f64,
    pub latency_us_mean: Option<f64>,
}
