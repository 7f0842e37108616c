//! Asymmetric namespace access (ANA), as a subsystem's configuration says it.

use super::rules::known;
use super::{within, Config, Subsystem};
use forebay_model::Error;
use forebay_nvme::controller::subsystem::{AnaState, ANA_GROUPS_MAX};
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};

/// State of a group of namespaces for hosts that come to an address. Of those that apply the last counts; where none
/// does, the group is optimized.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Ana {
    /// The `ana_group` of its namespaces. None: 1.
    pub group: Option<u32>,
    /// Address of this machine, with or without a port: hosts that connected there. Empty: all.
    pub address: String,
    /// optimized, non-optimized, inaccessible, persistent-loss or change.
    pub state: String,
}

/// Parsed form of the rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    pub group: u32,
    ip: Option<IpAddr>,
    port: Option<u16>,
    pub state: AnaState,
}

impl Rule {
    /// Returns whether it is about hosts that connected to `local`.
    pub fn applies(&self, local: SocketAddr) -> bool {
        self.ip.is_none_or(|ip| ip == local.ip().to_canonical())
            && self.port.is_none_or(|port| port == local.port())
    }

    /// Hosts may come to a listener's address that this is about. A port of 0 is any.
    fn fits(&self, listener: SocketAddr) -> bool {
        let same_family = |ip: IpAddr| ip.is_ipv4() == listener.is_ipv4();
        self.ip.is_none_or(|ip| ip == listener.ip() || listener.ip().is_unspecified() && same_family(ip))
            && self.port.is_none_or(|port| [0, port].contains(&listener.port()))
    }
}

impl Ana {
    /// # Errors
    /// `Request`: a group, an address or a state that there can't be.
    pub fn rule(&self, nqn: &str) -> Result<Rule, Error> {
        let group = self.group.unwrap_or(1);
        check_group("ana.group", Some(group))?;
        let names = AnaState::ALL.map(|(_, name)| name);
        known(nqn, "ana.state", std::slice::from_ref(&self.state), &names)?;
        let (state, _) =
            AnaState::ALL.into_iter().find(|(_, name)| *name == self.state).expect("it is known");
        let (ip, port) = self.place(nqn)?;
        Ok(Rule { group, ip, port, state })
    }

    fn place(&self, nqn: &str) -> Result<(Option<IpAddr>, Option<u16>), Error> {
        if self.address.is_empty() {
            return Ok((None, None));
        }
        if let Ok(whole) = self.address.parse::<SocketAddr>() {
            return Ok((Some(whole.ip()), Some(whole.port())));
        }
        let bare = self.address.trim_start_matches('[').trim_end_matches(']');
        bare.parse().map(|ip| (Some(ip), None)).map_err(|_| {
            Error::request(
                format!("ana.address = \"{}\" of {nqn}", self.address),
                "is not an IP address",
                "an address that hosts connect to: 10.0.0.1, 10.0.0.1:4420 or [fd00::1]:4420",
            )
        })
    }
}

/// None: 1.
pub(super) fn check_group(field: &str, group: Option<u32>) -> Result<(), Error> {
    within(field, group.unwrap_or(1).into(), 1, ANA_GROUPS_MAX.into())
}

impl Subsystem {
    pub(super) fn check_ana(&self, config: &Config) -> Result<(), Error> {
        let mut listeners = config.addresses()?;
        listeners.extend(config.rdma_addresses()?);
        self.ana.iter().try_for_each(|ana| {
            let rule = ana.rule(&self.nqn)?;
            if listeners.iter().any(|at| rule.fits(*at)) {
                return Ok(());
            }
            let all: Vec<String> = listeners.iter().map(SocketAddr::to_string).collect();
            Err(Error::request(
                format!("ana.address = \"{}\" of {}", ana.address, self.nqn),
                "no listener has this address, so no host comes to it",
                all.join(", "),
            ))
        })
    }
}
