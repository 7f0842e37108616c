//! Source URIs, parsed into what can't be wrong.

use super::nvme_tcp::Transport;
use super::{nvme_tcp, stripe, vfio_user, SOURCES};
use forebay_model::units::{format_bytes, parse_bytes};
use forebay_model::Error;
use forebay_nvme::nqn;
use std::fmt;
use std::path::{Path, PathBuf};

/// Longest URI that is read, and how deep stripes may nest.
const TEXT_BYTES_MAX: usize = 64 << 10;
const NESTING_MAX: u32 = 4;
const CHUNK_DEFAULT: u64 = 512 << 10;
const NIL_BYTES: u64 = 1 << 40;
/// What a Unix socket's address has room for.
const SOCKET_BYTES_MAX: usize = 107;

#[derive(Clone, Debug, PartialEq)]
pub enum Uri {
    File(PathBuf),
    Stripe {
        chunk: u64,
        members: Vec<Uri>,
    },
    Nil {
        bytes: u64,
    },
    /// `spec` is what stands after `model:`, without `over` and `time`.
    Model {
        spec: String,
        over: Option<Box<Uri>>,
        real_time: bool,
    },
    NvmeTcp(Box<nvme_tcp::Options>),
    VfioUser(Box<vfio_user::Options>),
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

    pub fn scheme(&self) -> &'static str {
        match self {
            Uri::File(_) => "file",
            Uri::Stripe { .. } => "stripe",
            Uri::Nil { .. } => "nil",
            Uri::Model { .. } => "model",
            Uri::NvmeTcp(options) => options.transport.scheme(),
            Uri::VfioUser(_) => "vfio-user",
        }
    }

    /// Sources that this one is made of.
    pub fn parts(&self) -> Vec<&Uri> {
        match self {
            Uri::Stripe { members, .. } => members.iter().collect(),
            Uri::Model { over, .. } => over.as_deref().into_iter().collect(),
            _ => Vec::new(),
        }
    }

    /// Or what this version lacks for it.
    fn openable(&self) -> Result<(), &'static str> {
        let row = SOURCES.iter().find(|row| row.scheme == self.scheme()).expect("every scheme has a row");
        row.available?;
        self.parts().into_iter().try_for_each(Uri::openable)
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
        let Some((scheme, rest)) =
            text.split_once(':').filter(|(s, _)| SOURCES.iter().any(|row| row.scheme == *s))
        else {
            return parse_path(text);
        };
        match scheme {
            "file" => parse_path(rest.strip_prefix("//").unwrap_or(rest)),
            "nil" => parse_nil(text, rest),
            "stripe" => parse_stripe(text, rest, depth),
            "nvme+tcp" => parse_nvme(text, rest, Transport::Tcp),
            "nvme+rdma" => parse_nvme(text, rest, Transport::Rdma),
            "vfio-user" => parse_vfio_user(text, rest),
            _ => parse_model(text, rest, depth),
        }
    }
}

/// One line for messages: as typed, but for what stands for a default.
impl fmt::Display for Uri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Uri::File(path) => write!(f, "{}", path.display()),
            Uri::Stripe { chunk, members } => {
                write!(f, "stripe:?chunk={}", format_bytes(*chunk))?;
                members.iter().try_for_each(|m| write!(f, "&m={m}"))
            }
            Uri::Nil { bytes: NIL_BYTES } => f.write_str("nil:"),
            Uri::Nil { bytes } => write!(f, "nil:?size={}", format_bytes(*bytes)),
            Uri::Model { spec, over: None, .. } => write!(f, "model:{spec}"),
            Uri::Model { spec, over: Some(over), .. } => {
                write!(f, "model:{spec}{}over={over}", if spec.contains('?') { '&' } else { '?' })
            }
            Uri::NvmeTcp(options) => options.fmt(f),
            Uri::VfioUser(options) => options.fmt(f),
        }
    }
}

fn bad(text: &str, found: &str, next: &str) -> Error {
    Error::request(format!("source '{}'", shorten(text)), found, next)
}

fn parse_path(text: &str) -> Result<Uri, Error> {
    if text.is_empty() {
        return Err(bad(text, "is empty", "a path, stripe:?m=A&m=B, nil: or model:NAME"));
    }
    let scheme = text.split_once(':').map_or("", |(s, _)| s);
    if looks_like_scheme(scheme) && !Path::new(text).exists() {
        let all: Vec<_> = SOURCES.iter().map(|row| row.scheme).collect();
        return Err(bad(
            text,
            &format!("has a scheme that isn't one of {}", all.join(", ")),
            &format!("file:{text} if it is a file"),
        ));
    }
    Ok(Uri::File(PathBuf::from(text)))
}

fn parse_nil(text: &str, rest: &str) -> Result<Uri, Error> {
    let mut bytes = NIL_BYTES;
    for (key, value) in query(rest.trim_start_matches('?')) {
        match key.as_str() {
            "size" => bytes = parse_bytes(&value)?,
            _ => return Err(bad(text, &format!("'{key}' is no key of nil:"), "nil:?size=64g")),
        }
    }
    if bytes == 0 {
        return Err(bad(text, "its size is 0", "nil:?size=64g"));
    }
    Ok(Uri::Nil { bytes })
}

