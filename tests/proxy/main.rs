//! Black box, in front of an origin that does what it is told: relay, cache, faults, crashes, full disks. Every body is
//! compared byte for byte with what the origin has.

#[path = "../support/mod.rs"]
mod support;

mod origin;
