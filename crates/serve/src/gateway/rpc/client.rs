//! `forebay snap rpc`: words of a command line as one request, sent, and its answer.

use super::arguments::{Kind, Parameter, Verb};
pub use super::call::call_gateway;
pub(crate) use super::call::call_while;
use super::verbs::VERBS;
use crate::gateway::config;
use forebay_model::wording::nearest;
use forebay_model::Error;
use serde_json::{Map, Value};
use std::fmt::Write as _;

/// Request of the words after `forebay snap rpc`.
#[derive(Clone, Debug, PartialEq)]
pub enum Asked {
    Call {
        /// The gateway's socket, where it was named.
        socket: Option<String>,
        method: String,
        params: Map<String, Value>,
    },
    /// In words, to be shown.
    Help(String),
}

/// Runs `forebay snap rpc WORDS`, and returns the answer, or help. `go_on`: as `call_while` has it.
///
/// # Errors
/// Those of `parse_rpc` and `call_while`.
pub fn run_rpc(words: &[String], go_on: &mut dyn FnMut() -> bool) -> Result<String, Error> {
    match parse_rpc(words)? {
        Asked::Help(text) => Ok(text),
        Asked::Call { socket, method, params } => {
            let path = config::rpc_path(socket.as_deref()).ok_or_else(|| {
                Error::request("--socket off", "nothing is listening there", "--socket PATH")
            })?;
            let answer = call_while(&path, &method, &params, go_on)?;
            Ok(serde_json::to_string_pretty(&answer).expect("an answer is plain data"))
        }
    }
}

/// `[--socket PATH] VERB [FLAGS]`: the verb and its flags, as `--nqn X`, `--nqn=X` or SNAP's short ones (`-s X`, `-sn X`).
///
/// # Errors
/// `Request`: no such verb or flag, a value that is missing or no number.
pub fn parse_rpc(words: &[String]) -> Result<Asked, Error> {
    let (socket, words) = socket_of(words)?;
    let Some((method, rest)) = words.split_first() else { return Ok(Asked::Help(overview())) };
    if ["--help", "-h", "help"].contains(&method.as_str()) {
        return Ok(Asked::Help(overview()));
    }
    let verb = VERBS.iter().find(|v| v.name == method).ok_or_else(|| no_verb(method))?;
    let mut params = Map::new();
    let mut rest = rest.iter();
    while let Some(word) = rest.next() {
        if word == "--help" || word == "-h" {
            return Ok(Asked::Help(usage(verb)));
        }
        let (flag, inline) = match word.split_once('=') {
            Some((flag, value)) if flag.starts_with('-') => (flag, Some(value)),
            _ => (word.as_str(), None),
        };
        let parameter = by_flag(verb, flag).ok_or_else(|| no_flag(verb, flag))?;
        let value = match (parameter.kind, inline) {
            (Kind::Flag, None) => Value::Bool(true),
            (Kind::Flag, Some(_)) => {
                return Err(Error::request(word, "takes no value", format!("{flag} alone")));
            }
            (_, Some(value)) => typed(parameter, flag, value)?,
            (_, None) => {
                let value = rest.next().ok_or_else(|| {
                    Error::request(flag, "has no value", format!("{flag} VALUE: {}", parameter.help))
                })?;
                typed(parameter, flag, value)?
            }
        };
        if params.insert(parameter.name.into(), value).is_some() {
            return Err(Error::request(flag, "is given twice", "once"));
        }
    }
    if let Some(missing) = verb.parameters.iter().find(|p| p.required && !params.contains_key(p.name)) {
        let found = format!("has no {}", missing.flag());
        return Err(Error::request(method, found, format!("{} VALUE: {}", missing.flag(), missing.help)));
    }
    Ok(Asked::Call { socket, method: method.clone(), params })
}

/// The flag that stands before the verb, as with SNAP's own command.
fn socket_of(words: &[String]) -> Result<(Option<String>, &[String]), Error> {
    let Some(first) = words.first() else { return Ok((None, words)) };
    if let Some(path) = first.strip_prefix("--socket=") {
        return Ok((Some(path.into()), &words[1..]));
    }
    if !["--socket", "-s"].contains(&first.as_str()) {
        return Ok((None, words));
    }
    match words.get(1) {
        Some(path) => Ok((Some(path.clone()), &words[2..])),
        None => Err(Error::request(first, "has no value", "--socket /run/forebay/snap.sock")),
    }
}

