//! One part out of those of several processes, each of which had some of the ranks.

use super::record::{
    ClassResult, Classes, Entries, Hits, KvCache, Latencies, Rates, Requests, Sla, Spread, States,
    TierResult, Tiers, Tokens, Waited,
};
use crate::units::BYTES_PER_GIB as GIB;
use crate::Error;

/// The first lends what all have in common. Rates and counts add up; of percentiles the largest stands for all, as in the
/// reference's own summary.
///
/// # Errors
/// `Request`: they are not of one run.
pub fn merge(parts: &[&KvCache]) -> Result<Option<KvCache>, Error> {
    let Some(first) = parts.first() else { return Ok(None) };
    let same = |p: &&&KvCache| {
        (p.option, &p.model, p.users, p.ranks) == (first.option, &first.model, first.users, first.ranks)
    };
    if let Some(other) = parts.iter().find(|p| !same(p)) {
        let found =
            format!("{} users of {} beside {} of {}", other.users, other.model, first.users, first.model);
        return Err(Error::request("merging records", found, "records of one run"));
    }
    let sum = |of: fn(&KvCache) -> u64| parts.iter().map(|p| of(p)).sum::<u64>();
    let add = |of: fn(&KvCache) -> f64| parts.iter().map(|p| of(p)).sum::<f64>();
    let last_s = parts.iter().map(|p| p.last_s).fold(0.0, f64::max);
    let rates = |of: fn(&KvCache) -> Rates, bytes: u64| Rates {
        as_published: parts.iter().map(|p| of(p).as_published).sum(),
        window: parts.iter().map(|p| of(p).window).sum(),
        drained: if last_s > 0.0 { bytes as f64 / GIB / last_s } else { 0.0 },
    };
    let (read_bytes, write_bytes) = (sum(|p| p.read_bytes), sum(|p| p.write_bytes));
    let storage_s = add(|p| p.waited_s.storage);
    let output = sum(|p| p.tokens.output);
    let limits: Vec<&Option<String>> = parts.iter().map(|p| &p.limit).collect();
    Ok(Some(KvCache {
        last_s,
        drained: parts.iter().all(|p| p.drained),
        requests: requests(parts),
        tokens: Tokens { context: sum(|p| p.tokens.context), output, storage: sum(|p| p.tokens.storage) },
        read_gib_s: rates(|p| p.read_gib_s, read_bytes),
        write_gib_s: rates(|p| p.write_gib_s, write_bytes),
        read_bytes,
        write_bytes,
        storage_tokens_per_s: (storage_s > 0.0).then(|| output as f64 / storage_s),
        output_tokens_per_s: add(|p| p.output_tokens_per_s),
        requests_per_s: add(|p| p.requests_per_s),
        stream_hash: hashes(parts),
        limit: if limits.iter().all(|limit| *limit == limits[0]) { first.limit.clone() } else { None },
        entries: entries(parts),
        latency_ms: latencies(parts),
        classes: Classes {
            interactive: class(parts, |c| c.interactive),
            responsive: class(parts, |c| c.responsive),
            batch: class(parts, |c| c.batch),
        },
        hits: hits(parts),
        tiers: Tiers { host: tier(parts, |t| t.host), storage: tier(parts, |t| t.storage) },
        waited_s: Waited {
            queue: add(|p| p.waited_s.queue),
            admission: add(|p| p.waited_s.admission),
            entry: add(|p| p.waited_s.entry),
            storage: storage_s,
            host: add(|p| p.waited_s.host),
        },
        occupied: occupied(parts),
        ..(*first).clone()
    }))
}

fn requests(parts: &[&KvCache]) -> Requests {
    let sum = |of: fn(&Requests) -> u64| parts.iter().map(|p| of(&p.requests)).sum::<u64>();
    Requests {
        offered: sum(|r| r.offered),
        served: sum(|r| r.served),
        in_window: sum(|r| r.in_window),
        left_queued: sum(|r| r.left_queued),
    }
}

fn hits(parts: &[&KvCache]) -> Hits {
    let sum = |of: fn(&Hits) -> u64| parts.iter().map(|p| of(&p.hits)).sum::<u64>();
    Hits {
        lookups: sum(|h| h.lookups),
        hits: sum(|h| h.hits),
        misses: sum(|h| h.misses),
        system_prompts: sum(|h| h.system_prompts),
        multi_turn: sum(|h| h.multi_turn),
        multi_turn_missed: sum(|h| h.multi_turn_missed),
        own: sum(|h| h.own),
    }
}

fn occupied(parts: &[&KvCache]) -> States {
    let add = |of: fn(&States) -> f64| parts.iter().map(|p| of(&p.occupied)).sum::<f64>();
    States {
        serving: add(|s| s.serving),
        admission: add(|s| s.admission),
        entry: add(|s| s.entry),
        reading: add(|s| s.reading),
        writing: add(|s| s.writing),
        admission_full: add(|s| s.admission_full) / parts.len() as f64,
    }
}

/// The hash of all ranks, in whatever order they come.
fn hashes(parts: &[&KvCache]) -> Option<String> {
    let each = parts.iter().map(|p| u64::from_str_radix(p.stream_hash.as_deref()?, 16).ok());
    let all = each.collect::<Option<Vec<u64>>>()?;
    Some(format!("{:016x}", all.into_iter().fold(0u64, u64::wrapping_add)))
}

