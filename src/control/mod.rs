//! (control, being written)
#![allow(missing_docs)]
use crate::config::Config;
use crate::shard::ShardPublic;
use std::sync::Arc;
#[derive(Debug)]
pub struct Control {
    pub admin: Option<std::net::TcpListener>,
    pub shards: Arc<[Arc<ShardPublic>]>,
    pub config: Arc<Config>,
    pub capabilities: Vec<(&'static str, bool)>,
    pub drain_timeout: std::time::Duration,
    pub warnings: Vec<&'static str>,
}
#[derive(Debug)]
pub struct ControlHandle;
impl ControlHandle {
    pub fn finish(self) {}
}
pub fn spawn(_c: Control) -> crate::error::Result<ControlHandle> {
    Ok(ControlHandle)
}
