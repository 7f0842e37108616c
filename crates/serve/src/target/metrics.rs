//! The counters as Prometheus reads them, and the few lines of HTTP that hand them out.

pub(crate) mod fabric;

use super::stats::{Counts, LatencyStats, NamespaceStats, Stats};
use forebay_io::monotonic_now;
use forebay_model::prometheus::{self, escaped, head, sample, CONTENT_TYPE};
use rustix::event::{poll, PollFd, PollFlags};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest request that is read.
const REQUEST_BYTES_MAX: usize = 8 << 10;
/// A client has this long for its request, and as long to take the answer: others wait meanwhile.
const PATIENCE: Duration = Duration::from_secs(2);

/// Answers requests, one at a time, until `stop` is readable.
pub(crate) fn serve(listener: &TcpListener, stop: &Arc<OwnedFd>, text: &dyn Fn() -> String) {
    serve_within(listener, stop, text, PATIENCE);
}

fn serve_within(listener: &TcpListener, stop: &Arc<OwnedFd>, text: &dyn Fn() -> String, patience: Duration) {
    loop {
        let mut both = [PollFd::new(&**stop, PollFlags::IN), PollFd::new(listener, PollFlags::IN)];
        if poll(&mut both, None).is_err() {
            continue;
        }
        if !both[0].revents().is_empty() {
            return;
        }
        match listener.accept() {
            Ok((client, _)) => {
                // What a client does wrong is its own trouble.
                let _ = answer(client, text, patience);
            }
            Err(e) if matches!(e.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM)) => {
                std::thread::sleep(Duration::from_millis(200));
            }
            Err(_) => {}
        }
    }
}

/// Returns the time left until then; an error once none is.
fn left(until: Instant) -> std::io::Result<Duration> {
    let left = until.saturating_duration_since(monotonic_now());
    if left.is_zero() {
        return Err(std::io::ErrorKind::TimedOut.into());
    }
    Ok(left)
}

