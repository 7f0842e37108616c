//! Limits of a configuration's values.

use super::NQN_BYTES_MAX;
use super::TEXT_BYTES_MAX;
use forebay_model::wording::nearest;
use forebay_model::Error;
use serde::de::DeserializeOwned;
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// A configuration from TOML. `fields`: where its fields are described.
///
/// # Errors
/// Kind `Request`: what is no TOML, has a field that is unknown, or a value of another kind.
pub(crate) fn read_toml<C: DeserializeOwned>(text: &str, fields: &str) -> Result<C, Error> {
    let asked = "the configuration";
    if text.len() > TEXT_BYTES_MAX {
        return Err(Error::request(asked, "is longer than 4 MiB", "fewer subsystems"));
    }
    toml::from_str(text).map_err(|e| {
        let found = e.to_string();
        Error::request(asked, found.trim_end(), field_meant(&found, fields))
    })
}

/// As `read_toml`, from JSON.
pub(crate) fn read_json<C: DeserializeOwned>(text: &str, fields: &str) -> Result<C, Error> {
    serde_json::from_str(text).map_err(|e| {
        let found = e.to_string();
        Error::request("the configuration", &found, field_meant(&found, fields))
    })
}

/// Words to type where a field is unknown: the one that was meant, of those that the message lists.
fn field_meant(found: &str, fields: &str) -> String {
    let reported = found.split_once("unknown field `").and_then(|(_, reported)| reported.split_once('`'));
    let near = reported.and_then(|(typed, known)| nearest(typed, known.split('`').skip(1).step_by(2)));
    near.map_or_else(|| format!("{fields} for its fields"), |name| format!("{name}; {fields} for its fields"))
}

pub(crate) fn different_nqns<'a>(nqns: impl Iterator<Item = &'a str>) -> Result<(), Error> {
    let mut seen = BTreeSet::new();
    for nqn in nqns {
        if !seen.insert(nqn) {
            return Err(Error::request(nqn, "two subsystems have this NQN", "another NQN"));
        }
    }
    Ok(())
}

/// All nsids of a subsystem's namespaces.
pub(crate) fn different_nsids(nqn: &str, nsids: impl Iterator<Item = u32>) -> Result<BTreeSet<u32>, Error> {
    let mut seen = BTreeSet::new();
    for nsid in nsids {
        if !seen.insert(nsid) {
            let found = format!("two namespaces of {nqn} have it");
            return Err(Error::request(format!("nsid = {nsid}"), found, "another nsid"));
        }
    }
    Ok(seen)
}

/// `1.2.3.4:5`, `[::1]:5`, `::1`, `1.2.3.4`, `5`.
pub(crate) fn address(field: &str, text: &str, ip: IpAddr, port: u16) -> Result<SocketAddr, Error> {
    if let Ok(whole) = text.parse::<SocketAddr>() {
        return Ok(whole);
    }
    let bare = text.trim_start_matches('[').trim_end_matches(']');
    if let Some(only_ip) = bare.parse::<IpAddr>().ok().filter(|_| port != 0) {
        return Ok(SocketAddr::new(only_ip, port));
    }
    match text.trim_start_matches(':').parse::<u16>() {
        Ok(port) => Ok(SocketAddr::new(ip, port)),
        Err(_) => Err(Error::request(
            format!("{field} = \"{text}\""),
            "is not an IP address with a port",
            "127.0.0.1:4420 or [::1]:4420 (a name: getent hosts NAME)",
        )),
    }
}

/// Returns the address of the metrics: a port is one of the loopback interface.
pub(crate) fn metrics_address(text: Option<&str>) -> Result<Option<SocketAddr>, Error> {
    let loopback = IpAddr::from(Ipv4Addr::LOCALHOST);
    text.map(|text| address("metrics", text, loopback, 0)).transpose()
}

pub(crate) fn check_nqn(field: &str, nqn: &str) -> Result<(), Error> {
    let wrong = |found: &str| {
        let next = "nqn.2014-08.org.nvmexpress:uuid:… or nqn.YYYY-MM.reverse.domain:name";
        Err(Error::request(format!("{field} = \"{nqn}\""), found, next))
    };
    match nqn {
        n if n.len() > NQN_BYTES_MAX => wrong("is longer than 223 bytes"),
        n if !n.starts_with("nqn.") || n.len() < 12 => wrong("is not an NVMe qualified name"),
        n if n.chars().any(|c| c.is_control() || c.is_whitespace()) => wrong("has a space in it"),
        _ => Ok(()),
    }
}

pub(crate) fn printable(nqn: &str, field: &str, text: &str, bytes_max: usize) -> Result<(), Error> {
    if text.len() <= bytes_max && text.bytes().all(|b| (0x20..0x7f).contains(&b)) {
        return Ok(());
    }
    let found = format!("\"{text}\" is longer than {bytes_max} characters, or not ASCII");
    Err(Error::request(format!("{field} of {nqn}"), found, "a shorter one, of letters and digits"))
}

pub(super) fn known(nqn: &str, field: &str, given: &[String], all: &[&str]) -> Result<(), Error> {
    match given.iter().find(|g| !all.contains(&g.as_str())) {
        Some(odd) => {
            let found = format!("'{odd}' is not known");
            Err(Error::request(format!("{field} of {nqn}"), found, all.join(", ")))
        }
        None => Ok(()),
    }
}

/// The CPUs that threads stay on, in turn, of a configuration's list; none: anywhere.
///
/// # Errors
/// As of `named_cpus`.
pub(crate) fn cpus(list: &str) -> Result<Vec<u32>, Error> {
    match list.is_empty() {
        true => Ok(Vec::new()),
        false => forebay_io::named_cpus("cpus", list),
    }
}

pub(crate) fn within(what: &str, value: u64, least: u64, most: u64) -> Result<(), Error> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(Error::request(what, format!("{value} is out of bounds"), format!("{least} to {most}")))
}

pub(super) fn seconds(what: &str, value: f64, least: f64, most: f64) -> Result<(), Error> {
    if value >= least && value <= most {
        return Ok(());
    }
    Err(Error::request(what, format!("{value} is out of bounds"), format!("{least} to {most} seconds")))
}

/// A good configuration in which the first of each three is replaced by the second must be refused, by an error that
/// holds the third.
#[cfg(test)]
pub(crate) fn assert_each_is_named<C: std::fmt::Debug>(
    good: &str,
    read: fn(&str) -> Result<C, Error>,
    edits: &[(&str, &str, &str)],
) {
    for (from, to, found) in edits {
        assert!(good.contains(from), "{from}");
        let error = read(&good.replacen(from, to, 1)).expect_err(to);
        assert_eq!(error.kind, forebay_model::Kind::Request);
        assert!(error.to_string().contains(found), "{to}: {error}");
    }
}
