//! The server as its owner sees it: started, asked, drained, stopped.

use super::accept::{self, Acceptor};
use super::accept_rdma::Listeners;
use super::access::Access;
use super::config::{self, Config};
use super::ids::ConnectionId;
use super::log::{Level, Log, Sink};
use super::mdns::Announcer;
use super::message::{Message, Report};
use super::metrics;
use super::shared::{Addresses, TargetShared};
use super::stats::{QueueStats, Stats};
use super::subsystem::{free_nsid, SubsystemEntry};
use super::thread_pool::{self, join_by, spawn};
use super::worker::{Worker, STOP};
use crate::namespace::volume::Volume;
use forebay_io::monotonic_now;
use forebay_model::Error;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// A thread that doesn't report within this time is left out of a snapshot.
const REPORT: Duration = Duration::from_millis(500);
/// Interval at which a drain checks whether it is done.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// A target that runs on threads of its own, until it is dropped. All calls may come from any thread.
pub struct Server {
    pub(super) shared: Arc<TargetShared>,
    addresses: Vec<SocketAddr>,
    rdma_addresses: Vec<SocketAddr>,
    metrics_address: Option<SocketAddr>,
    /// Tells the threads that accept that they should end.
    stop: Arc<OwnedFd>,
    /// Threads that accept, then those that serve.
    accepting: Vec<JoinHandle<()>>,
    workers: Vec<JoinHandle<()>>,
    log: Option<JoinHandle<()>>,
}

impl Server {
    /// Opens the sources, binds the addresses and starts to serve. `sink` gets the log's lines, on a thread of
    /// its own.
    ///
    /// # Errors
    /// `Request`: a configuration that can't be, a source that can't be opened, an address that is in use.
    /// `Machine`: no io_uring, no memory, no threads.
    pub fn start(config: Config, sink: Sink) -> Result<Server, Error> {
        config.check()?;
        let wanted = config.addresses()?;
        let rdma_wanted = config.rdma_addresses()?;
        let metrics_wanted = config.metrics_address()?;
        let (log, log_thread) = Log::start(sink)?;
        let shared = Arc::new(TargetShared::open(config, log, monotonic_now())?);
        let listeners =
            wanted.into_iter().map(|a| accept::bind("listen", a)).collect::<Result<Vec<_>, _>>()?;
        let rdma = Listeners::bind(&rdma_wanted)?;
        let rdma_addresses = rdma.as_ref().map_or_else(Vec::new, Listeners::addresses);
        let metrics_listener = metrics_wanted.map(|a| accept::bind("metrics", a)).transpose()?;
        let local = |l: &std::net::TcpListener| l.local_addr().expect("a bound socket has an address");
        let addresses: Vec<SocketAddr> = listeners.iter().map(local).collect();
        let announcer = shared.config.mdns.then(|| Announcer::open(&addresses, &shared.log)).transpose()?;
        let flags = rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK;
        let stop = rustix::event::eventfd(0, flags)
            .map_err(|e| Error::machine("a wake descriptor", e.to_string(), "ulimit -n 65536"))?;
        let mut server = Server {
            metrics_address: metrics_listener.as_ref().map(local),
            addresses: addresses.clone(),
            rdma_addresses: rdma_addresses.clone(),
            shared: shared.clone(),
            stop: Arc::new(stop),
            accepting: Vec::new(),
            workers: Vec::new(),
            log: Some(log_thread),
        };
        let _ = shared.addresses.set(Addresses { tcp: addresses, rdma: rdma_addresses });
        server.start_workers()?;
        let acceptor = Acceptor::new(shared.clone(), listeners, server.stop.clone())?;
        server.accepting.push(spawn("accept", move || acceptor.run())?);
        if let Some(listeners) = rdma {
            let (stop, shared) = (server.stop.clone(), shared.clone());
            server.accepting.push(spawn("accept-rdma", move || listeners.run(&shared, &stop))?);
        }
        if let Some(listener) = metrics_listener {
            let (stop, shared) = (server.stop.clone(), shared.clone());
            let answer = move || metrics::serve(&listener, &stop, &|| metrics::render(&snapshot(&shared)));
            server.accepting.push(spawn("metrics", answer)?);
        }
        if let Some(announcer) = announcer {
            let stop = server.stop.clone();
            server.accepting.push(spawn("mdns", move || announcer.run(&stop))?);
        }
        server.say_where();
        Ok(server)
    }

    fn say_where(&self) {
        for address in &self.addresses {
            self.shared.log.say(Level::Info, "listening", &[("address", address.to_string().into())]);
        }
        for address in &self.rdma_addresses {
            let fields = [("address", address.to_string().into()), ("transport", "rdma".into())];
            self.shared.log.say(Level::Info, "listening", &fields);
        }
    }

