//! The saturation tester: `blast` sends, `sink` receives, `bench` runs both ends on one machine.
//!
//! It measures the product's own data path: its flows run on the same rings, engines and pump as the server's.

pub mod report;
