//! The `agl` command line.

use std::process::ExitCode;

fn main() -> ExitCode {
    agl::cli::main()
}