fn by_flag(verb: &Verb, flag: &str) -> Option<&'static Parameter> {
    let long = flag.strip_prefix("--");
    verb.parameters.iter().find(|p| match long {
        Some(name) => p.name == name || p.also.contains(&name) || p.name.replace('_', "-") == name,
        None => p.also.contains(&flag),
    })
}

fn typed(parameter: &Parameter, flag: &str, value: &str) -> Result<Value, Error> {
    match parameter.kind {
        Kind::Number => value.parse::<u64>().map(Value::from).map_err(|_| {
            let shown = value.escape_debug();
            Error::request(
                format!("{flag} {shown}"),
                "is not a number",
                format!("{flag} N: {}", parameter.help),
            )
        }),
        Kind::Flag => Ok(Value::Bool(true)),
        Kind::Text | Kind::Size => Ok(value.into()),
    }
}

fn no_verb(method: &str) -> Error {
    let shown: String = method.escape_debug().take(80).collect();
    let names = || VERBS.iter().map(|v| v.name);
    let near = names().find(|name| name.contains(method) || method.contains(name));
    let near = near.or_else(|| nearest(method, names()));
    let next = near.map_or("forebay snap rpc --help".into(), |name| format!("forebay snap rpc {name}"));
    Error::request(format!("forebay snap rpc {shown}"), "there is no such verb", next)
}

fn no_flag(verb: &Verb, flag: &str) -> Error {
    let all: Vec<String> = verb.parameters.iter().map(Parameter::flag).collect();
    let shown: String = flag.escape_debug().take(80).collect();
    let near = nearest(flag, all.iter().map(String::as_str)).map(String::from);
    let next = near.unwrap_or_else(|| if all.is_empty() { "no flags".into() } else { all.join(" ") });
    Error::request(format!("{} {shown}", verb.name), "there is no such flag", next)
}

/// All verbs, a line for each.
pub(crate) fn overview() -> String {
    let mut text = String::from(
        "forebay snap rpc [-s, --socket PATH] VERB [FLAGS]\n\nVerbs of a gateway that runs (VERB --help for its flags):\n\n",
    );
    let width = VERBS.iter().map(|v| v.name.len()).max().unwrap_or(0);
    for verb in VERBS {
        let _ = writeln!(text, "  {:width$}  {}", verb.name, verb.help);
    }
    text
}

fn usage(verb: &Verb) -> String {
    let mut text = format!("forebay snap rpc {}\n\n  {}\n", verb.name, verb.help);
    let lines: Vec<(String, &Parameter)> = verb.parameters.iter().map(|p| (spelled(p), p)).collect();
    let width = lines.iter().map(|(flag, _)| flag.len()).max().unwrap_or(0);
    if width > 0 {
        text.push('\n');
    }
    for (flag, parameter) in lines {
        let needed = if parameter.required { " Needed." } else { "" };
        let _ = writeln!(text, "  {flag:width$}  {}{needed}", parameter.help);
    }
    text
}

/// `-s, --nqn TEXT`.
fn spelled(parameter: &Parameter) -> String {
    let mut all: Vec<&str> = parameter.also.iter().copied().filter(|a| a.starts_with('-')).collect();
    let long = parameter.flag();
    all.push(&long);
    let value = match parameter.kind {
        Kind::Text => " TEXT",
        Kind::Number => " N",
        Kind::Size => " SIZE",
        Kind::Flag => "",
    };
    format!("{}{value}", all.join(", "))
}

/// Every flag of a verb, as a command line has them.
pub fn rpc_flags(verb: &Verb) -> Vec<String> {
    let of = |p: &Parameter| {
        let short = p.also.iter().filter(|a| a.starts_with('-')).map(ToString::to_string);
        let long = p.also.iter().filter(|a| !a.starts_with('-')).map(|a| format!("--{a}"));
        short.chain(long).chain([p.flag()]).collect::<Vec<_>>()
    };
    verb.parameters.iter().flat_map(of).collect()
}
