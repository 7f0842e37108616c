//! libcufile: where it is, which version, whether it loads, and its cufile.json.

mod properties;

pub use properties::ask_cufile;

use forebay_io::{python_packages, Check, CheckArea, CheckState, CudaPlaces, Roots};
use serde::Serialize;
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

const SETTINGS_MAX: usize = 512;
const NAMES: [&str; 2] = ["libcufile.so", "libcufile.so.0"];

/// Relevant part of the process's environment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Surroundings {
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
    /// CUDA_HOME and CUDA_PATH.
    pub homes: Vec<PathBuf>,
    /// VIRTUAL_ENV and CONDA_PREFIX.
    pub prefixes: Vec<PathBuf>,
}

impl Surroundings {
    pub(crate) fn of_process(named_json: Option<&Path>) -> Surroundings {
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
            homes: CudaPlaces::homes_of_process(),
            prefixes: CudaPlaces::prefixes_of_process(),
        }
    }
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct Cufile {
    /// The libraries that were found, in the order in which the engine tries them.
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
    /// The value in the file, or cuFile's default.
    pub allow_compat_mode: bool,
    pub use_pci_p2pdma: bool,
    /// The environment or the file make cuFile use its compatibility mode always.
    pub force_compat_mode: bool,
    /// It is the environment.
    pub forced_by_environment: bool,
    /// Every key of the file with its value, as `properties.allow_compat_mode`.
    pub settings: Map<String, Value>,
}

pub(crate) fn facts(roots: &Roots, around: &Surroundings) -> Cufile {
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
    let places = places(roots, around);
    for directory in places.toolkits() {
        both(directory).into_iter().for_each(|p| add(p, "CUDA toolkit"));
    }
    for directory in places.packages() {
        both(directory).into_iter().for_each(|p| add(p, "Python package"));
    }
    found
}

/// As the engine has them, which looks at this machine only.
fn places(roots: &Roots, around: &Surroundings) -> CudaPlaces {
    let maps = Roots::text(&roots.proc("self/maps")).unwrap_or_default();
    let here = roots.root == Path::new("/");
    CudaPlaces {
        root: roots.root.clone(),
        homes: around.homes.clone(),
        prefixes: around.prefixes.clone(),
        sites: if here { python_packages(&maps) } else { CudaPlaces::mapped_sites(&maps) },
    }
}

/// Entries for libcufile in the loader's cache (glibc's `glibc-ld.so.cache1.1`).
fn cached(roots: &Roots) -> Vec<PathBuf> {
    let cache = Roots::bytes(&roots.etc.join("ld.so.cache")).unwrap_or_default();
    let wanted = |(name, _): &(String, String)| NAMES.contains(&name.as_str());
    let under = |path: String| roots.root.join(path.trim_start_matches('/'));
    cache_entries(&cache).into_iter().filter(wanted).map(|(_, path)| under(path)).collect()
}

/// (soname, path) of each entry; what doesn't parse is left out.
pub(crate) fn cache_entries(cache: &[u8]) -> Vec<(String, String)> {
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
    Roots::names(site).iter().find_map(|n| {
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
    let reported = answer.code == 0 && answer.cuda == 0 && version > 0;
    Ok(reported.then(|| format!("{}.{}", version / 1000, version % 1000 / 10)))
}

fn config(roots: &Roots, around: &Surroundings) -> Config {
    let named = around.named_json.clone().or_else(|| around.env_json.clone());
    let path = named.unwrap_or_else(|| roots.etc.join("cufile.json"));
    let content = Roots::text(&path);
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
pub(crate) fn parse(content: &str) -> Result<Value, String> {
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
pub(crate) fn checks(cufile: &Cufile, gpu: bool) -> Vec<Check> {
    let mut checks = vec![library(cufile, gpu)];
    if gpu || !cufile.libraries.is_empty() || cufile.config.exists {
        checks.push(config_check(&cufile.config));
        checks.extend(properties::checks(&cufile.config));
    }
    checks
}

fn library(cufile: &Cufile, gpu: bool) -> Check {
    let check = |state, found: String| Check::new(CheckArea::Gds, "gds.libcufile", "libcufile", state, found);
    let Some(first) = cufile.libraries.first() else {
        return match gpu {
            true => check(CheckState::Missing, "not found".into())
                .why("it is neither in the CUDA toolkit, nor in the loader's cache, nor among the Python packages")
                .next("pip install nvidia-cufile   # or the package gds-tools of the CUDA toolkit"),
            false => check(CheckState::NotApplicable, "not found, and there is no GPU for it".into()),
        };
    };
    let version = first.version.clone().or_else(|| cufile.api_version.clone());
    let mut found = format!(
        "{} at {} ({})",
        version.as_deref().unwrap_or("version not reported"),
        first.path.display(),
        first.place
    );
    if cufile.libraries.len() > 1 {
        let others: Vec<String> =
            cufile.libraries[1..].iter().map(|l| l.path.display().to_string()).collect();
        found += &format!("; also {}", others.join(" "));
    }
    match &cufile.refused {
        None => check(CheckState::Works, found),
        Some(refused) => check(CheckState::Missing, found)
            .why(format!("it doesn't load: {refused}"))
            .next(format!("ldd {} | grep 'not found'", first.path.display())),
    }
}

fn config_check(config: &Config) -> Check {
    let shown = config.path.display();
    let check =
        |state, found: String| Check::new(CheckArea::Gds, "gds.cufile_json", "cufile.json", state, found);
    if let Some(refused) = &config.refused {
        return check(CheckState::Missing, format!("{shown}: {refused}"))
            .why("cuFile can't read it and takes its defaults")
            .next(format!(
                "sed -n 1,200p {shown}   # correct it, or name another with CUFILE_ENV_PATH_JSON"
            ));
    }
    let values =
        format!("allow_compat_mode {}, use_pci_p2pdma {}", config.allow_compat_mode, config.use_pci_p2pdma);
    match (config.exists, config.allow_compat_mode) {
        (false, _) => check(CheckState::Works, format!("none at {shown}; cuFile's defaults: {values}")),
        (true, false) => check(CheckState::Works, format!("{shown}: {values}")),
        (true, true) => check(CheckState::Works, format!("{shown}: {values}")).why(
            "cuFile may fall back without saying so; forebay's records name the path that ran, byte by byte",
        ),
    }
}

#[cfg(test)]
mod tests;
