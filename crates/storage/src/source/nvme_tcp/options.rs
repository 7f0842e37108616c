//! Options of an `nvme+tcp://` or `nvme+rdma://` URI, named as Linux and nvme-cli have them.

use super::MadeOf;
use crate::source::controller::Inquiry;
use crate::source::nvme::query::{count, seconds, seconds_above_zero, spin, switch};
use crate::source::plan::Uri;
use crate::source::uri::encode;
use forebay_io::{parse_uuid, NvmeHostIdentity, Via};
use forebay_model::units::parse_bytes;
use forebay_model::Error;
use forebay_nvme::nqn::Nqn;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// IANA's port for NVMe over TCP.
pub(super) const PORT: u16 = 4420;
/// Addresses of one namespace.
pub(crate) const PATHS_MAX: usize = 16;
/// Longest time to connect and initialise: a target on a busy machine may need seconds for each of its answers, and
/// Linux's own host gives it a minute.
pub(super) const CONNECT_WITHIN: Duration = Duration::from_secs(20);
const QUEUES_MAX: u32 = 1024;
const DEPTH_MAX: u32 = 65535;
/// Commands in flight per queue, as Linux has it.
pub(crate) const DEPTH: u16 = 127;
/// Answers to 15 reads of 4 KiB with one receive: half the processor time of a receive each (`nvme_tcp_loop`).
const BULK: usize = 64 << 10;
const BULK_MAX: u64 = 1 << 20;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    pub host: String,
    pub port: u16,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

impl Address {
    /// `HOST`, `HOST:PORT`, `[V6]` or `[V6]:PORT`.
    pub fn parse(text: &str) -> Result<Address, String> {
        let (host, after) = match text.strip_prefix('[') {
            Some(v6) => {
                let (host, after) =
                    v6.split_once(']').ok_or("its '[' has no ']': an IPv6 address is [::1]")?;
                // A zone's name (%eth0) is the resolver's business.
                let bare = host.split_once('%').map_or(host, |(bare, _)| bare);
                if bare.parse::<std::net::Ipv6Addr>().is_err() {
                    return Err(format!("'{host}' is not an IPv6 address"));
                }
                (host, after)
            }
            None => match text.find(':') {
                Some(colon) if text[colon + 1..].contains(':') => {
                    return Err("has several colons: an IPv6 address must be in brackets, [::1]".into());
                }
                Some(colon) => text.split_at(colon),
                None => (text, ""),
            },
        };
        let port = match after.strip_prefix(':') {
            Some(port) => {
                port.parse().map_err(|_| format!("its port '{port}' isn't a number up to 65535"))?
            }
            None if after.is_empty() => PORT,
            None => return Err(format!("'{after}' follows its address")),
        };
        if host.is_empty() || host.contains(['[', ']']) {
            return Err("names no host".into());
        }
        Ok(Address { host: host.into(), port })
    }
}

/// Transport of the commands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    #[default]
    Tcp,
    Rdma,
}

impl Transport {
    /// Returns the scheme of its URIs.
    pub fn scheme(self) -> &'static str {
        match self {
            Transport::Tcp => "nvme+tcp",
            Transport::Rdma => "nvme+rdma",
        }
    }

    /// Only an RDMA device moves bytes by itself.
    pub fn made_of(self) -> MadeOf {
        match self {
            Transport::Tcp => MadeOf::Elsewhere,
            Transport::Rdma => MadeOf::Card,
        }
    }

    /// As records name what moved the bytes.
    pub fn engine(self) -> &'static str {
        match self {
            Transport::Tcp => "nvme-tcp",
            Transport::Rdma => "nvme-rdma",
        }
    }

    /// Returns the way of payload: the kernel copies it between a socket and its place; an RDMA device needs nobody.
    pub fn via(self) -> Via {
        match self {
            Transport::Tcp => Via::Fabric,
            Transport::Rdma => Via::Direct,
        }
    }

    /// Keys that mean something only over TCP.
    pub(crate) fn lacks(self, key: &str) -> bool {
        self == Transport::Rdma && matches!(key, "hdgst" | "ddgst" | "tls" | "tls_key_file" | "bulk")
    }
}

