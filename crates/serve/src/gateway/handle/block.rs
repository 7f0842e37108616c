//! Controllers that are block devices of this machine: each is one namespace behind a `/dev/ublkbN`, or none yet.

use super::{no_namespace, Gateway};
use crate::gateway::config::{self, WhenDown};
use crate::gateway::stats::{ControllerStats, QueueStats, State as Doing};
use crate::namespace::volume::Volume;
use crate::target::stats::NamespaceStats;
use crate::ublk::{self, Attach, OnDeath, Options, Throttle, Ublk};
use forebay_model::Error;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// One such controller.
pub(super) struct Block {
    pub nqn: String,
    /// Devices come and go one change at a time; what it is now can be asked meanwhile.
    turn: Mutex<()>,
    now: Mutex<Now>,
}

struct Now {
    given: config::Controller,
    suspended: bool,
    /// The namespace that it shows, and its device.
    shown: Option<(u32, Arc<Ublk>)>,
}

impl Block {
    fn new(nqn: &str, given: config::Controller) -> Block {
        let now = Now { suspended: given.suspended, given, shown: None };
        Block { nqn: nqn.into(), turn: Mutex::default(), now: Mutex::new(now) }
    }

    fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn given(&self) -> config::Controller {
        self.now().given.clone()
    }

    fn name(&self) -> String {
        self.now().given.name.clone()
    }

    pub(super) fn shown(&self) -> Option<(u32, Arc<Ublk>)> {
        self.now().shown.clone()
    }

    fn device_of(&self, nsid: u32) -> Option<Arc<Ublk>> {
        self.shown().filter(|(shown, _)| *shown == nsid).map(|(_, device)| device)
    }

    fn choose(&self, nsid: Option<u32>) {
        self.now().given.namespaces = Some(nsid.into_iter().collect());
    }

    fn stats(&self) -> BlockStats {
        let (given, suspended, shown) = {
            let now = self.now();
            (now.given.clone(), now.suspended, now.shown.clone())
        };
        let mut stats = ControllerStats {
            name: given.name,
            subsystem: self.nqn.clone(),
            state: if suspended { Doing::Suspended } else { Doing::Waiting },
            place: given.device.map(|n| format!("/dev/ublkb{n}")).unwrap_or_default(),
            namespaces: given.namespaces.unwrap_or_default(),
            ..ControllerStats::default()
        };
        let mut moved = NamespaceStats::default();
        if let Some((_, device)) = shown {
            let told = device.stats();
            describe(&told, &mut stats);
            moved = counted(&told);
        }
        BlockStats { shown: stats, counted: moved }
    }
}

/// Adds the device's own statistics.
fn describe(device: &ublk::Stats, stats: &mut ControllerStats) {
    stats.place = device.path.clone();
    stats.recovered = device.recovered;
    stats.staged_bytes = device.staged_bytes;
    stats.copied_bytes = device.copied_bytes;
    stats.fabric.clone_from(&device.fabric);
    stats.state = match device.state {
        ublk::State::Live => Doing::Enabled,
        ublk::State::Suspended => Doing::Suspended,
        ublk::State::Stopped => Doing::Failed,
    };
    if device.state == ublk::State::Stopped {
        stats.why = Some("somebody else stopped its device".into());
    }
    stats.queues = device
        .queues
        .iter()
        .map(|q| QueueStats {
            // As an emulated drive has them: I/O queues begin with 1.
            qid: q.queue + 1,
            thread: Some(q.thread),
            entries: device.depth,
            in_flight: q.in_flight,
            staged_bytes: q.staged_bytes,
            counts: q.counts,
            read_latency: q.read_latency.clone(),
            write_latency: q.write_latency.clone(),
            ..QueueStats::default()
        })
        .collect();
}

/// A block device among the statistics.
pub(super) struct BlockStats {
    pub shown: ControllerStats,
    pub counted: NamespaceStats,
}

impl BlockStats {
    pub(super) fn is_of(&self, nqn: &str, nsid: u32) -> bool {
        self.shown.subsystem == nqn && self.shown.namespaces.contains(&nsid)
    }
}

/// As a namespace counts.
fn counted(device: &ublk::Stats) -> NamespaceStats {
    NamespaceStats {
        counts: device.counts,
        read_latency: device.read_latency.clone(),
        write_latency: device.write_latency.clone(),
        ..NamespaceStats::default()
    }
}

impl Gateway {
    pub(super) fn block(&self, name: &str) -> Option<Arc<Block>> {
        self.state().blocks.get(name).cloned()
    }

    pub(super) fn block_stats(&self) -> Vec<BlockStats> {
        let all: Vec<Arc<Block>> = self.state().blocks.values().cloned().collect();
        all.iter().map(|block| block.stats()).collect()
    }

    fn blocks_of(&self, nqn: &str) -> Vec<Arc<Block>> {
        self.state().blocks.values().filter(|block| block.nqn == nqn).cloned().collect()
    }

