//! Configuration of a target: what it serves, to whom, and within which bounds. One structure, whether it was written
//! as TOML or as JSON; what is left out has the default of its field.

mod ana;
mod rules;
pub(super) mod secrets;

pub(crate) use crate::namespace::config::parse_uuid;
pub use crate::namespace::config::{Caching, Namespace};
pub use ana::Ana;
pub(super) use ana::Rule;
use forebay_model::units::parse_bytes;
use forebay_model::Error;
use forebay_nvme::controller::subsystem::NAMESPACES_MAX;
use forebay_storage::FaultPlan;
pub(super) use rules::address;
#[cfg(test)]
pub(crate) use rules::assert_each_is_named;
pub(crate) use rules::cpus;
pub(crate) use rules::{
    check_nqn, different_nqns, different_nsids, metrics_address, printable, read_json, read_toml, within,
};
use rules::{known, seconds};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;

/// IANA's port for NVMe over TCP, and that of the discovery service.
pub(crate) const PORT: u16 = 4420;
const TEXT_BYTES_MAX: usize = 4 << 20;
/// Page that describes its fields.
const FIELDS: &str = "docs/serve.md";
/// An NQN's length (base, section 4.5).
const NQN_BYTES_MAX: usize = 223;
/// I/O queues that a controller can have: queue identifiers are 16 bits, and this is what hosts can use.
pub(crate) const QUEUES_MAX: u16 = 1024;
/// Highest identifier of a controller (base, section 3.1.1).
const CNTLID_MAX: u16 = 0xffef;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// `10.0.0.1:4420`, `[::1]:4420`, `0.0.0.0` (port 4420). Port 0: any free one.
    pub listen: Vec<String>,
    /// The same, over RDMA: addresses of a card's. Empty: not over RDMA.
    pub listen_rdma: Vec<String>,
    /// Address for Prometheus: a port of the loopback interface (`9420`), or a whole address. None: nowhere.
    pub metrics: Option<String>,
    /// The discovery service is announced on the local network, by multicast DNS.
    pub mdns: bool,
    /// Threads that serve connections. 0: one for each processor, at most 8.
    pub threads: u32,
    /// Processors that the threads stay on, in turn, as `0-3,8`; a connection then goes to the thread on the one
    /// that takes its packets. Empty: anywhere.
    pub cpus: String,
    /// Time for which a thread that has connections polls before it sleeps, in microseconds: lower latency for a core
    /// that is always busy. 0: not at all. None: for a moment, as long as hosts send the next command within it.
    pub spin_us: Option<u32>,
    /// Longest transfer of one command (MDTS): a power of two times 4 KiB, from 64k to 4m.
    pub max_transfer: Size,
    /// Memory for data on their way, of all threads together. Touched only as far as it is used.
    pub buffers: Size,
    /// Data that a command capsule may carry, from 0 to 64k; hosts send short writes without asking first.
    pub in_capsule: Size,
    /// Commands that an I/O queue may hold (MQES): 2 to 4096.
    pub queue_depth: u16,
    /// I/O queues of one controller.
    pub queues: u16,
    /// Hosts may ask for these digests.
    pub header_digest: bool,
    pub data_digest: bool,
    pub keep_alive: KeepAlive,
    /// Connections of all hosts together.
    pub connections: u32,
    /// A connection must have said ICReq, and then Connect, within this time.
    pub handshake_s: f64,
    /// A peer that takes nothing of what is sent to it for this long is disconnected.
    pub stall_s: f64,
    /// For hosts that have no limits of their own.
    pub host_limits: HostLimits,
    pub subsystems: Vec<Subsystem>,
    /// Other discovery services that ours names.
    pub referrals: Vec<Referral>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            listen: vec![format!("127.0.0.1:{PORT}")],
            listen_rdma: Vec::new(),
            metrics: None,
            mdns: false,
            threads: 0,
            cpus: String::new(),
            spin_us: None,
            max_transfer: Size(1 << 20),
            buffers: Size(512 << 20),
            in_capsule: Size(16 << 10),
            queue_depth: 128,
            queues: 128,
            header_digest: true,
            data_digest: true,
            keep_alive: KeepAlive::default(),
            connections: 16384,
            handshake_s: 10.0,
            stall_s: 60.0,
            host_limits: HostLimits::default(),
            subsystems: Vec::new(),
            referrals: Vec::new(),
        }
    }
}

