//! The supervisor at work: one thread that waits for everybody.

use super::held_drive::HeldDrive;
use super::link::is_readable;
use super::process::{reported, Life, Running, Signals};
use super::{Past, SupervisorNotice};
use crate::gateway::handed::broken;
use crate::target::log::{Entry, Level, Sink};
use forebay_io::{monotonic_now, rfc3339, wall_seconds};
use forebay_model::Error;
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::process::Signal;
use serde_json::Value;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

/// Rate at which a gateway is started again.
struct Pace {
    /// Service time after which a gateway counts as having run: its end has another cause than that of the one before.
    lived: Duration,
    /// Gateways in a row that broke before they had, after the first: then no further one is started.
    tries: u32,
    /// For so long one is tried that ends by itself before it serves: its source is away, as a target that boots is.
    away: Duration,
    /// Before the second of them; each further time twice as long, up to the last.
    pause: Duration,
    pause_max: Duration,
}

const PACE: Pace = Pace {
    lived: Duration::from_secs(1),
    tries: 10,
    // As `ctrl_loss_tmo` of a gateway that lives.
    away: Duration::from_secs(600),
    pause: Duration::from_millis(100),
    pause_max: Duration::from_secs(10),
};
/// systemd hears of a service without a gateway as often.
const ALIVE: Duration = Duration::from_secs(1);

enum Phase {
    Runs(Running),
    /// It has ended. The kernel may still be at work for it, on memory of hosts and on files.
    Ebbs(Life),
    /// The next one is started then.
    Rests(Instant),
}

/// A gateway as the next one is to be.
struct Gateway {
    text: String,
    age: Duration,
    as_of: Instant,
    rpc: Option<OwnedFd>,
}

struct Keeping {
    words: Vec<OsString>,
    pace: Pace,
    sink: Sink,
    signals: Signals,
    phase: Phase,
    gateway: Option<Gateway>,
    drives: Vec<HeldDrive>,
    /// Ends in a row, none of which had lived, and when the first of them was.
    failures: u32,
    down_since: Option<Instant>,
    /// Number of these that broke.
    broke: u32,
    served: bool,
    /// A signal asked for the end, or the gateway says so.
    ending: bool,
}

/// Runs a gateway by these words, and the next one whenever it is killed or breaks; each finds its supervisor by `VARIABLE`.
/// Returns the exit code of the one that ended as it was asked to, or that never served.
///
/// # Errors
/// `Run`: one after the other ended at once. `Machine`: no process, no descriptor.
pub fn supervise(words: Vec<OsString>, sink: Sink) -> Result<i32, Error> {
    keep_at(PACE, words, sink)
}

fn keep_at(pace: Pace, words: Vec<OsString>, sink: Sink) -> Result<i32, Error> {
    let signals = Signals::new()?;
    let phase = Phase::Runs(Running::start(&words, false)?);
    let (gateway, drives) = (None, Vec::new());
    let mut keeping = Keeping {
        words,
        pace,
        sink,
        signals,
        phase,
        gateway,
        drives,
        failures: 0,
        down_since: None,
        broke: 0,
        served: false,
        ending: false,
    };
    loop {
        keeping.wait();
        if let Some(code) = keeping.turn()? {
            return Ok(code);
        }
    }
}

impl Keeping {
    fn say(&mut self, level: Level, event: &'static str, fields: &[(&str, Value)]) {
        let fields = fields.iter().map(|(key, value)| ((*key).to_string(), value.clone())).collect();
        let time = rfc3339(wall_seconds());
        (self.sink)(&Entry { time, level, event, fields });
    }

    fn wait(&self) {
        let mut fds = vec![PollFd::new(&self.signals, PollFlags::IN)];
        let mut until = None;
        match &self.phase {
            Phase::Runs(running) => {
                fds.push(PollFd::new(&running.ended, PollFlags::IN));
                fds.extend(running.line.iter().map(|line| PollFd::new(line, PollFlags::IN)));
            }
            Phase::Ebbs(life) => fds.push(PollFd::new(&life.0, PollFlags::empty())),
            Phase::Rests(then) => until = Some(then.saturating_duration_since(monotonic_now())),
        }
        self.drives.iter().for_each(|drive| drive.add_to(&mut fds));
        let serves = matches!(&self.phase, Phase::Runs(running) if running.served_since.is_some());
        if is_watched() && !serves {
            until = Some(until.unwrap_or(ALIVE).min(ALIVE));
        }
        let until = until.map(|t| Timespec { tv_sec: t.as_secs() as i64, tv_nsec: t.subsec_nanos().into() });
        // Interrupted or out of memory: the next turn looks again.
        let _ = poll(&mut fds, until.as_ref());
        drop(fds);
        if !serves && self.served {
            alive();
        }
    }