fn parse_stripe(text: &str, rest: &str, depth: u32) -> Result<Uri, Error> {
    let wrong = |found: String| Err(bad(text, &found, "stripe:?chunk=512k&m=/mnt/a/f&m=/mnt/b/f"));
    let (mut chunk, mut members) = (CHUNK_DEFAULT, Vec::new());
    for (key, value) in query(rest.trim_start_matches('?')) {
        match key.as_str() {
            "chunk" => chunk = parse_bytes(&value)?,
            "m" => members.push(Uri::nested(&value, depth + 1)?),
            _ => return wrong(format!("'{key}' is no key of stripe:")),
        }
    }
    if members.is_empty() || members.len() > stripe::MEMBERS_MAX {
        return wrong(format!("has {} members; a stripe has 1 to {}", members.len(), stripe::MEMBERS_MAX));
    }
    if !(512..=1 << 30).contains(&chunk) || chunk % 512 != 0 {
        return wrong(format!("a chunk of {chunk} bytes is not a multiple of 512 up to 1 GiB"));
    }
    Ok(Uri::Stripe { chunk, members })
}

fn parse_model(text: &str, rest: &str, depth: u32) -> Result<Uri, Error> {
    let (name, tail) = rest.split_once('?').unwrap_or((rest, ""));
    let (mut over, mut real_time, mut kept) = (None, None, Vec::new());
    for (key, value) in query(tail) {
        match (key.as_str(), value.as_str()) {
            ("over", path) => over = Some(Box::new(Uri::nested(path, depth + 1)?)),
            ("time", "real") => real_time = Some(true),
            ("time", "virtual") => real_time = Some(false),
            ("time", _) => {
                return Err(bad(
                    text,
                    &format!("time={value} is neither real nor virtual"),
                    "model:d7-ps1010?time=real",
                ))
            }
            _ => kept.push(format!("{key}={value}")),
        }
    }
    if over.is_some() && real_time == Some(false) {
        return Err(bad(text, "content can't be read in virtual time", "time=real, or no over="));
    }
    let spec = if kept.is_empty() { name.to_string() } else { format!("{name}?{}", kept.join("&")) };
    Ok(Uri::Model { spec, real_time: real_time.unwrap_or(over.is_some()), over })
}

/// `//HOST:PORT/NQN?…`; an IPv6 host stands in brackets.
fn parse_nvme(text: &str, rest: &str, transport: Transport) -> Result<Uri, Error> {
    let next = format!("{}://HOST:4420/NQN?nsid=1&queues=8", transport.scheme());
    let wrong = |found: &str| bad(text, found, &next);
    let (address, tail) = rest
        .strip_prefix("//")
        .and_then(|r| r.split_once('/'))
        .ok_or_else(|| wrong("isn't an address and an NQN"))?;
    let (nqn, tail) = tail.split_once('?').unwrap_or((tail, ""));
    let address = nvme_tcp::Address::parse(address).map_err(|why| wrong(&why))?;
    // The kernel's target takes any name, so the form of an NQN isn't asked for.
    if nqn.is_empty() || nqn.len() > nqn::BYTES_MAX || nqn.contains(char::is_control) {
        return Err(wrong("names no subsystem: an NQN has 1 to 223 bytes"));
    }
    let mut options = nvme_tcp::Options { transport, ..nvme_tcp::Options::new(address, nqn) };
    for (key, value) in query(tail) {
        options.set(&key, &value).map_err(|why| wrong(&why))?;
    }
    Ok(Uri::NvmeTcp(Box::new(options)))
}

fn parse_vfio_user(text: &str, rest: &str) -> Result<Uri, Error> {
    let wrong = |found: &str| bad(text, found, "vfio-user:/run/forebay.sock?nsid=1&queues=8");
    let (socket, tail) = rest.split_once('?').unwrap_or((rest, ""));
    let socket = decode(socket.strip_prefix("//").unwrap_or(socket));
    if socket.is_empty() {
        return Err(wrong("names no socket"));
    }
    if socket.len() > SOCKET_BYTES_MAX {
        return Err(wrong("names a socket by more than 107 bytes"));
    }
    let mut options = vfio_user::Options::new(socket.into());
    for (key, value) in query(tail) {
        options.set(&key, &value).map_err(|why| wrong(&why))?;
    }
    Ok(Uri::VfioUser(Box::new(options)))
}

fn looks_like_scheme(scheme: &str) -> bool {
    let letters = scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
    scheme.len() > 1 && letters && scheme.starts_with(|c: char| c.is_ascii_alphabetic())
}

/// `a=b&c=d` → pairs, percent-decoded. A word without `=` is a key with an empty value.
fn query(text: &str) -> Vec<(String, String)> {
    text.split('&')
        .filter(|w| !w.is_empty())
        .map(|word| {
            let (key, value) = word.split_once('=').unwrap_or((word, ""));
            (decode(key), decode(value))
        })
        .collect()
}

/// Percent-decoding; what isn't a well-formed escape stays as it is, for it may stand in a path.
fn decode(text: &str) -> String {
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
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn each_kind_parses() {
        assert_eq!(Uri::parse("/a/b").unwrap(), Uri::File("/a/b".into()));
        assert_eq!(Uri::parse("file:///a").unwrap(), Uri::File("/a".into()));
        assert_eq!(Uri::parse("nil:?size=1m").unwrap(), Uri::Nil { bytes: 1 << 20 });
        let stripe = Uri::parse("stripe:?chunk=64k&m=/a&m=nil:%3Fsize=1m").unwrap();
        assert_eq!(
            stripe,
            Uri::Stripe { chunk: 65536, members: vec![Uri::File("/a".into()), Uri::Nil { bytes: 1 << 20 }] }
        );
        assert_eq!(
            Uri::parse("model:d7-ps1010?drives=2&over=/x").unwrap(),
            Uri::Model {
                spec: "d7-ps1010?drives=2".into(),
                over: Some(Box::new(Uri::File("/x".into()))),
                real_time: true
            }
        );
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
            Ok(Uri::NvmeTcp(o)) => Some((o.addresses[0].host.clone(), o.addresses[0].port, o.nsid)),
            _ => None,
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
