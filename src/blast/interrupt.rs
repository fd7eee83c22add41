//! ^C and SIGTERM, heard by one thread: the first asks the run to end with what it has, the second ends the process.

use super::channel::Heard;
use crate::error::{Error, Result};
use std::sync::mpsc::Sender;
use tokio::signal::unix::{SignalKind, signal};

/// Exit code of a run that was interrupted, as shells have it for SIGINT.
pub const EXIT: u8 = 130;

/// Starts to listen; both signals become [`Heard::Interrupted`].
///
/// # Errors
/// The handlers or the thread cannot be set up.
pub fn listen(ear: Sender<Heard>) -> Result<()> {
    let failed = |error: std::io::Error| Error::os("listen for signals", &error);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    // Set up here, so that no signal falls between the return and the thread's start.
    let (mut interrupt, mut terminate) = {
        let _inside = runtime.enter();
        (signal(SignalKind::interrupt()).map_err(failed)?, signal(SignalKind::terminate()).map_err(failed)?)
    };
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            runtime.block_on(async {
                for asked in 0.. {
                    tokio::select! {
                        _ = interrupt.recv() => {}
                        _ = terminate.recv() => {}
                    }
                    if asked > 0 {
                        std::process::exit(i32::from(EXIT));
                    }
                    // Nobody listens any more: the run is over already.
                    let _ = ear.send(Heard::Interrupted);
                }
            });
        })
        .map_err(failed)?;
    Ok(())
}
