//! Controllers that are block devices of this machine: each is one namespace behind a `/dev/ublkbN`, or none yet.

use super::block::{counted, Block, BlockStats};
use super::registry::{no_namespace, SharedRegistry};
use crate::gateway::config::{self, WhenDown};
use crate::gateway::gateway_shared::GatewayShared;
use crate::namespace::volume::Volume;
use crate::target::log::Level;
use crate::ublk::{self, Attach, OnDeath, Options, Throttle, Ublk};
use forebay_model::Error;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The controllers of a gateway that are block devices: they come and go with the namespace that they show, and stay in the
/// kernel when the gateway goes.
pub(super) struct BlockDevices {
    pub shared: Arc<GatewayShared>,
    pub registry: SharedRegistry,
}

impl BlockDevices {
    pub(super) fn get(&self, name: &str) -> Option<Arc<Block>> {
        self.registry.lock().blocks.get(name).cloned()
    }

    pub(super) fn stats(&self) -> Vec<BlockStats> {
        let all: Vec<Arc<Block>> = self.registry.lock().blocks.values().cloned().collect();
        all.iter().map(|block| block.stats()).collect()
    }

    fn blocks_of(&self, nqn: &str) -> Vec<Arc<Block>> {
        self.registry.lock().blocks.values().filter(|block| block.nqn == nqn).cloned().collect()
    }

    /// A controller whose device is there once it has a namespace.
    pub(super) fn create(&self, nqn: &str, given: &config::Controller) -> Result<(), Error> {
        ublk::available()?;
        let mut registry = self.registry.lock();
        registry.name_is_free(&given.name)?;
        let there = registry.subsystem(nqn)?.namespaces.keys().copied().collect();
        let shown = given.attached(&there)?;
        let given = config::Controller { namespaces: Some(shown.into_iter().collect()), ..given.clone() };
        let (name, block) = (given.name.clone(), Arc::new(Block::new(nqn, given)));
        registry.blocks.insert(name.clone(), block.clone());
        drop(registry);
        let _turn = block.turn();
        self.show(&block).inspect_err(|_| drop(self.registry.lock().blocks.remove(&name)))
    }

    /// Its device comes, where it has a namespace and isn't suspended.
    fn show(&self, block: &Block) -> Result<(), Error> {
        let (given, suspended) = (block.given(), block.now().suspended);
        let Some(nsid) = given.namespaces.as_ref().and_then(|all| all.first().copied()) else {
            return Ok(());
        };
        if suspended || block.shown().is_some() {
            return Ok(());
        }
        let (volume, throttle, namespace) = {
            let registry = self.registry.lock();
            let found = registry.namespace(&block.nqn, nsid)?;
            let throttle = Throttle { limiter: found.limiter.clone(), began: self.shared.began };
            (found.volume.clone(), throttle, found.given.clone())
        };
        let mut options = options(&given, self.shared.spin);
        let volume = volume.beside(&block.nqn, &namespace.served(), options.workers())?;
        if options.id.is_none() {
            options.id = ublk::waiting(ublk::identity(&volume))?;
        }
        let device = Ublk::start_limited(volume, &options, Some(throttle)).map_err(in_its_words)?;
        let what = if device.recovered() { "block device taken over" } else { "block device made" };
        let path = device.path().display().to_string();
        self.shared.say(what, &[("controller", given.name.into()), ("device", path.into())]);
        block.now().shown = Some((nsid, Arc::new(device)));
        Ok(())
    }

    /// Its device goes, and what it counted stays with the namespace.
    fn hide(&self, block: &Block, force: bool) -> Result<(), Error> {
        let Some((nsid, device)) = block.shown() else { return Ok(()) };
        device.stop(force)?;
        if let Ok(namespace) = self.registry.lock().namespace(&block.nqn, nsid) {
            namespace.volume.past().add(&counted(&device.stats()));
        }
        block.now().shown = None;
        let path = device.path().display().to_string();
        self.shared
            .say("block device deleted", &[("controller", block.name().into()), ("device", path.into())]);
        Ok(())
    }

    pub(super) fn destroy(&self, block: &Block, force: bool) -> Result<(), Error> {
        let _turn = block.turn();
        self.hide(block, force)?;
        let name = block.name();
        self.registry.lock().blocks.remove(&name);
        self.shared.say("controller removed", &[("controller", name.into())]);
        Ok(())
    }

    /// Removes what was made for a configuration that failed; what had waited for a gateway waits for the next one.
    pub(super) fn undo(&self, of: impl Fn(&str) -> bool) {
        let (undone, kept) =
            std::mem::take(&mut self.registry.lock().blocks).into_iter().partition(|(_, b)| of(&b.nqn));
        self.registry.lock().blocks = kept;
        let undone: BTreeMap<String, Arc<Block>> = undone;
        for (_, device) in undone.values().filter_map(|block| block.shown()) {
            if !device.recovered() {
                let _ = device.stop(true);
            }
        }
    }

