//! `forebayd`: the services `serve` and `snap` of the command `forebay`, in a program that needs neither Python nor
//! anything else than glibc.

#![deny(unsafe_code)]

use forebay_model::{Error, Kind};
use forebayd::{tell, Program, Signals};
use std::ffi::OsString;
use std::process::ExitCode;

const USAGE: &str = "Usage: forebayd VERB …

  serve  Can other machines read this storage, over NVMe/TCP?
  snap   Can remote storage look like a local drive, to a machine or a virtual one?

forebayd VERB --help lists a verb's flags, forebayd --version says what this build is.";

#[global_allocator]
static ALLOCATOR: forebay_io::Allocator = forebay_io::Allocator;

fn main() -> ExitCode {
    forebay_io::announce_scarcity(|| true);
    forebay_io::set_build_commit(forebayd::COMMIT);
    let done = std::env::args_os().skip(1).map(text).collect::<Result<Vec<_>, _>>().and_then(|w| run(&w));
    ExitCode::from(done.unwrap_or_else(|error| {
        tell(&format!("forebay: {error}"), false);
        error.kind.exit_code() as u8
    }))
}

/// A word of the command line. Configurations and RPCs are JSON, which can only name what is UTF-8.
fn text(word: OsString) -> Result<String, Error> {
    word.into_string().map_err(|word| {
        let shown = word.as_encoded_bytes().escape_ascii();
        Error::request(
            format!("argument '{shown}'"),
            "isn't UTF-8, so a record couldn't name it",
            "a link to it: ln -s OLD NEW",
        )
    })
}

fn run(words: &[String]) -> Result<u8, Error> {
    let Some((verb, rest)) = words.split_first() else {
        tell(USAGE, false);
        return Ok(Kind::Request.exit_code() as u8);
    };
    let reported = match verb.as_str() {
        "--help" | "-h" => USAGE.to_string(),
        "--version" => version(),
        _ => {
            let program = Program { name: "forebayd", command: Vec::new(), ascii: forebayd::locale_is_c() };
            return forebayd::run(&program, verb, rest, &mut Signals::listen()?).unwrap_or_else(|| {
                Err(Error::request(format!("forebayd {verb}"), "there is no such verb", "forebayd --help"))
            });
        }
    };
    tell(&reported, true);
    Ok(0)
}

fn version() -> String {
    let build = forebay_io::current_build();
    let commit = build.commit.map_or(String::new(), |c| format!(" ({c})"));
    format!("forebayd {}{commit}\nfeatures: {}", build.version, build.features.join(" "))
}
