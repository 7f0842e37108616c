//! In-band authentication with DH-HMAC-CHAP (base, section 8.13): both ends, as bytes in and bytes out.
//!
//! A queue whose Connect was answered with AUTHREQ only accepts Authentication Send and Receive until this exchange
//! is complete:
//!
//! ```text
//! host (HostAuth)                          controller (TargetAuth)
//!   Send     AUTH_Negotiate            →     send(bytes, random)
//!   Receive  DH-HMAC-CHAP_Challenge    ←     receive(length)
//!   Send     DH-HMAC-CHAP_Reply        →     send
//!   Receive  DH-HMAC-CHAP_Success1     ←     receive            the host is known
//!   Send     DH-HMAC-CHAP_Success2     →     send               both are, where the host asked
//! ```
//!
//! The caller provides random bytes and enforces time limits. A controller should wait for the next message for the
//! keep-alive timeout, or `TIME_LIMIT_SECONDS` without one.

mod group;
mod hash;
mod host;
mod message;
pub mod psk;
mod secret;
mod target;

pub use group::Group;
pub use hash::Hash;
pub use host::{HostAuth, HostStep};
pub use message::{Explanation, MESSAGE_BYTES_MAX};
pub use secret::{Secret, SecretError};
pub use target::{Outcome, TargetAuth};

use group::EXPONENT_BYTES;
use hash::HASH_BYTES_MAX;
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

/// Seconds after which a controller without keep-alive timeout ends a connection that makes no progress (base,
/// section 8.13.5.1).
pub const TIME_LIMIT_SECONDS: u64 = 120;

/// The identities and secrets of both ends.
#[derive(Clone, Debug)]
pub struct Credentials {
    pub host_nqn: String,
    pub subsystem_nqn: String,
    /// The host's secret (`dhchap_key`): it proves the host to the controller.
    pub host: Secret,
    /// The controller's secret (`dhchap_ctrl_key`): it proves the controller to the host. A host that has it requires
    /// this proof.
    pub controller: Option<Secret>,
    pub policy: Policy,
}

impl Credentials {
    /// The same host towards another subsystem.
    pub fn towards(&self, subsystem_nqn: &str) -> Credentials {
        Credentials { subsystem_nqn: subsystem_nqn.to_owned(), ..self.clone() }
    }
}

/// Hashes and groups that may be used, the preferred first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    pub hashes: Vec<Hash>,
    pub groups: Vec<Group>,
}

impl Default for Policy {
    /// All hashes, and all groups, the cheapest exchange first: each is strong enough for the keys. NULL, without an
    /// exchange, comes last: it is all that Linux's target takes where its configuration names no group.
    fn default() -> Policy {
        let mut groups = Group::ALL.to_vec();
        groups.rotate_left(1);
        Policy { hashes: Hash::ALL.to_vec(), groups }
    }
}

impl Policy {
    /// From names; an empty list stands for the default. Err: an unknown name.
    pub fn named<'a>(hashes: &'a [String], groups: &'a [String]) -> Result<Policy, &'a str> {
        let Policy { hashes: all_hashes, groups: all_groups } = Policy::default();
        let hashes: Vec<Hash> =
            hashes.iter().map(|name| Hash::named(name).ok_or(name.as_str())).collect::<Result<_, _>>()?;
        let groups: Vec<Group> =
            groups.iter().map(|name| Group::named(name).ok_or(name.as_str())).collect::<Result<_, _>>()?;
        Ok(Policy {
            hashes: if hashes.is_empty() { all_hashes } else { hashes },
            groups: if groups.is_empty() { all_groups } else { groups },
        })
    }
}

/// Random bytes for one exchange.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct Random {
    challenge: [u8; HASH_BYTES_MAX],
    exponent: [u8; EXPONENT_BYTES],
    sequence: u32,
}

impl Random {
    pub const BYTES: usize = HASH_BYTES_MAX + EXPONENT_BYTES + 4;

    /// From the bytes that `fill` writes into a buffer of `BYTES`, which is zeroed afterwards.
    pub fn fill<E>(fill: impl FnOnce(&mut [u8]) -> Result<(), E>) -> Result<Random, E> {
        let mut bytes = Zeroizing::new([0; Random::BYTES]);
        fill(&mut bytes[..])?;
        Ok(Random::new(&bytes))
    }

    pub fn new(bytes: &[u8; Random::BYTES]) -> Random {
        let mut random =
            Random { challenge: [0; HASH_BYTES_MAX], exponent: [0; EXPONENT_BYTES], sequence: 0 };
        let (challenge, rest) = bytes.split_at(HASH_BYTES_MAX);
        let (exponent, sequence) = rest.split_at(EXPONENT_BYTES);
        random.challenge.copy_from_slice(challenge);
        random.exponent.copy_from_slice(exponent);
        let sequence = sequence.iter().fold(0, |number, &byte| number << 8 | u32::from(byte));
        // Sequence numbers are never 0.
        random.sequence = sequence.max(1);
        random
    }
}

/// The result of a successful authentication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreement {
    pub hash: Hash,
    pub group: Group,
    /// True if the controller has authenticated, too.
    pub both_ways: bool,
}

/// A failed authentication.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {explanation} ({found})", if *by_peer { "the peer refused" } else { "refused" })]
pub struct Failure {
    pub explanation: Explanation,
    /// True if the other end reported it; otherwise this end detected it.
    pub by_peer: bool,
    /// The cause as text, for a log.
    pub found: &'static str,
}

impl Failure {
    fn ours(explanation: Explanation, found: &'static str) -> Failure {
        Failure { explanation, by_peer: false, found }
    }

    fn theirs(explanation: Explanation) -> Failure {
        let found = match explanation {
            Explanation::FAILED => "the keys differ, or one end has none",
            Explanation::PROTOCOL_NOT_USABLE => "it does not speak DH-HMAC-CHAP",
            Explanation::CONCATENATION_MISMATCH => "it wants a secure channel, or wants none",
            Explanation::HASH_NOT_USABLE => "no hash that both allow",
            Explanation::GROUP_NOT_USABLE => "no DH group that both allow",
            _ => "it did not understand us",
        };
        Failure { explanation, by_peer: true, found }
    }
}
