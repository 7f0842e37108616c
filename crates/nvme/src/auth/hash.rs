//! The hash functions of DH-HMAC-CHAP, and what is computed with them (base, section 8.13.5).

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest as _, Sha256, Sha384, Sha512};
use subtle::ConstantTimeEq;
use zeroize::{Zeroize, ZeroizeOnDrop};

/// HashID of DH-HMAC-CHAP_Challenge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Hash {
    Sha256 = 1,
    Sha384 = 2,
    Sha512 = 3,
}

/// Bytes of the longest hash.
pub const HASH_BYTES_MAX: usize = 64;

impl Hash {
    pub const ALL: [Hash; 3] = [Hash::Sha256, Hash::Sha384, Hash::Sha512];

    pub fn from_id(id: u8) -> Option<Hash> {
        Hash::ALL.into_iter().find(|hash| hash.id() == id)
    }

    pub fn id(self) -> u8 {
        self as u8
    }

    pub fn name(self) -> &'static str {
        match self {
            Hash::Sha256 => "sha256",
            Hash::Sha384 => "sha384",
            Hash::Sha512 => "sha512",
        }
    }

    /// Finds a hash by its name, as in configuration files.
    pub fn named(name: &str) -> Option<Hash> {
        Hash::ALL.into_iter().find(|hash| hash.name() == name)
    }

    /// Bytes of a hash (HL).
    pub fn bytes(self) -> usize {
        match self {
            Hash::Sha256 => 32,
            Hash::Sha384 => 48,
            Hash::Sha512 => HASH_BYTES_MAX,
        }
    }

    pub fn digest(self, data: &[u8]) -> Digest {
        match self {
            Hash::Sha256 => Digest::new(&Sha256::digest(data)),
            Hash::Sha384 => Digest::new(&Sha384::digest(data)),
            Hash::Sha512 => Digest::new(&Sha512::digest(data)),
        }
    }

    /// HMAC (RFC 2104) over the parts in a row.
    pub fn hmac(self, key: &[u8], parts: &[&[u8]]) -> Digest {
        match self {
            Hash::Sha256 => hmac::<Hmac<Sha256>>(key, parts),
            Hash::Sha384 => hmac::<Hmac<Sha384>>(key, parts),
            Hash::Sha512 => hmac::<Hmac<Sha512>>(key, parts),
        }
    }
}

fn hmac<M: Mac + KeyInit>(key: &[u8], parts: &[&[u8]]) -> Digest {
    let mut mac = <M as KeyInit>::new_from_slice(key).expect("HMAC takes keys of any length");
    for part in parts {
        mac.update(part);
    }
    Digest::new(&mac.finalize().into_bytes())
}

/// A hash or HMAC. Compared in constant time, zeroed when dropped, never printed.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct Digest {
    bytes: [u8; HASH_BYTES_MAX],
    length: usize,
}

impl Digest {
    fn new(hash: &[u8]) -> Digest {
        let mut bytes = [0; HASH_BYTES_MAX];
        bytes[..hash.len()].copy_from_slice(hash);
        Digest { bytes, length: hash.len() }
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// Returns whether `other` is the same, in a time that tells nothing of where they differ.
    pub fn matches(&self, other: &[u8]) -> bool {
        self.as_bytes().ct_eq(other).into()
    }
}

impl std::fmt::Debug for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Digest(hidden)")
    }
}

/// Role of the end that answers a challenge: the literal that goes into its response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// R1: "HostHost", the host's NQN, then the subsystem's.
    Host,
    /// R2: "Controller", the subsystem's NQN, then the host's.
    Controller,
}

/// The inputs of a response, except the key (base, sections 8.13.5.4 and 8.13.5.5).
pub struct Question<'a> {
    pub hash: Hash,
    /// C1 or C2.
    pub challenge: &'a [u8],
    /// KS, where a group other than NULL was used.
    pub session_key: Option<&'a Digest>,
    /// S1 or S2.
    pub sequence: u32,
    pub transaction: u16,
    pub host_nqn: &'a str,
    pub subsystem_nqn: &'a str,
}

impl Question<'_> {
    /// R1 or R2. With a session key the challenge is augmented first: Ca = HMAC(KS, C). SC_C is 0: no secure
    /// channel is concatenated.
    pub fn answer(&self, key: &[u8], role: Role) -> Digest {
        let augmented = self.session_key.map(|ks| self.hash.hmac(ks.as_bytes(), &[self.challenge]));
        let challenge = augmented.as_ref().map_or(self.challenge, Digest::as_bytes);
        let (literal, first, second) = match role {
            Role::Host => ("HostHost", self.host_nqn, self.subsystem_nqn),
            Role::Controller => ("Controller", self.subsystem_nqn, self.host_nqn),
        };
        self.hash.hmac(
            key,
            &[
                challenge,
                &self.sequence.to_le_bytes(),
                &self.transaction.to_le_bytes(),
                &[0],
                literal.as_bytes(),
                first.as_bytes(),
                &[0],
                second.as_bytes(),
            ],
        )
    }
}
