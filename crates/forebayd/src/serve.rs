//! `serve`: an NVMe/TCP and NVMe/RDMA target, by flags or by a file.

use crate::asked::{log_form, of_file, options, read};
use crate::flags::{Given, SERVE};
use crate::life::{self, Service};
use crate::output::{print, tell};
use crate::signals::Signals;
use crate::words::{bytes, count, grouped, seconds, significant};
use crate::Program;
use forebay_model::units::{parse_bytes, BYTES_PER_GIB};
use forebay_model::Error;
use forebay_serve::{
    apply_changes, config_changes, log_to_stderr, number_namespaces, AllowedHost, Caching, ConfigChanges,
    Counts, Namespace, NamespaceStats, TargetConfig, TargetServer, TargetStats, TargetSubsystem,
};
use forebay_storage::Uri;
use serde_json::{json, Value};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

pub fn command(program: &Program, given: &Given, signals: &mut Signals) -> Result<u8, Error> {
    if let Some(hash) = given.text("new-key") {
        return print(&forebay_io::generate_secret(hash)?);
    }
    let (log, options) = (log_form(given), options(given)?);
    let file = file_of(program.name, given)?;
    let config = configuration(given, file, None)?;
    if given.is("check") {
        let text = serde_json::to_string_pretty(&config).expect("plain data");
        return print(&if options.json { text } else { checked(&config).join("\n") });
    }
    warnings(&config).iter().for_each(|w| tell(&format!("forebay: warning: {w}"), false));
    let started =
        signals.during(|| TargetServer::start(config.clone(), log_to_stderr(log, options.quiet)))?;
    let server = started.map_err(|e| named(file, e))?;
    let before = server.stats();
    let serving = Serving { server, config, file: file.map(Into::into), before, reloads: (0, 0) };
    life::run(serving, &options, signals)
}

/// CONFIG.toml, where that was given; alone, then.
fn file_of<'a>(program: &str, given: &'a Given) -> Result<Option<&'a str>, Error> {
    let Some(subject) = given.subject.as_deref() else {
        let (asked, next) = (format!("{program} serve"), format!("{program} serve --help"));
        return Err(Error::request(asked, "has no SOURCE or CONFIG.toml", next));
    };
    if !subject.ends_with(".toml") || subject.starts_with("file:") {
        return Ok(None);
    }
    let of_the_process = ["drain", "log", "check", "new-key", "json", "quiet"];
    match given.named(&SERVE).find(|long| !of_the_process.contains(long)) {
        None => Ok(Some(subject)),
        Some(long) => Err(Error::request(
            format!("--{long} with {subject}"),
            "is set in the file",
            format!("{program} serve {subject}, or SOURCE --{long} …"),
        )),
    }
}

fn configuration(
    given: &Given,
    file: Option<&str>,
    running: Option<&TargetConfig>,
) -> Result<TargetConfig, Error> {
    let mut config = match file {
        Some(path) => TargetConfig::from_toml(&read(path)?).map_err(|e| of_file(path, e))?,
        None => from_flags(given)?,
    };
    let mut sources = config.subsystems.iter().flat_map(|s| &s.namespaces).map(|n| &n.source);
    let known = sources.try_for_each(|s| Uri::parse(s).map(drop));
    known.map_err(|e| named(file, e))?;
    number_namespaces(&mut config, running);
    Ok(config)
}

/// An error with the file's name in front, where there is one.
fn named(file: Option<&str>, error: Error) -> Error {
    match file {
        Some(path) => of_file(path, error),
        None => error,
    }
}

