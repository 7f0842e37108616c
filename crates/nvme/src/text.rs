//! ASCII fields of fixed size, padded with spaces (base, section 1.4.2: "ASCII string").

use crate::layout::{Shape, Shaped};
use std::fmt;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// `N` bytes, left-justified.
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(transparent)]
pub struct Text<const N: usize>(pub [u8; N]);

impl<const N: usize> Text<N> {
    /// Cut to `N` bytes; what isn't printable ASCII becomes a question mark.
    pub fn new(text: &str) -> Text<N> {
        let mut bytes = [b' '; N];
        for (place, character) in bytes.iter_mut().zip(text.chars()) {
            *place = printable(u8::try_from(character).unwrap_or(b'?')) as u8;
        }
        Text(bytes)
    }

    /// Up to the first zero (peers pad with them, too), without the spaces at its end; safe to print.
    pub fn text(&self) -> String {
        let text = self.0.split(|byte| *byte == 0).next().unwrap_or_default();
        text.trim_ascii_end().iter().map(|byte| printable(*byte)).collect()
    }
}

fn printable(byte: u8) -> char {
    if byte == b' ' || byte.is_ascii_graphic() {
        char::from(byte)
    } else {
        '?'
    }
}

impl<const N: usize> fmt::Display for Text<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text())
    }
}

impl<const N: usize> fmt::Debug for Text<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.text(), f)
    }
}

impl<const N: usize> Shaped for Text<N> {
    const SHAPE: Shape = Shape::Text;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding_goes_and_what_cannot_be_printed_becomes_a_question_mark() {
        assert_eq!(Text::<8>::new("ab c").0, *b"ab c    ");
        assert_eq!(Text::<8>::new("ab c").text(), "ab c");
        assert_eq!(Text::<4>::new("too long").text(), "too ".trim_end());
        assert_eq!(Text::<4>::new("é\n\u{1f600}x").0, *b"???x");
        assert_eq!(Text(*b"a\x1b\xffb \0ju").text(), "a??b");
        assert_eq!(Text([0; 4]).text(), "");
    }
}
