//! The gateway as its owner sees it: started, changed while it runs, asked, stopped.

mod block;
mod describe;
mod give;
mod kept;
mod state;
mod subsystems;
mod take;

pub(crate) use give::PATIENCE;
use state::{end, no_controller, no_namespace, sheets};

use super::config;
use super::config::Config;
use super::config::Front;
use super::controller::{Controller, Parts};
use super::controller_shared::{ControllerEvent, ControllerShared, Lent, Options};
use super::gateway_shared::GatewayShared;
use super::keeper::{Keeper, Link};
use super::rpc::Door;
use super::shm::QUEUES_MAX;
use super::stats::{Stats, SubsystemStats};
use super::vfio_user::socket::Listener;
use super::worker::{Report, Worker, WorkerMessage, STOP};
use crate::namespace::qos::Limiter;
use crate::namespace::volume::Volume;
use crate::target::inbox::Inbox;
use crate::target::log::{Level, Log, Sink};
use crate::target::thread_pool::{self, join_by, spawn, Failure};
use block::Block;
use describe::{controller_stats, describe, health, namespace_stats, view};
use forebay_io::clock;
use forebay_io::reactor::Waker;
use forebay_model::Error;
use forebay_nvme::controller::connect::Ids;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A thread that doesn't answer within this time is left out.
const REPLY: Duration = Duration::from_secs(5);

/// A namespace: what was asked for, and what it is.
struct Namespace {
    given: config::Namespace,
    volume: Arc<Volume>,
    limiter: Arc<Limiter>,
}

struct Subsystem {
    /// Without namespaces and controllers, which have their own places.
    given: config::Subsystem,
    namespaces: BTreeMap<u32, Namespace>,
    ids: Ids,
}

/// A controller that runs on its thread.
struct Running {
    given: config::Controller,
    nqn: String,
    cntlid: u16,
    shared: Arc<ControllerShared>,
    thread: JoinHandle<()>,
}

#[derive(Default)]
struct State {
    subsystems: BTreeMap<String, Subsystem>,
    controllers: BTreeMap<String, Running>,
    /// Controllers that are block devices.
    blocks: BTreeMap<String, Arc<Block>>,
    next_id: u64,
}

/// Runs on threads of its own, until it is dropped. All calls may come from any thread.
pub struct Gateway {
    config: Config,
    shared: Arc<GatewayShared>,
    workers: Arc<[Arc<Inbox<WorkerMessage>>]>,
    threads: Vec<JoinHandle<()>>,
    log: Option<JoinHandle<()>>,
    state: Mutex<State>,
    /// Holders of locks on files of namespaces that another process's gateway had.
    locks: Mutex<Locks>,
    door: Mutex<Option<Door>>,
    place: give::Place,
    /// Outlives this process, and starts the next.
    keeper: Option<Arc<Keeper>>,
}

/// By NQN and nsid.
type Locks = BTreeMap<(String, u32), Vec<OwnedFd>>;

impl Gateway {
    /// Starts the threads, opens all sources, and listens on all sockets. `sink` gets the log's lines.
    ///
    /// # Errors
    /// `Request`: a configuration that can't be, a source that can't be opened, a socket that is in use. `Machine`: no
    /// io_uring, no threads.
    pub fn start(config: &Config, sink: Sink) -> Result<Gateway, Error> {
        Gateway::begin(config, sink, clock::now(), Locks::new(), None)
    }

    /// `began`: where it goes on for another, when that one did.
    fn begin(
        config: &Config,
        sink: Sink,
        began: Instant,
        locks: Locks,
        keeper: Option<Arc<Keeper>>,
    ) -> Result<Gateway, Error> {
        config.check()?;
        let cpus = crate::target::config::cpus(&config.cpus)?;
        let threads = thread_pool::threads(config.threads, &cpus);
        let (log, log_thread) = Log::start(sink)?;
        let spin = Duration::from_micros(config.spin_us.into());
        let life = keeper.as_ref().map(|keeper| keeper.life());
        let shared =
            Arc::new(GatewayShared { threads, cpus, spin, log, began, life, failure: Failure::default() });
        let made_for = shared.clone();
        let pool = thread_pool::begin("gw", threads, move |number| Worker::new(made_for.clone(), number))?;
        let gateway = Gateway {
            config: Config { subsystems: Vec::new(), ..config.clone() },
            shared,
            workers: pool.inboxes.into(),
            threads: pool.threads,
            log: Some(log_thread),
            state: Mutex::default(),
            locks: Mutex::new(locks),
            door: Mutex::default(),
            place: give::Place::default(),
            keeper,
        };
        let made = config.subsystems.iter().try_for_each(|given| gateway.subsystem_create(given));
        made.inspect_err(|_| gateway.blocks_undo(|_| true))?;
        Ok(gateway)
    }

