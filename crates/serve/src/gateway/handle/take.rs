//! A gateway that takes the place of another process's while hosts use it (`handover`).

use super::{sheets, Gateway, Running};
use crate::gateway::config::{Config, Front};
use crate::gateway::controller::Controller;
use crate::gateway::controller_shared::{ControllerEvent, ControllerShared, Lent};
use crate::gateway::dma::Asked;
use crate::gateway::handed::{broken, Fd, Received};
use crate::gateway::handover::state::{ControllerState, GatewayState, MappingState, NamespaceCounts, Offer};
use crate::gateway::handover::wire::Line;
use crate::gateway::handover::Message;
use crate::gateway::keeper::shm::Paper;
use crate::gateway::keeper::{Keeper, Link};
use crate::gateway::shm::Doorbells;
use crate::gateway::vfio_user::socket::Listener;
use crate::target::log::Sink;
use crate::target::thread_pool::spawn;
use forebay_io::clock;
use forebay_model::Error;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

impl Gateway {
    /// Takes over what the gateway at the other end of `line` gives, and serves it. With it comes the socket of its RPCs.
    ///
    /// # Errors
    /// A source can't be opened, what came can't be, or the other one changed its mind: it serves on, and nothing of this
    /// was seen by anybody.
    pub fn take_over(mut line: Line, sink: Sink) -> Result<(Gateway, Option<OwnedFd>), Error> {
        let taken = Gateway::taken(&mut line, sink);
        if let Err(error) = &taken {
            let _ = line.send(&Message::Over(error.clone()), &[]);
        }
        taken
    }

    fn taken(line: &mut Line, sink: Sink) -> Result<(Gateway, Option<OwnedFd>), Error> {
        let (Message::Offer(offer), locks) = line.receive()? else { return Err(broken("no offer came")) };
        let given = offer.config.clone();
        let gateway = Gateway::beside(*offer, Some(Received::new(locks)), sink, None)?;
        line.send(&Message::Opened, &[])?;
        let (Message::State(state), fds) = line.receive()? else { return Err(broken("no state came")) };
        let rpc = gateway.restore(*state, &given, &mut Received::new(fds))?;
        line.send(&Message::Ready, &[])?;
        let Message::Go = line.receive()?.0 else { return Err(broken("no word to go came")) };
        gateway.go();
        let blocks = given.controllers().filter(|(_, c)| c.front == Front::Ublk);
        let blocks: Vec<_> = blocks.map(|(s, c)| (s.nqn.clone(), c.clone())).collect();
        gateway.blocks_resume(&blocks);
        Ok((gateway, rpc))
    }

    /// Threads and sources, while the other one serves. Where nobody does, no locks come: they are taken anew.
    pub(super) fn beside(
        offer: Offer,
        mut came: Option<Received>,
        sink: Sink,
        keeper: Option<Arc<Keeper>>,
    ) -> Result<Gateway, Error> {
        let mut locks = BTreeMap::new();
        for one in &offer.namespaces {
            let Some(came) = &mut came else { break };
            let fds = one.locks.iter().map(|fd| came.take(*fd)).collect::<Result<Vec<_>, _>>()?;
            locks.insert((one.nqn.clone(), one.nsid), fds);
        }
        let mut config = offer.config;
        config.check()?;
        config.subsystems.iter_mut().for_each(|subsystem| subsystem.controllers.clear());
        let now = clock::now();
        let began = now.checked_sub(Duration::from_nanos(offer.age_ns)).unwrap_or(now);
        let gateway = Gateway::begin(&config, sink, began, locks, keeper)?;
        for one in &offer.namespaces {
            let volume = gateway.state().namespace(&one.nqn, one.nsid)?.volume.clone();
            let shape = (volume.blocks, volume.block_bytes);
            if shape != (one.blocks, one.block_bytes) {
                let found = format!(
                    "{} blocks of {} bytes, where hosts see {} of {}",
                    shape.0, shape.1, one.blocks, one.block_bytes
                );
                return Err(Error::request(&volume.source, found, "the source as it was"));
            }
        }
        Ok(gateway)
    }

