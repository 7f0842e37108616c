//! The messages that Authentication Send and Authentication Receive carry (base, sections 8.13.4 and 8.13.5).
//!
//! All numbers are little endian, DH values big endian. What follows a message in its buffer is ignored: a receiver
//! may have asked for more than there was to say, and Linux's target then pads with zeros.

use super::group::Group;
use super::hash::Hash;

/// Bytes that no message exceeds, and for which a host asks (AL).
pub const MESSAGE_BYTES_MAX: usize = 4096;

const COMMON: u8 = 0x00;
const DH_HMAC_CHAP: u8 = 0x01;

/// AUTH_TYPE and AUTH_ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Negotiate,
    Challenge,
    Reply,
    Success1,
    Success2,
    Failure1,
    Failure2,
}

impl Kind {
    const TABLE: [(Kind, u8, u8); 7] = [
        (Kind::Negotiate, COMMON, 0x00),
        (Kind::Challenge, DH_HMAC_CHAP, 0x01),
        (Kind::Reply, DH_HMAC_CHAP, 0x02),
        (Kind::Success1, DH_HMAC_CHAP, 0x03),
        (Kind::Success2, DH_HMAC_CHAP, 0x04),
        (Kind::Failure2, COMMON, 0xf0),
        (Kind::Failure1, COMMON, 0xf1),
    ];

    /// None where the bytes are no message of this protocol.
    pub fn from_bytes(bytes: &[u8]) -> Option<Kind> {
        let (kind, id) = (*bytes.first()?, *bytes.get(1)?);
        Kind::TABLE.iter().find(|row| (row.1, row.2) == (kind, id)).map(|row| row.0)
    }

    /// AUTH_TYPE, AUTH_ID, two reserved bytes, T_ID.
    fn header(self, transaction: u16) -> Vec<u8> {
        let (_, kind, id) = Kind::TABLE[Kind::TABLE.iter().position(|row| row.0 == self).unwrap_or(0)];
        let [low, high] = transaction.to_le_bytes();
        vec![kind, id, 0, 0, low, high]
    }
}

/// T_ID, at the same place in every message.
pub fn transaction(bytes: &[u8]) -> Option<u16> {
    Some(u16::from_le_bytes([*bytes.get(4)?, *bytes.get(5)?]))
}

/// Reason Code Explanation of AUTH_Failure1 and AUTH_Failure2 (the Reason Code is always 01h, authentication failure).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Explanation(pub u8);

impl Explanation {
    pub const FAILED: Explanation = Explanation(0x01);
    pub const PROTOCOL_NOT_USABLE: Explanation = Explanation(0x02);
    pub const CONCATENATION_MISMATCH: Explanation = Explanation(0x03);
    pub const HASH_NOT_USABLE: Explanation = Explanation(0x04);
    pub const GROUP_NOT_USABLE: Explanation = Explanation(0x05);
    pub const INCORRECT_PAYLOAD: Explanation = Explanation(0x06);
    pub const INCORRECT_MESSAGE: Explanation = Explanation(0x07);
}

impl std::fmt::Display for Explanation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match *self {
            Explanation::FAILED => "authentication failed",
            Explanation::PROTOCOL_NOT_USABLE => "authentication protocol not usable",
            Explanation::CONCATENATION_MISMATCH => "secure channel concatenation mismatch",
            Explanation::HASH_NOT_USABLE => "hash function not usable",
            Explanation::GROUP_NOT_USABLE => "DH group not usable",
            Explanation::INCORRECT_PAYLOAD => "incorrect payload",
            Explanation::INCORRECT_MESSAGE => "incorrect protocol message",
            Explanation(other) => return write!(f, "reason {other:#04x}"),
        })
    }
}

/// AUTH_Negotiate (base, section 8.13.4.1), reduced to what DH-HMAC-CHAP needs. The lists keep the host's order and
/// leave out what we don't know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Negotiate {
    pub transaction: u16,
    /// SC_C: 0 where no secure channel is to follow.
    pub concatenation: u8,
    pub hashes: Vec<Hash>,
    pub groups: Vec<Group>,
}

/// Bytes of an authentication protocol descriptor, and of each of its two lists.
const DESCRIPTOR: usize = 64;
const LIST: usize = 30;

