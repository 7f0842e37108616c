//! Probe of a drive: its controller and its namespaces, and away again.

use super::function::{wait, Ended, Function};
use super::{next, Options};
use crate::source::controller::{Accepted, ControllerReport, Inquiry};
use crate::source::nvme::Cause;
use forebay_io::monotonic_now;
use forebay_model::Error;
use forebay_nvme::host::{ControllerInfo, Event, NamespaceInfo};
use forebay_nvme::transport::pcie::host::Step;
use std::time::{Duration, Instant};

/// Longest time for leaving.
const LEAVE_WITHIN: Duration = Duration::from_secs(1);

/// Asks the drive that another process emulates: no network, no names. `one`: for the namespace that the options name.
pub(super) fn identify(options: &Options, inquiry: &Inquiry, one: bool) -> Result<ControllerReport, Error> {
    let wanted = one.then_some(options.nsid);
    let (controller, namespaces) = probe_drive(options, wanted, inquiry.timeout)?;
    let socket = options.socket.display().to_string();
    Ok(ControllerReport {
        uri: format!("vfio-user:{socket}"),
        address: socket,
        host_nqn: String::new(),
        accepted: Accepted::default(),
        controller,
        namespaces,
    })
}

/// Returns the drive's description of itself. `namespace`: only that one.
///
/// # Errors
/// `Machine`: nobody answers at the socket in time, or what does is no NVMe controller. `Request`: no such namespace.
fn probe_drive(
    options: &Options,
    namespace: Option<u32>,
    within: Duration,
) -> Result<(ControllerInfo, Vec<NamespaceInfo>), Error> {
    let failed = |ended: Ended| {
        let error = if ended.cause.is_request() { Error::request } else { Error::machine };
        error(options.to_string(), ended.why, next(options, ended.cause))
    };
    let until = monotonic_now() + within;
    let mut function = Function::open(options, u16::MAX, 0, namespace, within).map_err(failed)?;
    until_event(&mut function, until).map_err(failed)?;
    let session = function.host.session();
    let found = (session.controller().clone(), session.namespaces().values().cloned().collect());
    let now = function.now_ms();
    function.host.shut_down(now);
    let leave = monotonic_now() + LEAVE_WITHIN;
    while !function.host.is_shut_down() && monotonic_now() < leave {
        match function.step() {
            Ok(Step::Wait { until_ms }) if wait(&mut function, until_ms, None, true).is_ok() => {}
            Ok(Step::Wait { .. }) | Err(_) => break,
            Ok(_) => {}
        }
    }
    Ok(found)
}

fn until_event(function: &mut Function, until: Instant) -> Result<(), Ended> {
    loop {
        match function.step()? {
            Step::Event(Event::Ready) => return Ok(()),
            Step::Wait { until_ms } => wait(function, until_ms, None, true)?,
            _ => {}
        }
        if monotonic_now() >= until {
            return Err(Ended {
                cause: Cause::Other,
                why: "it isn't ready in time".into(),
                for_good: true,
                clean: true,
            });
        }
    }
}
