//! Parse, start the log, run a mode, exit code; no logic.

use ringway::cli::{self, Mode};
use ringway::{serve, telemetry};
use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    let done = cli::understand(&cli::command().get_matches()).and_then(|mode| match mode {
        Mode::Say(text) => {
            // A closed pipe is the reader's choice.
            let _ = std::io::stdout().write_all(text.as_bytes());
            Ok(())
        }
        Mode::Serve(config) => {
            telemetry::init::start(config.log_format, config.quiet);
            serve::run(*config)
        }
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ringway: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}
