//! Bytes to types, with limits.
//!
//! | module | is |
//! |---|---|
//! | [`json`] | limits and grammar of JSON, checked before anything is built from it |
//! | [`frame`] | heads and tails cut out of a stream |
//! | [`codec`] | frames of a link, typed |

pub mod codec;
pub mod frame;
pub mod json;
