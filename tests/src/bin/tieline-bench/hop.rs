//! Raw libp2p over TCP, Noise and Yamux between two swarms: what a hop between nodes costs without anything of ours.

use std::time::{Duration, Instant};

use futures::{AsyncReadExt as _, AsyncWriteExt as _, StreamExt as _};
use libp2p::swarm::SwarmEvent;
use libp2p::swarm::dial_opts::DialOpts;
use libp2p::{Multiaddr, PeerId, Stream, StreamProtocol, Swarm, SwarmBuilder};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::Failure;
use super::report::Times;

const PROTOCOL: StreamProtocol = StreamProtocol::new("/tieline-bench/0");

/// Bytes of one message.
const MESSAGE_LEN: usize = 200;

/// First byte of a stream: echo every message, or swallow as many bytes as the next eight say and answer once.
const ECHO: u8 = b'E';
const SINK: u8 = b'S';

/// Two connected swarms. Dropping it ends them.
pub struct Hop {
    control: libp2p_stream::Control,
    peer: PeerId,
    tasks: Vec<JoinHandle<()>>,
}

impl Hop {
    /// Starts and connects both.
    ///
    /// # Errors
    /// When they do not connect.
    pub async fn start() -> Result<Self, Failure> {
        let mut server = swarm()?;
        let peer = *server.local_peer_id();
        let mut incoming = server.behaviour().new_control().accept(PROTOCOL)?;
        server.listen_on("/ip4/127.0.0.1/tcp/0".parse()?)?;
        let (sender, listening) = oneshot::channel::<Multiaddr>();
        let mut sender = Some(sender);
        let mut tasks = vec![tokio::spawn(async move {
            loop {
                if let SwarmEvent::NewListenAddr { address, .. } = server.select_next_some().await
                    && let Some(sender) = sender.take()
                {
                    let _ = sender.send(address);
                }
            }
        })];
        tasks.push(tokio::spawn(async move {
            while let Some((_, stream)) = incoming.next().await {
                tokio::spawn(serve(stream));
            }
        }));
        let mut client = swarm()?;
        let control = client.behaviour().new_control();
        client.dial(DialOpts::peer_id(peer).addresses(vec![listening.await?]).build())?;
        while !matches!(client.select_next_some().await, SwarmEvent::ConnectionEstablished { .. }) {}
        tasks.push(tokio::spawn(async move {
            loop {
                client.select_next_some().await;
            }
        }));
        Ok(Self { control, peer, tasks })
    }

    /// Sends messages there and back for `time`.
    ///
    /// # Errors
    /// When the connection fails.
    pub async fn round_trips(&mut self, time: Duration) -> Result<Times, Failure> {
        let mut stream = self.open(ECHO, 0).await?;
        let mut message = [1; MESSAGE_LEN];
        let mut times = Times::default();
        let began = Instant::now();
        while began.elapsed() < time {
            let started = Instant::now();
            stream.write_all(&message).await?;
            stream.flush().await?;
            stream.read_exact(&mut message).await?;
            times.push(started.elapsed());
        }
        Ok(times)
    }

    /// Sends `bytes` one way in writes of `piece`; gives bytes a second, up to the far side's answer.
    ///
    /// # Errors
    /// When the connection fails.
    pub async fn bytes_per_s(&mut self, bytes: u64, piece: usize) -> Result<f64, Failure> {
        let pieces = bytes.div_ceil(piece as u64);
        let mut stream = self.open(SINK, pieces * piece as u64).await?;
        let piece = vec![1; piece];
        let began = Instant::now();
        for _ in 0..pieces {
            stream.write_all(&piece).await?;
        }
        stream.flush().await?;
        stream.read_exact(&mut [0]).await?;
        Ok((pieces * piece.len() as u64) as f64 / began.elapsed().as_secs_f64())
    }

    async fn open(&mut self, kind: u8, bytes: u64) -> Result<Stream, Failure> {
        let mut stream = self.control.open_stream(self.peer, PROTOCOL).await.map_err(|error| error.to_string())?;
        stream.write_all(&[kind]).await?;
        stream.write_all(&bytes.to_le_bytes()).await?;
        Ok(stream)
    }
}

impl Drop for Hop {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

async fn serve(mut stream: Stream) -> Result<(), std::io::Error> {
    let (mut kind, mut bytes) = ([0], [0; 8]);
    stream.read_exact(&mut kind).await?;
    stream.read_exact(&mut bytes).await?;
    if kind == [ECHO] {
        let mut message = [0; MESSAGE_LEN];
        loop {
            stream.read_exact(&mut message).await?;
            stream.write_all(&message).await?;
            stream.flush().await?;
        }
    }
    let mut left = u64::from_le_bytes(bytes);
    let mut buffer = vec![0; 128 * 1024];
    while left > 0 {
        match stream.read(&mut buffer).await? {
            0 => return Ok(()),
            n => left = left.saturating_sub(n as u64),
        }
    }
    stream.write_all(b"D").await?;
    stream.close().await
}

fn swarm() -> Result<Swarm<libp2p_stream::Behaviour>, Failure> {
    let tcp = libp2p::tcp::Config::default().nodelay(true);
    Ok(SwarmBuilder::with_new_identity()
        .with_tokio()
        .with_tcp(tcp, libp2p::noise::Config::new, libp2p::yamux::Config::default)?
        .with_behaviour(|_| libp2p_stream::Behaviour::new())?
        .with_swarm_config(|config| config.with_idle_connection_timeout(Duration::from_secs(600)))
        .build())
}
