//! Text in a controller's responses.

use super::super::Failure;
use crate::fabrics::InvalidParameter;
use crate::identify::BYTES;
use crate::nqn;

/// All of an answer of 4096 bytes.
pub(super) fn whole<'a>(asked: &str, data: &'a [u8]) -> Result<&'a [u8; BYTES], Failure> {
    data.first_chunk().ok_or_else(|| {
        Failure::protocol(asked, format!("{} bytes came, where {BYTES} were asked for", data.len()))
    })
}

/// A name's field. What may stand in it is the controller's to judge, but for its length.
pub(super) fn field(name: &str) -> Result<nqn::NqnField, Failure> {
    let mut field = [0; 256];
    if name.is_empty() || name.len() > nqn::BYTES_MAX || name.contains('\0') {
        let found = format!("a name of 1 to {} bytes is needed", nqn::BYTES_MAX);
        return Err(Failure::refused(format!("to connect with the name '{name}'"), found));
    }
    field[..name.len()].copy_from_slice(name.as_bytes());
    Ok(field)
}

/// The text that a controller wrote into a name's field, safe to print.
pub(super) fn text(field: &nqn::NqnField) -> String {
    let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
    String::from_utf8_lossy(&field[..end]).chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// The parameter that a controller finds wrong, by its place.
pub(super) fn parameter(wrong: InvalidParameter, subsystem_nqn: &str, host_nqn: &str) -> String {
    match wrong {
        InvalidParameter::Data(0..=15) => "the host identifier".into(),
        InvalidParameter::Data(16..=17) => "the controller identifier".into(),
        InvalidParameter::Data(256..=511) => {
            format!("the subsystem name {subsystem_nqn} (is it spelled right?)")
        }
        InvalidParameter::Data(512..=767) => format!("the host name {host_nqn}"),
        InvalidParameter::Data(at) => format!("byte {at} of the Connect data"),
        InvalidParameter::Command(42..=43) => "the queue identifier".into(),
        InvalidParameter::Command(44..=45) => "the queue size".into(),
        InvalidParameter::Command(at) => format!("byte {at} of the Connect command"),
    }
}