/// Bounds of the keep-alive time-out (KATO) that hosts ask for.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct KeepAlive {
    /// Shorter ones are raised to this.
    pub min_s: f64,
    /// Longer ones are lowered to this; and with `required`, so is none at all.
    pub max_s: f64,
    pub required: bool,
}

impl Default for KeepAlive {
    fn default() -> KeepAlive {
        KeepAlive { min_s: 1.0, max_s: 3600.0, required: false }
    }
}

impl KeepAlive {
    pub(crate) fn range_ms(&self) -> RangeInclusive<u32> {
        (self.min_s * 1e3).round() as u32..=(self.max_s * 1e3).round() as u32
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Subsystem {
    pub nqn: String,
    /// At most 20 printable characters. Empty: made from the NQN.
    pub serial: String,
    /// At most 40 printable characters. Empty: Forebay.
    pub model: String,
    /// Everybody who reaches the port may connect. Else only `hosts`.
    pub allow_any_host: bool,
    pub hosts: Vec<Host>,
    pub namespaces: Vec<Namespace>,
    /// States of groups of its namespaces, by address. None: all the best way.
    pub ana: Vec<Ana>,
    /// Controller identifiers to give out, 1 to 65519: servers that are paths to one subsystem need different ones.
    pub cntlid_min: Option<u16>,
    pub cntlid_max: Option<u16>,
}

/// A host that may connect.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Host {
    pub nqn: String,
    /// The host must prove that it knows this: `DHHC-1:…`, as `nvme gen-dhchap-key` makes.
    pub dhchap_key: Option<Secret>,
    /// We prove that we know this, where the host asks.
    pub dhchap_ctrl_key: Option<Secret>,
    /// Hashes that we may choose: sha256, sha384, sha512. Empty: all.
    pub dhchap_hashes: Vec<String>,
    /// Groups that we may choose: null, ffdhe2048 … ffdhe8192. Empty: all, null last.
    pub dhchap_groups: Vec<String>,
    /// The host must come over TLS 1.3 with this key: `NVMeTLSkey-1:…`, as `nvme gen-tls-key` makes.
    pub tls_key: Option<Secret>,
    /// In place of `host_limits`.
    pub limits: Option<HostLimits>,
}

/// Limits of one host, over all its connections. None: no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HostLimits {
    /// I/O queues of each of its controllers.
    pub queues: Option<u16>,
    pub connections: Option<u32>,
    pub bytes_in_flight: Option<Size>,
    /// Bytes a second, of payload.
    pub rate: Option<Size>,
    pub iops: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Referral {
    /// Address and port of another discovery service.
    pub address: String,
    /// Empty: the well-known discovery NQN.
    pub nqn: String,
}

/// Bytes: a number, or text such as `64k`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Size(pub u64);

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Size, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Spelled {
            Number(u64),
            Text(String),
        }
        match Spelled::deserialize(deserializer)? {
            Spelled::Number(n) => Ok(Size(n)),
            Spelled::Text(t) => {
                parse_bytes(&t).map(Size).map_err(|e| serde::de::Error::custom(e.to_string()))
            }
        }
    }
}

/// Never shown, neither by Debug nor when a configuration is written out.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("(secret)")
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str("(secret)")
    }
}

impl Config {
    /// # Errors
    /// Kind `Request`: what is no TOML, has a field that is unknown, or a value that can't be.
    pub fn from_toml(text: &str) -> Result<Config, Error> {
        let config: Config = read_toml(text, FIELDS)?;
        config.check()?;
        Ok(config)
    }

    /// As `from_toml`, from JSON.
    pub fn from_json(text: &str) -> Result<Config, Error> {
        let config: Config = read_json(text, FIELDS)?;
        config.check()?;
        Ok(config)
    }

