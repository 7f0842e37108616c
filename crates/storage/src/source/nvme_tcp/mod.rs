//! `nvme+tcp:` — a namespace over NVMe/TCP, by a host in user space: no kernel
//! driver, no huge pages, no core that polls.
//!
//! Each address is a path with a controller of its own, which a thread connects
//! to, cares for (keep alive, events, ANA) and connects to again. Each worker's
//! queue has its share of every path's I/O queues, each a TCP connection on the
//! worker's reactor, and never waits for a path: commands go where one is up,
//! and wait where none is. What a lost connection left unfinished is read again
//! over another one; a write in that place fails, and says why.

mod admin_link;
mod association;
mod auth;
mod connection;
mod discover;
mod identify;
mod options;
mod path;
mod probe;
mod queue;
mod queue_pair;
mod rdma;
mod report;
mod resolve;
mod target_checks;
mod tcp;
mod tls;

pub(super) use admin_link::Link;
pub(crate) use connection::OVER_TLS;
pub(super) use discover::discover;
pub use options::Options;
pub(crate) use options::{Address, Transport};
pub(crate) use queue::NvmeTcpQueue;
pub(super) use tls::Tls;

use super::controller::{ControllerReport, Inquiry};
use super::nvme::query::{instead, Keys};
use super::nvme::{
    await_end, examine, lock, open, Cause, Connection, Host, Namespace, PathReport, SourceReport,
};
use super::plan::{Examiner, Open, Source, SourcePlan, Uri};
use super::uri::{decode, encode, query_once, Text};
use super::{MadeOf, MemoryRegistration, OpenSource, QueueNeeds};
use connection::ConnectVia;
use forebay_io::{
    Arena, Check, CheckState, DeviceMemory, NvmeHostIdentity, Queue, RdmaDomains, RdmaLent, Reactor, Roots,
};
use forebay_model::record::FabricRan;
use forebay_model::Error;
use forebay_nvme::auth::Credentials;
use forebay_nvme::nqn;
use path::{Path, PathState};
use serde_json::json;
use std::any::Any;
use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;

/// State that the paths, the workers' queues and the record share.
struct Shared {
    options: Options,
    host_nqn: String,
    host_id: [u8; 16],
    /// Credentials of this host, where it has secrets.
    credentials: Option<Arc<Credentials>>,
    tls: Option<Arc<tls::Tls>>,
    /// Devices and the memory lent to them, over RDMA.
    domains: Option<Arc<RdmaDomains>>,
    paths: Vec<Path>,
    /// A queue has the same number on every path.
    host: Host,
    /// Counts changes of any path.
    changes: (Mutex<u64>, Condvar),
    /// Payload never passes through a connection's own buffer.
    direct: AtomicBool,
}

/// A namespace, connected to. It stays so until the last handle is dropped.
pub struct Remote {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.shared.options)
    }
}

impl Deref for Remote {
    type Target = Host;

    fn deref(&self) -> &Host {
        &self.shared.host
    }
}

const KEYS: Keys = &[
    ("nsid", "1"),
    ("queues", "8"),
    ("depth", "64"),
    ("hdgst", "1"),
    ("ddgst", "1"),
    ("hostnqn", "nqn.2014-08.org.nvmexpress:uuid:1b4e28ba-2fa1-11d2-883f-0016d3cca427"),
    ("hostid", "1b4e28ba-2fa1-11d2-883f-0016d3cca427"),
    ("tls", "1"),
    ("tls_key_file", "PATH"),
    ("dhchap_secret_file", "PATH"),
    ("dhchap_ctrl_secret_file", "PATH"),
    ("kato", "5"),
    ("reconnect_delay", "2"),
    ("ctrl_loss_tmo", "600"),
    ("fast_io_fail_tmo", "20"),
    ("io_timeout", "30"),
    ("replay_writes", "1"),
    ("iopolicy", "queue-depth"),
    ("path", "HOST:4420"),
    ("bulk", "1m"),
    ("spin_us", "50"),
    ("content", "NAME"),
];
/// What isn't said again.
const SECRETS: [&str; 3] = ["tls_key", "dhchap_secret", "dhchap_ctrl_secret"];

