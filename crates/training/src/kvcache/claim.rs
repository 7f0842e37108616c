//! Claim to a source without files: the first record of its log says which run has it, and counts up while that run lives.
//! Of a fabric's namespace no lock is known, so that another run watches the count: one that was killed stands still.

use forebay_model::Error;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

const MAGIC: &[u8; 8] = b"FBCLAIM\0";
const VERSION: u32 = 1;
const HOST_BYTES: usize = 64;
const BOOT_BYTES: usize = 36;
pub(super) const CLAIM_BYTES: usize = 4096;
/// Interval at which the count rises, and for how long another run watches it.
const BEAT: Duration = Duration::from_secs(1);
pub(super) const WATCHED: Duration = Duration::from_secs(5);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    pub run: String,
    /// 0: the run has let go of the source.
    pub beat: u64,
    process: u64,
    begun_s: u64,
    host: String,
    home: Home,
}

/// The kernel's boot, and the namespace of processes: where both are one's own, a process's number can be looked up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Home {
    boot: String,
    processes: u64,
}

impl Home {
    fn here() -> Home {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let space = std::fs::metadata("/proc/self/ns/pid").map_or(0, |found| found.ino());
        Home { boot: boot.trim().to_string(), processes: space }
    }

    fn is_known(&self) -> bool {
        !self.boot.is_empty() && self.processes != 0
    }
}

impl Claim {
    pub(super) fn new(run: &str, now_s: u64) -> Claim {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let process = u64::from(std::process::id());
        Claim { run: run.to_string(), beat: 1, process, begun_s: now_s, host, home: Home::here() }
    }

    /// Its process was one of this machine, and is gone.
    pub(super) fn is_dead(&self) -> bool {
        let own = Home::here();
        own.is_known() && own == self.home && !Path::new(&format!("/proc/{}", self.process)).exists()
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut body = self.run.as_bytes().to_vec();
        body.extend([self.beat, self.process, self.begun_s].into_iter().flat_map(u64::to_le_bytes));
        for (text, bytes) in [(&self.host, HOST_BYTES), (&self.home.boot, BOOT_BYTES)] {
            body.extend(text.bytes().chain(std::iter::repeat(0)).take(bytes));
        }
        body.extend(self.home.processes.to_le_bytes());
        body.resize(CLAIM_BYTES - 16, 0);
        let mut record = MAGIC.to_vec();
        record.extend(VERSION.to_le_bytes());
        record.extend(crc32c::crc32c(&body).to_le_bytes());
        record.extend(body);
        record
    }

    /// The claim in a record; None where it is none, or isn't whole.
    pub(super) fn parse(record: &[u8]) -> Option<Claim> {
        let u32_at = |at: usize| Some(u32::from_le_bytes(record.get(at..at + 4)?.try_into().ok()?));
        let u64_at = |at: usize| Some(u64::from_le_bytes(record.get(at..at + 8)?.try_into().ok()?));
        let is_claim = record.get(..8)? == MAGIC && u32_at(8)? == VERSION;
        if !is_claim || u32_at(12)? != crc32c::crc32c(record.get(16..CLAIM_BYTES)?) {
            return None;
        }
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end_matches('\0').to_string();
        Some(Claim {
            run: text(&record[16..32]),
            beat: u64_at(32)?,
            process: u64_at(40)?,
            begun_s: u64_at(48)?,
            host: text(&record[56..120]),
            home: Home { boot: text(&record[120..156]), processes: u64_at(156)? },
        })
    }

    /// What another run is told of this one.
    pub(super) fn refusal(&self, dir: &str, now_s: u64) -> Error {
        let age = now_s.saturating_sub(self.begun_s);
        let found = format!(
            "another run has it: process {} on {}, begun {age} s ago by that host's clock",
            self.process, self.host
        );
        Error::machine(
            format!("--dir {dir}"),
            found,
            "another source; or the same command once that run is over",
        )
    }

    /// What a run is told that finds this claim in the place of its own.
    pub(super) fn taken_over(&self, dir: &str) -> Error {
        let found = format!("process {} on {} took it over, and writes there too", self.process, self.host);
        Error::run(format!("--dir {dir}"), found, "one run at a time on a source")
    }
}

/// The pulse of a run's own claim.
#[derive(Debug)]
pub(super) struct Pulse {
    pub claim: Claim,
    next: Instant,
}

impl Pulse {
    pub(super) fn new(claim: Claim, now: Instant) -> Pulse {
        Pulse { claim, next: now + BEAT }
    }

    /// True once an interval, when the count is to rise.
    pub(super) fn is_due(&mut self, now: Instant) -> bool {
        let is_due = now >= self.next;
        if is_due {
            self.next = now + BEAT;
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_is_read_as_it_was_written_and_half_of_one_is_none() {
        let (run, host) = ("0123456789abcdef".to_string(), "h".to_string());
        let claim = Claim { run, beat: 7, process: 9, begun_s: 100, host, home: Home::here() };
        let record = claim.to_bytes();
        assert_eq!((record.len(), Claim::parse(&record)), (CLAIM_BYTES, Some(claim.clone())));
        let long = Claim { host: "h".repeat(100), ..claim.clone() };
        assert_eq!(Claim::parse(&long.to_bytes()).unwrap().host.len(), HOST_BYTES);
        for at in [0, 8, 12, 20, 40, 4095] {
            let mut damaged = record.clone();
            damaged[at] ^= 1;
            assert_eq!(Claim::parse(&damaged), None, "{at}");
        }
        assert_eq!(Claim::parse(&record[..4000]), None);
        assert!(Claim { process: u64::from(u32::MAX), ..claim.clone() }.is_dead());
        assert!(!Claim::new("0123456789abcdef", 1).is_dead());
        assert!(!Claim { process: u64::from(u32::MAX), home: Home::default(), ..claim.clone() }.is_dead());
        assert!(claim.refusal("d", 130).to_string().contains("process 9 on h, begun 30 s ago"));
    }
}