    /// Checks all that can be checked without looking at a file or opening a socket.
    pub fn check(&self) -> Result<(), Error> {
        self.addresses()?;
        self.rdma_addresses()?;
        self.metrics_address()?;
        self.check_bounds()?;
        if self.subsystems.is_empty() {
            return Err(Error::request("subsystems", "there is none", "[[subsystems]] with nqn = \"nqn.…\""));
        }
        self.subsystems.iter().try_for_each(|s| s.check().and_then(|()| s.check_ana(self)))?;
        different_nqns(self.subsystems.iter().map(|s| s.nqn.as_str()))?;
        self.referrals.iter().try_for_each(|r| {
            if !r.nqn.is_empty() {
                check_nqn("referrals.nqn", &r.nqn)?;
            }
            address("referrals.address", &r.address, Ipv4Addr::LOCALHOST.into(), PORT).map(|_| ())
        })
    }

    /// Returns the addresses to listen on, over TCP.
    pub fn addresses(&self) -> Result<Vec<SocketAddr>, Error> {
        if self.listen.is_empty() && self.listen_rdma.is_empty() {
            return Err(Error::request("listen", "there is no address", "listen = [\"127.0.0.1:4420\"]"));
        }
        self.listen.iter().map(|text| address("listen", text, Ipv4Addr::LOCALHOST.into(), PORT)).collect()
    }

    /// Returns the addresses to listen on, over RDMA.
    pub fn rdma_addresses(&self) -> Result<Vec<SocketAddr>, Error> {
        let at = |text: &String| address("listen_rdma", text, Ipv4Addr::LOCALHOST.into(), PORT);
        self.listen_rdma.iter().map(at).collect()
    }

    pub fn metrics_address(&self) -> Result<Option<SocketAddr>, Error> {
        metrics_address(self.metrics.as_deref())
    }

    fn check_bounds(&self) -> Result<(), Error> {
        let kib = |s: Size| s.0 >> 10;
        within("threads", self.threads.into(), 0, crate::namespace::volume::THREADS_MAX as u64)?;
        cpus(&self.cpus)?;
        within("spin_us", self.spin_us.unwrap_or(0).into(), 0, 1_000_000)?;
        within("max_transfer in KiB", kib(self.max_transfer), 64, 4096)?;
        if !self.max_transfer.0.is_power_of_two() {
            let found = format!("{} is not a power of two", self.max_transfer.0);
            return Err(Error::request("max_transfer", found, "64k, 128k … 1m, 2m, 4m"));
        }
        within("buffers in MiB", self.buffers.0 >> 20, 4, 1 << 20)?;
        within("in_capsule", self.in_capsule.0, 0, 64 << 10)?;
        if self.in_capsule.0 % 16 != 0 {
            return Err(Error::request("in_capsule", "is not a multiple of 16 bytes", "16k"));
        }
        within("queue_depth", self.queue_depth.into(), 2, 4096)?;
        within("queues", self.queues.into(), 1, QUEUES_MAX.into())?;
        within("connections", self.connections.into(), 1, 1 << 20)?;
        seconds("handshake_s", self.handshake_s, 0.1, 3600.0)?;
        seconds("stall_s", self.stall_s, 0.1, 3600.0)?;
        seconds("keep_alive.min_s", self.keep_alive.min_s, 0.1, 86400.0)?;
        seconds("keep_alive.max_s", self.keep_alive.max_s, self.keep_alive.min_s, 86400.0)?;
        self.host_limits.check("host_limits")
    }
}

