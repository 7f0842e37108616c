//! A gateway that gives its place to another process while hosts use it (`handover`).

use super::{Gateway, Namespace, Running, REPLY};
use crate::gateway::config::{self, Front};
use crate::gateway::controller::Controller;
use crate::gateway::controller_shared::ControllerEvent;
use crate::gateway::handed::{broken, Given};
use crate::gateway::handover::state::{
    ControllerState, GatewayState, NamespaceCounts, NamespaceState, Offer,
};
use crate::gateway::handover::wire::Line;
use crate::gateway::handover::{Message, FORMAT};
use crate::gateway::rpc::Door;
use crate::gateway::worker::{WorkerMessage, STOP};
use crate::target::log::Level;
use crate::target::thread_pool::{self, join_by};
use forebay_io::clock;
use forebay_model::Error;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

/// Longest time for the next gateway to open all sources.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// Longest time for it to build what it was given, while hosts wait.
const READY: Duration = Duration::from_secs(10);
/// Commands have so long to end by themselves; then sources are asked to give up on those that may be repeated.
const WITHDRAW: Duration = Duration::from_secs(1);
/// And so long in all. QEMU waits 5 s for some of its answers.
const FINISH: Duration = Duration::from_secs(4);
const LOOK: Duration = Duration::from_micros(500);

/// Stage of handing a gateway over: it is here, leaving, or has left.
#[derive(Default)]
pub(super) struct Place(AtomicU8);

const HERE: u8 = 0;
const LEAVING: u8 = 1;
const LEFT: u8 = 2;

impl Gateway {
    /// Keeps the RPC socket, which is handed on, too.
    pub fn set_door(&self, door: Door) {
        *self.door.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(door);
    }

    /// Another process has its place.
    pub fn has_left(&self) -> bool {
        self.place.0.load(Ordering::Acquire) == LEFT
    }

    /// Refuses changes by RPCs while another process is told of the state, and afterwards.
    pub fn may_change(&self) -> Result<(), Error> {
        match self.place.0.load(Ordering::Acquire) {
            HERE => Ok(()),
            _ => Err(Error::run(
                "a change of the gateway",
                "it is being handed over to another gateway",
                "try again",
            )),
        }
    }

    /// Gives all that it has to the process that listens at `socket`, and serves no more. Hosts are told nothing.
    ///
    /// # Errors
    /// That process reads another format, is another user's, can't open a source; commands that may not be repeated don't
    /// end. The gateway goes on as before.
    pub fn hand_over(&self, socket: &Path, format: u64) -> Result<(), Error> {
        if format != u64::from(FORMAT) {
            let found = format!("this gateway gives its state in format {FORMAT}");
            let next = "end this one first: hosts see their drives go and come again";
            return Err(Error::request(format!("a hand-over in format {format}"), found, next));
        }
        if self.keeper.is_some() {
            let next = "kill -9 this gateway's process: its keeper then starts the installed version";
            return Err(Error::request("a hand-over", "this gateway has a keeper (--keep)", next));
        }
        let alone = self.place.0.compare_exchange(HERE, LEAVING, Ordering::AcqRel, Ordering::Acquire);
        if alone.is_err() {
            return self.may_change();
        }
        let given = self.give_to(socket);
        self.place.0.store(if given.is_ok() { LEFT } else { HERE }, Ordering::Release);
        match &given {
            Ok(()) => self.say("handed over", &[]),
            Err(e) => {
                self.shared.log.say(Level::Warning, "not handed over", &[("why", e.to_string().into())])
            }
        }
        given
    }

    fn give_to(&self, socket: &Path) -> Result<(), Error> {
        let asked = || format!("a hand-over to {}", socket.display());
        let stream = UnixStream::connect(socket)
            .map_err(|e| Error::request(asked(), e.to_string(), "forebay snap CONFIG.toml --take-over"))?;
        let mut line = Line::new(stream, PATIENCE)?;
        if !line.is_ours() {
            return Err(Error::request(
                asked(),
                "a process of another user is listening there",
                "a socket of this user",
            ));
        }
        let (offer, locks) = self.offer()?;
        line.send(&Message::Offer(Box::new(offer)), &locks.0)?;
        let Message::Opened = line.receive()?.0 else { return Err(broken("sources were to be opened")) };
        line.set_patience(READY)?;
        match self.held().and_then(|()| self.give_held(&mut line)) {
            Ok(()) => {
                self.part();
                Ok(())
            }
            Err(error) => {
                self.release_all();
                let _ = line.send(&Message::Over(error.clone()), &[]);
                Err(error)
            }
        }
    }

    /// Returns what the next gateway has to open.
    pub(super) fn offer(&self) -> Result<(Offer, Given), Error> {
        let mut given = Given::default();
        let mut config = self.config();
        config.threads = self.shared.threads as u32;
        let mut namespaces = Vec::new();
        for (nqn, subsystem) in &self.state().subsystems {
            for (nsid, Namespace { volume, .. }) in &subsystem.namespaces {
                let locks = volume.locks().iter().map(|fd| given.add(fd)).collect::<Result<_, _>>()?;
                let (blocks, block_bytes) = (volume.blocks, volume.block_bytes);
                namespaces.push(NamespaceState { nqn: nqn.clone(), nsid: *nsid, blocks, block_bytes, locks });
            }
        }
        let age = clock::now().saturating_duration_since(self.shared.began);
        Ok((Offer { config, age_ns: age.as_nanos() as u64, namespaces }, given))
    }

