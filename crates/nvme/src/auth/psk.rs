//! Pre-shared keys of TLS 1.3 for NVMe/TCP (tcp, sections 3.6.1.2 and 3.6.1.3): their interchange form, the retained
//! key, and from it the identity and the key of a session.

use super::hash::{Digest, Hash};
use super::secret::{decode_with_crc, encode_with_crc, SecretError};
use base64::engine::general_purpose::STANDARD;
use base64::Engine as _;
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

/// A configured PSK, from `NVMeTLSkey-1:hh:BASE64:`. Zeroed when dropped, never printed but by `to_text`.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct ConfiguredPsk {
    key: Vec<u8>,
    #[zeroize(skip)]
    transform: Option<Hash>,
}

/// Why a text is no PSK.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PskError {
    #[error("a TLS key begins with NVMeTLSkey-1:00:, NVMeTLSkey-1:01: or NVMeTLSkey-1:02:")]
    Prefix,
    #[error("a TLS key for SHA-256 has 32 bytes, for SHA-384 48")]
    Length,
    #[error("the two names are too long for a PSK identity of version 0; use version 1")]
    Context,
    #[error(transparent)]
    Key(#[from] SecretError),
}

impl ConfiguredPsk {
    /// Reads the interchange form; the last colon may be absent, white space around is ignored.
    pub fn parse(text: &str) -> Result<ConfiguredPsk, PskError> {
        let (transform, encoded) =
            match text.trim().strip_prefix("NVMeTLSkey-1:").and_then(|rest| rest.split_once(':')) {
                Some(("00", encoded)) => (None, encoded),
                Some(("01", encoded)) => (Some(Hash::Sha256), encoded),
                Some(("02", encoded)) => (Some(Hash::Sha384), encoded),
                _ => return Err(PskError::Prefix),
            };
        let key = decode_with_crc(encoded, &[32, 48])?;
        if transform.is_some_and(|hash| hash.bytes() != key.len()) {
            return Err(PskError::Length);
        }
        Ok(ConfiguredPsk { key, transform })
    }

    /// A new key from uniform random bytes, transformed with the hash of this length. None for SHA-512, which has no
    /// cipher suite here.
    pub fn generate(hash: Hash, random: &[u8; 64]) -> Option<ConfiguredPsk> {
        let key = random[..hash.bytes()].to_vec();
        (hash != Hash::Sha512).then_some(ConfiguredPsk { key, transform: Some(hash) })
    }

    pub fn to_text(&self) -> Zeroizing<String> {
        let encoded = encode_with_crc(&self.key);
        Zeroizing::new(format!(
            "NVMeTLSkey-1:{:02}:{}:",
            self.transform.map_or(0, Hash::id),
            encoded.as_str()
        ))
    }

    /// The hash of the cipher suite: TLS_AES_128_GCM_SHA256 for 32 bytes, TLS_AES_256_GCM_SHA384 for 48.
    pub fn suite(&self) -> Hash {
        if self.key.len() == Hash::Sha256.bytes() {
            Hash::Sha256
        } else {
            Hash::Sha384
        }
    }

    /// HKDF-Expand-Label(HKDF-Extract(0, configured PSK), "HostNQN", NQNh, its own length), or the key as it is.
    fn retained(&self, host_nqn: &str) -> Result<Zeroizing<Vec<u8>>, PskError> {
        match self.transform {
            None => Ok(Zeroizing::new(self.key.clone())),
            Some(hash) => expand(hash, &extract(hash, &self.key), "HostNQN", host_nqn.as_bytes()),
        }
    }

    /// Identity and key for this host and subsystem.
    pub fn session(&self, version: Version, host_nqn: &str, subsystem_nqn: &str) -> Result<TlsPsk, PskError> {
        let hash = self.suite();
        let retained = self.retained(host_nqn)?;
        let suite = hash.id();
        let (identity, context) = match version {
            Version::V0 => {
                let identity = format!("NVMe0R{suite:02} {host_nqn} {subsystem_nqn}");
                (identity.clone(), identity)
            }
            Version::V1 => {
                let parts = [host_nqn.as_bytes(), b" ", subsystem_nqn.as_bytes(), b" NVMe-over-Fabrics"];
                let digest = STANDARD.encode(hash.hmac(&retained, &parts).as_bytes());
                (
                    format!("NVMe1R{suite:02} {host_nqn} {subsystem_nqn} {digest}"),
                    format!("{suite:02} {digest}"),
                )
            }
        };
        let key = expand(hash, &extract(hash, &retained), "nvme-tls-psk", context.as_bytes())?;
        Ok(TlsPsk { identity, key, suite: hash })
    }
}

impl std::fmt::Debug for ConfiguredPsk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ConfiguredPsk(hidden)")
    }
}

/// The version in a PSK identity: 1 carries a digest, so that a wrong key is found before the handshake's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    V0,
    V1,
}

/// Key for a TLS library.
#[derive(Clone)]
pub struct TlsPsk {
    /// `NVMe0R01 HOSTNQN SUBSYSNQN`, or with version 1 a digest behind.
    pub identity: String,
    pub key: Zeroizing<Vec<u8>>,
    pub suite: Hash,
}

/// HKDF-Extract with a salt of zeros (RFC 5869, section 2.2).
fn extract(hash: Hash, input: &[u8]) -> Digest {
    hash.hmac(&[], &[input])
}

