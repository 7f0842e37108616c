//! RAPL: energy counters of processor packages and their memory, by the kernel's powercap
//! tree (Documentation/power/powercap/powercap.rst). Intel's, and since Linux 5.8 AMD's.

use super::{Found, Meter, Pace, Sample};
use crate::meter::Reason;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

pub(crate) const POWERCAP: &str = "/sys/class/powercap";

/// Finds the zones in a tree that looks like /sys/class/powercap: each package, `psys`
/// where there is one, and `dram`, which no package includes. Zones within a package's
/// count (`core`, `uncore`) and the same package by another way (`intel-rapl-mmio`) stay out.
pub fn open_rapl(powercap: &Path) -> Result<Found, Reason> {
    let listed = fs::read_dir(powercap)
        .map_err(|e| format!("{}: {e}; a virtual machine has none as a rule", powercap.display()))?;
    let mut zones: Vec<String> = listed
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.starts_with("intel-rapl:"))
        .collect();
    zones.sort();
    let mut found = Found { meters: Vec::new(), refused: Vec::new() };
    for zone in zones {
        let Some(scope) = scope(powercap, &zone) else { continue };
        match Zone::open(&powercap.join(&zone), scope.clone()) {
            Ok(zone) => found.meters.push(Box::new(zone)),
            Err(reason) => found.refused.push((format!("rapl:{scope}"), reason)),
        }
    }
    Found::or_reason(found, "the kernel offers no RAPL zone: modprobe intel_rapl_msr")
}

/// The scope of a zone; None if it isn't to be counted.
fn scope(powercap: &Path, zone: &str) -> Option<String> {
    let name = |zone: &str| {
        let text = fs::read_to_string(powercap.join(zone).join("name")).ok()?;
        Some(text.trim().chars().take(40).collect::<String>())
    };
    let own = name(zone)?;
    match zone.rsplit_once(':') {
        Some(("intel-rapl", _)) => Some(own),
        Some((parent, _)) if own == "dram" => Some(format!("{}/dram", name(parent)?)),
        _ => None,
    }
}

struct Zone {
    scope: String,
    file: PathBuf,
    counter: Counter,
}

impl Zone {
    fn open(folder: &Path, scope: String) -> Result<Zone, Reason> {
        let file = folder.join("energy_uj");
        let now_uj = read_uj(&file)?;
        let range_uj = read_uj(&folder.join("max_energy_range_uj"))?;
        Ok(Zone { scope, file, counter: Counter::new(now_uj, range_uj) })
    }
}

impl Meter for Zone {
    fn source(&self) -> &'static str {
        "rapl"
    }

    fn scope(&self) -> &str {
        &self.scope
    }

    fn sample(&mut self) -> Result<Sample, Reason> {
        let total_uj = self.counter.advance(read_uj(&self.file)?)?;
        Ok(Sample::Joules(total_uj as f64 / 1e6))
    }

    fn pace(&self) -> Pace {
        Pace::Quick
    }
}

/// Unwraps a counter that starts over after `range`. Right as long as it is read at least
/// once a turn, the shortest of which takes minutes.
#[derive(Clone, Debug)]
pub(crate) struct Counter {
    last: u64,
    range: u64,
    total: u64,
}

impl Counter {
    pub(crate) fn new(now: u64, range: u64) -> Counter {
        Counter { last: now, range, total: 0 }
    }

    /// The sum since `new`.
    pub(crate) fn advance(&mut self, now: u64) -> Result<u64, Reason> {
        let step = match now.checked_sub(self.last) {
            Some(step) => step,
            None => {
                self.range.checked_sub(self.last).map(|rest| rest.saturating_add(now)).ok_or_else(|| {
                    format!(
                        "the counter fell from {} to {now} though it reaches {} only",
                        self.last, self.range
                    )
                })?
            }
        };
        self.last = now;
        self.total = self.total.saturating_add(step);
        Ok(self.total)
    }
}

fn read_uj(file: &Path) -> Result<u64, Reason> {
    let text = fs::read_to_string(file).map_err(|e| unreadable(file, &e))?;
    parse_uj(&text).map_err(|found| format!("{}: {found}", file.display()))
}

/// Since Linux 5.10 the counters are for root: fine readings tell secrets of other programs.
fn unreadable(file: &Path, error: &io::Error) -> Reason {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            format!("{0} is for root only: run as root, or sudo chmod a+r {0}", file.display())
        }
        _ => format!("{}: {error}", file.display()),
    }
}

/// Microjoules, as powercap writes them.
pub(crate) fn parse_uj(text: &str) -> Result<u64, Reason> {
    let shown: String = text.trim().chars().take(40).collect();
    text.trim().parse().map_err(|_| format!("'{shown}' is no count of microjoules"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_counter_that_fell_from_beyond_its_range_is_an_error() {
        let mut counter = Counter::new(500, 100);
        assert!(counter.advance(10).unwrap_err().contains("fell from 500"));
    }

    #[test]
    fn a_file_for_root_only_says_what_to_type() {
        let denied = io::Error::from_raw_os_error(libc::EACCES);
        let reason = unreadable(Path::new("/sys/class/powercap/intel-rapl:0/energy_uj"), &denied);
        assert!(reason.ends_with("sudo chmod a+r /sys/class/powercap/intel-rapl:0/energy_uj"), "{reason}");
    }

    proptest! {
        #[test]
        fn wrapping_changes_no_sum(
            start in 0u64..1000, steps in prop::collection::vec(0u64..1000, 1..60),
        ) {
            let range = 1000;
            let mut counter = Counter::new(start, range);
            let (mut at, mut sum) = (start, 0);
            for step in steps {
                sum += step;
                at += step;
                // The value `range` itself is shown before the counter starts over.
                if at > range { at -= range; }
                prop_assert_eq!(counter.advance(at), Ok(sum));
            }
        }

        #[test]
        fn any_text_is_microjoules_or_a_reason(text in "\\PC{0,60}") {
            let _ = parse_uj(&text);
        }

        #[test]
        fn a_count_is_read_back(count: u64) {
            prop_assert_eq!(parse_uj(&format!("{count}\n")), Ok(count));
        }
    }
}
