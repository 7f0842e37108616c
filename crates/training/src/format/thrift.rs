//! A walk over one struct of Thrift's compact protocol (thrift/doc/specs/thrift-compact-protocol.md), byte by byte: which
//! fields its top level has, and the whole numbers among them. Bounded in depth; nothing is kept but these. `Reader` does
//! the same with a struct that lies in memory, and lets its caller look into it.

const DEPTH_MAX: usize = 16;
/// Fields of the top level that are looked at.
pub(crate) const FIELDS: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Frame {
    /// The last field's number.
    Struct { field: i64 },
    /// Elements still to come, and their type.
    List { left: u64, kind: u8 },
    /// Pairs still to come; keys' and values' types; a value is next.
    Map { left: u64, key: u8, value: u8, is_value: bool },
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum ThriftState {
    /// A field's head, or the end of the struct.
    Field,
    /// A field's number, written out.
    Number {
        kind: u8,
    },
    Value {
        kind: u8,
    },
    ListHead,
    ListCount {
        kind: u8,
    },
    MapCount,
    MapKinds {
        count: u64,
    },
    Skip {
        left: u64,
    },
    Done,
}

/// State of a top-level field.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) enum Seen {
    #[default]
    Nothing,
    Number(i64),
    List,
    Struct,
    Other,
}

pub(crate) struct Walk {
    frames: [Frame; DEPTH_MAX],
    depth: usize,
    state: ThriftState,
    varint: u64,
    varint_bits: u32,
    pub fields: [Seen; FIELDS],
    /// Bytes consumed so far.
    pub bytes: u64,
}

impl Default for Walk {
    fn default() -> Walk {
        Walk {
            frames: [Frame::Struct { field: 0 }; DEPTH_MAX],
            depth: 1,
            state: ThriftState::Field,
            varint: 0,
            varint_bits: 0,
            fields: [Seen::Nothing; FIELDS],
            bytes: 0,
        }
    }
}

const BINARY: u8 = 8;
const LIST: u8 = 9;
const SET: u8 = 10;
const MAP: u8 = 11;
const STRUCT: u8 = 12;

