//! `ringway tune`: what of a machine's kernel settings and network interfaces could serve better, and the writing of it.
//!
//! `machine` reads files below a root (the real `/`, or a tree of a test), `plan` is pure, `apply` writes and takes
//! back. Only files of /proc/sys, /proc/irq and /sys/class/net are written, only with `--apply`, and every value that
//! was is kept until `--restore`.

pub mod apply;
pub mod cli;
pub mod machine;
pub mod plan;
