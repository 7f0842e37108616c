use super::*;
use proptest::prelude::*;

const BLOCK: usize = 512;

/// A block as fio writes it: `version` None before fio 3.41.
fn written(kind: u8, version: Option<u8>, place: u64, len: usize) -> Vec<u8> {
    let mut head = MAGIC.to_le_bytes().to_vec();
    head.extend(version.map_or([kind, 0], |version| [version, kind]));
    head.extend((len as u32).to_le_bytes());
    head.extend(0x1234_5678_9ABC_u64.to_le_bytes());
    head.extend(place.to_le_bytes());
    head.extend([7; 8]);
    head.extend(match version {
        None => vec![1; 4],
        Some(_) => vec![1; 12],
    });
    head.extend((sums::crc32c(&head) as u32).to_le_bytes());
    let row = KINDS.iter().find(|row| row.2.contains(&kind)).expect("a known kind");
    let data: Vec<u8> = (head.len() + row.3..len).map(|n| ((n as u64 * 31) ^ place) as u8).collect();
    head.extend(&(row.4)(&data).to_le_bytes()[..row.3]);
    head.extend(data);
    head
}

fn file(blocks: u64) -> Vec<u8> {
    (0..blocks).flat_map(|n| written(5, None, n * BLOCK as u64, BLOCK)).collect()
}

fn rule(text: &str) -> Rule {
    Rule::parse(text).unwrap()
}

fn wrong(bytes: &[u8], at: u64, text: &str) -> String {
    check(bytes, at, &rule(text)).unwrap_err().describe("f")
}

#[test]
fn blocks_of_each_kind_and_both_layouts_hold() {
    for Row(name, _, numbers, ..) in KINDS.iter().filter(|row| !row.2.is_empty()) {
        for (number, version) in numbers.iter().flat_map(|n| [(*n, None), (*n, Some(VERSION))]) {
            let bytes: Vec<u8> = (3..7).flat_map(|n| written(number, version, n * 512, BLOCK)).collect();
            for text in [format!("{name},interval=512"), (*name).to_owned(), "any".to_owned()] {
                assert_eq!(check(&bytes, 3 * 512, &rule(&text)), Ok(()), "{text} {version:?}");
            }
        }
    }
    let long: Vec<u8> =
        [(0, 4096), (4096, 512), (4608, 8192)].map(|(at, len)| written(3, None, at, len)).concat();
    assert_eq!(check(&long, 0, &rule("crc64")), Ok(()), "lengths are the headers'");
}

#[test]
fn what_is_wrong_is_named_by_its_block() {
    let (good, crc) = (file(4), "crc32c,interval=512");
    let swapped = [&good[512..1024], &good[..512], &good[1024..]].concat();
    assert_eq!(
        wrong(&swapped, 0, crc),
        "block at 0 of f holds the block that belongs at 512; 2 blocks of this read are wrong"
    );
    let mut torn = good.clone();
    torn[512 + 20..1024].fill(0);
    assert_eq!(
        wrong(&torn, 0, crc),
        "block at 512 of f has a damaged header: its checksum isn't that of its bytes"
    );
    assert!(wrong(&torn, 0, "crc32c").contains("damaged header"));
    let mut flipped = good.clone();
    flipped[1024 + 300] ^= 4;
    assert!(
        wrong(&flipped, 0, crc).starts_with("block at 1024 of f has crc32c "),
        "{}",
        wrong(&flipped, 0, crc)
    );
    assert!(wrong(&good, 0, "crc64,interval=512").contains("written with verify=crc32c, not crc64; 4 blocks"));
    assert!(wrong(&good, 0, "crc32c,interval=1k").contains("has 512 bytes by its header, not 1024"));
    assert!(wrong(&good[..300], 0, "crc32c").contains("has 512 bytes, of which 300 were read; I/Os of 512"));
    assert!(wrong(&good[..30], 0, "crc32c").contains("is torn: 30 bytes are left"));
    assert!(wrong(&[0; 512], 0, crc).contains("only zeroes"));
    let mut own = vec![0; 512];
    crate::content::fill(&mut own, 7, 1, 0);
    assert!(wrong(&own, 0, crc).contains("Forebay's own content"));
    assert!(wrong(&[0x55; 512], 0, crc).contains("no header of fio's (it begins with 0x5555)"));
    own[..2].copy_from_slice(&MAGIC.to_be_bytes());
    assert!(wrong(&own, 0, crc).contains("the other byte order"));
    let mut md5 = good[..512].to_vec();
    md5[2] = 2;
    let sum = sums::crc32c(&md5[..36]) as u32;
    md5[36..40].copy_from_slice(&sum.to_le_bytes());
    assert!(wrong(&md5, 0, "any").contains("verify=md5, which isn't computed here"));
}

