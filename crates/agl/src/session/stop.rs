//! Ctrl-C and SIGTERM: the first asks everything to stop in order, the second ends the process at once.

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Exit code of a process that the user interrupted.
const INTERRUPTED: i32 = 130;

/// A token that the first Ctrl-C or SIGTERM cancels. The second ends the process: agents end too, by the controller's watchdog.
pub fn on_signal() -> std::io::Result<CancellationToken> {
    let token = CancellationToken::new();
    let (interrupt, terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    tokio::spawn(listen(token.clone(), interrupt, terminate));
    Ok(token)
}

async fn listen(token: CancellationToken, mut interrupt: Signal, mut terminate: Signal) {
    let mut either = async || {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    };
    either().await;
    eprintln!("\nagl: stopping; what is finished is kept (once more to end at once)");
    token.cancel();
    either().await;
    std::process::exit(INTERRUPTED);
}
