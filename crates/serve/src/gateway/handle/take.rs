//! A gateway that takes the place of another: of another process's while hosts use it (`handover`), or of one that was
//! killed, of which a supervisor has what it noted (`gateway::supervisor`).

use super::drives::sheets;
use super::{Gateway, Locks};
use crate::gateway::config::{self, Config, Frontend};
use crate::gateway::controller::ControllerThread;
use crate::gateway::controller_shared::{ControllerShared, Lent};
use crate::gateway::dma::Asked;
use crate::gateway::handed::{broken, Fd, Received};
use crate::gateway::handover::state::{ControllerState, GatewayState, MappingState, NamespaceCounts, Offer};
use crate::gateway::handover::wire::Line;
use crate::gateway::handover::{Kept, Message, FORMAT};
use crate::gateway::shm::Doorbells;
use crate::gateway::supervisor::shm::Paper;
use crate::gateway::supervisor::{Link, Past, Supervisor, SupervisorNotice};
use crate::gateway::vfio_user::socket::Listener;
use crate::target::log::Sink;
use forebay_io::monotonic_now;
use forebay_model::Error;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// As of `Gateway::take_over`.
pub(super) fn take_over(line: &mut Line, sink: Sink) -> Result<(Gateway, Option<OwnedFd>), Error> {
    let (Message::Offer(offer), locks) = line.receive()? else { return Err(broken("no offer came")) };
    let next = Successor::beside(*offer, Some(Received::new(locks)), sink, None)?;
    line.send(&Message::Opened, &[])?;
    let (Message::State(state), fds) = line.receive()? else { return Err(broken("no state came")) };
    let rpc = next.restore(*state, &mut Received::new(fds))?;
    line.send(&Message::Ready, &[])?;
    let Message::Go = line.receive()?.0 else { return Err(broken("no word to go came")) };
    next.go();
    next.resume_blocks();
    Ok((next.gateway, rpc))
}

/// As of `Gateway::go_on`.
pub(super) fn go_on(supervisor: Arc<Supervisor>, sink: Sink) -> Result<(Gateway, Option<OwnedFd>), Error> {
    let (Past { text, age_ns, drives }, rpc) = supervisor.past()?;
    let kept: Kept = serde_json::from_str(&text).map_err(|e| broken(&e.to_string()))?;
    if kept.format != FORMAT {
        let found = format!("it noted its state in format {}, and {FORMAT} is read here", kept.format);
        return Err(Error::request("the gateway that was killed", found, "the version that it had"));
    }
    let next = Successor::beside(Offer { age_ns, ..kept.offer }, None, sink, Some(supervisor.clone()))?;
    supervisor.tell(&SupervisorNotice::Opened, &[])?;
    for _ in 0..drives {
        let (text, mut fds) = supervisor.drive()?;
        let one: ControllerState = serde_json::from_slice(&text).map_err(|e| broken(&e.to_string()))?;
        // One that was taken away, and its gateway killed at once: its line ends here.
        if fds.is_empty() || next.given(&one).is_none() {
            continue;
        }
        let line = fds.remove(0);
        next.restore_one(one, &mut Received::new(fds), Some(line))?;
    }
    next.go();
    next.make_new_drives()?;
    next.resume_blocks();
    Ok((next.gateway, rpc.into_iter().next()))
}

/// A gateway whose sources are open, and whose drives are held: nothing of them is touched before `go`.
struct Successor {
    gateway: Gateway,
    /// What the other one was.
    given: Config,
}

impl Successor {
    /// Threads and sources, while the other one serves. Where nobody does, no locks come: they are taken anew.
    fn beside(
        offer: Offer,
        mut came: Option<Received>,
        sink: Sink,
        supervisor: Option<Arc<Supervisor>>,
    ) -> Result<Successor, Error> {
        let mut locks = Locks::new();
        for one in &offer.namespaces {
            let Some(came) = &mut came else { break };
            let fds = one.locks.iter().map(|fd| came.take(*fd)).collect::<Result<Vec<_>, _>>()?;
            locks.insert((one.nqn.clone(), one.nsid), fds);
        }
        let (given, mut config) = (offer.config.clone(), offer.config);
        config.check()?;
        config.subsystems.iter_mut().for_each(|subsystem| subsystem.controllers.clear());
        let now = monotonic_now();
        let began = now.checked_sub(Duration::from_nanos(offer.age_ns)).unwrap_or(now);
        let gateway = Gateway::begin(&config, sink, began, locks, supervisor)?;
        for one in &offer.namespaces {
            let volume = gateway.registry.lock().namespace(&one.nqn, one.nsid)?.volume.clone();
            let shape = (volume.blocks, volume.block_bytes);
            if shape != (one.blocks, one.block_bytes) {
                let found = format!(
                    "{} blocks of {} bytes, where hosts see {} of {}",
                    shape.0, shape.1, one.blocks, one.block_bytes
                );
                return Err(Error::request(&volume.source, found, "the source as it was"));
            }
        }
        Ok(Successor { gateway, given })
    }

    /// All drives, and what was counted. Returns the socket of RPCs.
    fn restore(&self, state: GatewayState, came: &mut Received) -> Result<Option<OwnedFd>, Error> {
        let GatewayState { rpc, counts, controllers } = state;
        let wanted = self.given.controllers().filter(|(_, c)| c.frontend == Frontend::VfioUser).count();
        if controllers.len() != wanted {
            return Err(broken(&format!("{} drives came, where {wanted} were offered", controllers.len())));
        }
        let rpc = rpc.map(|fd| came.take(fd)).transpose()?;
        counts.into_iter().try_for_each(|one| self.count(one))?;
        controllers.into_iter().try_for_each(|one| self.restore_one(one, came, None))?;
        Ok(rpc)
    }

