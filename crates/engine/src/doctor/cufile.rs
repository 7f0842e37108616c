//! libcufile: where it is, which version, whether it loads, and its cufile.json.

use super::report::{Area, Check, State};
use super::roots::{bytes, names, text, Roots};
use serde::Serialize;
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

const SETTINGS_MAX: usize = 512;
const NAMES: [&str; 2] = ["libcufile.so", "libcufile.so.0"];

/// What of the process's environment has a say.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    /// `--cufile-json`.
    pub named_json: Option<PathBuf>,
    /// CUFILE_ENV_PATH_JSON.
    pub env_json: Option<PathBuf>,
    /// FOREBAY_LIBCUFILE: the library itself; where set, no other is looked for.
    pub library: Option<PathBuf>,
    /// CUFILE_ALLOW_COMPAT_MODE, which comes before the file; CUFILE_FORCE_COMPAT_MODE.
    pub allow_compat: Option<bool>,
    pub force_compat: Option<bool>,
    /// CUFILE_USE_PCIP2PDMA, likewise before the file.
    pub use_p2pdma: Option<bool>,
    /// LD_LIBRARY_PATH.
    pub library_path: Vec<PathBuf>,
    /// VIRTUAL_ENV or CONDA_PREFIX.
    pub prefixes: Vec<PathBuf>,
}

