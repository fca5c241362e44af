//! The API token's file and the browser sessions that stand on it.
//!
//! The file is the truth: every request looks whether it was replaced, so a token that is rotated (by [`ApiToken::rotate`],
//! or by a person who removes or rewrites the file) is dead at once, with every session made by it.

use std::collections::VecDeque;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use super::{DoorError, bind};
use crate::keys;

/// File name in the data folder.
pub const TOKEN_NAME: &str = "api-token";

/// Bytes of randomness in tokens and session ids.
const SECRET_LEN: usize = 32;

/// Browsers logged in at a time; one more logs the oldest out.
const SESSIONS_MAX: usize = 64;

/// The loopback door's token. Its file has mode 0600 and holds 64 hexadecimal digits.
#[derive(Debug)]
pub struct ApiToken {
    path: PathBuf,
    known: Mutex<Known>,
}

struct Known {
    /// `None` while the file is not fit to be trusted: nobody is let in.
    token: Option<Secret>,
    stamp: Option<Stamp>,
    /// Rises with every change.
    generation: u64,
    sessions: VecDeque<Session>,
}

/// A browser that is logged in. Browsers send a host's cookies to every port of it, so whoever serves another port sees
/// the id; what the page keeps for its own origin goes nowhere else.
struct Session {
    id: Secret,
    key: Secret,
}

impl std::fmt::Debug for Known {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Known").field("generation", &self.generation).finish_non_exhaustive()
    }
}

/// Printed form of random bytes. Compared in constant time.
type Secret = Zeroizing<String>;

/// Tells a replaced file from the one that was read.
type Stamp = (u64, i64, i64, u64);

impl ApiToken {
    /// Reads the token, or makes one when there is none.
    ///
    /// # Errors
    /// When the file is open to others, belongs to somebody else, or holds no token.
    pub fn open(dir: &Path) -> Result<Self, DoorError> {
        let path = dir.join(TOKEN_NAME);
        let known = Known { token: None, stamp: None, generation: 0, sessions: VecDeque::new() };
        let token = Self { path, known: Mutex::new(known) };
        token.read(&mut token.lock())?;
        Ok(token)
    }

    /// Makes a new token. What stands on the old one ends.
    ///
    /// # Errors
    /// When it can't be written.
    pub fn rotate(&self) -> Result<(), DoorError> {
        let mut known = self.lock();
        write_new(&self.path)?;
        self.read(&mut known)
    }

    /// Looks whether the file was replaced. Returns the generation: it differs when the token does.
    pub fn generation(&self) -> u64 {
        self.current().generation
    }

    /// Whether `presented` is the token, as of now.
    #[must_use]
    pub fn matches(&self, presented: &str) -> Option<u64> {
        let known = self.current();
        let same = known.token.as_ref().is_some_and(|token| same(token, presented));
        same.then_some(known.generation)
    }

    /// Starts a browser session. Returns its id, for the cookie, and its key, for the page.
    #[must_use]
    pub fn session_start(&self) -> (Secret, Secret) {
        let (id, key) = (secret(), secret());
        let mut known = self.current();
        if known.sessions.len() >= SESSIONS_MAX {
            known.sessions.pop_front();
        }
        known.sessions.push_back(Session { id: id.clone(), key: key.clone() });
        (id, key)
    }

    /// Whether a browser session is good, as of now.
    #[must_use]
    pub fn session_is(&self, id: &str, key: &str) -> bool {
        // All are compared, so that the time tells nothing about which one matched.
        let is = |known: &Session| same(&known.id, id) & same(&known.key, key);
        self.current().sessions.iter().fold(false, |found, known| found | is(known))
    }

    /// Ends a browser session.
    pub fn session_end(&self, id: &str) {
        self.current().sessions.retain(|known| !same(&known.id, id));
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        // Nothing panics while it is held; a poisoned lock still holds a whole value.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known after looking at the file.
    fn current(&self) -> MutexGuard<'_, Known> {
        let mut known = self.lock();
        if (known.stamp.is_none() || stamp(&self.path).ok() != known.stamp)
            && let Err(error) = self.read(&mut known)
        {
            tracing::error!(%error, "the API token can't be used: the loopback door is shut");
            known.token = None;
            known.stamp = None;
        }
        known
    }

    fn read(&self, known: &mut Known) -> Result<(), DoorError> {
        let file_error = |error| DoorError::File { path: self.path.clone(), error };
        if let Err(error) = std::fs::symlink_metadata(&self.path) {
            if error.kind() != io::ErrorKind::NotFound {
                return Err(file_error(error));
            }
            write_new(&self.path)?;
        }
        bind::private_file(&self.path)?;
        // Stamp before content: a file replaced in between is read again by the next request.
        let stamp = stamp(&self.path).map_err(file_error)?;
        let text = Zeroizing::new(std::fs::read_to_string(&self.path).map_err(file_error)?);
        let digits = text.trim();
        if digits.len() != SECRET_LEN * 2 || !digits.bytes().all(|c| c.is_ascii_hexdigit()) {
            return Err(DoorError::NotToken { path: self.path.clone() });
        }
        if known.token.as_ref().is_none_or(|token| !same(token, digits)) {
            known.token = Some(Zeroizing::new(digits.to_owned()));
            known.generation += 1;
            known.sessions.clear();
        }
        known.stamp = Some(stamp);
        Ok(())
    }
}

fn same(secret: &Secret, presented: &str) -> bool {
    secret.as_bytes().ct_eq(presented.as_bytes()).into()
}

fn secret() -> Secret {
    let mut bytes = Zeroizing::new([0; SECRET_LEN]);
    getrandom::fill(bytes.as_mut_slice()).expect("the system has randomness: nothing secret can be made without");
    let mut text = Zeroizing::new(String::with_capacity(SECRET_LEN * 2));
    for byte in bytes.iter() {
        text.push(char::from(b"0123456789abcdef"[usize::from(byte >> 4)]));
        text.push(char::from(b"0123456789abcdef"[usize::from(byte & 15)]));
    }
    text
}

fn stamp(path: &Path) -> io::Result<Stamp> {
    let meta = std::fs::symlink_metadata(path)?;
    Ok((meta.ino(), meta.mtime(), meta.mtime_nsec(), u64::from(meta.mode())))
}

fn write_new(path: &Path) -> Result<(), DoorError> {
    let text = Zeroizing::new(format!("{}\n", *secret()));
    keys::write(path, text.as_bytes()).map_err(|error| DoorError::File { path: path.to_owned(), error })
}
