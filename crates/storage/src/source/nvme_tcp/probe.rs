//! Probe of a controller over RDMA: an admin queue with no I/O queues beside it, and away again.

use super::association::{self, Association, Ended, Peer};
use super::connection::ConnectVia;
use super::{auth, next, Options};
use crate::source::nvme::Cause;
use forebay_io::{monotonic_now, require_rdma, RdmaDomains};
use forebay_model::Error;
use forebay_nvme::host::{Care, Event, Session};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Longest time for leaving.
const LEAVE_WITHIN: Duration = Duration::from_secs(1);

/// A controller that is probed, by a session that is ready. It is left by `leave` or `shut_down`.
pub(crate) struct Probe<S> {
    association: Association<S>,
}

/// Connects to the first of the options' addresses, proves who this host is where that is asked for, and runs the
/// session, which begins at 0 ms, until it is ready.
///
/// # Errors
/// As of a source: `Machine` where libraries or a device are missing, or nobody answers in time; `Request` where the
/// controller refuses.
pub(crate) fn probe<S: Care>(
    options: &Options,
    host_nqn: &str,
    within: Duration,
    session: impl FnOnce(u64) -> S,
) -> Result<Probe<S>, Error> {
    let name = options.to_string();
    let domains = RdmaDomains::new(require_rdma(&name)?);
    let credentials = auth::credentials(options, host_nqn)?;
    let failed = |ended: Ended| {
        let error = if ended.cause.is_request() { Error::request } else { Error::machine };
        error(name.clone(), ended.why, next(options, host_nqn, ended.cause))
    };
    let until = monotonic_now() + within;
    let peer =
        Peer { address: &options.addresses[0], way: ConnectVia::Rdma(&domains, 0), within, stops: &|| false };
    let mut association =
        Association::open(&peer, false, false, credentials, association::reactor()?, session)
            .map_err(failed)?;
    match until_ready(&mut association, until, within) {
        Ok(()) => Ok(Probe { association }),
        Err(ended) => {
            association.close();
            Err(failed(ended))
        }
    }
}

fn until_ready<S: Care>(
    association: &mut Association<S>,
    until: Instant,
    within: Duration,
) -> Result<(), Ended> {
    loop {
        if association.step(until)? == Some(Event::Ready) {
            return Ok(());
        }
        if monotonic_now() >= until {
            let why = format!("no answer within {:.1} s", within.as_secs_f64());
            return Err(Ended { why, cause: Cause::Other, for_good: false });
        }
    }
}

impl<S: Care> Probe<S> {
    pub(crate) fn session(&self) -> &S {
        &self.association.session
    }

    /// Returns the address at which it was reached.
    pub(crate) fn at(&self) -> SocketAddr {
        self.association.to
    }

    pub(crate) fn leave(self) {
        self.association.close();
    }
}

impl Probe<Session> {
    /// Shuts the controller down. One that doesn't answer is left as it is.
    pub(crate) fn shut_down(mut self) {
        let now = self.association.now_ms();
        self.association.session.shut_down(now);
        let until = monotonic_now() + LEAVE_WITHIN;
        while !self.association.session.is_shut_down() && monotonic_now() < until {
            if self.association.step(until).is_err() {
                break;
            }
        }
        self.leave();
    }
}
