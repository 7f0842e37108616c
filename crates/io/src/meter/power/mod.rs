//! Power: watts of the processor, the GPUs or the whole server, from whoever can tell.
//!
//! | name | reads | covers |
//! |---|---|---|
//! | `rapl` | /sys/class/powercap | processor packages, their memory |
//! | `nvml` | libnvidia-ml.so.1, opened at run time | each GPU |
//! | `ipmi` | `ipmitool` | the server, by its own board |
//! | `redfish:HOST` | HTTPS to a management controller | the server |
//!
//! Energy counters are preferred to power readings: two readings of a counter say what
//! was used between them, however uneven it was.

pub(crate) mod ipmi;
pub(crate) mod nvml;
pub(crate) mod rapl;
pub(crate) mod redfish;
mod sampler;

pub use sampler::Sampler;

use super::Reason;
use forebay_model::Error;
use std::path::Path;
use std::time::Duration;

/// Reading of a meter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sample {
    /// Energy used since some fixed moment before the first sample. Never goes down.
    Joules(f64),
    /// Power about now, as the meter averages it.
    Watts(f64),
}

/// One thing whose power can be told. A meter is read by one thread at a time.
pub trait Meter: Send {
    /// `rapl`, `nvml`, `ipmi` or `redfish`.
    fn source(&self) -> &'static str;

    /// Scope of the meter: `package-0`, `gpu:0`, `server`.
    fn scope(&self) -> &str;

    /// Reads it. An error is of this reading; the next may succeed. Gives up within
    /// seconds, and within tens of milliseconds where `pace` is `Quick`.
    fn sample(&mut self) -> Result<Sample, Reason>;

    fn pace(&self) -> Pace;
}

/// Rate at which a meter is to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// At once, so that a reading can mark the moment at which a measurement begins or ends.
    Quick,
    /// Over a bus or a network: not more often than this.
    Slow(Duration),
}

/// A meter that can't be used, as it was asked for, and why.
pub(crate) type Refused = (String, Reason);

/// A meter as a user names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Name {
    Rapl,
    Nvml,
    Ipmi,
    Redfish(redfish::Address),
    /// No meter, not even what answers locally.
    None,
}

impl Name {
    pub fn parse(text: &str) -> Result<Name, Error> {
        match text.split_once(':') {
            None if text == "rapl" => Ok(Name::Rapl),
            None if text == "nvml" => Ok(Name::Nvml),
            None if text == "ipmi" => Ok(Name::Ipmi),
            None if text == "none" => Ok(Name::None),
            Some(("redfish", host)) => redfish::Address::parse(host, false).map(Name::Redfish),
            Some(("redfish+insecure", host)) => redfish::Address::parse(host, true).map(Name::Redfish),
            _ => Err(Error::request(
                format!("‹power› {}", without_login(text)),
                "no such power meter",
                "rapl, nvml, ipmi, redfish:HOST, redfish+insecure:HOST or none",
            )),
        }
    }
}

/// Opens the meters named, or with no names those that answer locally: RAPL and NVML.
/// Talks to the hardware, a board's in seconds. What can't be used is in the second list.
pub fn open_power_meters(names: &[String]) -> (Vec<Box<dyn Meter>>, Vec<Refused>) {
    let local = ["rapl".to_string(), "nvml".to_string()];
    let names = if names.is_empty() { &local[..] } else { names };
    let (mut meters, mut refused) = (Vec::new(), Vec::new());
    for name in names {
        let opened = Name::parse(name).map_err(|e| e.to_string()).and_then(|parsed| open_one(&parsed));
        match opened {
            Ok(found) => {
                meters.extend(found.meters);
                refused.extend(found.refused);
            }
            Err(reason) => refused.push((without_login(name).into(), reason)),
        }
    }
    (meters, refused)
}

/// A name that isn't valid may hold a password, which no message may repeat.
fn without_login(name: &str) -> &str {
    match name.contains('@') {
        true => name.split(':').next().filter(|kind| !kind.contains('@')).unwrap_or("meter"),
        false => name,
    }
}

/// The meters of one kind on this machine: at least one.
pub struct Found {
    pub meters: Vec<Box<dyn Meter>>,
    /// Parts that exist and can't be read.
    pub refused: Vec<Refused>,
}

impl Found {
    /// All of `found`, or where nothing was, the first reason against.
    fn or_reason(found: Found, nothing: &str) -> Result<Found, Reason> {
        match found.meters.is_empty() {
            false => Ok(found),
            true => Err(found.refused.into_iter().next().map_or_else(|| nothing.to_string(), |(_, why)| why)),
        }
    }
}

fn open_one(name: &Name) -> Result<Found, Reason> {
    match name {
        Name::Rapl => rapl::open_rapl(Path::new(rapl::POWERCAP)),
        Name::Nvml => nvml::open_nvml(Path::new(nvml::NVML_LIBRARY)),
        Name::Ipmi => ipmi::open_ipmi(&ipmi::ipmi_program()),
        Name::Redfish(address) => redfish::Address::open(address, redfish::Login::from_env()?),
        Name::None => Ok(Found { meters: Vec::new(), refused: Vec::new() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_are_what_the_docs_list() {
        assert_eq!(Name::parse("rapl").unwrap(), Name::Rapl);
        assert_eq!(Name::parse("nvml").unwrap(), Name::Nvml);
        assert_eq!(Name::parse("ipmi").unwrap(), Name::Ipmi);
        assert_eq!(Name::parse("none").unwrap(), Name::None);
        assert!(matches!(Name::parse("redfish:bmc-7").unwrap(), Name::Redfish(_)));
        let error = Name::parse("watts").unwrap_err();
        assert_eq!(error.kind, forebay_model::Kind::Request);
        assert!(error.to_string().contains("redfish:HOST"));
    }

    #[test]
    fn an_unknown_meter_refuses_itself_alone() {
        let (meters, refused) = open_power_meters(&["none".into(), "wattson".into()]);
        assert!(meters.is_empty());
        assert_eq!(refused.len(), 1);
        assert_eq!(refused[0].0, "wattson");
    }

    #[test]
    fn a_password_in_a_name_is_not_repeated() {
        for name in ["redfish:root:calvin@bmc", "redfsh:root:calvin@bmc", "root:calvin@bmc", "calvin@bmc"] {
            let (_, refused) = open_power_meters(&[name.into()]);
            assert!(!format!("{refused:?}").contains("calvin"), "{refused:?}");
        }
    }

    proptest! {
        #[test]
        fn any_name_is_a_meter_or_an_error(text in "\\PC{0,60}|redfish(\\+insecure)?:\\PC{0,60}") {
            let _ = Name::parse(&text);
        }
    }
}