/// One subsystem with one namespace.
fn from_flags(given: &Given) -> Result<TargetConfig, Error> {
    let Some(nqn) = given.text("nqn").filter(|nqn| !nqn.is_empty()) else {
        let found = "has no --nqn, the name that hosts connect to";
        return Err(Error::request("forebay serve SOURCE", found, format!("--nqn {}", example_nqn())));
    };
    let size = |long: &str| given.text(long).map(|text| sized(text, long)).transpose();
    let number = |long: &str| given.text(long).map(|text| integer(text, long)).transpose();
    let namespace = Namespace {
        source: given.subject.clone().unwrap_or_default(),
        writable: given.is("writable"),
        block_bytes: size("block-size")?.map(|b| b.min(u32::MAX.into()) as u32),
        cache: caching(given.text("cache")),
        ..Namespace::default()
    };
    let subsystem = TargetSubsystem {
        nqn: nqn.into(),
        serial: given.text("serial").unwrap_or_default().into(),
        allow_any_host: given.all("allow").is_empty(),
        hosts: given
            .all("allow")
            .iter()
            .map(|h| AllowedHost { nqn: h.clone(), ..AllowedHost::default() })
            .collect(),
        namespaces: vec![namespace],
        ..TargetSubsystem::default()
    };
    let mut config = TargetConfig { subsystems: vec![subsystem], ..TargetConfig::default() };
    if !given.all("listen").is_empty() {
        config.listen = given.all("listen").to_vec();
    }
    config.listen_rdma = given.all("listen-rdma").to_vec();
    if !config.listen_rdma.is_empty() && given.all("listen").is_empty() {
        config.listen = Vec::new();
    }
    config.metrics = given.text("metrics").map(Into::into);
    config.mdns = given.is("mdns");
    config.threads = number("threads")?.unwrap_or(config.threads);
    config.cpus = given.text("cpus").unwrap_or_default().into();
    config.spin_us = number("spin-us")?;
    if let Some(bytes) = size("max-transfer")? {
        config.max_transfer = forebay_serve::Size(bytes);
    }
    config.check()?;
    Ok(config)
}

/// A name of the right shape, with this host in it.
fn example_nqn() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().to_lowercase();
    let host: String =
        host.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).take(100).collect();
    let host = host.trim_matches('-');
    format!("nqn.2026-01.io.example:{}", if host.is_empty() { "host" } else { host })
}

/// What one of the words of `--cache` means.
fn caching(text: Option<&str>) -> Caching {
    match text {
        Some("bypass") => Caching::Bypass,
        Some("allow") => Caching::Allow,
        _ => Caching::Auto,
    }
}

fn sized(text: &str, long: &str) -> Result<u64, Error> {
    parse_bytes(text).map_err(|e| Error { asked: format!("--{long} {text}"), ..e })
}

fn integer(text: &str, long: &str) -> Result<u32, Error> {
    let wrong = || Error::request(format!("--{long} {text}"), "is not a whole number", format!("--{long} 4"));
    text.parse().map_err(|_| wrong())
}

/// Whether an address as a configuration spells it is of the loopback: `127.0.0.1:4420`, `[::1]:4420`, `::1`, `4420`.
fn is_loopback(address: &str) -> bool {
    let host = match address.strip_prefix('[') {
        Some(inside) => inside.split(']').next().unwrap_or_default(),
        None if address.matches(':').count() == 1 => address.split(':').next().unwrap_or_default(),
        None => address,
    };
    let host = host.split('%').next().unwrap_or_default();
    // A port alone is of the loopback interface.
    host.bytes().all(|b| b.is_ascii_digit()) || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// Warnings about what this configuration lets anyone do who can reach it.
fn warnings(config: &TargetConfig) -> Vec<String> {
    let mut all = config.listen.iter().chain(&config.listen_rdma);
    let Some(beyond) = all.find(|address| !is_loopback(address)) else { return Vec::new() };
    let open = config.subsystems.iter().filter(|s| s.allow_any_host);
    let warning = |s: &TargetSubsystem| {
        let write = if s.namespaces.iter().any(|n| n.writable) { " and write" } else { "" };
        let next = "--allow HOSTNQN (on that host: cat /etc/nvme/hostnqn)";
        format!("any host that reaches {beyond} may read{write} {}\n  try: {next}", s.nqn)
    };
    open.map(warning).collect()
}

fn checked(config: &TargetConfig) -> Vec<String> {
    let mut lines = vec![format!("listen    {}", spelled(&config.listen, &config.listen_rdma))];
    lines.push(format!("metrics   {}", config.metrics.as_deref().unwrap_or("off")));
    for subsystem in &config.subsystems {
        let keys = subsystem.hosts.iter().filter(|h| h.dhchap_key.is_some()).count();
        let who = match subsystem.allow_any_host {
            true => "any host".into(),
            false => count(subsystem.hosts.len() as u64, "host"),
        };
        let proof = if keys > 0 { format!(", {keys} of them with a key") } else { String::new() };
        lines.push(format!("subsystem {} for {who}{proof}", subsystem.nqn));
        lines.extend(subsystem.namespaces.iter().map(|n| {
            let mode = if n.writable { "writable" } else { "read-only" };
            format!("          nsid {}: {}, {mode}", n.nsid, n.source)
        }));
    }
    lines
}

struct Serving {
    server: TargetServer,
    config: TargetConfig,
    file: Option<String>,
    before: TargetStats,
    /// Done, refused.
    reloads: (u64, u64),
}

/// `127.0.0.1:4420, rdma 10.0.0.1:4420`.
fn spelled(tcp: &[String], rdma: &[String]) -> String {
    let rdma = rdma.iter().map(|address| format!("rdma {address}"));
    tcp.iter().cloned().chain(rdma).collect::<Vec<_>>().join(", ")
}

impl Serving {
    /// Over TCP, over RDMA.
    fn addresses(&self) -> [Vec<String>; 2] {
        [self.server.addresses(), self.server.rdma_addresses()]
            .map(|all| all.iter().map(ToString::to_string).collect())
    }

    fn read_again(&mut self, path: &str) -> Result<String, Error> {
        let asked = configuration(&Given::default(), Some(path), Some(&self.config))?;
        let changes = config_changes(&self.config, &asked).map_err(|e| of_file(path, e))?;
        apply_changes(&self.server, &mut self.config, &changes).map_err(|e| of_file(path, e))?;
        Ok(changed(&changes))
    }
}

/// `nsid 2 of nqn.x removed, nsid 3 of nqn.x added (file)`; `nothing changed`.
fn changed(changes: &ConfigChanges) -> String {
    let removed = changes.removed.iter().map(|c| format!("nsid {} of {} removed", c.nsid, c.subsystem));
    let added =
        changes.added.iter().map(|c| format!("nsid {} of {} added ({})", c.nsid, c.subsystem, c.source));
    let states = changes.ana.iter().map(|s| format!("ANA states of {} changed", s.subsystem));
    let reported: Vec<String> = removed.chain(added).chain(states).collect();
    if reported.is_empty() {
        "nothing changed".into()
    } else {
        reported.join(", ")
    }
}

pub fn totals<'a>(all: impl Iterator<Item = &'a Counts>) -> Counts {
    all.fold(Counts::default(), |mut sum, counts| {
        sum.add(counts);
        sum
    })
}

