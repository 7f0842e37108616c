//! The prediction for a modelled drive in real time: the same job on the same model in virtual time.
//!
//! `host_capacity` refuses models that are far too fast for this host. A host whose threads only wake up late gets less out
//! of a model than predicted, by a quarter if little is in flight, and no short trial shows by how much. So each run
//! is compared with its prediction when it is over, and reports the deviation.

use super::host_capacity;
use super::run_kit::Ran;
use forebay_model::device::DriveModel;
use forebay_model::job::{Arrivals, JobSpec, Sync, DURATION_DEFAULT_S};
use forebay_model::record::{Foretold, RunRecord};
use forebay_model::simulate::{closed_loop, Load};
use forebay_model::units::GIB;
use forebay_model::{warnings, Error};
use forebay_storage::SourcePlan;

/// Most commands that are simulated: this takes some tenths of a second.
const COMMANDS_MAX: f64 = 2e6;
/// Service times are random: with fewer commands than this, the result deviates by several per cent by chance.
const COMMANDS_LEAST: f64 = 4e3;
/// Commands over which random deviations even out; shorter simulations are repeated, at most `PLAYS_MAX` times:
/// 25 of `COMMANDS_LEAST` make `COMMANDS_EVEN`.
const COMMANDS_EVEN: f64 = 1e5;
const PLAYS_MAX: f64 = 25.0;
/// A shorter play stands for a longer run after so many rounds of what is in flight.
const ROUNDS: f64 = 20.0;
const FIELD: &str = "result.foretold";

/// Refuses `--require-model` where no law can be held against the run.
pub(crate) fn check(job: &JobSpec, plans: &[SourcePlan]) -> Result<(), Error> {
    // In virtual time a run is its law.
    if !job.require_model || plans.iter().all(SourcePlan::is_virtual) {
        return Ok(());
    }
    let law = Law::for_job(job, plans).and_then(|law| {
        let seconds = job.duration_s.unwrap_or(DURATION_DEFAULT_S) * f64::from(job.repeat);
        law.enough(seconds)
    });
    law.map_err(|why| Error::request("‹require_model›", why, "'model:d7-ps1010?time=real' ‹duration_s› 10"))
}

/// Holds the runs against their law, and says so in the record. The error is that of `--require-model`.
pub(crate) fn judge(
    job: &JobSpec,
    plans: &[SourcePlan],
    runs: &[Ran],
    record: &mut RunRecord,
) -> Option<Error> {
    let seconds: f64 = runs.iter().map(|r| r.seconds).sum();
    let reported = Law::for_job(job, plans).and_then(|law| {
        law.enough(seconds)?;
        law.iops(seconds / runs.len().max(1) as f64)
    });
    let asked = "‹require_model›";
    match reported {
        Ok(iops) => {
            let foretold = compare(record.result.iops, iops, job.io_bytes);
            record.result.foretold = Some(foretold);
            warnings::off_model(record)
                .filter(|_| job.require_model)
                .map(|w| Error::check(asked, w.text, w.next))
        }
        Err(why) => {
            record.missing.insert(FIELD.into(), why.clone());
            let found = format!("the run can't be compared with its model: {why}");
            (job.require_model && !record.result.interrupted)
                .then(|| Error::check(asked, found, "a longer ‹duration_s›"))
        }
    }
}

fn compare(iops: f64, reported: f64, io_bytes: u64) -> Foretold {
    Foretold {
        iops: reported,
        throughput_gib_s: reported * io_bytes as f64 / GIB as f64,
        off_pct: 100.0 * (iops / reported - 1.0),
    }
}

/// The model and the job of a prediction.
struct Law {
    drive: DriveModel,
    load: Load,
    warmup_s: f64,
    commands_per_io: f64,
    /// I/Os per second, roughly.
    about: f64,
    /// An open loop asks for no more I/Os per second.
    paced: f64,
}

