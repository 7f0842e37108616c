//! Messages of a vfio-user client: a stream of them, and writes to the configuration space.

use forebay_serve::{
    access_answer, is_version_data, ConfigSpace, FunctionNames, InterruptVectors, VfioRegion, VfioUserHeader,
    VfioUserRequest, VFIO_USER_HEADER_BYTES, VFIO_USER_TRANSFER_BYTES_MAX,
};

/// A client's stream, taken apart as a session does, and what of it needs no memory of others carried out.
pub fn vfio_user(mut data: &[u8]) {
    let mut space = ConfigSpace::new(FunctionNames { vendor: 1, device: 2 }, 1 << 14, 32);
    let vectors = InterruptVectors::new(32);
    while let Some((head, rest)) = data.split_first_chunk::<VFIO_USER_HEADER_BYTES>() {
        let header = VfioUserHeader::parse(head);
        let Some(body) = header.body_bytes().and_then(|bytes| rest.get(..bytes)) else { return };
        data = &rest[body.len()..];
        assert_eq!(header.refuse(EINVAL).len(), VFIO_USER_HEADER_BYTES);
        match VfioUserRequest::parse(&header, body) {
            Err(errno) => assert!(errno > 0),
            Ok(VfioUserRequest::Version { data, .. }) => {
                let _ = is_version_data(data);
            }
            Ok(VfioUserRequest::RegionRead(access)) => {
                assert!(access.count <= VFIO_USER_TRANSFER_BYTES_MAX);
                assert_eq!(header.reply(&access_answer(access).0).len(), VFIO_USER_HEADER_BYTES + 16);
                space.read(access.offset, &mut [0; 64]);
            }
            Ok(VfioUserRequest::RegionWrite(access, data)) if access.region == VfioRegion::CONFIG => {
                space.write(access.offset, data);
                let mut id = [0; 4];
                space.read(0, &mut id);
                assert_eq!(id, [1, 0, 2, 0], "a function keeps its name");
            }
            Ok(VfioUserRequest::SetIrqs { flags, start, count, data, .. }) => {
                let _ = vectors.set(flags, start, count, data, Vec::new());
            }
            Ok(_) => {}
        }
    }
}

const EINVAL: i32 = 22;