/// A served namespace, in one line.
pub fn namespace(nqn: &str, n: &NamespaceStats) -> String {
    let mode = if n.writable { "writable" } else { "read-only" };
    let size = bytes(n.bytes);
    format!("{nqn} nsid {}: {}, {size}, blocks of {}, {mode}", n.nsid, n.source, n.block_bytes)
}

fn sums(stats: &TargetStats) -> Counts {
    totals(stats.subsystems.iter().flat_map(|s| &s.namespaces).map(|n| &n.counts))
}

/// `read 2.31 GiB/s · write 0 GiB/s · 18,500 IOPS`.
pub fn rates(new: &Counts, old: &Counts, span_s: f64) -> String {
    let rate = |new: u64, old: u64| new.saturating_sub(old) as f64 / span_s;
    let gib = |new, old| significant(rate(new, old) / BYTES_PER_GIB);
    let all = |c: &Counts| c.reads + c.writes + c.flushes + c.others;
    format!(
        "read {} GiB/s · write {} GiB/s · {} IOPS",
        gib(new.read_bytes, old.read_bytes),
        gib(new.write_bytes, old.write_bytes),
        grouped(rate(all(new), all(old)).round() as u64)
    )
}

/// Summary of what was served, when it is over.
fn served(stats: &TargetStats) -> Vec<String> {
    let all = sums(stats);
    let mut lines = vec![format!(
        "served    {} read, {} written in {} · {} · {}",
        bytes(all.read_bytes),
        bytes(all.write_bytes),
        seconds(stats.seconds),
        count(stats.connections_accepted, "connection"),
        count(all.errors, "error")
    )];
    let ended = [(stats.connections_refused, "refused"), (stats.connections_broken, "broken off")];
    let ended = ended.iter().filter(|(connections, _)| *connections > 0);
    lines.extend(ended.map(|(number, words)| format!("          {} {words}", count(*number, "connection"))));
    lines
}

impl Service for Serving {
    fn ready(&self) -> String {
        let [tcp, rdma] = self.addresses();
        let metrics = self.server.metrics_address().map(|a| format!(" · metrics on http://{a}/metrics"));
        format!("listening on {}{}", spelled(&tcp, &rdma), metrics.unwrap_or_default())
    }

    fn offered(&self) -> Vec<String> {
        let namespaces = self.before.subsystems.iter().flat_map(|s| s.namespaces.iter().map(move |n| (s, n)));
        namespaces.map(|(s, n)| namespace(&s.nqn, n)).collect()
    }

