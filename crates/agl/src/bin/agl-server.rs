//! The gateway, under the original's name and with its command line.

use std::process::ExitCode;

fn main() -> ExitCode {
    agl::commands::server::main(std::env::args_os().skip(1))
}
