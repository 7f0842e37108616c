//! The structures of rdma-core's ABI that are reached by layout: as `infiniband/verbs.h` and `rdma/rdma_cma.h` of
//! rdma-core 44.0 declare them, for machines of 64 bits. Both are kept stable since 2016 (`libibverbs.so.1`,
//! `librdmacm.so.1`); only leading fields of those that the libraries make are named.
//!
//! Posting and polling are no symbols of the library: `ibv_post_send`, `ibv_post_recv`, `ibv_poll_cq` and
//! `ibv_req_notify_cq` are inline functions of the header, which call through `ibv_context::ops`.

use std::ffi::{c_int, c_uint, c_void};
use std::mem::offset_of;

/// struct ibv_context.
#[repr(C)]
pub struct Context {
    pub device: *mut c_void,
    pub ops: Ops,
    pub cmd_fd: c_int,
    pub async_fd: c_int,
    pub num_comp_vectors: c_int,
}

type PollCq = unsafe extern "C" fn(*mut Cq, c_int, *mut WorkCompletion) -> c_int;
type RequestNotify = unsafe extern "C" fn(*mut Cq, c_int) -> c_int;
type PostSend = unsafe extern "C" fn(*mut Qp, *mut SendWork, *mut *mut SendWork) -> c_int;
type PostReceive = unsafe extern "C" fn(*mut Qp, *mut ReceiveWork, *mut *mut ReceiveWork) -> c_int;

/// struct ibv_context_ops: 32 pointers, of which four are called.
#[repr(C)]
pub struct Ops {
    before: [*mut c_void; 11],
    pub poll_cq: Option<PollCq>,
    pub req_notify_cq: Option<RequestNotify>,
    between: [*mut c_void; 12],
    pub post_send: Option<PostSend>,
    pub post_recv: Option<PostReceive>,
    after: [*mut c_void; 5],
}

const _: () = assert!(size_of::<Ops>() == 256);
const _: () = assert!(offset_of!(Context, ops) == 8 && offset_of!(Context, cmd_fd) == 264);
const _: () = assert!(offset_of!(Ops, poll_cq) == 88 && offset_of!(Ops, post_send) == 200);

/// struct ibv_pd: never looked into.
#[repr(C)]
pub struct Pd {
    context: *mut Context,
}

/// struct ibv_mr.
#[repr(C)]
pub struct Mr {
    context: *mut Context,
    pd: *mut Pd,
    pub addr: *mut c_void,
    pub length: usize,
    pub handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}

const _: () = assert!(offset_of!(Mr, lkey) == 36 && size_of::<Mr>() == 48);

/// struct ibv_comp_channel.
#[repr(C)]
pub struct CompChannel {
    context: *mut Context,
    pub fd: c_int,
    refcnt: c_int,
}

const _: () = assert!(offset_of!(CompChannel, fd) == 8);

/// struct ibv_cq, its first field.
#[repr(C)]
pub struct Cq {
    pub context: *mut Context,
}

/// struct ibv_qp, its first field.
#[repr(C)]
pub struct Qp {
    pub context: *mut Context,
}

/// struct ibv_sge.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Sge {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}

/// struct ibv_send_wr; the unions' other members are wider than what is used of them.
#[repr(C)]
pub struct SendWork {
    pub wr_id: u64,
    pub next: *mut SendWork,
    pub sg_list: *mut Sge,
    pub num_sge: c_int,
    pub opcode: c_uint,
    pub send_flags: c_uint,
    /// imm_data, invalidate_rkey.
    pub invalidate_rkey: u32,
    pub remote_addr: u64,
    pub rkey: u32,
    /// The rest of `wr`, then `qp_type` and `bind_mw`.
    pub rest: [u32; 19],
}

const _: () = assert!(size_of::<SendWork>() == 128);
const _: () = assert!(offset_of!(SendWork, remote_addr) == 40 && offset_of!(SendWork, rkey) == 48);

impl Default for SendWork {
    fn default() -> SendWork {
        SendWork {
            wr_id: 0,
            next: std::ptr::null_mut(),
            sg_list: std::ptr::null_mut(),
            num_sge: 0,
            opcode: 0,
            send_flags: 0,
            invalidate_rkey: 0,
            remote_addr: 0,
            rkey: 0,
            rest: [0; 19],
        }
    }
}

