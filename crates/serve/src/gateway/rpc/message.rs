//! JSON-RPC 2.0 (jsonrpc.org/specification): one document in, at most one out.

use super::arguments::Arguments;
use super::verbs::{self, VERBS};
use super::Control;
use forebay_model::{Error, Kind};
use serde_json::{json, Map, Value};

/// Requests of one batch.
const BATCH_MAX: usize = 256;

/// Codes of the specification, section 5.1, and ours, from the range that it leaves to servers.
pub(super) const PARSE_ERROR: i64 = -32700;
pub(super) const INVALID_REQUEST: i64 = -32600;
pub(super) const METHOD_NOT_FOUND: i64 = -32601;
pub(super) const INVALID_PARAMS: i64 = -32602;
const MACHINE: i64 = -32003;
const RUN: i64 = -32004;

/// Executes what a document asks for. None: it asked for no answer (a notification).
pub fn answer_rpc(document: &[u8], control: &dyn Control) -> Option<Value> {
    match serde_json::from_slice::<Value>(document) {
        Err(e) => Some(refusal(Value::Null, PARSE_ERROR, &format!("no JSON: {e}"), None)),
        Ok(Value::Array(batch)) if batch.is_empty() || batch.len() > BATCH_MAX => {
            let what = format!("a batch has 1 to {BATCH_MAX} requests, not {}", batch.len());
            Some(refusal(Value::Null, INVALID_REQUEST, &what, None))
        }
        Ok(Value::Array(batch)) => {
            let answers: Vec<Value> = batch.into_iter().filter_map(|one| single(one, control)).collect();
            (!answers.is_empty()).then_some(Value::Array(answers))
        }
        Ok(one) => single(one, control),
    }
}

/// An answer to what couldn't even be taken apart.
pub(super) fn unreadable(why: &str) -> Value {
    refusal(Value::Null, PARSE_ERROR, why, None)
}

/// An answer to whoever can't even ask.
pub(super) fn refused(error: Error) -> Value {
    refusal(Value::Null, code_of(error.kind), &error.to_string(), Some(error))
}

fn single(request: Value, control: &dyn Control) -> Option<Value> {
    let (id, method, params) = match taken_apart(request) {
        Ok(parts) => parts,
        Err((id, what)) => return Some(refusal(id, INVALID_REQUEST, &what, None)),
    };
    let done = execute(&method, params, control);
    let id = id?;
    Some(match done {
        Ok(result) => json!({ "jsonrpc": "2.0", "id": id, "result": result }),
        Err((code, error)) => refusal(id, code, &error.to_string(), Some(error)),
    })
}

type Parts = (Option<Value>, String, Option<Value>);

/// Id, method and parameters; what is wrong with it otherwise, and the id if that much can be said.
fn taken_apart(request: Value) -> Result<Parts, (Value, String)> {
    let Value::Object(mut request) = request else {
        return Err((Value::Null, "a request is an object".into()));
    };
    let id = match request.remove("id") {
        Some(id @ (Value::String(_) | Value::Number(_) | Value::Null)) => Some(id),
        Some(_) => return Err((Value::Null, "\"id\" is a string, a number or null".into())),
        None => None,
    };
    let wrong = |what: &str| Err((id.clone().unwrap_or_default(), what.to_string()));
    if request.remove("jsonrpc").is_none_or(|version| version != "2.0") {
        return wrong("\"jsonrpc\" is \"2.0\"");
    }
    let Some(Value::String(method)) = request.remove("method") else {
        return wrong("\"method\" is the name of a verb");
    };
    Ok((id, method, request.remove("params")))
}

fn execute(method: &str, params: Option<Value>, control: &dyn Control) -> Result<Value, (i64, Error)> {
    let Some(verb) = VERBS.iter().find(|v| v.name == method) else {
        return Err((METHOD_NOT_FOUND, verbs::unknown(method)));
    };
    let params = match params {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(named)) => named,
        Some(_) => {
            let next = "an object with the parameters by name";
            return Err((INVALID_PARAMS, Error::request(method, "\"params\" is not an object", next)));
        }
    };
    let done = Arguments::new(verb, params).and_then(|arguments| (verb.call)(control, &arguments));
    done.map_err(|error| (code_of(error.kind), error))
}

fn code_of(kind: Kind) -> i64 {
    match kind {
        Kind::Request | Kind::Check => INVALID_PARAMS,
        Kind::Machine => MACHINE,
        Kind::Run => RUN,
    }
}

fn refusal(id: Value, code: i64, message: &str, error: Option<Error>) -> Value {
    let mut body = json!({ "code": code, "message": message });
    if let Some(error) = error {
        body["data"] = json!(error);
    }
    json!({ "jsonrpc": "2.0", "id": id, "error": body })
}