impl Subsystem {
    fn check(&self) -> Result<(), Error> {
        check_nqn("subsystems.nqn", &self.nqn)?;
        printable(&self.nqn, "serial", &self.serial, 20)?;
        printable(&self.nqn, "model", &self.model, 40)?;
        if self.nqn == "nqn.2014-08.org.nvmexpress.discovery" {
            return Err(Error::request(
                &self.nqn,
                "this NQN belongs to the discovery service, which always exists",
                "another NQN",
            ));
        }
        if !self.allow_any_host && self.hosts.is_empty() {
            return Err(Error::request(
                &self.nqn,
                "nobody may connect: it lists no hosts",
                "[[subsystems.hosts]] with nqn = \"…\" (on the host: cat /etc/nvme/hostnqn), or allow_any_host = true",
            ));
        }
        if let Some(host) =
            self.hosts.iter().find(|h| self.allow_any_host && (h.dhchap_key.is_some() || h.tls_key.is_some()))
        {
            return Err(Error::request(
                format!("the key of {}", host.nqn),
                "allow_any_host admits any host under any name, so the key would prove nothing",
                "allow_any_host = false",
            ));
        }
        let mut hosts = BTreeSet::new();
        for host in &self.hosts {
            host.check()?;
            if !hosts.insert(&host.nqn) {
                return Err(Error::request(
                    &host.nqn,
                    format!("is listed twice among the hosts of {}", self.nqn),
                    "one",
                ));
            }
        }
        self.cntlids()?;
        self.namespaces.iter().try_for_each(Namespace::check)?;
        different_nsids(&self.nqn, self.namespaces.iter().map(|n| n.nsid).filter(|nsid| *nsid != 0))
            .map(|_| ())
    }
}

impl Subsystem {
    pub(super) fn cntlids(&self) -> Result<RangeInclusive<u16>, Error> {
        let (least, most) = (self.cntlid_min.unwrap_or(1), self.cntlid_max.unwrap_or(CNTLID_MAX));
        within(&format!("cntlid_min of {}", self.nqn), least.into(), 1, CNTLID_MAX.into())?;
        within(&format!("cntlid_max of {}", self.nqn), most.into(), least.into(), CNTLID_MAX.into())?;
        Ok(least..=most)
    }
}

impl Host {
    fn check(&self) -> Result<(), Error> {
        check_nqn("hosts.nqn", &self.nqn)?;
        if self.dhchap_ctrl_key.is_some() && self.dhchap_key.is_none() {
            return Err(Error::request(
                format!("dhchap_ctrl_key of {}", self.nqn),
                "a host that doesn't authenticate can't ask the controller to",
                "dhchap_key as well",
            ));
        }
        known(&self.nqn, "dhchap_hashes", &self.dhchap_hashes, &["sha256", "sha384", "sha512"])?;
        let groups = ["null", "ffdhe2048", "ffdhe3072", "ffdhe4096", "ffdhe6144", "ffdhe8192"];
        known(&self.nqn, "dhchap_groups", &self.dhchap_groups, &groups)?;
        secrets::credentials(self, "")?;
        secrets::tls_key(self)?;
        self.limits.map_or(Ok(()), |l| l.check(&self.nqn))
    }
}

impl HostLimits {
    fn check(&self, whose: &str) -> Result<(), Error> {
        let at_least_one = |what: &str, value: Option<u64>| match value {
            Some(0) => {
                let next = "a positive number, or leave it out for no limit";
                Err(Error::request(format!("{what} of {whose}"), "0 would block all I/O", next))
            }
            _ => Ok(()),
        };
        at_least_one("queues", self.queues.map(u64::from))?;
        at_least_one("connections", self.connections.map(u64::from))?;
        at_least_one("bytes_in_flight", self.bytes_in_flight.map(|s| s.0))?;
        at_least_one("rate", self.rate.map(|s| s.0))?;
        at_least_one("iops", self.iops)
    }
}

impl Namespace {
    pub fn check(&self) -> Result<(), Error> {
        if self.source.is_empty() {
            return Err(Error::request("namespaces.source", "is empty", "source = \"/path/to/file\""));
        }
        if self.nsid > NAMESPACES_MAX {
            let next = format!("1 to {NAMESPACES_MAX}, or leave it out");
            return Err(Error::request(format!("nsid = {}", self.nsid), "is too high", next));
        }
        if let Some(bytes) = self.block_bytes.filter(|b| ![512, 4096].contains(b)) {
            return Err(Error::request(format!("block_bytes = {bytes}"), "is neither", "512 or 4096"));
        }
        ana::check_group("ana_group", self.ana_group)?;
        self.faults.as_ref().map_or(Ok(()), |text| FaultPlan::parse(text).map(|_| ()))?;
        self.uuid.as_ref().map_or(Ok(()), |text| parse_uuid(text).map(|_| ()))
    }
}

#[cfg(test)]
mod tests;
