//! Black box: the built binary, real files, real sockets, every byte compared. One binary for all themes, since linking
//! is the slowest part of testing; tests that need the machine for themselves are in `load.rs`.

#[path = "../support/mod.rs"]
mod support;

mod access_log;
mod configuration;
mod drain;
mod engines;
mod foreign;
mod http;
mod limits;
mod metrics;
mod mixing;
mod moving;
mod paths;
mod ranges;
mod startup;