impl Surroundings {
    pub fn of_process(named_json: Option<&Path>) -> Surroundings {
        let path = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        let switch = |name: &str| match std::env::var(name).ok()?.to_lowercase().as_str() {
            "true" | "1" | "yes" | "on" => Some(true),
            "false" | "0" | "no" | "off" => Some(false),
            _ => None,
        };
        let listed = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
        Surroundings {
            named_json: named_json.map(Path::to_path_buf),
            env_json: path("CUFILE_ENV_PATH_JSON"),
            library: path("FOREBAY_LIBCUFILE"),
            allow_compat: switch("CUFILE_ALLOW_COMPAT_MODE"),
            force_compat: switch("CUFILE_FORCE_COMPAT_MODE"),
            use_p2pdma: switch("CUFILE_USE_PCIP2PDMA"),
            library_path: std::env::split_paths(&listed).filter(|p| p.is_absolute()).collect(),
            prefixes: [path("VIRTUAL_ENV"), path("CONDA_PREFIX")].into_iter().flatten().collect(),
        }
    }
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct Cufile {
    /// In the order in which the engine would take them.
    pub libraries: Vec<Found>,
    /// Why the first can't be loaded; null where it can, or where there is none.
    pub refused: Option<String>,
    /// cuFileGetVersion's answer, as 1.15.
    pub api_version: Option<String>,
    pub config: Config,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Found {
    pub path: PathBuf,
    /// `FOREBAY_LIBCUFILE`, `LD_LIBRARY_PATH`, `loader cache`, `CUDA toolkit` or `Python package`.
    pub place: &'static str,
    pub version: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Config {
    pub path: PathBuf,
    pub exists: bool,
    /// Why it can't be used; cuFile then takes its defaults.
    pub refused: Option<String>,
    /// What the file sets, or cuFile's default.
    pub allow_compat_mode: bool,
    pub use_pci_p2pdma: bool,
    /// The environment or the file make cuFile use its compatibility mode always.
    pub force_compat_mode: bool,
    /// It is the environment.
    pub forced_by_environment: bool,
    /// Every key of the file with its value, as `properties.allow_compat_mode`.
    pub settings: Map<String, Value>,
}

pub fn facts(roots: &Roots, around: &Surroundings) -> Cufile {
    let libraries = libraries(roots, around);
    let (refused, api_version) = match libraries.first() {
        Some(found) => match version_by_call(&found.path) {
            Ok(version) => (None, version),
            Err(refused) => (Some(refused), None),
        },
        None => (None, None),
    };
    Cufile { libraries, refused, api_version, config: config(roots, around) }
}

fn libraries(roots: &Roots, around: &Surroundings) -> Vec<Found> {
    let mut found: Vec<Found> = Vec::new();
    let mut add = |path: PathBuf, place: &'static str| {
        let known = |f: &Found| f.path == path || f.path.canonicalize().ok() == path.canonicalize().ok();
        if path.exists() && !found.iter().any(known) {
            found.push(Found { version: version_by_name(&path), path, place });
        }
    };
    let both = |directory: PathBuf| NAMES.map(|name| directory.join(name));
    if let Some(path) = &around.library {
        add(path.clone(), "FOREBAY_LIBCUFILE");
        return found;
    }
    for directory in &around.library_path {
        both(directory.clone()).into_iter().for_each(|p| add(p, "LD_LIBRARY_PATH"));
    }
    for path in cached(roots) {
        add(path, "loader cache");
    }
    for directory in toolkits(roots) {
        both(directory).into_iter().for_each(|p| add(p, "CUDA toolkit"));
    }
    for site in site_packages(roots, around) {
        for part in ["nvidia/cufile/lib", "nvidia/cu13/lib", "nvidia/cu12/lib"] {
            both(site.join(part)).into_iter().for_each(|p| add(p, "Python package"));
        }
    }
    found
}

fn toolkits(roots: &Roots) -> Vec<PathBuf> {
    let local = roots.root.join("usr/local");
    let homes = names(&local).into_iter().filter(|n| n == "cuda" || n.starts_with("cuda-"));
    let parts = ["targets/x86_64-linux/lib", "targets/sbsa-linux/lib", "lib64"];
    let mut found: Vec<PathBuf> =
        homes.flat_map(|home| parts.map(|part| local.join(&home).join(part))).collect();
    for part in ["usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64"] {
        found.push(roots.root.join(part));
    }
    found
}

/// Where Python packages of this process may lie: beside whatever extension modules
/// are mapped into it, in the environments it was started from, in the system's.
fn site_packages(roots: &Roots, around: &Surroundings) -> Vec<PathBuf> {
    let maps = text(&roots.proc("self/maps")).unwrap_or_default();
    let mut found: Vec<PathBuf> = maps.lines().filter_map(site_of).collect();
    let mut bases: Vec<PathBuf> = around.prefixes.iter().map(|p| p.join("lib")).collect();
    bases.push(roots.root.join("usr/local/lib"));
    bases.push(roots.root.join("usr/lib"));
    for base in bases {
        for python in names(&base).iter().filter(|n| n.starts_with("python3")) {
            found.push(base.join(python).join("site-packages"));
            found.push(base.join(python).join("dist-packages"));
        }
    }
    found.sort();
    found.dedup();
    found
}

fn site_of(mapping: &str) -> Option<PathBuf> {
    let path = &mapping[mapping.find('/')?..];
    let end =
        ["/site-packages/", "/dist-packages/"].iter().find_map(|p| Some(path.find(p)? + p.len() - 1))?;
    Some(PathBuf::from(&path[..end]))
}

/// Entries for libcufile in the loader's cache (glibc's `glibc-ld.so.cache1.1`).
fn cached(roots: &Roots) -> Vec<PathBuf> {
    let cache = bytes(&roots.etc.join("ld.so.cache")).unwrap_or_default();
    let wanted = |(name, _): &(String, String)| NAMES.contains(&name.as_str());
    let under = |path: String| roots.root.join(path.trim_start_matches('/'));
    cache_entries(&cache).into_iter().filter(wanted).map(|(_, path)| under(path)).collect()
}

/// (soname, path) of each entry; what doesn't parse is left out.
pub fn cache_entries(cache: &[u8]) -> Vec<(String, String)> {
    const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
    const HEADER_BYTES: usize = 48;
    const ENTRY_BYTES: usize = 24;
    // An older table may stand before this one; offsets count from the magic.
    let Some(start) = cache.windows(MAGIC.len()).position(|w| w == MAGIC) else { return Vec::new() };
    let table = &cache[start..];
    let number = |at: usize| Some(u32::from_le_bytes(table.get(at..at + 4)?.try_into().ok()?) as usize);
    let string = |at: usize| {
        let tail = table.get(at..)?;
        let end = tail.iter().take(4096).position(|b| *b == 0)?;
        Some(String::from_utf8_lossy(&tail[..end]).into_owned())
    };
    let entries = number(MAGIC.len()).unwrap_or(0).min(table.len() / ENTRY_BYTES);
    (0..entries)
        .filter_map(|i| {
            let entry = HEADER_BYTES + i * ENTRY_BYTES;
            Some((string(number(entry + 4)?)?, string(number(entry + 8)?)?))
        })
        .collect()
}

/// From `libcufile.so.1.15.1` behind the link, else from a Python package's dist-info.
fn version_by_name(path: &Path) -> Option<String> {
    let real = path.canonicalize().ok()?;
    let version = real.file_name()?.to_str()?.strip_prefix("libcufile.so.").unwrap_or("");
    if version.contains('.') {
        return Some(version.to_string());
    }
    let site = real.ancestors().find(|a| a.ends_with("site-packages") || a.ends_with("dist-packages"))?;
    names(site).iter().find_map(|n| {
        let rest = n.strip_suffix(".dist-info")?.strip_prefix("nvidia_cufile")?;
        Some(rest.rsplit('-').next()?.to_string())
    })
}

/// Loads the library and asks it. It stays loaded: it has threads that don't like to go.
fn version_by_call(path: &Path) -> Result<Option<String>, String> {
    #[repr(C)]
    struct CufileError {
        code: i32,
        cuda: i32,
    }
    /// SAFETY: the number is writable.
    type GetVersion = unsafe extern "C" fn(*mut i32) -> CufileError;
    // SAFETY: libcufile's initialisers only read its configuration; the engine loads it likewise.
    let library = unsafe { libloading::Library::new(path) }.map_err(|e| e.to_string())?;
    let library = std::mem::ManuallyDrop::new(library);
    // SAFETY: declared so in cufile.h.
    let Ok(call) = (unsafe { library.get::<GetVersion>(b"cuFileGetVersion\0") }) else {
        return Ok(None);
    };
    let mut version = 0;
    // SAFETY: writes one integer.
    let answer = unsafe { call(&mut version) };
    let told = answer.code == 0 && answer.cuda == 0 && version > 0;
    Ok(told.then(|| format!("{}.{}", version / 1000, version % 1000 / 10)))
}

fn config(roots: &Roots, around: &Surroundings) -> Config {
    let named = around.named_json.clone().or_else(|| around.env_json.clone());
    let path = named.unwrap_or_else(|| roots.etc.join("cufile.json"));
    let content = text(&path);
    let parsed = content.as_deref().map(parse);
    let settings = match &parsed {
        Some(Ok(value)) => flatten(value),
        _ => Map::new(),
    };
    let flag = |key: &str, default| settings.get(key).and_then(Value::as_bool).unwrap_or(default);
    let force_compat_mode = around.force_compat.unwrap_or(flag("properties.force_compat_mode", false));
    Config {
        exists: content.is_some(),
        refused: parsed.and_then(Result::err),
        // cuFile's defaults: compatibility mode allowed, P2PDMA not used.
        allow_compat_mode: force_compat_mode
            || around.allow_compat.unwrap_or(flag("properties.allow_compat_mode", true)),
        force_compat_mode,
        forced_by_environment: around.force_compat == Some(true),
        use_pci_p2pdma: around.use_p2pdma.unwrap_or(flag("properties.use_pci_p2pdma", false)),
        settings,
        path,
    }
}

/// cufile.json is JSON with `//` and `/* */` comments.
pub fn parse(content: &str) -> Result<Value, String> {
    serde_json::from_str(&without_comments(content)).map_err(|e| e.to_string())
}

/// Comments become blanks, so that the lines and columns of errors stay right.
fn without_comments(content: &str) -> String {
    let mut out = String::with_capacity(content.len());
    let mut chars = content.chars().peekable();
    let mut quoted = false;
    while let Some(c) = chars.next() {
        match (quoted, c, chars.peek()) {
            (true, '\\', Some(_)) => {
                out.push(c);
                out.extend(chars.next());
            }
            (_, '"', _) => {
                quoted = !quoted;
                out.push(c);
            }
            (false, '/', Some('/')) => {
                while chars.peek().is_some_and(|c| *c != '\n') {
                    chars.next();
                }
            }
            (false, '/', Some('*')) => {
                chars.next();
                let mut last = ' ';
                for inside in chars.by_ref() {
                    if inside == '\n' {
                        out.push('\n');
                    }
                    if (last, inside) == ('*', '/') {
                        break;
                    }
                    last = inside;
                }
                out.push(' ');
            }
            _ => out.push(c),
        }
    }
    out
}

fn flatten(value: &Value) -> Map<String, Value> {
    let mut flat = Map::new();
    let mut open = vec![(String::new(), value)];
    while let Some((name, value)) = open.pop() {
        match value {
            Value::Object(fields) => {
                let dot = if name.is_empty() { "" } else { "." };
                open.extend(fields.iter().rev().map(|(k, v)| (format!("{name}{dot}{k}"), v)));
            }
            leaf if flat.len() < SETTINGS_MAX => {
                flat.insert(name, leaf.clone());
            }
            _ => break,
        }
    }
    flat
}

/// `gpu`: there is a GPU that could use it.
pub fn checks(cufile: &Cufile, gpu: bool) -> Vec<Check> {
    let mut checks = vec![library(cufile, gpu)];
    if gpu || !cufile.libraries.is_empty() || cufile.config.exists {
        checks.push(config_check(&cufile.config));
    }
    checks
}

fn library(cufile: &Cufile, gpu: bool) -> Check {
    let check = |state, found: String| Check::new(Area::Gds, "gds.libcufile", "libcufile", state, found);
    let Some(first) = cufile.libraries.first() else {
        return match gpu {
            true => check(State::Missing, "not found".into())
                .why("it is neither in the CUDA toolkit, nor in the loader's cache, nor among the Python packages")
                .next("pip install nvidia-cufile   # or the package gds-tools of the CUDA toolkit"),
            false => check(State::NotApplicable, "not found, and there is no GPU for it".into()),
        };
    };
    let version = first.version.clone().or_else(|| cufile.api_version.clone());
    let mut found = format!(
        "{} at {} ({})",
        version.as_deref().unwrap_or("version not told"),
        first.path.display(),
        first.place
    );
    if cufile.libraries.len() > 1 {
        let others: Vec<String> =
            cufile.libraries[1..].iter().map(|l| l.path.display().to_string()).collect();
        found += &format!("; also {}", others.join(" "));
    }
    match &cufile.refused {
        None => check(State::Works, found),
        Some(refused) => check(State::Missing, found)
            .why(format!("it doesn't load: {refused}"))
            .next(format!("ldd {} | grep 'not found'", first.path.display())),
    }
}

fn config_check(config: &Config) -> Check {
    let shown = config.path.display();
    let check = |state, found: String| Check::new(Area::Gds, "gds.cufile_json", "cufile.json", state, found);
    if let Some(refused) = &config.refused {
        return check(State::Missing, format!("{shown}: {refused}"))
            .why("cuFile can't read it and takes its defaults")
            .next(format!("sed -n 1,200p {shown}   # mend it, or name another with CUFILE_ENV_PATH_JSON"));
    }
    let values =
        format!("allow_compat_mode {}, use_pci_p2pdma {}", config.allow_compat_mode, config.use_pci_p2pdma);
    match (config.exists, config.allow_compat_mode) {
        (false, _) => check(State::Works, format!("none at {shown}; cuFile's defaults: {values}")),
        (true, false) => check(State::Works, format!("{shown}: {values}")),
        (true, true) => check(State::Works, format!("{shown}: {values}")).why(
            "cuFile may fall back without saying so; forebay's records name the path that ran, byte by byte",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const JSON: &str = r#"{
    // NOTE : a comment with "quotes"
    "logging": { "dir": "/home//x", /* both
       lines */ "level": "ERROR" },
    "properties": { "allow_compat_mode": false, "use_pci_p2pdma": true, "max_direct_io_size_kb": 16384 }
}"#;

    #[test]
    fn comments_go_and_slashes_within_strings_stay() {
        let flat = flatten(&parse(JSON).unwrap());
        assert_eq!(flat["logging.dir"], "/home//x");
        assert_eq!(flat["properties.use_pci_p2pdma"], true);
        assert_eq!(flat["properties.max_direct_io_size_kb"], 16384);
    }

    #[test]
    fn an_error_keeps_its_line() {
        let text = "{ /* one\n two */\n \"a\": }";
        assert!(parse(text).unwrap_err().contains("line 3"), "{:?}", parse(text));
    }

    /// A cache as ldconfig writes it, with one entry per pair.
    pub fn loader_cache(entries: &[(&str, &str)]) -> Vec<u8> {
        let mut table = b"glibc-ld.so.cache1.1".to_vec();
        table.extend((entries.len() as u32).to_le_bytes());
        table.resize(48, 0);
        let mut strings = Vec::new();
        let base = 48 + entries.len() * 24;
        for (name, path) in entries {
            let mut offset = |text: &str| {
                let at = (base + strings.len()) as u32;
                strings.extend(text.bytes().chain([0]));
                at
            };
            let (key, value) = (offset(name), offset(path));
            table.extend(0x303u32.to_le_bytes());
            table.extend(key.to_le_bytes());
            table.extend(value.to_le_bytes());
            table.extend([0; 12]);
        }
        table.extend(strings);
        table
    }

    #[test]
    fn the_loaders_cache_is_read_also_behind_an_older_table() {
        let mut cache = b"ld.so-1.7.0\0\x01\0\0\0 older entries".to_vec();
        cache.extend(loader_cache(&[
            ("libc.so.6", "/lib/libc.so.6"),
            ("libcufile.so.0", "/x/libcufile.so.0"),
        ]));
        let entries = cache_entries(&cache);
        assert_eq!(entries[1], ("libcufile.so.0".to_string(), "/x/libcufile.so.0".to_string()));
    }

    #[test]
    fn libraries_are_found_in_toolkit_cache_and_python_packages_each_once() {
        let root = tempfile::tempdir().unwrap();
        let make = |path: &str, content: &[u8]| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        };
        make("usr/local/cuda-13.0/targets/x86_64-linux/lib/libcufile.so.1.15.1", b"");
        let lib = root.path().join("usr/local/cuda-13.0/targets/x86_64-linux/lib");
        std::os::unix::fs::symlink("libcufile.so.1.15.1", lib.join("libcufile.so.0")).unwrap();
        make("usr/lib/python3.12/site-packages/nvidia/cufile/lib/libcufile.so.0", b"");
        make("usr/lib/python3.12/site-packages/nvidia_cufile_cu12-1.13.1.3.dist-info/METADATA", b"");
        make(
            "etc/ld.so.cache",
            &loader_cache(&[(
                "libcufile.so.0",
                "/usr/local/cuda-13.0/targets/x86_64-linux/lib/libcufile.so.0",
            )]),
        );
        let found = libraries(&Roots::under(root.path()), &Surroundings::default());
        let short: Vec<_> = found.iter().map(|f| (f.place, f.version.as_deref().unwrap())).collect();
        assert_eq!(short, [("loader cache", "1.15.1"), ("Python package", "1.13.1.3")]);
    }

    #[test]
    fn the_environment_comes_before_the_file() {
        let root = tempfile::tempdir().unwrap();
        let json = root.path().join("mine.json");
        std::fs::write(&json, JSON).unwrap();
        let mut around = Surroundings { env_json: Some(json), ..Surroundings::default() };
        let roots = Roots::under(root.path());
        assert!(!config(&roots, &around).allow_compat_mode && config(&roots, &around).use_pci_p2pdma);
        around.allow_compat = Some(true);
        around.force_compat = Some(true);
        let config = config(&roots, &around);
        assert!(config.allow_compat_mode);
        assert!(config.force_compat_mode && config.forced_by_environment);
    }

    #[test]
    fn a_file_that_is_no_library_says_what_the_loader_said() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("libcufile.so.0");
        std::fs::write(&path, b"not an ELF file").unwrap();
        assert!(version_by_call(&path).unwrap_err().contains("libcufile.so.0"));
    }

    proptest! {
        #[test]
        fn any_cache_is_survived(mut table in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = cache_entries(&table);
            table.splice(0..0, b"glibc-ld.so.cache1.1".iter().copied());
            let _ = cache_entries(&table);
        }

        #[test]
        fn any_configuration_is_survived(text in "[-{}\"/*\\\\:, \na-z0-9é]{0,120}") {
            if let Ok(value) = parse(&text) {
                let _ = flatten(&value);
            }
        }

        #[test]
        fn any_mapping_is_survived(text in ".{0,80}(/site-packages/)?.{0,10}") {
            let _ = site_of(&text);
        }
    }
}
