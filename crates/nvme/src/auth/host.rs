//! The host's end of DH-HMAC-CHAP.

use super::group::KeyPair;
use super::hash::{Digest, Question, Role};
use super::message::{self, Challenge, Explanation, Kind, Negotiate, Reply, Success1};
use super::{Agreement, Credentials, Failure, Random, MESSAGE_BYTES_MAX};
use crate::command::Sqe;
use crate::fabrics::{AuthenticationReceive, AuthenticationSend};
use crate::host::Data;
use std::sync::Arc;

/// Next step of the host on the queue that it authenticates.
#[derive(Debug, PartialEq, Eq)]
pub enum HostStep {
    /// Authentication Send with these data; then `sent`.
    Send(Vec<u8>),
    /// Authentication Receive of this many bytes; then `received`.
    Receive(u32),
    Done(Agreement),
    /// End the connection.
    Failed(Failure),
}

impl HostStep {
    /// The command of this step, with its data. None: it is over.
    pub fn command(&self) -> Option<(Sqe, Data)> {
        match self {
            HostStep::Send(bytes) => {
                Some((AuthenticationSend::new(bytes.len() as u32).to_sqe(), Data::Out(bytes.clone())))
            }
            HostStep::Receive(length) => {
                Some((AuthenticationReceive::new(*length).to_sqe(), Data::In(*length)))
            }
            HostStep::Done(_) | HostStep::Failed(_) => None,
        }
    }
}

/// Authenticates one queue. An Authentication command that ends with an error status is a failure, too; the machine
/// need not hear of it.
pub struct HostAuth {
    credentials: Arc<Credentials>,
    random: Random,
    transaction: u16,
    state: HostAuthState,
}

enum HostAuthState {
    Negotiating,
    AwaitingChallenge,
    /// The reply is on its way; then its Success1 is read.
    Replying(Exchange),
    AwaitingSuccess1(Exchange),
    /// Success2 is on its way.
    Finishing(Agreement),
    /// Failure2 is on its way.
    Failing(Failure),
    Ended,
}

struct Exchange {
    agreement: Agreement,
    /// R2, which the controller should answer.
    expected: Option<Digest>,
}

impl HostAuth {
    /// `transaction` should differ from that of the last exchange with the same controller.
    pub fn new(credentials: Arc<Credentials>, random: Random, transaction: u16) -> HostAuth {
        HostAuth { credentials, random, transaction, state: HostAuthState::Negotiating }
    }

    /// The first step.
    pub fn start(&mut self) -> HostStep {
        let policy = &self.credentials.policy;
        HostStep::Send(
            Negotiate {
                transaction: self.transaction,
                concatenation: 0,
                hashes: policy.hashes.clone(),
                groups: policy.groups.clone(),
            }
            .encode(),
        )
    }

    /// The Authentication Send of the last step succeeded.
    pub fn sent(&mut self) -> HostStep {
        let receive = HostStep::Receive(MESSAGE_BYTES_MAX as u32);
        match std::mem::replace(&mut self.state, HostAuthState::Ended) {
            HostAuthState::Negotiating => {
                self.state = HostAuthState::AwaitingChallenge;
                receive
            }
            HostAuthState::Replying(exchange) => {
                self.state = HostAuthState::AwaitingSuccess1(exchange);
                receive
            }
            HostAuthState::Finishing(agreement) => HostStep::Done(agreement),
            HostAuthState::Failing(failure) => HostStep::Failed(failure),
            HostAuthState::AwaitingChallenge | HostAuthState::AwaitingSuccess1(_) | HostAuthState::Ended => {
                out_of_turn()
            }
        }
    }

    /// The Authentication Receive of the last step succeeded and brought these bytes.
    pub fn received(&mut self, bytes: &[u8]) -> HostStep {
        let step = match std::mem::replace(&mut self.state, HostAuthState::Ended) {
            HostAuthState::AwaitingChallenge => {
                self.expect(bytes, Kind::Challenge).and_then(|()| self.challenged(bytes))
            }
            HostAuthState::AwaitingSuccess1(exchange) => {
                self.expect(bytes, Kind::Success1).and_then(|()| self.succeeded(bytes, &exchange))
            }
            _ => return out_of_turn(),
        };
        step.unwrap_or_else(|failure| self.fail(failure))
    }

    fn fail(&mut self, failure: Failure) -> HostStep {
        if failure.by_peer {
            return HostStep::Failed(failure);
        }
        self.state = HostAuthState::Failing(failure);
        HostStep::Send(message::encode_failure(Kind::Failure2, self.transaction, failure.explanation))
    }