impl Law {
    /// The law of the job's one model in real time, or why there is none.
    fn for_job(job: &JobSpec, plans: &[SourcePlan]) -> Result<Law, String> {
        let alone = match plans {
            [plan] => plan.timing.as_ref().filter(|timing| timing.real_time).map(|timing| (plan, timing)),
            _ => None,
        };
        let (drive, bytes) = match alone {
            Some((plan, timing)) => (timing.drive.clone(), plan.bytes),
            None if plans.iter().all(|plan| plan.modelled().is_empty()) => {
                return Err("no model in real time took part".into())
            }
            None => return Err("a model among other sources or members can't be simulated by itself".into()),
        };
        let unlike = [
            (job.ends_by_count(), "passes or a limit end the run, and the simulation ends by time"),
            (job.think_s.is_some(), "the workers pause, which isn't simulated in virtual time"),
            (job.skip_bytes != 0, "gaps between I/Os can't be simulated in virtual time"),
            (
                job.arrivals != Arrivals::Even,
                "the I/Os arrive irregularly, which isn't simulated in virtual time",
            ),
            (job.io_bytes_max.is_some(), "I/Os of several sizes can't be simulated in virtual time"),
            (job.faults.is_some(), "faults are injected, which the model doesn't have"),
            (
                job.distribution != "uniform" && drive.drives > 1,
                "in virtual time all drives get their equal share",
            ),
            (
                job.sync == Sync::End && job.writes(),
                "the time ends with a flush, which the model doesn't have",
            ),
        ];
        if let Some((_, why)) = unlike.into_iter().find(|(holds, _)| *holds) {
            return Err(why.into());
        }
        let load = Load {
            workers: job.workers,
            depth: job.depth,
            op: job.op,
            read_pct: job.read_pct,
            io_bytes: job.io_bytes,
            data_bytes: bytes.saturating_sub(job.start_bytes),
            seed: job.seed,
            ..Load::default()
        };
        let in_bytes = job.rate_gib_s.map(|r| r * GIB as f64 / job.io_bytes as f64);
        Ok(Law {
            warmup_s: job.warmup_seconds(),
            commands_per_io: job.io_bytes.div_ceil(drive.command_bytes).max(1) as f64,
            about: host_capacity::iops(job, &drive, job.workers * job.depth),
            paced: job.rate_iops.or(in_bytes).unwrap_or(f64::INFINITY),
            drive,
            load,
        })
    }

    /// Checks that so many seconds hold enough I/Os for chance to even out.
    fn enough(&self, seconds: f64) -> Result<(), String> {
        let commands = self.about.min(self.paced) * self.commands_per_io * seconds;
        if commands >= COMMANDS_LEAST {
            return Ok(());
        }
        Err(format!("{seconds:.1} s of about {commands:.0} commands are too few: they deviate by chance"))
    }

    /// I/Os per second of runs that measure for so long.
    fn iops(&self, seconds: f64) -> Result<f64, String> {
        let ios_max = COMMANDS_MAX / self.commands_per_io;
        let in_flight = f64::from(self.load.workers) * f64::from(self.load.depth);
        let whole = self.warmup_s + seconds;
        let (from, to) = match ios_max / self.about {
            enough if whole <= enough => (self.warmup_s, whole),
            shorter => (shorter / 10.0, shorter),
        };
        if to < whole && ios_max < ROUNDS * in_flight {
            return Err(format!("simulating {in_flight:.0} I/Os in flight for {whole:.0} s takes too long"));
        }
        let commands = self.about * self.commands_per_io * (to - from);
        let plays = (COMMANDS_EVEN / commands).clamp(1.0, PLAYS_MAX) as u64;
        let ios = (0..plays).map(|n| Ok(self.ios(n, to)? - self.ios(n, from)?)).sum::<Result<u64, Error>>();
        let ios = ios.map_err(|e| format!("the model can't be simulated: {}", e.found))?;
        Ok((ios as f64 / plays as f64 / (to - from)).min(self.paced))
    }

