//! Enrolling devices.

/// How an offer to pair goes.
#[derive(Debug)]
pub enum PairEvent {}