/// Choice of a command's path where several are as good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    RoundRobin,
    /// The one with the fewest commands in flight.
    QueueDepth,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    pub transport: Transport,
    /// The same namespace, by each.
    pub addresses: Vec<Address>,
    pub nqn: String,
    pub nsid: u32,
    /// I/O queues of each path, each a connection; None: one per worker.
    pub queues: Option<u16>,
    /// Commands in flight per queue.
    pub depth: u16,
    pub header_digest: bool,
    pub data_digest: bool,
    /// None: of /etc/nvme, or made from the machine's identity.
    pub host_nqn: Option<String>,
    pub host_id: Option<[u8; 16]>,
    /// Files that hold the DH-HMAC-CHAP secrets of this host and of the controller. None: of the environment.
    pub secret_file: Option<PathBuf>,
    pub ctrl_secret_file: Option<PathBuf>,
    /// Over TLS 1.3, with the key in this file. None: of the environment.
    pub tls: bool,
    pub tls_key_file: Option<PathBuf>,
    /// Keep Alive Timeout; zero: off.
    pub keep_alive: Duration,
    /// Longest wait between two attempts to connect; the first comes at once, the next ones ever later.
    pub reconnect_delay: Duration,
    /// Time after which attempts end and the path is given up. None: for ever.
    pub ctrl_loss: Option<Duration>,
    /// Time for which I/Os wait for a path before they fail. None: as long as there is hope.
    pub fast_io_fail: Option<Duration>,
    /// Time of a command after which the controller is asked to abort it. None: as long as it likes.
    pub io_timeout: Option<Duration>,
    pub policy: Policy,
    /// Writes whose outcome a lost connection left unknown are sent again, instead of failing.
    pub replay_writes: bool,
    /// Bytes that one receive may take besides payload that has its place, while reads are small: `HostEnd`.
    pub bulk: usize,
    /// Time for which a worker polls before it sleeps. None: for a moment, where that pays.
    pub spin: Option<Duration>,
    /// The name that seeded content carries, where it was made under another one: a file's name at the target.
    pub content: Option<String>,
}

impl Options {
    /// Returns the identity of a host that asks, which the URI's keys may state.
    ///
    /// # Errors
    /// `Request`: by a name that is no NQN.
    pub(super) fn identity_by(&self, inquiry: &Inquiry) -> Result<NvmeHostIdentity, Error> {
        let identity = match (&inquiry.host_nqn, &self.host_nqn) {
            (None, Some(named)) => NvmeHostIdentity::named(named),
            _ => inquiry.identity()?,
        };
        Ok(NvmeHostIdentity { id: self.host_id.unwrap_or(identity.id), ..identity })
    }

    pub fn new(address: Address, nqn: &str) -> Options {
        Options {
            transport: Transport::Tcp,
            addresses: vec![address],
            nqn: nqn.into(),
            nsid: 1,
            queues: None,
            depth: DEPTH,
            header_digest: false,
            data_digest: false,
            host_nqn: None,
            host_id: None,
            secret_file: None,
            ctrl_secret_file: None,
            tls: false,
            tls_key_file: None,
            keep_alive: Duration::from_secs(5),
            reconnect_delay: Duration::from_secs(2),
            ctrl_loss: Some(Duration::from_secs(600)),
            fast_io_fail: Some(Duration::from_secs(20)),
            io_timeout: Some(Duration::from_secs(30)),
            policy: Policy::RoundRobin,
            replay_writes: false,
            bulk: BULK,
            spin: None,
            content: None,
        }
    }

    /// Takes one key of the query. Err: what is wrong with it.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        if self.transport.lacks(key) {
            return Err(format!("{key} is for nvme+tcp: alone; RDMA has its own checksums"));
        }
        match key {
            "nsid" => self.nsid = count(key, value, u32::MAX - 1)?,
            "queues" => self.queues = Some(count(key, value, QUEUES_MAX)? as u16),
            "depth" => self.depth = count(key, value, DEPTH_MAX)? as u16,
            "hdgst" => self.header_digest = switch(key, value)?,
            "ddgst" => self.data_digest = switch(key, value)?,
            "replay_writes" => self.replay_writes = switch(key, value)?,
            "hostnqn" => {
                self.host_nqn =
                    Some(Nqn::new(value).map_err(|e| format!("hostnqn={value}: {e}"))?.as_str().into())
            }
            "hostid" => self.host_id = Some(parse_uuid(value).ok_or(format!("hostid={value} is no UUID"))?),
            "dhchap_secret_file" => self.secret_file = Some(value.into()),
            "dhchap_ctrl_secret_file" => self.ctrl_secret_file = Some(value.into()),
            "tls" => self.tls = switch(key, value)?,
            "tls_key_file" => self.tls_key_file = Some(value.into()),
            "tls_key" | "dhchap_secret" | "dhchap_ctrl_secret" => {
                return Err(format!(
                    "{key}: a secret has no place in a URI, which records keep; {key}_file=PATH"
                ));
            }
            "kato" => self.keep_alive = seconds(key, value)?.unwrap_or_default(),
            "reconnect_delay" => {
                self.reconnect_delay = seconds_above_zero(key, value)?.ok_or(format!("{key} can't be off"))?
            }
            "ctrl_loss_tmo" => self.ctrl_loss = seconds(key, value)?,
            "fast_io_fail_tmo" => self.fast_io_fail = seconds(key, value)?,
            "io_timeout" => self.io_timeout = seconds_above_zero(key, value)?,
            "bulk" => {
                self.bulk =
                    parse_bytes(value).map_err(|e| format!("bulk={value}: {e}"))?.min(BULK_MAX) as usize
            }
            "spin_us" => self.spin = Some(spin(key, value)?),
            "content" => self.content = Some(value.into()),
            "iopolicy" => {
                self.policy = match value {
                    "round-robin" => Policy::RoundRobin,
                    "queue-depth" => Policy::QueueDepth,
                    _ => return Err(format!("iopolicy={value} is neither round-robin nor queue-depth")),
                }
            }
            "path" => {
                let address = Address::parse(value).map_err(|why| format!("path={value}: {why}"))?;
                if self.addresses.contains(&address) {
                    return Err(format!("path={value} is named twice"));
                }
                self.addresses.push(address);
                if self.addresses.len() > PATHS_MAX {
                    return Err(format!("has more than {PATHS_MAX} addresses"));
                }
            }
            _ => return Err(format!("'{key}' is not a key of {}:", self.transport.scheme())),
        }
        Ok(())
    }

    /// A key for TLS is as good as `tls=1`.
    pub fn asks_for_tls(&self) -> bool {
        self.tls || self.tls_key_file.is_some()
    }

    /// Its URI, without keys.
    pub fn base(&self) -> String {
        format!("{}://{}/{}", self.transport.scheme(), self.addresses[0], encode(&self.nqn))
    }

    /// Options of a URI of either transport; None: it is another source's.
    pub fn from_uri(uri: &Uri) -> Option<&Options> {
        uri.of_kind()
    }

    /// Returns whether both name the same namespace, by an address that they share.
    pub fn is_same(&self, other: &Options) -> bool {
        self.nqn == other.nqn
            && self.transport == other.transport
            && self.nsid == other.nsid
            && self.addresses.iter().any(|a| other.addresses.contains(a))
    }
}

