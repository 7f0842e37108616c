//! Distribution of work: files are assigned to workers in turn; workers that share a target each cover a part of it,
//! or draw offsets from all of it, or each cover all of it; with pairs, this applies to the workers of each pair. A
//! worker that feeds a GPU stays on the GPU's NUMA node.

use super::run_kit::WorkerSpec;
use forebay_io::{cpus_of_node, named_cpus, named_numa_nodes, numa_node_of, numa_nodes, CudaDevice};
use forebay_model::job::{FileOrder, JobSpec};
use forebay_model::pattern::{PatternSpec, Span};
use forebay_model::Error;
use forebay_storage::{Destination, Target};

pub(crate) fn out(
    job: &JobSpec,
    targets: &[Target],
    destination: &Destination,
) -> Result<Vec<WorkerSpec>, Error> {
    let cpus = cpus_of(job)?;
    let nodes: Vec<Option<u32>> = destination.devices.iter().map(|d| node_near(job, d)).collect();
    let spec = |(w, spans): (usize, Vec<Span>)| {
        Ok(WorkerSpec {
            index: w as u32,
            cpu: (!cpus.is_empty()).then(|| cpus[w % cpus.len()]),
            near: if nodes.is_empty() { None } else { nodes[w % nodes.len()] },
            pattern: pattern(job, w as u64, spans)?,
        })
    };
    spans(job, targets).into_iter().enumerate().map(spec).collect()
}

/// The NUMA node that a GPU hangs on, where that means anything and nobody said otherwise.
fn node_near(job: &JobSpec, device: &CudaDevice) -> Option<u32> {
    if job.cpus.is_some() || job.numa.is_some() || job.numa_interleave.is_some() || numa_nodes() < 2 {
        return None;
    }
    numa_node_of(&device.bus_id().ok()?)
}

/// The access pattern of worker `w` over its spans.
pub(crate) fn pattern(job: &JobSpec, w: u64, spans: Vec<Span>) -> Result<PatternSpec, Error> {
    Ok(PatternSpec {
        spans,
        random: job.op.is_random(),
        distribution: job.parsed_distribution()?,
        no_repeat: job.no_repeat,
        skip: job.skip_bytes,
        skip_every: job.skip_every_bytes,
        shuffled: job.whole_files && job.order == Some(FileOrder::Random),
        io_bytes: job.io_bytes,
        io_bytes_max: job.io_bytes_max,
        io_bytes_step: job.io_bytes_step,
        mix: job.parsed_mix()?,
        align: job.align_bytes.unwrap_or(job.io_bytes),
        aligns_apart: job.align_bytes.is_none(),
        read_pct: job.reads_pct(),
        seed: job.seed.wrapping_add(w),
        segments: job.parsed_rounds()?.map_or(0, |rounds| rounds.segments),
    })
}

/// The CPUs that workers stay on in turn; none: any.
///
/// # Errors
/// `Request`: a processor or a node that is asked for isn't there.
pub(crate) fn cpus_of(job: &JobSpec) -> Result<Vec<u32>, Error> {
    if let Some(node) = job.numa.filter(|n| cpus_of_node(*n).is_empty()) {
        return Err(Error::request(format!("‹numa› {node}"), "there is no such NUMA node", "lscpu"));
    }
    job.numa_interleave.as_deref().map_or(Ok(Vec::new()), named_numa_nodes)?;
    let Some(text) = &job.cpus else { return Ok(Vec::new()) };
    named_cpus("‹cpus›", text)
}

/// The spans of each worker: those of a pair share its targets, or all of them share all.
fn spans(job: &JobSpec, targets: &[Target]) -> Vec<Vec<Span>> {
    let mut spans: Vec<Vec<Span>> = vec![Vec::new(); job.workers as usize];
    let groups = job.pairs.len().max(1);
    for group in 0..groups {
        let workers: Vec<usize> = (group..spans.len()).step_by(groups).collect();
        let belongs = |t: &usize| targets[*t].route.pair.is_none_or(|pair| pair as usize == group);
        let own: Vec<usize> = (0..targets.len()).filter(belongs).collect();
        share(job, targets, &own, &workers, &mut spans);
    }
    spans
}

