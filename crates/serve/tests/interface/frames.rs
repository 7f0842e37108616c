//! Documents cut out of a stream.

use forebay_serve::{BrokenFrame, RpcFrames};
use proptest::prelude::*;

fn all(frames: &mut RpcFrames) -> Vec<String> {
    std::iter::from_fn(|| frames.take().unwrap()).map(|d| String::from_utf8(d).unwrap()).collect()
}

#[test]
fn documents_need_nothing_between_them() {
    let mut frames = RpcFrames::default();
    frames.push(b" {\"a\":\"}]\\\"\"}[1,{}]\n{");
    assert_eq!(all(&mut frames), ["{\"a\":\"}]\\\"\"}", "[1,{}]"]);
    frames.push(b"} \r\n");
    assert_eq!(all(&mut frames), ["{}"]);
}

#[test]
fn what_is_no_document_ends_the_stream() {
    for (text, broken) in [
        ("x", BrokenFrame::NoDocument),
        ("]", BrokenFrame::NoDocument),
        ("{]", BrokenFrame::NoDocument),
        ("1", BrokenFrame::NoDocument),
    ] {
        let mut frames = RpcFrames::default();
        frames.push(text.as_bytes());
        assert_eq!(frames.take(), Err(broken), "{text}");
    }
    let mut frames = RpcFrames::default();
    frames.push(&[b'['; 4096]);
    assert_eq!(frames.take(), Err(BrokenFrame::TooDeep));
    let mut frames = RpcFrames::default();
    frames.push(b"{\"");
    frames.push(&vec![b'x'; 3 << 20]);
    assert_eq!(frames.take(), Err(BrokenFrame::TooLong));
}

proptest! {
    #[test]
    fn cutting_a_stream_elsewhere_finds_the_same(bytes in "[\\[\\]{}\"\\\\ a]{0,60}", cut in 0usize..60) {
        let drain = |frames: &mut RpcFrames| {
            let mut found = Vec::new();
            loop {
                match frames.take() {
                    Ok(Some(one)) => found.push(Ok(one)),
                    Ok(None) => return found,
                    Err(broken) => { found.push(Err(broken)); return found; }
                }
            }
        };
        let (mut whole, mut parts) = (RpcFrames::default(), RpcFrames::default());
        whole.push(bytes.as_bytes());
        let cut = cut.min(bytes.len());
        parts.push(&bytes.as_bytes()[..cut]);
        let mut found = drain(&mut parts);
        if !matches!(found.last(), Some(Err(_))) {
            parts.push(&bytes.as_bytes()[cut..]);
            found.extend(drain(&mut parts));
        }
        prop_assert_eq!(found, drain(&mut whole));
    }
}
