//! Messages of a vfio-user client: a stream of them, and writes to the configuration space.

use forebay_serve::gateway::vfio_user::config_space::{ConfigSpace, Names};
use forebay_serve::gateway::vfio_user::interrupts::Vectors;
use forebay_serve::gateway::vfio_user::message::{
    accessed, is_version_data, region, Header, Request, HEADER_BYTES, TRANSFER_BYTES_MAX,
};

/// A client's stream, taken apart as a session does, and what of it needs no memory of others carried out.
pub fn vfio_user(mut data: &[u8]) {
    let mut space = ConfigSpace::new(Names { vendor: 1, device: 2 }, 1 << 14, 32);
    let vectors = Vectors::new(32);
    while let Some((head, rest)) = data.split_first_chunk::<HEADER_BYTES>() {
        let header = Header::parse(head);
        let Some(body) = header.body_bytes().and_then(|bytes| rest.get(..bytes)) else { return };
        data = &rest[body.len()..];
        assert_eq!(header.refuse(EINVAL).len(), HEADER_BYTES);
        match Request::parse(&header, body) {
            Err(errno) => assert!(errno > 0),
            Ok(Request::Version { data, .. }) => {
                let _ = is_version_data(data);
            }
            Ok(Request::RegionRead(access)) => {
                assert!(access.count <= TRANSFER_BYTES_MAX);
                assert_eq!(header.reply(&accessed(access).0).len(), HEADER_BYTES + 16);
                space.read(access.offset, &mut [0; 64]);
            }
            Ok(Request::RegionWrite(access, data)) if access.region == region::CONFIG => {
                space.write(access.offset, data);
                let mut id = [0; 4];
                space.read(0, &mut id);
                assert_eq!(id, [1, 0, 2, 0], "a function keeps its name");
            }
            Ok(Request::SetIrqs { flags, start, count, data, .. }) => {
                let _ = vectors.set(flags, start, count, data, Vec::new());
            }
            Ok(_) => {}
        }
    }
}

const EINVAL: i32 = 22;
