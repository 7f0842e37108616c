use super::*;
use forebay_bench::Progress;
use forebay_model::kvcache::Phase;

struct Nobody;

impl Observer for Nobody {
    fn progress(&mut self, _: &Progress) {}

    fn stop(&mut self) -> bool {
        false
    }
}

fn spec(dir: &str) -> KvSpec {
    KvSpec {
        dir: dir.into(),
        // 3 to 150 MB an entry would be long: a token of 64 bytes makes 8 KiB to 1.6 MB.
        model: "layers=1,kv_heads=1,head_dim=16,dtype=bf16".into(),
        users: 12,
        duration_s: 1.5,
        verify: true,
        ..KvSpec::default()
    }
}

// promise: KVC-7
#[test]
fn entries_are_written_read_verified_and_gone_afterwards() {
    let dir = std::env::temp_dir().join(format!("forebay-kv-test-{}", std::process::id()));
    let spec = spec(dir.to_str().unwrap());
    let done = run_kvcache(&spec, Vec::new(), &mut Nobody, None).unwrap();
    assert!(done.outcome.failure.is_none(), "{:?}", done.outcome.failure);
    let record = done.outcome.record;
    let kvcache = record.kvcache.unwrap();
    assert!(kvcache.requests.served > 10 && kvcache.drained, "{:?}", kvcache.requests);
    assert_eq!(kvcache.requests.offered, kvcache.requests.served + kvcache.requests.left_queued);
    assert_eq!(kvcache.read_bytes, kvcache.tiers.storage.read_bytes);
    assert_eq!(kvcache.write_bytes, kvcache.tiers.storage.written_bytes);
    assert!(record.result.verified_bytes > 0 && record.result.errors.verify_failed == 0);
    assert_eq!(kvcache.stream_hash, Some(format!("{:016x}", stream_hash(&spec))));
    assert!(!dir.exists());
}

// promise: KVC-8
#[test]
fn other_threads_and_depths_make_the_same_stream() {
    let dir = std::env::temp_dir().join(format!("forebay-kv-test-same-{}", std::process::id()));
    let base = KvSpec { duration_s: 0.8, ..spec(dir.to_str().unwrap()) };
    let hash = |spec: KvSpec| {
        let done = run_kvcache(&spec, Vec::new(), &mut Nobody, None).unwrap();
        done.outcome.record.kvcache.unwrap().stream_hash.unwrap()
    };
    let first = hash(base.clone());
    assert_eq!(
        hash(KvSpec { workers: Some(1), depth: 3, io_bytes: 65_536, admission: 1, ..base.clone() }),
        first
    );
    assert_ne!(hash(KvSpec { seed: 1, ..base }), first);
}

#[test]
fn an_io_that_fails_ends_the_run_and_what_was_measured_is_kept() {
    let dir = std::env::temp_dir().join(format!("forebay-kv-test-fault-{}", std::process::id()));
    let spec = KvSpec { faults: Some("error=0.02".into()), ..spec(dir.to_str().unwrap()) };
    let done = run_kvcache(&spec, Vec::new(), &mut Nobody, None).unwrap();
    let failure = done.outcome.failure.unwrap();
    assert_eq!(failure.kind, forebay_model::Kind::Run, "{failure}");
    assert!(failure.asked.contains("rank_0/user"), "{failure}");
    let kvcache = done.outcome.record.kvcache.unwrap();
    assert!(!kvcache.drained && kvcache.write_bytes > 0);
    assert!(!dir.exists());
}

#[test]
fn a_drive_that_stalls_is_named_and_not_waited_for() {
    let dir = std::env::temp_dir().join(format!("forebay-kv-test-stall-{}", std::process::id()));
    let spec = KvSpec { faults: Some("stall=0.05".into()), timeout_s: 0.5, ..spec(dir.to_str().unwrap()) };
    let done = run_kvcache(&spec, Vec::new(), &mut Nobody, None).unwrap();
    let failure = done.outcome.failure.unwrap();
    assert!(failure.found.contains("unfinished after"), "{failure}");
    assert!(done.outcome.record.result.errors.timed_out > 0);
}

#[test]
fn entries_that_are_only_read_were_there_before_and_only_those_are() {
    let dir = std::env::temp_dir().join(format!("forebay-kv-test-phase-{}", std::process::id()));
    let base = KvSpec { duration_s: 0.5, ..spec(dir.to_str().unwrap()) };
    let of = |phase| {
        let done = run_kvcache(&KvSpec { phase, ..base.clone() }, Vec::new(), &mut Nobody, None).unwrap();
        assert!(done.outcome.failure.is_none(), "{:?}", done.outcome.failure);
        done.outcome.record.kvcache.unwrap()
    };
    let (read, written) = (of(Phase::Decode), of(Phase::Prefill));
    assert!(read.read_bytes > 0 && read.write_bytes == 0 && read.hits.misses == read.hits.system_prompts);
    assert!(written.write_bytes > 0 && written.read_bytes == 0);
    assert_eq!(read.stream_hash, written.stream_hash);
}