    /// All controllers, held: nothing of them is touched before `go`.
    fn restore(
        &self,
        state: GatewayState,
        given: &Config,
        came: &mut Received,
    ) -> Result<Option<OwnedFd>, Error> {
        let GatewayState { rpc, counts, controllers } = state;
        let wanted = given.controllers().filter(|(_, c)| c.front == Front::VfioUser).count();
        if controllers.len() != wanted {
            return Err(broken(&format!("{} drives came, where {wanted} were offered", controllers.len())));
        }
        let rpc = rpc.map(|fd| came.take(fd)).transpose()?;
        counts.into_iter().try_for_each(|one| self.count(one))?;
        controllers.into_iter().try_for_each(|one| self.restore_one(one, given, came, None))?;
        Ok(rpc)
    }

    fn count(&self, counted: NamespaceCounts) -> Result<(), Error> {
        let state = self.state();
        let namespace = state.namespace(&counted.nqn, counted.nsid)?;
        namespace.limiter.add_held_back(counted.held_back);
        let mut past = namespace.volume.past();
        past.counts.add(&counted.counts);
        past.read_latency.add(&counted.read_latency);
        past.write_latency.add(&counted.write_latency);
        Ok(())
    }

    pub(super) fn restore_one(
        &self,
        mut one: ControllerState,
        given: &Config,
        came: &mut Received,
        line: Option<OwnedFd>,
    ) -> Result<(), Error> {
        let unknown = || broken(&format!("the drive {} was not offered", one.name));
        let mut all = given.controllers().filter(|(s, _)| s.nqn == one.nqn);
        let controller = all.find(|(_, c)| c.name == one.name).ok_or_else(unknown)?.1.clone();
        if one.kicks.len() != self.shared.threads || self.state().controllers.contains_key(&one.name) {
            return Err(unknown());
        }
        let kicks = one.kicks.iter().map(|fd| came.take(*fd)).collect::<Result<_, _>>()?;
        let lent = Lent { doorbells: Doorbells::adopt(came.take(one.doorbells)?)?, kicks };
        let listener = Listener::adopt(came.take(one.listener)?);
        let mut state = self.state();
        let id = state.next_id;
        state.next_id += 1;
        let subsystem = state.subsystem_mut(&one.nqn)?;
        if !subsystem.ids.take_this(one.cntlid) {
            return Err(unknown());
        }
        let link = match (line, &one.kept) {
            (Some(line), Some(kept)) => {
                let (queues, entries) = sheets(&controller);
                let paper = Arc::new(Paper::adopt(came.take(kept.paper)?, queues, entries)?);
                Some(Link::new(UnixStream::from(line), &one.nqn, paper)?)
            }
            _ => None,
        };
        let (shared, parts) = self.parts(id, one.cntlid, &controller, subsystem, (listener, link), lent)?;
        restore_shared(&shared, &mut one, came)?;
        let (name, nqn, cntlid) = (one.name.clone(), one.nqn.clone(), one.cntlid);
        let restored = Controller::restored(parts, one, came)?;
        let thread = spawn(&format!("ctl-{name}"), move || restored.run())?;
        state.controllers.insert(name, Running { given: controller, nqn, cntlid, shared, thread });
        Ok(())
    }

    /// All of it is this process's, and is served.
    pub(super) fn go(&self) {
        let state = self.state();
        for namespace in state.subsystems.values().flat_map(|s| s.namespaces.values()) {
            namespace.volume.own();
        }
        for running in state.controllers.values() {
            let path = PathBuf::from(running.given.socket.clone().unwrap_or_default());
            running.shared.say(ControllerEvent::Call(Box::new(move |controller| controller.begin(path))));
        }
        drop(state);
        self.say("taken over", &[("controllers", self.state().controllers.len().into())]);
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
