//! The discovery log page of a target, record by record.

use crate::source::{Discovered, Inquiry, SOURCES};
use crate::Error;

/// Asks a host what it offers to this host: `HOST`, `HOST:PORT`, `[ADDRESS]:PORT`, or as sources name it, with their keys
/// and without a subsystem: `nvme+tcp://HOST:PORT?tls=1`, `nvme+rdma://HOST`.
///
/// # Errors
/// `Request`: no address, or keys that can't be used. `Machine`: nothing answers there. `Run`: what answers doesn't keep to
/// the protocol.
pub fn discover(text: &str, inquiry: &Inquiry) -> Result<Discovered, Error> {
    let begins = |scheme: &str| text.strip_prefix(scheme).is_some_and(|rest| rest.starts_with("://"));
    let mut discovering = SOURCES.iter().filter_map(|row| Some((row.scheme, row.discover?)));
    let (_, first) = discovering.clone().next().expect("hosts offer sources of some kind");
    let ask = discovering.find(|(scheme, _)| begins(scheme)).map_or(first, |(_, ask)| ask);
    ask(text, inquiry)
}
