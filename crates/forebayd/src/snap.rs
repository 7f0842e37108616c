//! `snap`: a gateway, and RPCs to one that runs.

use crate::asked::{log_form, of_file, options, read};
use crate::flags::Given;
use crate::life::{self, Service};
use crate::output::{print, tell};
use crate::serve::{namespace, rates, totals};
use crate::signals::{interrupted, Signals};
use crate::words::{bytes, count, grouped, seconds};
use crate::Program;
use forebay_model::Error;
use forebay_serve::{
    log_to_stderr, run_rpc, supervise, ControllerState, Counts, Frontend, GatewayConfig, GatewayController,
    GatewayService, GatewayStats, LogSink, Qos, Supervisor,
};
use serde_json::{json, Value};
use std::ffi::OsString;
use std::time::Duration;

/// `snap rpc WORDS`. A signal ends the wait for an answer.
pub fn rpc(words: &[String], signals: &Signals) -> Result<u8, Error> {
    let mut ended = false;
    let answer = run_rpc(words, &mut || {
        ended |= signals.end_asked() || signals.take_reload();
        !ended
    });
    match answer {
        Ok(answer) => print(&answer),
        Err(waited_for) if ended => {
            tell(&format!("forebay: {waited_for}"), false);
            Ok(interrupted())
        }
        Err(error) => Err(error),
    }
}

/// Refuses `--rpc PATH rpc VERB`: the flags of a gateway don't go with `rpc`, whose own name the socket.
///
/// # Errors
/// `Request`: that.
pub fn refuse_flags_before_rpc(words: &[String]) -> Result<(), Error> {
    let Some(at) = words.iter().position(|word| word == "rpc") else { return Ok(()) };
    let path = match &words[..at] {
        [flag, path] if flag == "--rpc" => path,
        [flag] => match flag.strip_prefix("--rpc=") {
            Some(path) => path,
            None => return Ok(()),
        },
        _ => return Ok(()),
    };
    let call = ["forebay", "snap", "rpc", "--socket", path].into_iter();
    let next: Vec<String> = call.chain(words[at + 1..].iter().map(String::as_str)).map(quoted).collect();
    let found = "flags of rpc come behind it; --socket names the socket";
    Err(Error::request(format!("--rpc {path} before rpc"), found, next.join(" ")))
}

/// A word as a shell reads it.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "@%+=:,./-_".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.into(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

/// `words`: all behind the verb, for a supervisor.
pub fn command(
    program: &Program,
    words: &[String],
    given: &Given,
    signals: &mut Signals,
) -> Result<u8, Error> {
    let (log, options) = (log_form(given), options(given)?);
    let Some(path) = given.subject.as_deref() else {
        let (asked, next) = (format!("{} snap", program.name), format!("{} snap --help", program.name));
        return Err(Error::request(asked, "has no CONFIG.toml", next));
    };
    let config = configuration(path)?;
    let with_rpc = config.clone().with_rpc(given.text("rpc")).map_err(|e| of_file(path, e))?;
    if given.is("check") {
        let text = serde_json::to_string_pretty(&with_rpc).expect("plain data");
        return print(&if options.json { text } else { checked(&with_rpc).join("\n") });
    }
    let sink = log_to_stderr(log, options.quiet);
    if given.is("keep") {
        return keep(program, words, given, sink);
    }
    let rpc = given.text("rpc");
    let supervisor = Supervisor::here()?;
    let started = signals.during(|| match (supervisor, given.is("take-over")) {
        (Some(supervisor), _) => GatewayService::kept(config, rpc, sink, supervisor),
        (None, true) => GatewayService::take_over(config, rpc, sink),
        (None, false) => GatewayService::start(config, rpc, sink),
    })?;
    let service = started.map_err(|e| of_file(path, e))?;
    let before = service.stats();
    life::run(Showing { service, before }, &options, signals)
}

/// Runs the same command without `--keep`, and again whenever it is killed.
fn keep(program: &Program, words: &[String], given: &Given, sink: LogSink) -> Result<u8, Error> {
    if given.is("take-over") {
        let found = "a supervisor can't take over a running gateway";
        return Err(Error::request("--keep --take-over", found, "stop the running gateway, then use --keep"));
    }
    let mut again = program.command()?;
    again.push("snap".into());
    again.extend(words.iter().filter(|word| *word != "--keep").map(OsString::from));
    Ok(supervise(again, sink)? as u8)
}

/// CONFIG.toml, or CONFIG.json as `snap_config_get` prints it.
fn configuration(path: &str) -> Result<GatewayConfig, Error> {
    let parse = match path.rsplit_once('.').map(|(_, form)| form) {
        Some("toml") => GatewayConfig::from_toml,
        Some("json") => GatewayConfig::from_json,
        _ => {
            let found = "is neither CONFIG.toml nor rpc";
            return Err(Error::request(format!("forebay snap {path}"), found, "forebay snap CONFIG.toml"));
        }
    };
    parse(&read(path)?).map_err(|e| of_file(path, e))
}

