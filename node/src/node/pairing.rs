//! Enrolling devices: offers of this node, and the way into somebody's org.

use serde_json::Value;
use tieline_proto::api::{ApiError, Code};

use super::{Node, ReplyTo};
use crate::net::pair::PairEvent;

#[derive(Debug)]
pub(super) struct Pairing {}

impl Pairing {
    pub const fn new() -> Self {
        Self {}
    }
}

impl Node {
    pub(super) fn pair_event(&mut self, _event: PairEvent) {}
    pub(super) fn pairing_durable(&mut self) {}
    pub(super) fn pair_offer(&mut self, _r: Option<String>, _c: Vec<String>, reply: ReplyTo) {
        self.reply(reply, Err(ApiError::new(Code::Internal, "wip")));
    }
    pub(super) fn pair_confirm(&mut self, _d: &str) -> Result<Value, ApiError> {
        Err(ApiError::new(Code::Internal, "wip"))
    }
    pub(super) fn pair_cancel(&mut self) -> Result<Value, ApiError> {
        Err(ApiError::new(Code::Internal, "wip"))
    }
    pub(super) fn pair_join(&mut self, _l: &str, _n: Option<String>, reply: ReplyTo) {
        self.reply(reply, Err(ApiError::new(Code::Internal, "wip")));
    }
}
