//! Puts the commit into the build as FOREBAY_COMMIT, for records and `--version` of both programs.
//! A build without git, as from a source archive, has none and says so.

use std::process::Command;

fn main() {
    println!("cargo:rerun-if-env-changed=FOREBAY_COMMIT");
    if let Some(commit) = std::env::var("FOREBAY_COMMIT").ok().filter(|c| !c.is_empty()).or_else(commit) {
        println!("cargo:rustc-env=FOREBAY_COMMIT={commit}");
    }
}

/// The commit that is checked out, when this crate lies in a repository of its own.
fn commit() -> Option<String> {
    // An archive unpacked inside somebody else's repository must not take that repository's commit.
    git(&["ls-files", "--error-unmatch", "Cargo.toml"])?;
    // Written by every commit and checkout; in a linked work tree it lies elsewhere.
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]) {
        println!("cargo:rerun-if-changed={log}");
    }
    git(&["rev-parse", "--short=12", "HEAD"])
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_string();
    (output.status.success() && !text.is_empty()).then_some(text)
}