    /// As the workers count it.
    fn now_ns(&self) -> u64 {
        clock::now().saturating_duration_since(self.shared.began).as_nanos() as u64
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Makes a controller's socket and starts its thread, or makes its block device.
    pub fn controller_create(&self, nqn: &str, given: &config::Controller) -> Result<(), Error> {
        given.check()?;
        let queues = given.queues.unwrap_or(config::QUEUES);
        if given.front == Front::Ublk {
            return self.block_create(nqn, given);
        }
        if queues > QUEUES_MAX {
            let asked = format!("queues = {queues} of {}", given.name);
            return Err(Error::request(
                asked,
                "there are more than doorbells",
                format!("at most {QUEUES_MAX}"),
            ));
        }
        let mut state = self.state();
        state.name_is_free(&given.name)?;
        let id = state.next_id;
        state.next_id += 1;
        let subsystem = state.subsystem_mut(nqn)?;
        let ids: std::collections::BTreeSet<u32> = subsystem.namespaces.keys().copied().collect();
        given.attached(&ids)?;
        let listener = Listener::bind(Path::new(given.socket.as_deref().unwrap_or_default()))?;
        let cntlid = subsystem.ids.take().ok_or_else(|| {
            Error::request(&given.name, "no controller identifier is left", "another subsystem")
        })?;
        let running = self.start_controller(id, cntlid, nqn, given, subsystem, listener)?;
        state.controllers.insert(given.name.clone(), running);
        let socket = given.socket.clone().unwrap_or_default();
        self.say("listening", &[("controller", given.name.clone().into()), ("socket", socket.into())]);
        Ok(())
    }

    fn start_controller(
        &self,
        id: u64,
        cntlid: u16,
        nqn: &str,
        given: &config::Controller,
        subsystem: &Subsystem,
        listener: Listener,
    ) -> Result<Running, Error> {
        let lent = Lent::new(self.shared.threads)?;
        let link = match &self.keeper {
            None => None,
            Some(keeper) => Some(keeper.adopt(&given.name, nqn, &listener, sheets(given))?),
        };
        let (shared, parts) = self.parts(id, cntlid, given, subsystem, (listener, link), lent)?;
        let run = move || Controller::new(parts).run();
        let thread = spawn(&format!("ctl-{}", given.name), run)?;
        Ok(Running { given: given.clone(), nqn: nqn.into(), cntlid, shared, thread })
    }

    /// Returns the parts that a controller's thread and the workers need.
    fn parts(
        &self,
        id: u64,
        cntlid: u16,
        given: &config::Controller,
        subsystem: &Subsystem,
        (listener, link): (Listener, Option<Link>),
        lent: Lent,
    ) -> Result<(Arc<ControllerShared>, Parts), Error> {
        let failed = |e: std::io::Error| Error::machine(&given.name, e.to_string(), "ulimit -n 65536");
        let waker = Arc::new(Waker::new().map_err(failed)?);
        let events: Arc<Inbox<ControllerEvent>> = Arc::new(Inbox::new(waker.clone()));
        let options = Options {
            id,
            name: given.name.clone(),
            threads: self.shared.threads,
            vectors: given.queues.unwrap_or(config::QUEUES) + 1,
            poll: given.poll,
            transfer_bytes_max: given.max_transfer.0 as u32,
            view: view(subsystem, given),
        };
        let shared = Arc::new(ControllerShared::new(options, lent, events));
        let counted = shared.clone();
        let parts = Parts {
            gateway: self.shared.clone(),
            workers: self.workers.clone(),
            shared: shared.clone(),
            waker,
            listener,
            link,
            subsystem: describe(subsystem, given),
            cntlid,
            suspended: given.suspended,
            health: Box::new(move || health(&counted)),
        };
        Ok((shared, parts))
    }

    /// Disconnects its client and removes its socket, or deletes its block device.
    ///
    /// # Errors
    /// Without `force`: a host has it enabled, or something uses the device.
    pub fn controller_destroy(&self, name: &str, force: bool) -> Result<(), Error> {
        if let Some(block) = self.block(name) {
            return self.block_destroy(&block, force);
        }
        if !force && self.ask(name, |c| c.is_in_use())? {
            let next = "force, or shut the host down first";
            return Err(Error::request(name, "a host has it enabled", next));
        }
        let mut state = self.state();
        let running = state.controllers.remove(name).ok_or_else(|| no_controller(name))?;
        if let Some(subsystem) = state.subsystems.get_mut(&running.nqn) {
            subsystem.ids.give_back(running.cntlid);
        }
        drop(state);
        end(running);
        self.say("controller removed", &[("controller", name.into())]);
        Ok(())
    }

    /// Shows a namespace by one controller.
    pub fn attach(&self, name: &str, nsid: u32) -> Result<(), Error> {
        self.show(name, nsid, true)
    }

    /// Hides a namespace from one controller's host.
    pub fn detach(&self, name: &str, nsid: u32) -> Result<(), Error> {
        self.show(name, nsid, false)
    }

    fn show(&self, name: &str, nsid: u32, shown: bool) -> Result<(), Error> {
        if let Some(block) = self.block(name) {
            return self.block_attach(&block, nsid, shown);
        }
        let mut state = self.state();
        let State { controllers, subsystems, .. } = &mut *state;
        let running = controllers.get_mut(name).ok_or_else(|| no_controller(name))?;
        let subsystem = subsystems.get(&running.nqn).ok_or_else(|| no_controller(name))?;
        if !subsystem.namespaces.contains_key(&nsid) {
            return Err(no_namespace(&running.nqn, nsid));
        }
        let all = || subsystem.namespaces.keys().copied().collect();
        let mut list: Vec<u32> = running.given.namespaces.clone().unwrap_or_else(all);
        if list.contains(&nsid) == shown {
            let found = if shown { "it is attached" } else { "it isn't attached" };
            return Err(Error::request(format!("nsid {nsid} of {name}"), found, "nvme_controller_list"));
        }
        list.retain(|other| *other != nsid);
        if shown {
            list.push(nsid);
            list.sort_unstable();
        }
        running.given.namespaces = Some(list);
        state.announce_to(name);
        Ok(())
    }

    /// Fetches no more commands, and returns once none is under way. The host's queues stay as they are.
    ///
    /// # Errors
    /// I/O is still under way after `timeout`: the controller goes on as before.
    pub fn suspend(&self, name: &str, timeout: Duration) -> Result<(), Error> {
        if let Some(block) = self.block(name) {
            return self.block_suspend(&block, timeout);
        }
        let (done, quiet) = sync_channel(1);
        self.ask(name, move |c| c.suspend(done))?;
        if quiet.recv_timeout(timeout).is_ok() {
            return Ok(());
        }
        self.ask(name, Controller::resume)?;
        let found = format!("I/O was still under way after {:.1} s", timeout.as_secs_f64());
        Err(Error::run(format!("suspend {name}"), found, "a longer timeout, or look at its source"))
    }

    pub fn resume(&self, name: &str) -> Result<(), Error> {
        if let Some(block) = self.block(name) {
            return self.block_resume(&block);
        }
        self.ask(name, Controller::resume)
    }

    /// Has the controller's thread do something, and waits for it.
    fn ask<T: Send + 'static>(
        &self,
        name: &str,
        what: impl FnOnce(&mut Controller) -> T + Send + 'static,
    ) -> Result<T, Error> {
        let events = {
            let state = self.state();
            let running = state.controllers.get(name).ok_or_else(|| no_controller(name))?;
            running.shared.events.clone()
        };
        let (reply, answer) = sync_channel(1);
        events.post(ControllerEvent::Call(Box::new(move |controller| {
            let _ = reply.send(what(controller));
        })));
        answer.recv_timeout(REPLY).map_err(|_| {
            Error::run(name, "its thread does not respond", "the gateway's log says what it is doing")
        })
    }

