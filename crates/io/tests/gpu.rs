//! The ground under GPUs, against a libcuda of our own whose device memory lies in
//! the host's, and with FOREBAY_TEST_GPU=1 against the real one.

#[path = "gpu/driver.rs"]
mod driver;
#[path = "gpu/kernels.rs"]
mod kernels;