/// `//HOST:PORT/NQN?…`; an IPv6 host stands in brackets.
pub(crate) fn parse(text: Text, transport: Transport) -> Result<Uri, Error> {
    let next = format!("{}://HOST:4420/NQN?nsid=1&queues=8", transport.scheme());
    let wrong = |found: &str| text.wrong(found, &next);
    let (address, tail) = text
        .rest
        .strip_prefix("//")
        .and_then(|r| r.split_once('/'))
        .ok_or_else(|| wrong("isn't an address and an NQN"))?;
    let (nqn, tail) = tail.split_once('?').unwrap_or((tail, ""));
    let address = Address::parse(address).map_err(|why| wrong(&why))?;
    let nqn = decode(nqn);
    // The kernel's target takes any name, so the form of an NQN isn't asked for.
    if nqn.is_empty() || nqn.len() > nqn::BYTES_MAX || nqn.contains(char::is_control) {
        return Err(wrong("names no subsystem: an NQN has 1 to 223 bytes"));
    }
    let mut options = Options { transport, ..Options::new(address, &nqn) };
    for (key, value) in query_once(tail, "path").map_err(|why| wrong(&why))? {
        options.set(&key, &value).map_err(|why| {
            match transport.lacks(&key) || SECRETS.contains(&key.as_str()) {
                true => wrong(&why),
                false => text.wrong(&why, &instead(text.whole, &key, KEYS, &next)),
            }
        })?;
    }
    Ok(options.into())
}

impl Source for Options {
    fn scheme(&self) -> &'static str {
        self.transport.scheme()
    }

    fn made_of(&self) -> MadeOf {
        self.transport.made_of()
    }

    fn is_same(&self, other: &dyn Source) -> bool {
        (other as &dyn Any).downcast_ref().is_some_and(|other| Options::is_same(self, other))
    }

    fn host(&self) -> Option<&str> {
        Some(&self.addresses[0].host)
    }

    fn reported(&self) -> Option<serde_json::Value> {
        let Address { host, port } = &self.addresses[0];
        Some(match self.transport {
            Transport::Tcp => json!({"kind": "nvme_tcp", "host": host, "port": port, "nqn": self.nqn}),
            Transport::Rdma => json!({"kind": "nvme_rdma", "host": host, "port": port}),
        })
    }

    fn checks(&self, roots: &Roots) -> Vec<Check> {
        if self.transport == Transport::Tcp {
            return target_checks::of_addresses(roots, self);
        }
        // Nothing is tried: a connection is a run's.
        let found = format!(
            "{}, not connected to here: forebay identify {}; what this machine can: nvme_rdma",
            self.addresses[0],
            self.base()
        );
        vec![Check::of_source("nvme_rdma", self, "NVMe/RDMA target", CheckState::Unknown, found)]
    }

    fn identify(&self, inquiry: &Inquiry, one: bool) -> Option<Result<ControllerReport, Error>> {
        Some(identify::identify(self, inquiry, one))
    }

    fn examine(&self, examiner: &mut dyn Examiner, wanted: Option<u64>) -> Result<SourcePlan, Error> {
        examine(self, examiner, wanted, |options, workers| {
            Remote::open_for(options, workers.now, workers.most)
        })
    }

    fn open(&self, plan: &SourcePlan, _: &dyn Open) -> Result<Arc<dyn OpenSource>, Error> {
        Ok(open(plan))
    }

    fn document(&self, plan: &SourcePlan) -> serde_json::Value {
        json!({"kind": "nvme_tcp", "uri": plan.label, "bytes": plan.bytes})
    }
}

impl Connection for Remote {
    fn host(&self) -> &Host {
        &self.shared.host
    }

    fn report(&self) -> FabricRan {
        Remote::report(self)
    }

    fn now(&self) -> SourceReport {
        SourceReport::new(self.report(), self.paths())
    }

    /// From the next connection on, payload goes between the socket and its place and nowhere else: for memory of
    /// others, where no byte may lie elsewhere on its way. Many small reads then cost a receive each.
    fn keep_direct(&self) {
        self.shared.direct.store(true, Ordering::Relaxed);
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn maps_slots(&self) -> bool {
        false
    }
}

impl Namespace for Remote {
    fn scheme(&self) -> &'static str {
        self.options().transport.scheme()
    }

    fn made_of(&self) -> MadeOf {
        self.options().transport.made_of()
    }

