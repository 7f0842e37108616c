//! A model in real time must not ask for more than the host can deliver: its numbers would be the host's,
//! under the drive's name. So what the model would do is computed, and what the host can do is tried for a
//! moment: I/Os with a model that takes no time; content, by copying.

use super::fleet;
use super::schedule::mean_io_bytes;
use super::{Observer, Progress};
use forebay_io::{monotonic_now, online_cpus};
use forebay_model::device::DriveModel;
use forebay_model::job::{JobSpec, Op, PathKind};
use forebay_model::simulate::mean_value_analysis;
use forebay_model::units::GIB;
use forebay_model::Error;
use forebay_storage::{SharedDrive, SourcePlan, SourceTiming};
use std::sync::Arc;
use std::time::Duration;

/// Rate that any host manages, so that trying would only cost time.
const EASY_IOPS: f64 = 20_000.0;
const EASY_BYTES_S: f64 = 200e6;
const TRIED: Duration = Duration::from_millis(60);
/// Larger than a core's caches; copied until `COPIED` is over.
const COPY_BYTES: usize = 32 << 20;
const COPIED: Duration = Duration::from_millis(40);
/// In flight beyond this changes nothing that a model does.
const CUSTOMERS_MAX: u32 = 1 << 16;

/// Refuses modelled drives that are faster than this host.
pub(crate) fn check(job: &JobSpec, plans: &[SourcePlan], observer: &mut dyn Observer) -> Result<(), Error> {
    let models: Vec<(&SourcePlan, &SourceTiming)> = plans.iter().flat_map(SourcePlan::modelled).collect();
    if models.is_empty() {
        return Ok(());
    }
    let specs: Vec<&str> = models.iter().map(|(_, timing)| timing.spec.as_str()).collect();
    let asked = format!("model:{} in real time", specs.join(" and "));
    let customers = (job.workers * job.depth).div_ceil(models.len() as u32);
    let modelled: f64 = models.iter().map(|(_, timing)| iops(job, &timing.drive, customers)).sum();
    let paced = job.rate_iops.or(job.rate_gib_s.map(|r| r * GIB as f64 / mean_io_bytes(job)));
    let wanted = modelled.min(paced.unwrap_or(f64::INFINITY));
    if wanted > EASY_IOPS {
        let can = loop_iops(job, &models[0].1.drive, observer)?;
        if wanted > can {
            let found = format!("it does {wanted:.0} I/Os per second; this host starts and ends {can:.0}");
            return Err(Error::machine(asked, found, next(&specs, "larger ‹io_bytes›")));
        }
    }
    let (bytes, has_content) =
        (wanted * mean_io_bytes(job), models.iter().any(|(plan, _)| !plan.parts.is_empty()));
    if has_content && bytes > EASY_BYTES_S {
        let can = copy_bytes_s() * f64::from(job.workers.min(online_cpus()));
        if bytes > can {
            let gib = |b: f64| b / GIB as f64;
            let found = format!("it moves {:.1} GiB/s; this host copies {:.1} GiB/s", gib(bytes), gib(can));
            return Err(Error::machine(asked, found, next(&specs, "no over=, fewer drives=")));
        }
    }
    Ok(())
}

fn next(specs: &[&str], other: &str) -> String {
    let spec = specs[0];
    let joint = if spec.contains('?') { '&' } else { '?' };
    format!(
        "model:{spec}{joint}time=virtual, which has no such limit; or {other}, or a ‹rate_gib_s› below that"
    )
}

