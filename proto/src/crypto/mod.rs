//! Keys, signatures, handshakes and records. Randomness is always passed in.
//!
//! | module | is |
//! |---|---|
//! | [`kdf`] | the one key derivation |
//! | [`keys`] | secret keys of a device and of an org's root |
//! | [`sign`] | domain-tagged Ed25519 signatures |
//! | [`noise`] | the one handshake, of links and of pairing |
//! | [`record`] | the record layer under every stream |
//! | [`stream`] | keys of a link's further streams |

mod aead;
pub mod kdf;
pub mod keys;
pub mod noise;
pub mod record;
mod resolver;
pub mod sign;
pub mod stream;