    fn engine(&self) -> &'static str {
        self.options().transport.engine()
    }

    fn content_name(&self) -> String {
        let options = self.options();
        options.content.clone().unwrap_or_else(|| format!("{} {}", options.nqn, options.nsid))
    }

    fn queue(self: &Arc<Remote>, needs: QueueNeeds, reactor: &mut Reactor) -> Result<Box<dyn Queue>, Error> {
        Remote::queue(self, needs, reactor)
    }

    fn lend(self: &Arc<Remote>, arena: &Arena) -> Result<Option<MemoryRegistration>, Error> {
        Ok(Remote::lend(self, arena)?.map(MemoryRegistration::keeping))
    }

    fn lend_device(&self, memory: &DeviceMemory) -> Result<MemoryRegistration, String> {
        Remote::lend_device(self, memory).map(MemoryRegistration::keeping)
    }
}

impl Remote {
    /// Connects to the namespace. `workers`: queues that will be opened at once, at most.
    ///
    /// # Errors
    /// No path comes up, or the controller has no such namespace, or too few queues.
    pub fn open(options: &Options, workers: u32) -> Result<Arc<Remote>, Error> {
        Remote::open_for(options, workers, workers)
    }

    /// As `open`, for a number of workers that isn't known yet: as many queues as the controller grants up to
    /// `workers_most`, and one for each of `workers` at least.
    pub(crate) fn open_for(options: &Options, workers: u32, workers_most: u32) -> Result<Arc<Remote>, Error> {
        let host = Host::new(options, options.queues, workers, workers_most)?;
        let own = options
            .host_nqn
            .as_deref()
            .map_or_else(NvmeHostIdentity::of_this_machine, NvmeHostIdentity::named);
        let credentials = auth::credentials(options, &own.nqn)?;
        let tls = tls::Tls::from_options(options, &own.nqn)?;
        let domains = match options.transport {
            Transport::Tcp => None,
            Transport::Rdma => Some(RdmaDomains::new(forebay_io::require_rdma(&host.name)?)),
        };
        let shared = Arc::new(Shared {
            options: options.clone(),
            host_id: options.host_id.unwrap_or(own.id),
            host_nqn: own.nqn,
            credentials,
            tls,
            domains,
            paths: options.addresses.iter().cloned().map(Path::new).collect(),
            host,
            changes: Default::default(),
            direct: AtomicBool::new(false),
        });
        // Owned from the first thread on: should another not start, dropping it ends those that did.
        let mut remote = Remote { shared, threads: Vec::new() };
        for index in 0..remote.shared.paths.len() {
            let shared = remote.shared.clone();
            let thread = remote.spawn("nvme-admin", move || path::care(&shared, index))?;
            remote.threads.push(thread);
        }
        let granted = remote.shared.first_path()?;
        remote.shares.keep(granted);
        Ok(Arc::new(remote))
    }

    /// Registers a worker's slots with the devices that the paths are on, so that no command need register its own
    /// memory. None: nothing need be, over TCP.
    ///
    /// # Errors
    /// `Machine`: more than may be locked.
    pub fn lend(&self, arena: &Arena) -> Result<Option<RdmaLent>, Error> {
        self.shared.domains.as_ref().map(|domains| domains.lend(arena)).transpose()
    }

    /// As `lend`, of a GPU's memory.
    ///
    /// # Errors
    /// Why a device, or the GPU, won't have it.
    pub fn lend_device(&self, memory: &DeviceMemory) -> Result<RdmaLent, String> {
        match &self.shared.domains {
            Some(domains) if domains.has_device() => domains.lend_device(memory),
            Some(_) => Err("no connection is established that could tell which card it is".into()),
            None => Err("payload comes through sockets".into()),
        }
    }

    pub fn options(&self) -> &Options {
        &self.shared.options
    }

    pub fn paths(&self) -> Vec<PathReport> {
        let paths = self.shared.paths.iter().enumerate();
        paths.map(|(n, path)| PathReport { queues: self.connected(n), ..path.report() }).collect()
    }

    /// All of it, for a record.
    pub fn report(&self) -> FabricRan {
        let options = self.options();
        let paths = self.paths().into_iter().map(PathReport::ended).collect();
        let (header_digest, data_digest) = (options.header_digest, options.data_digest);
        FabricRan { header_digest, data_digest, ..self.report_on(paths) }
    }