/// I/Os per second of a model with so many in flight.
pub(crate) fn iops(job: &JobSpec, drive: &DriveModel, customers: u32) -> f64 {
    let bytes = mean_io_bytes(job) as u64;
    let commands = bytes.div_ceil(drive.command_bytes).max(1);
    let random = job.op.is_random();
    let service = |op: Op| drive.service_s(op, bytes / commands) * commands as f64;
    let (read, write) = if random { (Op::RandRead, Op::RandWrite) } else { (Op::Read, Op::Write) };
    let reads = f64::from(job.reads_pct()) / 100.0;
    let busy = reads * service(read) + (1.0 - reads) * service(write);
    let delay = reads * drive.read_latency_s + (1.0 - reads) * drive.write_latency_s;
    let stations = vec![busy / f64::from(drive.drives); drive.drives as usize];
    let network = mean_value_analysis(delay, &stations, customers.clamp(1, CUSTOMERS_MAX));
    // Reads hold a channel for their latency.
    let held = reads * commands as f64 * drive.read_latency_s;
    let channels = drive.channels.map_or(f64::INFINITY, |c| f64::from(c) * f64::from(drive.drives));
    network.min(if held > 0.0 { channels / held } else { f64::INFINITY })
}

/// I/Os per second of this job's own loop over the model's own arithmetic, with a drive that takes no time.
fn loop_iops(job: &JobSpec, drive: &DriveModel, observer: &mut dyn Observer) -> Result<f64, Error> {
    const AT_ONCE: f64 = 1e18;
    let instant = DriveModel {
        read_bandwidth_bytes_s: AT_ONCE,
        write_bandwidth_bytes_s: Some(AT_ONCE),
        rand_write_iops: None,
        read_latency_s: 0.0,
        write_latency_s: 0.0,
        channels: None,
        command_overhead_s: 0.0,
        ..drive.clone()
    };
    let tried = job.trial(TRIED.as_secs_f64(), TRIED.as_secs_f64() / 4.0);
    let tried = JobSpec { path: PathKind::in_host_memory(), start_bytes: 0, ..tried };
    let target = SharedDrive::new(&instant, job.seed, job.op.is_random()).without_content(1 << 40);
    let ran = fleet::run_once(&tried, &[target], &[job.seed], Arc::default(), &mut Unseen(observer))?;
    Ok(if ran.interrupted { f64::INFINITY } else { ran.ios() as f64 / ran.seconds.max(1e-9) })
}

/// Bytes that one core copies per second.
fn copy_bytes_s() -> f64 {
    let (from, mut to) = (vec![1u8; COPY_BYTES], vec![0u8; COPY_BYTES]);
    to.copy_from_slice(&from);
    let began = monotonic_now();
    let mut copied = 0.0;
    while began.elapsed() < COPIED {
        to.copy_from_slice(std::hint::black_box(&from));
        std::hint::black_box(&to);
        copied += COPY_BYTES as f64;
    }
    copied / began.elapsed().as_secs_f64()
}

/// A trial isn't progress, but it can be stopped.
pub(crate) struct Unseen<'a>(pub &'a mut dyn Observer);

impl Observer for Unseen<'_> {
    fn progress(&mut self, _: &Progress) {}

    fn stop(&mut self) -> bool {
        self.0.stop()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_model::simulate::{closed_loop, Load};

    /// The formula and the simulation that stands for the drive agree, at the knee too.
    #[test]
    fn what_a_model_does_is_foretold() {
        for (spec, depth, io_bytes, op) in [
            ("d7-ps1010", 1, 4096, Op::RandRead),
            ("d7-ps1010", 64, 4096, Op::RandRead),
            ("d7-ps1010?drives=4", 1024, 4096, Op::RandRead),
            ("d7-ps1010", 8, 1 << 20, Op::Read),
            ("d7-ps1010", 16, 128 << 10, Op::Write),
        ] {
            let drive = DriveModel::parse(spec).unwrap();
            let job = JobSpec { depth, io_bytes, op, ..JobSpec::default() };
            let load = Load { depth, io_bytes, op, duration_s: 0.2, ..Load::default() };
            let (reported, seen) = (iops(&job, &drive, depth), closed_loop(&drive, &load).unwrap().iops());
            assert!((reported / seen - 1.0).abs() < 0.15, "{spec} {depth} {io_bytes}: {reported} {seen}");
        }
    }
}
