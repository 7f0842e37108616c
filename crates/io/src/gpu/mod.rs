//! NVIDIA's libraries, through dlopen: never linked, never needed, never a panic
//! where they are absent. `library` finds them in `places`, each other module wraps one.

#![allow(unsafe_code, reason = "calls into libcuda and libcufile")]

mod copier;
pub(crate) mod cuda;
pub(crate) mod cufile;
pub(crate) mod kernels;
pub(crate) mod library;
pub(crate) mod nvrtc;
pub(crate) mod places;
pub(crate) mod relay;
mod scatter;
mod summer;

pub use copier::{Copier, CudaCopier, Fetched, Room};
pub use scatter::{Pulling, Scattering};
pub use summer::{Summed, Summer};
