//! Structured log lines: made anywhere, written by one thread, and dropped (and counted) rather than waited for.

use forebay_io::{rfc3339, wall_seconds};
use forebay_model::Error;
use serde::Serialize;
use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};
use std::sync::atomic::{AtomicU64, AtomicU8, Ordering};
use std::sync::mpsc::{sync_channel, SyncSender};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// Lines that may wait for whoever writes them.
const WAITING_MAX: usize = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    Info,
    Warning,
    Error,
}

/// One thing that happened, and its particulars in order.
#[derive(Clone, Debug, Serialize)]
pub struct Entry {
    /// RFC 3339, UTC.
    pub time: String,
    pub level: Level,
    pub event: &'static str,
    #[serde(flatten)]
    pub fields: serde_json::Map<String, serde_json::Value>,
}

impl Entry {
    /// `time=… level=info event=connected host=…`.
    pub fn to_line(&self) -> String {
        let level = format!("{:?}", self.level).to_lowercase();
        let mut line = format!("time={} level={level} event={}", self.time, self.event);
        for (key, value) in &self.fields {
            let plain = value.as_str().filter(|s| !s.is_empty() && !s.contains([' ', '"', '=', '\n', '\r']));
            let _ = match plain {
                Some(word) => write!(line, " {key}={word}"),
                None => write!(line, " {key}={value}"),
            };
        }
        line
    }

    pub(crate) fn to_json(&self) -> String {
        serde_json::to_string(self).expect("an entry is plain data")
    }
}

/// Takes the lines, on a thread of its own.
pub type Sink = Box<dyn FnMut(&Entry) + Send>;

/// Writes lines to stderr: `form` is text, json or off. On a terminal over the line of figures that stands there.
pub fn log_to_stderr(form: &str, warnings_only: bool) -> Sink {
    let (json, off) = (form == "json", form == "off");
    let clear = if std::io::stderr().is_terminal() { "\r\x1b[K" } else { "" };
    Box::new(move |entry: &Entry| {
        if off || (warnings_only && entry.level == Level::Info) {
            return;
        }
        let line = if json { entry.to_json() } else { entry.to_line() };
        // A log that can't be written is no reason to stop serving.
        let _ = writeln!(std::io::stderr().lock(), "{clear}{line}");
    })
}

/// A handle that any thread may have.
#[derive(Clone, Debug)]
pub struct Log {
    /// None once it is closed.
    lines: Arc<Mutex<Option<SyncSender<Entry>>>>,
    dropped: Arc<AtomicU64>,
    /// A `Level`: what is less isn't said.
    least: Arc<AtomicU8>,
}

impl Log {
    /// The thread ends once the log is closed.
    pub fn start(mut sink: Sink) -> Result<(Log, JoinHandle<()>), Error> {
        let (lines, waiting) = sync_channel::<Entry>(WAITING_MAX);
        let write = move || waiting.iter().for_each(|entry| sink(&entry));
        let thread = std::thread::Builder::new()
            .name("log".into())
            .spawn(write)
            .map_err(|e| Error::machine("a thread that writes the log", e.to_string(), "ulimit -u"))?;
        let lines = Arc::new(Mutex::new(Some(lines)));
        Ok((Log { lines, dropped: Arc::default(), least: Arc::default() }, thread))
    }

    /// Says nothing less than this from now on.
    pub(crate) fn set_least(&self, level: Level) {
        self.least.store(level as u8, Ordering::Relaxed);
    }

    pub fn say(&self, level: Level, event: &'static str, fields: &[(&str, serde_json::Value)]) {
        if (level as u8) < self.least.load(Ordering::Relaxed) {
            return;
        }
        let lines = self.lines.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let Some(lines) = &*lines else { return };
        let fields = fields.iter().map(|(k, v)| ((*k).to_string(), v.clone())).collect();
        let time = rfc3339(wall_seconds());
        if lines.try_send(Entry { time, level, event, fields }).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Writes what was logged, and accepts nothing more.
    pub fn close(&self) {
        self.lines.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
    }

    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn a_line_reads_as_words_and_as_json() {
        let (tell, reported) = channel();
        let (log, thread) =
            Log::start(Box::new(move |e| tell.send((e.to_line(), e.to_json())).unwrap())).unwrap();
        log.say(
            Level::Warning,
            "refused",
            &[("host", "nqn.x".into()), ("why", "not allowed".into()), ("n", 3.into())],
        );
        log.close();
        thread.join().unwrap();
        let (line, json) = reported.recv().unwrap();
        assert!(line.contains(" level=warning event=refused host=nqn.x why=\"not allowed\" n=3"), "{line}");
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!((json["event"].as_str(), json["n"].as_u64()), (Some("refused"), Some(3)));
    }

    #[test]
    fn what_is_less_than_asked_for_is_not_said() {
        let (tell, reported) = channel();
        let (log, thread) = Log::start(Box::new(move |e| tell.send(e.event).unwrap())).unwrap();
        let say = |event| log.say(Level::Warning, event, &[]);
        log.set_least(Level::Error);
        say("quiet");
        log.set_least(Level::Warning);
        say("heard");
        log.clone().set_least(Level::Info);
        log.say(Level::Info, "all", &[]);
        log.close();
        thread.join().unwrap();
        assert_eq!(reported.iter().collect::<Vec<_>>(), ["heard", "all"]);
    }

    #[test]
    fn a_log_that_nobody_reads_drops_and_counts() {
        let (hold, held) = channel::<()>();
        let (log, thread) = Log::start(Box::new(move |_| {
            let _ = held.recv();
        }))
        .unwrap();
        for _ in 0..WAITING_MAX + 10 {
            log.say(Level::Info, "x", &[]);
        }
        assert!(log.dropped() >= 9);
        log.close();
        drop(hold);
        thread.join().unwrap();
    }
}