/// Gives these workers their spans of these targets.
fn share(job: &JobSpec, targets: &[Target], own: &[usize], workers: &[usize], spans: &mut [Vec<Span>]) {
    let whole = |t: usize| Span {
        target: t as u32,
        start: job.start_bytes,
        bytes: targets[t].bytes.saturating_sub(job.start_bytes),
    };
    if job.clones {
        for w in workers {
            spans[*w] = own.iter().map(|t| moved_on(whole(*t), job.start_step_bytes * *w as u64)).collect();
        }
        return;
    }
    let divide = !job.op.is_random() || job.no_repeat;
    for (n, t) in own.iter().enumerate() {
        let sharers: Vec<usize> = if own.len() >= workers.len() {
            vec![workers[n % workers.len()]]
        } else {
            workers.iter().copied().skip(n).step_by(own.len()).collect()
        };
        for (i, w) in sharers.iter().enumerate() {
            spans[*w].push(if divide {
                part(whole(*t), i as u64, sharers.len() as u64, job.io_bytes_largest())
            } else {
                whole(*t)
            });
        }
    }
    for w in workers {
        let own = &mut spans[*w];
        // A target with fewer I/Os than sharers leaves some without a part: they take it whole.
        if own.iter().all(|s| s.bytes == 0) {
            *own = own.iter().map(|s| whole(s.target as usize)).collect();
        }
    }
}

/// Refuses whole files of what has none, and workers that would have none.
pub(crate) fn check_whole_files(job: &JobSpec, targets: &[Target]) -> Result<(), Error> {
    if !job.whole_files {
        return Ok(());
    }
    let is_file = |t: &Target| t.source.descriptor().is_some_and(|(file, _)| !file.is_device);
    if let Some(other) = targets.iter().find(|t| !is_file(t)) {
        return Err(no_files(&other.label));
    }
    let groups = job.pairs.len().max(1);
    for group in 0..groups {
        let files = targets.iter().filter(|t| t.route.pair.is_none_or(|pair| pair as usize == group)).count();
        let workers = (group..job.workers as usize).step_by(groups).len();
        if workers > files && !job.clones {
            return Err(Error::request(
                format!("‹workers› {} ‹whole_files›", job.workers),
                format!("each file is read by one worker, and there are {files} for {workers} workers"),
                format!("‹workers› {}, or no ‹whole_files›", files * groups),
            ));
        }
    }
    Ok(())
}

pub(crate) fn no_files(source: &str) -> Error {
    let next = "a directory, files, or no ‹whole_files›";
    Error::request(format!("‹whole_files› of {source}"), "it is neither a file nor a directory", next)
}

/// The rest of a span after its first `bytes`.
fn moved_on(whole: Span, bytes: u64) -> Span {
    let past = bytes.min(whole.bytes);
    Span { start: whole.start + past, bytes: whole.bytes - past, ..whole }
}

