//! Client headroom: the difference between a measurement of storage and one of the machine that asks it.

use super::run_state::{Totals, Waited};
use forebay_model::training::record::Headroom;

/// Accelerators computed for all but this share of their time: nobody set a pace.
const WAITED_PCT: f64 = 1.0;
/// Share of the accelerators' waiting time from which on the client is to blame.
const CLIENT_SHARE: f64 = 0.5;
/// Share of the workers' time, on or before a processor, that is spent waiting for one.
const QUEUED_PCT: f64 = 10.0;

/// Observations that the judgement is based on.
pub(crate) struct Seen {
    pub workers: u32,
    pub seconds: f64,
    pub totals: Totals,
    pub waited: Waited,
    pub cores_busy: Option<f64>,
    pub others_cores_busy: Option<f64>,
    /// Share of the accelerators' time in which they don't compute.
    pub waited_pct: f64,
    /// A rate was asked for, or a model took part: neither is the client.
    pub is_paced: bool,
}

pub(crate) fn judge(seen: &Seen) -> Headroom {
    let Totals { cpu_ns, queued_ns, .. } = seen.totals;
    let Waited { storage, parse, cpu } = seen.waited;
    let all_ns = seen.seconds * 1e9 * f64::from(seen.workers.max(1));
    let busy = if all_ns > 0.0 { (100.0 * (cpu_ns + queued_ns) as f64 / all_ns).min(100.0) } else { 0.0 };
    let queued = 100.0 * queued_ns as f64 / ((cpu_ns + queued_ns) as f64).max(1.0);
    let all = storage + parse + cpu;
    let share = |part: f64| if all > 0.0 { part / all } else { 0.0 };
    let client = share(parse + cpu);
    let (client_limited, why) = if seen.waited_pct < WAITED_PCT {
        let free = 100.0 - busy;
        (false, format!("accelerators hardly waited, and the workers had {free:.0} % of their time to spare"))
    } else if seen.is_paced {
        (false, format!("the supply was limited to a rate; the workers were busy {busy:.0} % of the time"))
    } else if client < CLIENT_SHARE {
        let storage = 100.0 * share(storage);
        (false, format!("{storage:.0} % of the accelerators' waiting time was for storage; the workers were busy {busy:.0} % of the time"))
    } else {
        let (parse, cpu) = (100.0 * share(parse), 100.0 * share(cpu));
        let others = seen.others_cores_busy.filter(|cores| *cores > 0.05);
        let others = others
            .map_or(String::new(), |cores| format!(", while other processes kept {cores:.1} cores busy"));
        let starved = match queued >= QUEUED_PCT {
            true => format!("; the {} workers waited for a processor {queued:.0} % of the time that they wanted one{others}", seen.workers),
            false => String::new(),
        };
        (true, format!("{parse:.0} % of the accelerators' waiting time was for parsing and {cpu:.0} % for copying and processors{starved}"))
    };
    Headroom { cores_busy: seen.cores_busy, workers_busy_pct: Some(busy), client_limited, why }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(waited: Waited, queued: u64, waited_pct: f64) -> Seen {
        let totals = Totals { cpu_ns: 1000, queued_ns: queued, ..Totals::default() };
        Seen {
            workers: 2,
            seconds: 1e-6,
            totals,
            waited,
            cores_busy: Some(1.9),
            others_cores_busy: Some(0.7),
            waited_pct,
            is_paced: false,
        }
    }

    // promise: TRA-10
    #[test]
    fn a_client_that_is_full_is_told_from_storage_that_is_slow() {
        let by_hand = Waited { storage: 10.0, parse: 20.0, cpu: 70.0 };
        let full = judge(&seen(by_hand, 50, 20.0));
        assert!(
            full.client_limited
                && full.why.contains("20 % of the accelerators' waiting time was for parsing and 70 %"),
            "{}",
            full.why
        );
        assert!(!full.why.contains("0.7 cores"), "{}", full.why);
        let slow = judge(&seen(Waited { storage: 90.0, parse: 5.0, cpu: 5.0 }, 50, 20.0));
        assert!(
            !slow.client_limited && slow.why.contains("90 %") && slow.why.contains("for storage"),
            "{}",
            slow.why
        );
        let easy = judge(&seen(by_hand, 50, 0.1));
        assert!(!easy.client_limited && easy.why.contains("hardly waited"), "{}", easy.why);
        let starved = judge(&seen(by_hand, 900, 20.0));
        assert!(starved.client_limited && starved.why.contains("0.7 cores busy"), "{}", starved.why);
        let paced = judge(&Seen { is_paced: true, ..seen(by_hand, 50, 20.0) });
        assert!(!paced.client_limited && paced.why.contains("rate"), "{}", paced.why);
    }
}
