//! A test of the GPU runs in a process of its own: the driver is loaded once per
//! process, and a scenario says which driver that is.
//!
//! Without more, that is the stand-in under tests/gpu_stubs, whose books must be
//! balanced at the end. With FOREBAY_TEST_GPU=1 it is the real one; scenarios
//! that need a fault of the stand-in are then skipped, with that as the reason.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

const INSIDE: &str = "FOREBAY_GPU_SCENARIO";

/// Returns the folder of the stand-ins, which are built if need be.
pub fn stubs() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let to = root.join("target/gpu-stubs");
        let built = Command::new(root.join("tests/gpu_stubs/build")).arg(&to).output().unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        to.canonicalize().unwrap()
    })
}

pub fn on_real_gpu() -> bool {
    std::env::var_os("FOREBAY_TEST_GPU").is_some_and(|v| v == "1")
}

/// A place on a real disk, so that O_DIRECT means something; where the tests were built elsewhere, any.
pub fn home() -> tempfile::TempDir {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target");
    let at = if built.is_dir() { built } else { std::env::temp_dir() };
    tempfile::tempdir_in(at).unwrap()
}

/// Returns whether this process is a scenario's.
pub fn is_inside() -> bool {
    std::env::var_os(INSIDE).is_some()
}

/// Notes of the stand-in at its process's end.
pub struct Books(Value);

impl Books {
    pub fn count(&self, name: &str) -> i64 {
        self.0[name].as_i64().unwrap_or_else(|| panic!("no {name} in {}", self.0))
    }

    pub fn calls(&self, name: &str) -> i64 {
        self.0["calls"][name].as_i64().unwrap_or(0)
    }

    pub fn to_device(&self, gpu: usize) -> i64 {
        self.0["to_device_bytes"][gpu].as_i64().unwrap_or(0)
    }

    /// Sum of the bytes that came to all GPUs.
    pub fn sum(&self) -> u64 {
        self.over_gpus("to_device_sum")
    }

    /// Bytes that cuFile brought to all GPUs.
    pub fn by_cufile(&self) -> u64 {
        self.over_gpus("cufile_bytes")
    }

    pub fn over_gpus(&self, name: &str) -> u64 {
        let each = self.0[name].as_array().unwrap_or_else(|| panic!("no {name} in {}", self.0));
        each.iter().map(|n| n.as_u64().unwrap()).sum()
    }

    pub fn to_host(&self, gpu: usize) -> i64 {
        self.0["to_host_bytes"][gpu].as_i64().unwrap_or(0)
    }

    /// Nothing is left, nothing was done to memory that isn't there, no slot was reused under its copy.
    pub fn assert_balanced(&self) {
        let live = self.0["live"].as_object().unwrap();
        // A kernel, once compiled, stays for the process.
        let left: Vec<_> =
            live.iter().filter(|(what, n)| n.as_i64() != Some(0) && *what != "modules").collect();
        assert!(left.is_empty(), "left behind: {left:?}");
        for wrong in ["copies_outside", "changed_under_copy", "unknown_frees"] {
            assert_eq!(self.count(wrong), 0, "{wrong}: {}", self.0);
        }
    }
}

/// A scenario: the test's own name, and the stand-in's settings for it.
pub struct Scenario {
    name: String,
    settings: &'static str,
    variables: Vec<(&'static str, String)>,
}

impl Scenario {
    pub fn new(name: &str) -> Scenario {
        Scenario { name: name.into(), settings: "", variables: Vec::new() }
    }

    /// As FOREBAY_STUB_CUDA takes them. Such a scenario only runs against the stand-in.
    pub fn settings(self, settings: &'static str) -> Scenario {
        Scenario { settings, ..self }
    }

    pub fn variable(mut self, name: &'static str, value: impl Into<String>) -> Scenario {
        self.variables.push((name, value.into()));
        self
    }

    /// Runs `body` in a child of this process; None where there is nothing to look at afterwards: inside of that
    /// child, on a real GPU, or skipped.
    pub fn run(self, body: impl FnOnce()) -> Option<Books> {
        if std::env::var_os(INSIDE).is_some_and(|name| name == *self.name) {
            body();
            return None;
        }
        if on_real_gpu() {
            if !self.settings.is_empty() {
                eprintln!("skipped {}: a fault that only the stand-in has ({})", self.name, self.settings);
            } else {
                self.child(|command| command);
            }
            return None;
        }
        let home = home();
        let ledger = home.path().join("books.json");
        self.child(|command| {
            command
                .env("FOREBAY_LIBCUDA", stubs().join("libcuda.so.1"))
                .env("FOREBAY_LIBCUFILE", stubs().join("libcufile.so.0"))
                .env("FOREBAY_LIBNVRTC", stubs().join("libnvrtc.so.13"))
                .env("FOREBAY_STUB_CUDA", self.settings)
                .env("FOREBAY_STUB_LEDGER", &ledger)
        });
        let books = Books(serde_json::from_slice(&std::fs::read(&ledger).unwrap()).unwrap());
        books.assert_balanced();
        Some(books)
    }

    fn child(&self, with: impl FnOnce(&mut Command) -> &mut Command) {
        let mut command = Command::new(std::env::current_exe().unwrap());
        // The test may be one of those that are ignored unless asked for: it was, or this wouldn't run.
        let only_it = ["--exact", "--include-ignored", "--nocapture", "--test-threads=1"];
        command.arg(&self.name).args(only_it).env(INSIDE, &self.name);
        let own = self.variables.iter().map(|(name, value)| (name, value));
        let done = with(&mut command).envs(own).output().unwrap();
        let said = String::from_utf8_lossy(&done.stdout);
        assert!(
            done.status.success() && said.contains("1 passed"),
            "{} ({}): {said}{}",
            self.name,
            self.settings,
            String::from_utf8_lossy(&done.stderr)
        );
    }
}
