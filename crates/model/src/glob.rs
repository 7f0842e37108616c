//! Patterns of file names, as shells have them: `*`, `?`, `[a-z]`, `{jpg,png}`, and `**/` for folders of any depth.

use crate::Error;
use std::fmt;

/// Alternatives of braces, at most.
const ALTERNATIVES_MAX: usize = 1000;

/// A pattern of paths below a folder. One without a slash is of names, in folders of any depth; a slash before it
/// leaves the folder's own files.
#[derive(Clone, Debug)]
pub struct Glob {
    text: String,
    alternatives: Vec<Vec<Part>>,
}

impl fmt::Display for Glob {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[derive(Clone, Debug, PartialEq)]
enum Part {
    Byte(u8),
    /// Any byte of a name.
    One,
    /// Any number of bytes of a name.
    Any,
    /// Any number of folders, each with its slash.
    Folders,
    /// All that is left, and something at least.
    Rest,
    Class {
        ranges: Vec<(u8, u8)>,
        negated: bool,
    },
}

impl Glob {
    pub fn parse(text: &str) -> Result<Glob, Error> {
        let bad = |found: &str| {
            Error::request(format!("‹glob› '{text}'"), found, "‹glob› '*.jpg', or '**/train/*.{jpg,png}'")
        };
        if text.trim_matches('/').is_empty() {
            return Err(bad("names no file"));
        }
        let mut all = Vec::new();
        alternatives(text, &mut all).map_err(bad)?;
        let parts = |one: &String| parts(&rooted(one)).ok_or_else(|| bad("has a [ without its ]"));
        let text = text.into();
        Ok(Glob { text, alternatives: all.iter().map(parts).collect::<Result<_, _>>()? })
    }

    /// `path`: below the folder, with slashes between its names and none before them.
    pub fn matches(&self, path: &[u8]) -> bool {
        self.alternatives.iter().any(|parts| fits(parts, path))
    }
}

/// Appends each way to read the braces of `text`.
fn alternatives(text: &str, all: &mut Vec<String>) -> Result<(), &'static str> {
    let Some(open) = text.find('{') else {
        if all.len() == ALTERNATIVES_MAX {
            return Err("stands for more than 1,000 patterns");
        }
        all.push(text.into());
        return Ok(());
    };
    let (mut depth, mut from, mut between) = (0, open + 1, Vec::new());
    for (at, byte) in text.bytes().enumerate().skip(open) {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            b',' if depth == 1 => {
                between.push(&text[from..at]);
                from = at + 1;
            }
            _ => {}
        }
        if depth == 0 {
            between.push(&text[from..at]);
            return between.into_iter().try_for_each(|one| {
                alternatives(&format!("{}{one}{}", &text[..open], &text[at + 1..]), all)
            });
        }
    }
    Err("has a { without its }")
}

/// The pattern from the folder on.
fn rooted(text: &str) -> String {
    let text = text.strip_prefix("./").unwrap_or(text);
    match text.strip_prefix('/') {
        Some(anchored) => anchored.into(),
        None if text.contains('/') => text.into(),
        None => format!("**/{text}"),
    }
}

/// None if a class doesn't end.
fn parts(text: &str) -> Option<Vec<Part>> {
    let (mut parts, mut rest) = (Vec::new(), text.as_bytes());
    while let Some(byte) = rest.first() {
        let at_start = parts.last().is_none_or(|last| matches!(last, Part::Byte(b'/') | Part::Folders));
        let (part, taken) = match byte {
            b'*' if at_start && rest == b"**" => (Part::Rest, 2),
            b'*' if at_start && rest.starts_with(b"**/") => (Part::Folders, 3),
            b'*' => (Part::Any, rest.iter().take_while(|b| **b == b'*').count()),
            b'?' => (Part::One, 1),
            b'[' => class(rest)?,
            byte => (Part::Byte(*byte), 1),
        };
        parts.push(part);
        rest = &rest[taken..];
    }
    Some(parts)
}

