//! A ublk device by itself: `ublk_device '{"source": "/tmp/disk", "writable": true}' '{"id": 0, "queues": 2}'`.
//!
//! The first argument is a namespace as in `forebay serve`'s configuration, the second the device's options, both as
//! JSON. It prints one line of JSON once the device is there, and then one for each line of its input: `stats`,
//! `suspend`, `resume`, `replace NAMESPACE`, `stop`, `stop force`, `leave`. The end of the input leaves the device to
//! the next daemon. `ublk_device devices` lists what there is, `ublk_device delete ID` deletes what nobody serves.

use forebay_model::Error;
use forebay_serve::{delete_ublk, ublk_devices, Namespace, Ublk, UblkOptions};
use serde_json::{json, Value};
use std::io::BufRead;
use std::process::ExitCode;
use std::time::Duration;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let ended = match words[..] {
        ["devices"] => ublk_devices().map(|all| println!("{}", json!(all))),
        ["delete", id] => delete_ublk(id.parse().unwrap_or(u32::MAX), false),
        [namespace, options] => serve(namespace, options),
        _ => Err(Error::request("ublk_device", "two arguments in JSON are needed", "ublk_device devices")),
    };
    let Err(e) = ended else { return ExitCode::SUCCESS };
    eprintln!("{e}");
    ExitCode::from(e.kind.exit_code() as u8)
}

fn read<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, Error> {
    serde_json::from_str(text).map_err(|e| Error::request(text, e.to_string(), "{\"source\": \"/tmp/disk\"}"))
}

fn serve(namespace: &str, options: &str) -> Result<(), Error> {
    let device = Ublk::open(&read::<Namespace>(namespace)?, &read::<UblkOptions>(options)?)?;
    let (path, recovered, queues) = (device.path(), device.recovered(), device.queues());
    println!("{}", json!({ "path": path, "recovered": recovered, "queues": queues }));
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let (verb, rest) = line.split_once(' ').unwrap_or((&line, ""));
        let answer = match verb {
            "stats" => Ok(json!(device.stats())),
            "suspend" => device.suspend(Duration::from_secs(30)).map(|()| json!("suspended")),
            "resume" => {
                device.resume();
                Ok(json!("live"))
            }
            "replace" => read(rest).and_then(|n| device.replace_by(&n)).map(|()| json!("replaced")),
            "stop" => device.stop(rest == "force").map(|()| json!("stopped")),
            "leave" => break,
            _ => Err(Error::request(verb, "no such verb", "stats")),
        };
        let stopped = matches!(&answer, Ok(Value::String(said)) if said == "stopped");
        println!("{}", answer.unwrap_or_else(|e| json!({ "error": e })));
        if stopped {
            return Ok(());
        }
    }
    device.leave();
    println!("{}", json!("left"));
    Ok(())
}
