//! The processor time of a run, and the figures derived from it.

use crate::schema::record;
use crate::units::BYTES_PER_GIB;

record! {
    pub struct Cpu {
        /// CPU time of this process and its threads in user mode. Null, like all fields of `cpu`, if the meters covered
        /// another time than the run.
        pub user_s: Option<f64> = "s, or null";
        /// The same in the kernel.
        pub system_s: Option<f64> = "s, or null";
        /// (user + system) / seconds, of this process and its threads.
        pub cores_busy: Option<f64> = "cores, or null";
        /// Per cent of all cores of the machine, this process.
        pub user_pct: Option<f64> = "%, or null";
        /// Likewise, in the kernel.
        pub system_pct: Option<f64> = "%, or null";
        /// User and system time per GiB moved.
        pub cpu_s_per_gib: Option<f64> = "CPU-seconds per GiB, or null";
        /// User and system time per I/O.
        pub ns_per_io: Option<f64> = "ns, or null";
        /// The whole machine over the same seconds, in cores (irq and softirq included).
        pub machine_cores_busy: Option<f64> = "cores, or null";
        /// Cores kept busy by other processes and kernel threads.
        pub others_cores_busy: Option<f64> = "cores, or null";
    }
}

impl Cpu {
    /// Returns the figures that follow from `user_s` and `system_s`, spent within `seconds` in which `bytes` and `ios`
    /// went through, on `cores`: none, where either isn't known. The machine's fields are left to the caller.
    pub fn spent(
        (user_s, system_s): (Option<f64>, Option<f64>),
        seconds: f64,
        (bytes, ios): (u64, u64),
        cores: f64,
    ) -> Cpu {
        let total_s = user_s.zip(system_s).map(|(user, system)| user + system);
        let per = |value: f64, base: f64| if base > 0.0 { value / base } else { 0.0 };
        let share = |s: f64| per(100.0 * s, seconds * cores);
        Cpu {
            user_s,
            system_s,
            cores_busy: total_s.map(|s| per(s, seconds)),
            user_pct: user_s.map(share),
            system_pct: system_s.map(share),
            cpu_s_per_gib: total_s.filter(|_| bytes > 0).map(|s| s / (bytes as f64 / BYTES_PER_GIB)),
            ns_per_io: total_s.filter(|_| ios > 0).map(|s| s * 1e9 / ios as f64),
            machine_cores_busy: None,
            others_cores_busy: None,
        }
    }

    /// Each by its name in a record.
    pub fn fields(&self) -> [(&'static str, Option<f64>); 9] {
        [
            ("user_s", self.user_s),
            ("system_s", self.system_s),
            ("cores_busy", self.cores_busy),
            ("user_pct", self.user_pct),
            ("system_pct", self.system_pct),
            ("cpu_s_per_gib", self.cpu_s_per_gib),
            ("ns_per_io", self.ns_per_io),
            ("machine_cores_busy", self.machine_cores_busy),
            ("others_cores_busy", self.others_cores_busy),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise: REC-8
    #[test]
    fn time_that_no_meter_covered_is_nothing_and_never_zero() {
        for spent in [(None, None), (Some(1.0), None), (None, Some(1.0))] {
            let cpu = Cpu::spent(spent, 0.4, (1 << 30, 1024), 2.0);
            assert_eq!((cpu.cores_busy, cpu.cpu_s_per_gib, cpu.ns_per_io), (None, None, None), "{spent:?}");
            assert_eq!((cpu.user_s, cpu.user_pct.is_some()), (spent.0, spent.0.is_some()));
            assert_eq!((cpu.system_s, cpu.system_pct.is_some()), (spent.1, spent.1.is_some()));
        }
        assert_eq!(Cpu::spent((None, None), 0.4, (1, 1), 2.0), Cpu::default());
    }

    #[test]
    fn shares_are_of_the_seconds_and_costs_of_what_was_moved() {
        let cpu = Cpu::spent((Some(4.0), Some(6.0)), 10.0, (5 << 30, 1_000_000), 8.0);
        assert_eq!((cpu.cores_busy, cpu.user_pct, cpu.system_pct), (Some(1.0), Some(5.0), Some(7.5)));
        assert_eq!((cpu.cpu_s_per_gib, cpu.ns_per_io), (Some(2.0), Some(10_000.0)));
        let names: Vec<_> = cpu.fields().iter().map(|(name, _)| *name).collect();
        let Ok(serde_json::Value::Object(written)) = serde_json::to_value(&cpu) else { panic!("no object") };
        assert!(
            written.len() == names.len() && names.iter().all(|name| written.contains_key(*name)),
            "{written:?}"
        );
        let idle = Cpu::spent((Some(0.0), Some(0.0)), 0.0, (0, 0), 0.0);
        assert_eq!((idle.cores_busy, idle.cpu_s_per_gib, idle.ns_per_io), (Some(0.0), None, None));
    }
}
