//! A server over a file of known content, on a free port.

use forebay_serve::{LogEntry, TargetConfig, TargetServer};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;

/// A busy machine is slow, not wrong: only what hangs takes this long.
pub const LONG: Duration = Duration::from_secs(60);

pub struct Rig {
    pub server: TargetServer,
    pub said: Arc<Mutex<Vec<LogEntry>>>,
    dir: Option<TempDir>,
}

impl Rig {
    /// Over a file of its own; `namespace`: more settings of it.
    pub fn over_file(content: &[u8], namespace: &str) -> Rig {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("content");
        std::fs::write(&path, content).unwrap();
        Rig { dir: Some(dir), ..Rig::over(path.to_str().unwrap(), namespace) }
    }

    pub fn over(source: &str, namespace: &str) -> Rig {
        Rig::with(
            "",
            &format!("[[subsystems.namespaces]]\nsource = \"{source}\"\nblock_bytes = 512\n{namespace}"),
        )
    }

    /// `settings`: of the server; `rest`: what follows the subsystem's head.
    pub fn with(settings: &str, rest: &str) -> Rig {
        let buffers = if settings.contains("buffers") { "" } else { "buffers = \"64m\"" };
        let text = format!(
            "listen = [\"127.0.0.1:0\"]\nthreads = 2\n{buffers}\n{settings}\n\
             [[subsystems]]\nnqn = \"{}\"\nallow_any_host = true\n{rest}",
            super::client::SUBSYSTEM
        );
        Rig::from_text(&text)
    }

    pub fn from_text(text: &str) -> Rig {
        let said: Arc<Mutex<Vec<LogEntry>>> = Arc::default();
        let heard = said.clone();
        let sink = Box::new(move |entry: &LogEntry| {
            if std::env::var_os("FOREBAY_TEST_LOG").is_some() {
                eprintln!("{}", entry.to_line());
            }
            heard.lock().unwrap().push(entry.clone());
        });
        let server = TargetServer::start(TargetConfig::from_toml(text).unwrap(), sink).unwrap();
        Rig { server, said, dir: None }
    }

    pub fn address(&self) -> SocketAddr {
        self.server.addresses()[0]
    }

    pub fn file(&self) -> PathBuf {
        self.dir.as_ref().map(TempDir::path).map(|d: &Path| d.join("content")).unwrap()
    }

    /// What the log entries of an event say in that field.
    pub fn reported(&self, event: &str, field: &str) -> Vec<String> {
        let said = self.said.lock().unwrap();
        let of = said.iter().filter(|e| e.event == event);
        of.filter_map(|e| e.fields.get(field)?.as_str()).map(str::to_string).collect()
    }

    /// Counts the log entries of an event.
    pub fn heard(&self, event: &str) -> usize {
        self.said.lock().unwrap().iter().filter(|e| e.event == event).count()
    }
}

/// Bytes that differ everywhere and by seed.
pub fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x.to_le_bytes()
    };
    (0..len.div_ceil(8)).flat_map(|_| next()).take(len).collect()
}

/// Waits for something that other threads do.
pub fn eventually(what: &str, holds: impl Fn() -> bool) {
    let until = std::time::Instant::now() + LONG;
    while !holds() {
        assert!(std::time::Instant::now() < until, "never: {what}");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}
