//! Arguments that both verbs share, and their files.

use crate::flags::Given;
use crate::life::Options;
use crate::output::strerror;
use forebay_model::Error;
use std::io::Read;
use std::os::unix::fs::FileTypeExt;
use std::time::Duration;

/// Larger than any that somebody wrote; a bound against a device that doesn't end.
const FILE_BYTES_MAX: u64 = 4 << 20;

pub fn options(given: &Given) -> Result<Options, Error> {
    let drain = seconds(given.text("drain").unwrap_or("10"), "--drain")?;
    Ok(Options { drain, json: given.is("json"), quiet: given.is("quiet") })
}

/// One of the words of `--log`.
pub fn log_form(given: &Given) -> &str {
    given.text("log").unwrap_or("text")
}

/// `10`, `10s`, `2m`, `1h`, `500ms`.
pub(crate) fn seconds(text: &str, flag: &str) -> Result<Duration, Error> {
    let digits = text.trim().find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.trim().len());
    let (number, unit) = text.trim().split_at(digits);
    let factor = match unit.trim() {
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => f64::NAN,
    };
    let value = number.parse::<f64>().unwrap_or(f64::NAN) * factor;
    Duration::try_from_secs_f64(value).map_err(|_| {
        Error::request(format!("{flag} {text}"), "is not a time", "seconds, or a number with ms, s, m or h")
    })
}

/// A file's text. A FIFO that has a name in a file system is refused: opening it may wait for ever.
pub fn read(path: &str) -> Result<String, Error> {
    if is_fifo(path) {
        let found = "is a FIFO, and to open it would wait until something writes to it";
        return Err(Error::request(path, found, "a file"));
    }
    let mut bytes = Vec::new();
    let whole = std::fs::File::open(path).and_then(|f| f.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes));
    whole.map_err(|e| Error::request(path, strerror(&e), format!("ls -l {path}")))?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(Error::request(path, "is longer than 4 MiB", "fewer subsystems"));
    }
    String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        Error::request(path, format!("isn't UTF-8 at byte {at}"), "a TOML file")
    })
}

/// Whether it is one in a file system, itself or by links: where /dev/fd/N is a pipe of the shell's, that has no place.
fn is_fifo(path: &str) -> bool {
    let place = || std::fs::canonicalize(path).and_then(std::fs::symlink_metadata);
    let is_fifo = |found: std::fs::Metadata| found.file_type().is_fifo();
    std::fs::metadata(path).is_ok_and(is_fifo) && place().is_ok_and(is_fifo)
}

/// An error of a file's content, with the file's name in front.
pub fn of_file(path: &str, error: Error) -> Error {
    match error.asked.as_str() {
        asked if asked.starts_with(path) => error,
        "the configuration" => Error { asked: path.into(), ..error },
        asked => Error { asked: format!("{path}: {asked}"), ..error },
    }
}
