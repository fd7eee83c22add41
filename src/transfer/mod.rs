//! The only way a body leaves: a file range, an engine, a socket.
//!
//! `plan` says which engine and why, `pump` keeps the bytes honest, `drive` performs the steps on the ring, `estimate`
//! remembers what the kernel said about its zero-copy sends. Invariant: the bytes counted as sent are exactly the
//! bytes the socket took, under the engine that carried them.

pub mod drive;
pub mod estimate;
pub mod plan;
pub mod pump;
