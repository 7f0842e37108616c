//! What a gateway says and takes where no drive is in use: RPCs, and the PCI function's configuration and interrupts.

#[path = "interface/config_space.rs"]
mod config_space;
#[path = "interface/frames.rs"]
mod frames;
#[path = "interface/interrupts.rs"]
mod interrupts;
#[path = "interface/rpc.rs"]
mod rpc;
