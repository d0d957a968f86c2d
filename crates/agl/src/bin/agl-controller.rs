//! The controller, under the original's name and with its command line.

use std::process::ExitCode;

fn main() -> ExitCode {
    // The controller starts itself anew as the watchdog of its agents.
    if std::env::args_os().nth(1).is_some_and(|word| word == agl_controller::WATCHDOG_SUBCOMMAND) {
        return agl_controller::watchdog_main();
    }
    agl::commands::controller::main(std::env::args_os().skip(1))
}
