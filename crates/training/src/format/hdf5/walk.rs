//! From an HDF5 file's superblock to where its data sets lie (HDF5 File Format Specification 3.0, sections II to IV):
//! each group's tree, names and entries, each object's header, and the tree of its chunks. Of the first generation, as
//! h5py writes them unless told otherwise, here; what came later is parsed by `newer`. Groups in the root group are only
//! walked by who lists them.
//!
//! A walk does no I/O: it asks for bytes by offset and length, one request after the other, and is answered. Trees go
//! down level by level, and everything that is asked for is counted, so that no file leads it in a circle.

use super::super::bounded::{u16_at, u32_at, u64_at};
use super::newer::{self, Array, Chunks, Link};
use std::collections::BTreeSet;

const UNDEFINED: u64 = u64::MAX;
/// Up to the root group's entry and its scratch space, of version 1.
const SUPERBLOCK_BYTES: u64 = 100;
const REQUESTS_MAX: usize = 1 << 18;
/// Limit on a header's block, a list of names, a node.
const BLOCK_BYTES_MAX: u64 = 1 << 20;
/// Objects of the root group, and of all groups of a walk that lists them.
const OBJECTS_MAX: usize = 1024;
const LISTED_MAX: usize = 1 << 16;
/// Bytes of an object's name with those of its groups.
const NAME_BYTES_MAX: usize = 1024;
const RANK_MAX: usize = 32;
const CHUNKS_MAX: u64 = 1 << 24;
/// Kept of a message that says what an item is: as much as a number, or an enumeration's, takes.
const ITEM_BYTES_MAX: usize = 32;
/// The filter that appends a Fletcher-32 sum.
const FLETCHER: u16 = 3;

/// An offset, and what is wrong there.
pub(crate) type Odd = (u64, String);

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct DataSet {
    pub name: String,
    pub dims: Vec<u64>,
    pub item_bytes: u64,
    pub place: DataLayout,
    /// Chunks that end in a Fletcher-32 sum of the bytes before it.
    pub summed: Vec<SummedChunk>,
    /// The bytes of a message that says what an item is.
    pub item: Vec<u8>,
    /// Identifier of the last filter that its chunks went through; 0 of a pipeline without one.
    pub filter: Option<u16>,
    /// Rows that each chunk has whole; None where chunks split rows, or there are none.
    pub rows_a_chunk: Option<u64>,
    /// The first row of each chunk with whole rows, and where it lies. Only of a walk that lists them.
    pub chunks: Vec<(u64, u64)>,
}