    /// The exit code, once it is over.
    fn turn(&mut self) -> Result<Option<i32>, Error> {
        while let Some(signal) = self.signals.take() {
            self.signalled(signal);
        }
        self.drives.retain_mut(HeldDrive::turn);
        match &mut self.phase {
            Phase::Runs(running) => {
                // What it said before it ended counts.
                let ended = is_readable(&running.ended);
                self.hear();
                if ended {
                    return self.ended();
                }
            }
            Phase::Ebbs(life) if life.is_over() => {
                let pause = match self.failures {
                    0 => Duration::ZERO,
                    n => self.pace.pause.saturating_mul(1 << (n - 1).min(16)).min(self.pace.pause_max),
                };
                self.phase = Phase::Rests(monotonic_now() + pause);
            }
            Phase::Rests(_) | Phase::Ebbs(_) if self.ending => {
                return Err(Error::run("the gateway", "was to be restarted and to be stopped", ""));
            }
            Phase::Rests(then) if monotonic_now() >= *then => self.start()?,
            Phase::Rests(_) | Phase::Ebbs(_) => {}
        }
        Ok(None)
    }

    fn signalled(&mut self, signal: Signal) {
        let Phase::Runs(running) = &self.phase else {
            self.ending |= signal != Signal::HUP;
            return;
        };
        if signal == Signal::HUP {
            return running.signal(signal);
        }
        self.ending = true;
        running.signal(Signal::TERM);
    }

    /// Receives the gateway's messages.
    fn hear(&mut self) {
        loop {
            let Phase::Runs(running) = &mut self.phase else { return };
            let Some(line) = running.line.as_mut().filter(|line| is_readable(*line)) else { return };
            let Ok((text, fds)) = line.receive_text() else {
                // It ends, or has ended.
                running.line = None;
                return;
            };
            let reported = serde_json::from_slice(&text).map_err(|e| broken(&e.to_string()));
            if let Err(e) = reported.and_then(|reported| self.reported(reported, fds)) {
                self.say(Level::Error, "gateway not understood", &[("why", e.to_string().into())]);
                let Phase::Runs(running) = &self.phase else { return };
                return running.signal(Signal::KILL);
            }
        }
    }

    fn reported(&mut self, reported: SupervisorNotice, mut fds: Vec<OwnedFd>) -> Result<(), Error> {
        match reported {
            SupervisorNotice::Gateway { text, age_ns } => {
                let age = Duration::from_nanos(age_ns);
                self.gateway = Some(Gateway { text, age, as_of: monotonic_now(), rpc: fds.pop() });
            }
            SupervisorNotice::Drive { name } => {
                let (Some(link), Some(listener)) = (fds.pop(), fds.pop()) else {
                    return Err(broken("a drive without its socket"));
                };
                self.drives.retain(|drive| drive.name != name);
                self.drives.push(HeldDrive::new(name, listener, link)?);
            }
            SupervisorNotice::Opened => self.give_drives()?,
            SupervisorNotice::Serving => {
                self.drives.retain(|drive| !drive.is_alone());
                self.served = true;
                if let Phase::Runs(running) = &mut self.phase {
                    running.served_since = Some(monotonic_now());
                }
            }
            SupervisorNotice::Ending => self.ending = true,
        }
        Ok(())
    }

    fn give_drives(&mut self) -> Result<(), Error> {
        for drive in &mut self.drives {
            let given = drive.give()?;
            let Phase::Runs(Running { line: Some(line), .. }) = &mut self.phase else { return Ok(()) };
            let (text, fds) = given.ok_or_else(|| broken("a drive that nothing is known of"))?;
            line.send_text(&text, &fds)?;
        }
        Ok(())
    }

    /// The gateway has ended.
    fn ended(&mut self) -> Result<Option<i32>, Error> {
        // All that it said is heard before its end.
        self.drives.retain_mut(HeldDrive::hear);
        let rests = Phase::Rests(monotonic_now());
        let Phase::Runs(mut running) = std::mem::replace(&mut self.phase, rests) else { return Ok(None) };
        let status = running.wait();
        let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
        if self.ending || (!self.served && status.code().is_some()) {
            return Ok(Some(code));
        }
        if !self.served {
            return Err(Error::run(
                "the gateway",
                format!("{}, before it began to serve", reported(status)),
                "",
            ));
        }
        self.count(&running, status)?;
        self.phase = Phase::Ebbs(running.life);
        Ok(None)
    }

    fn count(&mut self, running: &Running, status: ExitStatus) -> Result<(), Error> {
        let lived = running
            .served_since
            .is_some_and(|since| monotonic_now().duration_since(since) >= self.pace.lived);
        let (now, waits) = (monotonic_now(), running.served_since.is_none() && status.code().is_some());
        if lived {
            (self.failures, self.broke, self.down_since) = (0, 0, None);
        } else {
            self.failures += 1;
            self.broke += u32::from(!waits);
        }
        let down = now.duration_since(*self.down_since.get_or_insert(now));
        let (why, failures) = (reported(status), self.failures);
        let fields =
            [("why", why.clone().into()), ("process", running.id().into()), ("in_a_row", failures.into())];
        self.say(Level::Warning, "gateway ended", &fields);
        // Those without a note had no client.
        self.drives.retain(HeldDrive::is_noted);
        let Pace { tries, away, .. } = self.pace;
        let found = match waits {
            true if down >= away => format!("{why}, and so did each for {} s", down.as_secs()),
            false if self.broke > tries => format!("{why}, and {tries} before it ended as soon"),
            _ => return Ok(()),
        };
        Err(Error::run("the gateway", found, "its log, above; hosts see their drives go"))
    }

