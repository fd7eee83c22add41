//! What is counted, and how it is told.
//!
//! `tally` is all the data path touches; `names` holds every metric's name; `list` prints
//! them; `process` and `nic` read /proc and /sys; `render` writes the
//! text that Prometheus scrapes; `publish` is the `metrics` facade for rare events; `access` is the
//! log of requests. Everything but `tally` and the writing end of the log runs on the control thread or on a thread of its
//! own.

pub mod access;
pub mod init;
pub mod list;
pub mod names;
pub mod nic;
pub mod process;
pub mod publish;
pub mod render;
pub mod tally;
pub mod tester;
