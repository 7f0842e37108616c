//! The subject of the examination: the paths, sockets and hosts that a source URI names.

use super::roots::Roots;
use super::target;
use forebay_io::machine;
use forebay_io::machine::finding::{count, Area, Check, CheckState};
use forebay_model::units::readable_bytes as size;
use forebay_model::Error;
use forebay_storage::source::file::{is_neither, is_source};
use forebay_storage::source::nvme_tcp::{Address, Options, Transport};
use forebay_storage::source::{SourceMedium, Uri};
use serde::Serialize;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Longest time for the examination of a path.
const ANSWER: Duration = Duration::from_secs(3);
/// Longest time for a host to accept a connection.
const CONNECT: Duration = Duration::from_millis(500);
/// Longest time for a name to resolve; a resolver's own time-outs are longer.
const RESOLVE: Duration = Duration::from_secs(2);

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Asked {
    /// As typed; null when nothing was named.
    pub uri: Option<String>,
    /// `machine`, `file`, `stripe`, `nil`, `model`, `nvme+tcp`, `nvme+rdma` or `vfio-user`.
    pub kind: &'static str,
    /// Files, directories and devices that it reads.
    pub paths: Vec<PathBuf>,
    /// Its parts that aren't files.
    pub others: Vec<Other>,
    pub chunk_bytes: Option<u64>,
    /// Composition of the source; None for the machine.
    #[serde(skip)]
    pub medium: Option<SourceMedium>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Other {
    pub uri: String,
    /// `kind`, and what the source tells of itself.
    #[serde(flatten)]
    pub reported: serde_json::Value,
    #[serde(skip)]
    source: Uri,
}

/// None: the machine as a whole. Fails where the text can't be a source, or a file isn't there.
pub(crate) fn parse(text: Option<&str>) -> Result<Asked, Error> {
    let Some(text) = text else { return Ok(Asked { kind: "machine", ..Asked::default() }) };
    let uri = Uri::recognise(text)?;
    let mut asked =
        Asked { uri: Some(text.into()), kind: uri.scheme(), medium: Some(uri.medium()), ..Asked::default() };
    collect(&uri, &mut asked);
    for path in &asked.paths {
        present(text, path)?;
    }
    Ok(asked)
}

fn present(text: &str, path: &std::path::Path) -> Result<(), Error> {
    let shown = path.display();
    let asked = path.to_path_buf();
    let Some(looked) = machine::within(ANSWER, move || std::fs::metadata(asked)) else {
        let found = format!("{shown}: no answer in {} s", ANSWER.as_secs());
        return Err(Error::machine(
            format!("source '{text}'"),
            found,
            "dmesg | tail   # a lost file server, or a dead drive",
        ));
    };
    let error = match looked {
        Ok(meta) if is_source(&meta) => return Ok(()),
        Ok(_) => return Err(is_neither(path)),
        Err(error) => error,
    };
    let (found, next) = match error.kind() {
        std::io::ErrorKind::NotFound => {
            (format!("{shown} doesn't exist"), "a file, directory or block device that exists".to_string())
        }
        std::io::ErrorKind::PermissionDenied => {
            (format!("{shown}: permission denied"), format!("sudo forebay doctor {shown}"))
        }
        _ => (format!("{shown}: {error}"), "a path that can be looked at".into()),
    };
    Err(Error::request(format!("source '{text}'"), found, next))
}

fn collect(uri: &Uri, asked: &mut Asked) {
    asked.paths.extend(uri.path().map(Path::to_path_buf));
    asked.chunk_bytes = asked.chunk_bytes.or(uri.chunk());
    let other = |reported| Other { uri: uri.to_string(), reported, source: uri.clone() };
    asked.others.extend(uri.reported().map(other));
    uri.parts().iter().for_each(|part| collect(part, asked));
}

pub(crate) fn checks(roots: &Roots, asked: &Asked) -> Vec<Check> {
    let mut checks = Vec::new();
    if !asked.paths.is_empty() {
        let shown: Vec<String> = asked.paths.iter().map(|p| p.display().to_string()).collect();
        let mut found = format!("{}: {}", asked.kind, shown.join(" "));
        if let Some(chunk) = asked.chunk_bytes {
            found =
                format!("{} in chunks of {}: {}", count(shown.len(), "member"), size(chunk), shown.join(" "));
        }
        checks.push(Check::new(Area::Source, "source", "source", CheckState::Works, found));
    }
    checks.extend(asked.others.iter().flat_map(|other| from_here(roots, &other.source)));
    checks
}

/// The source's own checks; of a target over TCP those that connect from this machine.
fn from_here(roots: &Roots, source: &Uri) -> Vec<Check> {
    match Options::of(source).filter(|options| options.transport == Transport::Tcp) {
        Some(options) => targets(roots, options),
        None => source.checks(),
    }
}

/// Every address of a namespace, side by side: one that doesn't answer holds up no other.
fn targets(roots: &Roots, options: &Options) -> Vec<Check> {
    let one = |address: &Address| {
        let here = Options { addresses: vec![address.clone()], ..options.clone() };
        let uri = here.to_string();
        let (check, reached) = reach(&uri, &address.host, address.port, &here.nqn);
        let more = reached.map_or_else(Vec::new, |to| target::checks(roots, &uri, &here, to));
        [vec![check], more].concat()
    };
    std::thread::scope(|scope| {
        let asked: Vec<_> = options.addresses.iter().map(|address| scope.spawn(|| one(address))).collect();
        asked.into_iter().flat_map(|thread| thread.join().unwrap_or_default()).collect()
    })
}

/// Checks that a listener accepts, and returns its address.
fn reach(uri: &str, host: &str, port: u16, nqn: &str) -> (Check, Option<SocketAddr>) {
    let check = |state, found: String| {
        Check::new(Area::Source, format!("source.nvme_tcp {uri}"), "NVMe/TCP target", state, found)
    };
    let name = host.to_string();
    let resolved = machine::within(RESOLVE, move || {
        (name.as_str(), port).to_socket_addrs().map(|a| a.collect::<Vec<_>>())
    });
    let addresses = match resolved {
        Some(Ok(addresses)) if !addresses.is_empty() => addresses,
        Some(Err(error)) => {
            let check = check(CheckState::Missing, format!("{host} doesn't resolve: {error}"))
                .why("the host's name is unknown here")
                .next(format!("getent hosts {host}"));
            return (check, None);
        }
        _ => {
            let check = check(CheckState::Missing, format!("{host} doesn't resolve"))
                .why("no name server answered in time")
                .next(format!("getent hosts {host}"));
            return (check, None);
        }
    };
    let started = Instant::now();
    match TcpStream::connect_timeout(&addresses[0], CONNECT) {
        Ok(_) => {
            let ms = started.elapsed().as_secs_f64() * 1e3;
            let check = check(CheckState::Works, format!("{}: accepts after {ms:.1} ms", addresses[0]));
            (check, Some(addresses[0]))
        }
        Err(error) => {
            let next = format!(
                "on {host}: forebay serve SOURCE --nqn {nqn} --listen 0.0.0.0:{port}   # and open the port in its firewall"
            );
            let check = check(CheckState::Missing, format!("{}: {error}", addresses[0]))
                .why(format!("nothing serves {uri} that this host can reach"))
                .next(next);
            (check, None)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stripe_gives_its_members_whatever_they_are() {
        let text = "stripe:?chunk=64k&m=/a%26b&m=file:/c&m=nil:&m=nvme%2Btcp://h:1/nqn.x";
        let mut asked = Asked::default();
        collect(&Uri::recognise(text).unwrap(), &mut asked);
        assert_eq!(asked.paths, [PathBuf::from("/a&b"), PathBuf::from("/c")]);
        assert_eq!(asked.chunk_bytes, Some(65536));
        assert_eq!(asked.others.len(), 2);
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
        // On a busy machine a try may be over before it is looked at.
        let tried = Instant::now();
        while reach("x", "127.0.0.1", port, "nqn").0.state != CheckState::Works {
            assert!(tried.elapsed() < Duration::from_secs(120), "nobody listens");
        }
        // The near end of a connection: nobody listens there, and nobody else gets the port.
        let near_end = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (closed, _) = reach("x", "127.0.0.1", near_end.local_addr().unwrap().port(), "nqn.a");
        assert_eq!(closed.state, CheckState::Missing);
        assert!(closed.next.unwrap().contains("--nqn nqn.a"));
    }
}
