//! The gateway as its owner sees it: started, changed while it runs, asked, handed over, stopped.

mod block;
mod blocks;
mod describe;
mod drives;
mod give;
mod place;
mod registry;
mod take;

pub(crate) use give::PATIENCE;

use super::config::{self, Config, Frontend, Qos};
use super::gateway_shared::GatewayShared;
use super::handed::{broken, Given};
use super::handover::wire::Line;
use super::handover::{Kept, Message, FORMAT};
use super::rpc::Door;
use super::stats::{Stats, SubsystemStats};
use super::supervisor::{Supervisor, SupervisorNotice};
use super::worker::{Worker, WorkerMessage, STOP};
use crate::namespace::qos::Limiter;
use crate::namespace::volume::Volume;
use crate::target::log::{Level, Log, Sink};
use crate::target::thread_pool::{self, join_by, Failure};
use blocks::BlockDevices;
use describe::{controller_stats, namespace_stats};
use drives::Drives;
use forebay_io::monotonic_now;
use forebay_model::Error;
use give::Giving;
use place::GatewayPlace;
use registry::{limits, no_namespace, Namespace, SharedRegistry, Subsystem};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Runs on threads of its own, until it is dropped. All calls may come from any thread.
pub struct Gateway {
    /// Without subsystems, which the registry has.
    config: Config,
    shared: Arc<GatewayShared>,
    registry: SharedRegistry,
    drives: Drives,
    blocks: BlockDevices,
    threads: Vec<JoinHandle<()>>,
    log: Option<JoinHandle<()>>,
    locks: Mutex<Locks>,
    place: GatewayPlace,
    /// Outlives this process, and starts the next.
    supervisor: Option<Arc<Supervisor>>,
}

/// Holders of locks on files of namespaces that another process's gateway had, by NQN and nsid.
type Locks = BTreeMap<(String, u32), Vec<OwnedFd>>;

impl Gateway {
    /// Starts the threads, opens all sources, and listens on all sockets. `sink` gets the log's lines.
    ///
    /// # Errors
    /// `Request`: a configuration that can't be, a source that can't be opened, a socket that is in use. `Machine`: no
    /// io_uring, no threads.
    pub fn start(config: &Config, sink: Sink) -> Result<Gateway, Error> {
        Gateway::begin(config, sink, monotonic_now(), Locks::new(), None)
    }

    /// As `start`, by a process that has a supervisor.
    ///
    /// # Errors
    /// Of `start`.
    pub(crate) fn start_kept(
        config: &Config,
        sink: Sink,
        supervisor: Arc<Supervisor>,
    ) -> Result<Gateway, Error> {
        Gateway::begin(config, sink, monotonic_now(), Locks::new(), Some(supervisor))
    }

    /// Takes over what the gateway at the other end of `line` gives, and serves it. With it comes the socket of its RPCs.
    ///
    /// # Errors
    /// A source can't be opened, what came can't be, or the other one changed its mind: it serves on, and nothing of this
    /// was seen by anybody.
    pub fn take_over(mut line: Line, sink: Sink) -> Result<(Gateway, Option<OwnedFd>), Error> {
        take::take_over(&mut line, sink).inspect_err(|error| {
            let _ = line.send(&Message::Over(error.clone()), &[]);
        })
    }

    /// Goes on for a gateway that was killed, with the socket of its RPCs.
    ///
    /// # Errors
    /// A source can't be opened, or isn't what it was; what came was noted by another version.
    pub fn go_on(supervisor: Arc<Supervisor>, sink: Sink) -> Result<(Gateway, Option<OwnedFd>), Error> {
        take::go_on(supervisor, sink)
    }

    /// `began`: where it goes on for another, when that one did.
    fn begin(
        config: &Config,
        sink: Sink,
        began: Instant,
        locks: Locks,
        supervisor: Option<Arc<Supervisor>>,
    ) -> Result<Gateway, Error> {
        config.check()?;
        let cpus = crate::target::config::cpus(&config.cpus)?;
        let threads = thread_pool::threads(config.threads, &cpus);
        let (log, log_thread) = Log::start(sink)?;
        let spin = Duration::from_micros(config.spin_us.into());
        let life = supervisor.as_ref().map(|supervisor| supervisor.life());
        let failure = Failure::default();
        let shared = Arc::new(GatewayShared { threads, cpus, spin, log, began, life, failure });
        let of_threads = shared.clone();
        let pool = thread_pool::begin("gw", threads, move |number| Worker::new(of_threads.clone(), number))?;
        let registry = SharedRegistry::default();
        let gateway = Gateway {
            config: Config { subsystems: Vec::new(), ..config.clone() },
            drives: Drives {
                shared: shared.clone(),
                registry: registry.clone(),
                workers: pool.inboxes.into(),
                supervisor: supervisor.clone(),
            },
            blocks: BlockDevices { shared: shared.clone(), registry: registry.clone() },
            shared,
            registry,
            threads: pool.threads,
            log: Some(log_thread),
            locks: Mutex::new(locks),
            place: GatewayPlace::default(),
            supervisor,
        };
        let made = config.subsystems.iter().try_for_each(|given| gateway.subsystem_create(given));
        made.inspect_err(|_| gateway.blocks.undo(|_| true))?;
        Ok(gateway)
    }

