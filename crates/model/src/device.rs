//! Models of drives, for `model:NAME?key=value&…`.
//!
//! A command passes a bandwidth server, one per drive (service: overhead + bytes /
//! bandwidth), and then a delay, of which a drive can hold `channels` reads at a
//! time. So n commands in flight make a closed network: throughput rises as
//! n / (latency + service), bends, and ends at the bandwidth or at channels /
//! latency. Larger I/Os travel as commands of `command_bytes`.
//!
//! Constants come from the data sheet alone, by one rule for all drives: bandwidth is the sequential figure; latency
//! is that of the class of drive where the sheet gives none; channels = random-read IOPS × read latency (Little's
//! law: the fewest that reach the figure, the latency rounded to whole channels); a random write holds the server for
//! at least 1 / random-write IOPS (data sheets say nothing above 4 KiB, so random writes of large blocks are
//! predicted optimistically).
//!
//! Accuracy: of the six published local reads of a D7-PS1010 (64k, 512k, 4m; two paths), to which no constant was
//! fitted, the mean absolute error is 2.8 %, the worst 9.1 % (64k, too high). `tests/all/simulate.rs` checks it.

mod presets;
mod timeline;

use crate::job::Op;
use crate::units::parse_bytes;
use crate::Error;
use serde::{Deserialize, Serialize};
pub use timeline::Timeline;

/// One kind of drive, `drives` of it as a stripe. None: not known.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DriveModel {
    pub name: String,
    /// Number of drives, in a stripe of `command_bytes`.
    pub drives: u32,
    /// Read bandwidth of each drive; all fields below are per drive, too.
    pub read_bandwidth_bytes_s: f64,
    pub write_bandwidth_bytes_s: Option<f64>,
    /// At 4 KiB.
    pub rand_read_iops: Option<f64>,
    /// At 4 KiB, sustained.
    pub rand_write_iops: Option<f64>,
    /// Mean latency of one command on an idle drive, excluding the transfer.
    pub read_latency_s: f64,
    pub write_latency_s: f64,
    /// Reads that can overlap their latency. None: unlimited.
    pub channels: Option<u32>,
    /// Larger I/Os are split into commands of this size.
    pub command_bytes: u64,
    /// Fixed time of a command on the bandwidth server, in addition to its transfer.
    pub command_overhead_s: f64,
    /// Origin of bandwidth and IOPS.
    pub source: String,
    /// Origin of the latencies.
    pub latency_source: String,
}

/// A constant of a model with its origin, for records and plans.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Parameter {
    pub name: &'static str,
    pub value: Option<f64>,
    pub unit: &'static str,
    pub source: String,
}

/// More concurrent reads than any drive supports: limits the memory of a model.
const CHANNELS_MAX: u32 = 1 << 14;

impl DriveModel {
    /// Keys that may follow the name.
    pub const KEYS: [&'static str; 10] = [
        "drives",
        "latency_us",
        "write_latency_us",
        "read_mb_s",
        "write_mb_s",
        "read_iops",
        "write_iops",
        "channels",
        "command",
        "overhead_us",
    ];

