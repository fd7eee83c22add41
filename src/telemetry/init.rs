//! Where log lines go and how they look.

use crate::config::LogFormat;
use tracing_subscriber::EnvFilter;

/// Logs to stderr: warnings only when `quiet`; RINGWAY_LOG (as in `ringway=debug`) overrides.
pub fn start(format: LogFormat, quiet: bool) {
    let level = if quiet { "warn" } else { "info" };
    let filter = EnvFilter::try_from_env("RINGWAY_LOG").unwrap_or_else(|_| EnvFilter::new(level));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
    // A library user may have set a subscriber up already: keep theirs.
    let _ = match format {
        LogFormat::Text => log.with_ansi(false).try_init(),
        LogFormat::Json => log.json().flatten_event(true).try_init(),
    };
}
