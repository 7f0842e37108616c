//! Flags as tables: what a command line is read by, and what help, completion and manual pages are made of.

use forebay_model::wording::nearest;
use forebay_model::Error;
use serde_json::{json, Value};
use std::collections::BTreeMap;
use std::fmt::Write as _;

pub struct Flag {
    /// Without `--`.
    pub long: &'static str,
    pub short: Option<&'static str>,
    /// Name of its value in help; None if it takes none.
    pub value: Option<&'static str>,
    pub many: bool,
    /// Its value where it is given without one.
    pub bare: Option<&'static str>,
    /// Its values, where it takes no others; the first is the one to suggest.
    pub words: &'static [&'static str],
    pub help: &'static str,
}

pub struct Verb {
    pub name: &'static str,
    /// The positional argument in help.
    pub subject: &'static str,
    /// Paragraphs.
    pub about: &'static str,
    pub flags: &'static [Flag],
    /// Words behind the verb, one example a line.
    pub examples: &'static [&'static str],
}

/// What somebody asks a verb for who gives a flag that it hasn't.
pub const NO_SUCH_FLAG: &str = "there is no such flag";

/// A command line of one verb.
#[derive(Debug, Default, PartialEq)]
pub struct Given {
    pub subject: Option<String>,
    values: BTreeMap<&'static str, Vec<String>>,
    pub help: bool,
}

impl Given {
    pub fn is(&self, long: &str) -> bool {
        self.values.contains_key(long)
    }

    /// The last one given.
    pub fn text(&self, long: &str) -> Option<&str> {
        self.values.get(long).and_then(|all| all.last()).map(String::as_str)
    }

    pub fn all(&self, long: &str) -> &[String] {
        self.values.get(long).map_or(&[], |all| all)
    }

    /// The flags that were given, in the table's order.
    pub fn named<'a>(&'a self, verb: &'a Verb) -> impl Iterator<Item = &'a str> {
        verb.flags.iter().map(|f| f.long).filter(|long| self.is(long))
    }
}

impl Verb {
    /// # Errors
    /// `Request`: a flag that there isn't, a value too few or too many, two subjects.
    pub fn parse(&self, program: &str, words: &[String]) -> Result<Given, Error> {
        let mut given = Given::default();
        let mut words = words.iter();
        let mut flags_ended = false;
        while let Some(word) = words.next() {
            if flags_ended || word == "-" || !word.starts_with('-') {
                if given.subject.replace(word.clone()).is_some() {
                    let found = format!("there is one {} already", self.subject);
                    return Err(Error::request(word, found, self.try_help(program)));
                }
            } else if word == "--" {
                flags_ended = true;
            } else if word == "--help" || word == "-h" {
                given.help = true;
            } else {
                self.flag(program, word, &mut words, &mut given)?;
            }
        }
        Ok(given)
    }

    fn flag<'a>(
        &self,
        program: &str,
        word: &str,
        words: &mut (impl Iterator<Item = &'a String> + Clone),
        given: &mut Given,
    ) -> Result<(), Error> {
        let (name, inline) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value.to_string())),
            None => (word, None),
        };
        let matches = |f: &&Flag| name.strip_prefix("--") == Some(f.long) || f.short == Some(name);
        let Some(flag) = self.flags.iter().find(matches) else {
            return Err(Error::request(name, NO_SUCH_FLAG, self.meant(program, name)));
        };
        let value = match (flag.value, inline, flag.bare) {
            (None, None, _) => String::new(),
            (None, Some(_), _) => {
                return Err(Error::request(name, "takes no value", format!("{name} alone")))
            }
            (Some(_), Some(value), _) => value,
            (Some(_), None, bare) => {
                let next = words.clone().next().filter(|w| bare.is_none() || !w.starts_with('-'));
                if next.is_some() {
                    words.next();
                }
                match next.map(String::as_str).or(bare) {
                    Some(value) => value.to_string(),
                    None => return Err(Error::request(name, "has no value", flag.spelled())),
                }
            }
        };
        if !flag.words.is_empty() && flag.value.is_some() && !flag.words.contains(&value.as_str()) {
            let found = format!("is not one of {}", flag.words.join(", "));
            return Err(Error::request(
                format!("{name} {value}"),
                found,
                format!("{name} {}", flag.words[0]),
            ));
        }
        let all = given.values.entry(flag.long).or_default();
        if !flag.many {
            all.clear();
        }
        all.push(value);
        Ok(())
    }

    fn try_help(&self, program: &str) -> String {
        format!("{program} {} --help", self.name)
    }

    /// The flag nearest to one that there isn't, else how to see all.
    fn meant(&self, program: &str, name: &str) -> String {
        let long = name.strip_prefix("--");
        let near = long.and_then(|long| nearest(long, self.flags.iter().map(|f| f.long)));
        near.map_or_else(|| self.try_help(program), |near| format!("--{near}"))
    }

    pub fn help(&self, program: &str) -> String {
        let (name, about) = (self.name, self.about.replace('\n', "\n  ").replace("\n  \n", "\n\n"));
        let mut text =
            format!("Usage: {program} {name} [OPTIONS] {}\n\n  {about}\n\nOptions:\n", self.subject);
        let help = Flag { short: Some("-h"), ..flag("help", "Show this message and exit.") };
        let flags = || self.flags.iter().chain([&help]);
        let width = flags().map(|flag| flag.spelled().len()).max().unwrap_or(0);
        for flag in flags() {
            let _ = writeln!(text, "  {:width$}  {}", flag.spelled(), flag.help);
        }
        text.push_str("\nExamples:\n");
        self.examples.iter().for_each(|words| text.push_str(&format!("  {program} {name} {words}\n")));
        text
    }

    /// For who makes completion and manual pages of it.
    pub fn table(&self) -> Value {
        let flag = |f: &Flag| {
            let names: Vec<String> =
                [Some(format!("--{}", f.long)), f.short.map(Into::into)].into_iter().flatten().collect();
            json!({ "names": names, "value": f.value, "many": f.many, "bare": f.bare, "words": f.words, "help": f.help })
        };
        json!({
            "verb": self.name,
            "subject": self.subject,
            "about": self.about,
            "flags": self.flags.iter().map(flag).collect::<Vec<_>>(),
            "examples": self.examples,
        })
    }
}