fn entries(parts: &[&KvCache]) -> Entries {
    let sum = |of: fn(&Entries) -> u64| parts.iter().map(|p| of(&p.entries)).sum::<u64>();
    let count = sum(|e| e.count);
    let bytes: f64 = parts.iter().map(|p| p.entries.bytes_mean * p.entries.count as f64).sum();
    Entries {
        count,
        bytes_mean: bytes / count.max(1) as f64,
        bytes_p95: parts.iter().map(|p| p.entries.bytes_p95).fold(0.0, f64::max),
        bytes_max: parts.iter().map(|p| p.entries.bytes_max).max().unwrap_or(0),
        evicted: sum(|e| e.evicted),
        demoted: sum(|e| e.demoted),
        lost: sum(|e| e.lost),
        given_up: sum(|e| e.given_up),
    }
}

fn latencies(parts: &[&KvCache]) -> Latencies {
    let of = |which: fn(&Latencies) -> Spread| spread(parts.iter().map(|p| which(&p.latency_ms)));
    Latencies {
        entry_read: of(|l| l.entry_read),
        entry_write: of(|l| l.entry_write),
        flush: of(|l| l.flush),
        block_read: of(|l| l.block_read),
        block_write: of(|l| l.block_write),
        request: of(|l| l.request),
        storage: of(|l| l.storage),
        queued: of(|l| l.queued),
        admission: of(|l| l.admission),
    }
}

fn spread(parts: impl Iterator<Item = Spread>) -> Spread {
    let most = |a: Option<f64>, b: Option<f64>| match (a, b) {
        (Some(a), Some(b)) => Some(a.max(b)),
        (a, b) => a.or(b),
    };
    parts.fold(Spread::default(), |all, part| {
        let count = all.count + part.count;
        let total = all.mean.unwrap_or(0.0) * all.count as f64 + part.mean.unwrap_or(0.0) * part.count as f64;
        Spread {
            count,
            mean: (count > 0).then(|| total / count as f64),
            p50: most(all.p50, part.p50),
            p95: most(all.p95, part.p95),
            p99: most(all.p99, part.p99),
            p999: most(all.p999, part.p999),
            p9999: most(all.p9999, part.p9999),
            max: most(all.max, part.max),
        }
    })
}

fn class(parts: &[&KvCache], which: fn(&Classes) -> ClassResult) -> ClassResult {
    let each: Vec<ClassResult> = parts.iter().map(|p| which(&p.classes)).collect();
    let requests: u64 = each.iter().map(|c| c.requests).sum();
    let within: f64 = each.iter().map(|c| c.sla.compliance.unwrap_or(0.0) * c.requests as f64).sum();
    let latency_ms = spread(each.iter().map(|c| c.latency_ms));
    let target_p95_ms = each.first().map_or(0.0, |c| c.sla.target_p95_ms);
    ClassResult {
        requests,
        latency_ms,
        sla: Sla {
            target_p95_ms,
            actual_p95_ms: latency_ms.p95,
            compliance: (requests > 0).then(|| within / requests as f64),
            met: latency_ms.p95.map(|p95| p95 <= target_p95_ms),
        },
    }
}

fn tier(parts: &[&KvCache], which: fn(&Tiers) -> TierResult) -> TierResult {
    parts.iter().map(|p| which(&p.tiers)).fold(TierResult::default(), |a, b| TierResult {
        reads: a.reads + b.reads,
        writes: a.writes + b.writes,
        read_bytes: a.read_bytes + b.read_bytes,
        written_bytes: a.written_bytes + b.written_bytes,
        entries: a.entries + b.entries,
        used_bytes: a.used_bytes + b.used_bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::super::simulate::simulate;
    use super::super::KvSpec;
    use super::*;
    use crate::device::DriveModel;

    // promise: KVC-4
    #[test]
    fn ranks_of_two_processes_make_the_stream_of_one_that_has_both() {
        let model = DriveModel::parse("d7-ps1010").unwrap();
        let run = |spec: KvSpec| simulate(&spec, &model, &mut || true).unwrap().kvcache;
        let base =
            KvSpec { ranks: 2, users: 20, duration_s: 10.0, dir: "model:x".into(), ..KvSpec::default() };
        let whole = run(base.clone());
        let parts = [0, 1].map(|first_rank| run(KvSpec { first_rank, ranks_here: Some(1), ..base.clone() }));
        let merged = merge(&[&parts[0], &parts[1]]).unwrap().unwrap();
        assert_eq!(merged.stream_hash, whole.stream_hash);
        assert_eq!(merged.requests.offered, whole.requests.offered);
        assert_eq!(merged.read_bytes, parts[0].read_bytes + parts[1].read_bytes);
        assert_eq!(
            merged.latency_ms.request.p95,
            parts.iter().map(|p| p.latency_ms.request.p95).max_by(|a, b| a.partial_cmp(b).unwrap()).unwrap()
        );
        assert!(merge(&[&parts[0], &KvCache { users: 3, ..parts[1].clone() }]).is_err());
    }
}
