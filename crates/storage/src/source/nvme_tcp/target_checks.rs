//! Examination of an NVMe/TCP target and the way to it: its handshake, what it grants, the namespace, and how much one
//! connection carries. Nothing is read or written there.

#![allow(unsafe_code, reason = "TCP_INFO, which rustix lacks")]

use super::{Address, Link, Options, Tls};
use crate::Error;
use forebay_io::{with_time_limit, Check, CheckArea, CheckState, NvmeHostIdentity, Roots, TLS_KEY_VARIABLE};
use forebay_model::units::readable_bytes as size;
use forebay_model::units::BYTES_PER_GIB;
use forebay_nvme::host::{self, ControllerInfo, NamespaceInfo, Session};
use forebay_nvme::log::AnaState;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

/// Longest time for a host to accept a connection.
const CONNECT: Duration = Duration::from_millis(500);
/// Longest time for a name to resolve; a resolver's own time-outs are longer.
const RESOLVE: Duration = Duration::from_secs(2);
/// Longest time for any answer of the target.
const ANSWER: Duration = Duration::from_secs(2);
/// Segments of Ethernet's standard frames, with timestamps; larger ones cost less for each byte.
const SMALL_SEGMENT: u32 = 1460;
/// Rate that one connection should carry, in bytes/s: a port of 25 Gb/s.
const CARRIES_LEAST: f64 = 25e9 / 8.0;
/// Reads shorter than this cost a command each.
const TRANSFER_LEAST: u32 = 128 << 10;