/// struct ibv_recv_wr.
#[repr(C)]
pub struct ReceiveWork {
    pub wr_id: u64,
    pub next: *mut ReceiveWork,
    pub sg_list: *mut Sge,
    pub num_sge: c_int,
}

const _: () = assert!(size_of::<ReceiveWork>() == 32);

/// struct ibv_wc.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct WorkCompletion {
    pub wr_id: u64,
    pub status: c_uint,
    pub opcode: c_uint,
    pub vendor_err: u32,
    pub byte_len: u32,
    pub imm_data: u32,
    pub qp_num: u32,
    pub src_qp: u32,
    pub wc_flags: c_uint,
    pub pkey_index: u16,
    pub slid: u16,
    pub sl: u8,
    pub dlid_path_bits: u8,
}

const _: () = assert!(size_of::<WorkCompletion>() == 48 && offset_of!(WorkCompletion, byte_len) == 20);

/// struct ibv_qp_init_attr.
#[repr(C)]
pub struct QpInit {
    pub qp_context: *mut c_void,
    pub send_cq: *mut Cq,
    pub recv_cq: *mut Cq,
    pub srq: *mut c_void,
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
    pub qp_type: c_uint,
    pub sq_sig_all: c_int,
}

const _: () = assert!(size_of::<QpInit>() == 64 && offset_of!(QpInit, qp_type) == 52);

/// struct rdma_event_channel.
#[repr(C)]
pub struct EventChannel {
    pub fd: c_int,
}

/// struct rdma_cm_id, up to the addresses of its route.
#[repr(C)]
pub struct CmId {
    pub verbs: *mut Context,
    pub channel: *mut EventChannel,
    pub context: *mut c_void,
    pub qp: *mut Qp,
    pub source: libc::sockaddr_storage,
    pub destination: libc::sockaddr_storage,
}

const _: () = assert!(offset_of!(CmId, qp) == 24);
const _: () = assert!(offset_of!(CmId, source) == 32 && offset_of!(CmId, destination) == 160);

/// struct rdma_conn_param.
#[repr(C)]
pub struct ConnParam {
    pub private_data: *const c_void,
    pub private_data_len: u8,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub flow_control: u8,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
    pub srq: u8,
    pub qp_num: u32,
}

const _: () = assert!(size_of::<ConnParam>() == 24 && offset_of!(ConnParam, qp_num) == 16);

/// struct rdma_cm_event, as far as connections need it: `param.conn`.
#[repr(C)]
pub struct CmEvent {
    pub id: *mut CmId,
    pub listen_id: *mut CmId,
    pub event: c_uint,
    pub status: c_int,
    pub conn: ConnParam,
}

const _: () = assert!(offset_of!(CmEvent, conn) == 24);

/// enum ibv_qp_type.
pub(crate) const QPT_RC: c_uint = 2;
/// enum rdma_port_space.
pub(crate) const PS_TCP: c_int = 0x0106;
/// enum ibv_access_flags.
pub(crate) const ACCESS_LOCAL_WRITE: c_int = 1;
pub(crate) const ACCESS_REMOTE_WRITE: c_int = 1 << 1;
pub(crate) const ACCESS_REMOTE_READ: c_int = 1 << 2;
/// enum ibv_send_flags.
pub(crate) const SEND_SIGNALED: c_uint = 1 << 1;
/// enum ibv_wr_opcode.
pub(crate) const WR_RDMA_WRITE: c_uint = 0;
pub(crate) const WR_SEND: c_uint = 2;
pub(crate) const WR_RDMA_READ: c_uint = 4;
pub(crate) const WR_SEND_WITH_INV: c_uint = 9;
/// enum ibv_wc_status.
pub(crate) const WC_SUCCESS: c_uint = 0;
pub(crate) const WC_FLUSHED: c_uint = 5;
/// RDMA_MAX_RESP_RES and RDMA_MAX_INIT_DEPTH: as many as the device can.
pub(crate) const ALL_READS: u8 = 0xff;
