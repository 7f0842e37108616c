//! The rules of MLPerf Storage for checkpoints, by edition: which apply to a run, and why.

use super::record::{Checkpoint, Rule};
use super::{CheckpointSpec, Edition, Mode};
use crate::job::Cache;
use crate::Error;

/// Checkpoints to write, and to read.
pub const CHECKPOINTS: u32 = 10;
/// Seconds between them.
pub const BETWEEN_S: f64 = 5.0;
/// Ranks of a subset run.
const SUBSET_RANKS: u64 = 8;
/// A client that wrote less than so many times its memory might read what it still has.
const TIMES_MEMORY: f64 = 3.0;
/// v3.0: from the end of writing to the start of reading.
const TURN_S: f64 = 30.0;
/// The page cache may keep so much of what is to be read: the end of each file.
const RESIDENT_MAX: f64 = 0.01;
/// The one model that v3.0 lets run as a subset.
const SUBSET_V30: &str = "llama3-8b";

/// Facts that only the run itself could determine.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    /// Memory of the host with the most.
    pub memory_bytes: u64,
    /// Share of the files' pages in the page cache as reading began; None: it couldn't be told, or nothing was read.
    pub resident: Option<f64>,
    /// The file system lives in memory.
    pub in_memory: bool,
}

/// Each rule that applies, its verdict and why.
pub fn judge(spec: &CheckpointSpec, ran: &Checkpoint, seen: Seen) -> Vec<Rule> {
    let mut rules = of_request(spec);
    if ran.read.is_some() {
        rules.push(cache(spec, ran, seen));
    }
    if spec.rules == Edition::V30 && spec.writes > 0 && spec.reads > 0 {
        rules.push(turn(ran.write_to_read_s));
    }
    rules.push(complete(spec, ran));
    rules
}

/// Refuses settings that break a rule of the closed division.
pub fn refuse_open(spec: &CheckpointSpec) -> Result<(), Error> {
    match of_request(spec).into_iter().find(|rule| rule.ok == Some(false)) {
        Some(rule) => Err(Error::request(
            format!("--closed, {}", rule.id),
            rule.why,
            "without --closed the run continues, and its record names the rule",
        )),
        None => Ok(()),
    }
}

/// Rules that the request alone keeps or breaks.
fn of_request(spec: &CheckpointSpec) -> Vec<Rule> {
    let (ranks, whole) = (spec.ranks(), spec.model.ranks());
    let per_host = ranks as f64 / f64::from(spec.hosts);
    let mut rules = vec![processes(spec)];
    rules.push(rule(
        "checkpoint.ranks_per_host",
        per_host > 4.0 || whole <= 4,
        format!("{per_host:.0} ranks on each host; more than 4 are required"),
    ));
    rules.push(rule(
        "checkpoint.count",
        [spec.writes, spec.reads].iter().all(|n| *n == CHECKPOINTS || *n == 0),
        format!("{} written, {} read; {CHECKPOINTS} of each, in one run or two", spec.writes, spec.reads),
    ));
    if spec.writes > 0 {
        let why = if spec.fsync { "each file before it is closed" } else { "--no-fsync" };
        rules.push(rule("checkpoint.fsync", spec.fsync, why.into()));
    }
    rules.push(rule(
        "checkpoint.scale",
        spec.scale == 1.0,
        format!("files have {} of their size", spec.scale),
    ));
    rules.push(rule(
        "checkpoint.between",
        spec.between_s >= BETWEEN_S,
        format!("{} s between checkpoints; {BETWEEN_S} are the workload's", spec.between_s),
    ));
    rules
}

fn processes(spec: &CheckpointSpec) -> Rule {
    let (ranks, whole) = (spec.ranks(), spec.model.ranks());
    let of = format!("{ranks} ranks; the workload's table says {whole}");
    match (spec.mode(), spec.rules) {
        (Mode::Default, _) => rule("checkpoint.processes", true, of),
        (Mode::Copies, _) => rule("checkpoint.processes", false, format!("{of}; more copies are for OPEN")),
        (Mode::Subset, Edition::V20) => rule(
            "checkpoint.subset",
            ranks == SUBSET_RANKS && spec.hosts == 1,
            format!("{of}; a subset has {SUBSET_RANKS} on one host, here {ranks} on {}", spec.hosts),
        ),
        (Mode::Subset, Edition::V30) => rule(
            "checkpoint.subset",
            spec.workload == SUBSET_V30 && ranks == SUBSET_RANKS,
            format!("{of}; v3.0 has a subset of {SUBSET_V30} alone, with {SUBSET_RANKS} ranks"),
        ),
    }
}

/// The rule that reads must come from storage.
fn cache(spec: &CheckpointSpec, ran: &Checkpoint, seen: Seen) -> Rule {
    const ID: &str = "checkpoint.cache";
    let written =
        ran.bytes as f64 * f64::from(CHECKPOINTS.min(spec.writes.max(spec.reads))) / f64::from(spec.hosts);
    let memory = seen.memory_bytes as f64;
    let times = if memory > 0.0 { written / memory } else { 0.0 };
    if seen.in_memory {
        return rule(ID, false, "the file system lives in memory: nothing else could be read".into());
    }
    if memory > 0.0 && times >= TIMES_MEMORY {
        return rule(ID, true, format!("each client wrote {times:.1} times its memory"));
    }
    let less = format!("each client wrote {times:.2} times its memory, less than {TIMES_MEMORY}");
    let policy = match spec.cache {
        Cache::Bypass => "files were written and read bypassing the page cache",
        Cache::Drop => "the page cache was dropped before reading",
        _ => return rule(ID, false, format!("{less}, and ‹cache› allow left the page cache as it was")),
    };
    match seen.resident {
        Some(share) => rule(
            ID,
            share <= RESIDENT_MAX,
            format!("{less}; {policy}, and {:.2} % of the files' pages were in it", 100.0 * share),
        ),
        None => Rule {
            id: ID.into(),
            ok: None,
            why: format!("{less}; {policy}; what was left in it can't be determined"),
        },
    }
}

