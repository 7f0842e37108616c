//! NVMe Qualified Names (base, section 4.5): the identities of hosts and subsystems.

use std::fmt;
use std::str::FromStr;

/// The subsystem that every discovery controller answers to (base, section 3.1.2.3).
pub const DISCOVERY: &str = "nqn.2014-08.org.nvmexpress.discovery";

/// Longest name, bytes, without the zero that ends it in a field.
pub const BYTES_MAX: usize = 223;

/// A field that holds a name: UTF-8, ended by a zero.
pub type NqnField = [u8; 256];

/// `nqn.yyyy-mm.` and what follows: a domain in reverse and, for most, a colon and a string of its owner's. Names
/// compare byte by byte.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Nqn(Box<str>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NqnError {
    #[error("a name of {0} bytes, where {BYTES_MAX} may be")]
    TooLong(usize),
    #[error("no zero ends the name within its 256 bytes")]
    Unended,
    #[error("not UTF-8 from byte {0} on")]
    NotUtf8(usize),
    #[error("a control character at byte {0}")]
    Control(usize),
    #[error("not of the form nqn.yyyy-mm.domain-in-reverse:name, as nqn.2014-08.org.example:disk1 is")]
    Form,
}

impl Nqn {
    pub fn new(name: &str) -> Result<Nqn, NqnError> {
        if name.len() > BYTES_MAX {
            return Err(NqnError::TooLong(name.len()));
        }
        if let Some((at, _)) = name.char_indices().find(|(_, character)| character.is_control()) {
            return Err(NqnError::Control(at));
        }
        if !well_formed(name.as_bytes()) {
            return Err(NqnError::Form);
        }
        Ok(Nqn(name.into()))
    }

    pub fn discovery() -> Nqn {
        Nqn(DISCOVERY.into())
    }

    /// The name of what has this UUID and no domain (base, section 4.5: the second form).
    pub fn from_uuid(uuid: [u8; 16]) -> Nqn {
        let hex: Vec<String> = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
        let groups = [&hex[..4], &hex[4..6], &hex[6..8], &hex[8..10], &hex[10..]].map(<[String]>::concat);
        Nqn(format!("nqn.2014-08.org.nvmexpress:uuid:{}", groups.join("-")).into())
    }

    /// Parses the name in a field of 256 bytes.
    pub fn from_field(field: &NqnField) -> Result<Nqn, NqnError> {
        let end = field.iter().position(|byte| *byte == 0).ok_or(NqnError::Unended)?;
        let name = std::str::from_utf8(&field[..end]).map_err(|e| NqnError::NotUtf8(e.valid_up_to()))?;
        Nqn::new(name)
    }

    pub fn to_field(&self) -> NqnField {
        let mut field = [0; 256];
        field[..self.0.len()].copy_from_slice(self.0.as_bytes());
        field
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn is_discovery(&self) -> bool {
        self.as_str() == DISCOVERY
    }
}

/// `nqn.`, a year, `-`, a month, `.`, and at least one byte more.
fn well_formed(name: &[u8]) -> bool {
    let digits = |range: std::ops::Range<usize>| name[range].iter().all(u8::is_ascii_digit);
    name.len() > 12
        && name.starts_with(b"nqn.")
        && digits(4..8)
        && name[8] == b'-'
        && digits(9..11)
        && (*b"01"..=*b"12").contains(&[name[9], name[10]])
        && name[11] == b'.'
}

impl FromStr for Nqn {
    type Err = NqnError;

    fn from_str(name: &str) -> Result<Nqn, NqnError> {
        Nqn::new(name)
    }
}

impl fmt::Display for Nqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl AsRef<str> for Nqn {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_either_form_pass() {
        for name in [DISCOVERY, "nqn.2016-06.io.spdk:cnode1", "nqn.2014-08.org.example:π", "nqn.1999-12.x"] {
            let nqn = Nqn::new(name).unwrap();
            assert_eq!(nqn.as_str(), name);
            assert_eq!(Nqn::from_field(&nqn.to_field()), Ok(nqn));
        }
        let uuid = *b"\x01\x23\x45\x67\x89\xab\xcd\xef\x01\x23\x45\x67\x89\xab\xcd\xef";
        let name = "nqn.2014-08.org.nvmexpress:uuid:01234567-89ab-cdef-0123-456789abcdef";
        assert_eq!(Nqn::from_uuid(uuid).as_str(), name);
        assert_eq!(Nqn::new(name), Ok(Nqn::from_uuid(uuid)));
    }

    #[test]
    fn what_is_no_name_says_why() {
        for name in [
            "",
            "nqn.",
            "iqn.2014-08.org:x",
            "nqn.2014-13.org",
            "nqn.2014-00.org",
            "nqn.20x4-08.org",
            "nqn.2014-08.",
        ] {
            assert_eq!(Nqn::new(name), Err(NqnError::Form), "{name}");
        }
        assert_eq!(Nqn::new("nqn.2014-08.a\nb"), Err(NqnError::Control(13)));
        let longest = format!("nqn.2014-08.{}", "x".repeat(BYTES_MAX - 12));
        assert!(Nqn::new(&longest).is_ok());
        assert_eq!(Nqn::new(&(longest + "x")), Err(NqnError::TooLong(224)));
    }

    #[test]
    fn a_field_needs_its_zero_and_utf8() {
        assert_eq!(Nqn::from_field(&[b'n'; 256]), Err(NqnError::Unended));
        let mut field = Nqn::discovery().to_field();
        field[20] = 0xff;
        assert_eq!(Nqn::from_field(&field), Err(NqnError::NotUtf8(20)));
        assert_eq!(Nqn::from_field(&[0; 256]), Err(NqnError::Form));
    }
}
