//! Talking to origins: who is asked, over which connection, and what is said.
//!
//! What is decided here is decided by plain functions and small machines (`hop`, and those that follow); sequencing and
//! sockets live beside them.

pub mod hop;
