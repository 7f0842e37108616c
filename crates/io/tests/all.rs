//! Tests of the crate's public interface without a GPU: one program, since each takes seconds to compile and link.

mod meters;
mod power;
