//! A gateway that gives its place to another process while hosts use it (`handover`).

use super::registry::Namespace;
use super::Gateway;
use crate::gateway::config::{self, Frontend};
use crate::gateway::controller::ControllerThread;
use crate::gateway::handed::{broken, Given};
use crate::gateway::handover::state::{
    ControllerState, GatewayState, NamespaceCounts, NamespaceState, Offer,
};
use crate::gateway::handover::wire::Line;
use crate::gateway::handover::Message;
use forebay_io::monotonic_now;
use forebay_model::Error;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Longest time for the next gateway to open all sources.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// Longest time for it to build what it was given, while hosts wait.
const READY: Duration = Duration::from_secs(10);
/// Commands have so long to end by themselves; then sources are asked to give up on those that may be repeated.
const WITHDRAW: Duration = Duration::from_secs(1);
/// And so long in all. QEMU waits 5 s for some of its answers.
const FINISH: Duration = Duration::from_secs(4);
const POLL_INTERVAL: Duration = Duration::from_micros(500);

/// What the next gateway has to open, with the descriptors that hold locks on files.
pub(super) fn offer(gateway: &Gateway) -> Result<(Offer, Given), Error> {
    let mut given = Given::default();
    let mut config = gateway.config();
    config.threads = gateway.shared.threads as u32;
    let mut namespaces = Vec::new();
    for (nqn, subsystem) in &gateway.registry.lock().subsystems {
        for (nsid, Namespace { volume, .. }) in &subsystem.namespaces {
            let locks = volume.locks().iter().map(|fd| given.add(fd)).collect::<Result<_, _>>()?;
            let (blocks, block_bytes) = (volume.blocks, volume.block_bytes);
            namespaces.push(NamespaceState { nqn: nqn.clone(), nsid: *nsid, blocks, block_bytes, locks });
        }
    }
    let age = monotonic_now().saturating_duration_since(gateway.shared.began);
    Ok((Offer { config, age_ns: age.as_nanos() as u64, namespaces }, given))
}

/// A hand-over under way, with the process at the other end of the line. Until that was told to go, the gateway is as it
/// was, but that its drives may be held.
pub(super) struct Giving<'a> {
    gateway: &'a Gateway,
    line: Line,
}