#[test]
fn a_header_may_lie_inside_its_block() {
    let mut block = written(5, None, 512, BLOCK);
    let (head, data) = (block[..44].to_vec(), block[100..144].to_vec());
    block[..44].copy_from_slice(&data);
    block[100..144].copy_from_slice(&head);
    assert_eq!(check(&block, 512, &rule("crc32c,interval=512,offset=100")), Ok(()));
    block[3] ^= 1;
    assert!(wrong(&block, 512, "crc32c,interval=512,offset=100").contains("has crc32c"));
    assert!(wrong(&block, 512, "crc32c,interval=512,offset=508").contains("is torn"));
    assert!(wrong(&block, 512, "crc32c,interval=512,offset=600").contains("is torn"));
}

#[test]
fn patterns_repeat_from_the_start_of_an_io() {
    let data: Vec<u8> = b"\xaa\x55\x5a".iter().copied().cycle().take(1000).collect();
    assert_eq!(check(&data, 8192, &rule("pattern,pattern=aa555a")), Ok(()));
    assert!(wrong(&data[1..], 8192, "pattern,pattern=0xaa555a")
        .contains("0x55 where the pattern has 0xaa, 0 bytes on"));
    let mut two: Vec<u8> = [0, 512].iter().flat_map(|at| written(1, None, *at, BLOCK)).collect();
    for at in (0..1024).filter(|at| at % 512 >= 40) {
        two[at] = data[at % 3];
    }
    assert_eq!(check(&two, 0, &rule("meta,interval=512,pattern=aa555a")), Ok(()));
    two[900] ^= 1;
    assert!(wrong(&two, 0, "meta,interval=512,pattern=aa555a").starts_with("block at 512"));
}

#[test]
fn what_is_no_rule_is_refused_by_its_part() {
    for (text, named) in [
        ("", "'' is none of any, meta, pattern, crc32c"),
        ("md5", "'md5'"),
        ("crc32c,interval=56", "'interval=56'"),
        ("crc32c,interval=2g", "'interval=2g'"),
        ("crc32c,interval", "'interval'"),
        ("crc32c,offset=8,interval=512", "'offset=8'"),
        ("crc32c,offset=64", "interval=4k"),
        ("meta,pattern=abc", "'pattern=abc'"),
        ("meta,pattern=ä", "'pattern=ä'"),
        ("pattern", "needs a pattern"),
        ("crc64,pattern=ff", "goes with meta and pattern"),
        ("crc64,seed=1", "'seed'"),
    ] {
        let error = Rule::parse(text).unwrap_err();
        assert!(error.contains(named), "{text}: {error}");
    }
}

proptest! {
    // promise: BEN-32
    #[test]
    fn any_flipped_bit_is_found_in_its_block(blocks in 1u64..5, bit in any::<prop::sample::Index>(), follow: bool) {
        let mut bytes = file(blocks);
        let bit = bit.index(bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        let found = check(&bytes, 0, &rule(if follow { "crc32c" } else { "crc32c,interval=512" })).unwrap_err();
        prop_assert_eq!(found.at, (bit / 8 / BLOCK * BLOCK) as u64);
        prop_assert!(follow || found.blocks == 1);
    }

    #[test]
    fn whatever_is_read_is_answered(bytes in prop::collection::vec(any::<u8>(), 0..300), at: u64, keep in 0usize..44, len: u32,
                                    text in "(any|crc7|meta)(,interval=(57|100|512)(,offset=(56|99))?)?") {
        let mut block = written(8, None, at, 512);
        block.truncate(keep);
        block.extend(bytes);
        if block.len() > 40 {
            block[4..8].copy_from_slice(&len.to_le_bytes());
            let sum = sums::crc32c(&block[..36]) as u32;
            block[36..40].copy_from_slice(&sum.to_le_bytes());
        }
        let _ = check(&block, at, &rule(&text));
    }
}
