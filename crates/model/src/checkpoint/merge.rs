//! One checkpoint part out of those of several hosts that wrote and read together: a checkpoint is done when its last
//! rank is, wherever that ran.

use super::record::{rate, Checkpoint, Phase, Rule, Turn};
use crate::cpu::Cpu;
use crate::{Error, Latency};
use std::collections::BTreeMap;

/// The first lends what all have in common.
pub fn merge(parts: &[&Checkpoint]) -> Result<Option<Checkpoint>, Error> {
    let Some(first) = parts.first() else { return Ok(None) };
    let phases =
        |of: fn(&Checkpoint) -> &Option<Phase>| merge_phases(parts.iter().map(|p| of(p).as_ref()), first);
    Ok(Some(Checkpoint {
        write: phases(|c| &c.write)?,
        read: phases(|c| &c.read)?,
        write_to_read_s: parts.iter().map(|p| p.write_to_read_s).reduce(latest).flatten(),
        rules: merge_rules(parts),
        ..(*first).clone()
    }))
}

fn latest(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    Some(a?.max(b?))
}

/// Checkpoints that every host has.
fn merge_phases<'a>(
    phases: impl Iterator<Item = Option<&'a Phase>>,
    first: &Checkpoint,
) -> Result<Option<Phase>, Error> {
    let Some(phases) = phases.collect::<Option<Vec<&Phase>>>() else { return Ok(None) };
    let mut latency = Latency::default();
    for phase in &phases {
        latency.merge(&Latency::decode(&phase.histogram)?);
    }
    let done = phases.iter().map(|p| p.checkpoints.len()).min().unwrap_or(0);
    let turns =
        (0..done).map(|n| merge_turns(phases.iter().map(|p| &p.checkpoints[n]), first.bytes)).collect();
    let verified = phases.iter().map(|p| p.verified_bytes).sum();
    let mut merged = Phase::from_checkpoints(turns, &latency, None, verified);
    if let Some(merged) = &mut merged {
        // Percentiles of several hosts can't be put together; the slowest host's stand for all.
        let slowest =
            phases.iter().filter_map(|p| p.fsync_us.as_ref()).max_by(|a, b| a.max.total_cmp(&b.max));
        merged.fsync_us = slowest.cloned();
    }
    Ok(merged)
}

fn merge_turns<'a>(turns: impl Iterator<Item = &'a Turn>, bytes: u64) -> Turn {
    let turns: Vec<&Turn> = turns.collect();
    let slowest = turns.iter().fold(turns[0], |a, b| if b.duration_s > a.duration_s { b } else { a });
    let sum = |f: fn(&Cpu) -> Option<f64>| turns.iter().map(|t| f(&t.cpu)).sum::<Option<f64>>();
    Turn {
        gib_s: rate(bytes, slowest.duration_s),
        rank_s_min: turns.iter().map(|t| t.rank_s_min).fold(f64::INFINITY, f64::min),
        rank_s_mean: turns.iter().map(|t| t.rank_s_mean).sum::<f64>() / turns.len() as f64,
        bytes: turns.iter().map(|t| t.bytes).sum(),
        cpu: Cpu {
            user_s: sum(|c| c.user_s),
            system_s: sum(|c| c.system_s),
            cores_busy: sum(|c| c.cores_busy),
            ..Cpu::default()
        },
        ..slowest.clone()
    }
}

/// A rule holds where it holds on every host; the host that breaks it says why.
fn merge_rules(parts: &[&Checkpoint]) -> Vec<Rule> {
    let worse = |rule: &Rule| match rule.ok {
        Some(false) => 2,
        None => 1,
        Some(true) => 0,
    };
    let mut found: BTreeMap<&str, &Rule> = BTreeMap::new();
    for rule in parts.iter().flat_map(|p| &p.rules) {
        let kept = found.entry(&rule.id).or_insert(rule);
        if worse(rule) > worse(kept) {
            *kept = rule;
        }
    }
    let order = parts.iter().max_by_key(|p| p.rules.len()).map(|p| &p.rules);
    order.into_iter().flatten().filter_map(|r| found.get(r.id.as_str()).map(|r| (*r).clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(seconds: f64, rank: u64, ok: bool) -> Checkpoint {
        let gib = 1u64 << 30;
        let cpu = Cpu { user_s: Some(1.0), system_s: Some(0.0), ..Cpu::default() };
        let turn = Turn::new(1, 4 * gib, 2 * gib, &[(rank, seconds)], cpu);
        let mut latency = Latency::default();
        latency.record((seconds * 1e6) as u64);
        Checkpoint {
            bytes: 4 * gib,
            write: Phase::from_checkpoints(vec![turn], &latency, None, 5),
            rules: vec![Rule { id: "a".into(), ok: Some(ok), why: format!("rank {rank}") }],
            ..Checkpoint::default()
        }
    }

    // promise: CKP-3
    #[test]
    fn the_slowest_host_is_the_checkpoint() {
        let (a, b) = (part(1.0, 0, true), part(2.0, 4, false));
        let merged = merge(&[&a, &b]).unwrap().unwrap();
        let write = merged.write.unwrap();
        assert_eq!((write.checkpoints[0].duration_s, write.checkpoints[0].slowest_rank), (2.0, 4));
        assert_eq!(write.gib_s_mean, 2.0);
        assert_eq!((write.verified_bytes, write.cpu_s_per_gib), (10, Some(0.5)));
        assert_eq!(Latency::decode(&write.histogram).unwrap().count(), 2);
        assert_eq!((merged.rules[0].ok, merged.rules[0].why.as_str()), (Some(false), "rank 4"));
    }

    #[test]
    fn a_checkpoint_counts_only_where_every_host_ended_it() {
        let (a, b) = (part(1.0, 0, true), Checkpoint { write: None, ..part(1.0, 4, true) });
        assert_eq!(merge(&[&a, &b]).unwrap().unwrap().write, None);
        assert_eq!(merge(&[]).unwrap(), None);
    }
}
