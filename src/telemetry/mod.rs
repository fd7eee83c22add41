//! What is counted, and how it is told.
pub mod init;
pub mod tally;
