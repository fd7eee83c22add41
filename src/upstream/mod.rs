//! Talking to origins: who is asked, over which connection, and what is said.
//!
//! What is decided here is decided by plain functions and small machines (`hop`, `balance`); sequencing and sockets live
//! beside them (`exchange`), and one thread watches names and health (`origin`).

pub mod balance;
pub mod exchange;
pub mod hop;
pub mod origin;
pub mod sigv4;