    /// Opens a worker's share of the I/O queues, on the worker's thread.
    pub fn queue(
        self: &Arc<Remote>,
        needs: QueueNeeds,
        reactor: &mut Reactor,
    ) -> Result<Box<dyn Queue>, Error> {
        Ok(Box::new(NvmeTcpQueue::open(self.clone(), needs, reactor)?))
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        self.shared.paths.iter().for_each(Path::stop);
        await_end(self.threads.drain(..));
    }
}

impl Path {
    fn report(&self) -> PathReport {
        let state = self.state();
        let (why, ana) = match &state {
            PathState::Connecting(why) => (why.clone(), None),
            PathState::Live(live) => (None, live.ana().map(|a| a.name())),
            PathState::Lost(why) => (Some(why.clone()), None),
        };
        let reconnects = self.connects.load(Ordering::Relaxed).saturating_sub(1);
        let address = self.address.to_string();
        let refused = self.refused.load(Ordering::Relaxed);
        PathReport { address, state: state.name(), why, ana, reconnects, refused, ..PathReport::default() }
    }
}

impl Shared {
    /// Returns the way to a queue of a controller: 0 is the admin queue.
    fn way(&self, qid: u16) -> ConnectVia<'_> {
        match &self.domains {
            Some(domains) => ConnectVia::Rdma(domains, qid),
            None => ConnectVia::Tcp(self.tls.as_deref()),
        }
    }

    /// A path changed: whoever looks at them is told.
    fn changed(&self) {
        *lock(&self.changes.0) += 1;
        self.changes.1.notify_all();
        self.host.wakers.wake();
    }

    /// Waits for the first path that is up, and says how many queues it grants.
    fn first_path(&self) -> Result<u16, Error> {
        let paths = || {
            let standing = |path: &Path| (format!("{}: ", path.address), path.standing());
            self.paths.iter().map(standing).collect()
        };
        let mut seen = 0;
        let wait = |until| seen = path::wait_for(&self.changes, seen, until);
        self.host.first(paths, wait, |cause| self.next(cause))
    }

    /// Returns the command to type where no path comes up.
    fn next(&self, cause: Cause) -> String {
        next(&self.options, &self.host_nqn, cause)
    }
}

/// Returns the command to type where no controller comes up.
fn next(options: &Options, host_nqn: &str, cause: Cause) -> String {
    let address = &options.addresses[0];
    match cause {
        Cause::Refused | Cause::Unlisted | Cause::Namespace => {
            let by = By { transport: options.transport, tls: options.asks_for_tls() };
            refused(cause, &address.to_string(), (&options.nqn, host_nqn), by)
        }
        Cause::Unproven => format!(
            "dhchap_secret_file=PATH in the URI, or FOREBAY_DHCHAP_SECRET: the key that the target has for {host_nqn}"
        ),
        Cause::Few(granted) => {
            format!("queues={granted} in the URI, at most {granted} ‹workers›, or a target that grants more")
        }
        Cause::Other | Cause::Taken => {
            let look = match options.transport {
                Transport::Tcp => format!("forebay discover {address}"),
                Transport::Rdma => "forebay doctor".into(),
            };
            format!("{look}, and look at the target's log")
        }
    }
}

/// Transport and security by which a controller was addressed.
#[derive(Clone, Copy)]
pub(crate) struct By {
    pub transport: Transport,
    pub tls: bool,
}

/// Returns the command to type where a target at this address refuses this host, or what it asked for. `names`: of the
/// subsystem and of the host.
pub(crate) fn refused(cause: Cause, address: &str, names: (&str, &str), by: By) -> String {
    let scheme = by.transport.scheme();
    let discover = match by {
        By { transport: Transport::Tcp, tls: false } => format!("forebay discover {address}"),
        By { transport: Transport::Tcp, tls: true } => {
            format!("forebay discover '{scheme}://{address}?tls=1'")
        }
        By { transport: Transport::Rdma, .. } => format!("forebay discover {scheme}://{address}"),
    };
    let discover = format!("{discover} shows what this host may use");
    match cause {
        Cause::Namespace => {
            format!("forebay identify {scheme}://{address}/{} for its namespaces", encode(names.0))
        }
        Cause::Unlisted => {
            let tls = match by {
                By { transport: Transport::Tcp, tls: false } => {
                    "; if the target wants TLS of this host, tls=1 in the URI"
                }
                _ => "",
            };
            format!(
                "forebay serve --allow {}, or allow it at another target; or hostnqn=NQN in the URI{tls}; {discover}",
                names.1
            )
        }
        _ => discover,
    }
}