    /// Names that can be modelled.
    pub fn names() -> Vec<&'static str> {
        presets::SHEETS.iter().map(|s| s.name).collect()
    }

    /// Reads `NAME` or `NAME?key=value&key=value`, what follows `model:`. MB are decimal, as in data sheets.
    pub fn parse(text: &str) -> Result<DriveModel, Error> {
        let (name, query) = text.split_once('?').unwrap_or((text, ""));
        let sheet = presets::SHEETS.iter().find(|s| s.name.eq_ignore_ascii_case(name)).ok_or_else(|| {
            let names = Self::names().join(", ");
            Error::request(format!("model:{name}"), "is not a known drive", format!("one of {names}"))
        })?;
        let mut model = sheet.model();
        let mut channels = None;
        for pair in query.split('&').filter(|p| !p.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            if key == "channels" {
                channels = Some(whole(text, key, value, CHANNELS_MAX)?);
            } else {
                model.set(text, key, value)?;
            }
        }
        match channels {
            Some(_) => model.channels = channels,
            None => model.fit_channels(),
        }
        Ok(model)
    }

    fn set(&mut self, text: &str, key: &str, value: &str) -> Result<(), Error> {
        let given = format!("given: {key}={value}");
        match key {
            "drives" => self.drives = whole(text, key, value, 1024)?,
            "latency_us" => self.read_latency_s = number(text, key, value, 0.0, 1e7)? / 1e6,
            "write_latency_us" => self.write_latency_s = number(text, key, value, 0.0, 1e7)? / 1e6,
            "read_mb_s" => self.read_bandwidth_bytes_s = number(text, key, value, 1e-3, 1e9)? * 1e6,
            "write_mb_s" => self.write_bandwidth_bytes_s = Some(number(text, key, value, 1e-3, 1e9)? * 1e6),
            "read_iops" => self.rand_read_iops = Some(number(text, key, value, 1e-3, 1e12)?),
            "write_iops" => self.rand_write_iops = Some(number(text, key, value, 1e-3, 1e12)?),
            "overhead_us" => self.command_overhead_s = number(text, key, value, 0.0, 1e7)? / 1e6,
            "command" => self.command_bytes = command_bytes(text, value)?,
            _ => {
                let keys = Self::KEYS.join(", ");
                return Err(Error::request(
                    format!("model:{text}"),
                    format!("has no key '{key}'"),
                    format!("one of {keys}"),
                ));
            }
        }
        let of_latency = key.ends_with("latency_us");
        let note = if of_latency { &mut self.latency_source } else { &mut self.source };
        note.push_str("; ");
        note.push_str(&given);
        Ok(())
    }

    /// Little's law: the fewest reads at once that reach the data sheet's IOPS. Channels
    /// are whole, so the latency gives way, by less than one channel's share. Where so many
    /// can't be had, the IOPS give way: a latency that was asked for is no bound to be bent.
    fn fit_channels(&mut self) {
        let Some(iops) = self.rand_read_iops else {
            return;
        };
        let wanted = (iops * self.read_latency_s - 1e-6).ceil().max(1.0);
        let channels = wanted.min(f64::from(CHANNELS_MAX));
        self.channels = Some(channels as u32);
        if channels == wanted {
            self.read_latency_s = channels / iops;
        }
    }

    /// Refuses an operation whose rate isn't in the data sheet.
    pub fn check(&self, op: Op) -> Result<(), Error> {
        let (unknown, what, key) = match op {
            Op::Read => (false, "", ""),
            Op::RandRead => (self.rand_read_iops.is_none(), "random-read IOPS", "read_iops=1000000"),
            Op::Write => (self.write_bandwidth_bytes_s.is_none(), "write bandwidth", "write_mb_s=4000"),
            Op::RandWrite if self.write_bandwidth_bytes_s.is_none() => {
                (true, "write bandwidth", "write_mb_s=4000&write_iops=200000")
            }
            Op::RandWrite => (self.rand_write_iops.is_none(), "random-write IOPS", "write_iops=200000"),
        };
        if !unknown {
            return Ok(());
        }
        let found = format!("its {what} has not been published");
        Err(Error::request(format!("model:{}", self.name), found, format!("model:{}?{key}", self.name)))
    }

    /// Mean seconds that one command of `bytes` holds its drive's bandwidth server.
    pub fn service_s(&self, op: Op, bytes: u64) -> f64 {
        self.rate(op).service_s(bytes)
    }

    fn rate(&self, op: Op) -> Rate {
        let bandwidth = match op.is_write() {
            false => self.read_bandwidth_bytes_s,
            true => self.write_bandwidth_bytes_s.unwrap_or(self.read_bandwidth_bytes_s),
        };
        let least = self.rand_write_iops.filter(|_| op == Op::RandWrite).map_or(0.0, |iops| 1.0 / iops);
        Rate {
            overhead_s: self.command_overhead_s,
            s_per_byte: 1.0 / bandwidth,
            service_least_s: least,
            latency_s: if op.is_write() { self.write_latency_s } else { self.read_latency_s },
        }
    }

    /// All constants with their origin.
    pub fn parameters(&self) -> Vec<Parameter> {
        let rows: [(&str, Option<f64>, &str, &str); 9] = [
            ("drives", Some(f64::from(self.drives)), "", "the URI, else 1"),
            ("read_bandwidth", Some(self.read_bandwidth_bytes_s / 1e6), "MB/s", &self.source),
            ("write_bandwidth", self.write_bandwidth_bytes_s.map(|b| b / 1e6), "MB/s", &self.source),
            ("rand_read_iops", self.rand_read_iops, "1/s", &self.source),
            ("rand_write_iops", self.rand_write_iops, "1/s", &self.source),
            ("read_latency", Some(self.read_latency_s * 1e6), "us", &self.latency_source),
            ("write_latency", Some(self.write_latency_s * 1e6), "us", &self.latency_source),
            ("channels", self.channels.map(f64::from), "", "given, or random-read IOPS x read latency"),
            (
                "command",
                Some(self.command_bytes as f64),
                "bytes",
                "given, or 128 KiB, the usual largest transfer",
            ),
        ];
        rows.into_iter()
            .map(|(name, value, unit, source)| Parameter { name, value, unit, source: source.to_string() })
            .collect()
    }
}