/// A chunk whose last four bytes are the sum of the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SummedChunk {
    pub at: u64,
    pub bytes: u64,
    /// The first row of the data set that has a part in it.
    pub row: u64,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum DataLayout {
    /// In the object's header.
    #[default]
    Header,
    /// In other files, or nowhere: it was never written.
    Absent(&'static str),
    Contiguous {
        at: u64,
        bytes: u64,
    },
    /// By rows of chunks: the end of the last of them in the file.
    Chunked {
        rows_each: u64,
        ends: Vec<u64>,
    },
}

#[derive(Clone, Copy, Debug)]
enum Task {
    Superblock,
    Header,
    Messages,
    /// A block of a header of version 2, whole; its messages begin `skip` bytes from its begin.
    Block {
        skip: usize,
        numbered: bool,
    },
    ArrayHeader,
    ArrayBlock(Array),
    Heap,
    Names,
    /// A node of a group's tree, or of a data set's chunks, below one of that level.
    Node {
        chunks: bool,
        below: u16,
    },
    Entries {
        chunks: bool,
        level: u8,
        used: u16,
    },
    Symbols,
    SymbolEntries {
        count: u16,
    },
}

/// A data set whose header or chunks are being read.
#[derive(Default)]
struct Object {
    set: DataSet,
    messages_left: u32,
    chunk_dims: Vec<u64>,
    chunk_tree: Option<u64>,
    /// A list of chunks of a later generation, in place of a tree.
    chunk_list: Option<Chunks>,
    /// Of a header of version 2: its messages are numbered.
    numbered: Option<bool>,
    chunks: u64,
    is_packed: bool,
    /// The number of the filter in its pipeline that stores a Fletcher-32 sum behind everything else.
    summed_by: Option<u8>,
    header: u64,
    /// Of a group: its tree of symbols, and its list of names.
    group: Option<(u64, u64)>,
    /// It may be a group whose objects are looked at.
    is_walked: bool,
}

/// An object that is yet to be looked at.
struct Symbol {
    /// Its name behind those of its groups, `train/x`.
    name: String,
    header: u64,
}

pub(crate) struct Walk {
    file_bytes: u64,
    todo: Vec<(Task, u64, u64)>,
    requests: usize,
    /// Bytes that may still be asked for: a structure is asked for once, or twice where two names lead to it.
    left: u64,
    /// The list of names of the group whose header was read last.
    names: Vec<u8>,
    /// Those to be read last first.
    symbols: Vec<Symbol>,
    objects: usize,
    /// Headers of groups that were walked: a second name of one leads nowhere new, or in a circle.
    groups: BTreeSet<u64>,
    object: Object,
    /// Chunks are kept, one by one, and groups are walked.
    lists: bool,
    /// Names of data sets that a walk is for: groups without one aren't walked.
    wanted: Option<Vec<String>>,
    /// Bytes of the file before its superblock, from which on offsets count.
    base: u64,
    pub sets: Vec<DataSet>,
}

impl Walk {
    pub(crate) fn begin(file_bytes: u64) -> Walk {
        Walk {
            file_bytes,
            todo: vec![(Task::Superblock, 0, SUPERBLOCK_BYTES.min(file_bytes))],
            requests: 0,
            left: 2 * file_bytes.min(1 << 62),
            names: Vec::new(),
            symbols: Vec::new(),
            objects: 0,
            groups: BTreeSet::new(),
            // The root group.
            object: Object { is_walked: true, ..Object::default() },
            lists: false,
            wanted: None,
            base: 0,
            sets: Vec::new(),
        }
    }

    /// A walk that keeps where each chunk lies, through all groups, or the root group and those that lead to the wanted data sets.
    /// `file_bytes`: behind the `base` bytes before the superblock.
    pub(crate) fn listing(file_bytes: u64, base: u64, wanted: Option<&[String]>) -> Walk {
        Walk { lists: true, base, wanted: wanted.map(<[String]>::to_vec), ..Walk::begin(file_bytes) }
    }

    /// The bytes that it needs next: offset and length, within the file. None: it is through.
    pub(crate) fn asks(&self) -> Option<(u64, u64)> {
        self.todo.last().map(|(_, at, bytes)| (*at, *bytes))
    }

    /// Takes the bytes that it asked for.
    pub(crate) fn answer(&mut self, bytes: &[u8]) -> Result<(), Odd> {
        let Some((task, at, _)) = self.todo.pop() else { return Ok(()) };
        let odd = |what: String| (at, what);
        match task {
            Task::Superblock => self.superblock(bytes).map_err(odd)?,
            Task::Header => self.header(at, bytes).map_err(odd)?,
            Task::Messages => self.messages(bytes).map_err(odd)?,
            Task::Block { skip, numbered } => self.block(bytes, skip, numbered).map_err(odd)?,
            Task::ArrayHeader => {
                let (wanted, packed) = (self.chunks_wanted(), self.object.is_packed);
                let array = Array::header(bytes, wanted, packed).map_err(odd)?;
                self.ask(Task::ArrayBlock(array), array.at, array.block_bytes)?;
            }
            Task::ArrayBlock(array) => {
                let found = array.elements(bytes).map_err(odd)?;
                self.listed(found.into_iter())?;
            }
            Task::Heap => self.heap(bytes).map_err(odd)?,
            Task::Names => {
                self.names = bytes.to_vec();
                let (tree, _) = self.object.group.ok_or((at, "a group has no tree".to_string()))?;
                self.node(tree, false, 256)?;
            }
            Task::Node { chunks, below } => self.node_head(at, bytes, chunks, below).map_err(odd)?,
            Task::Entries { chunks: false, level, used } => self.group_entries(bytes, level, used)?,
            Task::Entries { chunks: true, level, used } => self.chunk_entries(bytes, level, used)?,
            Task::Symbols => self.symbol_head(at, bytes).map_err(odd)?,
            Task::SymbolEntries { count } => self.symbol_entries(bytes, count).map_err(odd)?,
        }
        if self.todo.is_empty() {
            self.next_object()?;
        }
        Ok(())
    }

    fn ask(&mut self, task: Task, at: u64, bytes: u64) -> Result<(), Odd> {
        self.requests += 1;
        if self.requests > REQUESTS_MAX || bytes > BLOCK_BYTES_MAX || bytes > self.left {
            return Err((at, "its structures are larger than any that DLIO writes".into()));
        }
        self.left -= bytes;
        if at.checked_add(bytes).is_none_or(|end| end > self.file_bytes) || bytes == 0 {
            let has = self.file_bytes;
            return Err((at, format!("a structure of {bytes} bytes lies there, and the file has {has}")));
        }
        self.todo.push((task, at, bytes));
        Ok(())
    }

    fn superblock(&mut self, head: &[u8]) -> Result<(), String> {
        if head.len() < SUPERBLOCK_BYTES as usize || &head[..8] != super::SIGNATURE {
            return Err("it doesn't begin as an HDF5 file does".into());
        }
        let more = match head[8] {
            0 => 0,
            1 => 4,
            _ => {
                let root = newer::superblock(head, self.file_bytes, self.base)?;
                return self.ask_header(root).map_err(|(_, what)| what);
            }
        };
        if (head[13], head[14]) != (8, 8) {
            return Err(format!(
                "its offsets and lengths have {} and {} bytes, and 8 are known",
                head[13], head[14]
            ));
        }
        let (base, end) = (u64_at(head, 24 + more), u64_at(head, 40 + more));
        let has = self.file_bytes.saturating_add(self.base);
        if base != self.base || end > has {
            return Err(format!("its superblock says bytes {base} to {end}, and the file has {has}"));
        }
        let root = u64_at(head, 64 + more);
        self.ask_header(root).map_err(|(_, what)| what)
    }

    /// The begin of an object's header, of either version: the second's may end the file sooner.
    fn ask_header(&mut self, at: u64) -> Result<(), Odd> {
        self.object.header = at;
        let bytes = newer::PREFIX_BYTES.min(self.file_bytes.saturating_sub(at)).max(16);
        self.ask(Task::Header, at, bytes)
    }

    /// The begin of an object's header: of version 1, how many messages, in how many bytes.
    fn header(&mut self, at: u64, head: &[u8]) -> Result<(), String> {
        if &head[..4] == b"OHDR" {
            let newer::Prefix { bytes, messages_at, numbered } = newer::prefix(head)?;
            self.object.numbered = Some(numbered);
            let block = Task::Block { skip: messages_at, numbered };
            return self.ask(block, at, bytes).map_err(|(_, what)| what);
        }
        if head[0] != 1 {
            return Err(format!("an object's header has version {}, and 1 is known", head[0]));
        }
        self.object.messages_left = u16_at(head, 2).into();
        match u64::from(u32_at(head, 8)) {
            0 => self.header_ended(),
            bytes => self.ask(Task::Messages, at.saturating_add(16), bytes).map_err(|(_, what)| what),
        }
    }

    fn messages(&mut self, block: &[u8]) -> Result<(), String> {
        let mut rest = block;
        while rest.len() >= 8 && self.object.messages_left > 0 {
            let (kind, bytes) = (u16_at(rest, 0), usize::from(u16_at(rest, 2)));
            if bytes > rest.len() - 8 {
                return Err(format!("a message of {bytes} bytes goes beyond its header"));
            }
            self.object.messages_left -= 1;
            self.message(kind, &rest[8..8 + bytes])?;
            rest = &rest[8 + bytes..];
        }
        if self.todo.is_empty() {
            return self.header_ended();
        }
        Ok(())
    }

    /// A block of a header of version 2: its first, or one that a message of an earlier one leads to.
    fn block(&mut self, block: &[u8], skip: usize, numbered: bool) -> Result<(), String> {
        if !block.starts_with(b"OHDR") && !block.starts_with(b"OCHK") {
            return Err("a part of an object's header doesn't begin with OCHK".into());
        }
        let messages = newer::summed(block, "an object's header")?.get(skip..).unwrap_or_default();
        for (kind, body) in newer::messages(messages, numbered)? {
            self.message(kind, body)?;
        }
        if self.todo.is_empty() {
            return self.header_ended();
        }
        Ok(())
    }

    /// A link of a group, as a message.
    fn link(&mut self, body: &[u8]) -> Result<(), String> {
        let (name, leads) = newer::link(body)?;
        match leads {
            Link::Header(at) => self.symbol(name, at),
            Link::Elsewhere(why) => self.elsewhere(name, why),
        }
    }

    /// Notes an object of the group whose header was read last.
    fn symbol(&mut self, name: &[u8], header: u64) -> Result<(), String> {
        let group = &self.object.set.name;
        let name = String::from_utf8_lossy(name);
        let name = if group.is_empty() { name.into_owned() } else { format!("{group}/{name}") };
        if name.len() > NAME_BYTES_MAX {
            return Err(format!("an object's name has {} bytes, with those of its groups", name.len()));
        }
        self.objects += 1;
        let most = if self.lists { LISTED_MAX } else { OBJECTS_MAX };
        if self.objects > most {
            return Err(format!("it has more than {most} objects"));
        }
        self.symbols.push(Symbol { name, header });
        Ok(())
    }

    /// A name of a group whose object isn't in this file, or isn't followed there.
    fn elsewhere(&self, name: &[u8], why: &str) -> Result<(), String> {
        match self.object.set.name.is_empty() && name == super::SAMPLES.as_bytes() {
            true => Err(format!("'{}' isn't in this file: {why}", super::SAMPLES)),
            false => Ok(()),
        }
    }

    fn message(&mut self, kind: u16, body: &[u8]) -> Result<(), String> {
        let short = |bytes: usize| match body.len() < bytes {
            true => Err(format!("a message of type {kind} has {} bytes", body.len())),
            false => Ok(()),
        };
        match kind {
            0x01 => self.object.set.dims = dimensions(body)?,
            0x03 => {
                short(8)?;
                self.object.set.item_bytes = u32_at(body, 4).into();
                self.object.set.item = body[..body.len().min(ITEM_BYTES_MAX)].to_vec();
            }
            // Such a data set's layout names no place; whichever of both messages comes first.
            0x07 => {
                self.object.set.place = DataLayout::Absent("its data is in other files (external storage)")
            }
            0x08 => self.layout(body)?,
            0x0B => {
                self.object.is_packed = true;
                let last = last_filter(body)?;
                self.object.set.filter = Some(last.map_or(0, |(_, id)| id));
                self.object.summed_by = last.and_then(|(number, id)| (id == FLETCHER).then_some(number));
            }
            0x02 if self.object.is_walked && newer::is_dense(body) => {
                let group = &self.object.set.name;
                let group = if group.is_empty() { "its root group" } else { &format!("its group {group}") };
                return Err(format!(
                    "{group} keeps its names in a heap, as one of many objects, which isn't read here; h5repack --high=0 IN OUT \
                     writes one that is"
                ));
            }
            0x06 if self.object.is_walked => {
                self.groups.insert(self.object.header);
                self.link(body)?;
            }
            0x10 => {
                short(16)?;
                let task = match self.object.numbered {
                    Some(numbered) => Task::Block { skip: 4, numbered },
                    None => Task::Messages,
                };
                self.ask(task, u64_at(body, 0), u64_at(body, 8)).map_err(|(_, what)| what)?;
            }
            0x11 if self.object.is_walked => {
                short(16)?;
                self.groups.insert(self.object.header);
                self.object.group = Some((u64_at(body, 0), u64_at(body, 8)));
            }
            _ => {}
        }
        Ok(())
    }

    /// Parses a layout message: where the data is.
    fn layout(&mut self, body: &[u8]) -> Result<(), String> {
        let bad = || format!("a layout of {} bytes, version and class {:?}", body.len(), body.get(..2));
        match body {
            [3, 0, ..] => Ok(()),
            [3, 1, rest @ ..] if rest.len() >= 16 => {
                let (at, bytes) = (u64_at(rest, 0), u64_at(rest, 8));
                let place = &mut self.object.set.place;
                match place {
                    DataLayout::Absent(_) => {}
                    _ if at != UNDEFINED => *place = DataLayout::Contiguous { at, bytes },
                    _ => *place = DataLayout::Absent("nothing was ever written to it"),
                }
                Ok(())
            }
            [3, 2, rank, rest @ ..] if rest.len() >= 8 + 4 * usize::from(*rank) => {
                // The last is the length of an item.
                let sides = usize::from(*rank).saturating_sub(1);
                if sides == 0 || sides > RANK_MAX {
                    return Err(bad());
                }
                self.object.chunk_dims = (0..sides).map(|i| u32_at(rest, 8 + 4 * i).into()).collect();
                self.object.chunk_tree = Some(u64_at(rest, 0));
                if self.object.chunk_dims.contains(&0) {
                    return Err("its chunks have no length".into());
                }
                Ok(())
            }
            [4 | 5, 0 | 1, ..] => self.layout(&[&[3], &body[1..]].concat()),
            [4 | 5, 2, rest @ ..] => {
                let (dims, chunks) = newer::chunked(rest)?;
                (self.object.chunk_dims, self.object.chunk_list) = (dims, Some(chunks));
                if self.object.chunk_dims.contains(&0) {
                    return Err("its chunks have no length".into());
                }
                Ok(())
            }
            [4 | 5, 3, ..] => {
                self.object.set.place = DataLayout::Absent("its data is in other data sets (a virtual one)");
                Ok(())
            }
            _ => Err(bad()),
        }
    }

    /// All messages of an object have come.
    fn header_ended(&mut self) -> Result<(), String> {
        if let Some((_, heap)) = self.object.group {
            return self.ask(Task::Heap, heap, 32).map_err(|(_, what)| what);
        }
        let Object { set, chunk_dims, chunk_tree, chunk_list, .. } = &mut self.object;
        let (tree, list) = (*chunk_tree, *chunk_list);
        if tree.is_none() && list.is_none() {
            return Ok(());
        }
        if chunk_dims.len() != set.dims.len() {
            return Err(format!("its chunks have {} sides, and it has {}", chunk_dims.len(), set.dims.len()));
        }
        // None is shorter than a byte.
        let most = CHUNKS_MAX.min(self.file_bytes);
        let wanted = chunks_of(&set.dims, chunk_dims).filter(|chunks| *chunks <= most);
        let Some(wanted) = wanted else { return Err("it has more chunks than can be".into()) };
        let rows = set.dims[0].div_ceil(chunk_dims[0]);
        set.place =
            DataLayout::Chunked { rows_each: chunk_dims[0], ends: vec![0; rows.min(wanted) as usize] };
        set.rows_a_chunk = (chunk_dims[1..] == set.dims[1..]).then_some(chunk_dims[0]);
        if wanted == 0 {
            return Ok(());
        }
        match (tree, list) {
            (Some(tree), _) if tree != UNDEFINED => self.node(tree, true, 256),
            (_, Some(Chunks::FixedArray { at })) if at != UNDEFINED => {
                self.ask(Task::ArrayHeader, at, newer::ARRAY_HEADER_BYTES)
            }
            (_, Some(Chunks::Single { at, packed })) => self.listed(std::iter::once((at, packed))),
            (_, Some(Chunks::Implicit { at })) if at != UNDEFINED => {
                let each = self.plain_chunk().unwrap_or(0);
                self.listed((0..wanted).map(|n| (at.saturating_add(n.saturating_mul(each)), None)))
            }
            _ => Ok(()),
        }
        .map_err(|(_, what)| what)
    }

    /// The number of chunks that the data set has.
    fn chunks_wanted(&self) -> u64 {
        chunks_of(&self.object.set.dims, &self.object.chunk_dims).unwrap_or(0)
    }

    /// Bytes of a chunk that no filter changed.
    fn plain_chunk(&self) -> Option<u64> {
        let Object { set, chunk_dims, .. } = &self.object;
        chunk_dims.iter().try_fold(set.item_bytes, |all, side| all.checked_mul(*side))
    }

    /// All chunks in order, the last side's first: (address, bytes and filters left out where they are packed).
    fn listed(&mut self, chunks: impl Iterator<Item = newer::Listed>) -> Result<(), Odd> {
        let plain = self.plain_chunk().unwrap_or(0);
        let sides: Vec<(u64, u64)> = {
            let Object { set, chunk_dims, .. } = &self.object;
            set.dims.iter().zip(chunk_dims).map(|(dim, side)| (dim.div_ceil(*side), *side)).collect()
        };
        for (n, (at, packed)) in chunks.enumerate().filter(|(_, (at, _))| *at != UNDEFINED) {
            let mut rest = n as u64;
            let mut offsets = vec![0; sides.len()];
            for (offset, (count, side)) in offsets.iter_mut().zip(&sides).rev() {
                *offset = rest % count * side;
                rest /= count;
            }
            let (bytes, left_out) = packed.unwrap_or((plain, 0));
            self.chunk(at, bytes, left_out, &offsets)?;
        }
        Ok(())
    }

    /// The list of names.
    fn heap(&mut self, head: &[u8]) -> Result<(), String> {
        if &head[..4] != b"HEAP" {
            return Err("a group's list of names doesn't begin with HEAP".into());
        }
        self.ask(Task::Names, u64_at(head, 24), u64_at(head, 8)).map_err(|(_, what)| what)
    }

    fn node(&mut self, at: u64, chunks: bool, below: u16) -> Result<(), Odd> {
        self.ask(Task::Node { chunks, below }, at, 24)
    }

    fn node_head(&mut self, at: u64, head: &[u8], chunks: bool, below: u16) -> Result<(), String> {
        let (kind, level, used) = (head[4], head[5], u16_at(head, 6));
        if &head[..4] != b"TREE" || kind != u8::from(chunks) || u16::from(level) >= below {
            return Err(format!(
                "a node of type {kind} and level {level} doesn't belong to the tree above it"
            ));
        }
        if used == 0 {
            return Ok(());
        }
        let (key, child) = (self.key_bytes(chunks), 8);
        let bytes = u64::from(used) * (key + child) + key;
        self.ask(Task::Entries { chunks, level, used }, at + 24, bytes).map_err(|(_, what)| what)
    }

    fn key_bytes(&self, chunks: bool) -> u64 {
        if chunks {
            8 + 8 * (self.object.chunk_dims.len() as u64 + 1)
        } else {
            8
        }
    }

    fn group_entries(&mut self, bytes: &[u8], level: u8, used: u16) -> Result<(), Odd> {
        for entry in 0..usize::from(used) {
            let child = u64_at(bytes, entry * 16 + 8);
            match level {
                0 => self.ask(Task::Symbols, child, 8)?,
                level => self.node(child, false, level.into())?,
            }
        }
        Ok(())
    }

    fn symbol_head(&mut self, at: u64, head: &[u8]) -> Result<(), String> {
        let count = u16_at(head, 6);
        if &head[..4] != b"SNOD" {
            return Err("a node of symbols doesn't begin with SNOD".into());
        }
        if count == 0 {
            return Ok(());
        }
        self.ask(Task::SymbolEntries { count }, at + 8, 40 * u64::from(count)).map_err(|(_, what)| what)
    }

    fn symbol_entries(&mut self, bytes: &[u8], count: u16) -> Result<(), String> {
        const SOFT_LINK: u32 = 2;
        for entry in bytes.chunks_exact(40).take(count.into()) {
            let (name, header) = (self.name_at(u64_at(entry, 0)).to_vec(), u64_at(entry, 8));
            match u32_at(entry, 16) {
                SOFT_LINK => self.elsewhere(&name, newer::SOFT)?,
                _ => self.symbol(&name, header)?,
            }
        }
        Ok(())
    }

    fn chunk_entries(&mut self, bytes: &[u8], level: u8, used: u16) -> Result<(), Odd> {
        let key = self.key_bytes(true) as usize;
        for entry in 0..usize::from(used) {
            let at = entry * (key + 8);
            let child = u64_at(bytes, at + key);
            match level {
                0 => {
                    let key = &bytes[at..at + key];
                    let offsets: Vec<u64> =
                        (0..self.object.chunk_dims.len()).map(|i| u64_at(key, 8 + 8 * i)).collect();
                    self.chunk(child, u32_at(key, 0).into(), u32_at(key, 4), &offsets)?;
                }
                level => self.node(child, true, level.into())?,
            }
        }
        Ok(())
    }

    /// A chunk of that length, without the filters whose bits are set in `left_out`, at these offsets in the data set.
    fn chunk(&mut self, at: u64, bytes: u64, left_out: u32, offsets: &[u64]) -> Result<(), Odd> {
        let plain = self.plain_chunk();
        let Object { set, chunk_dims, chunks, is_packed, summed_by, .. } = &mut self.object;
        let end = at.checked_add(bytes).filter(|end| *end <= self.file_bytes);
        let Some(end) = end.filter(|_| *is_packed || plain == Some(bytes)) else {
            return Err((at, format!("a chunk of {bytes} bytes lies there, which can't be")));
        };
        let mut sides = chunk_dims.iter().zip(&set.dims).zip(offsets);
        let fits = sides.all(|((side, all), offset)| offset % side == 0 && offset < all);
        let row = (offsets[0] / chunk_dims[0]) as usize;
        if fits && summed_by.is_some_and(|number| number > 31 || left_out >> number & 1 == 0) {
            if bytes < 4 {
                return Err((at, format!("a chunk of {bytes} bytes has no room for its checksum")));
            }
            set.summed.push(SummedChunk { at, bytes, row: offsets[0] });
        }
        if fits && self.lists && set.rows_a_chunk.is_some() {
            set.chunks.push((offsets[0], at));
        }
        let DataLayout::Chunked { ends, .. } = &mut set.place else { return Ok(()) };
        match ends.get_mut(row).filter(|_| fits) {
            Some(last) => *last = end.max(*last),
            None => return Err((at, "a chunk lies outside of its data set".into())),
        }
        *chunks += 1;
        Ok(())
    }

    /// An object is through: is it a data set? The next one's header.
    fn next_object(&mut self) -> Result<(), Odd> {
        let Object { set, chunks, chunk_dims, .. } = std::mem::take(&mut self.object);
        if !set.name.is_empty() && !set.dims.is_empty() {
            self.whole(&set, chunks, &chunk_dims)?;
            self.sets.push(set);
        }
        let Some(Symbol { name, header }) = self.symbols.pop() else { return Ok(()) };
        let leads = |wanted: &String| wanted.strip_prefix(&name).is_some_and(|rest| rest.starts_with('/'));
        let is_wanted = self.wanted.as_ref().is_none_or(|wanted| wanted.iter().any(leads));
        self.object.is_walked = self.lists && is_wanted && !self.groups.contains(&header);
        self.object.set.name = name;
        self.ask_header(header)
    }

    /// The name in the group's list that begins there.
    fn name_at(&self, at: u64) -> &[u8] {
        let text = self.names.get(at as usize..).unwrap_or_default();
        text.split(|byte| *byte == 0).next().unwrap_or_default()
    }

    /// Checks that all of a data set lies in the file.
    fn whole(&self, set: &DataSet, chunks: u64, chunk_dims: &[u64]) -> Result<(), Odd> {
        let name = &set.name;
        match &set.place {
            DataLayout::Header => Ok(()),
            // Others than the samples are none of a run's business.
            DataLayout::Absent(why) if name == super::SAMPLES && !set.dims.contains(&0) => {
                Err((0, format!("'{name}' of {:?} isn't in this file: {why}", set.dims)))
            }
            DataLayout::Absent(_) => Ok(()),
            DataLayout::Contiguous { at, bytes } => {
                let wanted = set.dims.iter().try_fold(set.item_bytes, |all, side| all.checked_mul(*side));
                let ends = at.checked_add(*bytes).filter(|end| *end <= self.file_bytes);
                if wanted != Some(*bytes) || ends.is_none() {
                    let (dims, has) = (&set.dims, self.file_bytes);
                    let what =
                        format!("'{name}' of {dims:?} has {bytes} bytes there, and the file has {has}");
                    return Err((*at, what));
                }
                Ok(())
            }
            DataLayout::Chunked { .. } => match chunks_of(&set.dims, chunk_dims) {
                Some(wanted) if wanted == chunks => Ok(()),
                wanted => Err((0, format!("'{name}' has {chunks} chunks of {}", wanted.unwrap_or(0)))),
            },
        }
    }
}

fn chunks_of(dims: &[u64], chunk_dims: &[u64]) -> Option<u64> {
    dims.iter().zip(chunk_dims).try_fold(1u64, |all, (dim, side)| all.checked_mul(dim.div_ceil(*side)))
}

/// The number and identifier of the last filter in a filter pipeline message.
fn last_filter(body: &[u8]) -> Result<Option<(u8, u16)>, String> {
    let bad = || format!("a filter pipeline of {} bytes, version {:?}", body.len(), body.first());
    let (Some(version @ (1 | 2)), Some(count)) = (body.first().copied(), body.get(1).copied()) else {
        return Err(bad());
    };
    let mut rest = body.get(if version == 1 { 8 } else { 2 }..).ok_or_else(bad)?;
    let mut last = None;
    for number in 0..count {
        let word = |at: usize| rest.get(at..at + 2).map(|w| u16::from_le_bytes([w[0], w[1]])).ok_or_else(bad);
        let id = word(0)?;
        let named = version == 1 || id >= 256;
        let name_bytes = if named { usize::from(word(2)?) } else { 0 };
        let values = usize::from(word(if named { 6 } else { 4 })?);
        let (head, padded) = if named { (8, version == 1) } else { (6, false) };
        let name_bytes = if padded { name_bytes.next_multiple_of(8) } else { name_bytes };
        let values = if padded { values.next_multiple_of(2) } else { values };
        rest = rest.get(head + name_bytes + 4 * values..).ok_or_else(bad)?;
        last = Some((number, id));
    }
    Ok(last)
}

/// The dimensions in a dataspace message.
fn dimensions(body: &[u8]) -> Result<Vec<u64>, String> {
    let begin = match body.first() {
        Some(1) => 8,
        Some(2) => 4,
        version => return Err(format!("a dataspace has version {version:?}, and 1 and 2 are known")),
    };
    let rank = usize::from(body.get(1).copied().unwrap_or(0));
    if rank > RANK_MAX || body.len() < begin + 8 * rank {
        return Err(format!("a dataspace of {rank} sides has {} bytes", body.len()));
    }
    Ok((0..rank).map(|i| u64_at(body, begin + 8 * i)).collect())
}
