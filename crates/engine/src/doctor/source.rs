//! What the examination was asked about: the paths, sockets and hosts that a source URI names.

use super::probe;
use super::report::{count, size, Area, Check, State};
use forebay_model::units::parse_bytes;
use forebay_model::Error;
use serde::Serialize;
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

const URI_BYTES_MAX: usize = 64 << 10;
const MEMBERS_MAX: usize = 64;
const NESTING_MAX: u32 = 4;
const CHUNK_DEFAULT: u64 = 512 << 10;
/// How long a path may take to be looked at.
const ANSWER: Duration = Duration::from_secs(3);
/// How long a host may take to accept a connection.
const CONNECT: Duration = Duration::from_millis(500);
/// How long its name may take to resolve; a resolver's own time-outs are longer.
const RESOLVE: Duration = Duration::from_secs(2);

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Asked {
    /// As typed; null when nothing was named.
    pub uri: Option<String>,
    /// `machine`, `file`, `stripe`, `nil`, `model`, `nvme+tcp` or `vfio-user`.
    pub kind: &'static str,
    /// Files, directories and devices that it reads.
    pub paths: Vec<PathBuf>,
    /// What of it isn't a file.
    pub others: Vec<Other>,
    pub chunk_bytes: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Other {
    pub uri: String,
    #[serde(flatten)]
    pub kind: Kind,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Kind {
    Nil,
    Model { name: String },
    NvmeTcp { host: String, port: u16, nqn: String },
    VfioUser { socket: PathBuf },
}

/// None: the machine as a whole. Fails where the text can't be a source, or a file isn't there.
pub fn parse(text: Option<&str>) -> Result<Asked, Error> {
    let Some(text) = text else { return Ok(Asked { kind: "machine", ..Asked::default() }) };
    if text.len() > URI_BYTES_MAX {
        return Err(Error::request("the source", "is longer than 64 KiB", "fewer members"));
    }
    let mut asked = Asked { uri: Some(text.into()), kind: scheme(text).0, ..Asked::default() };
    collect(text, 0, &mut asked)?;
    for path in &asked.paths {
        present(text, path)?;
    }
    Ok(asked)
}

fn present(text: &str, path: &std::path::Path) -> Result<(), Error> {
    let shown = path.display();
    let asked = path.to_path_buf();
    let Some(looked) = probe::within(ANSWER, move || std::fs::metadata(asked).map(drop)) else {
        let found = format!("{shown}: no answer in {} s", ANSWER.as_secs());
        return Err(Error::machine(
            format!("source '{text}'"),
            found,
            "dmesg | tail   # a lost file server, or a dead drive",
        ));
    };
    let Err(error) = looked else { return Ok(()) };
    let (found, next) = match error.kind() {
        std::io::ErrorKind::NotFound => {
            (format!("{shown} isn't there"), "a file, directory or block device that exists".to_string())
        }
        std::io::ErrorKind::PermissionDenied => {
            (format!("{shown}: permission denied"), format!("sudo forebay doctor {shown}"))
        }
        _ => (format!("{shown}: {error}"), "a path that can be looked at".into()),
    };
    Err(Error::request(format!("source '{text}'"), found, next))
}

/// (scheme, rest); a text without a known scheme is a path.
fn scheme(text: &str) -> (&'static str, &str) {
    for scheme in ["stripe", "nil", "model", "nvme+tcp", "vfio-user", "file"] {
        if let Some(rest) = text.strip_prefix(scheme).and_then(|t| t.strip_prefix(':')) {
            return (scheme, rest);
        }
    }
    ("file", text)
}

fn collect(text: &str, depth: u32, asked: &mut Asked) -> Result<(), Error> {
    let bad = |found: &str, next: &str| Error::request(format!("source '{text}'"), found, next);
    if depth > NESTING_MAX {
        return Err(bad("stripes nest too deep", "a stripe of files"));
    }
    let (scheme, rest) = scheme(text);
    let mut other = |kind| asked.others.push(Other { uri: text.into(), kind });
    match scheme {
        "nil" => other(Kind::Nil),
        "model" => {
            let (name, query) = rest.split_once('?').unwrap_or((rest, ""));
            other(Kind::Model { name: name.into() });
            for (_, over) in pairs(query).into_iter().filter(|(key, _)| key == "over") {
                collect(&over, depth + 1, asked)?;
            }
        }
        "nvme+tcp" => other(
            remote(rest)
                .ok_or_else(|| bad("isn't an address", "nvme+tcp://HOST:4420/NQN?nsid=1&queues=8"))?,
        ),
        "vfio-user" => other(Kind::VfioUser { socket: rest.trim_start_matches("//").into() }),
        "stripe" => stripe(rest, depth, asked, &bad)?,
        _ => {
            let path = rest.strip_prefix("//").filter(|_| text.starts_with("file:")).unwrap_or(rest);
            if path.is_empty() {
                return Err(bad("names no path", "a file, directory or block device"));
            }
            asked.paths.push(path.into());
        }
    }
    Ok(())
}

fn stripe(rest: &str, depth: u32, asked: &mut Asked, bad: &dyn Fn(&str, &str) -> Error) -> Result<(), Error> {
    let pairs = pairs(rest.trim_start_matches('?'));
    let example = "stripe:?chunk=512k&m=/mnt/a/f&m=/mnt/b/f";
    let members = pairs.iter().filter(|(key, _)| key == "m").count();
    if members == 0 || members > MEMBERS_MAX {
        return Err(bad(&format!("has {members} members; a stripe has 1 to {MEMBERS_MAX}"), example));
    }
    let mut chunk = CHUNK_DEFAULT;
    for (key, value) in pairs {
        match key.as_str() {
            "m" => collect(&value, depth + 1, asked)?,
            "chunk" => chunk = parse_bytes(&value)?,
            _ => return Err(bad(&format!("'{key}' is no key of stripe:"), example)),
        }
    }
    asked.chunk_bytes.get_or_insert(chunk);
    Ok(())
}

/// `//host:port/NQN?…`; an IPv6 host stands in brackets.
fn remote(rest: &str) -> Option<Kind> {
    let rest = rest.strip_prefix("//")?;
    let (address, path) = rest.split_once('/')?;
    let nqn = path.split('?').next()?;
    let (host, port) = match address.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, port.parse().ok()?),
        _ => (address, 4420),
    };
    let host = host.trim_matches(['[', ']']);
    let named = !host.is_empty() && !nqn.is_empty();
    named.then(|| Kind::NvmeTcp { host: host.into(), port, nqn: nqn.into() })
}

