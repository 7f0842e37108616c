//! Locations of NVIDIA's libraries beside the loader's own search: the one list that the engine loads from, and that
//! `doctor` looks through and names.

use std::path::{Path, PathBuf};

/// Entries of a folder that are looked at.
const ENTRIES_MAX: usize = 4096;
/// Below a toolkit's home.
const PARTS: [&str; 3] = ["targets/x86_64-linux/lib", "targets/sbsa-linux/lib", "lib64"];
const SYSTEM: [&str; 3] = ["usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64"];

/// Basis of the list.
#[derive(Clone, Debug, Default)]
pub struct Places {
    /// Root of the file system.
    pub root: PathBuf,
    /// CUDA_HOME and CUDA_PATH.
    pub homes: Vec<PathBuf>,
    /// VIRTUAL_ENV and CONDA_PREFIX.
    pub prefixes: Vec<PathBuf>,
    /// Folders of Python packages that are known already.
    pub sites: Vec<PathBuf>,
}

/// Absolute folders that these variables name.
pub(crate) fn named_by(variables: &[&str]) -> Vec<PathBuf> {
    let values = variables.iter().filter_map(std::env::var_os).map(PathBuf::from);
    values.filter(|path| path.is_absolute()).collect()
}

impl Places {
    pub fn homes_of_process() -> Vec<PathBuf> {
        named_by(&["CUDA_HOME", "CUDA_PATH"])
    }

    pub fn prefixes_of_process() -> Vec<PathBuf> {
        named_by(&["VIRTUAL_ENV", "CONDA_PREFIX"])
    }
}

impl Places {
    /// Toolkits' folders, those that were named first and newer ones before older ones; then the system's.
    pub fn toolkits(&self) -> Vec<PathBuf> {
        let local = self.root.join("usr/local");
        let mut versions: Vec<String> =
            names(&local).into_iter().filter(|n| n.starts_with("cuda-")).collect();
        versions.sort_by_key(|name| std::cmp::Reverse(version(name)));
        let installed = std::iter::once("cuda".to_owned()).chain(versions).map(|name| local.join(name));
        let homes = self.homes.iter().cloned().chain(installed);
        let kits = homes.flat_map(|home| PARTS.map(|part| home.join(part)));
        kits.chain(SYSTEM.map(|part| self.root.join(part))).collect()
    }

    /// Folders of wheels (`nvidia/cu13/lib`, `nvidia/cufile/lib`) in every folder of Python packages.
    pub fn packages(&self) -> Vec<PathBuf> {
        let below = |site: &PathBuf| {
            let all = site.join("nvidia");
            names(&all).into_iter().map(move |name| all.join(name).join("lib"))
        };
        self.site_packages().iter().flat_map(below).collect()
    }

    fn site_packages(&self) -> Vec<PathBuf> {
        let mut found = self.sites.clone();
        let own = self.prefixes.iter().map(|p| p.join("lib"));
        let systems = ["usr/local/lib", "usr/lib"].map(|part| self.root.join(part));
        for base in own.chain(systems) {
            for python in names(&base).iter().filter(|n| n.starts_with("python3")) {
                found.extend(["site-packages", "dist-packages"].map(|kind| base.join(python).join(kind)));
            }
        }
        let mut seen = std::collections::BTreeSet::new();
        found.retain(|site| seen.insert(site.clone()));
        found
    }

    /// Folders of Python packages from which something is mapped, by a process's `maps`.
    pub fn mapped_sites(maps: &str) -> Vec<PathBuf> {
        let mut found: Vec<PathBuf> = maps.lines().filter_map(site_of).collect();
        found.sort();
        found.dedup();
        found
    }
}

fn site_of(mapping: &str) -> Option<PathBuf> {
    let path = &mapping[mapping.find('/')?..];
    let end =
        ["/site-packages/", "/dist-packages/"].iter().find_map(|p| Some(path.find(p)? + p.len() - 1))?;
    Some(PathBuf::from(&path[..end]))
}

/// `cuda-12.9` as [12, 9].
fn version(name: &str) -> Vec<u32> {
    name.trim_start_matches("cuda-").split('.').map(|part| part.parse().unwrap_or(0)).collect()
}

fn names(folder: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let name = |entry: std::io::Result<std::fs::DirEntry>| entry.ok()?.file_name().into_string().ok();
    let mut names: Vec<String> = entries.take(ENTRIES_MAX).filter_map(name).collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise: DOC-1
    #[test]
    fn toolkits_come_named_then_newest_first_and_wheels_of_every_environment() {
        let root = tempfile::tempdir().unwrap();
        let at = |path: &str| root.path().join(path);
        for folder in [
            "usr/local/cuda-9.2",
            "usr/local/cuda-13.0",
            "venv/lib/python3.12/site-packages/nvidia/cufile/lib",
            "conda/lib/python3.11/site-packages/nvidia/cu13/lib",
            "usr/lib/python3/dist-packages/nvidia/cu12/lib",
        ] {
            std::fs::create_dir_all(at(folder)).unwrap();
        }
        let places = Places {
            root: root.path().into(),
            homes: vec![at("opt/cuda")],
            prefixes: vec![at("venv"), at("conda")],
            sites: vec![at("venv/lib/python3.12/site-packages")],
        };
        let kits = places.toolkits();
        let of = |home: &str| PARTS.map(|part| at(home).join(part)).to_vec();
        let homes = ["opt/cuda", "usr/local/cuda", "usr/local/cuda-13.0", "usr/local/cuda-9.2"];
        assert_eq!(kits[..12], homes.map(of).concat());
        assert_eq!(kits[12..], SYSTEM.map(at));
        let wheels = [
            "venv/lib/python3.12/site-packages/nvidia/cufile/lib",
            "conda/lib/python3.11/site-packages/nvidia/cu13/lib",
            "usr/lib/python3/dist-packages/nvidia/cu12/lib",
        ];
        assert_eq!(places.packages(), wheels.map(at), "each once");
    }

    #[test]
    fn what_is_mapped_tells_where_packages_lie() {
        let maps = "7f00-7f01 r-xp 00000000 00:01 5  /opt/v/lib/python3.12/site-packages/numpy/core.so\n\
                    7f02-7f03 r--p 00000000 00:01 5  /opt/v/lib/python3.12/site-packages/a.so\n\
                    7f04-7f05 rw-p 00000000 00:00 0\n";
        assert_eq!(Places::mapped_sites(maps), [PathBuf::from("/opt/v/lib/python3.12/site-packages")]);
    }
}
