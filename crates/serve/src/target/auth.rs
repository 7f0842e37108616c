//! Hosts that must prove who they are: DH-HMAC-CHAP on each of their queues, before it may do anything else (base,
//! section 8.13).

use super::config::{secrets, Config};
use forebay_io::auth_random;
use forebay_nvme::auth::{Outcome, TargetAuth};
use forebay_nvme::command::{Cqe, Sqe};
use forebay_nvme::controller::connect::Connect;
use forebay_nvme::controller::Answer;
use forebay_nvme::status::{Code, Status};

/// What one queue has to prove, and how far it has come.
#[derive(Default)]
pub(super) struct Authentication {
    required: bool,
    /// None: its host has no key.
    exchange: Option<Box<TargetAuth>>,
}

impl Authentication {
    /// For a queue whose Connect was admitted only if it authenticates.
    pub(super) fn required(config: &Config, connect: &Connect) -> Authentication {
        let subsystem = config.subsystems.iter().find(|s| s.nqn == connect.subsystem_nqn);
        let host = subsystem.and_then(|s| s.hosts.iter().find(|h| h.nqn == connect.host_nqn));
        // The keys were checked with the configuration.
        let credentials =
            host.and_then(|host| secrets::credentials(host, &connect.subsystem_nqn).ok().flatten());
        let exchange = credentials.map(|credentials| Box::new(TargetAuth::new(credentials)));
        Authentication { required: true, exchange }
    }

    pub(super) fn is_required(&self) -> bool {
        self.required
    }

    /// Nothing but authentication is executed.
    #[inline]
    pub(super) fn is_pending(&self) -> bool {
        let is_authenticated = |auth: &TargetAuth| matches!(auth.outcome(), Outcome::Authenticated(_));
        self.required && !self.exchange.as_deref().is_some_and(is_authenticated)
    }

    /// Answers an Authentication command that came with `data`. Some: the outcome, where it is another now. The second and
    /// third of an exchange take 1 ms of computing with ffdhe2048, 15 ms with ffdhe8192.
    pub(super) fn execute(&mut self, sqe: &Sqe, data: &[u8]) -> (Answer, Option<Outcome>) {
        let refuse = |code| (Answer::Complete(Cqe::new(sqe.cid.get(), Status::fatal(code), 0)), None);
        let Some(auth) = &mut self.exchange else { return refuse(Code::INVALID_OPCODE) };
        let Ok(random) = auth_random() else { return refuse(Code::INTERNAL_ERROR) };
        let before = auth.outcome();
        let answer = auth.execute(sqe, data, random);
        let outcome = auth.outcome();
        let changed = outcome != before;
        (answer, changed.then_some(outcome))
    }
}
