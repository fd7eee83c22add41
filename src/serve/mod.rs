//! Run the server.
use crate::config::Config;
use crate::error::Result;

/// Serves `config` until it is told to stop; returns after the drain.
pub fn run(_config: Config) -> Result<()> {
    Ok(())
}
