//! Output of a verb: whole texts for stdout or stderr, in ASCII where the locale is C or POSIX.

use forebay_model::{Error, Kind};
use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{ErrorKind, Write};
use std::sync::atomic::{AtomicBool, Ordering};

/// Exit code of an interrupted verb, and of one whose reader has gone.
pub const INTERRUPTED: u8 = 130;
const STAND_INS: [(char, &str); 2] = [('·', "-"), ('…', "...")];
static ASCII: AtomicBool = AtomicBool::new(false);

/// Sets whether all that follows is written in ASCII.
pub(crate) fn set_ascii(ascii: bool) {
    ASCII.store(ascii, Ordering::Relaxed);
}

/// Whether this process's locale is C or POSIX by name; one that isn't set says nothing.
pub fn locale_is_c() -> bool {
    let names = ["LC_ALL", "LC_CTYPE", "LANG"].map(|name| std::env::var(name).unwrap_or_default());
    names.iter().find(|name| !name.is_empty()).is_some_and(|name| name == "C" || name == "POSIX")
}

/// Prints a line to stdout or stderr; one that is closed or full is no reason to end.
pub fn tell(line: &str, stdout: bool) {
    let line = shown(line);
    let _ = match stdout {
        true => writeln!(std::io::stdout().lock(), "{line}").and_then(|()| std::io::stdout().flush()),
        false => writeln!(std::io::stderr().lock(), "{line}"),
    };
}

/// Writes over the line of figures on a terminal, which cuts it at its edge.
pub(crate) fn tell_over(line: &str) {
    let _ = write!(std::io::stderr().lock(), "\r\x1b[K\x1b[?7l{}\x1b[?7h", shown(line));
}

/// Prints what a verb was asked for, and returns the exit code.
///
/// # Errors
/// `Run`: stdout doesn't take it.
pub(crate) fn print(text: &str) -> Result<u8, Error> {
    let mut stdout = std::io::stdout().lock();
    match writeln!(stdout, "{}", shown(text.trim_end())).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(0),
        Err(e) if e.kind() == ErrorKind::BrokenPipe => Ok(INTERRUPTED),
        Err(e) => {
            Err(Error::new(Kind::Run, "writing the output", strerror(&e), "df -h; ls -l; another place"))
        }
    }
}

/// `No such file or directory`, without the number.
pub(crate) fn strerror(error: &std::io::Error) -> String {
    error.to_string().split(" (os error").next().unwrap_or_default().into()
}

fn shown(text: &str) -> Cow<'_, str> {
    match ASCII.load(Ordering::Relaxed) && !text.is_ascii() {
        true => Cow::Owned(ascii(text)),
        false => Cow::Borrowed(text),
    }
}

fn ascii(text: &str) -> String {
    let mut all = String::new();
    for c in text.chars() {
        let _ = match (STAND_INS.iter().find(|(one, _)| *one == c), u32::from(c)) {
            (Some((_, instead)), _) => write!(all, "{instead}"),
            (None, 0..=0x7f) => write!(all, "{c}"),
            (None, code @ 0x80..=0xff) => write!(all, "\\x{code:02x}"),
            (None, code @ 0x100..=0xffff) => write!(all, "\\u{code:04x}"),
            (None, code) => write!(all, "\\U{code:08x}"),
        };
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ascii_has_a_stand_in_or_an_escape_for_each_character() {
        assert_eq!(ascii("VERB … · /a/é/中/😀"), "VERB ... - /a/\\xe9/\\u4e2d/\\U0001f600");
    }
}
