//! Source URIs, parsed into what can't be wrong.

use super::plan::Uri;
use super::{SourceMedium, SourceRow, SOURCES};
use forebay_model::Error;

/// Longest URI that is read, and how deep stripes may nest.
const TEXT_BYTES_MAX: usize = 64 << 10;
const NESTING_MAX: u32 = 4;

/// The text of a URI, for the one that reads its kind.
#[derive(Clone, Copy)]
pub struct Text<'a> {
    /// All of it.
    pub whole: &'a str,
    /// Behind `scheme:`; all of it, where none is named.
    pub rest: &'a str,
    depth: u32,
}

impl Text<'_> {
    /// A source inside this one.
    pub fn part(&self, text: &str) -> Result<Uri, Error> {
        Uri::nested(text, self.depth + 1)
    }

    pub fn wrong(&self, found: &str, next: &str) -> Error {
        bad(self.whole, found, next)
    }
}

impl Uri {
    /// A path, or `scheme:rest`. Values inside a query are percent-decoded, so that a member may be a URI itself.
    /// Refuses what this version can't open.
    pub fn parse(text: &str) -> Result<Uri, Error> {
        let uri = Uri::recognise(text)?;
        uri.openable().map_err(|lacking| {
            let found = format!("this version lacks {lacking}");
            Error::machine(format!("source '{}'", shorten(text)), found, "a file, stripe:, nil: or model:")
        })?;
        Ok(uri)
    }

    /// As `parse`, but sources that this version can't open are sources too: for looking at them.
    pub fn recognise(text: &str) -> Result<Uri, Error> {
        Uri::nested(text, 0)
    }

    pub fn medium(&self) -> SourceMedium {
        SourceMedium::combined(self.made_of(), self.parts().iter().map(Uri::medium))
    }

    /// Or what this version lacks for it.
    fn openable(&self) -> Result<(), &'static str> {
        let row = SOURCES.iter().find(|row| row.scheme == self.scheme()).expect("every scheme has a row");
        row.available?;
        self.parts().iter().try_for_each(Uri::openable)
    }

    fn nested(text: &str, depth: u32) -> Result<Uri, Error> {
        if text.len() > TEXT_BYTES_MAX {
            return Err(bad(text, "is longer than 64 KiB", "fewer members"));
        }
        if text.contains('\0') {
            return Err(bad(text, "has a zero byte in it", "a path without one"));
        }
        if depth > NESTING_MAX {
            return Err(bad(text, "nests more than four deep", "a flat stripe"));
        }
        match named(text) {
            Some((row, rest)) => (row.parse)(Text { whole: text, rest, depth }),
            None => (SOURCES[0].parse)(Text { whole: text, rest: text, depth }),
        }
    }
}

/// The row of the scheme that a text begins with, and what stands behind `scheme:`.
pub(super) fn named(text: &str) -> Option<(&'static SourceRow, &str)> {
    let (scheme, rest) = text.split_once(':')?;
    Some((SOURCES.iter().find(|row| row.scheme == scheme)?, rest))
}

pub(crate) fn bad(text: &str, found: &str, next: &str) -> Error {
    Error::request(format!("source '{}'", shorten(text)), found, next)
}

/// `a=b&c=d` → pairs, percent-decoded. A word without `=` is a key with an empty value.
pub(crate) fn query(text: &str) -> Vec<(String, String)> {
    text.split('&')
        .filter(|w| !w.is_empty())
        .map(|word| {
            let (key, value) = word.split_once('=').unwrap_or((word, ""));
            (decode(key), decode(value))
        })
        .collect()
}

/// As `query`, of keys of which each is named once, but for `several`.
///
/// # Errors
/// The one that is named twice.
pub(crate) fn query_once(text: &str, several: &str) -> Result<Vec<(String, String)>, String> {
    let pairs = query(text);
    let twice = |(at, (key, _)): (usize, &(String, String))| {
        (key != several && pairs[..at].iter().any(|(other, _)| other == key)).then(|| key.clone())
    };
    match pairs.iter().enumerate().find_map(twice) {
        Some(key) => Err(format!("names '{key}' twice")),
        None => Ok(pairs),
    }
}

/// Encodes text for `decode`, without what ends a name in a URI or means something to a shell.
pub(crate) fn encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '%' | '?' | '#' | '&' | ' ' | '"' | '\'' | '\\' | '$' | '`' | '|' | ';' | '<' | '>' | '*'
            | '!' | '(' | ')' => {
                out.push_str(&format!("%{:02X}", character as u32));
            }
            other => out.push(other),
        }
    }
    out
}

