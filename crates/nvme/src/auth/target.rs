//! The controller's end of DH-HMAC-CHAP.

use super::group::{Group, KeyPair};
use super::hash::{Digest, Hash, Question, Role};
use super::message::{self, Challenge, Explanation, Kind, Negotiate, Reply, Success1};
use super::{Agreement, Credentials, Failure, Random, MESSAGE_BYTES_MAX};
use crate::command::{Cqe, Sqe};
use crate::controller::Answer;
use crate::fabrics::{self, fctype, AuthenticationReceive, AuthenticationSend};
use crate::status::{Code, Status};
use std::sync::Arc;

/// Progress of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Commands other than authentication are refused with Authentication Required.
    Pending,
    Authenticated(Agreement),
    /// The connection ends once the completion is on its way.
    Failed(Failure),
}

/// Authenticates the host of one queue. A host may authenticate again on a live queue, which stays authenticated
/// meanwhile.
pub struct TargetAuth {
    credentials: Arc<Credentials>,
    outcome: Outcome,
    state: TargetAuthState,
}

enum TargetAuthState {
    AwaitingNegotiate,
    /// Negotiated: the challenge is to be fetched.
    Challenging(Exchange),
    AwaitingReply(Exchange),
    /// The host is known; Success1, with R2 where it asked, is to be fetched.
    Succeeding {
        agreement: Agreement,
        transaction: u16,
        response: Option<Digest>,
    },
    AwaitingSuccess2 {
        agreement: Agreement,
        transaction: u16,
    },
    /// AUTH_Failure1 is to be fetched.
    Failing {
        failure: Failure,
        transaction: u16,
    },
    Ended,
}

struct Exchange {
    transaction: u16,
    hash: Hash,
    group: Group,
    random: Random,
    /// None with the NULL group, and until the challenge is made.
    pair: Option<KeyPair>,
}

impl TargetAuth {
    pub fn new(credentials: Arc<Credentials>) -> TargetAuth {
        TargetAuth { credentials, outcome: Outcome::Pending, state: TargetAuthState::AwaitingNegotiate }
    }

    pub fn outcome(&self) -> Outcome {
        self.outcome
    }

    /// Answers an Authentication command: what `Answer::Authenticate` asks for. `data` is what the command brought
    /// along, `random` fresh for each call. Then look at `outcome`; the first call may take 1 ms of computing for
    /// ffdhe2048, 15 ms for ffdhe8192, and so may the third.
    pub fn execute(&mut self, sqe: &Sqe, data: &[u8], random: Random) -> Answer {
        let cid = sqe.cid.get();
        let invalid = || Answer::Complete(Cqe::new(cid, Status::fatal(Code::INVALID_FIELD), 0));
        if fabrics::command_type(sqe) == fctype::AUTHENTICATION_SEND {
            let send = AuthenticationSend::from_sqe(sqe);
            if !send.is_nvme() || send.tl.get() as usize != data.len() {
                return invalid();
            }
            return Answer::Complete(Cqe::new(cid, self.send(data, random), 0));
        }
        let receive = AuthenticationReceive::from_sqe(sqe);
        if !receive.is_nvme() {
            return invalid();
        }
        match self.receive(receive.al.get().min(sqe.sgl.length.get())) {
            Ok(data) => Answer::Data { data, cqe: Cqe::new(cid, Status::SUCCESS, 0) },
            Err(status) => Answer::Complete(Cqe::new(cid, status, 0)),
        }
    }

    /// Takes the data of an Authentication Send. `random` is fresh for each call; an AUTH_Negotiate keeps it. What
    /// is wrong with a message is told by AUTH_Failure1, not by the status; `outcome` says when that is over.
    pub fn send(&mut self, bytes: &[u8], random: Random) -> Status {
        if bytes.is_empty() || bytes.len() > MESSAGE_BYTES_MAX {
            return Status::fatal(Code::INVALID_FIELD);
        }
        let transaction = message::transaction(bytes).unwrap_or_default();
        let step = match (Kind::from_bytes(bytes), std::mem::replace(&mut self.state, TargetAuthState::Ended))
        {
            (_, state @ (TargetAuthState::Ended | TargetAuthState::Failing { .. })) => {
                self.state = state;
                return Status::fatal(Code::COMMAND_SEQUENCE_ERROR);
            }
            (Some(Kind::Negotiate), TargetAuthState::AwaitingNegotiate) => self.negotiated(bytes, random),
            (Some(Kind::Reply), TargetAuthState::AwaitingReply(exchange))
                if exchange.transaction == transaction =>
            {
                self.replied(bytes, &exchange)
            }
            (Some(Kind::Success2), TargetAuthState::AwaitingSuccess2 { agreement, transaction: due })
                if due == transaction =>
            {
                self.outcome = Outcome::Authenticated(agreement);
                Ok(TargetAuthState::AwaitingNegotiate)
            }
            (Some(Kind::Failure2), _) => {
                let explanation = message::decode_failure(bytes).unwrap_or_else(|explanation| explanation);
                self.outcome = Outcome::Failed(Failure::theirs(explanation));
                Ok(TargetAuthState::Ended)
            }
            _ => Err(Failure::ours(Explanation::INCORRECT_MESSAGE, "another message than was due")),
        };
        self.state = step.unwrap_or_else(|failure| TargetAuthState::Failing { failure, transaction });
        Status::SUCCESS
    }

