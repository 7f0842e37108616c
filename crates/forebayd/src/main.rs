//! `forebayd`: the services `serve` and `snap` of the command `forebay`, with the same flags, files, words and exit codes,
//! in a program that needs neither Python nor anything else than glibc.

#![deny(unsafe_code)]

mod asked;
mod flags;
mod life;
mod notify;
mod serve;
mod signals;
mod snap;
mod words;

use flags::{Verb, SERVE, SNAP};
use forebay_model::{Error, Kind};
use life::tell;
use std::process::ExitCode;

const USAGE: &str = "Usage: forebayd VERB …

  serve  Can other machines read this storage, over NVMe/TCP?
  snap   Can remote storage look like a local drive, to a machine or a virtual one?

forebayd VERB --help lists a verb's flags, forebayd --version says what this build is.";

#[global_allocator]
static ALLOCATOR: forebay_io::scarce::Allocator = forebay_io::scarce::Allocator;

fn main() -> ExitCode {
    forebay_io::scarce::answer(|| true);
    forebay_io::build::built_from(option_env!("FOREBAY_COMMIT"));
    let words: Vec<String> = std::env::args_os().skip(1).map(|w| w.to_string_lossy().into_owned()).collect();
    run(&words).unwrap_or_else(|error| {
        tell(&format!("forebay: {error}"), false);
        ExitCode::from(error.kind.exit_code() as u8)
    })
}

fn run(words: &[String]) -> Result<ExitCode, Error> {
    let Some((verb, rest)) = words.split_first() else {
        tell(USAGE, false);
        return Ok(ExitCode::from(Kind::Request.exit_code() as u8));
    };
    match verb.as_str() {
        "serve" => with(&SERVE, rest, serve::command),
        "snap" if rest.first().is_some_and(|w| w == "rpc") => snap::rpc(&rest[1..]),
        "snap" => with(&SNAP, rest, snap::command),
        "--help" | "-h" => say(USAGE),
        "--version" => say(&version()),
        // What tests compare with the Python command's.
        "--flags" => say(&serde_json::json!([SERVE.table(), SNAP.table()]).to_string()),
        other => Err(Error::request(format!("forebayd {other}"), "there is no such verb", "forebayd --help")),
    }
}

fn with(
    verb: &Verb,
    words: &[String],
    command: fn(&flags::Given) -> Result<ExitCode, Error>,
) -> Result<ExitCode, Error> {
    let given = verb.parse(words)?;
    if given.help {
        return say(verb.help().trim_end());
    }
    command(&given)
}

fn say(text: &str) -> Result<ExitCode, Error> {
    tell(text, true);
    Ok(ExitCode::SUCCESS)
}

fn version() -> String {
    let build = forebay_io::build::build();
    let commit = build.commit.map_or(String::new(), |c| format!(" ({c})"));
    format!("forebayd {}{commit}\nfeatures: {}", build.version, build.features.join(" "))
}