/// Percent-decoding; what isn't a well-formed escape stays as it is, for it may stand in a path.
pub(crate) fn decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let hex = |i: usize| {
        let digits = std::str::from_utf8(bytes.get(i + 1..i + 3)?).ok()?;
        u8::from_str_radix(digits, 16).ok()
    };
    let mut out = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while i < bytes.len() {
        match hex(i).filter(|_| bytes[i] == b'%') {
            Some(byte) => {
                out.push(byte);
                i += 3;
            }
            None => {
                out.push(bytes[i]);
                i += 1;
            }
        }
    }
    String::from_utf8(out).unwrap_or_else(|_| text.to_string())
}

fn shorten(text: &str) -> String {
    let head: String = text.chars().take(200).collect();
    if head.len() < text.len() {
        head + "…"
    } else {
        head
    }
}

#[cfg(test)]
mod tests {
    use super::super::nvme_tcp::Options;
    use super::*;
    use proptest::prelude::*;
    use std::path::Path;

    #[test]
    fn each_kind_parses() {
        let uri = |text: &str| Uri::parse(text).unwrap();
        assert_eq!(uri("/a/b").path(), Some(Path::new("/a/b")));
        assert_eq!(uri("//a/b").path(), Some(Path::new("//a/b")));
        assert_eq!(uri("file:///a").path(), Some(Path::new("/a")));
        assert_eq!(uri("nil:?size=1m").to_string(), "nil:?size=1m");
        let stripe = uri("stripe:?chunk=64k&m=/a&m=nil:%3Fsize=1m");
        assert_eq!((stripe.scheme(), stripe.chunk()), ("stripe", Some(65536)));
        assert_eq!(stripe.parts(), [uri("/a"), uri("nil:?size=1m")]);
        let model = uri("model:d7-ps1010?drives=2&over=/x");
        assert_eq!(model.timed(), Some("d7-ps1010?drives=2"));
        assert_eq!(model.parts(), [uri("/x")]);
        assert_ne!(uri("model:d7-ps1010"), uri("model:d7-ps1010?time=real"), "they read alike and aren't");
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, found) in [
            ("", "empty"),
            ("file:", "empty"),
            ("ftp://x", "scheme"),
            ("stripe:", "0 members"),
            ("stripe:?chunk=100&m=/a", "multiple of 512"),
            ("stripe:?m=/a&x=1", "'x'"),
            ("nil:?bytes=1", "'bytes'"),
            ("model:x?time=soon", "neither"),
            ("nvme+tcp://h:1/", "NQN"),
            ("nvme+tcp:h", "address"),
            ("nvme+tcp://h:1/nqn.2014-08.org.example:a?queues=2&queues=3", "'queues' twice"),
            ("vfio-user:/s?nsid=1&queues=3&nsid=1", "'nsid' twice"),
            ("nvme+tcp://h:1/nqn.2014-08.org.example:a?nr=1", "'nr'"),
            ("vfio-user:", "socket"),
            ("stripe:?m=vfio-user:/s%3Fqueue=1", "'queue'"),
            ("vfio-user:/s?queues=0", "queues"),
        ] {
            let error = Uri::parse(text).unwrap_err();
            assert!(error.to_string().contains(found), "{text}: {error}");
        }
    }

    #[test]
    fn remote_addresses_come_with_and_without_brackets_and_port() {
        let address = |text: &str| match Uri::parse(&format!("nvme+tcp:{text}")) {
            Ok(uri) => {
                Options::from_uri(&uri).map(|o| (o.addresses[0].host.clone(), o.addresses[0].port, o.nsid))
            }
            Err(_) => None,
        };
        let nqn = "nqn.2014-08.org.example:a";
        let of = |text: &str| address(&text.replace("NQN", nqn));
        assert_eq!(of("//10.0.0.2:4421/NQN?nsid=3"), Some(("10.0.0.2".into(), 4421, 3)));
        assert_eq!(of("//[fe80::1]:4420/NQN"), Some(("fe80::1".into(), 4420, 1)));
        assert_eq!(of("//[fe80::1]/NQN"), Some(("fe80::1".into(), 4420, 1)));
        for bad in ["//host:99999/NQN", "//host:1/", "//host:1/NQN?nsid=0", "//host:1/NQN?x=1", "//:1/NQN"] {
            assert_eq!(of(bad), None, "{bad}");
        }
        let shown = Uri::parse(&format!("nvme+tcp://[::1]/{nqn}")).unwrap().to_string();
        assert_eq!(shown, format!("nvme+tcp://[::1]:4420/{nqn}"));
    }

    proptest! {
        #[test]
        fn nothing_panics(text in ".{0,200}") {
            let _ = Uri::parse(&text);
            let _ = Uri::parse(&format!("stripe:?{text}"));
            let _ = Uri::parse(&format!("model:{text}"));
            let _ = Uri::parse(&format!("nil:?{text}"));
            let _ = Uri::recognise(&format!("nvme+tcp:{text}")).map(|u| u.to_string());
        }
    }
}
