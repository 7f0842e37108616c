//! The command line of the services `serve` and `snap`: flags and help, signals, systemd, output and exit codes. The
//! programs `forebayd` and `forebay` hand their words to `run`.

#![deny(unsafe_code)]

mod asked;
mod flags;
mod life;
mod notify;
mod output;
mod serve;
mod signals;
mod snap;
mod words;

pub use flags::NO_SUCH_FLAG;
pub use output::{locale_is_c, tell};
pub use signals::Signals;

use flags::{Given, Verb, SERVE, SNAP};
use forebay_model::Error;
use forebay_serve::{rpc_flags, RPC_VERBS};
use serde_json::{json, Value};
use std::ffi::OsString;

/// Commit that the build is of, where it was made in a repository.
pub const COMMIT: Option<&str> = option_env!("FOREBAY_COMMIT");

/// The program that the words were typed to.
pub struct Program {
    /// In help and errors: `forebay`.
    pub name: &'static str,
    /// Words that start it, before a verb. None: the file that runs.
    pub command: Vec<OsString>,
    /// The locale of its caller takes ASCII alone.
    pub ascii: bool,
}

impl Program {
    fn command(&self) -> Result<Vec<OsString>, Error> {
        if !self.command.is_empty() {
            return Ok(self.command.clone());
        }
        let failed =
            |e: std::io::Error| Error::machine(self.name, e.to_string(), format!("{} --help", self.name));
        Ok(vec![std::env::current_exe().map_err(failed)?.into_os_string()])
    }
}

/// Runs a verb with the words behind it, and returns the exit code. None: there is no such verb.
///
/// # Errors
/// What is to be told on stderr; its kind is the exit code.
pub fn run(
    program: &Program,
    verb: &str,
    words: &[String],
    signals: &mut Signals,
) -> Option<Result<u8, Error>> {
    output::set_ascii(program.ascii);
    match verb {
        "serve" => Some(serve(program, words, signals)),
        "snap" => Some(snap(program, words, signals)),
        _ => None,
    }
}

fn serve(program: &Program, words: &[String], signals: &mut Signals) -> Result<u8, Error> {
    match read(program, &SERVE, words)? {
        Ok(given) => serve::command(program, &given, signals),
        Err(help) => output::print(&help),
    }
}

fn snap(program: &Program, words: &[String], signals: &mut Signals) -> Result<u8, Error> {
    if words.first().is_some_and(|word| word == "rpc") {
        return snap::rpc(&words[1..], signals);
    }
    snap::refuse_flags_before_rpc(words)?;
    match read(program, &SNAP, words)? {
        Ok(given) => snap::command(program, words, &given, signals),
        Err(help) => output::print(&help),
    }
}

/// What was given to a verb, or its help.
fn read(program: &Program, verb: &Verb, words: &[String]) -> Result<Result<Given, String>, Error> {
    let given = verb.parse(program.name, words)?;
    Ok(if given.help { Err(verb.help(program.name)) } else { Ok(given) })
}

/// Each verb with its subject, flags, help and examples.
pub fn table() -> Value {
    json!([SERVE.table(), SNAP.table()])
}

/// (verb, its flags) of each RPC of `snap rpc`.
pub fn rpcs() -> Vec<(&'static str, Vec<String>)> {
    RPC_VERBS.iter().map(|verb| (verb.name, rpc_flags(verb))).collect()
}