impl<'a> Giving<'a> {
    /// # Errors
    /// Nobody of this user listens there.
    pub(super) fn to(socket: &Path, gateway: &'a Gateway) -> Result<Giving<'a>, Error> {
        let asked = || format!("a hand-over to {}", socket.display());
        let stream = UnixStream::connect(socket)
            .map_err(|e| Error::request(asked(), e.to_string(), "forebay snap CONFIG.toml --take-over"))?;
        let line = Line::new(stream, PATIENCE)?;
        if !line.is_ours() {
            let found = "a process of another user is listening there";
            return Err(Error::request(asked(), found, "a socket of this user"));
        }
        Ok(Giving { gateway, line })
    }

    /// Gives all that the gateway has. Where that fails, it goes on as before.
    pub(super) fn run(mut self) -> Result<(), Error> {
        let (offer, locks) = offer(self.gateway)?;
        self.line.send(&Message::Offer(Box::new(offer)), &locks.0)?;
        let Message::Opened = self.line.receive()?.0 else { return Err(broken("sources were to be opened")) };
        self.line.set_patience(READY)?;
        match self.hold_all().and_then(|()| self.give_held()) {
            Ok(()) => {
                self.part();
                Ok(())
            }
            Err(error) => {
                self.release_all();
                let _ = self.line.send(&Message::Over(error.clone()), &[]);
                Err(error)
            }
        }
    }

    /// Holds all drives until nothing is under way.
    fn hold_all(&self) -> Result<(), Error> {
        let drives = &self.gateway.drives;
        let names = drives.names();
        for name in &names {
            if !drives.ask(name, ControllerThread::hold)? {
                let next = "again once it is over";
                return Err(Error::run(name, "an RPC is suspending it", next));
            }
        }
        let began = monotonic_now();
        let mut withdrawn = false;
        loop {
            let mut moving = None;
            for name in &names {
                if !drives.ask(name, ControllerThread::is_still)? {
                    moving = Some(name);
                }
            }
            let Some(name) = moving else { return Ok(()) };
            let waited = monotonic_now().saturating_duration_since(began);
            if waited > WITHDRAW && !std::mem::replace(&mut withdrawn, true) {
                names.iter().try_for_each(|name| drives.ask(name, |c| c.withdraw()))?;
            }
            if waited > FINISH {
                let found = format!(
                    "after {:.1} s commands are under way that may not be done twice (writes), or that its source \
                     does not let go of",
                    waited.as_secs_f64()
                );
                return Err(Error::run(name, found, "again once its source answers; hosts were served on"));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    fn give_held(&mut self) -> Result<(), Error> {
        let (state, given) = self.state()?;
        self.line.send(&Message::State(Box::new(state)), &given.0)?;
        let Message::Ready = self.line.receive()?.0 else { return Err(broken("it was to be ready")) };
        // Block devices wait in the kernel for whoever comes next.
        let blocks = self.block_configs();
        self.gateway.blocks.leave();
        // From here on it is theirs: nothing of ours touches what was given.
        self.line.send(&Message::Go, &[]).inspect_err(|_| self.gateway.blocks.resume_all(&blocks))
    }

    /// Controllers that are block devices, each with its subsystem.
    fn block_configs(&self) -> Vec<(String, config::Controller)> {
        let config = self.gateway.config();
        let blocks = config.controllers().filter(|(_, c)| c.frontend == Frontend::Ublk);
        blocks.map(|(subsystem, given)| (subsystem.nqn.clone(), given.clone())).collect()
    }

    /// All that there is, of drives that are held.
    fn state(&self) -> Result<(GatewayState, Given), Error> {
        let mut given = Given::default();
        let rpc = self.gateway.place.give_door(&mut given)?;
        let all: Vec<(String, String, u64)> = {
            let registry = self.gateway.registry.lock();
            let each = registry.drives.iter();
            each.map(|(name, drive)| (name.clone(), drive.nqn.clone(), drive.shared.id)).collect()
        };
        let mut controllers = Vec::new();
        for (name, nqn, id) in all {
            let (state, more) = self.state_of(&name, nqn, id, given)?;
            controllers.push(state);
            given = more;
        }
        Ok((GatewayState { rpc, counts: self.counts(), controllers }, given))
    }

    fn state_of(
        &self,
        name: &str,
        nqn: String,
        id: u64,
        mut given: Given,
    ) -> Result<(ControllerState, Given), Error> {
        let drives = &self.gateway.drives;
        let queues = drives.kept_queues(name, id)?;
        drives.ask(name, move |c| Ok((c.keep(nqn, queues, &mut given)?, given)))?
    }

    /// Returns the counters of namespaces so far.
    fn counts(&self) -> Vec<NamespaceCounts> {
        let subsystems = self.gateway.stats().subsystems;
        let each =
            subsystems.into_iter().flat_map(|s| s.namespaces.into_iter().map(move |n| (s.nqn.clone(), n)));
        each.map(|(nqn, n)| NamespaceCounts {
            nqn,
            nsid: n.counted.nsid,
            counts: n.counted.counts,
            read_latency: n.counted.read_latency,
            write_latency: n.counted.write_latency,
            held_back: n.held_back,
        })
        .collect()
    }

    fn release_all(&self) {
        for name in self.gateway.drives.names() {
            // One that doesn't answer hears it once it does.
            let _ = self.gateway.drives.ask(&name, ControllerThread::release);
        }
    }

    /// Lets go of all that another process has now, and leaves it as it is.
    fn part(&self) {
        let Gateway { drives, registry, place, .. } = self.gateway;
        drives.part();
        for subsystem in registry.lock().subsystems.values() {
            subsystem.namespaces.values().for_each(|namespace| namespace.volume.leave());
        }
        place.leave_door();
    }
}
