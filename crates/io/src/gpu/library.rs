//! Finding NVIDIA's libraries: where an environment variable says, by the
//! system's search, in a CUDA toolkit, in Python's wheels. `doctor` looks at the same places.

use super::places::{self, Places};
use libloading::Library;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// A library: the variable that names another file for it, and the names it goes by.
pub(crate) struct Wanted {
    pub variable: &'static str,
    pub names: &'static [&'static str],
}

pub(crate) const CUDA: Wanted =
    Wanted { variable: "FOREBAY_LIBCUDA", names: &["libcuda.so.1", "libcuda.so"] };
pub(crate) const CUFILE: Wanted =
    Wanted { variable: "FOREBAY_LIBCUFILE", names: &["libcufile.so.0", "libcufile.so"] };
pub(crate) const NVRTC: Wanted = Wanted {
    variable: "FOREBAY_LIBNVRTC",
    names: &["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2", "libnvrtc.so"],
};

static PACKAGES: OnceLock<Vec<PathBuf>> = OnceLock::new();

/// Folders of Python packages (`site-packages`), below which wheels keep NVIDIA's libraries. The first call counts.
pub fn search_python_packages(folders: Vec<PathBuf>) {
    let _ = PACKAGES.set(folders);
}

/// Loads the library and says from where, or says what was tried. An environment variable that names one is
/// the only place looked at.
///
/// The caller knows the library's ABI; its initialisers run.
pub(crate) fn load(wanted: &Wanted) -> Result<(Library, String), String> {
    if let Some(named) = std::env::var_os(wanted.variable).filter(|v| !v.is_empty()) {
        let shown = named.to_string_lossy().into_owned();
        return open(Path::new(&named)).map(|l| (l, shown)).map_err(|e| format!("{}: {e}", wanted.variable));
    }
    let mut first = None;
    let bare = wanted.names.iter().map(PathBuf::from);
    let placed = folders()
        .into_iter()
        .flat_map(|dir| wanted.names.iter().map(move |n| dir.join(n)))
        .filter(|p| p.exists());
    for path in bare.chain(placed) {
        match open(&path) {
            Ok(library) => return Ok((library, path.display().to_string())),
            Err(why) => {
                first.get_or_insert(why);
            }
        }
    }
    Err(first.unwrap_or_else(|| format!("{} wasn't found", wanted.names[0])))
}

fn open(path: &Path) -> Result<Library, String> {
    // SAFETY: one of NVIDIA's libraries (or what the user named in place of it): its initialisers are what loading
    // it is for.
    unsafe { Library::new(path) }.map_err(|e| e.to_string())
}

/// Toolkits, the system, then wheels.
fn folders() -> Vec<PathBuf> {
    let places = Places {
        root: "/".into(),
        homes: places::Places::homes_of_process(),
        prefixes: places::Places::prefixes_of_process(),
        sites: python_packages(&std::fs::read_to_string("/proc/self/maps").unwrap_or_default()),
    };
    [places.toolkits(), places.packages()].concat()
}

/// Folders of Python packages of this process: those that were named, and those that something is mapped from.
pub fn python_packages(maps: &str) -> Vec<PathBuf> {
    let named = PACKAGES.get().cloned().unwrap_or_default();
    [named, places::Places::mapped_sites(maps)].concat()
}