    // Subsystems and namespaces.

    /// A subsystem with its namespaces and controllers; all of it or nothing.
    pub fn subsystem_create(&self, given: &config::Subsystem) -> Result<(), Error> {
        given.check()?;
        let mut registry = self.registry.lock();
        if registry.subsystems.contains_key(&given.nqn) {
            return Err(Error::request(&given.nqn, "this subsystem already exists", "another NQN"));
        }
        registry.subsystems.insert(given.nqn.clone(), Subsystem::new(given));
        drop(registry);
        let all = || -> Result<(), Error> {
            for namespace in &given.namespaces {
                self.namespace_create(&given.nqn, namespace)?;
            }
            given.controllers.iter().try_for_each(|c| self.controller_create(&given.nqn, c))
        };
        all().inspect_err(|_| {
            for controller in &given.controllers {
                if controller.frontend == Frontend::VfioUser {
                    let _ = self.controller_destroy(&controller.name, true);
                }
            }
            self.blocks.undo(|nqn| nqn == given.nqn);
            self.registry.lock().subsystems.remove(&given.nqn);
        })
    }

    /// # Errors
    /// It has controllers, or there is none such.
    pub fn subsystem_destroy(&self, nqn: &str) -> Result<(), Error> {
        let mut registry = self.registry.lock();
        registry.subsystem(nqn)?;
        if let Some(name) = registry.drives_of(nqn).chain(registry.blocks_of(nqn)).next() {
            let found = format!("it has the controller {name}");
            return Err(Error::request(nqn, found, format!("nvme_controller_destroy {name} first")));
        }
        registry.subsystems.remove(nqn);
        Ok(())
    }

    /// Opens a source and shows it by all controllers that show all. Returns its nsid.
    pub fn namespace_create(&self, nqn: &str, given: &config::Namespace) -> Result<u32, Error> {
        given.check()?;
        let nsid = self.registry.lock().subsystem(nqn)?.free_nsid(given.nsid)?;
        let given = config::Namespace { nsid, ..given.clone() };
        let locks = self.locks().remove(&(nqn.to_string(), nsid));
        // It may take its time: the registry isn't held.
        let threads = self.shared.threads as u32;
        let volume = Arc::new(Volume::open_direct_locked(nqn, nsid, &given.served(), threads, locks)?);
        let mut registry = self.registry.lock();
        let subsystem = registry.subsystem_mut(nqn)?;
        if subsystem.namespaces.contains_key(&nsid) {
            return Err(Error::request(format!("nsid = {nsid}"), "another call has just made it", "another"));
        }
        let limiter = Limiter::new(limits(given.qos));
        subsystem.namespaces.insert(nsid, Namespace { given, volume, limiter });
        registry.announce(nqn);
        self.shared.say("namespace added", &[("subsystem", nqn.into()), ("nsid", nsid.into())]);
        Ok(nsid)
    }

    fn locks(&self) -> MutexGuard<'_, Locks> {
        self.locks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Commands that come from now on find no such namespace; those in flight finish.
    ///
    /// # Errors
    /// There is none such, or a block device over it is in use.
    pub fn namespace_destroy(&self, nqn: &str, nsid: u32) -> Result<(), Error> {
        self.blocks.let_go(nqn, nsid)?;
        let mut registry = self.registry.lock();
        let removed = registry.subsystem_mut(nqn)?.namespaces.remove(&nsid);
        let Some(Namespace { volume, .. }) = removed else { return Err(no_namespace(nqn, nsid)) };
        for drive in registry.drives.values_mut().filter(|c| c.nqn == nqn) {
            if let Some(shown) = &mut drive.given.namespaces {
                shown.retain(|other| *other != nsid);
            }
        }
        registry.announce(nqn);
        drop(registry);
        self.await_release(volume);
        self.shared.say("namespace removed", &[("subsystem", nqn.into()), ("nsid", nsid.into())]);
        Ok(())
    }

