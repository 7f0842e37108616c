//! The results of a run over checkpoints: the part `checkpoint` of a record.

use super::{Edition, Mode, Model};
use crate::cpu::Cpu;
use crate::histogram::LatencySummary;
use crate::units::BYTES_PER_GIB as GIB;
use crate::Latency;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Checkpoint {
    /// Never anything else: no result of ours is one that MLCommons has verified.
    pub label: String,
    pub workload: String,
    pub version: String,
    pub rule_set: Edition,
    pub mode: Mode,
    /// The model as it was divided in this run.
    pub model: Model,
    pub parameters: u64,
    /// Ranks of the run, and those of a whole checkpoint in the workload's table.
    pub ranks: u64,
    pub ranks_whole: u64,
    pub hosts: u32,
    /// Files have this share of their size.
    pub scale: f64,
    /// One checkpoint, of all ranks of the run.
    pub bytes: u64,
    pub model_bytes: u64,
    pub optimizer_bytes: u64,
    pub files: u64,
    pub between_s: f64,
    pub fsync: bool,
    pub shift: bool,
    /// I/Os in flight per rank at most.
    pub depth: u32,
    /// Null if none was to be written, or none was completed; `read` likewise.
    pub write: Option<Phase>,
    pub read: Option<Phase>,
    /// Time from the end of the last write to the start of the first read.
    pub write_to_read_s: Option<f64>,
    pub rules: Vec<Rule>,
}

/// All checkpoints that were written, or read, completely.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Phase {
    pub checkpoints: Vec<Turn>,
    /// Over the checkpoints: mean, and standard deviation of the population as DLIO has it.
    pub duration_s_mean: f64,
    pub duration_s_stdev: f64,
    pub gib_s_mean: f64,
    pub gib_s_stdev: f64,
    /// Latency of single I/Os.
    pub latency_us: LatencySummary,
    pub histogram: String,
    /// Latency of flushing a file; null while reading, and without fsync.
    pub fsync_us: Option<LatencySummary>,
    pub cpu_s_per_gib: Option<f64>,
    pub verified_bytes: u64,
}

/// One checkpoint, written or read.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Turn {
    /// Counted from 1; its folder is named by it.
    pub step: u32,
    /// Time until the last rank was done.
    pub duration_s: f64,
    /// One checkpoint of all ranks over the duration: the least of what its ranks saw.
    pub gib_s: f64,
    /// Times of the first rank done, of the mean, and which was last.
    pub rank_s_min: f64,
    pub rank_s_mean: f64,
    pub slowest_rank: u64,
    /// Bytes moved by the ranks of this record.
    pub bytes: u64,
    pub cpu: Cpu,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Rule {
    pub id: String,
    /// Null if it can't be determined.
    pub ok: Option<bool>,
    pub why: String,
}

impl Default for Checkpoint {
    fn default() -> Self {
        Checkpoint {
            label: "MLPerf-style, unverified".into(),
            workload: String::new(),
            version: String::new(),
            rule_set: Edition::V20,
            mode: Mode::Default,
            model: Model::default(),
            parameters: 0,
            ranks: 0,
            ranks_whole: 0,
            hosts: 1,
            scale: 1.0,
            bytes: 0,
            model_bytes: 0,
            optimizer_bytes: 0,
            files: 0,
            between_s: 0.0,
            fsync: true,
            shift: false,
            depth: 0,
            write: None,
            read: None,
            write_to_read_s: None,
            rules: Vec::new(),
        }
    }
}

impl Turn {
    /// `bytes`: one checkpoint of all ranks. `ranks`: each rank's number and seconds; at least one.
    pub fn new(step: u32, bytes: u64, moved: u64, ranks: &[(u64, f64)], cpu: Cpu) -> Turn {
        let slowest = ranks.iter().copied().fold((0, 0.0), |a, b| if b.1 > a.1 { b } else { a });
        Turn {
            step,
            duration_s: slowest.1,
            gib_s: rate(bytes, slowest.1),
            rank_s_min: ranks.iter().map(|r| r.1).fold(f64::INFINITY, f64::min),
            rank_s_mean: ranks.iter().map(|r| r.1).sum::<f64>() / ranks.len().max(1) as f64,
            slowest_rank: slowest.0,
            bytes: moved,
            cpu,
        }
    }
}

impl Phase {
    /// None if no checkpoint was completed.
    pub fn from_checkpoints(
        checkpoints: Vec<Turn>,
        latency: &Latency,
        fsync: Option<&Latency>,
        verified: u64,
    ) -> Option<Phase> {
        if checkpoints.is_empty() {
            return None;
        }
        let (duration_s_mean, duration_s_stdev) = spread(checkpoints.iter().map(|c| c.duration_s));
        let (gib_s_mean, gib_s_stdev) = spread(checkpoints.iter().map(|c| c.gib_s));
        let gib = checkpoints.iter().map(|c| c.bytes).sum::<u64>() as f64 / GIB;
        let cpu_s: Option<f64> = checkpoints.iter().map(|c| Some(c.cpu.user_s? + c.cpu.system_s?)).sum();
        Some(Phase {
            checkpoints,
            duration_s_mean,
            duration_s_stdev,
            gib_s_mean,
            gib_s_stdev,
            latency_us: latency.summary(),
            histogram: latency.encode(),
            fsync_us: fsync.map(Latency::summary),
            cpu_s_per_gib: cpu_s.filter(|_| gib > 0.0).map(|s| s / gib),
            verified_bytes: verified,
        })
    }
}

pub fn rate(bytes: u64, seconds: f64) -> f64 {
    if seconds > 0.0 {
        bytes as f64 / GIB / seconds
    } else {
        0.0
    }
}

/// Mean and standard deviation of the population.
fn spread(values: impl Iterator<Item = f64> + Clone) -> (f64, f64) {
    let count = values.clone().count().max(1) as f64;
    let mean = values.clone().sum::<f64>() / count;
    (mean, (values.map(|v| (v - mean).powi(2)).sum::<f64>() / count).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise: CKP-3
    #[test]
    fn the_slowest_rank_is_the_checkpoint() {
        let gib = 1u64 << 30;
        let turn = Turn::new(3, 8 * gib, 8 * gib, &[(0, 1.0), (5, 4.0), (7, 2.5)], Cpu::default());
        assert_eq!((turn.duration_s, turn.gib_s, turn.slowest_rank), (4.0, 2.0, 5));
        assert_eq!((turn.rank_s_min, turn.rank_s_mean), (1.0, 2.5));
    }

    #[test]
    fn a_phase_averages_its_checkpoints() {
        let cpu = Cpu::spent((Some(0.5), Some(0.0)), 1.0, (1 << 30, 1), 1.0);
        let of = |s: f64| Turn::new(1, 1 << 30, 1 << 30, &[(0, s)], cpu.clone());
        let phase = Phase::from_checkpoints(vec![of(1.0), of(3.0)], &Latency::default(), None, 0).unwrap();
        assert_eq!((phase.duration_s_mean, phase.duration_s_stdev), (2.0, 1.0));
        assert!((phase.gib_s_mean - (1.0 + 1.0 / 3.0) / 2.0).abs() < 1e-12);
        assert_eq!(phase.cpu_s_per_gib, Some(0.5));
        assert!(Phase::from_checkpoints(Vec::new(), &Latency::default(), None, 0).is_none());
    }

    #[test]
    fn json_round_trips() {
        let text = serde_json::to_string(&Checkpoint::default()).unwrap();
        assert_eq!(serde_json::from_str::<Checkpoint>(&text).unwrap(), Checkpoint::default());
    }
}
