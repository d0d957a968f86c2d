//! The `agl` command line.
fn main() {}
