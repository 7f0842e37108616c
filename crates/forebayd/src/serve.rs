//! `forebayd serve`: an NVMe/TCP target, by the flags and files of `forebay serve`.

use crate::asked::{log_form, of_file, options, read};
use crate::flags::{Given, SERVE};
use crate::life::{self, tell, Service};
use crate::words::{bytes, count, grouped, seconds, significant};
use forebay_model::units::{parse_bytes, BYTES_PER_GIB};
use forebay_model::Error;
use forebay_serve::target::config::{Caching, Host, Namespace, Subsystem};
use forebay_serve::target::stats::{Counts, NamespaceStats};
use forebay_serve::target::{log, reload, Config, Server, Stats};
use forebay_storage::source::Uri;
use serde_json::{json, Value};
use std::net::IpAddr;
use std::process::ExitCode;
use std::time::Duration;

pub fn command(given: &Given) -> Result<ExitCode, Error> {
    if let Some(hash) = given.text("new-key") {
        tell(&forebay_io::auth::generate(hash)?, true);
        return Ok(ExitCode::SUCCESS);
    }
    let (log, options) = (log_form(given)?, options(given)?);
    let file = file_of(given)?;
    let config = configuration(given, file, None)?;
    if given.is("check") {
        let text = serde_json::to_string_pretty(&config).expect("plain data");
        tell(&if options.json { text } else { checked(&config).join("\n") }, true);
        return Ok(ExitCode::SUCCESS);
    }
    warnings(&config).iter().for_each(|w| eprintln!("forebay: warning: {w}"));
    let server = Server::start(config.clone(), log::to_stderr(log, options.quiet))?;
    let before = server.stats();
    life::run(Serving { server, config, file: file.map(Into::into), before, reloads: (0, 0) }, &options)
}

/// CONFIG.toml, where that was given; alone, then.
fn file_of(given: &Given) -> Result<Option<&str>, Error> {
    let Some(subject) = given.subject.as_deref() else {
        return Err(Error::request(
            "forebayd serve",
            "has no SOURCE or CONFIG.toml",
            "forebayd serve --help",
        ));
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
            format!("forebayd serve {subject}, or SOURCE --{long} …"),
        )),
    }
}

fn configuration(given: &Given, file: Option<&str>, running: Option<&Config>) -> Result<Config, Error> {
    let mut config = match file {
        Some(path) => Config::from_toml(&read(path)?).map_err(|e| of_file(path, e))?,
        None => from_flags(given)?,
    };
    let mut sources = config.subsystems.iter().flat_map(|s| &s.namespaces).map(|n| &n.source);
    let known = sources.try_for_each(|s| Uri::parse(s).map(drop));
    known.map_err(|e| file.map_or(e.clone(), |path| of_file(path, e)))?;
    reload::number(&mut config, running);
    Ok(config)
}

/// One subsystem with one namespace.
fn from_flags(given: &Given) -> Result<Config, Error> {
    let Some(nqn) = given.text("nqn") else {
        let found = "has no --nqn, the name that hosts connect to";
        return Err(Error::request("forebay serve SOURCE", found, "--nqn nqn.2026-01.io.example:disk"));
    };
    let size = |long: &str| given.text(long).map(|text| sized(text, long)).transpose();
    let number = |long: &str| given.text(long).map(|text| integer(text, long)).transpose();
    let namespace = Namespace {
        source: given.subject.clone().unwrap_or_default(),
        writable: given.is("writable"),
        block_bytes: size("block-size")?.map(|b| b.min(u32::MAX.into()) as u32),
        cache: caching(given.text("cache"))?,
        ..Namespace::default()
    };
    let subsystem = Subsystem {
        nqn: nqn.into(),
        serial: given.text("serial").unwrap_or_default().into(),
        allow_any_host: given.all("allow").is_empty(),
        hosts: given.all("allow").iter().map(|h| Host { nqn: h.clone(), ..Host::default() }).collect(),
        namespaces: vec![namespace],
        ..Subsystem::default()
    };
    let mut config = Config { subsystems: vec![subsystem], ..Config::default() };
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
        config.max_transfer = forebay_serve::target::config::Size(bytes);
    }
    config.check()?;
    Ok(config)
}