    /// I/Os that end within so many seconds of one play; those of a shorter time are among those of a longer.
    fn ios(&self, play: u64, seconds: f64) -> Result<u64, Error> {
        if seconds <= 0.0 {
            return Ok(0);
        }
        let seed = self.load.seed.wrapping_add(play);
        let load = Load { duration_s: seconds, interval_s: seconds.max(1e-3), seed, ..self.load.clone() };
        closed_loop(&self.drive, &load).map(|played| played.ios)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_model::job::Op;
    use forebay_storage::{examine, Purpose};

    fn planned(uri: &str) -> Vec<SourcePlan> {
        examine(&Purpose { sources: vec![uri.into()], ..Purpose::default() }).unwrap().plans
    }

    fn model(spec: &str) -> Vec<SourcePlan> {
        let joint = if spec.contains('?') { '&' } else { '?' };
        planned(&format!("model:{spec}{joint}time=real"))
    }

    fn job() -> JobSpec {
        JobSpec { op: Op::RandRead, io_bytes: 4096, depth: 4, duration_s: Some(2.0), ..JobSpec::default() }
    }

    #[test]
    fn what_is_foretold_is_what_virtual_time_does_in_the_measured_time() {
        let law = Law::for_job(&JobSpec { warmup_s: Some(0.5), ..job() }, &model("d7-ps1010")).unwrap();
        let load =
            |duration_s| Load { op: Op::RandRead, io_bytes: 4096, depth: 4, duration_s, ..Load::default() };
        let ios = |duration_s| closed_loop(&law.drive, &load(duration_s)).unwrap().ios as f64;
        assert_eq!(law.iops(2.0).unwrap(), (ios(2.5) - ios(0.5)) / 2.0);
    }

    // promise: BEN-19
    #[test]
    fn a_long_run_is_foretold_by_a_short_play() {
        let busy = JobSpec { depth: 64, workers: 2, io_bytes: 128 << 10, op: Op::Read, ..job() };
        let law = Law::for_job(&busy, &model("d7-ps1010")).unwrap();
        let (short, long) = (law.iops(1.0).unwrap(), law.iops(1e5).unwrap());
        assert!((short / long - 1.0).abs() < 0.01, "{short} {long}");
        let crowd = JobSpec { depth: 4096, workers: 64, ..busy };
        let law = Law::for_job(&crowd, &model("d7-ps1010")).unwrap();
        assert!(law.iops(1e5).unwrap_err().contains("262144 I/Os in flight"));
    }

    #[test]
    fn an_open_loop_is_held_to_what_it_asks_for() {
        let paced = JobSpec { rate_iops: Some(1234.0), ..job() };
        assert_eq!(Law::for_job(&paced, &model("d7-ps1010")).unwrap().iops(1.0).unwrap(), 1234.0);
        let paced = JobSpec { rate_gib_s: Some(4096.0 / GIB as f64), rate_iops: None, ..job() };
        assert_eq!(Law::for_job(&paced, &model("d7-ps1010")).unwrap().iops(1.0).unwrap(), 1.0);
    }

    #[test]
    fn what_has_no_law_says_why() {
        let of = |job: JobSpec, plans: &[SourcePlan]| Law::for_job(&job, plans).err().unwrap();
        assert!(of(job(), &planned("nil:")).contains("no model"));
        let stripe = planned("stripe:?chunk=64k&m=model:d7-ps1010%3Ftime=real");
        assert!(of(job(), &stripe).contains("among other sources"));
        assert!(of(JobSpec { passes: Some(1), ..job() }, &model("d7-ps1010")).contains("passes"));
        assert!(
            of(JobSpec { faults: Some("seed=1".into()), ..job() }, &model("d7-ps1010")).contains("faults")
        );
        let law = Law::for_job(&job(), &model("d7-ps1010?latency_us=100000&channels=1")).unwrap();
        assert!(law.enough(10.0).unwrap_err().contains("too few"));
    }

    // promise: BEN-19
    #[test]
    fn over_five_per_cent_is_said_in_either_direction() {
        let said = |iops| {
            let mut record = RunRecord::default();
            (record.result.iops, record.result.foretold) = (iops, Some(compare(iops, 1000.0, 4096)));
            warnings::off_model(&record).map(|w| w.text)
        };
        assert_eq!((said(951.0), said(1049.0)), (None, None));
        assert!(said(850.0).unwrap().contains("15 % fewer"));
        assert!(said(1100.0).unwrap().contains("10 % more"));
    }

    #[test]
    fn to_require_a_model_there_must_be_one() {
        let required = JobSpec { require_model: true, ..job() };
        assert!(check(&required, &model("d7-ps1010")).is_ok());
        assert!(check(&required, &planned("nil:")).unwrap_err().found.contains("no model"));
        let slow = model("d7-ps1010?latency_us=1000000&channels=1");
        assert!(check(&required, &slow).unwrap_err().found.contains("too few"));
        assert!(check(&JobSpec { require_model: false, ..required }, &slow).is_ok());
    }
}