impl Walk {
    /// Takes from the front of `bytes`; true once the struct has ended.
    pub(crate) fn take(&mut self, bytes: &mut &[u8]) -> Result<bool, &'static str> {
        while self.state != ThriftState::Done {
            if let ThriftState::Skip { left } = self.state {
                if bytes.is_empty() {
                    return Ok(false);
                }
                let now = left.min(bytes.len() as u64);
                *bytes = &bytes[now as usize..];
                self.bytes += now;
                self.skip(left - now)?;
                continue;
            }
            let Some((first, rest)) = bytes.split_first() else { return Ok(false) };
            *bytes = rest;
            self.bytes += 1;
            self.byte(*first)?;
        }
        Ok(true)
    }

    fn byte(&mut self, byte: u8) -> Result<(), &'static str> {
        match self.state {
            ThriftState::Field if byte == 0 => return self.pop(),
            ThriftState::Field => {
                let kind = byte & 15;
                match byte >> 4 {
                    0 => self.state = ThriftState::Number { kind },
                    delta => self.begin_field(i64::from(delta), kind, true)?,
                }
                return Ok(());
            }
            ThriftState::ListHead => {
                let kind = byte & 15;
                match byte >> 4 {
                    15 => self.state = ThriftState::ListCount { kind },
                    count => self.push(Frame::List { left: u64::from(count), kind })?,
                }
                return Ok(());
            }
            ThriftState::MapKinds { count } => {
                return self.push(Frame::Map {
                    left: count,
                    key: byte >> 4,
                    value: byte & 15,
                    is_value: false,
                });
            }
            // Of one byte, as an element or a field alike.
            ThriftState::Value { kind: 1..=3 } => return self.ended(),
            _ => {}
        }
        let Some(value) = self.varint(byte)? else { return Ok(()) };
        match self.state {
            ThriftState::Number { kind } => self.begin_field(unzigzag(value), kind, false),
            ThriftState::Value { kind: BINARY } => self.skip(value),
            ThriftState::Value { .. } => {
                self.note(Seen::Number(unzigzag(value)));
                self.ended()
            }
            ThriftState::ListCount { kind } => self.push(Frame::List { left: value, kind }),
            ThriftState::MapCount if value == 0 => self.ended(),
            ThriftState::MapCount => {
                self.state = ThriftState::MapKinds { count: value };
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn varint(&mut self, byte: u8) -> Result<Option<u64>, &'static str> {
        if self.varint_bits == 63 && byte > 1 {
            return Err("a number is longer than 64 bits");
        }
        self.varint |= u64::from(byte & 0x7f) << self.varint_bits;
        self.varint_bits += 7;
        if byte & 0x80 != 0 {
            return Ok(None);
        }
        self.varint_bits = 0;
        Ok(Some(std::mem::take(&mut self.varint)))
    }

    fn begin_field(&mut self, number: i64, kind: u8, is_delta: bool) -> Result<(), &'static str> {
        let Frame::Struct { field } = &mut self.frames[self.depth - 1] else {
            return Err("a field outside of a struct");
        };
        *field = if is_delta { field.saturating_add(number) } else { number };
        // A truth value is its own type.
        if matches!(kind, 1 | 2) {
            self.note(Seen::Other);
            self.state = ThriftState::Field;
            return Ok(());
        }
        self.note(match kind {
            LIST => Seen::List,
            STRUCT => Seen::Struct,
            _ => Seen::Other,
        });
        self.begin_value(kind)
    }

    fn begin_value(&mut self, kind: u8) -> Result<(), &'static str> {
        self.state = match kind {
            1..=6 | BINARY => ThriftState::Value { kind },
            7 => ThriftState::Skip { left: 8 },
            LIST | SET => ThriftState::ListHead,
            MAP => ThriftState::MapCount,
            STRUCT => return self.push(Frame::Struct { field: 0 }),
            _ => return Err("a field has a type that Thrift doesn't have"),
        };
        Ok(())
    }

    /// Records a field of the top level.
    fn note(&mut self, seen: Seen) {
        if let (1, Frame::Struct { field }) = (self.depth, self.frames[0]) {
            if let Some(place) = usize::try_from(field).ok().and_then(|field| self.fields.get_mut(field)) {
                *place = seen;
            }
        }
    }

    fn skip(&mut self, left: u64) -> Result<(), &'static str> {
        if left > 0 {
            self.state = ThriftState::Skip { left };
            return Ok(());
        }
        self.ended()
    }

    fn push(&mut self, frame: Frame) -> Result<(), &'static str> {
        if self.depth == DEPTH_MAX {
            return Err("structs lie in more than 16 others");
        }
        self.frames[self.depth] = frame;
        self.depth += 1;
        match frame {
            Frame::Struct { .. } => {
                self.state = ThriftState::Field;
                Ok(())
            }
            _ => self.next_element(),
        }
    }

    fn pop(&mut self) -> Result<(), &'static str> {
        self.depth -= 1;
        if self.depth == 0 {
            self.state = ThriftState::Done;
            return Ok(());
        }
        self.ended()
    }

    /// A value has ended: on with what it lies in.
    fn ended(&mut self) -> Result<(), &'static str> {
        match self.frames[self.depth - 1] {
            Frame::Struct { .. } => {
                self.state = ThriftState::Field;
                Ok(())
            }
            _ => self.next_element(),
        }
    }

    fn next_element(&mut self) -> Result<(), &'static str> {
        match &mut self.frames[self.depth - 1] {
            Frame::List { left: 0, .. } | Frame::Map { left: 0, .. } => self.pop(),
            Frame::List { left, kind } => {
                *left -= 1;
                let kind = *kind;
                self.begin_value(kind)
            }
            Frame::Map { left, key, value, is_value } => {
                let kind = if *is_value { *value } else { *key };
                if *is_value {
                    *left -= 1;
                }
                *is_value = !*is_value;
                self.begin_value(kind)
            }
            Frame::Struct { .. } => Ok(()),
        }
    }
}

/// Goes through a struct that lies in memory: `each` field is looked at or skipped.
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
}

