//! The bytes that each host reads for each step, where samples differ in size: from the trace of a run.

use crate::training::simulate::file_sizes;
use crate::training::{EmulateSpec, Streams, Trace};
use crate::Error;
use std::collections::VecDeque;
use std::iter::Peekable;

/// Half a gigabyte of sizes.
const FILES_MAX: u32 = 1 << 26;

/// A rank's streams, and the bytes of its batches that were begun.
struct Rank {
    streams: Peekable<Streams>,
    bytes: VecDeque<f64>,
}

struct Host {
    ranks: Vec<Rank>,
    /// Bytes of steps `first`, `first + 1`, …
    steps: VecDeque<f64>,
    first: u32,
}

/// The sizes of a job's files, and how far each host's trace has been followed.
pub struct Sizes {
    spec: EmulateSpec,
    files: Vec<u64>,
    epoch: u32,
    hosts: Vec<Host>,
    /// Steps whose bytes are still asked for: no further back than batches are read ahead.
    window: usize,
}

impl Sizes {
    pub fn new(spec: EmulateSpec, files: u32, seed: u64) -> Result<Sizes, Error> {
        if files > FILES_MAX {
            return Err(Error::request(
                format!("{files} files with sizes of their own"),
                "are more than 67,108,864",
                "--sizes mean, or a smaller --dataset",
            ));
        }
        let window = spec.batches_ahead() as usize + 16;
        let files = file_sizes(&spec.workload, files, seed);
        Ok(Sizes { spec, files, epoch: 0, hosts: Vec::new(), window })
    }

    /// The next epoch begins, on so many hosts of `accelerators` each.
    pub fn begin(&mut self, hosts: u32, accelerators: u32) {
        self.spec.ranks = hosts * accelerators;
        self.spec.accelerators = self.spec.ranks;
        let Ok(trace) = Trace::new(&self.spec, self.files.len() as u32) else { return };
        let rank =
            |rank| Rank { streams: trace.streams(self.epoch, rank).peekable(), bytes: VecDeque::new() };
        self.hosts = (0..hosts)
            .map(|host| Host {
                ranks: (host * accelerators..(host + 1) * accelerators).map(rank).collect(),
                steps: VecDeque::new(),
                first: 0,
            })
            .collect();
        self.epoch = self.epoch.wrapping_add(1);
    }

    /// Bytes of all of a host's batches of one step.
    pub fn bytes(&mut self, host: u32, step: u32) -> f64 {
        let (workload, window) = (&self.spec.workload, self.window);
        let host = &mut self.hosts[host as usize];
        while host.first as usize + host.steps.len() <= step as usize {
            let at = host.first as usize + host.steps.len();
            let follow = |rank: &mut Rank| {
                rank.follow(at as u64, u64::from(workload.batch), &self.files, workload.samples_per_file)
            };
            host.steps.push_back(host.ranks.iter_mut().map(follow).sum());
            if host.steps.len() > window {
                host.steps.pop_front();
                host.first += 1;
            }
        }
        // Never 0, or the read would be no event.
        host.steps[step.saturating_sub(host.first) as usize].max(1.0)
    }
}

impl Rank {
    /// The bytes of batch number `at`, which comes after those that were asked for.
    fn follow(&mut self, at: u64, batch: u64, files: &[u64], samples_per_file: u32) -> f64 {
        while let Some(stream) = self.streams.next_if(|s| s.position < (at + 1) * batch) {
            let each = files[stream.file as usize] as f64 / f64::from(samples_per_file);
            for sample in 0..u64::from(stream.samples) {
                let behind = ((stream.position + sample * u64::from(stream.stride)) / batch - at) as usize;
                if self.bytes.len() <= behind {
                    self.bytes.resize(behind + 1, 0.0);
                }
                self.bytes[behind] += each;
            }
        }
        self.bytes.pop_front().unwrap_or(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::training::{Loader, Workload};

    fn spec(loader: Loader) -> EmulateSpec {
        let workload = Workload {
            name: "test".into(),
            loader,
            batch: 3,
            compute_s: 0.1,
            record_bytes: 1e6,
            record_bytes_stdev: 5e5,
            samples_per_file: 2,
            read_threads: 2,
            prefetch: 2,
            file_shuffle: true,
            ..Workload::default()
        };
        EmulateSpec { workload, accelerators: 4, ranks: 4, read_threads: 2, ..EmulateSpec::default() }
    }

    #[test]
    fn an_epoch_reads_what_its_trace_names_once() {
        for loader in [Loader::PyTorch, Loader::TensorFlow] {
            let spec = spec(loader);
            let mut sizes = Sizes::new(spec.clone(), 60, 5).unwrap();
            sizes.begin(2, 2);
            let trace = Trace::new(&spec, 60).unwrap();
            let found: f64 = (0..trace.steps()).map(|s| sizes.bytes(0, s) + sizes.bytes(1, s)).sum();
            let mut named = 0.0;
            for stream in (0..4).flat_map(|rank| trace.streams(0, rank)) {
                named += sizes.files[stream.file as usize] as f64 / 2.0 * f64::from(stream.samples);
            }
            assert!((found / named - 1.0).abs() < 1e-9, "{loader:?}: {found} {named}");
            assert!((found / 120e6 - 1.0).abs() < 0.2, "{loader:?}: {found}");
        }
    }

    #[test]
    fn a_step_may_be_asked_for_again_while_batches_are_read_ahead() {
        let mut sizes = Sizes::new(spec(Loader::PyTorch), 600, 5).unwrap();
        sizes.begin(2, 2);
        let early = sizes.bytes(1, 0);
        let later = sizes.bytes(1, 4);
        assert_eq!((sizes.bytes(1, 0), sizes.bytes(1, 4)), (early, later));
        assert_ne!(early, later);
    }
}