/// `a=b&c=d`, percent-decoded.
fn pairs(query: &str) -> Vec<(String, String)> {
    let words = query.split('&').filter(|w| !w.is_empty()).take(4096);
    words
        .map(|word| {
            let (key, value) = word.split_once('=').unwrap_or((word, ""));
            (decode(key), decode(value))
        })
        .collect()
}

fn decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let digits =
            bytes.get(at + 1..at + 3).filter(|d| bytes[at] == b'%' && d.iter().all(u8::is_ascii_hexdigit));
        let value = digits.and_then(|d| u8::from_str_radix(std::str::from_utf8(d).ok()?, 16).ok());
        out.push(value.unwrap_or(bytes[at]));
        at += if value.is_some() { 3 } else { 1 };
    }
    String::from_utf8_lossy(&out).into_owned()
}

pub fn checks(asked: &Asked) -> Vec<Check> {
    let mut checks = Vec::new();
    if !asked.paths.is_empty() {
        let shown: Vec<String> = asked.paths.iter().map(|p| p.display().to_string()).collect();
        let mut found = format!("{}: {}", asked.kind, shown.join(" "));
        if let Some(chunk) = asked.chunk_bytes {
            found =
                format!("{} in chunks of {}: {}", count(shown.len(), "member"), size(chunk), shown.join(" "));
        }
        checks.push(Check::new(Area::Source, "source", "source", State::Works, found));
    }
    checks.extend(asked.others.iter().map(|other| match &other.kind {
        Kind::Nil => Check::new(
            Area::Source,
            format!("source.nil {}", other.uri),
            other.uri.clone(),
            State::Works,
            "completes at once: the cost of our own loop; no hardware applies",
        ),
        Kind::Model { name } => Check::new(
            Area::Source,
            format!("source.model {}", other.uri),
            other.uri.clone(),
            State::Works,
            format!("a timed model of {name}: results are simulated, whatever hardware is here"),
        ),
        Kind::NvmeTcp { host, port, nqn } => reach(&other.uri, host, *port, nqn),
        Kind::VfioUser { socket } => local_socket(socket),
    }));
    checks
}