    /// Puts another source in the place of one; hosts don't notice, but for what they read. I/O in flight ends on the
    /// old one.
    ///
    /// # Errors
    /// Its size or its blocks aren't the same, or it can't be opened.
    pub fn namespace_set_source(&self, nqn: &str, nsid: u32, given: &config::Namespace) -> Result<(), Error> {
        let old = self.registry.lock().namespace(nqn, nsid)?.volume.clone();
        let given = config::Namespace { nsid, ..given.clone() };
        given.check()?;
        let threads = self.shared.threads as u32;
        let volume = Arc::new(Volume::open_direct(nqn, nsid, &given.served(), threads)?);
        let shape = |v: &Volume| (v.blocks, v.block_bytes, v.writable);
        if shape(&volume) != shape(&old) {
            let (blocks, bytes, writable) = shape(&volume);
            let found = format!("it has {blocks} blocks of {bytes} bytes (writable: {writable})");
            let (blocks, bytes, writable) = shape(&old);
            let next = format!("a source of {blocks} blocks of {bytes} bytes (writable: {writable})");
            return Err(Error::request(&given.source, found, next));
        }
        self.blocks.replace(nqn, &given, &volume)?;
        let mut registry = self.registry.lock();
        let there = registry.namespace_mut(nqn, nsid)?;
        there.limiter.set(limits(given.qos), self.shared.now_ns());
        (there.given, there.volume) = (given, volume);
        registry.announce(nqn);
        drop(registry);
        self.await_release(old);
        self.shared.say("source replaced", &[("subsystem", nqn.into()), ("nsid", nsid.into())]);
        Ok(())
    }

    /// Limits of a namespace from now on.
    pub fn namespace_set_qos(&self, nqn: &str, nsid: u32, qos: Qos) -> Result<(), Error> {
        qos.check()?;
        let mut registry = self.registry.lock();
        let there = registry.namespace_mut(nqn, nsid)?;
        there.given.qos = qos;
        there.limiter.set(limits(qos), self.shared.now_ns());
        self.drives.limits_changed();
        drop(registry);
        self.blocks.limits_changed(nqn, nsid);
        Ok(())
    }

    /// Returns once the threads have let go of a source that somebody may want to lock, or after half a second.
    fn await_release(&self, volume: Arc<Volume>) {
        thread_pool::await_release(&volume, monotonic_now() + Duration::from_millis(500));
    }

    // Controllers: emulated drives, or block devices.

    /// Makes a controller's socket and starts its thread, or makes its block device.
    pub fn controller_create(&self, nqn: &str, given: &config::Controller) -> Result<(), Error> {
        given.check()?;
        match given.frontend {
            Frontend::Ublk => self.blocks.create(nqn, given),
            Frontend::VfioUser => self.drives.create(nqn, given),
        }
    }

    /// Disconnects its client and removes its socket, or deletes its block device.
    ///
    /// # Errors
    /// Without `force`: a host has it enabled, or something uses the device.
    pub fn controller_destroy(&self, name: &str, force: bool) -> Result<(), Error> {
        match self.blocks.get(name) {
            Some(block) => self.blocks.destroy(&block, force),
            None => self.drives.destroy(name, force),
        }
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
        match self.blocks.get(name) {
            Some(block) => self.blocks.attach(&block, nsid, shown),
            None => self.drives.show(name, nsid, shown),
        }
    }

    /// Fetches no more commands, and returns once none is under way. The host's queues stay as they are.
    ///
    /// # Errors
    /// I/O is still under way after `timeout`: the controller goes on as before.
    pub fn suspend(&self, name: &str, timeout: Duration) -> Result<(), Error> {
        match self.blocks.get(name) {
            Some(block) => self.blocks.suspend(&block, timeout),
            None => self.drives.suspend(name, timeout),
        }
    }

    pub fn resume(&self, name: &str) -> Result<(), Error> {
        match self.blocks.get(name) {
            Some(block) => self.blocks.resume(&block),
            None => self.drives.resume(name),
        }
    }

    // What there is.

    /// All of it, as it is now.
    pub fn config(&self) -> Config {
        let registry = self.registry.lock();
        let subsystems = registry.subsystems.iter().map(|(nqn, s)| config::Subsystem {
            namespaces: s.namespaces.values().map(|n| n.given.clone()).collect(),
            controllers: registry
                .drives
                .values()
                .filter(|c| c.nqn == *nqn)
                .map(|c| c.given.clone())
                .chain(registry.blocks.values().filter(|b| b.nqn == *nqn).map(|b| b.given()))
                .collect(),
            ..s.given.clone()
        });
        Config { subsystems: subsystems.collect(), ..self.config.clone() }
    }

