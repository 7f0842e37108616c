//! A service from ready to stopped: what `serve` and `snap` have in common.

use crate::notify::Systemd;
use crate::output::{print, tell, tell_over};
use crate::signals::Signals;
use crate::words::{count, significant};
use forebay_model::{Error, Kind};
use rustix::time::{clock_gettime, ClockId};
use serde_json::Value;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Interval of the line on a terminal, and of the checks of a silent service.
const TICK: Duration = Duration::from_secs(1);

/// A service that runs until a signal arrives.
pub trait Service {
    /// The line that says that hosts may come.
    fn ready(&self) -> String;

    /// Returns the service's offers, one line for each item.
    fn offered(&self) -> Vec<String>;

    /// Returns a status line since the last call, which was so many seconds ago, and how many errors there were in all.
    fn line(&mut self, span_s: f64) -> (String, u64);

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

/// Runs it to its end, and returns the exit code; stops it by letting go of it.
///
/// # Errors
/// `Run`: it can't go on, or nobody takes its totals.
pub fn run(mut service: impl Service, options: &Options, signals: &mut Signals) -> Result<u8, Error> {
    let systemd = Systemd::new();
    let on_terminal = !options.quiet && std::io::stderr().is_terminal();
    announce(&service, &systemd, options);
    let mut last = (Instant::now(), cpu_s());
    while !signals.end_asked() && !service.has_left() {
        if let Some(failure) = service.failure() {
            systemd.stopping();
            if on_terminal {
                tell_over("");
            }
            stop(service, options, false)?;
            return Err(Error { kind: Kind::Run, ..failure });
        }
        signals.wait(TICK);
        if signals.take_reload() {
            systemd.reloading();
            let reported = service.reload();
            say(&format!("forebay: {reported}"), on_terminal);
            systemd.ready(reported.lines().next().unwrap_or_default());
        }
        systemd.alive();
        if on_terminal {
            let now = (Instant::now(), cpu_s());
            let span_s = now.0.duration_since(last.0).as_secs_f64().max(1e-9);
            let cores = significant((now.1 - last.1) / span_s);
            let (line, errors) = service.line(span_s);
            let errors = if errors > 0 { format!(" · {}", count(errors, "error")) } else { String::new() };
            tell_over(&format!("{line} · {cores} cores{errors}"));
            last = now;
        }
    }
    systemd.stopping();
    end(service, options, on_terminal)
}

fn announce(service: &impl Service, systemd: &Systemd, options: &Options) {
    if !options.quiet {
        service.offered().iter().for_each(|line| tell(line, false));
    }
    let reported = service.ready();
    tell(&reported, !options.json);
    systemd.ready(&reported);
}

fn end(mut service: impl Service, options: &Options, on_terminal: bool) -> Result<u8, Error> {
    let drain_s = options.drain.as_secs_f64();
    let reported = match service.has_left() {
        true => "forebay: another gateway has taken over".to_string(),
        false => {
            format!("forebay: waiting up to {drain_s} s for commands to finish (interrupt again to abort)")
        }
    };
    say(&reported, on_terminal);
    let drained = service.drain(options.drain);
    let code = stop(service, options, drained)?;
    if drained {
        return Ok(code);
    }
    let cut_off = format!("forebay: commands were still in flight after {drain_s} s and were cut off");
    tell(&format!("{cut_off}\n  try: --drain {}", (3e3 * drain_s).round() / 1e3), false);
    Ok(Kind::Run.exit_code() as u8)
}

/// Stops the service and prints its totals; returns the exit code.
fn stop(service: impl Service, options: &Options, drained: bool) -> Result<u8, Error> {
    let (lines, mut document) = service.closing(drained);
    drop(service);
    let lines = if options.quiet { String::new() } else { lines.join("\n") };
    if !options.json {
        return if lines.is_empty() { Ok(0) } else { print(&lines) };
    }
    if !lines.is_empty() {
        tell(&lines, false);
    }
    document["drained"] = drained.into();
    document["cpu_s"] = ((cpu_s() * 1e3).round() / 1e3).into();
    print(&serde_json::to_string_pretty(&document).expect("plain data"))
}

fn say(text: &str, over_a_line: bool) {
    tell(&format!("{}{text}", if over_a_line { "\r\x1b[K" } else { "" }), false);
}

/// Processor seconds of this process, all its threads.
fn cpu_s() -> f64 {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 * 1e-9
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A service whose place another process has, or that can't go on.
    struct Fake {
        drained: bool,
        failure: Option<Error>,
    }

    impl Service for Fake {
        fn ready(&self) -> String {
            "ready".into()
        }

        fn offered(&self) -> Vec<String> {
            Vec::new()
        }

        fn line(&mut self, _: f64) -> (String, u64) {
            (String::new(), 0)
        }

        fn reload(&mut self) -> String {
            String::new()
        }

        fn has_left(&self) -> bool {
            self.failure.is_none()
        }

        fn failure(&self) -> Option<Error> {
            self.failure.clone()
        }

        fn drain(&mut self, _: Duration) -> bool {
            self.drained
        }

        fn closing(&self, _: bool) -> (Vec<String>, Value) {
            (Vec::new(), json!({}))
        }
    }

    fn ended(drained: bool, failure: Option<Error>) -> Result<u8, Error> {
        let options = Options { drain: Duration::from_millis(100), json: false, quiet: true };
        run(Fake { drained, failure }, &options, &mut Signals::listen().unwrap())
    }

    // promise: SRV-3, SNP-4
    #[test]
    fn commands_that_were_cut_off_are_exit_code_4() {
        assert_eq!([ended(true, None), ended(false, None)], [Ok(0), Ok(4)]);
    }

    // promise: ENG-6
    #[test]
    fn a_thread_that_cannot_go_on_is_exit_code_4_whatever_kind_it_names() {
        let found = Error::machine("io_uring", "refused", "forebay doctor");
        assert_eq!(ended(true, Some(found.clone())), Err(Error { kind: Kind::Run, ..found }));
    }
}