fn checked(config: &GatewayConfig) -> Vec<String> {
    let rpc = config.rpc.as_deref().unwrap_or("snap.sock of the runtime directory");
    let mut lines = vec![format!("rpc        {rpc}")];
    lines.extend(config.metrics.as_ref().map(|address| format!("metrics    {address}")));
    for subsystem in &config.subsystems {
        lines.push(format!("subsystem  {}", subsystem.nqn));
        lines.extend(subsystem.namespaces.iter().map(|n| {
            let mode = if n.writable { "writable" } else { "read-only" };
            format!("           nsid {}: {}, {mode}{}", n.nsid, n.source, limits(n.qos))
        }));
        lines.extend(subsystem.controllers.iter().map(shown));
    }
    lines
}

fn shown(controller: &GatewayController) -> String {
    let list = |all: &Vec<u32>| match all.is_empty() {
        true => "nsid none".to_string(),
        false => format!("nsid {}", all.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")),
    };
    let nsids = controller.namespaces.as_ref().map_or("all namespaces".into(), list);
    let device = controller.device.map_or("any free device".into(), |n| format!("/dev/ublkb{n}"));
    let (front, place) = match controller.frontend {
        Frontend::VfioUser => ("vfio-user", controller.socket.clone().unwrap_or(device)),
        Frontend::Ublk => ("ublk", device),
    };
    format!("           {}: {front} at {place}, {nsids}", controller.name)
}

fn limits(qos: Qos) -> String {
    let rate = qos.rate.map(|r| format!("{}/s", bytes(r.0)));
    let iops = qos.iops.map(|n| format!("{} IOPS", grouped(n)));
    let all: Vec<String> = rate.into_iter().chain(iops).collect();
    if all.is_empty() {
        String::new()
    } else {
        format!(", at most {}", all.join(" and "))
    }
}

struct Showing {
    service: GatewayService,
    before: GatewayStats,
}

fn sums(stats: &GatewayStats) -> Counts {
    totals(stats.subsystems.iter().flat_map(|s| &s.namespaces).map(|n| &n.counted.counts))
}

impl Service for Showing {
    fn ready(&self) -> String {
        let controllers = count(self.before.controllers.len() as u64, "controller");
        let rpcs = match self.service.rpc_path() {
            Some(path) => format!("RPCs at {}", path.display()),
            None => "no RPCs".into(),
        };
        let metrics = self.service.metrics_address().map(|a| format!(" · metrics on http://{a}/metrics"));
        format!("ready: {controllers} · {rpcs}{}", metrics.unwrap_or_default())
    }

    fn offered(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for subsystem in &self.before.subsystems {
            lines.extend(subsystem.namespaces.iter().map(|n| namespace(&subsystem.nqn, &n.counted)));
        }
        lines.extend(self.before.controllers.iter().map(|c| {
            let nsids = c.namespaces.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
            let nsids = if nsids.is_empty() { "none" } else { &nsids };
            let state = json!(c.state);
            let state = state.as_str().unwrap_or_default();
            format!("{} of {} at {}: nsid {nsids}, {state}", c.name, c.subsystem, c.place)
        }));
        lines
    }

    fn line(&mut self, span_s: f64) -> (String, u64) {
        let now = self.service.stats();
        let all = sums(&now);
        let used = now.controllers.iter().filter(|c| c.state == ControllerState::Enabled).count();
        let reported = format!(
            "{used} of {} in use · {} · staged {}",
            count(now.controllers.len() as u64, "drive"),
            rates(&all, &sums(&self.before), span_s),
            bytes(now.staged_bytes)
        );
        self.before = now;
        (reported, all.errors)
    }

    fn reload(&mut self) -> String {
        "a gateway is reconfigured by RPCs, not by a reload: forebay snap rpc --help".into()
    }

    fn has_left(&self) -> bool {
        self.service.has_left()
    }

    fn failure(&self) -> Option<Error> {
        self.service.failure()
    }

    fn drain(&mut self, within: Duration) -> bool {
        self.service.drain(within)
    }

    fn closing(&self, drained: bool) -> (Vec<String>, Value) {
        let stats = self.service.stats();
        let all = sums(&stats);
        let mut lines = vec![format!(
            "moved     {} read, {} written in {} · {} staged · {}",
            bytes(all.read_bytes),
            bytes(all.write_bytes),
            seconds(stats.seconds),
            bytes(stats.staged_bytes),
            count(all.errors, "error")
        )];
        for found in stats.controllers.iter().filter(|c| c.protocol_errors > 0) {
            lines.push(format!(
                "          {}: {} broke the protocol",
                found.name,
                count(found.protocol_errors, "host")
            ));
        }
        let document = json!({
            "schema": "forebay.snap/1",
            "rpc": self.service.rpc_path().map(|p| p.display().to_string()),
            "handed_over": self.service.has_left(),
            "drained": drained,
            "cpu_s": 0,
            "stats": stats,
        });
        (lines, document)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_before_rpc_are_answered_with_what_parses() {
        let refused = |line: &str| {
            let words: Vec<String> = line.split(' ').map(Into::into).collect();
            refuse_flags_before_rpc(&words).map_err(|e| e.next)
        };
        let meant = |words: &str| Err(["forebay", "snap", "rpc", "--socket", words].join(" "));
        assert_eq!(refused("--rpc /tmp/p rpc snap_stats_get"), meant("/tmp/p snap_stats_get"));
        assert_eq!(refused("--rpc=/tmp/it's rpc x"), meant(r"'/tmp/it'\''s' x"));
        assert_eq!([refused("rpc x"), refused("snap.toml --rpc off")], [Ok(()), Ok(())]);
    }
}