    pub fn stats(&self) -> Stats {
        let (reports, tallies) = (self.drives.reports(), self.drives.tallies());
        let devices = self.blocks.stats();
        let registry = self.registry.lock();
        let mut stats = Stats {
            seconds: monotonic_now().duration_since(self.shared.began).as_secs_f64(),
            threads: self.shared.threads as u32,
            log_lines_dropped: self.shared.log.dropped(),
            ..Stats::default()
        };
        for (nqn, subsystem) in &registry.subsystems {
            let devices = |nsid| devices.iter().filter(move |d| d.is_of(nqn, nsid)).map(|d| &d.counted);
            let namespaces = subsystem.namespaces.iter();
            let namespaces = namespaces.map(|(nsid, n)| namespace_stats(n, &reports, devices(*nsid)));
            stats.subsystems.push(SubsystemStats { nqn: nqn.clone(), namespaces: namespaces.collect() });
        }
        for (name, drive) in &registry.drives {
            let mut one = controller_stats(drive, &reports, tallies.get(name));
            one.namespaces = registry.shown(drive);
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
        self.shared.failure.get().or_else(|| self.blocks.failure())
    }

    pub(super) fn log(&self) -> Log {
        self.shared.log.clone()
    }

    // Its place, and its supervisor.

    /// Keeps the RPC socket, which is handed on, too.
    pub(crate) fn set_door(&self, door: Door) {
        self.place.set_door(door);
    }

    /// Another process has its place.
    pub fn has_left(&self) -> bool {
        self.place.has_left()
    }

    /// Refuses changes by RPCs while another process is told of the state, and afterwards.
    pub(crate) fn may_change(&self) -> Result<(), Error> {
        self.place.may_change()
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
        if self.supervisor.is_some() {
            let next = "kill -9 this gateway's process: its supervisor then starts the installed version";
            return Err(Error::request("a hand-over", "this gateway has a supervisor (--keep)", next));
        }
        self.place.leave(|| {
            let given = Giving::to(socket, self).and_then(Giving::run);
            match &given {
                Ok(()) => self.shared.say("handed over", &[]),
                Err(e) => {
                    let fields = [("why", e.to_string().into())];
                    self.shared.log.say(Level::Warning, "not handed over", &fields);
                }
            }
            given
        })
    }

    /// Has its supervisor know what the next one is to be. Nothing to do where it has none.
    pub(crate) fn tell_supervisor(&self) {
        let Some(supervisor) = &self.supervisor else { return };
        if let Err(e) = self.tell_state(supervisor) {
            self.shared.log.say(Level::Error, "supervisor not told", &[("why", e.to_string().into())]);
        }
    }

    fn tell_state(&self, supervisor: &Supervisor) -> Result<(), Error> {
        let (mut offer, _) = give::offer(self)?;
        // The next one takes them anew, once the kernel has let go of them.
        offer.namespaces.iter_mut().for_each(|namespace| namespace.locks.clear());
        let (mut given, age_ns) = (Given::default(), offer.age_ns);
        self.place.give_door(&mut given)?;
        let kept = Kept { format: FORMAT, offer };
        let text = serde_json::to_string(&kept).map_err(|e| broken(&e.to_string()))?;
        supervisor.tell(&SupervisorNotice::Gateway { text, age_ns }, &given.0)
    }

    /// After what an RPC changed.
    pub fn changed<T>(&self, done: Result<T, Error>) -> Result<T, Error> {
        done.inspect(|_| self.tell_supervisor())
    }

    /// It serves.
    ///
    /// # Errors
    /// The supervisor is gone.
    pub(crate) fn tell_serving(&self) -> Result<(), Error> {
        self.tell_supervisor();
        self.supervisor.as_ref().map_or(Ok(()), |supervisor| supervisor.tell(&SupervisorNotice::Serving, &[]))
    }

    /// It ends, and no other is to be started.
    pub(crate) fn tell_ending(&self) {
        self.supervisor.iter().for_each(|supervisor| drop(supervisor.tell(&SupervisorNotice::Ending, &[])));
    }

    /// Disconnects all clients, lets I/O end, and waits for the threads. Block devices wait for the next gateway.
    pub fn stop(self) {
        drop(self);
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.blocks.leave();
        self.drives.end_all();
        self.drives.workers.iter().for_each(|worker| worker.post(WorkerMessage::Stop));
        for thread in self.threads.drain(..) {
            join_by(thread, monotonic_now() + STOP * 2);
        }
        self.shared.say("stopped", &[]);
        self.shared.log.close();
        if let Some(thread) = self.log.take() {
            join_by(thread, monotonic_now() + STOP);
        }
    }
}
