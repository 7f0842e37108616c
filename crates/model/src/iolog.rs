//! fio's lists of I/Os (iolog), versions 2 and 3: read line by line, in memory that grows with the number of files only.

use crate::units::IO_BYTES_MAX;
use crate::Error;
use std::collections::HashMap;

/// No line that fio writes or reads is longer.
pub const LINE_BYTES_MAX: usize = 4096 + 512;
/// Limit of fio's on a name.
pub const NAME_BYTES_MAX: usize = 256;
pub const FILES_MAX: usize = 65_536;
/// First line of what is written here.
pub const HEADER: &str = "fio version 3 iolog";
const HEADER_2: &str = "fio version 2 iolog";
/// File offsets are signed.
const OFFSET_MAX: u64 = i64::MAX as u64;
/// A year.
const WAIT_US_MAX: u64 = 31_536_000_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Read,
    Write,
    Trim,
    /// `sync` and `datasync`: all that was written before is durable.
    Sync,
}

/// One line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line {
    /// The header, and files that are added, opened and closed.
    Aside,
    Io(Io),
    /// Version 2: what follows waits until so many milliseconds of the replay have passed.
    Wait {
        until_ms: u64,
    },
}

/// `file`: its number, in the order in which files are added. `gap_us`: from the line before, by version 3's times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Io {
    pub kind: Kind,
    pub file: u32,
    pub offset: u64,
    pub len: u32,
    pub gap_us: u64,
}

/// Lines of a list, one after another.
pub struct Parser {
    /// Its name in errors.
    label: String,
    line: u64,
    version: u8,
    names: Vec<String>,
    numbers: HashMap<String, u32>,
    open: Vec<bool>,
    last_us: u64,
}

impl Parser {
    pub fn new(label: impl Into<String>) -> Parser {
        Parser {
            label: label.into(),
            line: 0,
            version: 0,
            names: Vec::new(),
            numbers: HashMap::new(),
            open: Vec::new(),
            last_us: 0,
        }
    }

    /// Names of the files that were added, in that order.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The number of the line that was read last, from 1.
    pub fn line(&self) -> u64 {
        self.line
    }

    /// The next line, with or without its end.
    ///
    /// # Errors
    /// `Request`, with the number of the line: it is none of such a list.
    pub fn read(&mut self, line: &[u8]) -> Result<Line, Error> {
        self.line += 1;
        let text = line.strip_suffix(b"\n").unwrap_or(line);
        if text.len() > LINE_BYTES_MAX {
            return Err(self.wrong(format!("is longer than {LINE_BYTES_MAX} bytes")));
        }
        let Ok(text) = std::str::from_utf8(text) else {
            return Err(self.wrong("isn't text: blkparse's binary files aren't replayed"));
        };
        if self.version == 0 {
            return self.header(text.trim_end());
        }
        let words: Vec<&str> = text.split_ascii_whitespace().take(6).collect();
        let words = words.as_slice();
        if words.join(" ") == HEADER || words.join(" ") == HEADER_2 {
            return Err(
                self.wrong("begins another list: several jobs wrote into one file; a list for each job")
            );
        }
        match (self.version, words) {
            (3, [time, rest @ ..]) => {
                let us = self.number(time, "a time in µs", u64::MAX)?;
                // As in fio: no gap after a time of 0, nor where times go back.
                let gap = if self.last_us == 0 { 0 } else { us.saturating_sub(self.last_us) };
                self.last_us = us;
                self.action(rest, gap.min(WAIT_US_MAX))
            }
            _ => self.action(words, 0),
        }
    }

    fn header(&mut self, text: &str) -> Result<Line, Error> {
        self.version = match text {
            HEADER => 3,
            HEADER_2 => 2,
            _ => return Err(self.wrong(format!("must be `{HEADER}` or `{HEADER_2}`"))),
        };
        Ok(Line::Aside)
    }

    fn action(&mut self, words: &[&str], gap_us: u64) -> Result<Line, Error> {
        match words {
            [name, what @ ("add" | "open" | "close")] => self.of_file(name, what).map(|()| Line::Aside),
            [_, "wait", ..] if self.version == 3 => {
                Err(self.wrong("waits, which version 3 can't: it has times"))
            }
            [_, "wait", ms, _] => {
                Ok(Line::Wait { until_ms: self.number(ms, "a time in ms", WAIT_US_MAX / 1000)? })
            }
            [name, what, offset, len] => self.io(name, what, (offset, len), gap_us),
            _ => {
                let form = if self.version == 3 {
                    "TIME FILE ACTION OFFSET LENGTH"
                } else {
                    "FILE ACTION OFFSET LENGTH"
                };
                Err(self.wrong(format!("is neither {form} nor that without the last two")))
            }
        }
    }

