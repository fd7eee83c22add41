//! Parse, start the log, run a mode, exit code; no logic.

use ringway::cli::{self, Mode};
use ringway::error::{Error, Kind};
use ringway::{bench, control, doctor, serve, telemetry, top};
use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut code = 0;
    let done = cli::understand(&cli::command().get_matches()).and_then(|mode| match mode {
        Mode::Say(text) => {
            // A closed pipe is the reader's choice.
            let _ = std::io::stdout().write_all(text.as_bytes());
            Ok(())
        }
        Mode::Ask(ask) => {
            let (code, text) = control::client::ask(&ask.admin, ask.method, &ask.target, &ask.token)?;
            let _ = std::io::stdout().write_all(text.as_bytes());
            match code {
                200 => Ok(()),
                401 => Err(Error::new(Kind::NotPermitted, "do that", "the server wants another token")),
                code => Err(Error::new(Kind::Runtime, "do that", format!("the server answered {code}"))),
            }
        }
        Mode::Doctor { config, json } => {
            let report = doctor::examine(&config);
            let text = if json { report.json() } else { report.text() };
            let _ = std::io::stdout().write_all(text.as_bytes());
            code = report.exit_code();
            Ok(())
        }
        Mode::Tune(run) => {
            let _ = std::io::stdout().write_all(run.run()?.as_bytes());
            Ok(())
        }
        Mode::Top(watch) if watch.once => {
            let _ = std::io::stdout().write_all(top::once(&watch)?.as_bytes());
            Ok(())
        }
        Mode::Top(watch) => top::live(&watch),
        Mode::Man(folder) => cli::write_man(&folder),
        Mode::Serve(config) => {
            telemetry::init::start(config.log_format, config.quiet);
            serve::run((*config).clone()).inspect_err(|_| {
                // What the error names is one thing; there may be more that has to be right before it starts.
                eprint!("{}", doctor::examine(&config).failures());
            })
        }
        Mode::Bench(plan) => {
            code = bench::run(&plan)?;
            Ok(())
        }
        Mode::Test(run) => {
            code = run.run()?;
            Ok(())
        }
    });
    match done {
        Ok(()) => ExitCode::from(code),
        Err(error) => {
            // A reader that has gone cannot be told.
            let _ = writeln!(std::io::stderr(), "ringway: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}
