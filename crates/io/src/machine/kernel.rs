//! Build options of the kernel.

use super::roots::Roots;
use flate2::read::GzDecoder;
use std::io::Read;

const CONFIG_BYTES_MAX: u64 = 4 << 20;

/// The kernel's configuration: its own copy, else the one that was installed with it.
pub fn kernel_config(roots: &Roots) -> Option<String> {
    if let Some(packed) = Roots::bytes(&roots.proc("config.gz")) {
        let mut config = Vec::new();
        GzDecoder::new(packed.as_slice()).take(CONFIG_BYTES_MAX).read_to_end(&mut config).ok()?;
        return Some(String::from_utf8_lossy(&config).into_owned());
    }
    let release = Roots::line(&roots.proc("sys/kernel/osrelease"))?;
    Roots::text(&roots.root.join("boot").join(format!("config-{release}")))
        .or_else(|| Roots::text(&roots.root.join("lib/modules").join(release).join("config")))
}

/// An option that is built in, or as a module.
pub fn has_kernel_option(config: &str, name: &str) -> bool {
    config
        .lines()
        .any(|l| l.split_once('=').is_some_and(|(key, value)| key == name && (value == "y" || value == "m")))
}
