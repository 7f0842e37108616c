//! A PCIe function and its driver, with memory, time and order in the test's hands.

mod device;
mod killed;
mod pair;
mod raw;
mod walks;
mod world;