    /// The data for an Authentication Receive with this allocation length. One that is too short changes nothing.
    pub fn receive(&mut self, length: u32) -> Result<Vec<u8>, Status> {
        let bytes = match &mut self.state {
            TargetAuthState::Challenging(exchange) => challenge(exchange),
            TargetAuthState::Succeeding { agreement, transaction, response } => {
                let response = response.as_ref().map(Digest::as_bytes);
                Success1 { transaction: *transaction, hash: agreement.hash, response }.encode()
            }
            TargetAuthState::Failing { failure, transaction } => {
                message::encode_failure(Kind::Failure1, *transaction, failure.explanation)
            }
            TargetAuthState::AwaitingNegotiate
            | TargetAuthState::AwaitingReply(_)
            | TargetAuthState::AwaitingSuccess2 { .. }
            | TargetAuthState::Ended => {
                return Err(Status::fatal(Code::COMMAND_SEQUENCE_ERROR));
            }
        };
        if bytes.len() > length as usize {
            return Err(Status::fatal(Code::INVALID_FIELD));
        }
        self.delivered();
        Ok(bytes)
    }

    /// Notes that what was to be fetched has been.
    fn delivered(&mut self) {
        self.state = match std::mem::replace(&mut self.state, TargetAuthState::Ended) {
            TargetAuthState::Challenging(exchange) => TargetAuthState::AwaitingReply(exchange),
            TargetAuthState::Succeeding { agreement, transaction, response: Some(_) } => {
                TargetAuthState::AwaitingSuccess2 { agreement, transaction }
            }
            TargetAuthState::Succeeding { agreement, response: None, .. } => {
                self.outcome = Outcome::Authenticated(agreement);
                TargetAuthState::AwaitingNegotiate
            }
            TargetAuthState::Failing { failure, .. } => {
                self.outcome = Outcome::Failed(failure);
                TargetAuthState::Ended
            }
            state => state,
        };
    }

    fn negotiated(&self, bytes: &[u8], random: Random) -> Result<TargetAuthState, Failure> {
        let offer = Negotiate::decode(bytes)
            .map_err(|explanation| Failure::ours(explanation, "an AUTH_Negotiate without DH-HMAC-CHAP"))?;
        if offer.concatenation != 0 {
            let found = "a host that wants a secure channel to follow";
            return Err(Failure::ours(Explanation::CONCATENATION_MISMATCH, found));
        }
        let policy = &self.credentials.policy;
        let hash = policy.hashes.iter().copied().find(|hash| offer.hashes.contains(hash));
        let group = policy.groups.iter().copied().find(|group| offer.groups.contains(group));
        Ok(TargetAuthState::Challenging(Exchange {
            transaction: offer.transaction,
            hash: hash.ok_or(Failure::ours(Explanation::HASH_NOT_USABLE, "no hash in common"))?,
            group: group.ok_or(Failure::ours(Explanation::GROUP_NOT_USABLE, "no DH group in common"))?,
            random,
            pair: None,
        }))
    }

    fn replied(&self, bytes: &[u8], exchange: &Exchange) -> Result<TargetAuthState, Failure> {
        let reply = Reply::decode(bytes, exchange.hash, exchange.group)
            .map_err(|explanation| Failure::ours(explanation, "a reply that can't be read"))?;
        let session_key = match &exchange.pair {
            None => None,
            Some(pair) => {
                let shared = pair.shared(reply.public).ok_or(Failure::ours(
                    Explanation::INCORRECT_PAYLOAD,
                    "a DH value that gives the key away",
                ))?;
                Some(exchange.hash.digest(&shared))
            }
        };
        let credentials = &*self.credentials;
        let ours = &exchange.random.challenge[..exchange.hash.bytes()];
        let mut question = Question {
            hash: exchange.hash,
            challenge: ours,
            session_key: session_key.as_ref(),
            sequence: exchange.random.sequence,
            transaction: exchange.transaction,
            host_nqn: &credentials.host_nqn,
            subsystem_nqn: &credentials.subsystem_nqn,
        };
        let key = credentials.host.transformed(&credentials.host_nqn);
        if !question.answer(key.as_bytes(), Role::Host).matches(reply.response) {
            return Err(Failure::ours(Explanation::FAILED, "the host has another key"));
        }
        let response = match (reply.challenge, &credentials.controller) {
            (None, _) => None,
            (Some(challenge), _) if challenge == ours => {
                return Err(Failure::ours(Explanation::FAILED, "our own challenge, sent back"));
            }
            (Some(_), None) => {
                let found = "a host that wants proof of the controller, which has no key for it";
                return Err(Failure::ours(Explanation::FAILED, found));
            }
            (Some(challenge), Some(secret)) => {
                (question.challenge, question.sequence) = (challenge, reply.sequence);
                let key = secret.transformed(&credentials.subsystem_nqn);
                Some(question.answer(key.as_bytes(), Role::Controller))
            }
        };
        let agreement =
            Agreement { hash: exchange.hash, group: exchange.group, both_ways: response.is_some() };
        Ok(TargetAuthState::Succeeding { agreement, transaction: exchange.transaction, response })
    }
}

fn challenge(exchange: &mut Exchange) -> Vec<u8> {
    if exchange.pair.is_none() {
        exchange.pair = KeyPair::new(exchange.group, &exchange.random.exponent);
    }
    Challenge {
        transaction: exchange.transaction,
        hash: exchange.hash,
        group: exchange.group,
        sequence: exchange.random.sequence,
        challenge: &exchange.random.challenge[..exchange.hash.bytes()],
        public: exchange.pair.as_ref().map_or(&[], KeyPair::public),
    }
    .encode()
}
