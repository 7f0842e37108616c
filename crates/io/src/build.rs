//! The build that runs: its version, its commit, and what it can do.

use forebay_model::record::Build;
use std::sync::OnceLock;

static COMMIT: OnceLock<Option<String>> = OnceLock::new();

/// The commit that the program was built from, told once by whoever links the engine.
pub fn set_build_commit(commit: Option<&str>) {
    let _ = COMMIT.set(commit.filter(|c| !c.is_empty()).map(String::from));
}

/// Version and features of this build; `debug` where it isn't optimised, and no rate or CPU time of it is worth a look.
pub fn current_build() -> Build {
    let map = crate::copy::GUARDED_COPIES.then_some("map");
    let debug = cfg!(debug_assertions).then_some("debug");
    let features = ["uring", "pread", "cuda-dlopen"].into_iter().chain(map).chain(debug);
    let features = features.map(String::from).collect();
    Build { version: env!("CARGO_PKG_VERSION").into(), commit: COMMIT.get().cloned().flatten(), features }
}
