//! A verb with its parameters, and arguments, which are checked against those before it runs.

use super::Control;
use forebay_model::units::parse_bytes;
use forebay_model::Error;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Kind of a parameter's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Text,
    Number,
    /// Bytes: a number, or text such as `64k`.
    Size,
    /// True where it is given.
    Flag,
}

impl Kind {
    pub fn word(self) -> &'static str {
        match self {
            Kind::Text => "text",
            Kind::Number => "number",
            Kind::Size => "size",
            Kind::Flag => "true or false",
        }
    }
}

#[derive(Debug)]
pub struct Parameter {
    /// In JSON; with `--`, on the command line.
    pub name: &'static str,
    /// Other names in JSON, and other flags: those with one `-` are flags alone.
    pub also: &'static [&'static str],
    pub kind: Kind,
    pub required: bool,
    pub help: &'static str,
}

impl Parameter {
    pub fn flag(&self) -> String {
        format!("--{}", self.name)
    }

    fn named_in(&self, verb: &Verb) -> String {
        format!("{} of {}", self.name, verb.name)
    }
}

type Call = fn(&dyn Control, &Arguments) -> Result<Value, Error>;

pub struct Verb {
    pub name: &'static str,
    /// SNAP has it.
    pub snap: bool,
    pub help: &'static str,
    pub parameters: &'static [Parameter],
    pub call: Call,
}

impl Verb {
    /// By its name in JSON.
    pub fn parameter(&self, name: &str) -> Option<&'static Parameter> {
        let named = |p: &&Parameter| p.name == name || (!name.starts_with('-') && p.also.contains(&name));
        self.parameters.iter().find(named)
    }
}

/// Arguments under the parameters' own names.
pub struct Arguments {
    verb: &'static Verb,
    given: BTreeMap<&'static str, Value>,
}

impl Arguments {
    /// # Errors
    /// `Request`: a name that the verb hasn't, one given twice, a value of another kind, one that is missing.
    pub fn new(verb: &'static Verb, params: Map<String, Value>) -> Result<Arguments, Error> {
        let mut given = BTreeMap::new();
        for (name, value) in params {
            let parameter = verb.parameter(&name).ok_or_else(|| unknown(verb, &name))?;
            let value = checked(verb, parameter, value)?;
            if !value.is_null() && given.insert(parameter.name, value).is_some() {
                let found = format!("is given twice, once as {name}");
                return Err(Error::request(parameter.named_in(verb), found, "one of them"));
            }
        }
        if let Some(missing) = verb.parameters.iter().find(|p| p.required && !given.contains_key(p.name)) {
            let next = format!("{}: {}", missing.flag(), missing.help);
            return Err(Error::request(missing.named_in(verb), "is missing", next));
        }
        Ok(Arguments { verb, given })
    }

    pub fn text(&self, name: &str) -> Option<&str> {
        self.value(name).and_then(Value::as_str)
    }

    /// Returns a required parameter.
    pub fn the(&self, name: &str) -> &str {
        self.text(name).expect("required parameters are there")
    }

    pub fn number(&self, name: &str) -> Option<u64> {
        self.value(name).and_then(Value::as_u64)
    }

    /// A number that fits into the type asked for.
    pub fn fit<T: TryFrom<u64>>(&self, name: &str) -> Result<Option<T>, Error> {
        let Some(number) = self.number(name) else { return Ok(None) };
        let parameter = self.verb.parameter(name).expect("a parameter of this verb");
        let fits = T::try_from(number);
        fits.map(Some).map_err(|_| {
            Error::request(parameter.named_in(self.verb), format!("{number} is too large"), parameter.help)
        })
    }

    pub fn flag(&self, name: &str) -> bool {
        self.value(name).and_then(Value::as_bool).unwrap_or(false)
    }

    fn value(&self, name: &str) -> Option<&Value> {
        debug_assert!(self.verb.parameter(name).is_some(), "{} has no {name}", self.verb.name);
        self.given.get(name)
    }
}

/// The value as its kind has it; null stays null, which is the same as leaving it out.
fn checked(verb: &Verb, parameter: &Parameter, value: Value) -> Result<Value, Error> {
    let wrong = |value: &Value| {
        let shown: String = value.to_string().chars().take(80).collect();
        let found = format!("{shown} is no {}", parameter.kind.word());
        Err(Error::request(parameter.named_in(verb), found, parameter.help))
    };
    match (parameter.kind, value) {
        (_, Value::Null) => Ok(Value::Null),
        (Kind::Text, Value::String(text)) if !text.contains('\0') => Ok(text.into()),
        (Kind::Flag, Value::Bool(yes)) => Ok(yes.into()),
        (Kind::Number | Kind::Size, Value::Number(n)) if n.is_u64() => Ok(n.into()),
        (Kind::Size, Value::String(text)) => match parse_bytes(&text) {
            Ok(bytes) => Ok(bytes.into()),
            Err(_) => wrong(&text.into()),
        },
        (_, value) => wrong(&value),
    }
}

fn unknown(verb: &Verb, name: &str) -> Error {
    let all: Vec<&str> = verb.parameters.iter().map(|p| p.name).collect();
    let next = if all.is_empty() { "no parameters".into() } else { all.join(", ") };
    let shown: String = name.escape_debug().take(80).collect();
    Error::request(format!("{shown} of {}", verb.name), "there is no such parameter", next)
}