    /// As of `failure`, of the threads of block devices.
    pub(super) fn failure(&self) -> Option<Error> {
        let all: Vec<Arc<Block>> = self.registry.lock().blocks.values().cloned().collect();
        all.iter().find_map(|block| block.shown().and_then(|(_, device)| device.failure()))
    }

    /// The gateway ends: its devices wait for the next one.
    pub(super) fn leave(&self) {
        for (name, block) in std::mem::take(&mut self.registry.lock().blocks) {
            let Some((_, device)) = block.shown() else { continue };
            let path = device.path().display().to_string();
            self.shared.say(
                "block device left to the next gateway",
                &[("controller", name.into()), ("device", path.into())],
            );
        }
    }

    pub(super) fn attach(&self, block: &Block, nsid: u32, shown: bool) -> Result<(), Error> {
        let _turn = block.turn();
        let (name, there) = (block.name(), block.given().namespaces.unwrap_or_default());
        if self.registry.lock().namespace(&block.nqn, nsid).is_err() {
            return Err(no_namespace(&block.nqn, nsid));
        }
        let asked = || format!("nsid {nsid} of {name}");
        match (shown, there.first()) {
            (true, Some(other)) if *other == nsid => {
                Err(Error::request(asked(), "it is attached", "nvme_controller_list"))
            }
            (true, Some(other)) => {
                let found = format!("a block device is one namespace, and it has nsid {other}");
                Err(Error::request(asked(), found, format!("nvme_controller_detach_ns --nsid {other}")))
            }
            (true, None) => {
                block.choose(Some(nsid));
                self.show(block).inspect_err(|_| block.choose(None))
            }
            (false, Some(other)) if *other == nsid => {
                self.hide(block, false)?;
                block.choose(None);
                Ok(())
            }
            (false, _) => Err(Error::request(asked(), "it isn't attached", "nvme_controller_list")),
        }
    }

    pub(super) fn suspend(&self, block: &Block, timeout: Duration) -> Result<(), Error> {
        let _turn = block.turn();
        if let Some((_, device)) = block.shown() {
            device.suspend(timeout)?;
        }
        block.now().suspended = true;
        Ok(())
    }

    pub(super) fn resume(&self, block: &Block) -> Result<(), Error> {
        let _turn = block.turn();
        block.now().suspended = false;
        match block.shown() {
            Some((_, device)) => device.resume(),
            None => self.show(block).inspect_err(|_| block.now().suspended = true)?,
        }
        Ok(())
    }

    /// Takes up devices that another gateway left, or this one: each with its subsystem.
    pub(super) fn resume_all(&self, blocks: &[(String, config::Controller)]) {
        for (nqn, given) in blocks {
            if let Err(e) = given.check().and_then(|()| self.create(nqn, given)) {
                let fields = [("controller", given.name.clone().into()), ("why", e.to_string().into())];
                self.shared.log.say(Level::Error, "block device not taken over", &fields);
            }
        }
    }

    /// A namespace goes: devices over it go first, or refuse to.
    pub(super) fn let_go(&self, nqn: &str, nsid: u32) -> Result<(), Error> {
        for block in self.blocks_of(nqn) {
            let _turn = block.turn();
            if block.given().namespaces.is_some_and(|all| all.contains(&nsid)) {
                self.hide(&block, false)?;
                block.choose(None);
            }
        }
        Ok(())
    }

    /// Another source of the same shape comes below a namespace's devices.
    pub(super) fn replace(
        &self,
        nqn: &str,
        given: &config::Namespace,
        volume: &Arc<Volume>,
    ) -> Result<(), Error> {
        for block in self.blocks_of(nqn) {
            let _turn = block.turn();
            let Some(device) = block.device_of(given.nsid) else { continue };
            let threads = options(&block.given(), self.shared.spin).workers();
            device.replace(volume.beside(nqn, &given.served(), threads)?)?;
        }
        Ok(())
    }

    /// A namespace's limits are others now.
    pub(super) fn limits_changed(&self, nqn: &str, nsid: u32) {
        let devices = self.blocks_of(nqn).into_iter().filter_map(|block| block.device_of(nsid));
        devices.for_each(|device| device.limits_changed());
    }
}

/// Returns the options of a device of that controller.
fn options(given: &config::Controller, spin: Duration) -> Options {
    let ours = Options::default();
    Options {
        id: given.device,
        queues: given.queues.unwrap_or(ours.queues),
        depth: given.queue_depth.unwrap_or(ours.depth),
        max_transfer: given.max_transfer,
        spin_us: spin.as_micros() as u32,
        on_death: match given.when_down {
            WhenDown::Wait => OnDeath::Wait,
            WhenDown::Fail => OnDeath::Fail,
        },
        attach: Attach::Auto,
        ..ours
    }
}

/// A configuration of the gateway has another name for what a device does without its daemon.
fn in_its_words(e: Error) -> Error {
    Error {
        asked: e.asked.replace("on_death", "when_down"),
        next: e.next.replace("on_death", "when_down"),
        ..e
    }
}
