//! Identity of this host towards controllers: its NQN and its identifier (base, section 4.5; HOSTID and HOSTNQN of
//! Connect).

use std::path::Path;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub nqn: String,
    pub id: [u8; 16],
}

impl Identity {
    /// As the kernel's host and nvme-cli know it: /etc/nvme/hostnqn and /etc/nvme/hostid. Without those files, made
    /// from the machine's id: always the same.
    pub fn of_this_machine() -> Identity {
        Identity::under(Path::new("/"))
    }

    /// Under another name. Its identifier is the UUID in it, or made from it.
    pub fn named(nqn: &str) -> Identity {
        let uuid = nqn.rsplit_once("uuid:").and_then(|(_, text)| parse_uuid(text));
        Identity { nqn: nqn.into(), id: uuid.unwrap_or_else(|| uuid_of(nqn.as_bytes())) }
    }

    fn under(root: &Path) -> Identity {
        let line = |path: &str| {
            let text = std::fs::read_to_string(root.join(path)).ok()?;
            let first = text.lines().next()?.trim();
            (!first.is_empty()).then(|| first.to_string())
        };
        let Some(nqn) = line("etc/nvme/hostnqn").filter(|n| n.starts_with("nqn.") && n.len() <= 223) else {
            let machine = ["etc/machine-id", "proc/sys/kernel/random/boot_id", "proc/sys/kernel/hostname"];
            let known = machine.into_iter().find_map(line).unwrap_or_default();
            let id = uuid_of(known.as_bytes());
            return Identity { nqn: format!("nqn.2014-08.org.nvmexpress:uuid:{}", show_uuid(&id)), id };
        };
        let id = line("etc/nvme/hostid").and_then(|text| parse_uuid(&text));
        let named = Identity::named(&nqn);
        Identity { id: id.unwrap_or(named.id), nqn }
    }
}

/// `0f2d4c1e-0000-4000-8000-000000000001`.
pub fn show_uuid(uuid: &[u8; 16]) -> String {
    let hex: Vec<String> = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    [&hex[..4], &hex[4..6], &hex[6..8], &hex[8..10], &hex[10..]].map(<[String]>::concat).join("-")
}

/// 32 hexadecimal digits, with hyphens or without.
pub fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let digits: Vec<u8> = text
        .bytes()
        .filter(|b| *b != b'-')
        .map(|b| char::from(b).to_digit(16).map(|d| d as u8))
        .collect::<Option<_>>()?;
    let bytes: Vec<u8> = digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect();
    bytes.try_into().ok().filter(|_| digits.len() == 32)
}

/// A UUID of version 8 (RFC 9562: made as its maker likes) that names these bytes: their 128-bit FNV-1a.
fn uuid_of(name: &[u8]) -> [u8; 16] {
    const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let hash = name.iter().fold(OFFSET, |hash, byte| (hash ^ u128::from(*byte)).wrapping_mul(PRIME));
    let mut uuid = hash.to_be_bytes();
    uuid[6] = uuid[6] & 0x0f | 0x80;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    uuid
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: &str = "0f2d4c1e-1234-4000-8000-00000000abcd";

    fn machine(files: &[(&str, &str)]) -> Identity {
        let root = tempfile::tempdir().unwrap();
        for (path, content) in files {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        }
        Identity::under(root.path())
    }

    #[test]
    fn what_the_kernels_host_uses_is_used_here() {
        let nqn = format!("nqn.2014-08.org.nvmexpress:uuid:{UUID}");
        let both = machine(&[
            ("etc/nvme/hostnqn", &format!("{nqn}\n")),
            ("etc/nvme/hostid", &UUID.replace('0', "1")),
        ]);
        assert_eq!(both.nqn, nqn);
        assert_eq!(show_uuid(&both.id), UUID.replace('0', "1"));
        let name_alone = machine(&[("etc/nvme/hostnqn", &nqn)]);
        assert_eq!(show_uuid(&name_alone.id), UUID);
    }

    #[test]
    fn without_those_files_the_machine_has_one_name_that_stays() {
        let one = machine(&[("etc/machine-id", "6dbf1f4f\n")]);
        assert_eq!(one, machine(&[("etc/machine-id", "6dbf1f4f\n"), ("etc/nvme/hostnqn", "garbage")]));
        assert_ne!(one, machine(&[("etc/machine-id", "6dbf1f50\n")]));
        assert!(one.nqn.ends_with(&show_uuid(&one.id)));
        assert_ne!(one.id, [0; 16]);
        assert_eq!(show_uuid(&one.id).as_bytes()[14], b'8');
    }

    #[test]
    fn a_name_without_a_uuid_has_an_identifier_of_its_own() {
        assert_ne!(
            Identity::named("nqn.2026-01.io.example:a").id,
            Identity::named("nqn.2026-01.io.example:b").id
        );
        assert_eq!(parse_uuid("0f2d"), None);
        assert_eq!(parse_uuid(&"é".repeat(16)), None);
    }
}
