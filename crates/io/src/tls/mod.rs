//! TLS 1.3 under NVMe/TCP (tcp, section 3.6.1).

#![allow(unsafe_code, reason = "calls into OpenSSL")]

pub(crate) mod bridge;
pub(crate) mod openssl;
