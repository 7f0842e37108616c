//! The next gateway's part before there is one: it listens, and asks the one that runs.

use crate::gateway::config::{rpc_path, Config};
use crate::gateway::handed::broken;
use crate::gateway::handle::{Gateway, PATIENCE};
use crate::gateway::handover::wire::Line;
use crate::gateway::handover::FORMAT;
use crate::gateway::rpc::client;
use crate::gateway::socket::listen_at;
use crate::target::log::Sink;
use forebay_io::monotonic_now;
use forebay_model::Error;
use serde_json::json;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;

const POLL_INTERVAL: Duration = Duration::from_millis(2);

type Answer = JoinHandle<Result<(), Error>>;

/// State received from the running gateway.
pub(crate) struct Taken {
    pub gateway: Gateway,
    /// Socket on which its RPCs come in.
    pub rpc: Option<OwnedFd>,
    pub path: PathBuf,
}

/// Takes the place of the gateway that `config` names by the socket of its RPCs. None: none runs there.
///
/// # Errors
/// `Request`: the configuration has no such socket, or that gateway gives no state that is read here. `Run`, and those of
/// sources: it serves on.
pub(crate) fn take_over(config: &Config, sink: Sink) -> Result<Option<Taken>, Error> {
    let path = rpc_path(config.rpc.as_deref()).ok_or_else(|| {
        let next = "rpc = \"/run/forebay/snap.sock\", of the gateway that runs, too";
        Error::request("--take-over", "there is no RPC socket to reach the gateway through", next)
    })?;
    if UnixStream::connect(&path).is_err() {
        return Ok(None);
    }
    let place = SuccessorSocket::at(&path)?;
    let asked = asking(path.clone(), place.path.clone())?;
    let (stream, asked) = place.visitor(asked)?;
    let taken = Gateway::take_over(Line::new(stream, PATIENCE)?, sink);
    // Its answer says no more than the line did: and where it has ended by now, there is none.
    let _ = asked.join();
    let (gateway, rpc) = taken?;
    Ok(Some(Taken { gateway, rpc, path }))
}

fn asking(path: PathBuf, socket: PathBuf) -> Result<Answer, Error> {
    let text = socket.display().to_string();
    let params = json!({ "socket": text, "format": FORMAT });
    let ask = move || -> Result<(), Error> {
        let params = params.as_object().cloned().unwrap_or_default();
        client::call_gateway(&path, "snap_hand_over", &params).map(|_| ())
    };
    std::thread::Builder::new().name("take-over".into()).spawn(ask).map_err(|e| broken(&e.to_string()))
}

/// A socket of its own beside that of the RPCs, as long as nobody came.
struct SuccessorSocket {
    listener: UnixListener,
    path: PathBuf,
}

impl SuccessorSocket {
    fn at(rpc: &Path) -> Result<SuccessorSocket, Error> {
        let path = PathBuf::from(format!("{}.next", rpc.display()));
        let listener = listen_at(&path)?;
        listener.set_nonblocking(true).map_err(|e| broken(&e.to_string()))?;
        Ok(SuccessorSocket { listener, path })
    }

    /// Returns the next visitor, unless the answer was a refusal.
    fn visitor(&self, asked: Answer) -> Result<(UnixStream, Answer), Error> {
        let until = monotonic_now() + PATIENCE;
        loop {
            if let Ok((stream, _)) = self.listener.accept() {
                stream.set_nonblocking(false).map_err(|e| broken(&e.to_string()))?;
                return Ok((stream, asked));
            }
            if asked.is_finished() {
                let answer = asked.join().unwrap_or_else(|_| Err(broken("asking for it failed")));
                return Err(answer.err().unwrap_or_else(|| broken("the gateway gave nothing")));
            }
            if monotonic_now() > until {
                return Err(broken("the gateway does not come to give what it has"));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

impl Drop for SuccessorSocket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}