/// HKDF-Expand-Label (RFC 8446, section 7.1), for as many bytes as the hash has: one block of HKDF-Expand.
fn expand(hash: Hash, key: &Digest, label: &str, context: &[u8]) -> Result<Zeroizing<Vec<u8>>, PskError> {
    let length = (hash.bytes() as u16).to_be_bytes();
    let label = format!("tls13 {label}");
    let context_length = u8::try_from(context.len()).map_err(|_| PskError::Context)?;
    let parts: [&[u8]; 6] =
        [&length, &[label.len() as u8], label.as_bytes(), &[context_length], context, &[1]];
    Ok(Zeroizing::new(hash.hmac(key.as_bytes(), &parts).as_bytes().to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn untransformed(key: &[u8]) -> ConfiguredPsk {
        ConfiguredPsk { key: key.to_vec(), transform: None }
    }

    #[test]
    fn keys_are_read_and_written() {
        // The key that libnvme's tests use.
        let text = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";
        let psk = ConfiguredPsk::parse(text).expect("a well-formed key");
        assert_eq!(psk.to_text().as_str(), text);
        assert_eq!(psk.suite(), Hash::Sha256);
        assert_eq!(format!("{psk:?}"), "ConfiguredPsk(hidden)");
        assert!(matches!(ConfiguredPsk::parse(&text.replace(":01:", ":02:")), Err(PskError::Length)));
        assert!(matches!(ConfiguredPsk::parse(&text.replace(":01:", ":03:")), Err(PskError::Prefix)));
        assert!(matches!(
            ConfiguredPsk::parse(&text.replace("LrZ", "LrY")),
            Err(PskError::Key(SecretError::Crc))
        ));
        let made = ConfiguredPsk::generate(Hash::Sha384, &[9; 64]).expect("SHA-384 has a suite");
        assert_eq!(ConfiguredPsk::parse(&made.to_text()).expect("our own").key, made.key);
        assert!(ConfiguredPsk::generate(Hash::Sha512, &[9; 64]).is_none());
    }

    /// The values of Linux's KUnit test for the names `hostnqn` and `subsysnqn` (drivers/nvme/common).
    // promise: AUT-8
    #[test]
    fn version_1_derives_what_linux_does() {
        let psk = untransformed(&[
            0x17, 0x33, 0xc5, 0x9f, 0xa7, 0xf4, 0x8f, 0xcf, 0x37, 0xf5, 0xf2, 0x6f, 0xc4, 0xff, 0x02, 0x68,
            0xad, 0x4f, 0x78, 0xe0, 0x30, 0xf4, 0xf3, 0xb0, 0xbf, 0xd1, 0xd4, 0x7e, 0x7b, 0xb1, 0x44, 0x7a,
        ]);
        let session = psk.session(Version::V1, "hostnqn", "subsysnqn").expect("short names");
        assert_eq!(
            session.identity,
            "NVMe1R01 hostnqn subsysnqn OldoKuTfKddMuyCznAZojkWD7P4D9/AtzDzLimtOxqI="
        );
        assert_eq!(hex(&session.key), "3c17da628474a04d2247c4cab47968c915388193f7c071bd9489cc3666cd7cc8");
        let psk = untransformed(&[
            0xf1, 0x4b, 0x2d, 0xd3, 0x23, 0x4c, 0x45, 0x96, 0x94, 0xd3, 0xbc, 0x63, 0xf8, 0x96, 0x8b, 0xd6,
            0xb3, 0x7c, 0x2c, 0x6d, 0xe8, 0x49, 0xe2, 0x2e, 0x11, 0x87, 0x49, 0x00, 0x1c, 0xe4, 0xbb, 0xe8,
            0x64, 0x0b, 0x9e, 0x3a, 0x74, 0x8c, 0xb1, 0x1c, 0xe4, 0xb1, 0xd7, 0x1d, 0x35, 0x9c, 0xce, 0x39,
        ]);
        let session = psk.session(Version::V1, "hostnqn", "subsysnqn").expect("short names");
        assert!(session
            .identity
            .ends_with(" cffMWk8TSS7HOQebjgYEIkrPrjWPV4JE5cdPB8WhEvY4JBW5YynKyv66XscN4A9n"));
        assert_eq!(
            hex(&session.key),
            "2774753233537b3fa50eb7d16a8e43457d85f4906c005b2236616c5d80939d0898fff15bb8b77119d2be0aac423e7590"
        );
    }

    /// Python: hmac.new(zeros, key) is the first extract; each expand is hmac.new(prk, HkdfLabel + b"\1").
    // promise: AUT-8
    #[test]
    fn version_0_derives_what_python_does() {
        let psk = ConfiguredPsk::parse("NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:");
        let session = psk.expect("a key").session(Version::V0, "hostnqn", "subsysnqn").expect("short names");
        assert_eq!(session.identity, "NVMe0R01 hostnqn subsysnqn");
        assert_eq!(hex(&session.key), "14111fef9f762c98e5555d0ffbd42849f1c6abb54e29c63d19b3135143813d9b");
        assert!(matches!(
            untransformed(&[1; 32]).session(Version::V0, &"h".repeat(223), &"s".repeat(223)),
            Err(PskError::Context)
        ));
        assert!(untransformed(&[1; 32]).session(Version::V1, &"h".repeat(223), &"s".repeat(223)).is_ok());
    }
}