    /// All of it, as it is now.
    pub fn config(&self) -> Config {
        let state = self.state();
        let subsystems = state.subsystems.iter().map(|(nqn, s)| config::Subsystem {
            namespaces: s.namespaces.values().map(|n| n.given.clone()).collect(),
            controllers: state
                .controllers
                .values()
                .filter(|c| c.nqn == *nqn)
                .map(|c| c.given.clone())
                .chain(state.blocks.values().filter(|b| b.nqn == *nqn).map(|b| b.given()))
                .collect(),
            ..s.given.clone()
        });
        Config { subsystems: subsystems.collect(), ..self.config.clone() }
    }

    pub fn stats(&self) -> Stats {
        let reports = self.reports();
        let names: Vec<String> = self.state().controllers.keys().cloned().collect();
        let tallies: BTreeMap<String, _> = names
            .into_iter()
            .filter_map(|name| Some((name.clone(), self.ask(&name, |c| c.tally()).ok()?)))
            .collect();
        let devices = self.block_stats();
        let state = self.state();
        let mut stats = Stats {
            seconds: clock::now().duration_since(self.shared.began).as_secs_f64(),
            threads: self.shared.threads as u32,
            log_lines_dropped: self.shared.log.dropped(),
            ..Stats::default()
        };
        for (nqn, subsystem) in &state.subsystems {
            let devices = |nsid| devices.iter().filter(move |d| d.is_of(nqn, nsid)).map(|d| &d.counted);
            let namespaces = subsystem.namespaces.iter();
            let namespaces = namespaces.map(|(nsid, n)| namespace_stats(n, &reports, devices(*nsid)));
            stats.subsystems.push(SubsystemStats { nqn: nqn.clone(), namespaces: namespaces.collect() });
        }
        for (name, running) in &state.controllers {
            let mut one = controller_stats(running, &reports, tallies.get(name));
            one.namespaces = state.shown(running);
            stats.staged_bytes += one.staged_bytes;
            stats.controllers.push(one);
        }
        for device in devices {
            stats.staged_bytes += device.shown.staged_bytes;
            stats.controllers.push(device.shown);
        }
        stats.controllers.sort_by(|a, b| a.name.cmp(&b.name));
        stats
    }