    fn count(&self, counted: NamespaceCounts) -> Result<(), Error> {
        let registry = self.gateway.registry.lock();
        let namespace = registry.namespace(&counted.nqn, counted.nsid)?;
        namespace.limiter.add_held_back(counted.held_back);
        let mut past = namespace.volume.past();
        past.counts.add(&counted.counts);
        past.read_latency.add(&counted.read_latency);
        past.write_latency.add(&counted.write_latency);
        Ok(())
    }

    /// The drive as it was configured. None: there was none such.
    fn given(&self, one: &ControllerState) -> Option<&config::Controller> {
        let mut all = self.given.controllers();
        all.find(|(s, c)| (&s.nqn, &c.name) == (&one.nqn, &one.name)).map(|(_, given)| given)
    }

    /// One drive. `line`: to its client by its supervisor.
    fn restore_one(
        &self,
        mut one: ControllerState,
        came: &mut Received,
        line: Option<OwnedFd>,
    ) -> Result<(), Error> {
        let Gateway { drives, registry, shared: all, .. } = &self.gateway;
        let unknown = || broken(&format!("the drive {} was not offered", one.name));
        let given = self.given(&one).ok_or_else(unknown)?;
        if one.kicks.len() != all.threads || registry.lock().drives.contains_key(&one.name) {
            return Err(unknown());
        }
        let kicks = one.kicks.iter().map(|fd| came.take(*fd)).collect::<Result<_, _>>()?;
        let lent = Lent { doorbells: Doorbells::adopt(came.take(one.doorbells)?)?, kicks };
        let listener = Listener::adopt(came.take(one.listener)?);
        let mut registry = registry.lock();
        let id = registry.next_id();
        let subsystem = registry.subsystem_mut(&one.nqn)?;
        if !subsystem.ids.take_this(one.cntlid) {
            return Err(unknown());
        }
        let link = match (line, &one.kept) {
            (Some(line), Some(kept)) => {
                let (queues, entries) = sheets(given);
                let paper = Arc::new(Paper::adopt(came.take(kept.paper)?, queues, entries)?);
                Some(Link::new(UnixStream::from(line), &one.nqn, paper)?)
            }
            _ => None,
        };
        let parts = drives.parts(id, one.cntlid, given, subsystem, (listener, link), lent)?;
        let (shared, calls) = (parts.shared.clone(), parts.calls.clone());
        restore_shared(&shared, &mut one, came)?;
        let (nqn, cntlid) = (one.nqn.clone(), one.cntlid);
        let restored = ControllerThread::restored(parts, one, came)?;
        drives.start(&mut registry, &nqn, given, (cntlid, shared, calls), restored)
    }

    /// Drives of which nothing was noted yet.
    fn make_new_drives(&self) -> Result<(), Error> {
        for (subsystem, given) in self.given.controllers() {
            let known = || self.gateway.registry.lock().drives.contains_key(&given.name);
            if given.frontend == Frontend::VfioUser && !known() {
                self.gateway.drives.create(&subsystem.nqn, given)?;
            }
        }
        Ok(())
    }

    /// All of it is this process's, and is served.
    fn go(&self) {
        let Gateway { registry, shared, .. } = &self.gateway;
        let registry = registry.lock();
        for namespace in registry.subsystems.values().flat_map(|s| s.namespaces.values()) {
            namespace.volume.own();
        }
        for drive in registry.drives.values() {
            let path = PathBuf::from(drive.given.socket.clone().unwrap_or_default());
            drive.calls.post(Box::new(move |controller| controller.begin(path)));
        }
        shared.say("taken over", &[("controllers", registry.drives.len().into())]);
    }

    /// Block devices waited in the kernel.
    fn resume_blocks(&self) {
        let blocks = self.given.controllers().filter(|(_, c)| c.frontend == Frontend::Ublk);
        let blocks: Vec<_> = blocks.map(|(s, c)| (s.nqn.clone(), c.clone())).collect();
        self.gateway.blocks.resume_all(&blocks);
    }
}

/// Interrupts, memory and counts.
fn restore_shared(
    shared: &ControllerShared,
    one: &mut ControllerState,
    came: &mut Received,
) -> Result<(), Error> {
    shared.vectors.restore(std::mem::take(&mut one.vectors), came)?;
    shared.count_rings(&one.rings);
    let mut files: BTreeMap<u32, Arc<File>> = BTreeMap::new();
    let mut file_of = |Fd(number): Fd| -> Result<Arc<File>, Error> {
        if let Some(file) = files.get(&number) {
            return Ok(file.clone());
        }
        let file = Arc::new(File::from(came.take(Fd(number))?));
        files.insert(number, file.clone());
        Ok(file)
    };
    let mut ranges = Vec::new();
    for MappingState { address, bytes, readable, writable, file } in std::mem::take(&mut one.mappings) {
        let offset = file.map_or(0, |(_, offset)| offset);
        let file = file.map(|(fd, _)| file_of(fd)).transpose()?;
        ranges.push((Asked { address, bytes, offset, readable, writable }, file));
    }
    shared.dma.restore(ranges).map_err(|why| broken(&format!("{}: {why}", one.name)))
}
