//! Parse, run a mode, exit code.
fn main() {}