impl Negotiate {
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Kind::Negotiate.header(self.transaction);
        bytes.extend([self.concatenation, 1]);
        let mut descriptor = [0; DESCRIPTOR];
        descriptor[0] = DH_HMAC_CHAP;
        (descriptor[2], descriptor[3]) =
            (self.hashes.len().min(LIST) as u8, self.groups.len().min(LIST) as u8);
        for (slot, hash) in descriptor[4..4 + LIST].iter_mut().zip(&self.hashes) {
            *slot = hash.id();
        }
        for (slot, group) in descriptor[4 + LIST..].iter_mut().zip(&self.groups) {
            *slot = group.id();
        }
        bytes.extend(descriptor);
        bytes
    }

    pub fn decode(bytes: &[u8]) -> Result<Negotiate, Explanation> {
        let header = bytes.first_chunk::<8>().ok_or(Explanation::INCORRECT_PAYLOAD)?;
        let count = usize::from(header[7]);
        let descriptors = bytes[8..].get(..count * DESCRIPTOR).ok_or(Explanation::INCORRECT_PAYLOAD)?;
        let descriptor = descriptors
            .chunks_exact(DESCRIPTOR)
            .find(|descriptor| descriptor[0] == DH_HMAC_CHAP)
            .ok_or(Explanation::PROTOCOL_NOT_USABLE)?;
        let (hashes, groups) = (usize::from(descriptor[2]), usize::from(descriptor[3]));
        if hashes > LIST || groups > LIST {
            return Err(Explanation::INCORRECT_PAYLOAD);
        }
        Ok(Negotiate {
            transaction: u16::from_le_bytes([header[4], header[5]]),
            concatenation: header[6],
            hashes: descriptor[4..4 + hashes].iter().filter_map(|&id| Hash::from_id(id)).collect(),
            groups: descriptor[4 + LIST..4 + LIST + groups]
                .iter()
                .filter_map(|&id| Group::from_id(id))
                .collect(),
        })
    }
}

/// DH-HMAC-CHAP_Challenge (base, section 8.13.5.3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Challenge<'a> {
    pub transaction: u16,
    pub hash: Hash,
    pub group: Group,
    pub sequence: u32,
    /// C1, as long as the hash.
    pub challenge: &'a [u8],
    /// g^x mod p; empty with the NULL group.
    pub public: &'a [u8],
}

impl<'a> Challenge<'a> {
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Kind::Challenge.header(self.transaction);
        bytes.extend([self.hash.bytes() as u8, 0, self.hash.id(), self.group.id()]);
        bytes.extend((self.public.len() as u16).to_le_bytes());
        bytes.extend(self.sequence.to_le_bytes());
        bytes.extend(self.challenge);
        bytes.extend(self.public);
        bytes
    }

    pub fn decode(bytes: &'a [u8]) -> Result<Challenge<'a>, Explanation> {
        let (header, rest) = bytes.split_first_chunk::<16>().ok_or(Explanation::INCORRECT_PAYLOAD)?;
        let hash = Hash::from_id(header[8]).ok_or(Explanation::HASH_NOT_USABLE)?;
        let group = Group::from_id(header[9]).ok_or(Explanation::GROUP_NOT_USABLE)?;
        let public = usize::from(u16::from_le_bytes([header[10], header[11]]));
        if usize::from(header[6]) != hash.bytes() || public != group.public_bytes() {
            return Err(Explanation::INCORRECT_PAYLOAD);
        }
        let (challenge, rest) = split(rest, hash.bytes())?;
        let (public, _) = split(rest, public)?;
        let sequence = u32::from_le_bytes([header[12], header[13], header[14], header[15]]);
        let transaction = u16::from_le_bytes([header[4], header[5]]);
        Ok(Challenge { transaction, hash, group, sequence, challenge, public })
    }
}

/// DH-HMAC-CHAP_Reply (base, section 8.13.5.4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply<'a> {
    pub transaction: u16,
    /// S2; 0 where the controller isn't challenged.
    pub sequence: u32,
    /// R1.
    pub response: &'a [u8],
    /// C2, where the controller is to prove itself too.
    pub challenge: Option<&'a [u8]>,
    /// g^y mod p; empty with the NULL group.
    pub public: &'a [u8],
}

