//! Asymmetric namespace access: one subsystem, as hosts see it that came to different addresses.

use super::config::{Ana, Rule};
use forebay_model::Error;
use forebay_nvme::controller::subsystem as nvme;
use forebay_nvme::controller::subsystem::AnaState;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

/// The states of a subsystem's groups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Access(Vec<Rule>);

impl Access {
    /// # Errors
    /// Of `Ana::rule`.
    pub(crate) fn new(nqn: &str, given: &[Ana]) -> Result<Access, Error> {
        given.iter().map(|ana| ana.rule(nqn)).collect::<Result<_, _>>().map(Access)
    }

    /// The subsystem as hosts see it that came to `local`.
    pub(crate) fn seen_from(
        &self,
        local: SocketAddr,
        subsystem: &Arc<nvme::Subsystem>,
    ) -> Arc<nvme::Subsystem> {
        let states: BTreeMap<u32, AnaState> =
            self.0.iter().filter(|rule| rule.applies(local)).map(|rule| (rule.group, rule.state)).collect();
        match &subsystem.kind {
            nvme::Kind::Nvm { namespaces, .. } if !states.is_empty() => {
                let kind = nvme::Kind::Nvm { namespaces: namespaces.clone(), ana: states };
                Arc::new(nvme::Subsystem { kind, ..(**subsystem).clone() })
            }
            _ => subsystem.clone(),
        }
    }
}

/// Some of its groups can't be reached.
pub(super) fn is_lossy(subsystem: &nvme::Subsystem) -> bool {
    let nvme::Kind::Nvm { ana, .. } = &subsystem.kind else { return false };
    ana.values().any(|state| !matches!(state, AnaState::Optimized | AnaState::NonOptimized))
}