type Read<T> = Result<T, &'static str>;

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { bytes }
    }

    /// Bytes that weren't looked at.
    pub(crate) fn left(&self) -> usize {
        self.bytes.len()
    }

    fn byte(&mut self) -> Read<u8> {
        let (first, rest) = self.bytes.split_first().ok_or("it ends inside a field")?;
        self.bytes = rest;
        Ok(*first)
    }

    fn varint(&mut self) -> Read<u64> {
        let mut value = 0;
        for bits in (0..=63).step_by(7) {
            let byte = self.byte()?;
            if bits == 63 && byte > 1 {
                break;
            }
            value |= u64::from(byte & 0x7f) << bits;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err("a number is longer than 64 bits")
    }

    /// A whole number, of any length.
    pub(crate) fn number(&mut self) -> Read<i64> {
        self.varint().map(unzigzag)
    }

    pub(crate) fn binary(&mut self) -> Read<&'a [u8]> {
        let bytes = self.varint()?;
        if bytes > self.bytes.len() as u64 {
            return Err("a text is longer than what it lies in");
        }
        let (text, rest) = self.bytes.split_at(bytes as usize);
        self.bytes = rest;
        Ok(text)
    }

    /// The fields of a struct, by number: `each` takes a field's value and says true, or leaves it to be skipped.
    pub(crate) fn fields(
        &mut self,
        mut each: impl FnMut(&mut Reader<'a>, i64, u8) -> Read<bool>,
    ) -> Read<()> {
        let mut number = 0i64;
        loop {
            let head = self.byte()?;
            if head == 0 {
                return Ok(());
            }
            let kind = head & 15;
            number = match head >> 4 {
                0 => self.number()?,
                delta => number.saturating_add(i64::from(delta)),
            };
            // A truth value is its own type, and has no bytes.
            if !each(self, number, kind)? && !matches!(kind, 1 | 2) {
                self.skip(kind, 0)?;
            }
        }
    }

    /// The elements of a list, each of which `each` takes.
    pub(crate) fn list(&mut self, mut each: impl FnMut(&mut Reader<'a>) -> Read<()>) -> Read<()> {
        let (count, _) = self.list_head()?;
        (0..count).try_for_each(|_| each(self))
    }

    fn list_head(&mut self) -> Read<(u64, u8)> {
        let head = self.byte()?;
        let count = if head >> 4 == 15 { self.varint()? } else { u64::from(head >> 4) };
        // No element is shorter than a byte.
        if count > self.bytes.len() as u64 {
            return Err("a list is longer than what it lies in");
        }
        Ok((count, head & 15))
    }

    fn skip(&mut self, kind: u8, depth: usize) -> Read<()> {
        if depth == DEPTH_MAX {
            return Err("structs lie in more than 16 others");
        }
        match kind {
            1..=3 => self.byte().map(drop),
            4..=6 => self.varint().map(drop),
            7 => (0..8).try_for_each(|_| self.byte().map(drop)),
            BINARY => self.binary().map(drop),
            LIST | SET => {
                let (count, kind) = self.list_head()?;
                (0..count).try_for_each(|_| self.skip(kind, depth + 1))
            }
            MAP => {
                let count = self.varint()?;
                if count == 0 {
                    return Ok(());
                }
                let kinds = self.byte()?;
                if count > self.bytes.len() as u64 {
                    return Err("a map is longer than what it lies in");
                }
                (0..count).try_for_each(|_| {
                    self.skip(kinds >> 4, depth + 1)?;
                    self.skip(kinds & 15, depth + 1)
                })
            }
            STRUCT => self.skip_struct(depth),
            _ => Err("a field has a type that Thrift doesn't have"),
        }
    }

    fn skip_struct(&mut self, depth: usize) -> Read<()> {
        loop {
            let head = self.byte()?;
            if head == 0 {
                return Ok(());
            }
            if head >> 4 == 0 {
                self.varint()?;
            }
            if !matches!(head & 15, 1 | 2) {
                self.skip(head & 15, depth + 1)?;
            }
        }
    }
}

fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}
