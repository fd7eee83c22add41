//! What is counted, and how it is told.
//!
//! `tally` is all the data path touches; `names` holds every metric's name; `process` reads /proc; `render` writes the
//! text that Prometheus scrapes; `publish` is the `metrics` facade for rare events. Everything but `tally` runs on the
//! control thread.

pub mod init;
pub mod names;
pub mod process;
pub mod publish;
pub mod render;
pub mod tally;