    fn expect(&self, bytes: &[u8], kind: Kind) -> Result<(), Failure> {
        match Kind::from_bytes(bytes) {
            Some(Kind::Failure1) => Err(match message::decode_failure(bytes) {
                Ok(explanation) => Failure::theirs(explanation),
                Err(explanation) => Failure::ours(explanation, "an AUTH_Failure1 cut short"),
            }),
            Some(found) if found == kind && message::transaction(bytes) == Some(self.transaction) => Ok(()),
            Some(found) if found == kind => {
                Err(Failure::ours(Explanation::INCORRECT_MESSAGE, "a message of another transaction"))
            }
            _ => Err(Failure::ours(Explanation::INCORRECT_MESSAGE, "another message than was due")),
        }
    }

    fn challenged(&mut self, bytes: &[u8]) -> Result<HostStep, Failure> {
        let challenge = Challenge::decode(bytes)
            .map_err(|explanation| Failure::ours(explanation, "a challenge that can't be read"))?;
        let policy = &self.credentials.policy;
        if !policy.hashes.contains(&challenge.hash) {
            return Err(Failure::ours(Explanation::HASH_NOT_USABLE, "a hash that was not offered"));
        }
        if !policy.groups.contains(&challenge.group) {
            return Err(Failure::ours(Explanation::GROUP_NOT_USABLE, "a DH group that was not offered"));
        }
        let pair = KeyPair::new(challenge.group, &self.random.exponent);
        let session_key = match &pair {
            None => None,
            Some(pair) => {
                let shared = pair.shared(challenge.public).ok_or(Failure::ours(
                    Explanation::INCORRECT_PAYLOAD,
                    "a DH value of the wrong length, or one that gives the key away",
                ))?;
                Some(challenge.hash.digest(&shared))
            }
        };
        let ours = &self.random.challenge[..challenge.hash.bytes()];
        if ours == challenge.challenge {
            return Err(Failure::ours(Explanation::FAILED, "our own challenge, sent back"));
        }
        let mut question = Question {
            hash: challenge.hash,
            challenge: challenge.challenge,
            session_key: session_key.as_ref(),
            sequence: challenge.sequence,
            transaction: self.transaction,
            host_nqn: &self.credentials.host_nqn,
            subsystem_nqn: &self.credentials.subsystem_nqn,
        };
        let key = self.credentials.host.transformed(&self.credentials.host_nqn);
        let response = question.answer(key.as_bytes(), Role::Host);
        (question.challenge, question.sequence) = (ours, self.random.sequence);
        let expected = self.credentials.controller.as_ref().map(|secret| {
            question.answer(secret.transformed(&self.credentials.subsystem_nqn).as_bytes(), Role::Controller)
        });
        let reply = Reply {
            transaction: self.transaction,
            sequence: if expected.is_some() { self.random.sequence } else { 0 },
            response: response.as_bytes(),
            challenge: expected.is_some().then_some(ours),
            public: pair.as_ref().map_or(&[], KeyPair::public),
        }
        .encode();
        let agreement =
            Agreement { hash: challenge.hash, group: challenge.group, both_ways: expected.is_some() };
        self.state = HostAuthState::Replying(Exchange { agreement, expected });
        Ok(HostStep::Send(reply))
    }

    fn succeeded(&mut self, bytes: &[u8], exchange: &Exchange) -> Result<HostStep, Failure> {
        let success = Success1::decode(bytes, exchange.agreement.hash)
            .map_err(|explanation| Failure::ours(explanation, "a Success1 that can't be read"))?;
        match (&exchange.expected, success.response) {
            (None, None) => Ok(HostStep::Done(exchange.agreement)),
            (Some(expected), Some(response)) if expected.matches(response) => {
                self.state = HostAuthState::Finishing(exchange.agreement);
                Ok(HostStep::Send(message::encode_success2(self.transaction)))
            }
            (Some(_), Some(_)) => Err(Failure::ours(Explanation::FAILED, "the controller has another key")),
            (Some(_), None) => Err(Failure::ours(Explanation::FAILED, "the controller did not prove itself")),
            (None, Some(_)) => {
                Err(Failure::ours(Explanation::INCORRECT_PAYLOAD, "an answer without a question"))
            }
        }
    }
}

fn out_of_turn() -> HostStep {
    HostStep::Failed(Failure::ours(Explanation::INCORRECT_MESSAGE, "a step out of turn"))
}
