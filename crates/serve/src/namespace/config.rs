//! A namespace as a configuration names it.

use forebay_model::Error;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Namespace {
    /// 0: the lowest that is free.
    pub nsid: u32,
    /// As for every verb: a file, a block device, stripe:, nil:, model:.
    pub source: String,
    pub writable: bool,
    /// Logical block: 512 or 4096.
    pub block_bytes: Option<u32>,
    /// Names its content, the same on every path to it. None: made from the subsystem's NQN and the nsid.
    pub uuid: Option<String>,
    /// Its group, of which the subsystem's `ana` says how hosts reach it: 1 to 128. None: 1.
    pub ana_group: Option<u32>,
    pub cache: Caching,
    /// Faults on purpose, to see what hosts make of them: `seed=1,error=0.01,delay_us=500` (docs/bench.md).
    pub faults: Option<String>,
}

/// Use of the page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Caching {
    /// Past it (O_DIRECT) where the file system offers that for these blocks, else through it.
    #[default]
    Auto,
    Bypass,
    Allow,
}

/// Sixteen bytes as they are written, with or without hyphens.
pub(crate) fn parse_uuid(text: &str) -> Result<[u8; 16], Error> {
    let wrong = || {
        let next = "32 hexadecimal digits, as uuidgen makes";
        Error::request(format!("uuid = \"{text}\""), "is not a UUID", next)
    };
    let digits: Vec<u8> = text
        .bytes()
        .filter(|b| *b != b'-')
        .map(|b| (b as char).to_digit(16).map(|d| d as u8).ok_or_else(wrong))
        .collect::<Result<_, _>>()?;
    let mut uuid = [0; 16];
    if digits.len() != 32 || digits.iter().all(|d| *d == 0) {
        return Err(wrong());
    }
    for (byte, pair) in uuid.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = pair[0] << 4 | pair[1];
    }
    Ok(uuid)
}
