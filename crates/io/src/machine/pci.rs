//! PCI functions as sysfs shows them: link, NUMA node, and the switches above.

use super::roots::Roots;
use forebay_model::units::BYTES_PER_GIB;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// `0000:3b:00.0`: domain, bus, device, function.
pub(crate) fn is_address(name: &str) -> bool {
    let Some((rest, function)) = name.split_once('.') else { return false };
    let parts: Vec<&str> = rest.split(':').collect();
    let hex = |text: &str, digits: std::ops::RangeInclusive<usize>| {
        digits.contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit())
    };
    parts.len() == 3
        && hex(parts[0], 4..=8)
        && hex(parts[1], 2..=2)
        && hex(parts[2], 2..=2)
        && hex(function, 1..=1)
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Link {
    pub generation: Option<u32>,
    pub generation_max: Option<u32>,
    pub width: Option<u32>,
    pub width_max: Option<u32>,
}

impl Link {
    /// Trained below what the device can do.
    pub fn is_degraded(&self) -> bool {
        let below = |now: Option<u32>, max: Option<u32>| matches!((now, max), (Some(n), Some(m)) if n < m);
        below(self.generation, self.generation_max) || below(self.width, self.width_max)
    }

    /// `Gen5 ×4`, and `of Gen5 ×4` where it could do more.
    pub fn words(&self) -> Option<String> {
        let show = |generation, width| Some(format!("Gen{} ×{}", generation?, width?));
        let now = show(self.generation, self.width)?;
        match show(self.generation_max, self.width_max) {
            Some(max) if self.is_degraded() => Some(format!("{now} of {max}")),
            _ => Some(now),
        }
    }

    /// GiB/s that the link carries after line coding, before packet headers.
    pub fn gib_s(&self) -> Option<f64> {
        let (gigatransfers, coding) = match self.generation? {
            1 => (2.5, 0.8),
            2 => (5.0, 0.8),
            3 => (8.0, 128.0 / 130.0),
            4 => (16.0, 128.0 / 130.0),
            5 => (32.0, 128.0 / 130.0),
            6 => (64.0, 1.0),
            _ => return None,
        };
        Some(gigatransfers * coding * f64::from(self.width?) / 8.0 * 1e9 / BYTES_PER_GIB)
    }
}

/// `32.0 GT/s PCIe` → 5.
pub(crate) fn generation(speed: &str) -> Option<u32> {
    match speed.split_whitespace().next()?.parse::<f64>().ok()? {
        x if x < 2.0 => None,
        x if x < 4.0 => Some(1),
        x if x < 7.0 => Some(2),
        x if x < 12.0 => Some(3),
        x if x < 24.0 => Some(4),
        x if x < 48.0 => Some(5),
        x if x < 96.0 => Some(6),
        _ => None,
    }
}

pub fn pci_directory(roots: &Roots, address: &str) -> PathBuf {
    roots.sys("bus/pci/devices").join(address)
}

pub(crate) fn link(roots: &Roots, address: &str) -> Link {
    let device = pci_directory(roots, address);
    let speed = |name: &str| Roots::line(&device.join(name)).and_then(|l| generation(&l));
    // Slots that aren't PCIe say a width of 0 or 255.
    let width = |name: &str| Roots::number::<u32>(&device.join(name)).filter(|w| (1..=32).contains(w));
    Link {
        generation: speed("current_link_speed"),
        generation_max: speed("max_link_speed"),
        width: width("current_link_width"),
        width_max: width("max_link_width"),
    }
}

/// None where the firmware doesn't say (-1).
pub fn pci_numa_node(roots: &Roots, address: &str) -> Option<i32> {
    Roots::number(&pci_directory(roots, address).join("numa_node")).filter(|node| *node >= 0)
}

/// `0x010802` → class 01, subclass 08, interface 02.
pub fn pci_class(roots: &Roots, address: &str) -> Option<u32> {
    hex(&Roots::line(&pci_directory(roots, address).join("class"))?)
}

pub(crate) fn vendor(roots: &Roots, address: &str) -> Option<u32> {
    hex(&Roots::line(&pci_directory(roots, address).join("vendor"))?)
}