/// The means of one operation's commands.
#[derive(Clone, Copy, Debug)]
struct Rate {
    overhead_s: f64,
    s_per_byte: f64,
    service_least_s: f64,
    latency_s: f64,
}

impl Rate {
    #[inline]
    fn service_s(&self, bytes: u64) -> f64 {
        (self.overhead_s + bytes as f64 * self.s_per_byte).max(self.service_least_s)
    }
}

fn number(text: &str, key: &str, value: &str, least: f64, most: f64) -> Result<f64, Error> {
    value.parse::<f64>().ok().filter(|v| (least..=most).contains(v)).ok_or_else(|| {
        let found = format!("{key}={value} is not a number from {least} to {most}");
        Error::request(format!("model:{text}"), found, format!("{key}=100"))
    })
}

fn whole(text: &str, key: &str, value: &str, most: u32) -> Result<u32, Error> {
    value.parse::<u32>().ok().filter(|v| (1..=most).contains(v)).ok_or_else(|| {
        let found = format!("{key}={value} is not a whole number from 1 to {most}");
        Error::request(format!("model:{text}"), found, format!("{key}=2"))
    })
}

fn command_bytes(text: &str, value: &str) -> Result<u64, Error> {
    parse_bytes(value).ok().filter(|b| (512..=1 << 30).contains(b)).ok_or_else(|| {
        let found = format!("command={value} is not a size from 512 to 1g");
        Error::request(format!("model:{text}"), found, "command=128k")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_reads_with_bounds_that_make_sense() {
        for name in DriveModel::names() {
            let model = DriveModel::parse(name).unwrap();
            assert_eq!(model.name, name);
            assert!(model.read_bandwidth_bytes_s > 1e8 && model.read_latency_s > 1e-6, "{name}");
            assert!(!model.source.is_empty() && !model.latency_source.is_empty());
            let little = model.rand_read_iops.map(|iops| iops * model.read_latency_s);
            assert_eq!(little.map(|l| l.round() as u32), model.channels, "{name}");
        }
    }

    #[test]
    fn keys_override_and_are_noted_as_given() {
        let model = DriveModel::parse("D7-PS1010?drives=2&latency_us=80&command=64k&write_mb_s=100").unwrap();
        assert_eq!((model.drives, model.command_bytes), (2, 65536));
        assert!((model.read_latency_s - 80e-6).abs() < 1e-12);
        assert_eq!(model.write_bandwidth_bytes_s, Some(1e8));
        // The data sheet's IOPS still hold, so a slower read needs more of them at once.
        assert_eq!(model.channels, Some(224));
        assert!(model.latency_source.ends_with("given: latency_us=80"));
        assert_eq!(DriveModel::parse("d7-ps1010?channels=9&latency_us=80").unwrap().channels, Some(9));
        // More reads at once than there can be: the latency stays what was asked for.
        let slow = DriveModel::parse("gen5-ideal?latency_us=1000").unwrap();
        assert_eq!((slow.read_latency_s, slow.channels), (1e-3, Some(CHANNELS_MAX)));
    }

    #[test]
    fn unknown_names_keys_and_values_are_named_with_what_would_do() {
        let cases = [
            ("d9", "d9", "d7-ps1010"),
            ("d7-ps1010?drive=2", "'drive'", "drives"),
            ("d7-ps1010?drives=0", "drives=0", "drives=2"),
            ("d7-ps1010?latency_us=nan", "latency_us=nan", "latency_us="),
            ("d7-ps1010?latency_us", "latency_us=", "latency_us="),
            ("d7-ps1010?read_mb_s=-1", "read_mb_s=-1", "read_mb_s="),
            ("d7-ps1010?command=1", "command=1", "command=128k"),
        ];
        for (text, named, next) in cases {
            let error = DriveModel::parse(text).unwrap_err();
            assert!(error.to_string().contains(named) && error.next.contains(next), "{text}: {error}");
        }
    }

    #[test]
    fn what_the_sheet_does_not_say_is_refused_not_guessed() {
        let model = DriveModel::parse("d7-p5520").unwrap();
        assert!(model.check(Op::Read).is_ok());
        let error = model.check(Op::RandWrite).unwrap_err();
        assert!(error.next.contains("write_iops="), "{error}");
        let given = DriveModel::parse("d7-p5520?write_iops=200000&read_iops=1000000").unwrap();
        assert!(given.check(Op::RandWrite).is_ok() && given.check(Op::RandRead).is_ok());
    }

    #[test]
    fn parameters_keep_the_unknown_null() {
        let parameters = DriveModel::parse("d7-p5520").unwrap().parameters();
        let iops = parameters.iter().find(|p| p.name == "rand_read_iops").unwrap();
        assert_eq!(iops.value, None);
        assert!(parameters.iter().all(|p| !p.source.is_empty()));
    }
}