    /// Why a thread can't go on. The others do, but hosts of that one have nobody: stop, and start anew.
    pub fn failure(&self) -> Option<Error> {
        self.shared.failure.get().or_else(|| self.blocks_failure())
    }

    fn reports(&self) -> Vec<Report> {
        thread_pool::ask(&self.workers, WorkerMessage::Report, REPLY)
    }

    /// Returns once the threads have let go of a source that somebody may want to lock, or after half a second.
    fn await_release(&self, volume: Arc<Volume>) {
        thread_pool::await_release(&volume, clock::now() + Duration::from_millis(500));
    }

    pub(super) fn log(&self) -> Log {
        self.shared.log.clone()
    }

    fn say(&self, what: &'static str, fields: &[(&'static str, serde_json::Value)]) {
        self.shared.log.say(Level::Info, what, fields);
    }

    /// Disconnects all clients, lets I/O end, and waits for the threads. Block devices wait for the next gateway.
    pub fn stop(self) {
        drop(self);
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.blocks_leave();
        let controllers = std::mem::take(&mut self.state().controllers);
        controllers.into_values().for_each(end);
        self.workers.iter().for_each(|worker| worker.post(WorkerMessage::Stop));
        for thread in self.threads.drain(..) {
            join_by(thread, clock::now() + STOP * 2);
        }
        self.say("stopped", &[]);
        self.shared.log.close();
        if let Some(thread) = self.log.take() {
            join_by(thread, clock::now() + STOP);
        }
    }
}
