//! DH-HMAC-CHAP secrets and their text form, `DHHC-1:hh:BASE64:` (base, section 8.13.5.8).

use super::hash::{Digest, Hash};
use base64::engine::general_purpose::STANDARD;
use base64::Engine as _;
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

/// A secret as configured: the key, and the hash that transforms it before use. Zeroed when dropped, never printed
/// but by `to_text`.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct Secret {
    key: Vec<u8>,
    #[zeroize(skip)]
    transform: Option<Hash>,
}

/// Why a text is no secret. Says nothing of the key itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    #[error("a secret begins with DHHC-1:00:, DHHC-1:01:, DHHC-1:02: or DHHC-1:03:")]
    Prefix,
    #[error("the key is not Base64")]
    Base64,
    #[error("a key has 32, 48 or 64 bytes and four of CRC-32; this has {0} in all")]
    Length(usize),
    #[error("the CRC-32 does not fit the key: a character is wrong or missing")]
    Crc,
}

impl Secret {
    /// Reads `DHHC-1:hh:BASE64:`; the last colon may be absent, white space around is ignored.
    pub fn parse(text: &str) -> Result<Secret, SecretError> {
        let (transform, encoded) =
            match text.trim().strip_prefix("DHHC-1:").and_then(|rest| rest.split_once(':')) {
                Some(("00", encoded)) => (None, encoded),
                Some(("01", encoded)) => (Some(Hash::Sha256), encoded),
                Some(("02", encoded)) => (Some(Hash::Sha384), encoded),
                Some(("03", encoded)) => (Some(Hash::Sha512), encoded),
                _ => return Err(SecretError::Prefix),
            };
        let key = decode_with_crc(encoded, &[32, 48, 64])?;
        Ok(Secret { key, transform })
    }

    /// A new secret from uniform random bytes: as many as the hash is long, or 32 where the key is used as it is.
    pub fn generate(transform: Option<Hash>, random: &[u8; 64]) -> Secret {
        let length = transform.map_or(32, Hash::bytes);
        Secret { key: random[..length].to_vec(), transform }
    }

    /// `DHHC-1:hh:BASE64:`, as `nvme gen-dhchap-key` prints it.
    pub fn to_text(&self) -> Zeroizing<String> {
        let encoded = encode_with_crc(&self.key);
        Zeroizing::new(format!("DHHC-1:{:02}:{}:", self.transform.map_or(0, Hash::id), encoded.as_str()))
    }

    /// The key for responses: the key itself, or HMAC(key, NQN || "NVMe-over-Fabrics"), with the NQN of the
    /// entity that answers with it.
    pub fn transformed(&self, nqn: &str) -> Transformed {
        Transformed(match self.transform {
            None => Key::Plain(Zeroizing::new(self.key.clone())),
            Some(hash) => Key::Hashed(hash.hmac(&self.key, &[nqn.as_bytes(), b"NVMe-over-Fabrics"])),
        })
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(hidden)")
    }
}

/// A secret made ready for one entity.
pub struct Transformed(Key);

enum Key {
    Plain(Zeroizing<Vec<u8>>),
    Hashed(Digest),
}

impl Transformed {
    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Key::Plain(key) => key,
            Key::Hashed(digest) => digest.as_bytes(),
        }
    }
}

/// Base64 of a key and its CRC-32 (IEEE 802.3), little endian.
pub(super) fn encode_with_crc(key: &[u8]) -> Zeroizing<String> {
    let mut bytes = Zeroizing::new(key.to_vec());
    bytes.extend_from_slice(&crc32fast::hash(key).to_le_bytes());
    Zeroizing::new(STANDARD.encode(&bytes[..]))
}

pub(super) fn decode_with_crc(encoded: &str, lengths: &[usize]) -> Result<Vec<u8>, SecretError> {
    let encoded = encoded.strip_suffix(':').unwrap_or(encoded);
    let bytes = Zeroizing::new(STANDARD.decode(encoded).map_err(|_| SecretError::Base64)?);
    let (key, crc) = bytes.split_last_chunk::<4>().ok_or(SecretError::Length(bytes.len()))?;
    if !lengths.contains(&key.len()) {
        return Err(SecretError::Length(bytes.len()));
    }
    if crc32fast::hash(key) != u32::from_le_bytes(*crc) {
        return Err(SecretError::Crc);
    }
    Ok(key.to_vec())
}