/// Every address of a namespace, side by side: one that doesn't answer holds up no other.
pub(super) fn of_addresses(roots: &Roots, options: &Options) -> Vec<Check> {
    let one = |address: &Address| {
        let here = Options { addresses: vec![address.clone()], ..options.clone() };
        let uri = here.to_string();
        let (check, reached) = reach(&uri, &address.host, address.port, &here.nqn);
        let more = reached.map_or_else(Vec::new, |to| checks(roots, &uri, &here, to));
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
        Check::new(CheckArea::Source, format!("source.nvme_tcp {uri}"), "NVMe/TCP target", state, found)
    };
    let name = host.to_string();
    let resolved = with_time_limit(RESOLVE, move || {
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

/// Checks of one target that accepts connections at `address`.
fn checks(roots: &Roots, uri: &str, options: &Options, address: SocketAddr) -> Vec<Check> {
    let say = Say { uri, options };
    let named = options.host_nqn.as_deref();
    let identity = named.map_or_else(NvmeHostIdentity::of_this_machine, NvmeHostIdentity::named);
    let tls = match Tls::from_options(options, &identity.nqn) {
        Ok(tls) => tls,
        Err(error) => return vec![say.failed("tls", "TLS key", &error)],
    };
    let mut checks: Vec<Check> = tls.iter().map(|_| say.key()).collect();
    let mut link = match Link::open(tls, address, &identity.nqn, &options.nqn, ANSWER) {
        Ok(link) => link,
        Err(error) => {
            checks.push(say.failed("handshake", "NVMe/TCP handshake", &error));
            return checks;
        }
    };
    link.secret_files = (options.secret_file.clone(), options.ctrl_secret_file.clone());
    checks.extend([say.handshake(&link), say.digests(&link)]);
    let mut session = session(options, &identity, &link);
    match link.bring_up(&mut session) {
        // Who got so far that the controller is known stumbled over the namespace.
        Err(error) if session.controller().raw.is_empty() => {
            checks.push(say.failed("connect", "Connect and Identify", &error));
        }
        _ => checks.extend(say.session(&session)),
    }
    checks.extend(say.wire(roots, address, say.wire_to(address, &link)));
    link.shut_down(&mut session);
    checks
}

/// Asks for what the URI asks for: `queues` I/O queues, one for each processor where it says nothing.
fn session(options: &Options, identity: &NvmeHostIdentity, link: &Link) -> Session {
    let options = host::Options {
        host_nqn: identity.nqn.clone(),
        host_id: options.host_id.unwrap_or(identity.id),
        subsystem_nqn: options.nqn.clone(),
        queues: queues_wanted(options),
        queue_entries: options.depth.saturating_add(1),
        keep_alive_ms: options.keep_alive.as_millis().min(u128::from(u32::MAX)) as u32,
        timeout_ms: ANSWER.as_millis() as u64,
        namespace: Some(options.nsid),
    };
    Session::new(options, link.now_ms())
}

fn queues_wanted(options: &Options) -> u16 {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    options.queues.unwrap_or(processors.min(usize::from(u16::MAX)) as u16)
}

/// Properties of a connection as the kernel tells them.
#[derive(Clone, Copy, Debug)]
struct Wire {
    /// Payload of one segment, bytes.
    mss: u32,
    path_mtu: u32,
    round_trip: Duration,
}

fn wire_of(socket: &TcpStream) -> Option<Wire> {
    // SAFETY: a struct of integers, for which zeros will do.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
    let at = std::ptr::addr_of_mut!(info).cast();
    // SAFETY: the kernel writes at most `len` bytes to it, and says how many.
    let result =
        unsafe { libc::getsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, at, &mut len) };
    (result == 0 && info.tcpi_snd_mss > 0).then(|| Wire {
        mss: info.tcpi_snd_mss,
        path_mtu: info.tcpi_pmtu,
        round_trip: Duration::from_micros(info.tcpi_rtt.into()),
    })
}

struct Say<'a> {
    uri: &'a str,
    options: &'a Options,
}

impl Say<'_> {
    fn check(&self, id: &str, title: &str, state: CheckState, found: impl Into<String>) -> Check {
        Check::new(CheckArea::Source, format!("source.nvme_tcp.{id} {}", self.uri), title, state, found)
    }

    fn failed(&self, id: &str, title: &str, error: &Error) -> Check {
        let found = format!("{}: {}", error.asked, error.found);
        self.check(id, title, CheckState::Missing, found)
            .why("without it nothing is read")
            .next(error.next.clone())
    }

    /// The URI with more behind it.
    fn with(&self, more: &str) -> String {
        let joint = if self.uri.contains('?') { '&' } else { '?' };
        format!("'{}{joint}{more}'", self.uri)
    }

    /// The key could be read and has the form of one; whether it is the target's, only the handshake tells.
    fn key(&self) -> Check {
        let found = match &self.options.tls_key_file {
            Some(file) => format!("read from {}", file.display()),
            None => format!("of {TLS_KEY_VARIABLE}"),
        };
        self.check("tls", "TLS key", CheckState::Works, found)
    }

    fn handshake(&self, link: &Link) -> Check {
        let tls = if self.options.asks_for_tls() { "over TLS 1.3; " } else { "" };
        let most = size(link.accepted.max_h2c_bytes.into());
        let found = format!("{tls}ICResp: data to it in PDUs of {most} at most");
        self.check("handshake", "NVMe/TCP handshake", CheckState::Works, found)
    }

    fn digests(&self, link: &Link) -> Check {
        let check = |state, found: &str| self.check("digests", "digests", state, found);
        let offered = (link.accepted.header_digest, link.accepted.data_digest);
        let lacks = self.options.header_digest && !offered.0 || self.options.data_digest && !offered.1;
        if lacks {
            return check(CheckState::Missing, "the target doesn't support those that the URI requests")
                .why("hdgst=1 and ddgst=1 are refused where the target has them off")
                .next("header_digest = true, data_digest = true in the target's configuration; or a URI without them");
        }
        match (offered, self.options.header_digest || self.options.data_digest) {
            ((false, false), _) => {
                check(CheckState::Works, "none: disabled at the target, and the URI doesn't request them")
            }
            (_, true) => check(CheckState::Works, "CRC32C, as the URI asks"),
            (_, false) => {
                let found = format!("CRC32C where asked for: {}", self.with("hdgst=1&ddgst=1"));
                check(CheckState::Works, &found)
            }
        }
    }

    fn session(&self, session: &Session) -> Vec<Check> {
        let info = session.controller();
        let mut checks = vec![self.identified(info), self.queues(info), self.transfer(info)];
        checks.push(self.namespace(session.namespaces().get(&self.options.nsid), info));
        checks.push(self.keep_alive(info));
        checks
    }

    fn identified(&self, info: &ControllerInfo) -> Check {
        let version = info.version;
        let found = format!(
            "{} {}, controller {}, NVMe {}.{}",
            info.model,
            info.firmware,
            info.cntlid,
            version >> 16,
            version >> 8 & 0xff
        );
        self.check("connect", "Connect and Identify", CheckState::Works, found)
    }

    fn queues(&self, info: &ControllerInfo) -> Check {
        let wanted = queues_wanted(self.options);
        let depth = info.queue_entries.saturating_sub(1);
        let found = format!("{} granted of {wanted} requested, {depth} commands each", info.queues);
        let check = |state| self.check("queues", "I/O queues", state, found.clone());
        match (info.queues < wanted, self.options.queues) {
            (false, _) => check(CheckState::Works),
            (true, Some(_)) => check(CheckState::Missing)
                .why("a target that grants fewer than queues= says is refused")
                .next(format!("queues={} in the URI; or queues = {wanted} at the target", info.queues)),
            (true, None) => check(CheckState::Limited)
                .why("fewer connections than processors: a worker for each processor has none of its own")
                .next(format!("queues = {wanted} at the target; or ‹workers› {}", info.queues)),
        }
    }

    fn transfer(&self, info: &ControllerInfo) -> Check {
        let capsule = size(info.in_capsule_bytes.into());
        let check = |state, most: String| {
            let found = format!("{most} for each command; writes up to {capsule} travel with theirs");
            self.check("transfer", "longest transfer", state, found)
        };
        match info.transfer_bytes {
            None => check(CheckState::Works, "no limit".into()),
            Some(most) if most < TRANSFER_LEAST => check(CheckState::Limited, size(most.into()))
                .why("longer I/Os are cut into commands of that size, each with a round trip's work")
                .next("max_transfer = \"1m\" at a Forebay target; MDTS at others"),
            Some(most) => check(CheckState::Works, size(most.into())),
        }
    }

    fn namespace(&self, found: Option<&NamespaceInfo>, info: &ControllerInfo) -> Check {
        let title = format!("namespace {}", self.options.nsid);
        let base = format!("nvme+tcp://{}/{}", self.options.addresses[0], self.options.nqn);
        let check = |state, found: String| self.check("namespace", &title, state, found);
        let Some(namespace) = found else {
            return check(CheckState::Missing, "missing, or not accessible to this host".into())
                .why("nothing can be read from a namespace that the controller doesn't list")
                .next(format!("forebay identify {base}   # lists those that are"));
        };
        let bytes = size(namespace.blocks.saturating_mul(namespace.block_bytes.into()));
        let access = if namespace.read_only { ", read-only" } else { "" };
        let shown = format!("{bytes} in blocks of {} B{access}", namespace.block_bytes);
        if let Some(why) = namespace.unusable {
            return check(CheckState::Missing, shown).why(why).next("another format, at the target");
        }
        if !info.ana {
            return check(CheckState::Works, format!("{shown}; no ANA: all paths are equal"));
        }
        let shown = format!("{shown}; this path is {}", namespace.ana_state.name());
        let elsewhere = format!("{}   # a path that is optimized", self.with("path=HOST:PORT"));
        match namespace.ana_state {
            AnaState::Optimized => check(CheckState::Works, shown),
            AnaState::NonOptimized => check(CheckState::Limited, shown)
                .why("the target reaches its medium indirectly on this path")
                .next(elsewhere),
            _ => check(CheckState::Missing, shown)
                .why("the target accepts no I/O on this path now")
                .next(elsewhere),
        }
    }

    fn keep_alive(&self, info: &ControllerInfo) -> Check {
        let asked = self.options.keep_alive.as_secs_f64();
        let check = |state, found: String| self.check("keep_alive", "keep alive", state, found);
        if asked == 0.0 {
            return check(CheckState::Limited, "off, as the URI says (kato)".into())
                .why("a target that disappears silently is noticed only by io_timeout")
                .next(self.with("kato=5").replace("kato=-1&", ""));
        }
        match info.keep_alive_granularity_ms {
            0 => check(CheckState::Limited, "the controller has none".into())
                .why("a target that disappears silently is noticed only by io_timeout")
                .next(self.with("io_timeout=10")),
            step => {
                check(CheckState::Works, format!("a command every {} s, in steps of {step} ms", asked / 2.0))
            }
        }
    }

    /// Segments, round trip, and what the buffers of a connection let it carry.
    /// Of the connection itself, or where it is behind TLS of another one to there.
    fn wire_to(&self, address: SocketAddr, link: &Link) -> Option<Wire> {
        if !self.options.asks_for_tls() {
            return wire_of(link.socket());
        }
        wire_of(&TcpStream::connect_timeout(&address, ANSWER).ok()?)
    }

    fn wire(&self, roots: &Roots, address: SocketAddr, wire: Option<Wire>) -> Vec<Check> {
        let Some(wire) = wire else {
            let check =
                self.check("path", "network path", CheckState::Unknown, "the kernel doesn't report it");
            return vec![check.why("TCP_INFO gives no answer for this socket")];
        };
        vec![self.segments(address, wire), self.buffers(roots, wire), self.pacing(roots, address)]
    }

    /// Checks whether the kernel spreads sends over time by timers of its own.
    fn pacing(&self, roots: &Roots, address: SocketAddr) -> Check {
        let check = |state, found: String| self.check("congestion", "congestion control", state, found);
        if address.ip().to_canonical().is_loopback() {
            return check(
                CheckState::Works,
                "reno, as on all connections of loopback: nothing is paced".into(),
            );
        }
        match Roots::text(&roots.proc("sys/net/ipv4/tcp_congestion_control")) {
            None => check(CheckState::Unknown, "not reported".into())
                .why("net.ipv4.tcp_congestion_control can't be read"),
            Some(name) if name.trim().starts_with("bbr") => check(CheckState::Limited, name.trim().into())
                .why("it uses pacing: a timer for every few segments costs processor time, most of all on virtual machines")
                .next("sudo sysctl -w net.ipv4.tcp_congestion_control=cubic   # here and at the target; then measure again"),
            Some(name) => check(CheckState::Works, name.trim().into()),
        }
    }

    fn segments(&self, address: SocketAddr, wire: Wire) -> Check {
        let Wire { mss, path_mtu, round_trip } = wire;
        let ms = round_trip.as_secs_f64() * 1e3;
        let found = format!("segments of {mss} B (path MTU {path_mtu}), round trip {ms:.2} ms");
        let check = |state| self.check("path", "network path", state, found.clone());
        if mss > SMALL_SEGMENT || address.ip().is_loopback() {
            return check(CheckState::Works);
        }
        check(CheckState::Limited)
            .why("each segment costs both ends some work; frames of 9000 bytes make a sixth as many")
            .next(format!(
                "sudo ip link set dev \"$(ip -o route get {ip} | grep -oP 'dev \\K\\S+')\" mtu 9000   # at both ends, \
                 and every switch between; then tracepath -n {ip}",
                ip = address.ip()
            ))
    }

    fn buffers(&self, roots: &Roots, wire: Wire) -> Check {
        let check = |state, found: String| self.check("buffers", "socket buffers", state, found);
        let most = |name: &str| {
            let line = Roots::text(&roots.proc(format!("sys/net/ipv4/{name}")))?;
            line.split_whitespace().nth(2)?.parse::<u64>().ok()
        };
        let (Some(receive), Some(send)) = (most("tcp_rmem"), most("tcp_wmem")) else {
            return check(CheckState::Unknown, "not reported".into())
                .why("net.ipv4.tcp_rmem and tcp_wmem can't be read");
        };
        // Half of a receive buffer is bookkeeping (tcp_adv_win_scale).
        let rate = receive as f64 / 2.0 / wire.round_trip.as_secs_f64().max(1e-6);
        let gib_s = rate / BYTES_PER_GIB;
        let found = format!(
            "up to {} to receive, {} to send: {gib_s:.1} GiB/s a connection at this round trip",
            size(receive),
            size(send)
        );
        let wanted = (CARRIES_LEAST * wire.round_trip.as_secs_f64() * 2.0) as u64;
        match rate < CARRIES_LEAST {
            false => check(CheckState::Works, found),
            true => check(CheckState::Limited, found)
                .why("a connection waits for its window when more than that lies between both ends")
                .next(format!(
                    "sudo sysctl -w net.ipv4.tcp_rmem='4096 131072 {}'   # and net.ipv4.tcp_wmem at the target; or more queues",
                    wanted.next_power_of_two().max(16 << 20)
                )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Uri;

    const NQN: &str = "nqn.2026-11.io.example:a";

    fn options(uri: &str) -> Options {
        Options::from_uri(&Uri::recognise(uri).unwrap()).unwrap().clone()
    }

    // promise: DOC-4
    #[test]
    fn small_segments_and_short_windows_are_judged_by_what_they_carry() {
        let options = options(&format!("nvme+tcp://h:1/{NQN}"));
        let say = Say { uri: "u", options: &options };
        let wire = |mss, us| Wire { mss, path_mtu: mss + 52, round_trip: Duration::from_micros(us) };
        let far: SocketAddr = "192.0.2.1:4420".parse().unwrap();
        assert_eq!(say.segments(far, wire(1448, 100)).state, CheckState::Limited);
        assert!(say.segments(far, wire(1448, 100)).next.unwrap().contains("tracepath -n 192.0.2.1"));
        assert_eq!(say.segments(far, wire(8948, 100)).state, CheckState::Works);
        assert_eq!(say.segments("127.0.0.1:1".parse().unwrap(), wire(1448, 100)).state, CheckState::Works);
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("proc/sys/net/ipv4");
        std::fs::create_dir_all(&folder).unwrap();
        for name in ["tcp_rmem", "tcp_wmem"] {
            std::fs::write(folder.join(name), "4096\t131072\t6291456\n").unwrap();
        }
        let roots = Roots::under(root.path());
        assert_eq!(say.buffers(&roots, wire(8948, 100)).state, CheckState::Works);
        let slow = say.buffers(&roots, wire(8948, 10_000));
        assert!(
            slow.state == CheckState::Limited && slow.next.unwrap().contains("67108864"),
            "10 ms at 25 Gb/s"
        );
        assert_eq!(
            say.buffers(&Roots::under(root.path().join("none")), wire(1, 1)).state,
            CheckState::Unknown
        );
    }

    // promise: DOC-4
    #[test]
    fn a_congestion_control_that_paces_is_named_but_on_loopback() {
        let options = options(&format!("nvme+tcp://h:1/{NQN}"));
        let say = Say { uri: "u", options: &options };
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("proc/sys/net/ipv4");
        std::fs::create_dir_all(&folder).unwrap();
        let roots = Roots::under(root.path());
        let far: SocketAddr = "192.0.2.1:4420".parse().unwrap();
        assert_eq!(say.pacing(&roots, far).state, CheckState::Unknown);
        for (name, state) in
            [("bbr", CheckState::Limited), ("bbr2", CheckState::Limited), ("cubic", CheckState::Works)]
        {
            std::fs::write(folder.join("tcp_congestion_control"), format!("{name}\n")).unwrap();
            let found = say.pacing(&roots, far);
            assert_eq!((found.state, found.next.is_some()), (state, state == CheckState::Limited), "{name}");
            assert_eq!(say.pacing(&roots, "[::1]:4420".parse().unwrap()).state, CheckState::Works);
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