/// All of the bytes, however few a client takes at a time.
fn send(client: &mut TcpStream, mut bytes: &[u8], until: Instant) -> std::io::Result<()> {
    while !bytes.is_empty() {
        client.set_write_timeout(Some(left(until)?))?;
        match client.write(bytes) {
            Ok(0) => return Err(std::io::ErrorKind::WriteZero.into()),
            Ok(n) => bytes = &bytes[n..],
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

fn answer(mut client: TcpStream, text: &dyn Fn() -> String, patience: Duration) -> std::io::Result<()> {
    client.set_nonblocking(false)?;
    let until = monotonic_now() + patience;
    let mut request = Vec::new();
    let mut part = [0; 1024];
    while !request.windows(4).any(|w| w == b"\r\n\r\n") && request.len() < REQUEST_BYTES_MAX {
        client.set_read_timeout(Some(left(until)?))?;
        match client.read(&mut part)? {
            0 => break,
            n => request.extend_from_slice(&part[..n]),
        }
    }
    let line = String::from_utf8_lossy(&request);
    let mut words = line.lines().next().unwrap_or("").split(' ');
    let (status, kind, body) = match (words.next(), words.next().and_then(|path| path.split('?').next())) {
        (Some("GET"), Some("/metrics" | "/")) => ("200 OK", CONTENT_TYPE, text()),
        (Some("GET"), _) => ("404 Not Found", "text/plain", "only /metrics is served here\n".into()),
        _ => ("405 Method Not Allowed", "text/plain", "only GET is understood\n".into()),
    };
    let head = format!(
        "HTTP/1.0 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    send(&mut client, (head + &body).as_bytes(), monotonic_now() + patience)
}

/// All of a snapshot. Names end in their units; counters end in `_total`.
pub(crate) fn render(stats: &Stats) -> String {
    let mut out = String::with_capacity(16 << 10);
    let whole = [
        ("forebay_uptime_seconds", "gauge", stats.seconds),
        ("forebay_draining", "gauge", f64::from(u8::from(stats.draining))),
        ("forebay_connections", "gauge", stats.connections as f64),
        ("forebay_connections_accepted_total", "counter", stats.connections_accepted as f64),
        ("forebay_connections_refused_total", "counter", stats.connections_refused as f64),
        ("forebay_connections_broken_total", "counter", stats.connections_broken as f64),
        ("forebay_log_lines_dropped_total", "counter", stats.log_lines_dropped as f64),
        ("forebay_controllers", "gauge", stats.controllers.len() as f64),
    ];
    self::whole(&mut out, &whole);
    let (mut namespaces, mut hosts, mut queues) = (Vec::new(), Vec::new(), Vec::new());
    for subsystem in &stats.subsystems {
        let nqn = escaped(&subsystem.nqn);
        for n in &subsystem.namespaces {
            let labels = format!("subsystem=\"{nqn}\",nsid=\"{}\"", n.nsid);
            namespaces.push((labels, n));
        }
        for h in &subsystem.hosts {
            hosts.push((format!("subsystem=\"{nqn}\",host=\"{}\"", escaped(&h.nqn)), h));
        }
    }
    for c in &stats.controllers {
        for q in &c.queues {
            let (nqn, host) = (escaped(&c.subsystem), escaped(&c.host));
            let labels =
                format!("subsystem=\"{nqn}\",host=\"{host}\",cntlid=\"{}\",qid=\"{}\"", c.cntlid, q.qid);
            queues.push((labels, q));
        }
    }
    of_namespaces(&mut out, &namespaces);
    fabric::render(
        &mut out,
        namespaces.iter().flat_map(|(l, n)| n.fabric.iter().map(move |s| (l.as_str(), s))),
    );
    counters(&mut out, "host", hosts.iter().map(|(l, h)| (l.as_str(), &h.counts)));
    family(
        &mut out,
        "forebay_host_connections",
        "gauge",
        hosts.iter().map(|(l, h)| (l.as_str(), h.connections)),
    );
    counters(&mut out, "queue", queues.iter().map(|(l, q)| (l.as_str(), &q.counts)));
    histograms(&mut out, "queue_read", queues.iter().map(|(l, q)| (l.as_str(), &q.read_latency)));
    histograms(&mut out, "queue_write", queues.iter().map(|(l, q)| (l.as_str(), &q.write_latency)));
    let in_flight = queues.iter().map(|(l, q)| (l.as_str(), u64::from(q.in_flight)));
    family(&mut out, "forebay_queue_in_flight", "gauge", in_flight);
    out
}

/// Samples without labels: the name, the type and the value of each.
pub(crate) fn whole(out: &mut String, all: &[(&str, &str, f64)]) {
    for (name, kind, value) in all {
        head(out, (name, kind, ""));
        sample(out, name, "", value);
    }
}

/// Writes the metrics of namespaces, each with its labels.
pub(crate) fn of_namespaces(out: &mut String, all: &[(String, &NamespaceStats)]) {
    counters(out, "namespace", all.iter().map(|(l, n)| (l.as_str(), &n.counts)));
    family(out, "forebay_namespace_bytes", "gauge", all.iter().map(|(l, n)| (l.as_str(), n.bytes)));
    histograms(out, "namespace_read", all.iter().map(|(l, n)| (l.as_str(), &n.read_latency)));
    histograms(out, "namespace_write", all.iter().map(|(l, n)| (l.as_str(), &n.write_latency)));
}

pub(crate) fn family<'a>(
    out: &mut String,
    name: &str,
    kind: &str,
    values: impl Iterator<Item = (&'a str, u64)>,
) {
    prometheus::family(out, (name, kind, ""), values);
}

pub(crate) fn counters<'a>(
    out: &mut String,
    whose: &str,
    all: impl Iterator<Item = (&'a str, &'a Counts)> + Clone,
) {
    type Pick = fn(&Counts) -> u64;
    let picks: [(&str, Pick); 7] = [
        ("reads", |c| c.reads),
        ("read_bytes", |c| c.read_bytes),
        ("writes", |c| c.writes),
        ("written_bytes", |c| c.write_bytes),
        ("flushes", |c| c.flushes),
        ("other_commands", |c| c.others),
        ("errors", |c| c.errors),
    ];
    for (what, pick) in picks {
        let values = all.clone().map(|(labels, counts)| (labels, pick(counts)));
        family(out, &format!("forebay_{whose}_{what}_total"), "counter", values);
    }
}

pub(crate) fn histograms<'a>(
    out: &mut String,
    what: &str,
    all: impl Iterator<Item = (&'a str, &'a LatencyStats)>,
) {
    let name = format!("forebay_{what}_latency_seconds");
    for (at, (labels, latency)) in all.filter(|(_, l)| l.count > 0).enumerate() {
        if at == 0 {
            head(out, (&name, "histogram", ""));
        }
        let bucket = |bound: &str| format!("{labels},le=\"{bound}\"");
        for (bound, count) in &latency.buckets {
            sample(out, &format!("{name}_bucket"), &bucket(&bound.to_string()), count);
        }
        sample(out, &format!("{name}_bucket"), &bucket("+Inf"), latency.count);
        sample(out, &format!("{name}_sum"), labels, latency.sum_s);
        sample(out, &format!("{name}_count"), labels, latency.count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::stats::{ControllerStats, HostStats, NamespaceStats, QueueStats, SubsystemStats};

    fn stats() -> Stats {
        let counts = Counts { reads: 3, read_bytes: 12288, ..Counts::default() };
        let read_latency = LatencyStats { count: 3, sum_s: 0.5, buckets: vec![(1e-6, 1), (2e-6, 2)] };
        let queue =
            QueueStats { qid: 2, counts, read_latency: read_latency.clone(), ..QueueStats::default() };
        let controller = ControllerStats { cntlid: 7, queues: vec![queue], ..ControllerStats::default() };
        let namespace = NamespaceStats { nsid: 1, counts, read_latency, ..NamespaceStats::default() };
        let host = HostStats { nqn: "nqn.\"odd\"".into(), connections: 2, counts };
        let subsystem =
            SubsystemStats { nqn: "nqn.s".into(), namespaces: vec![namespace], hosts: vec![host] };
        Stats { subsystems: vec![subsystem], controllers: vec![controller], ..Stats::default() }
    }

    // promise: TGT-9
    #[test]
    fn every_line_is_a_type_or_a_sample() {
        let text = render(&stats());
        assert!(text.contains("forebay_namespace_read_bytes_total{subsystem=\"nqn.s\",nsid=\"1\"} 12288\n"));
        assert!(text.contains("forebay_host_connections{subsystem=\"nqn.s\",host=\"nqn.\\\"odd\\\"\"} 2\n"));
        assert!(text.contains("le=\"+Inf\"} 3\n"));
        let of_queue =
            "forebay_queue_read_latency_seconds_bucket{subsystem=\"\",host=\"\",cntlid=\"7\",qid=\"2\"";
        assert!(text.contains(&format!("{of_queue},le=\"0.000002\"}} 2\n")), "{text}");
        assert!(!text.contains("queue_write_latency"), "nothing was written");
        for line in text.lines() {
            let sample = line.rsplit_once(' ').is_some_and(|(_, value)| value.parse::<f64>().is_ok());
            assert!(line.starts_with("# TYPE forebay_") || sample, "{line}");
        }
        let types: Vec<&str> = text.lines().filter(|l| l.starts_with('#')).collect();
        let mut once = types.clone();
        once.dedup();
        assert_eq!(types, once, "a family is announced once");
    }

    #[test]
    fn requests_are_answered_and_nonsense_is_refused() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let flags = rustix::event::EventfdFlags::CLOEXEC;
        let stop = Arc::new(rustix::event::eventfd(0, flags).unwrap());
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || serve(&listener, &stopped, &|| "a 1\n".into()));
        let ask = |request: &[u8]| {
            let mut client = TcpStream::connect(address).unwrap();
            client.write_all(request).unwrap();
            client.shutdown(std::net::Shutdown::Write).unwrap();
            let mut text = String::new();
            client.read_to_string(&mut text).unwrap();
            text
        };
        assert!(ask(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").ends_with("\r\n\r\na 1\n"));
        assert!(ask(b"GET /x HTTP/1.1\r\n\r\n").starts_with("HTTP/1.0 404"));
        assert!(ask(b"\x00\xff\r\n\r\n").starts_with("HTTP/1.0 405"));
        rustix::io::write(&*stop, &1u64.to_ne_bytes()).unwrap();
        thread.join().unwrap();
    }

    // promise: TGT-9
    #[test]
    fn a_client_that_sends_a_byte_now_and_then_keeps_nobody_out() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let flags = rustix::event::EventfdFlags::CLOEXEC;
        let stop = Arc::new(rustix::event::eventfd(0, flags).unwrap());
        let stopped = stop.clone();
        let patience = Duration::from_millis(300);
        let thread =
            std::thread::spawn(move || serve_within(&listener, &stopped, &|| "a 1\n".into(), patience));
        let mut slow = TcpStream::connect(address).unwrap();
        slow.write_all(b"G").unwrap();
        // Ends when it is disconnected: its request never would.
        let drip = std::thread::spawn(move || {
            let began = monotonic_now();
            while slow.write_all(b"x").is_ok() && began.elapsed() < Duration::from_secs(90) {
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let asks = || -> std::io::Result<String> {
            let mut client = TcpStream::connect(address)?;
            client.set_read_timeout(Some(Duration::from_secs(60)))?;
            client.write_all(b"GET /metrics HTTP/1.1\r\n\r\n")?;
            let mut text = String::new();
            client.read_to_string(&mut text).map(|_| text)
        };
        let began = monotonic_now();
        // On a busy machine this client, too, may be out of time.
        while !asks().is_ok_and(|text| text.ends_with("\r\n\r\na 1\n")) {
            assert!(began.elapsed() < Duration::from_secs(60), "nobody else is answered");
        }
        rustix::io::write(&*stop, &1u64.to_ne_bytes()).unwrap();
        thread.join().unwrap();
        drip.join().unwrap();
    }
}