    fn line(&mut self, span_s: f64) -> (String, u64) {
        let now = self.server.stats();
        let all = sums(&now);
        let connected = now.subsystems.iter().flat_map(|s| &s.hosts).filter(|h| h.connections > 0);
        let hosts: BTreeSet<&str> = connected.map(|h| h.nqn.as_str()).collect();
        let reported = format!(
            "{} · {} · {}",
            count(hosts.len() as u64, "host"),
            count(now.connections, "connection"),
            rates(&all, &sums(&self.before), span_s)
        );
        self.before = now;
        (reported, all.errors)
    }

    fn reload(&mut self) -> String {
        let Some(path) = self.file.clone() else {
            return "reload ignored: there is no CONFIG.toml to read again".into();
        };
        match self.read_again(&path) {
            Ok(reported) => {
                self.reloads.0 += 1;
                format!("reload: {reported}")
            }
            Err(e) => {
                self.reloads.1 += 1;
                format!("reload refused, serving as before: {e}")
            }
        }
    }

    fn failure(&self) -> Option<Error> {
        self.server.failure()
    }

    fn drain(&mut self, within: Duration) -> bool {
        self.server.drain(within)
    }

    fn closing(&self, drained: bool) -> (Vec<String>, Value) {
        let stats = self.server.stats();
        let lines = served(&stats);
        let [tcp, rdma] = self.addresses();
        let document = json!({
            "schema": "forebay.serve/1",
            "listen": tcp,
            "listen_rdma": rdma,
            "metrics": self.server.metrics_address().map(|a| a.to_string()),
            "drained": drained,
            "reloads": { "done": self.reloads.0, "refused": self.reloads.1 },
            "cpu_s": 0,
            "stats": stats,
        });
        (lines, document)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_serve::ConfigChanges;

    #[test]
    fn addresses_that_others_can_reach_are_known() {
        for address in ["127.0.0.1:4420", "127.1.2.3", "[::1]:4420", "::1", "[::1%lo]:4420", "4420", ":4420"]
        {
            assert!(is_loopback(address), "{address}");
        }
        for address in ["0.0.0.0:4420", "10.0.0.1", "[fe80::1%eth0]:4420", "::", "here"] {
            assert!(!is_loopback(address), "{address}");
        }
    }

    // promise: SRV-2
    #[test]
    fn whoever_may_reach_a_namespace_is_warned_about() {
        let subsystem = |allow_any_host, writable| TargetSubsystem {
            nqn: "nqn.x".into(),
            allow_any_host,
            namespaces: vec![Namespace { writable, ..Namespace::default() }],
            ..TargetSubsystem::default()
        };
        let warned = |listen: &[&str], rdma: &[&str]| {
            let own = |all: &[&str]| all.iter().map(ToString::to_string).collect();
            let subsystems = vec![subsystem(true, true), subsystem(false, true)];
            warnings(&TargetConfig {
                listen: own(listen),
                listen_rdma: own(rdma),
                subsystems,
                ..TargetConfig::default()
            })
        };
        let found = warned(&["127.0.0.1:1", "0.0.0.0:4420"], &[]);
        assert_eq!(found.len(), 1);
        assert!(found[0]
            .starts_with("any host that reaches 0.0.0.0:4420 may read and write nqn.x\n  try: --allow"));
        assert!(warned(&[], &["10.0.0.1"])[0].starts_with("any host that reaches 10.0.0.1 may read"));
        assert!(warned(&["127.0.0.1:1"], &[]).is_empty());
    }

    #[test]
    fn the_line_on_a_terminal_has_rates_since_the_last_one() {
        let gib = 1 << 30;
        let before = Counts { reads: 5, read_bytes: gib, ..Counts::default() };
        let now = Counts { reads: 2005, read_bytes: 5 * gib, writes: 10, write_bytes: gib / 2, ..before };
        assert_eq!(rates(&now, &before, 2.0), "read 2.00 GiB/s · write 0.250 GiB/s · 1,005 IOPS");
        // Counts of a namespace that went are gone, too: never a negative rate.
        assert!(rates(&before, &now, 2.0).starts_with("read 0 GiB/s"));
    }

    #[test]
    fn the_end_says_what_was_served_refused_and_broken_off() {
        let stats = TargetStats {
            seconds: 100.0,
            connections_accepted: 4,
            connections_refused: 2,
            connections_broken: 1,
            ..TargetStats::default()
        };
        let lines = [
            "served    0 B read, 0 B written in 1 min 40 s · 4 connections · 0 errors",
            "          2 connections refused",
            "          1 connection broken off",
        ];
        assert_eq!(served(&stats), lines);
    }

    #[test]
    fn a_reload_that_changed_nothing_says_so() {
        assert_eq!(changed(&ConfigChanges::default()), "nothing changed");
    }
}
