//! Emulated training into a GPU, against a libcuda of our own whose device memory lies in
//! the host's, and with FOREBAY_TEST_GPU=1 against the real one.

#[path = "gpu/emulate.rs"]
mod emulate;
#[path = "gpu/emulate_ways.rs"]
mod emulate_ways;
