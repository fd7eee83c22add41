//! Bytes of an origin kept on disk: what is there, what goes first, and what is still believed after a restart.

pub mod index;
pub mod journal;
pub mod keeper;
pub mod key;
pub mod policy;