    fn of_file(&mut self, name: &str, what: &str) -> Result<(), Error> {
        let known = self.numbers.get(name).copied();
        match (what, known) {
            ("add", Some(_)) => {}
            ("add", None) if self.names.len() == FILES_MAX => {
                return Err(self.wrong(format!("adds more than {FILES_MAX} files")));
            }
            ("add", None) => {
                self.numbers.insert(name.into(), self.names.len() as u32);
                self.names.push(name.into());
                self.open.push(false);
            }
            (_, None) => return Err(self.wrong(format!("{what}s {name}, which wasn't added"))),
            ("close", Some(file)) if !self.open[file as usize] => {
                return Err(self.wrong(format!("closes {name}, which isn't open")));
            }
            (_, Some(file)) => self.open[file as usize] = what == "open",
        }
        Ok(())
    }

    fn io(&self, name: &str, what: &str, (offset, len): (&str, &str), gap_us: u64) -> Result<Line, Error> {
        let kind = match what {
            "read" => Kind::Read,
            "write" => Kind::Write,
            "trim" => Kind::Trim,
            "sync" | "datasync" => Kind::Sync,
            _ => {
                let known = "add, open, close, read, write, sync, datasync, trim or wait";
                return Err(self.wrong(format!("has the action {}, not {known}", shortened(what))));
            }
        };
        let Some(file) = self.numbers.get(name).copied().filter(|file| self.open[*file as usize]) else {
            return Err(self.wrong(format!("{what}s {}, which isn't open", shortened(name))));
        };
        let offset = self.number(offset, "an offset", OFFSET_MAX)?;
        let len = self.number(len, "a length", OFFSET_MAX)?;
        if kind == Kind::Sync {
            return Ok(Line::Io(Io { kind, file, offset: 0, len: 0, gap_us }));
        }
        if len == 0 || len > IO_BYTES_MAX {
            return Err(self.wrong(format!("has a length of {len} bytes, not of 1 byte to 1 GiB")));
        }
        if offset + len > OFFSET_MAX {
            return Err(self.wrong("ends beyond 8 EiB"));
        }
        Ok(Line::Io(Io { kind, file, offset, len: len as u32, gap_us }))
    }

    fn number(&self, text: &str, what: &str, most: u64) -> Result<u64, Error> {
        let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        match text.parse::<u64>() {
            Ok(number) if digits && number <= most => Ok(number),
            _ => Err(self.wrong(format!("has {} for {what}", shortened(text)))),
        }
    }

    /// The error of the line that was read last.
    pub fn wrong(&self, found: impl Into<String>) -> Error {
        let asked = format!("{} line {}", self.label, self.line);
        Error::request(asked, found, "a list as fio writes it: docs/fio.md, Lists of I/Os")
    }
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(60) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.into(),
    }
}

/// Changes to a list's I/Os on their way: `replay_scale`, `replay_align`, `replay_skip`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recast {
    pub divide: u64,
    pub align: u64,
    /// Reads, writes, trims and syncs that are left out.
    pub skips: [bool; 4],
}

impl Recast {
    /// Out of the settings; None divides and aligns nothing.
    ///
    /// # Errors
    /// `Request`: an alignment that is no power of two, or a kind that isn't known.
    pub fn new(scale: Option<u32>, align: Option<u64>, skip: Option<&str>) -> Result<Recast, Error> {
        let align = align.unwrap_or(1);
        if !align.is_power_of_two() {
            return Err(Error::request(
                format!("‹replay_align› {align}"),
                "is no power of two",
                "‹replay_align› 4k",
            ));
        }
        let mut skips = [false; 4];
        for word in skip.unwrap_or_default().split(',').map(str::trim).filter(|word| !word.is_empty()) {
            let Some(at) = ["read", "write", "trim", "sync"].iter().position(|kind| *kind == word) else {
                let asked = format!("‹replay_skip› {word}");
                return Err(Error::request(
                    asked,
                    "is not read, write, trim or sync",
                    "‹replay_skip› write,trim",
                ));
            };
            skips[at] = true;
        }
        Ok(Recast { divide: scale.unwrap_or(1).max(1).into(), align, skips })
    }

