//! The handshake that opens a link, over a fresh stream: `Noise_XKpsk0` with certificates in messages 2 and 3.
//!
//! A message is `u16 length ‖ bytes`, big-endian; before the first stand the eight bytes of the link key's hint. Whoever
//! does not have the link key gets no answer at all. Whoever has it, but is not (or no longer) enrolled, is told so
//! under the session's seal. What is checked is the far side's certificate against the org's chain as this node has it.

use std::io;
use std::sync::Arc;

use futures::io::{AsyncReadExt, AsyncWriteExt};
use libp2p::{PeerId, Stream};
use rand_chacha::ChaCha20Rng;
use rand_core::SeedableRng;
use tieline_proto::crypto::cert::{CertError, Certificate};
use tieline_proto::crypto::keys::DeviceKeys;
use tieline_proto::crypto::link_key::LinkKey;
use tieline_proto::crypto::noise::{HANDSHAKE_LEN_MAX, Handshake, NoiseError, Prologue, Purpose, Session};
use tieline_proto::id::{NodeId, NoiseKey};
use tieline_proto::link::Message;
use tieline_proto::org::Org;
use tieline_proto::wire::codec;
use tokio::time::{Duration, timeout};

use super::OrgView;
use super::stream::OpenError;

/// Version of the link protocol, bound by the handshake.
pub(super) const LINK_VERSION: u32 = 1;

/// How long a handshake may take. Slow relays need most of it.
pub(super) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long the refusal of a far side that is not enrolled may take to write.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(1);

