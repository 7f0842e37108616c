//! NVIDIA's libraries, through dlopen: never linked, never needed, never a panic
//! where they are absent.

pub mod cuda;
