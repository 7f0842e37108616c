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
#[path = "gpu/gds.rs"]
mod gds;
#[path = "gpu/leaks.rs"]
mod leaks;
#[path = "gpu/mapped.rs"]
mod mapped;
#[path = "gpu/rows.rs"]
mod rows;
#[path = "gpu/runs.rs"]
mod runs;
#[path = "gpu/stripes.rs"]
mod stripes;
#[path = "gpu/together.rs"]
mod together;
