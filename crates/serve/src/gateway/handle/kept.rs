//! A gateway that has a keeper (`gateway::keeper`): what it tells it, and how it goes on for one that was killed.

use super::{Gateway, Locks};
use crate::gateway::config::{Config, Front};
use crate::gateway::handed::{broken, Given, Received};
use crate::gateway::handover::state::{ControllerState, Offer};
use crate::gateway::handover::FORMAT;
use crate::gateway::keeper::{Keeper, Past, Told};
use crate::target::log::{Level, Sink};
use forebay_io::clock;
use forebay_model::Error;
use serde::{Deserialize, Serialize};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// State that a keeper is given, and gives the next gateway.
#[derive(Serialize, Deserialize)]
struct Kept {
    format: u32,
    offer: Offer,
}

impl Gateway {
    /// As `start`, by a process that has a keeper.
    ///
    /// # Errors
    /// Of `start`.
    pub fn start_kept(config: &Config, sink: Sink, keeper: Arc<Keeper>) -> Result<Gateway, Error> {
        Gateway::begin(config, sink, clock::now(), Locks::new(), Some(keeper))
    }

    /// Goes on for a gateway that was killed, with the socket of its RPCs.
    ///
    /// # Errors
    /// A source can't be opened, or isn't what it was; what came was noted by another version.
    pub fn go_on(keeper: Arc<Keeper>, sink: Sink) -> Result<(Gateway, Option<OwnedFd>), Error> {
        let (Past { text, age_ns, drives }, rpc) = keeper.past()?;
        let kept: Kept = serde_json::from_str(&text).map_err(|e| broken(&e.to_string()))?;
        if kept.format != FORMAT {
            let found = format!("it noted its state in format {}, and {FORMAT} is read here", kept.format);
            return Err(Error::request("the gateway that was killed", found, "the version that it had"));
        }
        let given = kept.offer.config.clone();
        let gateway = Gateway::beside(Offer { age_ns, ..kept.offer }, None, sink, Some(keeper.clone()))?;
        keeper.tell(&Told::Opened, &[])?;
        for _ in 0..drives {
            let (text, mut fds) = keeper.drive()?;
            let one: ControllerState = serde_json::from_slice(&text).map_err(|e| broken(&e.to_string()))?;
            // One that was taken away, and its gateway killed at once: its line ends here.
            if fds.is_empty() || !given.controllers().any(|(s, c)| (&s.nqn, &c.name) == (&one.nqn, &one.name))
            {
                continue;
            }
            let line = fds.remove(0);
            gateway.restore_one(one, &given, &mut Received::new(fds), Some(line))?;
        }
        gateway.go();
        gateway.complete(&given)?;
        Ok((gateway, rpc.into_iter().next()))
    }

    /// Drives of which nothing was noted yet, and block devices, which wait in the kernel.
    fn complete(&self, given: &Config) -> Result<(), Error> {
        let mut blocks = Vec::new();
        for (subsystem, controller) in given.controllers() {
            if controller.front == Front::Ublk {
                blocks.push((subsystem.nqn.clone(), controller.clone()));
            } else if !self.state().controllers.contains_key(&controller.name) {
                self.controller_create(&subsystem.nqn, controller)?;
            }
        }
        self.blocks_resume(&blocks);
        Ok(())
    }

    /// Has its keeper know what the next one is to be. Nothing to do where it has none.
    pub fn tell_keeper(&self) {
        let Some(keeper) = &self.keeper else { return };
        if let Err(e) = self.told(keeper) {
            self.shared.log.say(Level::Error, "keeper not told", &[("why", e.to_string().into())]);
        }
    }

    fn told(&self, keeper: &Keeper) -> Result<(), Error> {
        let (mut offer, _) = self.offer()?;
        // The next one takes them anew, once the kernel has let go of them.
        offer.namespaces.iter_mut().for_each(|namespace| namespace.locks.clear());
        let (mut given, age_ns) = (Given::default(), offer.age_ns);
        let door = self.door.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        door.as_ref().map(|door| given.add(&door.listener)).transpose()?;
        drop(door);
        let kept = Kept { format: FORMAT, offer };
        let text = serde_json::to_string(&kept).map_err(|e| broken(&e.to_string()))?;
        keeper.tell(&Told::Gateway { text, age_ns }, &given.0)
    }

    /// After what an RPC changed.
    pub fn changed<T>(&self, done: Result<T, Error>) -> Result<T, Error> {
        done.inspect(|_| self.tell_keeper())
    }

    /// It serves.
    ///
    /// # Errors
    /// The keeper is gone.
    pub fn tell_serving(&self) -> Result<(), Error> {
        self.tell_keeper();
        self.keeper.as_ref().map_or(Ok(()), |keeper| keeper.tell(&Told::Serving, &[]))
    }

    /// It ends, and no other is to be started.
    pub fn tell_ending(&self) {
        self.keeper.iter().for_each(|keeper| drop(keeper.tell(&Told::Ending, &[])));
    }
}
