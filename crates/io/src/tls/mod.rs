//! TLS 1.3 under NVMe/TCP (tcp, section 3.6.1).

pub mod bridge;
pub mod openssl;