impl<'a> Reply<'a> {
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Kind::Reply.header(self.transaction);
        bytes.extend([self.response.len() as u8, 0, u8::from(self.challenge.is_some()), 0]);
        bytes.extend((self.public.len() as u16).to_le_bytes());
        bytes.extend(self.sequence.to_le_bytes());
        bytes.extend(self.response);
        match self.challenge {
            Some(challenge) => bytes.extend(challenge),
            None => bytes.resize(bytes.len() + self.response.len(), 0),
        }
        bytes.extend(self.public);
        bytes
    }

    /// Reads a reply to a challenge with this hash and group.
    pub fn decode(bytes: &'a [u8], hash: Hash, group: Group) -> Result<Reply<'a>, Explanation> {
        let (header, rest) = bytes.split_first_chunk::<16>().ok_or(Explanation::INCORRECT_PAYLOAD)?;
        let public = usize::from(u16::from_le_bytes([header[10], header[11]]));
        if usize::from(header[6]) != hash.bytes() || public != group.public_bytes() {
            return Err(Explanation::INCORRECT_PAYLOAD);
        }
        let sequence = u32::from_le_bytes([header[12], header[13], header[14], header[15]]);
        let (response, rest) = split(rest, hash.bytes())?;
        let (challenge, rest) = split(rest, hash.bytes())?;
        let (public, _) = split(rest, public)?;
        let challenge = match header[8] {
            0 => None,
            // S2 = 0 would mean that C2 only serves a secure channel, which nobody asked for.
            1 if sequence != 0 => Some(challenge),
            _ => return Err(Explanation::INCORRECT_PAYLOAD),
        };
        Ok(Reply {
            transaction: u16::from_le_bytes([header[4], header[5]]),
            sequence,
            response,
            challenge,
            public,
        })
    }
}

/// DH-HMAC-CHAP_Success1 (base, section 8.13.5.5).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Success1<'a> {
    pub transaction: u16,
    pub hash: Hash,
    /// R2, where the controller was challenged.
    pub response: Option<&'a [u8]>,
}

impl<'a> Success1<'a> {
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Kind::Success1.header(self.transaction);
        bytes.extend([self.hash.bytes() as u8, 0, u8::from(self.response.is_some())]);
        bytes.extend([0; 7]);
        bytes.extend(self.response.unwrap_or_default());
        bytes
    }

    pub fn decode(bytes: &'a [u8], hash: Hash) -> Result<Success1<'a>, Explanation> {
        let (header, rest) = bytes.split_first_chunk::<16>().ok_or(Explanation::INCORRECT_PAYLOAD)?;
        let response = match header[8] {
            0 => None,
            1 => Some(split(rest, hash.bytes())?.0),
            _ => return Err(Explanation::INCORRECT_PAYLOAD),
        };
        if usize::from(header[6]) != hash.bytes() {
            return Err(Explanation::INCORRECT_PAYLOAD);
        }
        Ok(Success1 { transaction: u16::from_le_bytes([header[4], header[5]]), hash, response })
    }
}

/// DH-HMAC-CHAP_Success2 (base, section 8.13.5.6).
pub fn encode_success2(transaction: u16) -> Vec<u8> {
    let mut bytes = Kind::Success2.header(transaction);
    bytes.resize(16, 0);
    bytes
}

/// AUTH_Failure1, from the controller, or AUTH_Failure2, from the host (base, sections 8.13.4.2 and 8.13.4.3).
pub fn encode_failure(kind: Kind, transaction: u16, explanation: Explanation) -> Vec<u8> {
    let mut bytes = kind.header(transaction);
    bytes.extend([0x01, explanation.0]);
    bytes
}

/// The explanation in an AUTH_Failure1 or AUTH_Failure2.
pub fn decode_failure(bytes: &[u8]) -> Result<Explanation, Explanation> {
    bytes.get(7).map(|&code| Explanation(code)).ok_or(Explanation::INCORRECT_PAYLOAD)
}

fn split(bytes: &[u8], length: usize) -> Result<(&[u8], &[u8]), Explanation> {
    bytes.split_at_checked(length).ok_or(Explanation::INCORRECT_PAYLOAD)
}