impl Flag {
    fn spelled(&self) -> String {
        let short = self.short.map_or(String::new(), |s| format!("{s}, "));
        format!("{short}--{}{}", self.long, self.value.map_or(String::new(), |v| format!(" {v}")))
    }
}

const fn flag(long: &'static str, help: &'static str) -> Flag {
    Flag { long, short: None, value: None, many: false, bare: None, words: &[], help }
}

const fn valued(long: &'static str, value: &'static str, help: &'static str) -> Flag {
    Flag { long, short: None, value: Some(value), many: false, bare: None, words: &[], help }
}

const fn quiet() -> Flag {
    Flag { short: Some("-q"), ..flag("quiet", "Log only warnings and errors; print no totals.") }
}

const fn log() -> Flag {
    Flag {
        words: &["json", "text", "off"],
        ..valued("log", "FORMAT", "Log on stderr: text, json or off. Default: text.")
    }
}

pub const SERVE: Verb = Verb {
    name: "serve",
    subject: "SOURCE|CONFIG.toml",
    about:
        "Serve SOURCE (a file, a block device, stripe:, nil:, model:, nvme+tcp:) to NVMe/TCP and NVMe/RDMA\n\
            hosts, or all that CONFIG.toml names (docs/serve.md).\n\n\
            Prints \"listening on ...\" once it is ready for hosts. SIGHUP rereads CONFIG.toml: it adds and removes\n\
            namespaces and sets their ANA states. On SIGINT and SIGTERM commands may finish before it ends; a\n\
            second signal ends it at once.",
    flags: &[
        valued("nqn", "NQN", "The name that hosts connect to, e.g. nqn.2026-01.io.example:big."),
        Flag {
            many: true,
            ..valued("listen", "ADDRESS", "Address and port; may be repeated. Default: 127.0.0.1:4420.")
        },
        Flag {
            many: true,
            ..valued(
                "listen-rdma",
                "ADDRESS",
                "Address and port of an RDMA card. Without --listen, the target is on RDMA only.",
            )
        },
        flag("writable", "Let hosts write. Default: read-only."),
        Flag {
            many: true,
            ..valued("allow", "HOSTNQN", "Allow only this host; may be repeated. Default: any host.")
        },
        valued("serial", "TEXT", "Serial number, at most 20 characters. Default: derived from the NQN."),
        valued("block-size", "SIZE", "Logical block: 512 or 4096."),
        Flag {
            words: &["auto", "bypass", "allow"],
            ..valued("cache", "POLICY", "Page cache: auto, bypass (O_DIRECT) or allow.")
        },
        valued("threads", "N", "Number of serving threads. Default: one per CPU, at most 8."),
        valued("cpus", "LIST", "CPUs to pin the threads to, in turn, e.g. 0-3,8. Default: not pinned."),
        valued(
            "spin-us",
            "N",
            "Poll this long before sleeping, in microseconds. Default: a moment, if that pays.",
        ),
        valued("max-transfer", "SIZE", "Maximum transfer size of one command. Default: 1m."),
        flag("mdns", "Announce the discovery service on the local network, by multicast DNS."),
        valued("metrics", "ADDRESS", "Serve Prometheus metrics on this port (loopback only) or HOST:PORT."),
        valued("drain", "SECONDS", "Time for commands to finish at shutdown. Default: 10."),
        log(),
        flag("check", "Check the configuration without opening anything, then exit."),
        Flag {
            bare: Some("sha256"),
            words: &["sha256", "sha384", "sha512", "none"],
            ..valued(
                "new-key",
                "HASH",
                "Print a new key for dhchap_key, and exit. HASH: sha256, sha384, sha512 or none.",
            )
        },
        flag("json", "Print totals as one JSON document on stdout at the end."),
        quiet(),
    ],
    examples: &[
        "/data/big.bin --nqn nqn.2026-01.io.example:big",
        "/dev/nvme0n1 --nqn nqn.2026-01.io.example:raw --listen 0.0.0.0:4420 --allow HOSTNQN",
        "'stripe:?m=/nvme0/a&m=/nvme1/a' --nqn nqn.2026-01.io.example:s --writable",
        "/etc/forebay/serve.toml",
        "--check /etc/forebay/serve.toml",
    ],
};

