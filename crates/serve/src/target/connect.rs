//! Admission of a Connect: which controller a connection belongs to from then on, or why it isn't let in.

use super::config::Config;
use super::controller::Role;
use super::ids::ConnectionId;
use super::refusals;
use super::shared::TargetShared;
use super::subsystem::{NoController, SubsystemEntry};
use forebay_io::TlsClient;
use forebay_nvme::controller::connect::{Admitted, Connect, Refusal};
use forebay_nvme::status::{Code, Status};
use std::net::SocketAddr;
use std::sync::atomic::Ordering;

/// A connection that asks to be let in.
pub(super) struct Applicant<'a> {
    pub shared: &'a TargetShared,
    pub id: ConnectionId,
    /// The address of ours that it came to.
    pub local: SocketAddr,
    /// Proven identity of a client that came over TLS.
    pub client: Option<&'a TlsClient>,
    pub now_ms: u64,
}

impl Applicant<'_> {
    /// Makes its controller, or joins it.
    pub(super) fn admit(&self, connect: &Connect) -> Result<(Role, Admitted), Refusal> {
        if self.shared.draining.load(Ordering::Relaxed) {
            return Err(connect.busy("the target is shutting down"));
        }
        let subsystem =
            self.shared.subsystem(&connect.subsystem_nqn).ok_or_else(|| connect.no_subsystem())?;
        came_as_it_must(&self.shared.config, self.client, connect)?;
        match connect.qid {
            0 => self.admit_admin(connect, subsystem),
            _ => self.admit_io(connect, subsystem),
        }
    }

    fn admit_admin(
        &self,
        connect: &Connect,
        subsystem: &SubsystemEntry,
    ) -> Result<(Role, Admitted), Refusal> {
        let discovery = subsystem.is_discovery().then(|| self.shared.discovery_at(self.local));
        let by = (self.id, self.local);
        let added = subsystem.add_controller(connect, by, discovery, (&self.shared.config, self.now_ms));
        match added {
            Ok((entry, admitted)) => Ok((Role::Admin(entry), admitted)),
            Err(NoController::LimitReached(why)) => Err(self.limit_reached(connect, why)),
            Err(NoController::Refused(refusal)) => Err(refusal),
        }
    }

    fn admit_io(&self, connect: &Connect, subsystem: &SubsystemEntry) -> Result<(Role, Admitted), Refusal> {
        let entry = subsystem.controller(connect.cntlid);
        let entry = entry.ok_or_else(|| connect.no_controller())?;
        let admitted = entry.controller().connect_io(connect, self.now_ms)?;
        let host_joins = || match entry.host.joins() {
            true => Ok(()),
            false => Err(self.limit_reached(connect, refusals::of_host(&entry.host))),
        };
        match entry.join(connect.qid, self.id, host_joins) {
            Ok(true) => Ok((Role::Io { entry, qid: connect.qid }, admitted)),
            refused => {
                entry.controller().disconnect_io(connect.qid);
                Err(refused.err().unwrap_or_else(|| connect.no_controller()))
            }
        }
    }

    /// A connection more than a limit allows.
    fn limit_reached(&self, connect: &Connect, why: String) -> Refusal {
        self.shared.totals.refused.fetch_add(1, Ordering::Relaxed);
        connect.busy(why)
    }
}

/// Refuses a host that has a TLS key and came without, and one that claims to be another than its key says.
fn came_as_it_must(config: &Config, client: Option<&TlsClient>, connect: &Connect) -> Result<(), Refusal> {
    let subsystem = config.subsystems.iter().find(|s| s.nqn == connect.subsystem_nqn);
    let host = subsystem.and_then(|s| s.hosts.iter().find(|h| h.nqn == connect.host_nqn));
    let is_it = |client: &TlsClient| {
        client.host_nqn == connect.host_nqn && client.subsystem_nqn == connect.subsystem_nqn
    };
    let what = match client {
        None if host.is_some_and(|h| h.tls_key.is_some()) => "this host must connect over TLS (tls_key)",
        Some(client) if !is_it(client) => "the names aren't those of the TLS key",
        _ => return Ok(()),
    };
    let status = Status::fatal(Code::CONNECT_INVALID_HOST);
    Err(Refusal { status, result: 0, what: format!("{what}: {}", connect.host_nqn) })
}
