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
    /// Examined at.
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
