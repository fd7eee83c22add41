//! ringway: files to sockets through io_uring, one pinned thread per core.
#![deny(unsafe_code)]

pub mod bench;
pub mod blast;
pub mod cache;
pub mod cli;
pub mod clock;
pub mod config;
pub mod control;
pub mod doctor;
pub mod error;
pub mod http;
pub mod ring;
pub mod serve;
pub mod shard;
pub mod store;
pub mod sys;
pub mod telemetry;
pub mod top;
pub mod transfer;
pub mod tune;
pub mod upstream;