    /// A controller whose device is there once it has a namespace.
    pub(super) fn block_create(&self, nqn: &str, given: &config::Controller) -> Result<(), Error> {
        ublk::available()?;
        let mut state = self.state();
        state.name_is_free(&given.name)?;
        let there = state.subsystem(nqn)?.namespaces.keys().copied().collect();
        let shown = given.attached(&there)?;
        let given = config::Controller { namespaces: Some(shown.into_iter().collect()), ..given.clone() };
        let (name, block) = (given.name.clone(), Arc::new(Block::new(nqn, given)));
        state.blocks.insert(name.clone(), block.clone());
        drop(state);
        let _turn = block.turn();
        self.show_block(&block).inspect_err(|_| drop(self.state().blocks.remove(&name)))
    }

    /// Its device comes, where it has a namespace and isn't suspended.
    fn show_block(&self, block: &Block) -> Result<(), Error> {
        let (given, suspended) = (block.given(), block.now().suspended);
        let Some(nsid) = given.namespaces.as_ref().and_then(|all| all.first().copied()) else {
            return Ok(());
        };
        if suspended || block.shown().is_some() {
            return Ok(());
        }
        let (volume, throttle, namespace) = {
            let state = self.state();
            let found = state.namespace(&block.nqn, nsid)?;
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
        self.say(what, &[("controller", given.name.into()), ("device", path.into())]);
        block.now().shown = Some((nsid, Arc::new(device)));
        Ok(())
    }

    /// Its device goes, and what it counted stays with the namespace.
    fn hide_block(&self, block: &Block, force: bool) -> Result<(), Error> {
        let Some((nsid, device)) = block.shown() else { return Ok(()) };
        device.stop(force)?;
        if let Ok(namespace) = self.state().namespace(&block.nqn, nsid) {
            namespace.volume.past().add(&counted(&device.stats()));
        }
        block.now().shown = None;
        let path = device.path().display().to_string();
        self.say("block device deleted", &[("controller", block.name().into()), ("device", path.into())]);
        Ok(())
    }

    pub(super) fn block_destroy(&self, block: &Block, force: bool) -> Result<(), Error> {
        let _turn = block.turn();
        self.hide_block(block, force)?;
        let name = block.name();
        self.state().blocks.remove(&name);
        self.say("controller removed", &[("controller", name.into())]);
        Ok(())
    }

    /// Removes what was made for a configuration that failed; what had waited for a gateway waits for the next one.
    pub(super) fn blocks_undo(&self, of: impl Fn(&str) -> bool) {
        let (undone, kept) =
            std::mem::take(&mut self.state().blocks).into_iter().partition(|(_, b)| of(&b.nqn));
        self.state().blocks = kept;
        let undone: BTreeMap<String, Arc<Block>> = undone;
        for (_, device) in undone.values().filter_map(|block| block.shown()) {
            if !device.recovered() {
                let _ = device.stop(true);
            }
        }
    }

    /// As of `failure`, of the threads of block devices.
    pub(super) fn blocks_failure(&self) -> Option<Error> {
        let all: Vec<Arc<Block>> = self.state().blocks.values().cloned().collect();
        all.iter().find_map(|block| block.shown().and_then(|(_, device)| device.failure()))
    }

    /// The gateway ends: its devices wait for the next one.
    pub(super) fn blocks_leave(&self) {
        for (name, block) in std::mem::take(&mut self.state().blocks) {
            let Some((_, device)) = block.shown() else { continue };
            let path = device.path().display().to_string();
            self.say(
                "block device left to the next gateway",
                &[("controller", name.into()), ("device", path.into())],
            );
        }
    }

    pub(super) fn block_attach(&self, block: &Block, nsid: u32, shown: bool) -> Result<(), Error> {
        let _turn = block.turn();
        let (name, there) = (block.name(), block.given().namespaces.unwrap_or_default());
        if self.state().namespace(&block.nqn, nsid).is_err() {
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
                self.show_block(block).inspect_err(|_| block.choose(None))
            }
            (false, Some(other)) if *other == nsid => {
                self.hide_block(block, false)?;
                block.choose(None);
                Ok(())
            }
            (false, _) => Err(Error::request(asked(), "it isn't attached", "nvme_controller_list")),
        }
    }

    pub(super) fn block_suspend(&self, block: &Block, timeout: Duration) -> Result<(), Error> {
        let _turn = block.turn();
        if let Some((_, device)) = block.shown() {
            device.suspend(timeout)?;
        }
        block.now().suspended = true;
        Ok(())
    }

    pub(super) fn block_resume(&self, block: &Block) -> Result<(), Error> {
        let _turn = block.turn();
        block.now().suspended = false;
        match block.shown() {
            Some((_, device)) => device.resume(),
            None => self.show_block(block).inspect_err(|_| block.now().suspended = true)?,
        }
        Ok(())
    }

    /// A namespace goes: devices over it go first, or refuse to.
    pub(super) fn blocks_let_go(&self, nqn: &str, nsid: u32) -> Result<(), Error> {
        for block in self.blocks_of(nqn) {
            let _turn = block.turn();
            if block.given().namespaces.is_some_and(|all| all.contains(&nsid)) {
                self.hide_block(&block, false)?;
                block.choose(None);
            }
        }
        Ok(())
    }

    /// Another source of the same shape comes below a namespace's devices.
    pub(super) fn blocks_replace(
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
    pub(super) fn blocks_look(&self, nqn: &str, nsid: u32) {
        let devices = self.blocks_of(nqn).into_iter().filter_map(|block| block.device_of(nsid));
        devices.for_each(|device| device.look());
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