    fn start(&mut self) -> Result<(), Error> {
        let mut running = Running::start(&self.words, true)?;
        let fields = [("process", running.id().into()), ("drives", self.drives.len().into())];
        if let (Some(gateway), Some(line)) = (&self.gateway, &mut running.line) {
            let age = gateway.age + monotonic_now().saturating_duration_since(gateway.as_of);
            let (text, age_ns) = (gateway.text.clone(), age.as_nanos() as u64);
            let past = Past { text, age_ns, drives: self.drives.len() };
            let rpc = gateway.rpc.as_ref().map(OwnedFd::try_clone).transpose();
            let rpc = rpc.map_err(|e| Error::machine("the RPC socket", e.to_string(), "ulimit -n 65536"))?;
            let text = serde_json::to_vec(&past).map_err(|e| broken(&e.to_string()))?;
            // Where it has ended already, that is seen next.
            let _ = line.send_text(&text, &rpc.into_iter().collect::<Vec<_>>());
        }
        self.phase = Phase::Runs(running);
        self.say(Level::Info, "gateway started again", &fields);
        Ok(())
    }
}

fn is_watched() -> bool {
    std::env::var_os("WATCHDOG_USEC").is_some()
}

/// For systemd's WatchdogSec=, in the place of a gateway that isn't there.
fn alive() {
    let Ok(named) = std::env::var("NOTIFY_SOCKET") else { return };
    let address = match named.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name).ok(),
        None => SocketAddr::from_pathname(&named).ok(),
    };
    if let (Some(address), Ok(socket), true) = (address, UnixDatagram::unbound(), is_watched()) {
        let _ = socket.set_nonblocking(true);
        let _ = socket.send_to_addr(b"WATCHDOG=1", &address);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    /// Shell commands of a gateway in tests: it reports that it serves, and ends as it was asked to.
    const SERVES: &str =
        r#"printf 'forebay\001\011\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"Serving"' >&"${FOREBAY_KEEPER%%:*}""#;
    const ENDS: &str =
        r#"printf 'forebay\001\010\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"Ending"' >&"${FOREBAY_KEEPER%%:*}""#;

    /// Keeps a script in the place of a gateway. Returns what came of it, and how often it was begun again.
    fn kept_for(away: Duration, script: &str) -> (Result<i32, Error>, usize) {
        let said = Arc::new(Mutex::new(Vec::new()));
        let heard = said.clone();
        let sink: Sink = Box::new(move |entry: &Entry| heard.lock().unwrap().push(entry.event));
        let pause = Duration::from_millis(1);
        // On a busy machine one lives long that ends at once.
        let lived = Duration::from_secs(600);
        let pace = Pace { lived, tries: 3, pause, pause_max: 4 * pause, away };
        let words = ["bash", "-c", script].map(OsString::from).to_vec();
        let done = keep_at(pace, words, sink);
        let again = said.lock().unwrap().iter().filter(|event| **event == "gateway started again").count();
        (done, again)
    }

    fn kept(script: &str) -> (Result<i32, Error>, usize) {
        kept_for(PACE.away, script)
    }

    // promise: SNP-10
    #[test]
    fn a_gateway_that_ends_at_once_is_tried_a_few_times() {
        for (end, reported) in [("kill -9 $$", "SIGKILL"), ("exit 4", "exit code 4")] {
            let (done, again) = kept(&format!("{SERVES}; {end}"));
            let error = done.unwrap_err();
            assert!(error.found.contains(reported) && again == 3, "{error}");
        }
    }

    // promise: SNP-10
    #[test]
    fn a_gateway_whose_source_is_away_is_tried_for_longer() {
        let folder = tempfile::tempdir().unwrap();
        let tried = folder.path().join("tried");
        let count = format!("echo >>{0}; n=$(wc -l <{0})", tried.display());
        // Once, then more often than one may break, then it is there again.
        let (done, again) = kept(&format!(
            "{count}; case $n in 1) {SERVES}; kill -9 $$;; 9) {ENDS}; exit 0;; *) exit 3;; esac"
        ));
        assert_eq!((done, again), (Ok(0), 8));
        let away = Duration::from_millis(50);
        let (done, _) = kept_for(away, &format!("case $FOREBAY_KEEPER in *first) {SERVES};; esac; exit 3"));
        let error = done.unwrap_err();
        assert!(error.found.contains("exit code 3, and so did each for"), "{error}");
    }

    #[test]
    fn what_never_served_is_not_begun_again_and_its_exit_code_is_the_supervisors() {
        assert_eq!(kept("exit 3"), (Ok(3), 0));
        let (done, again) = kept("kill -9 $$");
        assert!(done.unwrap_err().found.contains("SIGKILL") && again == 0);
    }
}
