//! A walk over TensorFlow's `Example`, a protobuf message, as its bytes come by: every tag and length is looked at, and
//! nothing is copied.
//!
//! `Example { Features features = 1 }`, `Features { map<string, Feature> feature = 1 }` (an entry of a map is a message
//! `{ key = 1; value = 2 }`), `Feature { BytesList = 1 | FloatList = 2 | Int64List = 3 }`, each `{ repeated value = 1 }`
//! (tensorflow/core/example/{example,feature}.proto).

/// Kind of a message at this depth, which tells what its field 1 (and 2) holds.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Message {
    Example,
    Features,
    Entry,
    Feature,
    BytesList,
    /// Float or int64: packed, or one by one.
    Numbers,
}

/// Example, Features, Entry, Feature, a list.
const DEPTH: usize = 5;

#[derive(Clone, Copy, Debug, PartialEq)]
enum ExampleState {
    Tag,
    /// Length of a field with this number.
    Length {
        field: u64,
    },
    /// A varint's value, or a packed list's.
    Number,
    /// Bytes that mean nothing to the walk.
    Skip {
        left: u64,
    },
}

/// Position of a walk in one Example.
pub(crate) struct Walk {
    /// Messages that are open, and where each ends, in bytes from the Example's start.
    open: [(Message, u64); DEPTH],
    depth: usize,
    state: ExampleState,
    at: u64,
    varint: u64,
    varint_bytes: u32,
    /// Bytes of the values, without tags and lengths.
    pub value_bytes: u64,
    pub features: u64,
}

impl Default for Walk {
    fn default() -> Walk {
        Walk {
            open: [(Message::Example, 0); DEPTH],
            depth: 0,
            state: ExampleState::Tag,
            at: 0,
            varint: 0,
            varint_bytes: 0,
            value_bytes: 0,
            features: 0,
        }
    }
}

impl Walk {
    /// A new Example of so many bytes.
    pub(crate) fn begin(&mut self, bytes: u64) {
        *self = Walk::default();
        self.open[0].1 = bytes;
        self.depth = 1;
    }

    /// Its next bytes.
    pub(crate) fn take(&mut self, mut bytes: &[u8]) -> Result<(), &'static str> {
        while let Some((first, rest)) = bytes.split_first() {
            if let ExampleState::Skip { left } = self.state {
                let skipped = left.min(bytes.len() as u64);
                bytes = &bytes[skipped as usize..];
                self.at += skipped;
                self.skip(left - skipped)?;
                continue;
            }
            bytes = rest;
            self.at += 1;
            if let Some(value) = self.varint(*first)? {
                self.number(value)?;
            }
        }
        Ok(())
    }

    /// All its bytes have come.
    pub(crate) fn end(&self) -> Result<(), &'static str> {
        match (self.depth, self.state, self.varint_bytes) {
            (0, ExampleState::Tag, 0) => Ok(()),
            // An Example without a feature.
            (1, ExampleState::Tag, 0) if self.at == self.open[0].1 => Ok(()),
            _ => Err("its protobuf ends inside a field"),
        }
    }

    /// A byte of a varint; its value with the last one.
    fn varint(&mut self, byte: u8) -> Result<Option<u64>, &'static str> {
        if self.varint_bytes == 9 && byte > 1 {
            return Err("a varint of its protobuf is longer than 64 bits");
        }
        self.varint |= u64::from(byte & 0x7f) << (7 * self.varint_bytes);
        self.varint_bytes += 1;
        if byte & 0x80 != 0 {
            return Ok(None);
        }
        self.varint_bytes = 0;
        Ok(Some(std::mem::take(&mut self.varint)))
    }

    fn top(&self) -> Result<(Message, u64), &'static str> {
        match self.depth {
            0 => Err("bytes follow its Example"),
            depth => Ok(self.open[depth - 1]),
        }
    }

    fn number(&mut self, value: u64) -> Result<(), &'static str> {
        let (message, end) = self.top()?;
        match self.state {
            ExampleState::Tag => self.tag(value)?,
            ExampleState::Number => self.state = ExampleState::Tag,
            ExampleState::Length { field } => return self.length(message, end, field, value),
            ExampleState::Skip { .. } => {}
        }
        self.close()
    }

    fn tag(&mut self, tag: u64) -> Result<(), &'static str> {
        let (message, _) = self.top()?;
        let (field, wire) = (tag >> 3, tag & 7);
        if field == 0 {
            return Err("its protobuf has a field of number 0");
        }
        self.state = match wire {
            0 => ExampleState::Number,
            1 => ExampleState::Skip { left: 8 },
            2 => ExampleState::Length { field },
            5 => ExampleState::Skip { left: 4 },
            _ => return Err("its protobuf has a wire type that proto3 doesn't have"),
        };
        if wire != 2 && known(message, field).is_some_and(|m| m != Message::Numbers) {
            return Err("a message of its Example has the wrong wire type");
        }
        if message == Message::Numbers {
            self.value_bytes += [8, 8, 0, 0, 0, 4][wire as usize];
        }
        Ok(())
    }

    fn length(&mut self, message: Message, end: u64, field: u64, bytes: u64) -> Result<(), &'static str> {
        if end.checked_sub(self.at).is_none_or(|room| bytes > room) {
            return Err("a length in its protobuf goes beyond the message around it");
        }
        match known(message, field) {
            Some(inner) if self.depth < DEPTH => {
                self.open[self.depth] = (inner, self.at + bytes);
                self.depth += 1;
                self.features += u64::from(inner == Message::Entry);
                self.state = ExampleState::Tag;
                self.close()
            }
            _ => {
                if matches!(message, Message::BytesList | Message::Numbers) && field == 1 {
                    self.value_bytes += bytes;
                }
                self.skip(bytes)
            }
        }
    }

    fn skip(&mut self, left: u64) -> Result<(), &'static str> {
        self.state = if left == 0 { ExampleState::Tag } else { ExampleState::Skip { left } };
        self.close()
    }

    /// Leaves the messages that end here.
    fn close(&mut self) -> Result<(), &'static str> {
        while self.depth > 0 {
            let (_, end) = self.open[self.depth - 1];
            let inside = match self.state {
                ExampleState::Skip { left } => left,
                ExampleState::Tag => 0,
                _ => 1,
            };
            if self.at > end || inside > end - self.at {
                return Err("a field of its protobuf goes beyond the message around it");
            }
            if self.state != ExampleState::Tag || self.at < end {
                break;
            }
            self.depth -= 1;
        }
        Ok(())
    }
}

/// The message in that field; None: bytes, a number, or a field that no version of Example has had.
fn known(message: Message, field: u64) -> Option<Message> {
    match (message, field) {
        (Message::Example, 1) => Some(Message::Features),
        (Message::Features, 1) => Some(Message::Entry),
        (Message::Entry, 2) => Some(Message::Feature),
        (Message::Feature, 1) => Some(Message::BytesList),
        (Message::Feature, 2 | 3) => Some(Message::Numbers),
        _ => None,
    }
}
