//! What is counted, and how it is told.
pub mod tally;
