//! This host's proof of who it is, on one queue: DH-HMAC-CHAP, a command at a time.

use super::connection::{memory_of, Connection};
use super::options::Options;
use super::report::Unsent;
use crate::source::nvme::status::words;
use forebay_io::{auth_random, host_secrets};
use forebay_model::Error;
use forebay_nvme::auth::{Agreement, Credentials, HostAuth, HostStep, Policy};
use forebay_nvme::command::Cqe;
use forebay_nvme::host;
use forebay_nvme::transport::tcp::host::Data;
use forebay_nvme::transport::tcp::Handle;
use std::sync::Arc;

/// Advice to a host that has no secret.
pub(super) const NO_SECRET: &str =
    "the controller wants this host to authenticate (DH-HMAC-CHAP), and it has no \
                                    secret: dhchap_secret_file=PATH in the URI, or FOREBAY_DHCHAP_SECRET";
/// … whose controller asked for nothing.
pub(super) const NO_PROOF: &str = "the controller asks for no authentication, so it can't prove itself as \
                                   dhchap_ctrl_secret_file or FOREBAY_DHCHAP_CTRL_SECRET demands";

/// This host's secrets towards its subsystem, where it has some.
///
/// # Errors
/// Kind `Request`: a file or a variable that holds no secret.
pub(super) fn credentials(options: &Options, host_nqn: &str) -> Result<Option<Arc<Credentials>>, Error> {
    let files = (options.secret_file.as_deref(), options.ctrl_secret_file.as_deref());
    let secrets = host_secrets(files.0, files.1)?;
    Ok(secrets.map(|(host, controller)| {
        Arc::new(Credentials {
            host_nqn: host_nqn.to_owned(),
            subsystem_nqn: options.nqn.clone(),
            host,
            controller,
            policy: Policy::default(),
        })
    }))
}

/// Returns the credentials by which an I/O queue proves itself before its first command, if the controller's answer to
/// Connect requires it. One that isn't asked for is as good as its association, for which both have proved themselves
/// as far as was demanded: Linux's target in 7.3 asks on the admin queue only.
///
/// # Errors
/// It is asked, and has no secret.
pub(super) fn owed(
    credentials: Option<&Arc<Credentials>>,
    required: bool,
) -> Result<Option<&Arc<Credentials>>, Unproven> {
    match credentials {
        None if required => Err(Unproven { why: NO_SECRET.into(), for_good: true }),
        credentials => Ok(credentials.filter(|_| required)),
    }
}

/// Next step of the authentication.
pub(super) enum Progress {
    /// This command is in flight.
    Waiting(Handle),
    Done(Agreement),
}

/// Why it came to nothing.
#[derive(Debug)]
pub(super) struct Unproven {
    pub why: String,
    /// It would again.
    pub for_good: bool,
}

pub(super) struct Proof {
    auth: HostAuth,
    step: HostStep,
    /// Data of the command in flight, which stays here until the connection has let go of it.
    data: Vec<u8>,
}

impl Proof {
    /// Each queue of an association has a `transaction` of its own.
    pub(crate) fn new(credentials: &Arc<Credentials>, transaction: u16) -> Result<Proof, Unproven> {
        let random = auth_random().map_err(|e| Unproven { why: e.to_string(), for_good: true })?;
        let mut auth = HostAuth::new(credentials.clone(), random, transaction);
        let step = auth.start();
        Ok(Proof { auth, step, data: Vec::new() })
    }

    /// Queues the next command, if there is one.
    pub(crate) fn go_on(&mut self, connection: &mut Connection) -> Result<Progress, Unproven> {
        let (sqe, data) = match (self.step.command(), &self.step) {
            (Some(command), _) => command,
            (None, HostStep::Done(agreement)) => return Ok(Progress::Done(*agreement)),
            (None, step) => {
                let why = match step {
                    HostStep::Failed(failure) => format!("authentication failed; {failure}"),
                    _ => "authentication took a step that has no command".into(),
                };
                return Err(Unproven { why, for_good: true });
            }
        };
        let kind = match data {
            host::Data::Out(bytes) => {
                self.data = bytes;
                Data::Out { len: self.data.len() as u32 }
            }
            host::Data::In(len) => {
                self.data = vec![0; len as usize];
                Data::In { len }
            }
            host::Data::None => Data::None,
        };
        let full = |unsent: Unsent| Unproven { why: unsent.to_string(), for_good: false };
        connection.submit(sqe, kind, memory_of(&mut self.data)).map(Progress::Waiting).map_err(full)
    }

    /// The command in flight completed.
    pub(crate) fn completed(&mut self, cqe: &Cqe, received: u32) -> Result<(), Unproven> {
        let status = cqe.status();
        if !status.is_success() {
            let why = format!("authentication ended with: {}", words(status));
            return Err(Unproven { why, for_good: status.do_not_retry });
        }
        self.step = match self.step {
            HostStep::Send(_) => self.auth.sent(),
            _ => self.auth.received(&self.data[..self.data.len().min(received as usize)]),
        };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_io::generate_secret;
    use forebay_nvme::auth::Secret;

    /// Linux 7.3 answers the Connect of an I/O queue so, after it proved itself on the admin queue.
    // promise: AUT-7
    #[test]
    fn an_io_queue_that_is_not_asked_for_proof_owes_none() {
        let secret = || Secret::parse(&generate_secret("none").unwrap()).unwrap();
        let both = Arc::new(Credentials {
            host_nqn: "nqn.2026-11.io.example:host".into(),
            subsystem_nqn: "nqn.2026-11.io.example:a".into(),
            host: secret(),
            controller: Some(secret()),
            policy: Policy::default(),
        });
        assert!(owed(Some(&both), false).unwrap().is_none());
        assert!(owed(Some(&both), true).unwrap().is_some());
        assert!(owed(None, false).unwrap().is_none());
        assert_eq!(owed(None, true).unwrap_err().why, NO_SECRET);
    }
}