pub const SNAP: Verb = Verb {
    name: "snap",
    subject: "CONFIG.toml|rpc VERB …",
    about: "Present sources (above all nvme+tcp:) as NVMe drives to virtual machines (vfio-user), as CONFIG.toml says\n\
            (docs/snap.md).\n\n\
            Prints \"ready: ...\" once it is ready for hosts. snap rpc VERB controls a running gateway with the commands\n\
            of NVIDIA's SNAP: list, create, attach, suspend, resume, statistics. On SIGINT and SIGTERM commands may\n\
            finish before it ends; a second signal ends it at once.",
    flags: &[
        valued("rpc", "PATH", "Socket for RPCs, or off. Default: the file's, or snap.sock in the runtime directory."),
        flag(
            "take-over",
            "Replace the gateway running at the RPC socket without hosts noticing; if none runs, start.",
        ),
        flag("keep", "Restart the gateway if it is killed; hosts stay connected."),
        valued("drain", "SECONDS", "Time for commands to finish at shutdown. Default: 10."),
        log(),
        flag("check", "Check the configuration without opening anything, then exit."),
        flag("json", "Print totals as one JSON document on stdout at the end."),
        quiet(),
    ],
    examples: &[
        "/etc/forebay/snap.toml",
        "--check /etc/forebay/snap.toml",
        "--take-over /etc/forebay/snap.toml",
        "--keep /etc/forebay/snap.toml",
        "rpc nvme_controller_list",
        "rpc nvme_controller_suspend --ctrl NVMeCtrl1",
        "rpc --help",
    ],
};

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Given, Error> {
        SERVE.parse("forebayd", &line.split_whitespace().map(Into::into).collect::<Vec<_>>())
    }

    #[test]
    fn flags_come_in_any_order_and_spelling() {
        let given = parsed("--nqn a /dev/x --listen 1 --listen=2 -q --threads 4 --threads 5").unwrap();
        assert_eq!(given.subject.as_deref(), Some("/dev/x"));
        assert_eq!(
            (given.text("nqn"), given.all("listen"), given.text("threads")),
            (Some("a"), &["1".into(), "2".into()][..], Some("5"))
        );
        assert!(given.is("quiet") && !given.is("check"));
        assert_eq!(given.named(&SERVE).collect::<Vec<_>>(), ["nqn", "listen", "threads", "quiet"]);
        assert_eq!(parsed("--new-key").unwrap().text("new-key"), Some("sha256"));
        assert_eq!(parsed("--new-key none").unwrap().text("new-key"), Some("none"));
        assert_eq!(parsed("--new-key --quiet").unwrap().text("new-key"), Some("sha256"));
        assert_eq!(parsed("-- --odd").unwrap().subject.as_deref(), Some("--odd"));
        assert!(parsed("--help").unwrap().help && parsed("a -h").unwrap().help);
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        for (line, found, next) in [
            ("--nq a", NO_SUCH_FLAG, "--nqn"),
            ("--verbosity", NO_SUCH_FLAG, "forebayd serve --help"),
            ("-x", NO_SUCH_FLAG, "forebayd serve --help"),
            ("--nqn", "has no value", "--nqn NQN"),
            ("a b", "there is one SOURCE|CONFIG.toml already", "forebayd serve --help"),
            ("--check=1", "takes no value", "--check alone"),
        ] {
            let error = parsed(line).unwrap_err();
            assert_eq!((error.found.as_str(), error.next.as_str()), (found, next), "{line}");
        }
    }

    #[test]
    fn help_has_every_flag() {
        for verb in [SERVE, SNAP] {
            let text = verb.help("forebay");
            assert!(verb.flags.iter().all(|f| text.contains(&f.spelled()) && text.contains(f.help)));
            assert!(verb
                .examples
                .iter()
                .all(|words| text.contains(&format!("\n  forebay {} {words}\n", verb.name))));
        }
    }
}
