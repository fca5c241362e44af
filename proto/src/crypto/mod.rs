//! Keys, signatures, handshakes and records. Randomness is always passed in.
//!
//! | module | is |
//! |---|---|
//! | [`kdf`] | the one key derivation |
//! | [`keys`] | secret keys of a device and of an org's root |
//! | [`link_key`] | the secret that an org's devices share |
//! | [`cert`] | what binds a device's two keys to an org |
//! | [`sign`] | domain-tagged Ed25519 signatures |
//! | [`noise`] | the one handshake, of links and of pairing |
//! | [`record`] | the record layer under every stream |
//! | [`stream`] | keys of a link's further streams |

mod aead;
pub mod cert;
pub mod kdf;
pub mod keys;
pub mod link_key;
pub mod noise;
pub mod record;
mod resolver;
mod secret;
pub mod sign;
pub mod stream;