/// Why a handshake failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(super) enum HandshakeError {
    /// The far side gave no answer to the first message.
    #[error(
        "the far side did not answer the handshake: it is another device than expected, or has another link key, or \
         is of another org"
    )]
    Silent,
    /// It took too long.
    #[error("the handshake was not done within {} s", HANDSHAKE_TIMEOUT.as_secs())]
    Timeout,
    /// No stream could be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The stream failed.
    #[error("the stream failed during the handshake: {0}")]
    Io(#[from] io::Error),
    /// A message is forged or damaged.
    #[error(transparent)]
    Noise(#[from] NoiseError),
    /// The far side may not link with us.
    #[error("{0}")]
    Refused(String),
}

impl HandshakeError {
    /// Whether trying again soon is pointless. After silence it is not: a far side that just stops looks the same.
    pub(super) const fn is_refusal(&self) -> bool {
        matches!(self, Self::Refused(_))
    }

    /// Whether the connection may be dead.
    pub(super) const fn is_of_connection(&self) -> bool {
        matches!(self, Self::Timeout | Self::Io(_) | Self::Open(_))
    }
}

/// This node's side of all handshakes.
#[derive(Clone, Debug)]
pub(super) struct Identity {
    pub keys: Arc<DeviceKeys>,
    pub peer: PeerId,
    pub view: Arc<OrgView>,
}

/// Who answered, or who asked.
#[derive(Debug)]
pub(super) struct Verified {
    pub node: NodeId,
    pub name: String,
    pub session: Session,
}

impl Identity {
    /// Begins a link with `node`, over a stream to `peer`.
    pub(super) async fn initiate(
        &self,
        stream: &mut Stream,
        peer: PeerId,
        node: NodeId,
        rng: ChaCha20Rng,
    ) -> Result<Verified, HandshakeError> {
        timeout(HANDSHAKE_TIMEOUT, self.initiate_untimed(stream, peer, node, rng))
            .await
            .unwrap_or(Err(HandshakeError::Timeout))
    }

    /// Answers a handshake that `peer` began. An error says why the stream is to be dropped.
    pub(super) async fn respond(
        &self,
        stream: &mut Stream,
        peer: PeerId,
        rng: ChaCha20Rng,
    ) -> Result<Verified, HandshakeError> {
        timeout(HANDSHAKE_TIMEOUT, self.respond_untimed(stream, peer, rng))
            .await
            .unwrap_or(Err(HandshakeError::Timeout))
    }

    async fn initiate_untimed(
        &self,
        stream: &mut Stream,
        peer: PeerId,
        node: NodeId,
        rng: ChaCha20Rng,
    ) -> Result<Verified, HandshakeError> {
        let refused = HandshakeError::Refused;
        let org = &self.view.org;
        let certificate = self.certificate()?;
        let key = self.view.link_keys.first().ok_or_else(|| refused("this node has no link key".to_owned()))?;
        let device = known(org, node).map_err(refused)?;
        let prologue = self.prologue(key, &self.peer, &peer);
        let psk = key.psk(&org.fingerprint());
        let mut noise = Handshake::initiator(&prologue, &psk, self.keys.noise_secret(), device.noise.as_bytes(), rng)?;

        let first = noise.write(&[])?;
        let mut opening = key.hint(&first).to_vec();
        opening.extend_from_slice(&first);
        send(stream, &opening).await?;
        let answer = receive(stream, HANDSHAKE_LEN_MAX).await.map_err(|_| HandshakeError::Silent)?;
        let theirs = noise.read(&answer)?;
        let (found, _) = check(org, &theirs, device.noise).map_err(refused)?;
        if found != node {
            return Err(refused(format!("expected device {}, found {}", node.short(), found.short())));
        }
        let last = noise.write(certificate.as_bytes())?;
        send(stream, &last).await?;
        Ok(Verified { node, name: device.name.clone(), session: noise.into_session()? })
    }

    async fn respond_untimed(
        &self,
        stream: &mut Stream,
        peer: PeerId,
        mut rng: ChaCha20Rng,
    ) -> Result<Verified, HandshakeError> {
        let org = &self.view.org;
        let certificate = self.certificate()?;
        let opening = receive(stream, LinkKey::HINT_LEN + HANDSHAKE_LEN_MAX).await?;
        let (hint, first) = opening.split_first_chunk::<{ LinkKey::HINT_LEN }>().ok_or(NoiseError::Forged)?;
        let key = self.view.link_keys.iter().find(|key| key.hint(first) == *hint).ok_or(NoiseError::Forged)?;
        let prologue = self.prologue(key, &peer, &self.peer);
        let psk = key.psk(&org.fingerprint());
        let mut noise = Handshake::responder(&prologue, &psk, self.keys.noise_secret(), rng.fork())?;
        noise.read(first)?;
        let answer = noise.write(certificate.as_bytes())?;
        send(stream, &answer).await?;
        let last = receive(stream, HANDSHAKE_LEN_MAX).await?;
        let theirs = noise.read(&last)?;
        let mut session = noise.into_session()?;
        match check(org, &theirs, session.remote_static()) {
            Ok((node, _)) if node == self.keys.device() => Err(HandshakeError::Refused("it is this node".to_owned())),
            Ok((node, name)) => Ok(Verified { node, name, session }),
            Err(reason) => {
                refuse(stream, &mut session, &reason).await;
                Err(HandshakeError::Refused(reason))
            }
        }
    }

    fn prologue(&self, key: &LinkKey, initiator: &PeerId, responder: &PeerId) -> Prologue {
        Prologue {
            purpose: Purpose::Link,
            version: LINK_VERSION,
            org: self.view.org.fingerprint(),
            initiator_peer: initiator.to_bytes(),
            responder_peer: responder.to_bytes(),
            epoch: key.epoch(),
        }
    }

    fn certificate(&self) -> Result<&str, HandshakeError> {
        match self.view.org.live(&self.keys.device()) {
            Some(device) => Ok(&device.certificate),
            None => Err(HandshakeError::Refused("this node is not enrolled in the org, or was revoked".to_owned())),
        }
    }
}

/// Finds the device that presents this certificate over a session with this key.
fn check(org: &Org, certificate: &[u8], noise: NoiseKey) -> Result<(NodeId, String), String> {
    let text = str::from_utf8(certificate).map_err(|_| "the certificate is not text".to_owned())?;
    let (_, content) = Certificate::parse(text).map_err(|error: CertError| error.to_string())?;
    if content.org != org.fingerprint() {
        return Err(format!("expected a device of org {}, found one of {}", org.fingerprint(), content.org));
    }
    if content.noise != noise {
        return Err(format!("device {} presents a certificate for another key", content.device.short()));
    }
    let device = known(org, content.device)?;
    if device.noise != noise {
        return Err(format!("device {} is enrolled with another key", content.device.short()));
    }
    Ok((content.device, device.name.clone()))
}

/// The chain's word on a device, or why it is not to be linked with.
fn known(org: &Org, node: NodeId) -> Result<&tieline_proto::org::Device, String> {
    match org.device(&node) {
        Some(device) if device.revoked.is_some() => Err(format!("device {} is revoked", node.short())),
        Some(device) => Ok(device),
        None => Err(format!(
            "device {} is not enrolled in the org's chain as far as it is known here (up to entry {})",
            node.short(),
            org.seq()
        )),
    }
}

/// Says why, to a far side that has proved to have the link key. If it does not listen, it is not told.
async fn refuse(stream: &mut Stream, session: &mut Session, reason: &str) {
    let bye = Message::Bye { code: "refused".to_owned(), reason: reason.to_owned() };
    let (mut frame, mut records) = (Vec::new(), Vec::new());
    if codec::encode(&bye, &[], &mut frame).is_ok() && session.seal(&frame, &mut records).is_ok() {
        let _ = timeout(REFUSAL_TIMEOUT, async {
            stream.write_all(&records).await?;
            stream.close().await
        })
        .await;
    }
}

pub(super) async fn send(stream: &mut Stream, message: &[u8]) -> io::Result<()> {
    let len = u16::try_from(message.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut framed = len.to_be_bytes().to_vec();
    framed.extend_from_slice(message);
    stream.write_all(&framed).await?;
    stream.flush().await
}

/// Reads one message; its length is checked before anything is allocated for it.
pub(super) async fn receive(stream: &mut Stream, len_max: usize) -> io::Result<Vec<u8>> {
    let mut prefix = [0; 2];
    stream.read_exact(&mut prefix).await?;
    let len = usize::from(u16::from_be_bytes(prefix));
    if len > len_max {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a message of {len} bytes exceeds {len_max}")));
    }
    let mut message = vec![0; len];
    stream.read_exact(&mut message).await?;
    Ok(message)
}