/// Its first address, its subsystem and its namespace.
impl fmt::Display for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.base())?;
        if self.nsid == 1 {
            return Ok(());
        }
        write!(f, "?nsid={}", self.nsid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> Options {
        Options::new(Address::parse("h:1").unwrap(), "nqn.2014-08.org.example:a")
    }

    #[test]
    fn each_key_is_taken() {
        let mut all = options();
        for (key, value) in [
            ("nsid", "3"),
            ("queues", "8"),
            ("depth", "32"),
            ("hdgst", "1"),
            ("ddgst", ""),
            ("hostnqn", "nqn.2014-08.org.example:me"),
            ("hostid", "00112233-4455-6677-8899-aabbccddeeff"),
            ("dhchap_secret_file", "/etc/nvme/key"),
            ("dhchap_ctrl_secret_file", "/etc/nvme/ctrl-key"),
            ("tls", "1"),
            ("tls_key_file", "/etc/nvme/tls-key"),
            ("spin_us", "50"),
            ("kato", "15"),
            ("reconnect_delay", "0.5"),
            ("ctrl_loss_tmo", "-1"),
            ("fast_io_fail_tmo", "2"),
            ("io_timeout", "2.5"),
            ("path", "[::1]:4421"),
            ("iopolicy", "queue-depth"),
            ("replay_writes", "1"),
            ("content", "a.dat"),
        ] {
            all.set(key, value).unwrap();
        }
        assert_eq!((all.nsid, all.queues, all.depth), (3, Some(8), 32));
        assert!(all.header_digest && all.data_digest && all.replay_writes);
        assert_eq!(all.host_id.unwrap()[15], 0xff);
        assert_eq!(all.reconnect_delay, Duration::from_millis(500));
        assert_eq!((all.ctrl_loss, all.fast_io_fail), (None, Some(Duration::from_secs(2))));
        assert_eq!(all.io_timeout, Some(Duration::from_millis(2500)));
        assert_eq!(all.addresses[1], Address { host: "::1".into(), port: 4421 });
        assert_eq!(all.policy, Policy::QueueDepth);
        assert_eq!(all.to_string(), "nvme+tcp://h:1/nqn.2014-08.org.example:a?nsid=3");
    }

    #[test]
    fn an_address_is_a_name_or_a_number_with_a_port() {
        for (text, host, port) in [
            ("h", "h", PORT),
            ("10.0.0.1:1", "10.0.0.1", 1),
            ("[::1]", "::1", PORT),
            ("[fe80::2%eth0]:9", "fe80::2%eth0", 9),
        ] {
            assert_eq!(Address::parse(text), Ok(Address { host: host.into(), port }), "{text}");
        }
        for text in
            ["", ":1", "[::1", "::1", "[]:1", "[h]:1", "[::1]1", "[::1]:", "h:", "h]:1", "[[::1]]:1", "h:1:2"]
        {
            assert!(Address::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_wrong_is_refused_and_named() {
        for (key, value) in [
            ("nsid", "0"),
            ("nsid", "4294967295"),
            ("queues", "x"),
            ("depth", "65536"),
            ("hdgst", "2"),
            ("hostnqn", "me"),
            ("hostid", "12"),
            ("dhchap_secret", "DHHC-1:00:"),
            ("hostid", "0011223344556677é899aabbccddeeff"),
            ("kato", "soon"),
            ("kato", "nan"),
            ("reconnect_delay", "-1"),
            ("ctrl_loss_tmo", "-2"),
            ("io_timeout", "-2"),
            ("io_timeout", "0"),
            ("reconnect_delay", "0"),
            ("path", "h:1"),
            ("path", "h:99999"),
            ("path", ""),
            ("iopolicy", "numa"),
            ("nr_io_queues", "1"),
        ] {
            let why = options().set(key, value).unwrap_err();
            assert!(why.contains(key), "{key}={value}: {why}");
        }
    }
}