    /// Holds all controllers until nothing is under way.
    fn held(&self) -> Result<(), Error> {
        let names: Vec<String> = self.state().controllers.keys().cloned().collect();
        for name in &names {
            if !self.ask(name, Controller::hold)? {
                let next = "again once it is over";
                return Err(Error::run(name, "an RPC is suspending it", next));
            }
        }
        let began = clock::now();
        let mut withdrawn = false;
        loop {
            let mut moving = None;
            for name in &names {
                if !self.ask(name, Controller::is_still)? {
                    moving = Some(name);
                }
            }
            let Some(name) = moving else { return Ok(()) };
            let waited = clock::now().saturating_duration_since(began);
            if waited > WITHDRAW && !std::mem::replace(&mut withdrawn, true) {
                names.iter().try_for_each(|name| self.ask(name, |c| c.withdraw()))?;
            }
            if waited > FINISH {
                let found = format!(
                    "after {:.1} s commands are under way that may not be done twice (writes), or that its source \
                     does not let go of",
                    waited.as_secs_f64()
                );
                return Err(Error::run(name, found, "again once its source answers; hosts were served on"));
            }
            std::thread::sleep(LOOK);
        }
    }

    fn give_held(&self, line: &mut Line) -> Result<(), Error> {
        let (state, given) = self.keep_all()?;
        line.send(&Message::State(Box::new(state)), &given.0)?;
        let Message::Ready = line.receive()?.0 else { return Err(broken("it was to be ready")) };
        // Block devices wait in the kernel for whoever comes next.
        let blocks = self.block_configs();
        self.blocks_leave();
        // From here on it is theirs: nothing of ours touches what was given.
        line.send(&Message::Go, &[]).inspect_err(|_| self.blocks_resume(&blocks))
    }

    /// Controllers that are block devices, each with its subsystem.
    fn block_configs(&self) -> Vec<(String, config::Controller)> {
        let config = self.config();
        let blocks = config.controllers().filter(|(_, c)| c.front == Front::Ublk);
        blocks.map(|(subsystem, given)| (subsystem.nqn.clone(), given.clone())).collect()
    }

    /// Takes up block devices that another gateway left, or this one.
    pub(super) fn blocks_resume(&self, blocks: &[(String, config::Controller)]) {
        for (nqn, given) in blocks {
            if let Err(e) = self.controller_create(nqn, given) {
                let fields = [("controller", given.name.clone().into()), ("why", e.to_string().into())];
                self.shared.log.say(Level::Error, "block device not taken over", &fields);
            }
        }
    }

    fn keep_all(&self) -> Result<(GatewayState, Given), Error> {
        let mut given = Given::default();
        let door = self.door.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let rpc = door.as_ref().map(|door| given.add(&door.listener)).transpose()?;
        drop(door);
        let all: Vec<(String, String, u64)> = {
            let state = self.state();
            let each = state.controllers.iter();
            each.map(|(name, running)| (name.clone(), running.nqn.clone(), running.shared.id)).collect()
        };
        let mut controllers = Vec::new();
        for (name, nqn, id) in all {
            let (state, more) = self.keep(&name, nqn, id, given)?;
            controllers.push(state);
            given = more;
        }
        Ok((GatewayState { rpc, counts: self.counts(), controllers }, given))
    }

    fn keep(
        &self,
        name: &str,
        nqn: String,
        id: u64,
        mut given: Given,
    ) -> Result<(ControllerState, Given), Error> {
        let parts = thread_pool::ask(&self.workers, |to| WorkerMessage::Keep(id, to), REPLY);
        if parts.len() != self.workers.len() {
            return Err(Error::run(
                name,
                "a thread does not respond",
                "the gateway's log says what it is doing",
            ));
        }
        let queues = parts.into_iter().flatten().collect();
        self.ask(name, move |c| Ok((c.keep(nqn, queues, &mut given)?, given)))?
    }

    /// Returns the counters of namespaces so far.
    fn counts(&self) -> Vec<NamespaceCounts> {
        let subsystems = self.stats().subsystems;
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
        let names: Vec<String> = self.state().controllers.keys().cloned().collect();
        for name in names {
            // One that doesn't answer hears it once it does.
            let _ = self.ask(&name, Controller::release);
        }
    }

    /// Lets go of all that another process has now, and leaves it as it is.
    fn part(&self) {
        let controllers = std::mem::take(&mut self.state().controllers);
        for Running { shared, thread, .. } in controllers.into_values() {
            shared.say(ControllerEvent::Call(Box::new(Controller::part)));
            join_by(thread, clock::now() + STOP);
        }
        for subsystem in self.state().subsystems.values() {
            subsystem.namespaces.values().for_each(|namespace| namespace.volume.leave());
        }
        let door = self.door.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        door.iter().for_each(Door::leave);
    }
}
