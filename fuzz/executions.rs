//! Runs targets on changed seeds, as often as asked: no nightly compiler, no sanitizer, no coverage, all speed.
//!
//! `cargo run --profile fuzz -p forebay-fuzz --bin executions -- [--count N] [--seed N] [TARGET…]`
//!
//! (`--no-default-features` leaves out the engine's targets, and builds in a minute.) N of each target named, or of all. The same seed runs the same inputs. An input that breaks a target is kept in
//! `fuzz/artifacts`: mend the code, and move the input to `fuzz/seeds`, where `cargo test` replays it.

use forebay_fuzz::{Target, TARGETS};
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

const USAGE: &str = "executions [--count N (1000000)] [--seed N (1)] [TARGET…]";
const INPUT_BYTES_MAX: usize = 8192;
/// Inputs that later ones are made of, beside the seeds.
const POOL_MAX: usize = 256;

struct Options {
    count: u64,
    seed: u64,
    targets: Vec<&'static (&'static str, Target)>,
}

fn options() -> Result<Options, String> {
    let mut options = Options { count: 1_000_000, seed: 1, targets: Vec::new() };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut number = || {
            let value = words.next().ok_or(format!("{word} takes a number"))?;
            value.parse().map_err(|_| format!("{word} takes a number, not {value}"))
        };
        match word.as_str() {
            "--count" => options.count = number()?,
            "--seed" => options.seed = number()?,
            _ => {
                let known = TARGETS.iter().find(|(name, _)| *name == word);
                options.targets.push(known.ok_or(format!("no target is named {word}"))?);
            }
        }
    }
    if options.targets.is_empty() {
        options.targets = TARGETS.iter().collect();
    }
    Ok(options)
}

fn main() -> ExitCode {
    let options = match options() {
        Ok(options) => options,
        Err(what) => {
            let names: Vec<&str> = TARGETS.iter().map(|(name, _)| *name).collect();
            eprintln!("{what}\n{USAGE}\ntargets: {}", names.join(" "));
            return ExitCode::from(2);
        }
    };
    let (mut total, start) = (0, Instant::now());
    for (name, run) in &options.targets {
        let begun = Instant::now();
        if let Err(kept) = Runs::new(name, options.seed).run(*run, options.count) {
            eprintln!("{name}: broken by {}", kept.display());
            return ExitCode::from(1);
        }
        total += options.count;
        let seconds = begun.elapsed().as_secs_f64();
        println!("{name}: {} executions in {seconds:.1} s, none breaks it", options.count);
    }
    println!("{total} executions in {:.1} s, seed {}", start.elapsed().as_secs_f64(), options.seed);
    ExitCode::SUCCESS
}

/// Inputs of one target: its seeds, changed again and again.
struct Runs {
    name: &'static str,
    random: Random,
    seeds: Vec<Vec<u8>>,
    pool: Vec<Vec<u8>>,
}

impl Runs {
    fn new(name: &'static str, seed: u64) -> Runs {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds").join(name);
        let mut paths: Vec<PathBuf> =
            std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
        paths.sort();
        let mut seeds: Vec<Vec<u8>> = paths.iter().flat_map(std::fs::read).collect();
        seeds.push(Vec::new());
        Runs { name, random: Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1), seeds, pool: Vec::new() }
    }

    fn run(mut self, target: Target, count: u64) -> Result<(), PathBuf> {
        for _ in 0..count {
            let input = self.input();
            if panic::catch_unwind(AssertUnwindSafe(|| target(&input))).is_err() {
                return Err(self.keep(&input));
            }
            self.remember(input);
        }
        Ok(())
    }

    /// Bytes at random now and then; else a seed or an earlier input, changed.
    fn input(&mut self) -> Vec<u8> {
        if self.random.below(8) == 0 {
            let length = self.random.below(512);
            return (0..length).map(|_| self.random.next() as u8).collect();
        }
        let pick = self.random.below(self.seeds.len() + self.pool.len());
        let mut input = self.seeds.get(pick).unwrap_or_else(|| &self.pool[pick - self.seeds.len()]).clone();
        for _ in 0..=self.random.below(6) {
            self.change(&mut input);
        }
        input.truncate(INPUT_BYTES_MAX);
        input
    }

    fn change(&mut self, input: &mut Vec<u8>) {
        let at = self.random.below(input.len() + 1);
        let length = 1 + self.random.below(16);
        let end = input.len().min(at + length);
        match self.random.below(8) {
            0 if at < input.len() => input[at] ^= 1 << self.random.below(8),
            1 if at < input.len() => input[at] = [0, 1, 0x7f, 0x80, 0xff][self.random.below(5)],
            2 => drop(input.drain(at..end)),
            3 => {
                let copy = input[at..end].to_vec();
                let to = self.random.below(input.len() + 1);
                drop(input.splice(to..to, copy));
            }
            4 => {
                let other = self.random.below(self.seeds.len());
                let other = &self.seeds[other];
                let from = self.random.below(other.len() + 1);
                input.truncate(at);
                input.extend_from_slice(&other[from..]);
            }
            _ => {
                let new: Vec<u8> = (0..length).map(|_| self.random.next() as u8).collect();
                let end = if self.random.below(2) == 0 { end } else { at };
                drop(input.splice(at..end, new));
            }
        }
    }

    fn remember(&mut self, input: Vec<u8>) {
        if self.random.below(64) > 0 {
            return;
        }
        if self.pool.len() < POOL_MAX {
            self.pool.push(input);
        } else {
            let place = self.random.below(POOL_MAX);
            self.pool[place] = input;
        }
    }

    fn keep(&self, input: &[u8]) -> PathBuf {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("artifacts").join(self.name);
        let path = folder.join(format!("{:08x}", crc32c::crc32c(input)));
        if let Err(why) = std::fs::create_dir_all(&folder).and_then(|()| std::fs::write(&path, input)) {
            eprintln!("{}: {why}; the input is {input:?}", path.display());
        }
        path
    }
}

/// xorshift64*.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}