fn caching(text: Option<&str>) -> Result<Caching, Error> {
    match text {
        None | Some("auto") => Ok(Caching::Auto),
        Some("bypass") => Ok(Caching::Bypass),
        Some("allow") => Ok(Caching::Allow),
        Some(other) => Err(Error::request(
            format!("--cache {other}"),
            "is not one of auto, bypass, allow",
            "--cache auto",
        )),
    }
}

fn sized(text: &str, long: &str) -> Result<u64, Error> {
    parse_bytes(text).map_err(|e| Error { asked: format!("--{long} {text}"), ..e })
}

fn integer(text: &str, long: &str) -> Result<u32, Error> {
    let wrong = || Error::request(format!("--{long} {text}"), "is not a whole number", format!("--{long} 4"));
    text.parse().map_err(|_| wrong())
}

/// Warnings about what this configuration lets anyone do who can reach it.
fn warnings(config: &Config) -> Vec<String> {
    let loopback = |text: &&String| {
        let host = text.strip_prefix('[').and_then(|t| t.split(']').next());
        let host = host.unwrap_or_else(|| {
            if text.matches(':').count() == 1 {
                text.split(':').next().unwrap_or("")
            } else {
                text
            }
        });
        host.is_empty()
            || host.bytes().all(|b| b.is_ascii_digit())
            || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
    };
    let mut all = config.listen.iter().chain(&config.listen_rdma);
    let Some(beyond) = all.find(|text| !loopback(text)) else { return Vec::new() };
    let open = config.subsystems.iter().filter(|s| s.allow_any_host);
    let warning = |s: &Subsystem| {
        let write = if s.namespaces.iter().any(|n| n.writable) { " and write" } else { "" };
        let next = "--allow HOSTNQN (on that host: cat /etc/nvme/hostnqn)";
        format!("any host that reaches {beyond} may read{write} {}\n  try: {next}", s.nqn)
    };
    open.map(warning).collect()
}

fn checked(config: &Config) -> Vec<String> {
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
    server: Server,
    config: Config,
    file: Option<String>,
    before: Stats,
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
        let changes = reload::changes(&self.config, &asked).map_err(|e| of_file(path, e))?;
        reload::apply(&self.server, &mut self.config, &changes).map_err(|e| of_file(path, e))?;
        let removed = changes.removed.iter().map(|c| format!("nsid {} of {} removed", c.nsid, c.subsystem));
        let added =
            changes.added.iter().map(|c| format!("nsid {} of {} added ({})", c.nsid, c.subsystem, c.source));
        let states = changes.ana.iter().map(|s| format!("ANA states of {} changed", s.subsystem));
        let told: Vec<String> = removed.chain(added).chain(states).collect();
        Ok(if told.is_empty() { "nothing changed".into() } else { told.join(", ") })
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

fn sums(stats: &Stats) -> Counts {
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

    fn line(&mut self, span_s: f64) -> String {
        let now = self.server.stats();
        let hosts = now.subsystems.iter().flat_map(|s| &s.hosts).filter(|h| h.connections > 0).count();
        let told = format!(
            "{} · {} · {}",
            count(hosts as u64, "host"),
            count(now.connections, "connection"),
            rates(&sums(&now), &sums(&self.before), span_s)
        );
        self.before = now;
        told
    }

    fn reload(&mut self) -> String {
        let Some(path) = self.file.clone() else {
            return "reload ignored: there is no CONFIG.toml to read again".into();
        };
        match self.read_again(&path) {
            Ok(told) => {
                self.reloads.0 += 1;
                format!("reload: {told}")
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
        let all = sums(&stats);
        let mut lines = vec![format!(
            "served    {} read, {} written in {} · {} · {}",
            bytes(all.read_bytes),
            bytes(all.write_bytes),
            seconds(stats.seconds),
            count(stats.connections_accepted, "connection"),
            count(all.errors, "error")
        )];
        for (ended, words) in
            [(stats.connections_refused, "refused"), (stats.connections_broken, "broken off")]
        {
            if ended > 0 {
                lines.push(format!("          {} {words}", count(ended, "connection")));
            }
        }
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
