//! Configuration of a gateway: its drives, who may use them, and the sources they stand on. One structure, whether it
//! was written as TOML or as JSON, or put together by RPCs; what is left out has the default of its field.

use crate::target::config::{
    self as serve, check_nqn, different_nqns, different_nsids, printable, read_json, read_toml, within,
};
pub(crate) use crate::target::config::{Caching, Size};
use forebay_model::Error;
use forebay_storage::Uri;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// Page that describes its fields.
const FIELDS: &str = "docs/snap.md";
/// I/O queues of one controller. NVIDIA's SNAP has 31 beside the admin queue; Linux asks for one per processor.
pub(crate) const QUEUES_MAX: u16 = 1024;
/// Default number of queues, as SNAP has it.
pub(crate) const QUEUES: u16 = 31;
pub(crate) const ENTRIES: u16 = 1024;
const ENTRIES_MAX: u16 = 4096;
const UBLK_ENTRIES_MAX: u16 = 256;
pub(crate) const THREADS_MAX: u32 = 256;
/// Longest path in sun_path, without its terminator (unix(7)).
pub(crate) const SOCKET_BYTES_MAX: usize = 107;
/// Minor numbers of a device (MINORBITS of Linux is 20).
const DEVICE_MAX: u64 = (1 << 20) - 1;
const NAME_BYTES_MAX: usize = 63;
/// In place of a path: no RPC socket.
pub(crate) const OFF: &str = "off";

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Path of the socket that takes RPCs, made with permissions 0600. None: `snap.sock` of the service's, of the
    /// user's runtime directory. `off`: no socket.
    pub rpc: Option<String>,
    /// Address of the metrics for Prometheus: a port of the loopback interface, or HOST:PORT. None: no metrics.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics: Option<String>,
    /// Threads that serve I/O queues. 0: one for each processor, at most 8.
    pub threads: u32,
    /// Processors that the threads stay on, in turn, as `0-3,8`. Queues go to threads in turn, the first I/O
    /// queue to the first. Empty: anywhere.
    pub cpus: String,
    /// Time for which a thread that has a host polls before it sleeps, in microseconds: lower latency for a core that
    /// is always busy. 0: not at all.
    pub spin_us: u32,
    pub subsystems: Vec<Subsystem>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Subsystem {
    pub nqn: String,
    /// At most 20 printable characters. Empty: made from the NQN.
    pub serial: String,
    /// At most 40 printable characters. Empty: Forebay.
    pub model: String,
    pub namespaces: Vec<Namespace>,
    pub controllers: Vec<Controller>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Namespace {
    /// 0: the lowest that is free.
    pub nsid: u32,
    /// As for every verb: above all nvme+tcp://HOST:PORT/NQN; a file, a block device, stripe:, nil:, model:.
    pub source: String,
    pub writable: bool,
    /// Logical block: 512 or 4096.
    pub block_bytes: Option<u32>,
    /// Names its content. None: made from the subsystem's NQN and the nsid.
    pub uuid: Option<String>,
    pub cache: Caching,
    /// Faults on purpose, as `--faults` of bench has them.
    pub faults: Option<String>,
    pub qos: Qos,
}

/// Limits of all controllers together on one namespace. None: no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Qos {
    /// Bytes a second, of payload.
    pub rate: Option<Size>,
    /// I/O commands a second.
    pub iops: Option<u64>,
}

/// One emulated drive, or one block device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Controller {
    /// Letters, digits, `.`, `_` and `-`. RPCs, logs and statistics call it so. Empty: NVMeCtrl and a number.
    pub name: String,
    #[serde(rename = "front")]
    pub frontend: Frontend,
    /// Socket of vfio-user that a VMM, or `vfio-user:PATH`, connects to. Made with permissions 0600.
    pub socket: Option<String>,
    /// ublk: N of /dev/ublkbN. None: the lowest that is free.
    pub device: Option<u32>,
    /// I/O queue pairs that a host may make, beside the admin queue. None: 31; of ublk: one per processor, at most 8.
    pub queues: Option<u16>,
    /// Entries of each queue: 2 to 4096 (MQES); of ublk to 256. None: 1024; of ublk: 64.
    pub queue_depth: Option<u16>,
    /// Longest transfer of one command (MDTS): a power of two from 8k to 4m.
    pub max_transfer: Size,
    /// Look at doorbells in shared memory without end instead of waiting to be told of them: lowest latency, and a core
    /// that is always busy while a host has the controller enabled.
    pub poll: bool,
    /// Namespaces that it shows, by nsid. None: all of its subsystem, also those that come later; of ublk: the only one.
    pub namespaces: Option<Vec<u32>>,
    /// Made, and shown to nobody before `nvme_controller_resume`.
    pub suspended: bool,
    /// Policy of ublk for I/O while no gateway runs. A host of vfio-user decides that for itself.
    pub when_down: WhenDown,
}

