//! Who does what: files go round the workers; workers that share a target walk
//! parts of it, or draw from all of it.

use super::threads;
use super::worker::WorkerSpec;
use crate::source::Target;
use forebay_model::job::JobSpec;
use forebay_model::pattern::{PatternSpec, Span};
use forebay_model::Error;

pub fn out(job: &JobSpec, targets: &[Target]) -> Result<Vec<WorkerSpec>, Error> {
    let cpus = cpus_of(job)?;
    let spec = |(w, spans): (usize, Vec<Span>)| {
        Ok(WorkerSpec {
            index: w as u32,
            cpu: (!cpus.is_empty()).then(|| cpus[w % cpus.len()]),
            pattern: pattern(job, w as u64, spans)?,
        })
    };
    spans(job, targets).into_iter().enumerate().map(spec).collect()
}

/// What worker `w` does to its spans.
pub fn pattern(job: &JobSpec, w: u64, spans: Vec<Span>) -> Result<PatternSpec, Error> {
    Ok(PatternSpec {
        spans,
        random: job.op.is_random(),
        zipf_theta: job.zipf_theta()?,
        no_repeat: job.no_repeat,
        io_bytes: job.io_bytes,
        io_bytes_max: job.io_bytes_max,
        io_bytes_step: job.io_bytes_step,
        align: job.align_bytes.unwrap_or(job.io_bytes),
        read_pct: job.reads_pct(),
        seed: job.seed.wrapping_add(w),
    })
}

fn cpus_of(job: &JobSpec) -> Result<Vec<u32>, Error> {
    if let Some(node) = job.numa.filter(|n| threads::cpus_of_node(*n).is_empty()) {
        return Err(Error::request(format!("--numa {node}"), "there is no such NUMA node", "lscpu"));
    }
    let Some(text) = &job.cpus else { return Ok(Vec::new()) };
    let cpus = threads::parse_cpus(text)
        .map_err(|why| Error::request(format!("--cpus {text}"), why, "--cpus 0-3"))?;
    let allowed = threads::allowed();
    match cpus.iter().find(|c| !allowed.contains(c)) {
        Some(cpu) => Err(Error::request(
            format!("--cpus {text}"),
            format!("CPU {cpu} isn't one that this process may use"),
            "taskset -p $$",
        )),
        None => Ok(cpus),
    }
}

/// The spans of each worker.
fn spans(job: &JobSpec, targets: &[Target]) -> Vec<Vec<Span>> {
    let workers = job.workers as usize;
    let mut spans: Vec<Vec<Span>> = vec![Vec::new(); workers];
    let whole = |t: usize| Span {
        target: t as u32,
        start: job.start_bytes,
        bytes: targets[t].bytes.saturating_sub(job.start_bytes),
    };
    let divide = !job.op.is_random() || job.no_repeat;
    for t in 0..targets.len() {
        let sharers: Vec<usize> = if targets.len() >= workers {
            vec![t % workers]
        } else {
            (0..workers).filter(|w| w % targets.len() == t).collect()
        };
        for (i, w) in sharers.iter().enumerate() {
            spans[*w].push(if divide {
                part(whole(t), i as u64, sharers.len() as u64, job.io_bytes_largest())
            } else {
                whole(t)
            });
        }
    }
    for own in &mut spans {
        // A target with fewer I/Os than sharers leaves some without a part: they take it whole.
        if own.iter().all(|s| s.bytes == 0) {
            *own = own.iter().map(|s| whole(s.target as usize)).collect();
        }
    }
    spans
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
    use proptest::prelude::*;

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