fn hex(text: &str) -> Option<u32> {
    u32::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

pub fn is_pci_bridge(class: u32) -> bool {
    class >> 8 == 0x0604
}

/// PCI addresses on the way from the root port down to the device at `path`, itself included.
pub fn pci_ancestry(path: &Path) -> Vec<String> {
    let names = path.components().filter_map(|c| c.as_os_str().to_str());
    names.filter(|n| is_address(n)).map(str::to_string).collect()
}

/// Size of base address register number `index`, from the `resource` file.
pub(crate) fn region_bytes(roots: &Roots, address: &str, index: usize) -> Option<u64> {
    let content = Roots::text(&pci_directory(roots, address).join("resource"))?;
    let mut ends = content.lines().nth(index)?.split_whitespace();
    let mut end = || u64::from_str_radix(ends.next()?.strip_prefix("0x")?, 16).ok();
    let (first, last) = (end()?, end()?);
    (last > first).then(|| (last - first).saturating_add(1))
}

/// Returns whether the bridge at `address` sends peer traffic up to the root complex: the Access Control Services
/// capability with request or completion redirect on. None where it can't be read (the extended configuration space
/// takes root).
pub fn pci_redirects_peers(roots: &Roots, address: &str) -> Option<bool> {
    let config = Roots::bytes(&pci_directory(roots, address).join("config"))?;
    if config.len() < 0x100 + 4 {
        return None;
    }
    Some(acs_control(&config).is_some_and(|control| control & ACS_REDIRECT != 0))
}

/// P2P Request Redirect and P2P Completion Redirect (PCIe 5.0, 7.7.8.3).
const ACS_REDIRECT: u16 = 1 << 2 | 1 << 3;
const ACS_CAPABILITY: u16 = 0x000d;

/// The ACS control register, by the list of extended capabilities (PCIe 5.0, 7.6.3).
pub(crate) fn acs_control(config: &[u8]) -> Option<u16> {
    let word = |at: usize| Some(u16::from_le_bytes(config.get(at..at + 2)?.try_into().ok()?));
    let mut at = 0x100;
    // At most one capability per 4 bytes: a list that loops ends here.
    for _ in 0..(4096 - 0x100) / 4 {
        let (id, link) = (word(at)?, word(at + 2)?);
        if id == ACS_CAPABILITY {
            return word(at + 6);
        }
        at = usize::from(link >> 4);
        if at < 0x100 {
            return None;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn generations_follow_the_transfer_rate() {
        let of = |text| generation(text);
        assert_eq!(of("2.5 GT/s PCIe"), Some(1));
        assert_eq!(of("32.0 GT/s PCIe"), Some(5));
        assert_eq!(of("64.0 GT/s PCIe"), Some(6));
        assert_eq!(of("Unknown"), None);
    }

    #[test]
    fn a_gen5_x4_link_carries_under_15_gib_per_second() {
        let link = Link { generation: Some(5), generation_max: Some(5), width: Some(4), width_max: Some(4) };
        assert!((link.gib_s().unwrap() - 14.67).abs() < 0.01);
        assert_eq!(link.words().unwrap(), "Gen5 ×4");
        let slow = Link { generation: Some(4), ..link };
        assert_eq!(slow.words().unwrap(), "Gen4 ×4 of Gen5 ×4");
    }

    #[test]
    fn addresses_are_told_from_other_names() {
        assert!(is_address("0000:3b:00.0") && is_address("10000:e1:00.1"));
        for name in ["virtio1", "pci0000:00", "0000:3b:00", "0000:3b:00.10", "zz00:3b:00.0"] {
            assert!(!is_address(name), "{name}");
        }
    }

    /// An extended space with one other capability before ACS.
    pub(crate) fn config_with_acs(control: u16) -> Vec<u8> {
        let mut config = vec![0u8; 4096];
        config[0x100..0x104].copy_from_slice(&[0x01, 0x00, 0x01, 0x15]);
        config[0x150..0x154].copy_from_slice(&[0x0d, 0x00, 0x01, 0x00]);
        config[0x156..0x158].copy_from_slice(&control.to_le_bytes());
        config
    }

    #[test]
    fn acs_is_found_behind_other_capabilities() {
        assert_eq!(acs_control(&config_with_acs(0x1d)), Some(0x1d));
        assert_eq!(acs_control(&[0; 64]), None);
    }

    #[test]
    fn a_capability_list_that_loops_ends() {
        let mut config = vec![0u8; 4096];
        config[0x100..0x104].copy_from_slice(&[0x01, 0x00, 0x01, 0x10]);
        assert_eq!(acs_control(&config), None);
    }

    proptest! {
        #[test]
        fn any_configuration_space_is_survived(config in proptest::collection::vec(any::<u8>(), 0..600)) {
            let _ = acs_control(&config);
        }

        #[test]
        fn any_text_is_survived(text in ".{0,60}") {
            let _ = (generation(&text), is_address(&text), hex(&text));
        }
    }
}