impl Default for Controller {
    fn default() -> Controller {
        Controller {
            name: String::new(),
            frontend: Frontend::default(),
            socket: None,
            device: None,
            queues: None,
            queue_depth: None,
            max_transfer: Size(1 << 20),
            poll: false,
            namespaces: None,
            suspended: false,
            when_down: WhenDown::default(),
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Frontend {
    /// An NVMe controller on a PCI function, for a VMM or for our own host driver.
    #[default]
    VfioUser,
    /// A block device of this machine's kernel.
    Ublk,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WhenDown {
    /// It waits for the next gateway.
    #[default]
    Wait,
    /// It fails at once.
    Fail,
}

impl Config {
    /// # Errors
    /// Kind `Request`: what is no TOML, has a field that is unknown, or a value that can't be.
    pub fn from_toml(text: &str) -> Result<Config, Error> {
        let config: Config = read_toml(text, FIELDS)?;
        config.complete()
    }

    /// As `from_toml`, from JSON.
    pub fn from_json(text: &str) -> Result<Config, Error> {
        let config: Config = read_json(text, FIELDS)?;
        config.complete()
    }

    /// Names and numbers whatever has none, and checks all of it.
    fn complete(mut self) -> Result<Config, Error> {
        for subsystem in &mut self.subsystems {
            number(&mut subsystem.namespaces);
        }
        let mut names: BTreeSet<String> = self.controllers().map(|(_, c)| c.name.clone()).collect();
        for controller in self.subsystems.iter_mut().flat_map(|s| &mut s.controllers) {
            if controller.name.is_empty() {
                controller.name = free_name(|name| names.contains(name));
                names.insert(controller.name.clone());
            }
        }
        self.check()?;
        Ok(self)
    }

    pub fn metrics_address(&self) -> Result<Option<SocketAddr>, Error> {
        serve::metrics_address(self.metrics.as_deref())
    }

    /// Checks all that can be checked without looking at a file or opening a socket. A gateway without subsystems is
    /// one: RPCs make them.
    pub fn check(&self) -> Result<(), Error> {
        within("threads", self.threads.into(), 0, THREADS_MAX.into())?;
        crate::target::config::cpus(&self.cpus)?;
        within("spin_us", self.spin_us.into(), 0, 1_000_000)?;
        self.metrics_address()?;
        if let Some(path) = self.rpc.as_ref().filter(|p| *p != OFF) {
            socket_path("rpc", path)?;
        }
        if self.subsystems.is_empty() && self.rpc.as_deref() == Some(OFF) {
            let found = "there is none, and no RPC socket through which one could be created";
            return Err(Error::request("subsystems", found, "[[subsystems]] with nqn = \"nqn.…\""));
        }
        self.subsystems.iter().try_for_each(Subsystem::check)?;
        different_nqns(self.subsystems.iter().map(|s| s.nqn.as_str()))?;
        let mut places = BTreeSet::new();
        for place in self.controllers().flat_map(|(_, c)| [Some(format!("name = \"{}\"", c.name)), c.place()])
        {
            if let Some(twice) = place.and_then(|p| places.replace(p)) {
                return Err(Error::request(twice, "two controllers have it", "another"));
            }
        }
        if let Some(twice) = self.rpc.as_ref().and_then(|p| places.get(&format!("socket = \"{p}\""))) {
            return Err(Error::request(twice, "is the path of rpc, too", "another"));
        }
        Ok(())
    }

    /// Checked, with another path of the RPC socket where one is given.
    ///
    /// # Errors
    /// Of `check`.
    pub fn with_rpc(mut self, rpc: Option<&str>) -> Result<Config, Error> {
        if let Some(path) = rpc {
            self.rpc = Some(path.into());
        }
        self.check().map(|()| self)
    }

    /// All controllers, each with its subsystem.
    pub fn controllers(&self) -> impl Iterator<Item = (&Subsystem, &Controller)> {
        self.subsystems.iter().flat_map(|s| s.controllers.iter().map(move |c| (s, c)))
    }
}

/// Gives each namespace of nsid 0 the lowest that is free.
fn number(namespaces: &mut [Namespace]) {
    let mut taken: BTreeSet<u32> = namespaces.iter().map(|n| n.nsid).collect();
    for namespace in namespaces.iter_mut().filter(|n| n.nsid == 0) {
        namespace.nsid = (1..).find(|nsid| !taken.contains(nsid)).expect("few have been taken");
        taken.insert(namespace.nsid);
    }
}

/// `NVMeCtrl` and the lowest number that gives a name that nobody has: SNAP's own way.
pub(crate) fn free_name(taken: impl Fn(&str) -> bool) -> String {
    let name = |n: u32| format!("NVMeCtrl{n}");
    (1..).map(name).find(|name| !taken(name)).expect("few have been taken")
}

impl Subsystem {
    pub fn check(&self) -> Result<(), Error> {
        check_nqn("subsystems.nqn", &self.nqn)?;
        printable(&self.nqn, "serial", &self.serial, 20)?;
        printable(&self.nqn, "model", &self.model, 40)?;
        self.namespaces.iter().try_for_each(Namespace::check)?;
        let ids = different_nsids(&self.nqn, self.namespaces.iter().map(|n| n.nsid))?;
        self.controllers.iter().try_for_each(|controller| {
            controller.check()?;
            controller.attached(&ids).map(|_| ())
        })
    }
}

impl Namespace {
    /// As the target has it: what opens one opens the other.
    pub fn served(&self) -> serve::Namespace {
        serve::Namespace {
            nsid: self.nsid,
            source: self.source.clone(),
            writable: self.writable,
            block_bytes: self.block_bytes,
            uuid: self.uuid.clone(),
            // A PCIe function has no ANA, and a block device neither.
            ana_group: None,
            cache: self.cache,
            faults: self.faults.clone(),
        }
    }

    pub fn check(&self) -> Result<(), Error> {
        self.served().check()?;
        Uri::parse(&self.source)?;
        self.qos.check()
    }
}

impl Qos {
    pub fn check(&self) -> Result<(), Error> {
        for (what, value) in [("qos.rate", self.rate.map(|s| s.0)), ("qos.iops", self.iops)] {
            if value == Some(0) {
                let next = "a positive number, or leave it out for no limit";
                return Err(Error::request(what, "0 would block all I/O", next));
            }
        }
        Ok(())
    }
}

impl Controller {
    pub fn check(&self) -> Result<(), Error> {
        check_name(&self.name)?;
        let of = |field: &str| format!("{field} of {}", self.name);
        let least = |other: &str| format!("{} of another front: {other}", of("front"));
        match (self.frontend, &self.socket, self.device) {
            (Frontend::VfioUser, Some(path), None) => socket_path(&of("socket"), path)?,
            (Frontend::VfioUser, None, _) => {
                let next = format!("socket = \"/run/forebay/{}.sock\"", self.name);
                return Err(Error::request(of("socket"), "is missing: front = \"vfio-user\" needs it", next));
            }
            (Frontend::VfioUser, _, Some(_)) => {
                return Err(Error::request(of("device"), least("vfio-user has a socket"), "socket = \"…\""));
            }
            (Frontend::Ublk, Some(_), _) => {
                return Err(Error::request(of("socket"), least("ublk has a device"), "device = 0"));
            }
            (Frontend::Ublk, None, device) => {
                within(&of("device"), device.unwrap_or(0).into(), 0, DEVICE_MAX)?;
            }
        }
        if self.frontend == Frontend::Ublk && self.poll {
            return Err(Error::request(
                of("poll"),
                "a block device has no doorbells to look at",
                "spin_us at the top",
            ));
        }
        let entries_max = if self.frontend == Frontend::Ublk { UBLK_ENTRIES_MAX } else { ENTRIES_MAX };
        within(&of("queues"), self.queues.unwrap_or(1).into(), 1, QUEUES_MAX.into())?;
        within(&of("queue_depth"), self.queue_depth.unwrap_or(2).into(), 2, entries_max.into())?;
        within(&format!("{} in KiB", of("max_transfer")), self.max_transfer.0 >> 10, 8, 4096)?;
        if !self.max_transfer.0.is_power_of_two() {
            let found = format!("{} is not a power of two", self.max_transfer.0);
            return Err(Error::request(of("max_transfer"), found, "8k, 16k … 1m, 2m, 4m"));
        }
        Ok(())
    }

    /// Returns the namespaces of its subsystem that it shows.
    ///
    /// # Errors
    /// `Request`: one that there isn't, or not exactly one for a block device, which has room for no more.
    pub fn attached(&self, there: &BTreeSet<u32>) -> Result<BTreeSet<u32>, Error> {
        let attached: BTreeSet<u32> = match &self.namespaces {
            Some(listed) => listed.iter().copied().collect(),
            None => there.clone(),
        };
        if let Some(odd) = attached.difference(there).next() {
            let all = there.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
            let next = match there.is_empty() {
                true => "[[subsystems.namespaces]] with source = \"…\" (nvme_namespace_create)".into(),
                false => format!("of: {all}"),
            };
            let asked = format!("namespaces of {}", self.name);
            return Err(Error::request(asked, format!("there is no nsid {odd}"), next));
        }
        if self.frontend == Frontend::Ublk && attached.len() > 1 {
            let found = format!("a block device is one namespace, and there are {}", attached.len());
            return Err(Error::request(format!("namespaces of {}", self.name), found, "namespaces = [1]"));
        }
        Ok(attached)
    }

    /// I/O queue pairs of an emulated drive.
    pub(crate) fn queues_max(&self) -> u16 {
        self.queues.unwrap_or(QUEUES)
    }

    /// Entries of each of an emulated drive's queues.
    pub fn entries_max(&self) -> u16 {
        self.queue_depth.unwrap_or(ENTRIES)
    }

    /// MDTS as Identify Controller has it, in units of 4 KiB as a power of two.
    pub fn mdts(&self) -> u8 {
        (self.max_transfer.0 >> 12).trailing_zeros() as u8
    }

    /// Returns the place that no two controllers can share, beside their name.
    fn place(&self) -> Option<String> {
        let socket = self.socket.as_ref().map(|path| format!("socket = \"{path}\""));
        socket.or_else(|| self.device.map(|n| format!("device = {n}")))
    }
}

pub(crate) fn check_name(name: &str) -> Result<(), Error> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if !name.is_empty() && name.len() <= NAME_BYTES_MAX && name.chars().all(fits) {
        return Ok(());
    }
    let found = format!(
        "is empty, longer than {NAME_BYTES_MAX}, or contains something other than letters, digits, . _ -"
    );
    Err(Error::request(format!("name = \"{}\"", name.escape_debug()), found, "name = \"NVMeCtrl1\""))
}

fn socket_path(field: &str, path: &str) -> Result<(), Error> {
    let asked = || format!("{field} = \"{}\"", path.escape_debug());
    if !path.starts_with('/') || path.ends_with('/') || path.contains('\0') {
        return Err(Error::request(asked(), "is not the absolute path of a file", "/run/forebay/NAME.sock"));
    }
    if path.len() > SOCKET_BYTES_MAX {
        let found = format!("has {} bytes, and a socket's path at most {SOCKET_BYTES_MAX}", path.len());
        return Err(Error::request(asked(), found, "a shorter folder: /run/forebay"));
    }
    Ok(())
}

/// Returns the default directory of the gateway's sockets: the service's runtime directory (systemd's
/// RuntimeDirectory=), else the user's, else root's.
pub(crate) fn runtime_directory() -> PathBuf {
    let named = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    if let Some(service) = named("RUNTIME_DIRECTORY") {
        return service;
    }
    match named("XDG_RUNTIME_DIR") {
        Some(user) if !rustix::process::geteuid().is_root() => user.join("forebay"),
        _ => Path::new("/run/forebay").into(),
    }
}

/// The RPC socket's path; None: there is to be none.
pub(crate) fn rpc_path(rpc: Option<&str>) -> Option<PathBuf> {
    match rpc {
        Some(OFF) => None,
        Some(path) => Some(path.into()),
        None => Some(runtime_directory().join("snap.sock")),
    }
}

#[cfg(test)]
mod tests;