    /// The I/O as it is done; None: it isn't.
    pub fn apply(&self, io: Io) -> Option<Io> {
        let offset = (io.offset / self.divide.max(1)) & !(self.align.max(1) - 1);
        (!self.skips[io.kind as usize]).then_some(Io { offset, ..io })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(text: &str) -> Result<Vec<Line>, Error> {
        let mut parser = Parser::new("log");
        text.lines().map(|line| parser.read(line.as_bytes())).collect()
    }

    fn io(kind: Kind, offset: u64, len: u32, gap_us: u64) -> Line {
        Line::Io(Io { kind, file: 0, offset, len, gap_us })
    }

    // promise: BEN-52
    #[test]
    fn both_versions_are_read() {
        let found =
            all("fio version 2 iolog\n/a add\n/a open\n/a read 0 4096\n/a wait 7 0\n/a sync 0 0\n/a close\n")
                .unwrap();
        let ios = [io(Kind::Read, 0, 4096, 0), Line::Wait { until_ms: 7 }, io(Kind::Sync, 0, 0, 0)];
        assert_eq!(found[3..6], ios);
        let text = "fio version 3 iolog\n5 /a add\n9 /a open\n12 /a write 8192 512\n10 /a trim 0 1024\n40 /a datasync 3 4";
        let ios = [io(Kind::Write, 8192, 512, 3), io(Kind::Trim, 0, 1024, 0), io(Kind::Sync, 0, 0, 30)];
        assert_eq!(all(text).unwrap()[3..], ios);
    }

    // promise: BEN-52
    #[test]
    fn each_malformed_line_is_an_error_with_its_number() {
        let begin = "fio version 2 iolog\n/a add\n/a open\n";
        for (rest, found) in [
            ("/a read 0", "neither FILE ACTION OFFSET LENGTH"),
            ("", "neither"),
            ("/a read 0 4096 7", "neither"),
            ("/a read 0 0", "a length of 0 bytes"),
            ("/a read 0 1073741825", "a length of 1073741825 bytes"),
            ("/a read -1 512", "-1 for an offset"),
            ("/a read +1 512", "+1 for an offset"),
            ("/a read 99999999999999999999 512", "for an offset"),
            ("/a read 9223372036854775807 512", "beyond 8 EiB"),
            ("/a grow 0 512", "the action grow"),
            ("/a wait 5", "neither"),
            ("/b read 0 512", "reads /b, which isn't open"),
            ("/b open", "opens /b, which wasn't added"),
            ("fio version 2 iolog", "begins another list"),
        ] {
            let error = all(&format!("{begin}{rest}\n")).unwrap_err();
            assert_eq!(error.asked, "log line 4");
            assert!(error.found.contains(found), "{rest}: {error}");
        }
        assert!(all("rw, 0, 512").unwrap_err().found.contains("must be"));
        assert!(all("fio version 3 iolog\n1 /a wait 5 0").unwrap_err().found.contains("version 3"));
        assert!(all("fio version 3 iolog\nx /a add").unwrap_err().found.contains("a time"));
        let mut parser = Parser::new("log");
        assert!(parser.read(&[0xFF; 10]).unwrap_err().found.contains("isn't text"));
        assert!(parser.read(&[b'a'; LINE_BYTES_MAX + 1]).unwrap_err().found.contains("longer"));
    }

    // promise: BEN-52
    #[test]
    fn offsets_are_divided_aligned_and_kinds_left_out() {
        let recast = Recast::new(Some(2), Some(4096), Some("write,trim")).unwrap();
        let Line::Io(read) = io(Kind::Read, 20_000, 512, 0) else { unreachable!() };
        assert_eq!(recast.apply(read).unwrap().offset, 8192);
        assert_eq!(recast.apply(Io { kind: Kind::Write, ..read }), None);
        assert_eq!(Recast::default().apply(read), Some(read));
        assert!(Recast::new(None, Some(3), None).is_err() && Recast::new(None, None, Some("all")).is_err());
    }

    proptest! {
        // promise: BEN-52
        #[test]
        fn any_bytes_are_read_or_refused(lines in prop::collection::vec("(([0-9]{1,21}|/a|x) ){0,2}(add|open|close|read|wait|sync)?( -?[0-9]{1,21}){0,3}", 0..20), three: bool) {
            let mut parser = Parser::new("log");
            parser.read(if three { HEADER } else { HEADER_2 }.as_bytes()).unwrap();
            for line in lines {
                if let Ok(Line::Io(io)) = parser.read(line.as_bytes()) {
                    prop_assert!((io.file as usize) < parser.names().len() && io.offset + u64::from(io.len) <= OFFSET_MAX);
                }
            }
        }
    }
}
