//! One RPC to a gateway: connected, asked, answered, each within the same time.

use super::verbs;
use forebay_io::monotonic_now;
use forebay_model::Error;
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::net::{connect, socket_with, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde_json::{json, Map, Value};
use std::io::{Error as IoError, ErrorKind, Read, Result as IoResult, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// Longest time for an answer beyond the wait that the verb itself was given: opening a source may connect to it.
const PATIENCE: Duration = Duration::from_secs(60);
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// Interval at which a waiter checks whether to go on.
const TURN: Duration = Duration::from_millis(200);

/// Asks the gateway whose socket is at `path`.
///
/// # Errors
/// `Machine`: no gateway listens there. `Run`: it ended, or took too long. Else what it answers, of its kind.
pub fn call_gateway(path: &Path, method: &str, params: &Map<String, Value>) -> Result<Value, Error> {
    call_while(path, method, params, &mut || true)
}

/// As `call_gateway`, and asks `go_on` a few times a second, and after each signal, whether to wait on.
///
/// # Errors
/// Those of `call_gateway`; `Run`: it was told not to go on.
pub(crate) fn call_while(
    path: &Path,
    method: &str,
    params: &Map<String, Value>,
    go_on: &mut dyn FnMut() -> bool,
) -> Result<Value, Error> {
    let failed = |found: String| {
        let asked = format!("{} {method}", path.display());
        Error::run(asked, found, "the gateway's log: journalctl -u forebay-snap")
    };
    let broken = |e: IoError| match e.kind() {
        ErrorKind::TimedOut => failed("no answer came in time".into()),
        ErrorKind::Interrupted => failed("the gateway hasn't answered yet".into()),
        _ => failed(e.to_string()),
    };
    let reported = params.get("timeout_ms").and_then(Value::as_u64).unwrap_or(0).min(verbs::SUSPEND_MS_MAX);
    let mut wait = Wait { until: monotonic_now() + PATIENCE + Duration::from_millis(reported), go_on };
    let mut stream = wait.connect(path).map_err(|e| match e.kind() {
        ErrorKind::TimedOut | ErrorKind::Interrupted => broken(e),
        _ => nobody(path, &e),
    })?;
    let request = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }).to_string();
    let sent = wait.send(&mut stream, request.as_bytes());
    // Who is turned away is told why, and may be unable to ask by then.
    let (answer, heard) = match &sent {
        Err(e) if matches!(e.kind(), ErrorKind::TimedOut | ErrorKind::Interrupted) => (Vec::new(), Ok(())),
        _ => wait.receive(&mut stream),
    };
    if let Some(understood) = understood(&answer) {
        return understood;
    }
    sent.and(heard).map_err(broken)?;
    let shown: String = String::from_utf8_lossy(&answer).escape_debug().take(200).collect();
    Err(failed(if answer.is_empty() {
        "it closed the connection".into()
    } else {
        format!("answered {shown}")
    }))
}

struct Wait<'a> {
    until: Instant,
    go_on: &'a mut dyn FnMut() -> bool,
}

impl Wait<'_> {
    /// Waits for one turn more, unless interrupted.
    fn more(&mut self) -> IoResult<()> {
        if !(self.go_on)() {
            return Err(ErrorKind::Interrupted.into());
        }
        if monotonic_now() >= self.until {
            return Err(ErrorKind::TimedOut.into());
        }
        Ok(())
    }

    fn ready(&mut self, stream: &UnixStream, what: PollFlags) -> IoResult<()> {
        let turn = Timespec { tv_sec: 0, tv_nsec: TURN.subsec_nanos().into() };
        loop {
            self.more()?;
            match poll(&mut [PollFd::new(stream, what)], Some(&turn)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                done => return Ok(done.map(drop)?),
            }
        }
    }

    fn connect(&mut self, path: &Path) -> IoResult<UnixStream> {
        let address = SocketAddrUnix::new(path)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        loop {
            match connect(&socket, &address) {
                // As many wait already as the gateway's backlog holds.
                Err(rustix::io::Errno::AGAIN) => std::thread::sleep(TURN / 4),
                Err(rustix::io::Errno::INTR) => {}
                done => return done.map(|()| socket.into()).map_err(Into::into),
            }
            self.more()?;
        }
    }

    fn send(&mut self, stream: &mut UnixStream, mut bytes: &[u8]) -> IoResult<()> {
        while !bytes.is_empty() {
            match stream.write(bytes) {
                Ok(taken) => bytes = &bytes[taken..],
                Err(e) if e.kind() == ErrorKind::WouldBlock => self.ready(stream, PollFlags::OUT)?,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        stream.shutdown(std::net::Shutdown::Write)
    }

    /// All until it is closed, and why no more came.
    fn receive(&mut self, stream: &mut UnixStream) -> (Vec<u8>, IoResult<()>) {
        let (mut answer, mut part) = (Vec::new(), [0; 16 << 10]);
        while answer.len() < ANSWER_BYTES_MAX {
            match stream.read(&mut part) {
                Ok(0) => break,
                Ok(bytes) => answer.extend_from_slice(&part[..bytes]),
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    if let Err(e) = self.ready(stream, PollFlags::IN) {
                        return (answer, Err(e));
                    }
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return (answer, Err(e)),
            }
        }
        (answer, Ok(()))
    }
}

/// None: it is no answer of JSON-RPC.
fn understood(answer: &[u8]) -> Option<Result<Value, Error>> {
    let mut answer: Value = serde_json::from_slice(answer).ok()?;
    if let Some(result) = answer.get_mut("result") {
        return Some(Ok(result.take()));
    }
    let error = answer.get_mut("error")?;
    let message = error.get("message")?.as_str()?.to_string();
    let data = error.get_mut("data").map(Value::take).unwrap_or_default();
    let reported = serde_json::from_value(data).ok();
    Some(Err(reported.unwrap_or_else(|| Error::run("the request", message, "forebay snap rpc --help"))))
}

fn nobody(path: &Path, error: &IoError) -> Error {
    let next = match error.kind() {
        ErrorKind::PermissionDenied => "sudo, or the user that runs the gateway".to_string(),
        _ => "forebay snap CONFIG.toml, or --socket PATH of the one that runs".to_string(),
    };
    Error::machine(path.display().to_string(), format!("no gateway can be asked there: {error}"), next)
}