fn turn(seconds: Option<f64>) -> Rule {
    const ID: &str = "checkpoint.turn";
    match seconds {
        Some(s) => rule(ID, s <= TURN_S, format!("reading began {s:.1} s after writing; at most {TURN_S}")),
        None => Rule { id: ID.into(), ok: None, why: "the run ended before reading".into() },
    }
}

fn complete(spec: &CheckpointSpec, ran: &Checkpoint) -> Rule {
    let done =
        |phase: &Option<super::record::Phase>| phase.as_ref().map_or(0, |p| p.checkpoints.len() as u32);
    let (written, read) = (done(&ran.write), done(&ran.read));
    rule(
        "checkpoint.complete",
        written == spec.writes && read == spec.reads,
        format!("{written} of {} written, {read} of {} read", spec.writes, spec.reads),
    )
}

fn rule(id: &str, ok: bool, why: String) -> Rule {
    Rule { id: id.into(), ok: Some(ok), why }
}

#[cfg(test)]
mod tests {
    use super::super::layout::tests::{llama, llama_8b};
    use super::super::record::Phase;
    use super::*;

    fn spec() -> CheckpointSpec {
        CheckpointSpec {
            workload: "llama3-8b".into(),
            model: llama_8b(),
            dir: "/x".into(),
            ..CheckpointSpec::default()
        }
    }

    fn verdict(rules: &[Rule], id: &str) -> Option<bool> {
        rules.iter().find(|r| r.id == id).unwrap_or_else(|| panic!("no {id}")).ok
    }

    #[test]
    fn a_run_by_the_table_is_closed() {
        CheckpointSpec { closed: true, ..spec() }.check().unwrap();
        assert!(of_request(&spec()).iter().all(|r| r.ok == Some(true)));
    }

    // promise: CKP-5
    #[test]
    fn closed_refuses_what_breaks_a_rule_and_names_it() {
        let closed = CheckpointSpec { closed: true, ..spec() };
        for (id, bad) in [
            ("checkpoint.scale", CheckpointSpec { scale: 0.5, ..closed.clone() }),
            ("checkpoint.fsync", CheckpointSpec { fsync: false, ..closed.clone() }),
            ("checkpoint.count", CheckpointSpec { writes: 9, reads: 9, ..closed.clone() }),
            ("checkpoint.between", CheckpointSpec { between_s: 0.0, ..closed.clone() }),
            ("checkpoint.processes", CheckpointSpec { ranks: Some(16), ..closed.clone() }),
            ("checkpoint.subset", CheckpointSpec { ranks: Some(4), ..closed.clone() }),
            ("checkpoint.ranks_per_host", CheckpointSpec { hosts: 2, ..closed.clone() }),
        ] {
            let error = bad.check().unwrap_err();
            assert!(error.asked.contains(id), "{id}: {error}");
        }
    }

    // promise: CKP-5
    #[test]
    fn subsets_differ_by_edition() {
        let large = |rules| CheckpointSpec {
            workload: "llama3-405b".into(),
            model: llama([126, 16_384, 53_248, 128, 8], [8, 32, 2], 1),
            ranks: Some(8),
            rules,
            ..spec()
        };
        assert_eq!(verdict(&of_request(&large(Edition::V20)), "checkpoint.subset"), Some(true));
        assert_eq!(verdict(&of_request(&large(Edition::V30)), "checkpoint.subset"), Some(false));
        let two_hosts = CheckpointSpec { hosts: 2, ..large(Edition::V20) };
        assert_eq!(verdict(&of_request(&two_hosts), "checkpoint.subset"), Some(false));
    }

    // promise: CKP-5
    #[test]
    fn little_data_needs_a_cleared_cache() {
        let read = Some(Phase::default());
        let ran = Checkpoint { bytes: 1 << 30, read, ..Checkpoint::default() };
        let seen = Seen { memory_bytes: 64 << 30, resident: Some(0.0), in_memory: false };
        let ok = |spec: &CheckpointSpec, seen: Seen| verdict(&judge(spec, &ran, seen), "checkpoint.cache");
        assert_eq!(ok(&spec(), seen), Some(true));
        assert_eq!(ok(&spec(), Seen { resident: Some(0.5), ..seen }), Some(false));
        assert_eq!(ok(&spec(), Seen { resident: None, ..seen }), None);
        assert_eq!(ok(&spec(), Seen { in_memory: true, ..seen }), Some(false));
        let allow = CheckpointSpec { cache: Cache::Allow, ..spec() };
        assert_eq!(ok(&allow, seen), Some(false));
        // Ten checkpoints of 1 GiB are three times 3 GiB of memory.
        assert_eq!(ok(&allow, Seen { memory_bytes: 3 << 30, ..seen }), Some(true));
    }

    #[test]
    fn v3_wants_reading_to_follow_within_30_seconds() {
        let v3 = CheckpointSpec { rules: Edition::V30, ..spec() };
        let after = |s| Checkpoint { write_to_read_s: s, ..Checkpoint::default() };
        let turn = |s| verdict(&judge(&v3, &after(s), Seen::default()), "checkpoint.turn");
        assert_eq!((turn(Some(5.0)), turn(Some(31.0)), turn(None)), (Some(true), Some(false), None));
        assert!(judge(&spec(), &after(Some(31.0)), Seen::default())
            .iter()
            .all(|r| r.id != "checkpoint.turn"));
    }
}
