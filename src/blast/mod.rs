//! The saturation tester: `blast` sends, `sink` receives, `bench` runs both ends on one machine.
//!
//! It measures the product's own data path: its flows run on the same rings, engines and pump as the server's.

pub mod assertion;
pub mod channel;
pub mod cli;
pub mod core;
pub mod count;
pub mod door;
pub mod flows;
pub mod http;
pub mod interrupt;
pub mod latency;
pub mod live;
pub mod machine;
pub mod measure;
pub mod output;
pub mod payload;
pub mod plan;
pub mod receive;
pub mod report;
pub mod sample;
pub mod send;
pub mod session;
pub mod sink;
pub mod text;
pub mod wire;
