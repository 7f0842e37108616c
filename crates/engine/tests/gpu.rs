//! The paths into a GPU, against a libcuda of our own whose device memory lies in
//! the host's, and with FOREBAY_TEST_GPU=1 against the real one.

#[path = "gpu/auto.rs"]
mod auto;
#[path = "gpu/bounce.rs"]
mod bounce;
#[path = "gpu/checksum.rs"]
mod checksum;
#[path = "gpu/content.rs"]
mod content;
#[path = "gpu/driver.rs"]
mod driver;
#[path = "gpu/emulate.rs"]
mod emulate;
#[path = "gpu/emulate_ways.rs"]
mod emulate_ways;
#[path = "gpu/gds.rs"]
mod gds;
#[path = "gpu/kernels.rs"]
mod kernels;
#[path = "gpu/leaks.rs"]
mod leaks;
#[path = "gpu/mapped.rs"]
mod mapped;
#[path = "gpu/rows.rs"]
mod rows;
#[path = "gpu/runs.rs"]
mod runs;
#[path = "gpu/scenario.rs"]
#[allow(dead_code)] // shared with the contract suite
mod scenario;
#[path = "gpu/stripes.rs"]
mod stripes;
#[path = "gpu/together.rs"]
mod together;
