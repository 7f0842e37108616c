//! A service from ready to stopped: what `serve` and `snap` have in common.

use crate::notify::Systemd;
use crate::signals::Signals;
use crate::words::significant;
use forebay_model::{Error, Kind};
use rustix::time::{clock_gettime, ClockId};
use serde_json::Value;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Interval of the line on a terminal, and of the checks of a silent service.
const TICK: Duration = Duration::from_secs(1);

/// A service that runs until a signal arrives.
pub trait Service {
    /// The line that says that hosts may come.
    fn ready(&self) -> String;

    /// Returns the service's offers, one line for each item.
    fn offered(&self) -> Vec<String>;

    /// Returns a status line since the last call, which was so many seconds ago.
    fn line(&mut self, span_s: f64) -> String;

    /// The result of a reload, or why there was none.
    fn reload(&mut self) -> String;

    /// Another process has its place.
    fn has_left(&self) -> bool {
        false
    }

    /// Why it can't go on.
    fn failure(&self) -> Option<Error>;

    /// True: nothing was cut off.
    fn drain(&mut self, within: Duration) -> bool;

    /// The totals, as text and as a document.
    fn closing(&self, drained: bool) -> (Vec<String>, Value);
}

pub struct Options {
    pub drain: Duration,
    pub json: bool,
    pub quiet: bool,
}

/// Runs it to its end; stops it by letting go of it.
pub fn run(mut service: impl Service, options: &Options) -> Result<ExitCode, Error> {
    let mut signals = Signals::listen()?;
    let systemd = Systemd::new();
    let on_terminal = !options.quiet && std::io::stderr().is_terminal();
    announce(&service, &systemd, options);
    let mut last = (Instant::now(), cpu_s());
    while !signals.end_asked() && !service.has_left() {
        if let Some(failure) = service.failure() {
            systemd.stopping();
            if on_terminal {
                eprint!("\r\x1b[K");
            }
            stop(service, options, false);
            return Err(failure);
        }
        signals.wait(TICK);
        if signals.take_reload() {
            systemd.reloading();
            let told = service.reload();
            say(&format!("forebay: {told}"), on_terminal);
            systemd.ready(told.lines().next().unwrap_or_default());
        }
        systemd.alive();
        if on_terminal {
            let now = (Instant::now(), cpu_s());
            let span_s = now.0.duration_since(last.0).as_secs_f64().max(1e-9);
            let cores = significant((now.1 - last.1) / span_s);
            eprint!("\r\x1b[K{} · {cores} cores", service.line(span_s));
            last = now;
        }
    }
    systemd.stopping();
    Ok(end(service, options, on_terminal))
}

fn announce(service: &impl Service, systemd: &Systemd, options: &Options) {
    if !options.quiet {
        service.offered().iter().for_each(|line| eprintln!("{line}"));
    }
    let told = service.ready();
    tell(&told, !options.json);
    systemd.ready(&told);
}

fn end(mut service: impl Service, options: &Options, on_terminal: bool) -> ExitCode {
    let drain_s = options.drain.as_secs_f64();
    let told = match service.has_left() {
        true => "forebay: another gateway has taken over".to_string(),
        false => {
            format!("forebay: waiting up to {drain_s} s for commands to finish (interrupt again to abort)")
        }
    };
    say(&told, on_terminal);
    let drained = service.drain(options.drain);
    stop(service, options, drained);
    if drained {
        return ExitCode::SUCCESS;
    }
    eprintln!(
        "forebay: commands were still in flight after {drain_s} s and were cut off\n  try: --drain {}",
        3.0 * drain_s
    );
    ExitCode::from(Kind::Run.exit_code() as u8)
}

/// Stops the service and prints its totals.
fn stop(service: impl Service, options: &Options, drained: bool) {
    let (lines, mut document) = service.closing(drained);
    drop(service);
    if !options.quiet {
        lines.iter().for_each(|line| tell(line, !options.json));
    }
    if options.json {
        document["drained"] = drained.into();
        document["cpu_s"] = ((cpu_s() * 1e3).round() / 1e3).into();
        tell(&serde_json::to_string_pretty(&document).expect("plain data"), true);
    }
}

/// On stdout or stderr; one that is closed is no reason to end.
pub fn tell(line: &str, stdout: bool) {
    let _ = match stdout {
        true => writeln!(std::io::stdout().lock(), "{line}").and_then(|()| std::io::stdout().flush()),
        false => writeln!(std::io::stderr().lock(), "{line}"),
    };
}

fn say(text: &str, over_a_line: bool) {
    tell(&format!("{}{text}", if over_a_line { "\r\x1b[K" } else { "" }), false);
}

/// Processor seconds of this process, all its threads.
fn cpu_s() -> f64 {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 * 1e-9
}
