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
pub(crate) fn loader_cache(entries: &[(&str, &str)]) -> Vec<u8> {
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
    cache.extend(loader_cache(&[("libc.so.6", "/lib/libc.so.6"), ("libcufile.so.0", "/x/libcufile.so.0")]));
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
        &loader_cache(&[("libcufile.so.0", "/usr/local/cuda-13.0/targets/x86_64-linux/lib/libcufile.so.0")]),
    );
    make("opt/kit/lib64/libcufile.so.1.14.0", b"");
    let around = Surroundings { homes: vec![root.path().join("opt/kit")], ..Surroundings::default() };
    std::os::unix::fs::symlink("libcufile.so.1.14.0", root.path().join("opt/kit/lib64/libcufile.so.0"))
        .unwrap();
    let found = libraries(&Roots::under(root.path()), &around);
    let short: Vec<_> = found.iter().map(|f| (f.place, f.version.as_deref().unwrap())).collect();
    let wanted = [("loader cache", "1.15.1"), ("CUDA toolkit", "1.14.0"), ("Python package", "1.13.1.3")];
    assert_eq!(short, wanted);
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
        let _ = CudaPlaces::mapped_sites(&text);
    }
}
