//! Hosts that must come over TLS 1.3 with a key of their own (tcp, section 3.6.1): on the same port as the others.

use super::config::{secrets, Config};
use super::inbox::Inbox;
use super::log::Level;
use super::message::{HostTransport, Message, NewConnection};
use super::shared::TargetShared;
use super::subsystem::DISCOVERY;
use forebay_io::{TlsArrival, TlsBridge, TlsContext};
use forebay_model::Error;
use forebay_nvme::auth::psk::{TlsPsk, Version};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// Entrance for connections, if any host has a TLS key.
pub(super) struct Gate {
    bridge: TlsBridge,
    context: Arc<TlsContext>,
    limit: Duration,
}

impl Gate {
    /// None: no host has a TLS key.
    ///
    /// # Errors
    /// Kind `Machine`: there is no OpenSSL. Kind `Request`: a key that is none.
    pub(super) fn from_config(config: &Config) -> Result<Option<Gate>, Error> {
        let keys = keys(config)?;
        if keys.is_empty() {
            return Ok(None);
        }
        let context = TlsContext::server(Arc::new(move |identity: &str| keys.get(identity).cloned()))?;
        let limit = Duration::from_secs_f64(config.handshake_s);
        Ok(Some(Gate { bridge: TlsBridge::start()?, context, limit }))
    }

    /// Gives a connection to its thread once it is known how it speaks.
    pub(super) fn receive(
        &self,
        socket: OwnedFd,
        peer: SocketAddr,
        local: SocketAddr,
        inbox: Arc<Inbox<Message>>,
        shared: Arc<TargetShared>,
    ) {
        let adopt = move |arrival| {
            let (socket, client) = match arrival {
                TlsArrival::Plain(socket) => (socket, None),
                TlsArrival::Secure { socket, client } => (socket, Some(client)),
                TlsArrival::Failed(why) => {
                    let fields = [("peer", peer.to_string().into()), ("why", why.into())];
                    shared.log.say(Level::Warning, "no TLS", &fields);
                    return shared.left(&inbox);
                }
            };
            inbox.post(Message::Adopt(NewConnection {
                way: HostTransport::Tcp(socket),
                peer,
                local,
                client,
            }));
        };
        self.bridge.accept(socket, &self.context, self.limit, Box::new(adopt));
    }
}

/// By identity: each host's key for each of its subsystems and for discovery, in both versions.
fn keys(config: &Config) -> Result<HashMap<String, TlsPsk>, Error> {
    let mut keys = HashMap::new();
    for subsystem in &config.subsystems {
        for host in &subsystem.hosts {
            let Some(key) = secrets::tls_key(host)? else { continue };
            for (nqn, version) in [subsystem.nqn.as_str(), DISCOVERY]
                .into_iter()
                .flat_map(|nqn| [(nqn, Version::V1), (nqn, Version::V0)])
            {
                // Names too long for version 0 leave version 1.
                if let Ok(psk) = key.session(version, &host.nqn, nqn) {
                    keys.insert(psk.identity.clone(), psk);
                }
            }
        }
    }
    Ok(keys)
}
