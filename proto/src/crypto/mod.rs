//! Keys, signatures, handshakes and records.
//!
//! | module | is |
//! |---|---|
//! | [`sign`] | domain-tagged Ed25519 signatures |

pub mod sign;