    fn start_workers(&mut self) -> Result<(), Error> {
        let shared = self.shared.clone();
        let pool =
            thread_pool::begin("serve", shared.threads, move |number| Worker::new(shared.clone(), number))?;
        self.workers = pool.threads;
        let _ = self.shared.inboxes.set(pool.inboxes);
        Ok(())
    }

    /// The addresses it listens on over TCP, with the ports that were free.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Returns the addresses over RDMA.
    pub fn rdma_addresses(&self) -> &[SocketAddr] {
        &self.rdma_addresses
    }

    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics_address
    }

    /// Opens a source and offers it; connected hosts are told by an async event. Returns its nsid.
    pub fn add_namespace(&self, subsystem: &str, namespace: &config::Namespace) -> Result<u32, Error> {
        namespace.check()?;
        let subsystem = self.subsystem(subsystem)?;
        let _one_at_a_time = subsystem.change();
        let there = subsystem.volumes();
        let taken = |nsid: &u32| there.contains_key(nsid);
        let nsid = match namespace.nsid {
            0 => free_nsid(&taken)?,
            nsid if taken(&nsid) => {
                let found = format!("{} has it already", subsystem.nqn);
                return Err(Error::request(
                    format!("nsid = {nsid}"),
                    found,
                    "another nsid, or 0 for a free one",
                ));
            }
            nsid => nsid,
        };
        // It may take its time, and hosts connect meanwhile: the state isn't held.
        let volume = Volume::open(&subsystem.nqn, nsid, namespace, self.shared.threads as u32)?;
        self.show_namespace(subsystem, volume);
        Ok(nsid)
    }

    /// Opens a source as `add_namespace` does, and offers it to nobody yet. Its nsid is given. `claimed`: its files are
    /// locked, if they are written to.
    pub(super) fn open_namespace(
        &self,
        subsystem: &str,
        namespace: &config::Namespace,
        claimed: bool,
    ) -> Result<Volume, Error> {
        namespace.check()?;
        let open = if claimed { Volume::open } else { Volume::unclaimed };
        open(&self.subsystem(subsystem)?.nqn, namespace.nsid, namespace, self.shared.threads as u32)
    }

    /// Offers what was opened, under its nsid, which is free.
    pub(super) fn offer(&self, subsystem: &str, volume: Volume) -> Result<(), Error> {
        let subsystem = self.subsystem(subsystem)?;
        let _one_at_a_time = subsystem.change();
        volume.claim()?;
        self.show_namespace(subsystem, volume);
        Ok(())
    }

    pub(super) fn volume(&self, subsystem: &str, nsid: u32) -> Option<Arc<Volume>> {
        self.subsystem(subsystem).ok()?.volumes().get(&nsid).cloned()
    }

    fn show_namespace(&self, subsystem: &Arc<SubsystemEntry>, volume: Volume) {
        let nsid = volume.nsid;
        self.announce(subsystem.add(volume));
        let fields = [("subsystem", subsystem.nqn.clone().into()), ("nsid", nsid.into())];
        self.shared.log.say(Level::Info, "namespace added", &fields);
    }

    /// Commands that arrive from now on find no such namespace; those in flight finish. Returns once the threads have
    /// let go of its source, which somebody may want to lock, or after half a second.
    pub fn remove_namespace(&self, subsystem: &str, nsid: u32) -> Result<(), Error> {
        let subsystem = self.subsystem(subsystem)?;
        let _one_at_a_time = subsystem.change();
        let (removed, reported) = subsystem.remove(nsid)?;
        self.announce(reported);
        thread_pool::await_release(&removed, monotonic_now() + REPORT);
        drop(removed);
        // Now that nobody has its files open, the threads' rings can forget them.
        self.shared.inboxes().iter().for_each(|m| m.post(Message::Changed));
        let fields = [("subsystem", subsystem.nqn.clone().into()), ("nsid", nsid.into())];
        self.shared.log.say(Level::Info, "namespace removed", &fields);
        Ok(())
    }

    /// Puts other ANA states in place of those of a subsystem's groups; connected hosts are told by an async event.
    /// Commands that arrive from now on meet them, those in flight finish.
    pub fn set_ana(&self, subsystem: &str, given: &[config::Ana]) -> Result<(), Error> {
        let subsystem = self.subsystem(subsystem)?;
        let access = Access::new(&subsystem.nqn, given)?;
        let _one_at_a_time = subsystem.change();
        self.announce(subsystem.set_access(access));
        let fields = [("subsystem", subsystem.nqn.clone().into())];
        self.shared.log.say(Level::Info, "ANA states changed", &fields);
        Ok(())
    }

    fn subsystem(&self, nqn: &str) -> Result<&Arc<SubsystemEntry>, Error> {
        self.shared.subsystem(nqn).filter(|s| !s.is_discovery()).ok_or_else(|| {
            let all: Vec<&str> =
                self.shared.subsystems.iter().filter(|s| !s.is_discovery()).map(|s| s.nqn.as_str()).collect();
            Error::request(nqn, "there is no such subsystem", all.join(", "))
        })
    }

    /// Has every thread look at its namespaces, and admin queues send the events that wait.
    fn announce(&self, ids: Vec<ConnectionId>) {
        self.shared.generation.fetch_add(1, Ordering::Release);
        for inbox in self.shared.inboxes() {
            inbox.post(Message::Changed);
        }
        for id in ids {
            self.shared.inboxes()[id.thread].post(Message::Effects(id));
        }
    }

    pub fn stats(&self) -> Stats {
        snapshot(&self.shared)
    }

    /// Why a thread can't go on. The others do, but hosts of that one have nobody: stop, and start anew.
    pub fn failure(&self) -> Option<Error> {
        self.shared.failure.get()
    }

    /// The same in Prometheus's text format, as the metrics address gives it.
    pub fn metrics(&self) -> String {
        metrics::render(&self.stats())
    }

    /// Accepts nothing more, lets commands finish, and ends each connection once nothing is under way on it; new
    /// commands are left to the host, which sends them again over another path or after it has reconnected. Waits up
    /// to `timeout` for that. True: nothing was cut off.
    pub fn drain(&self, timeout: Duration) -> bool {
        self.shared.draining.store(true, Ordering::Relaxed);
        self.shared.log.say(Level::Info, "draining", &[]);
        self.end_accepting();
        self.shared.inboxes().iter().for_each(|m| m.post(Message::Drain));
        let until = monotonic_now() + timeout;
        while self.shared.totals.connections.load(Ordering::Relaxed) > 0 {
            if monotonic_now() >= until {
                return false;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        true
    }

    fn end_accepting(&self) {
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
    }

    /// Closes what is left, flushes what was written, and waits for the threads.
    pub fn stop(self) {
        drop(self);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end_accepting();
        for thread in self.accepting.drain(..) {
            let _ = thread.join();
        }
        self.shared.inboxes().iter().for_each(|m| m.post(Message::Stop));
        // Longer than the threads wait for their own I/Os: one that is stuck in the kernel is left behind.
        let until = monotonic_now() + STOP * 3;
        for thread in self.workers.drain(..) {
            join_by(thread, until);
        }
        self.shared.log.say(Level::Info, "stopped", &[]);
        self.shared.log.close();
        if let Some(thread) = self.log.take() {
            join_by(thread, monotonic_now() + STOP);
        }
    }
}

/// Returns the sum of all threads' counters.
fn snapshot(shared: &TargetShared) -> Stats {
    let reports = thread_pool::ask(shared.inboxes(), Message::Report, REPORT);
    let totals = &shared.totals;
    let mut stats = Stats {
        seconds: monotonic_now().duration_since(shared.began).as_secs_f64(),
        draining: shared.draining.load(Ordering::Relaxed),
        connections: totals.connections.load(Ordering::Relaxed),
        connections_accepted: totals.accepted.load(Ordering::Relaxed),
        connections_refused: totals.refused.load(Ordering::Relaxed),
        connections_broken: totals.broken.load(Ordering::Relaxed),
        log_lines_dropped: shared.log.dropped(),
        controllers: Vec::new(),
        subsystems: shared.subsystems.iter().map(|s| s.stats()).collect(),
    };
    let mut queues = Vec::new();
    for report in reports {
        add(&mut stats, report, &mut queues);
    }
    stats.controllers.sort_by(|a, b| (&a.subsystem, a.cntlid).cmp(&(&b.subsystem, b.cntlid)));
    queues.sort_by_key(|(_, _, queue)| queue.qid);
    for (subsystem, cntlid, queue) in queues {
        let nqn = &shared.subsystems[subsystem].nqn;
        let whose = stats.controllers.iter_mut().find(|c| c.cntlid == cntlid && c.subsystem == *nqn);
        whose.into_iter().for_each(|c| c.queues.push(queue.clone()));
    }
    stats
}

fn add(stats: &mut Stats, report: Report, queues: &mut Vec<(usize, u16, QueueStats)>) {
    for (subsystem, counted) in report.namespaces {
        let all = &mut stats.subsystems[subsystem].namespaces;
        if let Some(namespace) = all.iter_mut().find(|n| n.nsid == counted.nsid) {
            namespace.add(&counted);
        }
    }
    for (subsystem, counted) in report.hosts {
        let all = &mut stats.subsystems[subsystem].hosts;
        if let Some(host) = all.iter_mut().find(|h| h.nqn == counted.nqn) {
            host.counts.add(&counted.counts);
            host.connections += counted.connections;
        }
    }
    stats.controllers.extend(report.controllers);
    queues.extend(report.queues);
}