/// A class, and its length. A bracket right behind the opening one is of the class.
fn class(text: &[u8]) -> Option<(Part, usize)> {
    let negated = matches!(text.get(1), Some(b'!' | b'^'));
    let from = if negated { 2 } else { 1 };
    let end = from + 1 + text.get(from + 1..)?.iter().position(|b| *b == b']')?;
    let (mut ranges, mut left) = (Vec::new(), &text[from..end]);
    while let [first, more @ ..] = left {
        let (last, after) = match more {
            [b'-', last, after @ ..] => (last, after),
            _ => (first, more),
        };
        ranges.push((*first, *last));
        left = after;
    }
    Some((Part::Class { ranges, negated }, end + 1))
}

impl Part {
    fn takes(&self, byte: u8) -> bool {
        match self {
            Part::Byte(own) => *own == byte,
            Part::One => byte != b'/',
            Part::Class { ranges, negated } => {
                byte != b'/' && ranges.iter().any(|(a, b)| (*a..=*b).contains(&byte)) != *negated
            }
            Part::Any | Part::Folders | Part::Rest => false,
        }
    }
}

/// Goes back to the last `Any` alone, and from there to the last `Folders`: what lies before either fits already.
fn fits(parts: &[Part], path: &[u8]) -> bool {
    let (mut part, mut at) = (0, 0);
    let (mut any, mut folders) = (None::<(usize, usize)>, None::<(usize, usize)>);
    loop {
        match parts.get(part) {
            None if at == path.len() => return true,
            Some(Part::Rest) if at < path.len() => return true,
            Some(Part::Any) => {
                part += 1;
                any = Some((part, at));
                continue;
            }
            Some(Part::Folders) => {
                part += 1;
                (any, folders) = (None, Some((part, at)));
                continue;
            }
            Some(one) if path.get(at).is_some_and(|byte| one.takes(*byte)) => {
                (part, at) = (part + 1, at + 1);
                continue;
            }
            _ => {}
        }
        let longer = any.filter(|(_, at)| path.get(*at).is_some_and(|byte| *byte != b'/'));
        let deeper = || {
            let (part, at) = folders?;
            Some((part, at + 1 + path[at..].iter().position(|byte| *byte == b'/')?))
        };
        if let Some((after, from)) = longer {
            any = Some((after, from + 1));
            (part, at) = (after, from + 1);
        } else if let Some(next) = deeper() {
            (any, folders) = (None, Some(next));
            (part, at) = next;
        } else {
            return false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise: BEN-50
    #[test]
    fn a_pattern_chooses_what_a_shell_would_and_names_without_a_slash_at_any_depth() {
        for (glob, fits, others) in [
            ("*.jpg", "a.jpg x/b.jpg x/y/.jpg", "a.JPG a.jpg.txt a.jpeg jpg"),
            ("/*.jpg", "a.jpg", "x/a.jpg"),
            ("./x/*.jpg", "x/a.jpg", "a.jpg x/y/a.jpg"),
            ("**/*.jpg", "a.jpg x/a.jpg x/y/a.jpg", "a.png x/a.jpg/b"),
            ("x/**/z/*", "x/z/a x/y/z/a x/z/z/z/a", "x/a z/a x/z/a/b y/x/z/a"),
            ("x/**", "x/a x/y/a", "x y/a"),
            ("a*b*c", "abc axxbxxc abbc x/abcbc", "ab abcx a/bc"),
            ("*a/*b", "a/b xa/xb aa/bb", "a/a/b ab xa/b/c"),
            ("shard-??.tar", "shard-01.tar", "shard-1.tar shard-001.tar"),
            ("[0-9a]*.{jpg,j{pe,p2}g}", "7.jpg a1.jpeg x/0.jp2g", "b.jpg 7.png 7.jp"),
            ("[!.]x[]-]", "ax] bx-", ".x] ax axx]"),
            ("a**b", "ab axyb", "a/b"),
        ] {
            let parsed = Glob::parse(glob).unwrap();
            fits.split(' ').for_each(|path| assert!(parsed.matches(path.as_bytes()), "{glob} {path}"));
            others.split(' ').for_each(|path| assert!(!parsed.matches(path.as_bytes()), "{glob} {path}"));
        }
        for bad in ["", "/", "a[b", "[]", "{a,b", &"{a,b}".repeat(20)] {
            let error = Glob::parse(bad).unwrap_err();
            assert!(error.asked.starts_with("‹glob›") && !error.next.is_empty(), "{error}");
        }
    }
}
