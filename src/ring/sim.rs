//! (simulated kernel; written next)