/// Part `i` of `n`, cut at multiples of the I/O size.
fn part(whole: Span, i: u64, n: u64, io_bytes: u64) -> Span {
    let units = u128::from(whole.bytes.div_ceil(io_bytes));
    let cut =
        |k: u64| ((units * u128::from(k) / u128::from(n)) as u64).saturating_mul(io_bytes).min(whole.bytes);
    Span { start: whole.start + cut(i), bytes: cut(i + 1) - cut(i), ..whole }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_model::job::Engine;
    use forebay_storage::{FileAccess, FileTarget, OpenFileSource, OpenNil, Route};
    use proptest::prelude::*;

    fn target(pair: Option<u32>) -> Target {
        let route = Route { pair, ..Route::default() };
        Target { route, ..Target::new("t", 1 << 20, OpenNil) }
    }

    #[test]
    fn the_workers_of_a_pair_read_its_source_alone_and_all_of_it() {
        let pairs = vec!["0=/a".to_string(), "1=/b".into()];
        let job = JobSpec { pairs, workers: 5, io_bytes: 4096, ..JobSpec::default() };
        let targets = [target(Some(0)), target(Some(1)), target(Some(1))];
        let spans = spans(&job, &targets);
        for (w, own) in spans.iter().enumerate() {
            assert!(!own.is_empty(), "worker {w} has nothing to do");
            assert!(
                own.iter().all(|s| targets[s.target as usize].route.pair == Some(w as u32 % 2)),
                "{own:?}"
            );
        }
        for t in 0..targets.len() as u32 {
            let bytes: u64 = spans.iter().flatten().filter(|s| s.target == t).map(|s| s.bytes).sum();
            assert_eq!(bytes, 1 << 20, "target {t}");
        }
    }

    // promise: BEN-51
    #[test]
    fn whole_files_have_a_worker_each_and_each_worker_has_one() {
        let home = tempfile::tempdir().unwrap();
        let open = |pair| {
            let path = home.path().join("file");
            std::fs::write(&path, "data").unwrap();
            let access = FileAccess { write: false, direct: false };
            let file = FileTarget::open(&path, access).unwrap();
            let source = OpenFileSource { target: file, engine: Engine::Pread };
            Target { route: Route { pair, ..Route::default() }, ..Target::new("f", 4, source) }
        };
        let pairs = vec!["0=/a".to_string(), "1=/b".into()];
        let whole = |workers, pairs| JobSpec { whole_files: true, workers, pairs, ..JobSpec::default() };
        let files = [open(Some(0)), open(Some(1)), open(Some(1))];
        check_whole_files(&whole(2, pairs.clone()), &files).unwrap();
        let error = check_whole_files(&whole(3, pairs), &files).unwrap_err();
        assert!(error.found.ends_with("1 for 2 workers"), "{error}");
        let all: Vec<Target> = (0..3).map(|_| open(None)).collect();
        check_whole_files(&whole(3, vec![]), &all).unwrap();
        let error = check_whole_files(&whole(4, vec![]), &all).unwrap_err();
        assert!(error.next.starts_with("‹workers› 3"), "{error}");
        check_whole_files(&JobSpec { clones: true, ..whole(4, vec![]) }, &all).unwrap();
        let error = check_whole_files(&whole(1, vec![]), &[target(None)]).unwrap_err();
        assert!(error.found.contains("neither a file nor a directory"), "{error}");
    }

    // promise: BEN-26
    #[test]
    fn clones_each_have_all_of_it_and_may_begin_further_on() {
        let job =
            JobSpec { clones: true, workers: 3, start_bytes: 4096, io_bytes: 4096, ..JobSpec::default() };
        let whole = |target, start| Span { target, start, bytes: (1 << 20) - start };
        let all = vec![whole(0, 4096), whole(1, 4096)];
        assert_eq!(spans(&job, &[target(None), target(None)]), [all.clone(), all.clone(), all]);
        let stepped = JobSpec { start_step_bytes: 512 << 10, ..job };
        let starts = |own: &Vec<Span>| own.iter().map(|s| (s.start, s.bytes)).collect::<Vec<_>>();
        let found: Vec<_> = spans(&stepped, &[target(None)]).iter().map(starts).collect();
        assert_eq!(found, [vec![(4096, 1044480)], vec![(528384, 520192)], vec![(1048576, 0)]]);
    }

    proptest! {
        #[test]
        fn parts_cover_the_whole_once(bytes in 1u64..1_000_000, n in 1u64..20, io in 1u64..5000, start in 0u64..1000) {
            let whole = Span { target: 0, start, bytes };
            let mut at = start;
            for i in 0..n {
                let p = part(whole, i, n, io);
                prop_assert_eq!(p.start, at);
                prop_assert!((p.start - start) % io == 0 || p.bytes == 0);
                at += p.bytes;
            }
            prop_assert_eq!(at, start + bytes);
        }
    }
}
