//! NVIDIA's libraries, through dlopen: never linked, never needed, never a panic
//! where they are absent. `library` finds them in `places`, each other module wraps one.

#![allow(unsafe_code, reason = "calls into libcuda and libcufile")]

mod copier;
pub mod cuda;
pub mod cufile;
pub mod kernels;
pub mod library;
pub mod nvrtc;
pub mod places;
pub mod relay;
mod scatter;
mod summer;

pub use copier::{Copier, CudaCopier, Fetched, Room};
pub use scatter::{Pulling, Scattering};
pub use summer::{Summed, Summer};
