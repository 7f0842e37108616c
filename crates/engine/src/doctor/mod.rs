//! What this machine can do, what is in the way, and what to type to fix it.