/// Whether a listener accepts: the NVMe/TCP handshake itself belongs to a run.
fn reach(uri: &str, host: &str, port: u16, nqn: &str) -> Check {
    let check = |state, found: String| {
        Check::new(Area::Source, format!("source.nvme_tcp {uri}"), "NVMe/TCP target", state, found)
    };
    let name = host.to_string();
    let resolved = probe::within(RESOLVE, move || {
        (name.as_str(), port).to_socket_addrs().map(|a| a.collect::<Vec<_>>())
    });
    let addresses = match resolved {
        Some(Ok(addresses)) if !addresses.is_empty() => addresses,
        Some(Err(error)) => {
            return check(State::Missing, format!("{host} doesn't resolve: {error}"))
                .why("the host's name is unknown here")
                .next(format!("getent hosts {host}"))
        }
        _ => {
            return check(State::Missing, format!("{host} doesn't resolve"))
                .why("no name server answered in time")
                .next(format!("getent hosts {host}"))
        }
    };
    let started = Instant::now();
    match TcpStream::connect_timeout(&addresses[0], CONNECT) {
        Ok(_) => check(State::Works, format!("{}: accepts after {:.1} ms", addresses[0], started.elapsed().as_secs_f64() * 1e3)),
        Err(error) => check(State::Missing, format!("{}: {error}", addresses[0]))
            .why(format!("nothing serves {uri} that this host can reach"))
            .next(format!("on {host}: forebay serve SOURCE --nqn {nqn} --listen 0.0.0.0:{port}   # and open the port in its firewall")),
    }
}

fn local_socket(socket: &std::path::Path) -> Check {
    let check = |state, found: String| {
        Check::new(
            Area::Source,
            format!("source.vfio_user {}", socket.display()),
            "vfio-user socket",
            state,
            found,
        )
    };
    let shown = socket.display();
    match std::fs::metadata(socket) {
        Ok(stat) if stat.file_type().is_socket() => check(State::Works, format!("{shown} is a socket")),
        Ok(_) => check(State::Missing, format!("{shown} isn't a socket"))
            .why("an emulated drive listens on a UNIX socket")
            .next(format!("ls -l {shown}")),
        Err(error) => check(State::Missing, format!("{shown}: {error}"))
            .why("the program that emulates the drive isn't running, or listens elsewhere")
            .next("start it first; then name the socket that it makes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_stripe_gives_its_members_whatever_they_are() {
        let mut asked = Asked::default();
        collect("stripe:?chunk=64k&m=/a%26b&m=file:/c&m=nil:&m=nvme+tcp://h:1/nqn.x", 0, &mut asked).unwrap();
        assert_eq!(asked.paths, [PathBuf::from("/a&b"), PathBuf::from("/c")]);
        assert_eq!(asked.chunk_bytes, Some(65536));
        assert_eq!(asked.others.len(), 2);
    }

    #[test]
    fn remote_addresses_come_with_and_without_brackets_and_port() {
        let address = |text| match remote(text) {
            Some(Kind::NvmeTcp { host, port, .. }) => Some((host, port)),
            _ => None,
        };
        assert_eq!(address("//10.0.0.2:4421/nqn?nsid=1"), Some(("10.0.0.2".into(), 4421)));
        assert_eq!(address("//[fe80::1]:4420/nqn"), Some(("fe80::1".into(), 4420)));
        assert_eq!(address("//[fe80::1]/nqn"), Some(("fe80::1".into(), 4420)));
        assert_eq!(address("//host:99999/nqn"), None);
        assert_eq!(address("//host:1/"), None);
    }

    #[test]
    fn a_path_that_is_not_there_is_the_requests_fault() {
        for text in ["/no/such/path", "file:/no/such/path", "stripe:?m=/&m=/no/such/path"] {
            let error = parse(Some(text)).unwrap_err();
            assert_eq!(error.kind, forebay_model::Kind::Request);
            assert!(error.found.contains("/no/such/path"), "{error}");
        }
    }

    #[test]
    fn a_listener_is_told_from_a_closed_port() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert_eq!(reach("x", "127.0.0.1", port, "nqn").state, State::Works);
        drop(listener);
        let closed = reach("x", "127.0.0.1", port, "nqn.a");
        assert!(closed.next.unwrap().contains("--nqn nqn.a"));
    }

    proptest! {
        #[test]
        fn any_source_is_survived(text in "(stripe|model|nil|file|nvme\\+tcp|vfio-user)?:?[?&=m%a-f0-9/\\[\\]:é]{0,60}") {
            let _ = collect(&text, 0, &mut Asked::default());
        }
    }
}
