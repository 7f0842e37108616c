//! Sources that are reached over a fabric or a socket: their paths, and the I/O queues of each.

use super::{family, histograms};
use crate::target::stats::LatencyStats;
use forebay_model::prometheus::escaped;
use forebay_model::record::FabricQueue;
use forebay_storage::SourceReport;
use std::collections::BTreeSet;

/// States of a path, one of which it is in.
const STATES: [&str; 3] = ["live", "connecting", "lost"];
/// States of asymmetric namespace access; none of them where the controller doesn't say.
const ANA: [&str; 5] = ["optimized", "non-optimized", "inaccessible", "persistent-loss", "change"];
/// Bounds of latencies: powers of two of a microsecond, as many as sources count.
const BOUNDS: u32 = 31;

/// Appends them. `all`: the labels of what stands on a source, and the source.
pub(crate) fn render<'a>(out: &mut String, all: impl Iterator<Item = (&'a str, &'a SourceReport)>) {
    let (mut paths, mut queues, mut sources) = (Vec::new(), Vec::new(), Vec::new());
    // A stripe may have the same source more than once; Prometheus takes each series once.
    let mut seen = BTreeSet::new();
    for (of, source) in all {
        let labels = format!("{of},source=\"{}\"", escaped(&source.uri));
        if !seen.insert(labels.clone()) {
            continue;
        }
        for path in &source.paths {
            paths.push((format!("{labels},path=\"{}\"", escaped(&path.address)), path));
        }
        for queue in &source.queues {
            let at = format!("{labels},path=\"{}\",qid=\"{}\"", escaped(&queue.address), queue.qid);
            queues.push((at, queue, latency(queue)));
        }
        sources.push((labels, source.events.len() as u64 + source.events_dropped));
    }
    states(out, "state", &STATES, paths.iter().map(|(l, p)| (l.as_str(), Some(p.state))));
    states(out, "ana_state", &ANA, paths.iter().map(|(l, p)| (l.as_str(), p.ana)));
    let reconnects = paths.iter().map(|(l, p)| (l.as_str(), p.reconnects.into()));
    family(out, "forebay_source_path_reconnects_total", "counter", reconnects);
    let connected = paths.iter().map(|(l, p)| (l.as_str(), p.queues.into()));
    family(out, "forebay_source_path_queues", "gauge", connected);
    let events = sources.iter().map(|(l, n)| (l.as_str(), *n));
    family(out, "forebay_source_events_total", "counter", events);
    let commands = queues.iter().map(|(l, q, _)| (l.as_str(), q.commands));
    family(out, "forebay_source_queue_commands_total", "counter", commands);
    let retries = queues.iter().map(|(l, q, _)| (l.as_str(), q.retries));
    family(out, "forebay_source_queue_retries_total", "counter", retries);
    histograms(out, "source_queue", queues.iter().map(|(l, _, latency)| (l.as_str(), latency)));
}

/// One sample for each state, which is 1 where a path is in it.
fn states<'a>(
    out: &mut String,
    what: &str,
    states: &[&str],
    paths: impl Iterator<Item = (&'a str, Option<&'static str>)>,
) {
    let mut samples = Vec::new();
    for (labels, now) in paths {
        let sample = |state: &&str| (format!("{labels},state=\"{state}\""), u64::from(now == Some(*state)));
        samples.extend(states.iter().map(sample));
    }
    let name = format!("forebay_source_path_{what}");
    family(out, &name, "gauge", samples.iter().map(|(labels, value)| (labels.as_str(), *value)));
}

fn latency(queue: &FabricQueue) -> LatencyStats {
    let bound = |at: u32| {
        let us = (1u64 << at) as f64;
        let below = queue.latencies.iter().take_while(|(bound, _)| *bound <= us).last();
        (us * 1e-6, below.map_or(0, |(_, count)| *count))
    };
    LatencyStats {
        count: queue.commands,
        sum_s: queue.mean_us * queue.commands as f64 * 1e-6,
        buckets: (0..BOUNDS).map(bound).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_storage::PathReport;

    // promise: TGT-20
    #[test]
    fn a_path_is_in_one_state_and_a_queue_has_all_bounds() {
        let live = PathReport { address: "h:1".into(), state: "live", queues: 2, ..PathReport::default() };
        let lost =
            PathReport { address: "h:2".into(), state: "lost", reconnects: 3, ..PathReport::default() };
        let live = PathReport { ana: Some("non-optimized"), ..live };
        let latencies = vec![(1.0, 1), (2.0, 4)];
        let queue = FabricQueue {
            address: "h:1".into(),
            qid: 1,
            commands: 4,
            mean_us: 1.5,
            latencies,
            ..Default::default()
        };
        let source = SourceReport {
            uri: "nvme".into(),
            paths: vec![live, lost],
            queues: vec![queue],
            ..Default::default()
        };
        let mut out = String::new();
        render(&mut out, [("nsid=\"1\"", &source), ("nsid=\"1\"", &source)].into_iter());
        for sample in [
            "path_state{nsid=\"1\",source=\"nvme\",path=\"h:1\",state=\"live\"} 1",
            "path_state{nsid=\"1\",source=\"nvme\",path=\"h:2\",state=\"live\"} 0",
            "path_state{nsid=\"1\",source=\"nvme\",path=\"h:2\",state=\"lost\"} 1",
            "path_ana_state{nsid=\"1\",source=\"nvme\",path=\"h:1\",state=\"non-optimized\"} 1",
            "path_reconnects_total{nsid=\"1\",source=\"nvme\",path=\"h:2\"} 3",
            "path_queues{nsid=\"1\",source=\"nvme\",path=\"h:1\"} 2",
            "queue_latency_seconds_bucket{nsid=\"1\",source=\"nvme\",path=\"h:1\",qid=\"1\",le=\"0.000001\"} 1",
            "queue_latency_seconds_bucket{nsid=\"1\",source=\"nvme\",path=\"h:1\",qid=\"1\",le=\"0.000004\"} 4",
            "queue_latency_seconds_sum{nsid=\"1\",source=\"nvme\",path=\"h:1\",qid=\"1\"} 0.000006",
        ] {
            let line = format!("forebay_source_{sample}");
            assert_eq!(out.lines().filter(|l| *l == line).count(), 1, "{line}\n{out}");
        }
    }
}
