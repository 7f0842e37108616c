//! Framing of JSON documents in a stream: clients of SPDK and SNAP put nothing between them.

/// Longest request, bytes: some hundred thousand namespaces.
pub(super) const BYTES_MAX: usize = 1 << 20;
/// Deepest nesting.
pub(super) const DEPTH_MAX: u32 = 32;

/// Why the rest of a stream can't be understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    TooLong,
    TooDeep,
    /// Neither an object nor an array, or one that is closed by the other's bracket.
    NoDocument,
}

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Broken::TooLong => write!(f, "a request has more than {BYTES_MAX} bytes"),
            Broken::TooDeep => write!(f, "a request is nested deeper than {DEPTH_MAX}"),
            Broken::NoDocument => f.write_str("what came is no JSON object or array"),
        }
    }
}

/// Splits bytes into whole documents, looking at each byte once.
#[derive(Debug, Default)]
pub struct Frames {
    bytes: Vec<u8>,
    /// Looked at.
    seen: usize,
    /// Brackets that are open.
    open: Vec<u8>,
    in_string: bool,
    escaped: bool,
}

impl Frames {
    pub fn push(&mut self, more: &[u8]) {
        self.bytes.extend_from_slice(more);
    }

    /// The next whole document. None: more bytes are needed. Err: nothing that follows can be found.
    pub fn take(&mut self) -> Result<Option<Vec<u8>>, Broken> {
        if self.open.is_empty() {
            let blank = self.bytes.iter().take_while(|b| b.is_ascii_whitespace()).count();
            self.bytes.drain(..blank);
            self.seen = 0;
        }
        while let Some(&byte) = self.bytes.get(self.seen) {
            if self.seen >= BYTES_MAX {
                return Err(Broken::TooLong);
            }
            self.seen += 1;
            self.step(byte)?;
            if self.open.is_empty() {
                let rest = self.bytes.split_off(self.seen);
                self.seen = 0;
                return Ok(Some(std::mem::replace(&mut self.bytes, rest)));
            }
        }
        Ok(None)
    }

    fn step(&mut self, byte: u8) -> Result<(), Broken> {
        if self.in_string {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' => self.escaped = true,
                b'"' => self.in_string = false,
                _ => {}
            }
            return Ok(());
        }
        match byte {
            b'{' | b'[' if self.open.len() as u32 >= DEPTH_MAX => return Err(Broken::TooDeep),
            b'{' => self.open.push(b'}'),
            b'[' => self.open.push(b']'),
            b'}' | b']' if self.open.pop() != Some(byte) => return Err(Broken::NoDocument),
            b'}' | b']' => {}
            _ if self.open.is_empty() => return Err(Broken::NoDocument),
            b'"' => self.in_string = true,
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(frames: &mut Frames) -> Vec<String> {
        std::iter::from_fn(|| frames.take().unwrap()).map(|d| String::from_utf8(d).unwrap()).collect()
    }

    #[test]
    fn documents_need_nothing_between_them() {
        let mut frames = Frames::default();
        frames.push(b" {\"a\":\"}]\\\"\"}[1,{}]\n{");
        assert_eq!(all(&mut frames), ["{\"a\":\"}]\\\"\"}", "[1,{}]"]);
        frames.push(b"} \r\n");
        assert_eq!(all(&mut frames), ["{}"]);
    }

    #[test]
    fn what_is_no_document_ends_the_stream() {
        for (text, broken) in [
            ("x", Broken::NoDocument),
            ("]", Broken::NoDocument),
            ("{]", Broken::NoDocument),
            ("1", Broken::NoDocument),
        ] {
            let mut frames = Frames::default();
            frames.push(text.as_bytes());
            assert_eq!(frames.take(), Err(broken), "{text}");
        }
        let mut frames = Frames::default();
        frames.push(&[b'['; DEPTH_MAX as usize + 1]);
        assert_eq!(frames.take(), Err(Broken::TooDeep));
        let mut frames = Frames::default();
        frames.push(b"{\"");
        frames.push(&vec![b'x'; BYTES_MAX]);
        assert_eq!(frames.take(), Err(Broken::TooLong));
    }

    proptest! {
        #[test]
        fn cutting_a_stream_elsewhere_finds_the_same(bytes in "[\\[\\]{}\"\\\\ a]{0,60}", cut in 0usize..60) {
            let drain = |frames: &mut Frames| {
                let mut found = Vec::new();
                loop {
                    match frames.take() {
                        Ok(Some(one)) => found.push(Ok(one)),
                        Ok(None) => return found,
                        Err(broken) => { found.push(Err(broken)); return found; }
                    }
                }
            };
            let (mut whole, mut parts) = (Frames::default(), Frames::default());
            whole.push(bytes.as_bytes());
            let cut = cut.min(bytes.len());
            parts.push(&bytes.as_bytes()[..cut]);
            let mut found = drain(&mut parts);
            if !matches!(found.last(), Some(Err(_))) {
                parts.push(&bytes.as_bytes()[cut..]);
                found.extend(drain(&mut parts));
            }
            prop_assert_eq!(found, drain(&mut whole));
        }
    }
}
