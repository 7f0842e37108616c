//! The socket that takes RPCs: a thread that accepts, and one for each connection.

use super::clients::Clients;
use super::frame::Frames;
use super::{message, Control};
use crate::gateway::socket::listen_at;
use crate::target::log::{Level, Log};
use forebay_io::monotonic_now;
use forebay_model::Error;
use rustix::event::{eventfd, poll, EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::fs::stat;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// A connection on which nothing is asked for so long is closed.
const IDLE: Duration = Duration::from_secs(600);
/// An answer that nobody takes for so long ends its connection.
const STALL: Duration = Duration::from_secs(10);

/// Takes RPCs until it is dropped, and then takes its socket away.
pub struct Server {
    path: PathBuf,
    /// The socket's file, by device and inode: another's isn't ours to remove.
    file: Option<(u64, u64)>,
    stop: Arc<OwnedFd>,
    accepting: Option<JoinHandle<()>>,
    left: Arc<AtomicBool>,
}

/// RPC socket, for another process that is to take requests from it.
pub struct Door {
    pub listener: OwnedFd,
    stop: Arc<OwnedFd>,
    left: Arc<AtomicBool>,
}

impl Door {
    /// Another process takes them from now on; its file stays.
    pub fn leave(&self) {
        self.left.store(true, Ordering::Release);
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
    }
}

struct Shared {
    control: Arc<dyn Control>,
    stop: Arc<OwnedFd>,
    log: Option<Log>,
    clients: Clients,
}

impl Server {
    /// # Errors
    /// `Request`: the path can't be listened at. `Machine`: no descriptor, no thread.
    pub fn start(path: &Path, control: Arc<dyn Control>) -> Result<Server, Error> {
        Server::begin(path, listen_at(path)?, control).map(|(server, _)| server)
    }

    /// Takes RPCs from a socket that listens at `path` already; and what another process needs to do so after this one.
    ///
    /// # Errors
    /// `Machine`: no descriptor, no thread.
    pub fn begin(
        path: &Path,
        listener: UnixListener,
        control: Arc<dyn Control>,
    ) -> Result<(Server, Door), Error> {
        let scarce = |e: String| Error::machine("the RPC socket", e, "ulimit -n 65536, ulimit -u");
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let stop = Arc::new(eventfd(0, flags).map_err(|e| scarce(e.to_string()))?);
        listener.set_nonblocking(true).map_err(|e| scarce(e.to_string()))?;
        let file = stat(path).ok().map(|s| (s.st_dev, s.st_ino));
        let clients = Clients::default();
        let shared = Shared { log: control.log(), control, stop: stop.clone(), clients };
        let (left, door) = (Arc::new(AtomicBool::new(false)), listener.try_clone());
        let listener_copy = door.map_err(|e| scarce(e.to_string()))?.into();
        let door = Door { listener: listener_copy, stop: stop.clone(), left: left.clone() };
        let accept = move || accept(&listener, &Arc::new(shared));
        let thread = std::thread::Builder::new().name("rpc".into()).spawn(accept);
        let accepting = Some(thread.map_err(|e| scarce(e.to_string()))?);
        Ok((Server { path: path.into(), file, stop, accepting, left }, door))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.accepting.take() {
            let _ = thread.join();
        }
        if self.left.load(Ordering::Acquire) {
            return;
        }
        let there = stat(&self.path).ok().map(|s| (s.st_dev, s.st_ino));
        if there.is_some() && there == self.file {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Returns whether `fd` is readable before the server is stopped, and before `within` has passed.
fn ready(fd: &impl AsFd, stop: &OwnedFd, within: Option<Duration>) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
    let within = within.map(|d| Timespec { tv_sec: d.as_secs() as i64, tv_nsec: d.subsec_nanos().into() });
    loop {
        match poll(&mut fds, within.as_ref()) {
            Err(rustix::io::Errno::INTR) => {}
            Err(_) | Ok(0) => return false,
            Ok(_) => return fds[1].revents().is_empty(),
        }
    }
}

fn accept(listener: &UnixListener, shared: &Arc<Shared>) {
    while ready(listener, &shared.stop, None) {
        match listener.accept() {
            Ok((stream, _)) => begin(stream, shared),
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {}
            // No descriptor is left: whoever knocks waits until one is.
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}

fn begin(stream: UnixStream, shared: &Arc<Shared>) {
    let _ = stream.set_nonblocking(false);
    let _ = stream.set_write_timeout(Some(STALL));
    let stream = Arc::new(stream);
    let (id, closed) = match shared.clients.enter(&stream, monotonic_now()) {
        Ok(entered) => entered,
        Err(refusal) => {
            shared.say_refused(&refusal);
            let _ = say(&stream, &message::refused(refusal));
            return;
        }
    };
    if let (Some(idle), Some(log)) = (closed, &shared.log) {
        let why = format!("{} s idle, and another client came ({})", idle.as_secs(), Clients::FULL);
        log.say(Level::Info, "rpc connection closed", &[("why", why.into())]);
    }
    let mine = shared.clone();
    let serve = move || {
        serve(&stream, id, &mine);
        mine.clients.leave(id);
    };
    if std::thread::Builder::new().name("rpc-client".into()).spawn(serve).is_err() {
        shared.clients.leave(id);
    }
}

fn serve(mut stream: &UnixStream, id: u64, shared: &Shared) {
    let mut frames = Frames::default();
    let mut buffer = [0; 16 << 10];
    while ready(&stream, &shared.stop, Some(IDLE)) {
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => return,
            Ok(bytes) => frames.push(&buffer[..bytes]),
        }
        shared.clients.is_busy(id);
        loop {
            match frames.take() {
                Ok(Some(document)) => {
                    let answer = message::answer_rpc(&document, &*shared.control);
                    shared.note(&document, answer.as_ref());
                    if answer.is_some_and(|answer| say(stream, &answer).is_err()) {
                        return;
                    }
                }
                Ok(None) => break,
                Err(broken) => {
                    let _ = say(stream, &message::unreadable(&broken.to_string()));
                    return;
                }
            }
        }
        shared.clients.is_idle(id, monotonic_now());
    }
}

fn say(mut stream: &UnixStream, answer: &serde_json::Value) -> std::io::Result<()> {
    let mut text = answer.to_string();
    text.push('\n');
    stream.write_all(text.as_bytes())
}

impl Shared {
    fn say_refused(&self, refusal: &Error) {
        if let Some(log) = self.log.as_ref().filter(|_| self.clients.may_complain(monotonic_now())) {
            log.say(Level::Warning, "rpc refused", &[("why", refusal.found.clone().into())]);
        }
    }

    /// Logs requests that change the gateway, but not those that only ask.
    fn note(&self, document: &[u8], answer: Option<&serde_json::Value>) {
        let Some(log) = &self.log else { return };
        let Ok(request) = serde_json::from_slice::<serde_json::Value>(document) else { return };
        let Some(method) = request["method"].as_str().filter(|m| !asks_only(m)) else { return };
        let mut fields = vec![("method", method.into()), ("params", request["params"].clone())];
        let error = answer.map(|a| &a["error"]["message"]).filter(|m| !m.is_null());
        fields.extend(error.map(|e| ("error", e.clone())));
        log.say(if error.is_some() { Level::Warning } else { Level::Info }, "rpc", &fields);
    }
}

fn asks_only(method: &str) -> bool {
    method.ends_with("_list") || method.ends_with("_get") || method.starts_with("rpc_get")
}
